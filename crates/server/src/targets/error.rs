//! What can be wrong with a change to the table of targets.

use super::{BadIqn, IqnName, MAX_LUN};

/// Why the table of targets is not changed. The text is what an administrator reads.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TargetError {
    /// A name that cannot be one.
    #[error(transparent)]
    Name(#[from] BadIqn),
    /// There is no such target.
    #[error("there is no target {0}; 'forebay target list' shows them")]
    NoTarget(IqnName),
    /// There is one already.
    #[error("target {0} exists already; choose another name or remove it first")]
    Exists(IqnName),
    /// All numbers are used up.
    #[error(
        "there have been 65535 targets, more than can be told apart; no new one can be made in this pool"
    )]
    NoNumber,
    /// Initiators are connected.
    #[error("target {target} has {sessions} session(s); log them out, or use --force")]
    InUse {
        /// The target.
        target: IqnName,
        /// How many.
        sessions: usize,
    },
    /// The target has no such logical unit.
    #[error("target {target} has no LUN {lun}; 'forebay lun list {target}' shows what it has")]
    NoLun {
        /// The target.
        target: IqnName,
        /// The number.
        lun: u16,
    },
    /// The number is that of another disk.
    #[error("LUN {lun} of target {target} is '{disk}'; unmap it first, or choose another number")]
    LunTaken {
        /// The target.
        target: IqnName,
        /// The number.
        lun: u16,
        /// The disk.
        disk: String,
    },
    /// A number that cannot be one.
    #[error("{0} cannot be a LUN: they go from 0 to {MAX_LUN}")]
    HighLun(u16),
    /// All numbers of the target are taken.
    #[error("target {0} has no free LUN: make another target")]
    Full(IqnName),
    /// The disk is there already, or is to be removed and must not be.
    #[error("'{disk}' is LUN {lun} of target {target}; unmap it first")]
    Mapped {
        /// The disk.
        disk: String,
        /// Its number.
        lun: u16,
        /// The target.
        target: IqnName,
    },
    /// A disk whose writes are not durable, mapped as if they were.
    #[error(
        "nothing that is written to '{0}' is durable: it is a desktop, or has sync 'never'; map it with --write-back, so \
         that initiators are not told otherwise"
    )]
    Volatile(String),
    /// The target does not know this initiator.
    #[error("target {target} has no entry for {initiator}; 'forebay target show {target}' shows whom it has")]
    NoInitiator {
        /// The target.
        target: IqnName,
        /// The initiator.
        initiator: IqnName,
    },
    /// Two entries for one initiator.
    #[error("there are two entries for initiator {0}")]
    InitiatorTwice(IqnName),
    /// A name or secret that cannot be used.
    #[error("'{user}' cannot be used for CHAP: {why}")]
    Chap {
        /// The user.
        user: String,
        /// What is wrong.
        why: &'static str,
    },
    /// One secret for both directions.
    #[error("the secret of the target must not be that of an initiator: choose another one")]
    SameSecret,
    /// The table could not be read when the server started.
    #[error(
        "the table of targets cannot be read ({0}), so no target is served and none can be changed; it is left as it is: \
         use the release that wrote it, or drop it with 'forebay target rm --all'"
    )]
    Unreadable(String),
    /// The pool refuses.
    #[error(transparent)]
    Pool(#[from] forebay_engine::Error),
}
