//! Common code of ext and XFS: the directory walk that finds temporary files, and the classification of a
//! file by its content.

use std::collections::{HashMap, HashSet};

use crate::class::Class;
use crate::disk::{Disk, Result, Tolerate, Volume};
use crate::magic;
use crate::paths::{Patterns, State};

/// An extent: a range of a file that is contiguous on the volume, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Offset of the extent in the file.
    pub logical: u64,
    /// Offset of the extent on the volume.
    pub physical: u64,
    pub len: u64,
}

/// The extents of a file, in the order in which they are found.
#[derive(Debug, Default)]
pub(crate) struct ExtentList(pub Vec<Extent>);

impl ExtentList {
    /// Adds an extent that is within the volume. Skips it if its logical range is invalid or the memory limit
    /// is reached.
    pub fn push(&mut self, disk: &mut Disk, extent: Extent) {
        if extent.logical.checked_add(extent.len).is_none() {
            return;
        }
        if let Some(last) = self.0.last_mut()
            && last.physical + last.len == extent.physical
            && last.logical + last.len == extent.logical
        {
            last.len += extent.len;
        } else if self.0.len() < disk.limits.max_per_file(size_of::<Extent>()) {
            self.0.push(extent);
        } else {
            disk.incomplete = true;
        }
    }

    pub fn claim(&self, volume: &mut Volume, class: Class) {
        self.0.iter().for_each(|extent| volume.claim(extent.physical, extent.len, class));
    }

    /// Claims the range from `start` to `end` of the file.
    fn claim_part(&self, volume: &mut Volume, start: u64, end: u64, class: Class) {
        for extent in &self.0 {
            let from = start.clamp(extent.logical, extent.logical + extent.len);
            let to = end.clamp(from, extent.logical + extent.len);
            volume.claim(extent.physical + (from - extent.logical), to - from, class);
        }
    }

    /// Reads the start of a file of `size` bytes, up to the first hole.
    fn head(&self, volume: &mut Volume, size: u64) -> Result<Vec<u8>> {
        let mut head = Vec::new();
        let wanted = size.min(magic::HEAD as u64);
        for extent in &self.0 {
            let left = wanted - head.len() as u64;
            if left == 0 || extent.logical != head.len() as u64 {
                break;
            }
            head.extend(volume.read_vec(extent.physical, left.min(extent.len) as usize)?);
        }
        Ok(head)
    }

    /// Claims the blocks of a file with the class that its first bytes indicate.
    pub fn claim_by_content(&mut self, volume: &mut Volume, size: u64) -> Result<()> {
        if size < magic::MIN_FILE {
            return Ok(());
        }
        self.0.sort_unstable_by_key(|extent| extent.logical);
        let Some(head) = self.head(volume, size).tolerate()? else { return Ok(()) };
        if magic::is_program(&head) {
            self.claim(volume, Class::Code);
        } else if let Some(swap) = magic::swap(&head, size) {
            self.claim_part(volume, 0, swap.header, Class::Metadata);
            self.claim_part(volume, swap.header, swap.len, Class::Page);
        }
        Ok(())
    }
}

/// An entry of a directory.
pub(crate) struct Entry<'b> {
    pub name: &'b [u8],
    pub inode: u64,
    /// False only if the entry is known not to be a directory.
    pub maybe_directory: bool,
}

/// The number of matching names for each inode.
pub(crate) struct TemporaryFiles(HashMap<u64, u32>);

impl TemporaryFiles {
    /// Whether all `links` names of a file match. A file with another name is not temporary.
    pub fn has(&self, inode: u64, links: u32) -> bool {
        self.0.get(&inode).is_some_and(|found| *found >= links)
    }
}

/// Memory of an entry in the three collections, including their spare capacity and their reallocation.
const ENTRY_BYTES: usize = 224;

/// A callback for the entries of a directory.
pub(crate) type EachEntry<'e> = dyn FnMut(&mut Volume, Entry) -> Result<()> + 'e;

/// Walks the directories from `root`, limited to those below which a pattern can match. `list` passes the
/// entries of a directory to its callback; it returns `Invalid` if the inode is not a directory.
pub(crate) fn find_temporary(
    volume: &mut Volume,
    patterns: &Patterns,
    root: u64,
    mut list: impl FnMut(&mut Volume, u64, &mut EachEntry) -> Result<()>,
) -> Result<TemporaryFiles> {
    let mut found = HashMap::new();
    let mut seen = HashSet::from([root]);
    let mut todo: Vec<(u64, State)> = vec![(root, patterns.root())];
    while let Some((directory, state)) = todo.pop() {
        let mut each = |volume: &mut Volume, entry: Entry| {
            volume.disk.work(Patterns::step_work(&state, entry.name.len()))?;
            if matches!(entry.name, b"." | b"..") {
                return Ok(());
            }
            let mut next = patterns.step(&state, &String::from_utf8_lossy(entry.name));
            if next.is_empty() || !volume.disk.charge_memory(ENTRY_BYTES + size_of_val(&next[..])) {
                return Ok(());
            }
            next.shrink_to_fit();
            if patterns.is_match(&next) {
                *found.entry(entry.inode).or_insert(0) += 1;
            }
            // A tree that changes during the scan may appear to contain a loop.
            if entry.maybe_directory && seen.insert(entry.inode) {
                todo.push((entry.inode, next));
            }
            Ok(())
        };
        list(volume, directory, &mut each).tolerate()?;
    }
    Ok(TemporaryFiles(found))
}
