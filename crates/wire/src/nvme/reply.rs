//! The PDUs of a controller (Transport 3.6.2).

use super::pdu::{INIT, SHORT};
use super::{Digests, FatalError, H2C_DATA_MAX, InitRequest, Status, put};
use crate::crc::crc32c;

const FLAG_LAST: u8 = 0x04;
const FLAG_SUCCESS: u8 = 0x08;
/// Bytes of a completion queue entry.
const CQE: usize = 16;

/// A completion queue entry (Base 3.3.3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// Identifier of the command.
    pub command: u16,
    /// Identifier of the queue.
    pub queue: u16,
    /// The head of the submission queue.
    pub head: u16,
    /// The result of the command, in dwords 0 and 1.
    pub result: u64,
    /// Why the command failed.
    pub status: Status,
}

/// The framing of the PDUs to a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Framing {
    /// The digests of the connection.
    pub digests: Digests,
    /// Alignment of data in a PDU.
    pub alignment: usize,
}

fn header<const N: usize>(kind: u8, flags: u8, offset: usize, total: usize) -> [u8; N] {
    let mut out = [0; N];
    (out[0], out[1], out[2], out[3]) = (kind, flags, N as u8, offset as u8);
    put(&mut out, 4, (total as u32).to_le_bytes());
    out
}

/// The response to an initialization request.
pub fn initialized(request: &InitRequest) -> [u8; INIT] {
    let mut out = header::<INIT>(0x01, 0, 0, INIT);
    out[11] = u8::from(request.digests.header) | u8::from(request.digests.data) << 1;
    put(&mut out, 12, H2C_DATA_MAX.to_le_bytes());
    out
}

/// A C2HTermReq; `found` begins with the header of the PDU in which the error was found.
pub fn terminate(error: FatalError, found: &[u8]) -> Vec<u8> {
    let data = &found[..found.len().min(SHORT)];
    let mut out = header::<SHORT>(0x03, 0, 0, SHORT + data.len()).to_vec();
    let (status, information) = error.status();
    put(&mut out, 8, status.to_le_bytes());
    put(&mut out, 10, information.to_le_bytes());
    out.extend_from_slice(data);
    out
}

impl Framing {
    /// Appends a header with its digest.
    fn seal(self, header: &[u8; SHORT], out: &mut Vec<u8>) {
        out.extend_from_slice(header);
        if self.digests.header {
            out.extend_from_slice(&crc32c(header, 0).to_le_bytes());
        }
    }

    /// Bytes of a PDU without data.
    fn short_len(self) -> usize {
        SHORT + self.digests.header_len()
    }

    /// Bytes before the data of a C2HData PDU.
    pub fn data_offset(self) -> usize {
        self.short_len().next_multiple_of(self.alignment.max(4))
    }

    /// Appends a capsule with a completion.
    pub fn complete(self, completion: &Completion, out: &mut Vec<u8>) {
        let len = self.short_len();
        let mut pdu = header::<SHORT>(0x05, self.digests.flags(false), 0, len);
        put(&mut pdu, 8, completion.result.to_le_bytes());
        put(&mut pdu, 16, completion.head.to_le_bytes());
        put(&mut pdu, 18, completion.queue.to_le_bytes());
        put(&mut pdu, 20, completion.command.to_le_bytes());
        put(&mut pdu, 22, completion.status.encode().to_le_bytes());
        debug_assert_eq!(8 + CQE, SHORT, "the entry fills the PDU");
        self.seal(&pdu, out);
    }

    /// Appends an R2T for `len` bytes from `offset` on.
    pub fn ready_to_transfer(self, command: u16, tag: u16, offset: u32, len: u32, out: &mut Vec<u8>) {
        let mut pdu = header::<SHORT>(0x09, self.digests.flags(false), 0, self.short_len());
        put(&mut pdu, 8, command.to_le_bytes());
        put(&mut pdu, 10, tag.to_le_bytes());
        put(&mut pdu, 12, offset.to_le_bytes());
        put(&mut pdu, 16, len.to_le_bytes());
        self.seal(&pdu, out);
    }

    /// The bytes before the data of a C2HData PDU with all data of a command. With `success`, no completion
    /// follows: the command has succeeded.
    pub fn data_header(self, command: u16, len: usize, success: bool) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.data_offset());
        self.put_data_header(command, len, success, &mut out);
        out
    }

    /// Appends what [`Framing::data_header`] returns.
    pub fn put_data_header(self, command: u16, len: usize, success: bool, out: &mut Vec<u8>) {
        let (start, offset) = (out.len(), self.data_offset());
        let total = offset + len + self.digests.data_len();
        let flags = self.digests.flags(true) | FLAG_LAST | if success { FLAG_SUCCESS } else { 0 };
        let mut pdu = header::<SHORT>(0x07, flags, offset, total);
        put(&mut pdu, 8, command.to_le_bytes());
        put(&mut pdu, 16, (len as u32).to_le_bytes());
        self.seal(&pdu, out);
        out.resize(start + offset, 0);
    }

    /// Appends the digest that follows data.
    pub fn data_digest(self, data: &[u8], out: &mut Vec<u8>) {
        if self.digests.data {
            out.extend_from_slice(&crc32c(data, 0).to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_aligned_and_has_its_digest() {
        let digests = Digests { header: true, data: true };
        let framing = Framing { digests, alignment: 64 };
        let header = framing.data_header(3, 512, true);
        assert_eq!((header.len(), header[1], header[2], header[3]), (64, 0x0f, 24, 64));
        assert_eq!(u32::from_le_bytes(header[4..8].try_into().unwrap()), 64 + 512 + 4);
        let mut digest = Vec::new();
        framing.data_digest(&[0; 32], &mut digest);
        assert_eq!(digest, [0xaa, 0x36, 0x91, 0x8a]);
    }

    #[test]
    fn completions_are_encoded() {
        let framing = Framing { digests: Digests::default(), alignment: 4 };
        let mut out = Vec::new();
        let status = Status::LBA_OUT_OF_RANGE;
        framing.complete(&Completion { command: 9, queue: 2, head: 5, result: 7, status }, &mut out);
        assert_eq!(out[..8], [5, 0, 24, 0, 24, 0, 0, 0]);
        assert_eq!(out[8..], [7, 0, 0, 0, 0, 0, 0, 0, 5, 0, 2, 0, 9, 0, 0, 0x81]);
    }

    #[test]
    fn a_termination_repeats_the_header() {
        let out = terminate(FatalError::Header { offset: 3, why: "" }, &[6; 200]);
        assert_eq!((out.len(), out[0], out[4], out[8], out[10]), (48, 3, 48, 1, 3));
    }
}
