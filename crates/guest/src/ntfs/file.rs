//! A file: its base record and extension records, its class, and its clusters.

use super::mft::Mft;
use super::record::{ATTRIBUTE_LIST, Attribute, DATA, FILE_NAME, Name, Record, Reference, Value};
use super::runs::{self, Run};
use super::stream::Stream;
use super::tree::{Parent, ParentLookup};
use super::{FIRST_USER, Fault, Result, Tolerate, Volume};
use crate::bytes::{le16, le32};
use crate::class::Class;
use crate::magic;
use crate::paths::Patterns;

/// Maximum length of an attribute list, the same as in Windows. It limits a file to about 8,000 records.
const MAX_LIST: u64 = 256 << 10;
const PAGE_FILES: [&str; 3] = ["pagefile.sys", "swapfile.sys", "hiberfil.sys"];

/// A file of NTFS.
#[derive(Debug)]
pub(super) struct File {
    number: u64,
    /// The base record, then the extension records.
    records: Vec<Record>,
}

impl File {
    /// Creates a file from its base record only.
    pub fn from_base(number: u64, record: Record) -> File {
        File { number, records: vec![record] }
    }

    /// Creates a file from its base record and reads its extension records.
    pub fn load(volume: &mut Volume, mft: &Mft, number: u64, record: Record) -> Result<File> {
        File::reload(volume, mft, File::from_base(number, record))
    }

    /// Reads the extension records again. Skips records that do not belong to this file.
    pub fn reload(volume: &mut Volume, mft: &Mft, mut file: File) -> Result<File> {
        file.records.truncate(1);
        let Some(list) = file.attribute_list(volume, mft)? else { return Ok(file) };
        let own = Reference { number: file.number, sequence: file.records[0].sequence };
        let mut others = references(&list);
        others.sort_unstable_by_key(|r| r.number);
        others.dedup_by_key(|r| r.number);
        for other in others.into_iter().filter(|r| r.number != own.number) {
            let Some(record) = mft.read(volume, other.number).tolerate()? else { continue };
            if record.base != Some(own) || record.sequence != other.sequence {
                continue;
            }
            if file.records.len()
                >= volume.disk.limits.max_per_file(mft.geometry.record + size_of::<Record>())
            {
                volume.disk.incomplete = true;
                break;
            }
            file.records.push(record);
        }
        Ok(file)
    }

    /// Returns the content of the optional `$ATTRIBUTE_LIST`.
    fn attribute_list(&self, volume: &mut Volume, mft: &Mft) -> Result<Option<Vec<u8>>> {
        let Some(attribute) = self.attributes().find(|a| a.kind == ATTRIBUTE_LIST) else { return Ok(None) };
        if let Value::Resident(list) = attribute.value {
            return Ok(Some(list.to_vec()));
        }
        let stream = self
            .stream(volume, mft, ATTRIBUTE_LIST, &[])?
            .filter(|s| s.size <= MAX_LIST)
            .ok_or(Fault::Invalid)?;
        let mut list = vec![0; stream.size as usize];
        Ok(stream.read(volume, 0, &mut list).tolerate()?.map(|()| list))
    }

    fn attributes(&self) -> impl Iterator<Item = Attribute<'_>> {
        self.records.iter().flat_map(Record::attributes)
    }

    /// Returns all names other than DOS short names.
    pub fn names(&self) -> impl Iterator<Item = Name> {
        self.attributes().filter(|a| a.kind == FILE_NAME).filter_map(|a| match a.value {
            Value::Resident(value) => Name::parse(value),
            Value::Clusters { .. } => None,
        })
    }

    /// Returns the stream of the attribute with this type and name, combined from all of its extents.
    pub fn stream(&self, volume: &mut Volume, mft: &Mft, kind: u32, name: &[u8]) -> Result<Option<Stream>> {
        // Twice the memory, because the runs are sorted.
        let most = volume.disk.limits.max_per_file(2 * size_of::<Run>());
        let mut found = false;
        let (mut all, mut bytes) = (Vec::new(), 0);
        for part in self.attributes().filter(|a| a.kind == kind && a.name == name) {
            let Value::Clusters { first_vcn, size, pairs, .. } = part.value else { continue };
            found = true;
            if first_vcn == 0 {
                bytes = size;
            }
            let runs = runs::decode(pairs, first_vcn, mft.geometry.clusters).unwrap_or_default();
            volume.disk.work(runs.len() as u64)?;
            if all.len() + runs.len() > most {
                volume.disk.incomplete = true;
                break;
            }
            all.extend(runs);
        }
        Ok(found.then(|| Stream::new(mft.geometry.cluster, bytes, all)))
    }

    /// Claims the clusters of all attributes.
    pub fn claim(&self, volume: &mut Volume, mft: &Mft, parents: &mut ParentLookup) -> Result<()> {
        let cluster = mft.geometry.cluster;
        let class = self.class(volume, mft, parents)?;
        for attribute in self.attributes() {
            let Value::Clusters { first_vcn, pairs, .. } = attribute.value else { continue };
            let class = match class {
                _ if attribute.kind != DATA => Class::Metadata,
                // Named data streams of a program or page file are not code or page file.
                Class::Code | Class::Page if !attribute.name.is_empty() => continue,
                Class::Other => continue,
                class => class,
            };
            let runs = runs::decode(pairs, first_vcn, mft.geometry.clusters).unwrap_or_default();
            volume.disk.work(runs.len() as u64)?;
            for run in runs {
                if let Some(lcn) = run.lcn {
                    volume.claim(lcn * cluster, run.len * cluster, class);
                }
            }
        }
        Ok(())
    }

    /// Determines the class of the data: by the file's paths, otherwise by its first bytes.
    fn class(&self, volume: &mut Volume, mft: &Mft, parents: &mut ParentLookup) -> Result<Class> {
        if self.number < FIRST_USER {
            return Ok(Class::Metadata);
        }
        if !self.attributes().any(|a| a.kind == DATA && matches!(a.value, Value::Clusters { .. })) {
            return Ok(Class::Other);
        }
        let (mut has_name, mut all_temporary, mut any_page, mut any_extend) = (false, true, false, false);
        for name in self.names() {
            has_name = true;
            let patterns = parents.patterns;
            let parent = parents.of(volume, name.parent)?;
            any_extend |= matches!(parent, Some(Parent::Extend));
            any_page |= matches!(parent, Some(Parent::Root(_)))
                && PAGE_FILES.iter().any(|page| page.eq_ignore_ascii_case(&name.name));
            // A file with another, non-temporary name is not temporary.
            all_temporary &= match parent {
                Some(Parent::Root(state) | Parent::Below(state)) => {
                    let work = Patterns::step_work(state, name.name.len());
                    let is_match = patterns.is_match(&patterns.step(state, &name.name));
                    volume.disk.work(work)?;
                    is_match
                }
                _ => false,
            };
        }
        Ok(match () {
            () if any_extend => Class::Metadata,
            () if any_page => Class::Page,
            () if has_name && all_temporary => Class::Temporary,
            () if self.is_program(volume, mft)?.is_some_and(|yes| yes) => Class::Code,
            () => Class::Other,
        })
    }

    /// Whether the data begins like a program; `None` if this cannot be determined.
    fn is_program(&self, volume: &mut Volume, mft: &Mft) -> Result<Option<bool>> {
        let mut data = self.attributes().filter(|a| a.kind == DATA && a.name.is_empty() && !a.is_coded);
        let first = data.find_map(|a| match a.value {
            Value::Clusters { first_vcn: 0, size, written, pairs } => Some((size.min(written), pairs)),
            _ => None,
        });
        let Some((len, pairs)) = first.filter(|(len, _)| *len >= magic::MIN_FILE) else { return Ok(None) };
        let runs = runs::decode(pairs, 0, mft.geometry.clusters).unwrap_or_default();
        // With small clusters, the first bytes may extend beyond the first run.
        let Some(Run { lcn: Some(_), .. }) = runs.first() else { return Ok(None) };
        let stream = Stream::new(mft.geometry.cluster, len, runs);
        let mut head = vec![0; magic::HEAD.min(stream.size as usize)];
        Ok(stream.read(volume, 0, &mut head).tolerate()?.map(|()| magic::is_program(&head)))
    }
}

/// Returns the record references in an attribute list.
fn references(mut list: &[u8]) -> Vec<Reference> {
    let mut found: Vec<Reference> = Vec::new();
    while let (Some(kind), Some(len)) = (le32(list, 0), le16(list, 4)) {
        let entry = list.get(..usize::from(len)).filter(|e| e.len() >= 26 && kind != 0 && kind != u32::MAX);
        let Some(reference) = entry.and_then(|e| Reference::parse(e, 16)) else { break };
        found.push(reference);
        list = &list[usize::from(len)..];
    }
    found
}
