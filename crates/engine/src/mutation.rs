//! Rules that a test breaks on purpose, to show that the tests would notice.

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
    /// The mark takes all blocks of a base that a leaf hides for dead, and some that it does not hide.
    ForgetBases,
    /// The mark takes what is below a damaged node for dead.
    DropUnseen,
}
