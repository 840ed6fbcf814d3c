//! Rules that tests break on purpose, to show that the tests detect it.
//!
//! Only with the feature `mutation`. Without it [`Broken`] equals no rule, and the checks compile to nothing.

use forebay_format::Entry;

/// The type of [`PoolConfig::mutation`](crate::PoolConfig): the rule that is broken.
#[cfg(feature = "mutation")]
pub type Broken = Mutation;

/// The type of `PoolConfig::mutation` without the feature `mutation`: no rule is broken.
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
    /// Whether recovery ignores an entry of the log because of the broken rule.
    pub(crate) fn skips(self, _: &Entry) -> bool {
        false
    }
}

/// A rule of the engine that a test breaks.
#[cfg_attr(feature = "mutation", derive(Debug, Clone, Copy, Default, PartialEq, Eq))]
pub enum Mutation {
    /// No rule is broken.
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
    /// The cleaner deletes an object although it holds a page of the current checkpoint.
    FreePages,
    /// The mark treats all blocks of a base as dead: both the blocks that a leaf hides and the blocks that it
    /// does not hide.
    ForgetBases,
    /// A mark by difference does not count a reference of each new leaf.
    LoseReference,
    /// A mark by difference releases a reference of each old leaf twice.
    ReleaseTwice,
    /// The mark treats everything below a damaged node as dead.
    DropUnseen,
    /// A flush is answered when the commit before the required commit is done.
    FlushEarly,
    /// The commit completes partial blocks with zeroes.
    ForgetBeneath,
    /// A checkpoint claims to cover the log up to the end of the checkpoint, not up to its start.
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
    /// Opening a pool adds records to the buffers although these records are in the log already.
    IgnoreCover,
    /// A group keeps its epoch when it is written again because an append was overdue.
    KeepEpoch,
    /// The cover of an abandoned group is not removed.
    KeepCover,
    /// The group after a failed group gets its number: the cover of the failed group is not removed, and
    /// writers of the log do not check whether the pool has latched.
    TakeNumber,
    /// Opening a pool treats the contents of every desktop in retained memory as valid.
    KeepInvalid,
}

#[cfg(feature = "mutation")]
impl Mutation {
    /// Whether recovery ignores an entry of the log because of the broken rule.
    pub(crate) fn skips(self, entry: &Entry) -> bool {
        match entry {
            Entry::Zero { .. } => self == Mutation::SkipZeroes,
            Entry::Catalogue(_) => self == Mutation::SkipCatalogue,
            _ => false,
        }
    }
}
