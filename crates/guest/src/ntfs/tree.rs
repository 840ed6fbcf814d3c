//! The directories of a volume: where a file stands.

use std::collections::HashMap;

use super::file::File;
use super::mft::Mft;
use super::record::{Name, Reference};
use super::{EXTEND, ROOT, Result, Tolerate, Volume};
use crate::paths::{Patterns, State};

/// Windows allows 32,767 characters of a path, hence some 16,000 components; nobody has more than these.
const MAX_DEPTH: usize = 256;

#[derive(Debug)]
struct Directory {
    sequence: u16,
    parent: Reference,
    name: Box<str>,
}

/// All directories, by the numbers of their records.
#[derive(Debug)]
pub(super) struct Tree(HashMap<u64, Directory>);

impl Tree {
    pub fn read(volume: &mut Volume, mft: &Mft) -> Result<Tree> {
        let mut tree = HashMap::new();
        mft.sweep(volume, |volume, number, record| {
            if !record.is_directory {
                return Ok(());
            }
            let sequence = record.sequence;
            let Some(file) = File::gather(volume, mft, number, record).tolerate()? else { return Ok(()) };
            let Some(Name { parent, name }) = file.names().next() else { return Ok(()) };
            if volume.disk.remember(size_of::<(u64, Directory)>() * 4 + name.len() + 16) {
                tree.insert(number, Directory { sequence, parent, name: name.into() });
            }
            Ok(())
        })?;
        Ok(Tree(tree))
    }

    /// The names from the root to this directory. None if it cannot be found out.
    fn path(&self, mut at: Reference) -> Option<Vec<&str>> {
        let mut path = Vec::new();
        while at.number != ROOT {
            let directory = self.0.get(&at.number).filter(|d| d.sequence == at.sequence)?;
            path.push(&*directory.name);
            at = directory.parent;
            (path.len() <= MAX_DEPTH).then_some(())?;
        }
        path.reverse();
        Some(path)
    }
}

/// What a directory means for a file in it.
#[derive(Debug, Clone)]
pub(super) enum Place {
    /// The root.
    Root(State),
    /// Where the file system keeps files of its own.
    Extend,
    /// Anywhere else.
    Below(State),
}

/// Places of directories. Files that were made together stand together, so the last answer is kept.
pub(super) struct Places<'t> {
    tree: &'t Tree,
    pub patterns: &'t Patterns,
    last: Option<(Reference, Option<Place>)>,
}

impl<'t> Places<'t> {
    pub fn new(tree: &'t Tree, patterns: &'t Patterns) -> Places<'t> {
        Places { tree, patterns, last: None }
    }

    pub fn of(&mut self, volume: &mut Volume, directory: Reference) -> Result<Option<&Place>> {
        volume.disk.work(1)?;
        if self.last.as_ref().is_none_or(|(last, _)| *last != directory) {
            self.last = Some((directory, self.find(volume, directory)?));
        }
        Ok(self.last.as_ref().and_then(|(_, place)| place.as_ref()))
    }

    fn find(&self, volume: &mut Volume, directory: Reference) -> Result<Option<Place>> {
        if directory.number == ROOT {
            return Ok(Some(Place::Root(self.patterns.root())));
        }
        let Some(path) = self.tree.path(directory) else {
            // At the worst it was a circle.
            volume.disk.work(MAX_DEPTH as u64)?;
            return Ok(None);
        };
        // Files that were deleted while open wait in a directory there; they are users' files.
        if directory.number == EXTEND || (path[0] == "$Extend" && path.get(1) != Some(&"$Deleted")) {
            return Ok(Some(Place::Extend));
        }
        let mut state = self.patterns.root();
        for name in path {
            volume.disk.work(Patterns::step_work(&state, name.len()))?;
            state = self.patterns.step(&state, name);
        }
        Ok(Some(Place::Below(state)))
    }
}
