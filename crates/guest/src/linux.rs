//! What file systems of Linux have in common here: a walk of directories for the temporary files, and the class of a
//! file by its content.

use std::collections::{HashMap, HashSet};

use crate::class::Class;
use crate::disk::{Disk, Result, Tolerate, Volume};
use crate::magic;
use crate::paths::{Patterns, State};

/// Neighbouring blocks of a file that are neighbours on the volume, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// In the file.
    pub logical: u64,
    /// On the volume.
    pub physical: u64,
    pub len: u64,
}

/// The pieces of a file, in the order in which they are found.
#[derive(Debug, Default)]
pub(crate) struct Pieces(pub Vec<Piece>);

impl Pieces {
    /// Adds a piece that is on the volume. One that has no place in a file is left out, and so are those for which
    /// there is no room.
    pub fn push(&mut self, disk: &mut Disk, piece: Piece) {
        if piece.logical.checked_add(piece.len).is_none() {
            return;
        }
        if let Some(last) = self.0.last_mut()
            && last.physical + last.len == piece.physical
            && last.logical + last.len == piece.logical
        {
            last.len += piece.len;
        } else if self.0.len() < disk.limits.of_a_file(size_of::<Piece>()) {
            self.0.push(piece);
        } else {
            disk.cut = true;
        }
    }

    pub fn claim(&self, volume: &mut Volume, class: Class) {
        self.0.iter().for_each(|piece| volume.claim(piece.physical, piece.len, class));
    }

    /// Claims the part from `start` to `end` of the file.
    fn claim_part(&self, volume: &mut Volume, start: u64, end: u64, class: Class) {
        for piece in &self.0 {
            let from = start.clamp(piece.logical, piece.logical + piece.len);
            let to = end.clamp(from, piece.logical + piece.len);
            volume.claim(piece.physical + (from - piece.logical), to - from, class);
        }
    }

    /// The beginning of a file of `size` bytes, as far as it is in one row.
    fn head(&self, volume: &mut Volume, size: u64) -> Result<Vec<u8>> {
        let mut head = Vec::new();
        let wanted = size.min(magic::HEAD as u64);
        for piece in &self.0 {
            let left = wanted - head.len() as u64;
            if left == 0 || piece.logical != head.len() as u64 {
                break;
            }
            head.extend(volume.read_vec(piece.physical, left.min(piece.len) as usize)?);
        }
        Ok(head)
    }

    /// Claims the blocks of a file by what it begins with.
    pub fn claim_by_content(&mut self, volume: &mut Volume, size: u64) -> Result<()> {
        if size < magic::MIN_FILE {
            return Ok(());
        }
        self.0.sort_unstable_by_key(|piece| piece.logical);
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

/// A name in a directory.
pub(crate) struct Entry<'b> {
    pub name: &'b [u8],
    pub inode: u64,
    /// False only if it is known to be something else.
    pub maybe_directory: bool,
}

/// How often each inode was found under a name that a pattern matches.
pub(crate) struct TemporaryFiles(HashMap<u64, u32>);

impl TemporaryFiles {
    /// Whether all `links` names of a file are temporary. One that has a name elsewhere too will stay.
    pub fn has(&self, inode: u64, links: u32) -> bool {
        self.0.get(&inode).is_some_and(|found| *found >= links)
    }
}

/// An entry in each of the three collections, with the room that these keep for more, and while they move.
const ENTRY_BYTES: usize = 224;

/// What takes the entries of a directory.
pub(crate) type EachEntry<'e> = dyn FnMut(&mut Volume, Entry) -> Result<()> + 'e;

/// Walks the directories from `root` on, but only those below which a pattern may match. `list` hands on the entries
/// of a directory; it is `Bad` where it is none.
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
            if next.is_empty() || !volume.disk.remember(ENTRY_BYTES + size_of_val(&next[..])) {
                return Ok(());
            }
            next.shrink_to_fit();
            if patterns.is_match(&next) {
                *found.entry(entry.inode).or_insert(0) += 1;
            }
            // A tree that is in use may seem to have a circle.
            if entry.maybe_directory && seen.insert(entry.inode) {
                todo.push((entry.inode, next));
            }
            Ok(())
        };
        list(volume, directory, &mut each).tolerate()?;
    }
    Ok(TemporaryFiles(found))
}
