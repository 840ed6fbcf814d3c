//! The layout of PDUs and of submission queue entries. Integers are little-endian.

use super::{NvmeError, Status};

/// Bytes of the header of each PDU of a controller, after the initialization.
pub const HEADER: usize = 24;
/// Bytes of an initialization PDU.
pub const INIT: usize = 128;
/// Bytes of a command capsule without data.
pub const CAPSULE: usize = 72;
/// Bytes of a logical block, as on disks for virtual machines.
pub const BLOCK: u64 = 512;

const COMMAND: u8 = 0x04;
const H2C_DATA: u8 = 0x06;
const TERMINATION: u8 = 0x03;

/// A submission queue entry.
#[derive(Debug, Clone, Copy)]
pub struct Entry(pub [u8; 64]);

impl Entry {
    /// An entry of a command without data.
    pub fn new(opcode: u8, command: u16, namespace: u32) -> Entry {
        let mut entry = Entry([0; 64]);
        // SGLs are used for data.
        (entry.0[0], entry.0[1]) = (opcode, 0x40);
        entry.put(2, &command.to_le_bytes());
        entry.put(4, &namespace.to_le_bytes());
        entry
    }

    /// Writes a field.
    pub fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// States `len` bytes of data: in the capsule, or in separate PDUs.
    pub fn with_data(mut self, len: u32, in_capsule: bool) -> Entry {
        self.put(32, &len.to_le_bytes());
        self.0[39] = if in_capsule { 0x01 } else { 0x5a };
        self
    }

    /// A command to a range of blocks.
    pub fn blocks(opcode: u8, command: u16, namespace: u32, offset: u64, len: u32) -> Entry {
        let mut entry = Entry::new(opcode, command, namespace);
        entry.put(40, &(offset / BLOCK).to_le_bytes());
        entry.put(48, &(u64::from(len) / BLOCK).saturating_sub(1).to_le_bytes()[..2]);
        entry
    }

    /// The entry in a capsule, with `data` bytes after it.
    pub fn capsule(&self, data: usize) -> [u8; CAPSULE] {
        let mut out = [0; CAPSULE];
        (out[0], out[2]) = (COMMAND, CAPSULE as u8);
        out[3] = if data > 0 { CAPSULE as u8 } else { 0 };
        out[4..8].copy_from_slice(&((CAPSULE + data) as u32).to_le_bytes());
        out[8..].copy_from_slice(&self.0);
        out
    }
}

/// An initialization request without digests.
pub fn init_request() -> [u8; INIT] {
    let mut out = [0; INIT];
    (out[2], out[4]) = (INIT as u8, INIT as u8);
    out
}

/// The header of a PDU with data of a command.
pub fn data_header(command: u16, tag: u16, offset: u32, len: u32, is_last: bool) -> [u8; HEADER] {
    let mut out = [0; HEADER];
    (out[0], out[1], out[2], out[3]) = (H2C_DATA, if is_last { 0x04 } else { 0 }, HEADER as u8, HEADER as u8);
    out[4..8].copy_from_slice(&(HEADER as u32 + len).to_le_bytes());
    out[8..10].copy_from_slice(&command.to_le_bytes());
    out[10..12].copy_from_slice(&tag.to_le_bytes());
    out[12..16].copy_from_slice(&offset.to_le_bytes());
    out[16..20].copy_from_slice(&len.to_le_bytes());
    out
}

/// The header of a PDU of a controller.
#[derive(Debug, Clone, Copy)]
pub struct Reply(pub [u8; HEADER]);

/// The contents of a PDU of a controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The completion of a command.
    Response { command: u16, status: Status, result: u32 },
    /// Data of a command, at this offset. With `is_success`, no completion follows.
    Data { command: u16, offset: u32, is_last: bool, is_success: bool },
    /// A request for data.
    Request { command: u16, tag: u16, offset: u32, len: u32 },
}

impl Reply {
    fn half(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.0[at], self.0[at + 1]])
    }

    fn word(&self, at: usize) -> u32 {
        u32::from(self.half(at)) | u32::from(self.half(at + 2)) << 16
    }

    /// Checks and decodes the header.
    pub fn kind(&self) -> Result<Kind, NvmeError> {
        let [kind, flags, header, ..] = self.0;
        if kind == TERMINATION {
            return Err(NvmeError::Terminated(self.half(8)));
        }
        if usize::from(header) != HEADER || flags & 0x03 != 0 {
            return Err(NvmeError::Protocol("a header of another length, or with digests"));
        }
        let command = self.half(8);
        match kind {
            0x05 => Ok(Kind::Response {
                command: self.half(20),
                status: Status(self.half(22) >> 1 & 0x7ff),
                result: self.word(8),
            }),
            0x07 if self.word(16) as usize != self.data_len() => {
                Err(NvmeError::Protocol("data of another length than its PDU"))
            }
            0x07 => Ok(Kind::Data {
                command,
                offset: self.word(12),
                is_last: flags & 0x04 != 0,
                is_success: flags & 0x08 != 0,
            }),
            0x09 => {
                Ok(Kind::Request { command, tag: self.half(10), offset: self.word(12), len: self.word(16) })
            }
            _ => Err(NvmeError::Protocol("an unknown PDU")),
        }
    }

    /// Bytes between the header and the data.
    pub fn padding(&self) -> usize {
        usize::from(self.0[3]).saturating_sub(HEADER)
    }

    /// Bytes of data.
    pub fn data_len(&self) -> usize {
        (self.word(4) as usize).saturating_sub(HEADER + self.padding())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_laid_out_as_specified() {
        let entry = Entry::blocks(1, 7, 2, 512 * 0x01_0203_0405, 4096).with_data(4096, true);
        let capsule = entry.capsule(4096);
        assert_eq!(capsule[..8], [4, 0, 72, 72, 0x48, 0x10, 0, 0]);
        assert_eq!(capsule[8..16], [1, 0x40, 7, 0, 2, 0, 0, 0]);
        assert_eq!((capsule[8 + 33], capsule[8 + 39]), (0x10, 1));
        assert_eq!(capsule[48..58], [5, 4, 3, 2, 1, 0, 0, 0, 7, 0]);
        assert_eq!(Entry::new(0, 1, 1).capsule(0)[3], 0);
        let data = data_header(3, 4, 5, 6, true);
        assert_eq!(data, [6, 4, 24, 24, 30, 0, 0, 0, 3, 0, 4, 0, 5, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn headers_are_decoded() {
        let mut header = [0; HEADER];
        (header[0], header[2], header[4], header[20], header[22]) = (5, 24, 24, 9, 0x06);
        header[23] = 1;
        let kind = Reply(header).kind().expect("a response");
        assert_eq!(kind, Kind::Response { command: 9, status: Status(0x83), result: 0 });
        (header[0], header[1], header[3], header[4], header[16]) = (7, 0x0c, 64, 72, 8);
        let reply = Reply(header);
        assert_eq!((reply.padding(), reply.data_len()), (40, 8));
        assert!(matches!(reply.kind(), Ok(Kind::Data { is_last: true, is_success: true, .. })));
        header[16] = 9;
        assert!(Reply(header).kind().is_err());
        header[0] = 3;
        assert!(matches!(Reply(header).kind(), Err(NvmeError::Terminated(0))));
    }
}
