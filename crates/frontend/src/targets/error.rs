//! Errors of changes to the table of targets.

use forebay_text::counted;

use super::{BadIqn, IqnName, MAX_LUN};

/// Reasons for which the table of targets is not changed. The text is displayed to administrators.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TargetError {
    /// The name of a target or initiator is invalid.
    #[error(transparent)]
    Name(#[from] BadIqn),
    /// The target does not exist.
    #[error("there is no target {0}; 'forebay target list' lists the targets")]
    NoTarget(IqnName),
    /// A target of this name exists.
    #[error("target {0} exists already; choose another name or remove it first")]
    Exists(IqnName),
    /// All target numbers have been used.
    #[error("all 65535 target numbers of this pool have been used; no more targets can be created")]
    NoNumber,
    /// The target has sessions.
    #[error("target {target} has {}; log them out, or use --force", counted(*sessions, "session"))]
    InUse {
        /// Name of the target.
        target: IqnName,
        /// Number of sessions on the target.
        sessions: usize,
    },
    /// The target has no such logical unit.
    #[error("target {target} has no LUN {lun}; 'forebay lun list {target}' lists its LUNs")]
    NoLun {
        /// Name of the target.
        target: IqnName,
        /// The logical unit number.
        lun: u16,
    },
    /// The logical unit number belongs to another disk.
    #[error("LUN {lun} of target {target} is '{disk}'; unmap it first, or choose another number")]
    LunTaken {
        /// Name of the target.
        target: IqnName,
        /// The logical unit number.
        lun: u16,
        /// Name of the other disk.
        disk: String,
    },
    /// The logical unit number is too high.
    #[error("{0} cannot be a LUN: LUNs range from 0 to {MAX_LUN}")]
    HighLun(u16),
    /// All logical unit numbers of the target are taken.
    #[error("target {0} has no free LUN: create another target")]
    Full(IqnName),
    /// The disk is mapped already, or must not be removed because it is mapped.
    #[error("'{disk}' is LUN {lun} of target {target}; unmap it first")]
    Mapped {
        /// Name of the disk.
        disk: String,
        /// The disk's logical unit number.
        lun: u16,
        /// Name of the target.
        target: IqnName,
    },
    /// The writes to a disk are not durable, and it is to be mapped without `write_back`.
    #[error(
        "writes to '{0}' are not durable: it is a desktop, or has sync 'never'; map it with --write-back, which reports \
                 a volatile write cache to initiators"
    )]
    Volatile(String),
    /// The target has no entry for this initiator.
    #[error("target {target} has no entry for {initiator}; 'forebay target show {target}' lists its entries")]
    NoInitiator {
        /// Name of the target.
        target: IqnName,
        /// Name of the initiator.
        initiator: IqnName,
    },
    /// The list has two entries for one initiator.
    #[error("there are two entries for initiator {0}")]
    InitiatorTwice(IqnName),
    /// A user name or secret for CHAP is invalid.
    #[error("'{user}' cannot be used for CHAP: {why}")]
    Chap {
        /// Name of the user.
        user: String,
        /// The defect of the user name or secret.
        why: &'static str,
    },
    /// The text of a DH-HMAC-CHAP key is invalid.
    #[error("this is no DH-HMAC-CHAP key: {0}; 'nvme gen-dhchap-key' makes one")]
    DhChap(&'static str),
    /// The entry of an iSCSI initiator has a DH-HMAC-CHAP key.
    #[error("{0} is no NVMe host: only entries whose name begins with 'nqn.' can have a DH-HMAC-CHAP key")]
    NoHost(IqnName),
    /// The same secret would be used for both directions.
    #[error("the secret of the target must not be that of an initiator; choose another one")]
    SameSecret,
    /// The table could not be read when the server started.
    #[error(
        "cannot read the table of targets ({0}), so no targets are served and none can be changed; the table is kept: \
                 use the release that wrote it, or delete it with 'forebay target rm --all'"
    )]
    Unreadable(String),
    /// The pool returned an error when targets were changed.
    #[error(transparent)]
    Pool(#[from] forebay_engine::Error),
}
