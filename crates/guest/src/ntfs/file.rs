//! One file: all records that describe it, what class it is of, and the clusters that it has.

use super::mft::Mft;
use super::record::{ATTRIBUTE_LIST, Attribute, DATA, FILE_NAME, Name, Record, Reference, Value};
use super::runs::{self, Run};
use super::stream::Stream;
use super::tree::{Place, Places};
use super::{FIRST_USER, Fault, Result, Tolerate, Volume};
use crate::bytes::{le16, le32};
use crate::class::Class;
use crate::magic;
use crate::paths::Patterns;

/// What Windows allows for a list of attributes; hence at most some 8,000 records of one file.
const MAX_LIST: u64 = 256 << 10;
const PAGE_FILES: [&str; 3] = ["pagefile.sys", "swapfile.sys", "hiberfil.sys"];

/// A file.
#[derive(Debug)]
pub(super) struct File {
    number: u64,
    /// The first is its own; the others add to it.
    records: Vec<Record>,
}

impl File {
    /// A file without the records that add to it.
    pub fn alone(number: u64, record: Record) -> File {
        File { number, records: vec![record] }
    }

    /// A file with all its records.
    pub fn gather(volume: &mut Volume, mft: &Mft, number: u64, record: Record) -> Result<File> {
        File::gather_from(volume, mft, File::alone(number, record))
    }

    /// Reads the records again that add to the first. One that says it belongs to another file is left out.
    pub fn gather_from(volume: &mut Volume, mft: &Mft, mut file: File) -> Result<File> {
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
            if file.records.len() >= volume.disk.limits.of_a_file(mft.geometry.record + size_of::<Record>()) {
                volume.disk.cut = true;
                break;
            }
            file.records.push(record);
        }
        Ok(file)
    }

    /// The content of `$ATTRIBUTE_LIST`, if there is one.
    fn attribute_list(&self, volume: &mut Volume, mft: &Mft) -> Result<Option<Vec<u8>>> {
        let Some(attribute) = self.attributes().find(|a| a.kind == ATTRIBUTE_LIST) else { return Ok(None) };
        if let Value::Resident(list) = attribute.value {
            return Ok(Some(list.to_vec()));
        }
        let stream = self
            .stream(volume, mft, ATTRIBUTE_LIST, &[])?
            .filter(|s| s.size <= MAX_LIST)
            .ok_or(Fault::Bad)?;
        let mut list = vec![0; stream.size as usize];
        Ok(stream.read(volume, 0, &mut list).tolerate()?.map(|()| list))
    }

    fn attributes(&self) -> impl Iterator<Item = Attribute<'_>> {
        self.records.iter().flat_map(Record::attributes)
    }

    /// All its names but the short ones.
    pub fn names(&self) -> impl Iterator<Item = Name> {
        self.attributes().filter(|a| a.kind == FILE_NAME).filter_map(|a| match a.value {
            Value::Resident(value) => Name::parse(value),
            Value::Clusters { .. } => None,
        })
    }

    /// The stream of an attribute of this type and name, put together of all its parts.
    pub fn stream(&self, volume: &mut Volume, mft: &Mft, kind: u32, name: &[u8]) -> Result<Option<Stream>> {
        // Twice the room, as they are sorted.
        let most = volume.disk.limits.of_a_file(2 * size_of::<Run>());
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
                volume.disk.cut = true;
                break;
            }
            all.extend(runs);
        }
        Ok(found.then(|| Stream::new(mft.geometry.cluster, bytes, all)))
    }

    /// Claims the clusters of all its attributes.
    pub fn claim(&self, volume: &mut Volume, mft: &Mft, places: &mut Places) -> Result<()> {
        let cluster = mft.geometry.cluster;
        let class = self.class(volume, mft, places)?;
        for attribute in self.attributes() {
            let Value::Clusters { first_vcn, pairs, .. } = attribute.value else { continue };
            let class = match class {
                _ if attribute.kind != DATA => Class::Metadata,
                // What else is in a program or page file is neither.
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

    /// What its content is: by where it stands, and else by what it begins with.
    fn class(&self, volume: &mut Volume, mft: &Mft, places: &mut Places) -> Result<Class> {
        if self.number < FIRST_USER {
            return Ok(Class::Metadata);
        }
        if !self.attributes().any(|a| a.kind == DATA && matches!(a.value, Value::Clusters { .. })) {
            return Ok(Class::Other);
        }
        let (mut has_name, mut all_temporary, mut any_page, mut any_extend) = (false, true, false, false);
        for name in self.names() {
            has_name = true;
            let patterns = places.patterns;
            let place = places.of(volume, name.parent)?;
            any_extend |= matches!(place, Some(Place::Extend));
            any_page |= matches!(place, Some(Place::Root(_)))
                && PAGE_FILES.iter().any(|page| page.eq_ignore_ascii_case(&name.name));
            // A file that has a name elsewhere too will stay when this one goes.
            all_temporary &= match place {
                Some(Place::Root(state) | Place::Below(state)) => {
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

    /// Whether its content begins as a program does; none if that cannot be told.
    fn is_program(&self, volume: &mut Volume, mft: &Mft) -> Result<Option<bool>> {
        let mut data = self.attributes().filter(|a| a.kind == DATA && a.name.is_empty() && !a.is_coded);
        let first = data.find_map(|a| match a.value {
            Value::Clusters { first_vcn: 0, size, written, pairs } => Some((size.min(written), pairs)),
            _ => None,
        });
        let Some((len, pairs)) = first.filter(|(len, _)| *len >= magic::MIN_FILE) else { return Ok(None) };
        let runs = runs::decode(pairs, 0, mft.geometry.clusters).unwrap_or_default();
        // Behind the first run, if clusters are small, the head may go on elsewhere.
        let Some(Run { lcn: Some(_), .. }) = runs.first() else { return Ok(None) };
        let stream = Stream::new(mft.geometry.cluster, len, runs);
        let mut head = vec![0; magic::HEAD.min(stream.size as usize)];
        Ok(stream.read(volume, 0, &mut head).tolerate()?.map(|()| magic::is_program(&head)))
    }
}

/// The records that a list of attributes names.
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
