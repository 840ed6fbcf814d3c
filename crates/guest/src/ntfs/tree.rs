//! The directory tree of a volume, which provides the paths of files.

use std::collections::HashMap;

use super::file::File;
use super::mft::Mft;
use super::record::{Name, Reference};
use super::{EXTEND, ROOT, Result, Tolerate, Volume};
use crate::paths::{Patterns, State};

/// Maximum number of components of a path. Windows allows about 16,000 (32,767 characters), but real paths
/// are far shorter.
const MAX_DEPTH: usize = 256;

#[derive(Debug)]
struct Directory {
    sequence: u16,
    parent: Reference,
    name: Box<str>,
}

/// All directories, by their record numbers.
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
            let Some(file) = File::load(volume, mft, number, record).tolerate()? else { return Ok(()) };
            let Some(Name { parent, name }) = file.names().next() else { return Ok(()) };
            if volume.disk.charge_memory(size_of::<(u64, Directory)>() * 4 + name.len() + 16) {
                tree.insert(number, Directory { sequence, parent, name: name.into() });
            }
            Ok(())
        })?;
        Ok(Tree(tree))
    }

    /// Returns the names from the root to this directory; `None` if a parent is missing or the path is too
    /// long.
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

/// The kind of a file's parent directory.
#[derive(Debug, Clone)]
pub(super) enum Parent {
    /// The root directory.
    Root(State),
    /// `$Extend`, which contains files of the file system itself.
    Extend,
    /// Any other directory.
    Below(State),
}

/// Looks up parent directories. Caches the last result, because files of one directory are often adjacent in
/// the MFT.
pub(super) struct ParentLookup<'t> {
    tree: &'t Tree,
    pub patterns: &'t Patterns,
    last: Option<(Reference, Option<Parent>)>,
}

impl<'t> ParentLookup<'t> {
    pub fn new(tree: &'t Tree, patterns: &'t Patterns) -> ParentLookup<'t> {
        ParentLookup { tree, patterns, last: None }
    }

    pub fn of(&mut self, volume: &mut Volume, directory: Reference) -> Result<Option<&Parent>> {
        volume.disk.work(1)?;
        if self.last.as_ref().is_none_or(|(last, _)| *last != directory) {
            self.last = Some((directory, self.find(volume, directory)?));
        }
        Ok(self.last.as_ref().and_then(|(_, parent)| parent.as_ref()))
    }

    fn find(&self, volume: &mut Volume, directory: Reference) -> Result<Option<Parent>> {
        if directory.number == ROOT {
            return Ok(Some(Parent::Root(self.patterns.root())));
        }
        let Some(path) = self.tree.path(directory) else {
            // In the worst case, the parents form a loop.
            volume.disk.work(MAX_DEPTH as u64)?;
            return Ok(None);
        };
        // `$Extend\$Deleted` contains user files that were deleted while open.
        if directory.number == EXTEND || (path[0] == "$Extend" && path.get(1) != Some(&"$Deleted")) {
            return Ok(Some(Parent::Extend));
        }
        let mut state = self.patterns.root();
        for name in path {
            volume.disk.work(Patterns::step_work(&state, name.len()))?;
            state = self.patterns.step(&state, name);
        }
        Ok(Some(Parent::Below(state)))
    }
}
