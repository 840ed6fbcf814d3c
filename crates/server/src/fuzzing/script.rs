//! How the bytes of a script are read. The rest of what a client says is filled in from here, as far as the flags of a
//! record do not ask for something else, so that most scripts get far.

/// Bytes before the records of an iSCSI script: kind of session (0: the rest is sent as it is), data segment length
/// that the client declares, options, cut.
pub const ISCSI_SESSION: usize = 4;
/// Bytes of an iSCSI record before its data: flags, a basic header segment, length of the data.
pub const ISCSI_HEADER: usize = 1 + 48 + 2;
/// Bytes before the records of an NBD script: kind of session (0: the rest is sent as it is), options, cut.
pub const NBD_SESSION: usize = 3;
/// Bytes of an NBD record: flags, command flags, type, offset, length.
pub const NBD_RECORD: usize = 1 + 2 + 2 + 8 + 4;

/// Flags of a record.
pub mod flags {
    /// Sent as it is, lengths and numbers too.
    pub const RAW: u8 = 0x01;
    /// The number of additional header words of an iSCSI header is kept; what they say is missing.
    pub const AHS: u8 = 0x02;
    /// The command number of an iSCSI header is kept.
    pub const KEEP_NUMBER: u8 = 0x04;
    /// An iSCSI Data-Out answers the R2T that waits longest.
    pub const ANSWER_R2T: u8 = 0x08;
    /// Such an answer keeps the lowest bytes of its data number and offset.
    pub const WRONG_PLACE: u8 = 0x10;
    /// Everything before it is answered first, as far as it is answered at once.
    pub const WAIT: u8 = 0x20;
    /// The client is gone in the middle of it.
    pub const BREAK_OFF: u8 = 0x40;
    /// Its last byte is damaged, after digests are made.
    pub const DAMAGE: u8 = 0x80;
}

/// Takes `N` bytes off the front.
pub fn take<const N: usize>(script: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = script.split_first_chunk()?;
    *script = rest;
    Some(*head)
}

/// Takes up to `len` bytes off the front.
pub fn take_some<'a>(script: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (head, rest) = script.split_at(len.min(script.len()));
    *script = rest;
    head
}
