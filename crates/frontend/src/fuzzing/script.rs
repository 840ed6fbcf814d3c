//! The format of scripts. All fields that the flags of a record do not override are filled in with valid
//! values, so that most scripts get far.

/// Bytes before the records of an iSCSI script: kind of session (0: all further bytes are sent unchanged),
/// declared data segment length, options, size of the pieces.
pub const ISCSI_SESSION: usize = 4;
/// Bytes of an iSCSI record before its data: flags, a basic header segment, length of the data.
pub const ISCSI_HEADER: usize = 1 + 48 + 2;
/// Bytes before the records of an NBD script: kind of session (0: all further bytes are sent unchanged),
/// options, size of the pieces.
pub const NBD_SESSION: usize = 3;
/// Bytes of an NBD record: flags, command flags, type, offset, length.
pub const NBD_RECORD: usize = 1 + 2 + 2 + 8 + 4;

/// Bytes before the records of an NVMe script: kind of session (0: all further bytes are sent unchanged; 1:
/// discovery; 2: on an open target), digests, size of the pieces.
pub const NVME_SESSION: usize = 3;
/// Bytes of an NVMe record before its data: flags, a submission queue entry, length of the data.
pub const NVME_RECORD: usize = 1 + 64 + 2;

/// Flags of a record.
pub mod flags {
    /// The record is sent unchanged, including lengths and numbers.
    pub const RAW: u8 = 0x01;
    /// The number of additional header words of an iSCSI header is kept, but the words are not sent.
    pub const AHS: u8 = 0x02;
    /// The command number of an iSCSI header is kept.
    pub const KEEP_NUMBER: u8 = 0x04;
    /// An iSCSI Data-Out answers the oldest R2T.
    pub const ANSWER_R2T: u8 = 0x08;
    /// An answer to an R2T keeps the lowest bytes of its data number and offset.
    pub const WRONG_PLACE: u8 = 0x10;
    /// The client waits first for the answers to all earlier records that are answered immediately.
    pub const WAIT: u8 = 0x20;
    /// The client disconnects in the middle of the record.
    pub const BREAK_OFF: u8 = 0x40;
    /// The last byte is corrupted, after digests are computed.
    pub const DAMAGE: u8 = 0x80;
}

/// Removes `N` bytes from the front.
pub fn take<const N: usize>(script: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = script.split_first_chunk()?;
    *script = rest;
    Some(*head)
}

/// Removes up to `len` bytes from the front.
pub fn take_some<'a>(script: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (head, rest) = script.split_at(len.min(script.len()));
    *script = rest;
    head
}
