//! Rules that tests break on purpose, to show that the tests detect it.
//!
//! Only with the feature `mutation`. Without it [`Broken`] equals no rule, and the checks compile to nothing.

use forebay_format::Entry;

/// The rule that is broken, as [`PoolConfig`](crate::PoolConfig) holds it.
#[cfg(feature = "mutation")]
pub type Broken = Mutation;

/// No rule is broken.
#[cfg(not(feature = "mutation"))]
#[derive(Debug, Clone, Copy, Default)]
pub struct Broken(());

#[cfg(not(feature = "mutation"))]
impl PartialEq<Mutation> for Broken {
    fn eq(&self, _: &Mutation) -> bool {
        false
    }
}

#[cfg(not(feature = "mutation"))]
impl Broken {
    /// Whether recovery leaves an entry out.
    pub(crate) fn skips(self, _: &Entry) -> bool {
        false
    }
}

/// A rule to break.
#[cfg_attr(feature = "mutation", derive(Debug, Clone, Copy, Default, PartialEq, Eq))]
pub enum Mutation {
    /// None.
    #[cfg(feature = "mutation")]
    #[default]
    None,
    /// The cleaner ignores slots that were referenced while it marked.
    DropBarrier,
    /// The cleaner deletes an object before the relocation of its live slots is durable.
    FreeEarly,
    /// The cleaner leaves a live slot behind.
    SkipSurvivor,
    /// The cleaner publishes relocations while a superblock copy still names an older checkpoint.
    PublishEarly,
    /// The cleaner deletes an object although no checkpoint holds the new location of its segments.
    DeleteUncovered,
    /// The cleaner deletes an object although a reader may still read from it.
    IgnoreReaders,
    /// The cleaner deletes an object although it holds a page of the checkpoint in effect.
    FreePages,
    /// The mark treats all blocks of a base as dead: those that a leaf hides, and some that it does not hide.
    ForgetBases,
    /// A mark by difference does not count a reference of each new leaf.
    LoseReference,
    /// A mark by difference releases a reference of each old leaf twice.
    ReleaseTwice,
    /// The mark treats everything below a damaged node as dead.
    DropUnseen,
    /// A flush is answered when the commit before the one that it needs is done.
    FlushEarly,
    /// The commit completes partial blocks with zeroes.
    ForgetBeneath,
    /// A checkpoint claims all of the log as of its completion.
    CheckpointAhead,
    /// Recovery does not replay zeroed ranges.
    SkipZeroes,
    /// Recovery replays the log without the changes to the catalogue.
    SkipCatalogue,
    /// Desktops keep overflowed data when the pool is opened again.
    KeepDesktops,
    /// A desktop is not reset when its client leaves.
    ReuseDesktop,
    /// Opening a pool discards the contents of retained memory.
    DropMemory,
    /// Opening a pool adds records to the buffers that are in the log already.
    IgnoreCover,
    /// A group that is written again after an append was overdue keeps its epoch.
    KeepEpoch,
    /// A group that is given up leaves its cover.
    KeepCover,
    /// The group after one that failed takes its number: a group that fails leaves its cover, and writers of
    /// the log do not check whether the pool has latched.
    TakeNumber,
    /// Opening a pool treats the contents of every desktop in retained memory as valid.
    KeepInvalid,
}

#[cfg(feature = "mutation")]
impl Mutation {
    /// Whether recovery leaves an entry out.
    pub(crate) fn skips(self, entry: &Entry) -> bool {
        match entry {
            Entry::Zero { .. } => self == Mutation::SkipZeroes,
            Entry::Catalogue(_) => self == Mutation::SkipCatalogue,
            _ => false,
        }
    }
}
