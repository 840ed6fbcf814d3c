//! Rules that a test breaks on purpose, to show that the tests would notice.

use forebay_format::Entry;

/// Which rule is broken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mutation {
    /// None.
    #[default]
    None,
    /// The cleaner does not look at what came into use while it marked.
    DropBarrier,
    /// The cleaner deletes an object before the relocation of what is in it is durable.
    FreeEarly,
    /// The cleaner leaves a live slot behind.
    SkipSurvivor,
    /// The cleaner publishes relocations while a superblock copy still names an older checkpoint.
    PublishEarly,
    /// The cleaner deletes an object though no checkpoint has its segments where they were moved to.
    DeleteUncovered,
    /// The mark takes all blocks of a base that a leaf hides for dead, and some that it does not hide.
    ForgetBases,
    /// The mark takes what is below a damaged node for dead.
    DropUnseen,
    /// A flush is answered when the commit before the one that it needs is done.
    FlushEarly,
    /// The commit completes partial blocks with zeroes.
    ForgetBeneath,
    /// A checkpoint claims all that is in the log when it is done.
    CheckpointAhead,
    /// Recovery does not replay zeroed ranges.
    SkipZeroes,
    /// Recovery replays the log without the changes to the catalogue.
    SkipCatalogue,
    /// Desktops keep what overflowed when the pool is opened again.
    KeepDesktops,
    /// A desktop is not reset when its client leaves.
    ReuseDesktop,
}

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
