//! Submission queue entries (Base 3.3.3.1).

use super::{Status, array, get16, get32, get64};

/// A submission queue entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sqe([u8; 64]);

/// Whether a command is a part of a fused operation (Base 3.4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fuse {
    /// The command is not fused.
    Alone,
    /// The first of two commands.
    First,
    /// The second of two commands.
    Second,
    /// The reserved value.
    Reserved,
}

/// Where the data of a command is (Base 4.1.2; Transport 3.3.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sgl {
    /// In the capsule, from this offset on.
    InCapsule {
        /// Offset in the data of the capsule.
        offset: u64,
        /// Length in bytes.
        len: u32,
    },
    /// The data is transferred with data PDUs.
    Transport {
        /// Length in bytes.
        len: u32,
    },
}

impl Sgl {
    /// Length of the data in bytes.
    pub fn len(self) -> u32 {
        match self {
            Sgl::InCapsule { len, .. } | Sgl::Transport { len } => len,
        }
    }

    /// Whether the command has no data.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }
}

impl Sqe {
    /// The entry with these bytes.
    pub fn new(bytes: [u8; 64]) -> Sqe {
        Sqe(bytes)
    }

    /// Operation code (OPC).
    pub fn opcode(&self) -> u8 {
        self.0[0]
    }

    /// Command identifier (CID).
    pub fn id(&self) -> u16 {
        get16(&self.0, 2)
    }

    /// Namespace identifier (NSID).
    pub fn namespace(&self) -> u32 {
        get32(&self.0, 4)
    }

    /// Whether the command is fused (FUSE).
    pub fn fuse(&self) -> Fuse {
        match self.0[1] & 3 {
            0 => Fuse::Alone,
            1 => Fuse::First,
            2 => Fuse::Second,
            _ => Fuse::Reserved,
        }
    }

    /// Command type of a fabrics command (FCTYPE; Base 3.3.3.1, figure 87).
    pub fn fabrics_type(&self) -> u8 {
        self.0[4]
    }

    /// Command dword `n`.
    pub fn dword(&self, n: usize) -> u32 {
        get32(&self.0, n * 4)
    }

    /// The byte at an offset.
    pub fn byte(&self, at: usize) -> u8 {
        self.0.get(at).copied().unwrap_or(0)
    }

    /// The two bytes at an offset.
    pub fn half(&self, at: usize) -> u16 {
        get16(&self.0, at)
    }

    /// The eight bytes at an offset.
    pub fn long(&self, at: usize) -> u64 {
        get64(&self.0, at)
    }

    /// Where the data is (DPTR).
    ///
    /// # Errors
    /// The command does not use an SGL, or one of a type that the transport does not have.
    pub fn sgl(&self) -> Result<Sgl, Status> {
        // PSDT: a fabrics transport has no PRPs.
        if self.0[1] >> 6 == 0 {
            return Err(Status::INVALID_FIELD);
        }
        let (offset, len) = (get64(&self.0, 24), get32(&self.0, 32));
        match self.0[39] {
            // Data block, offset.
            0x01 => Ok(Sgl::InCapsule { offset, len }),
            // Transport data block, transport specific.
            0x5a => Ok(Sgl::Transport { len }),
            // Data block, address: of a command without data.
            0x00 if len == 0 => Ok(Sgl::Transport { len: 0 }),
            _ => Err(Status::SGL_TYPE_INVALID),
        }
    }

    /// The bytes of the entry.
    pub fn as_bytes(&self) -> &[u8; 64] {
        &self.0
    }

    /// Returns the `N` bytes at an offset.
    pub fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        array(&self.0, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_of_data_are_decoded() {
        let with = |flags: u8, kind: u8, len: u32| {
            let mut bytes = [0; 64];
            (bytes[1], bytes[39], bytes[24]) = (flags, kind, 16);
            bytes[32..36].copy_from_slice(&len.to_le_bytes());
            Sqe::new(bytes).sgl()
        };
        assert_eq!(with(0x40, 0x01, 512), Ok(Sgl::InCapsule { offset: 16, len: 512 }));
        assert_eq!(with(0x40, 0x5a, 512), Ok(Sgl::Transport { len: 512 }));
        assert_eq!(with(0x40, 0x00, 0), Ok(Sgl::Transport { len: 0 }));
        assert_eq!(with(0x40, 0x00, 512), Err(Status::SGL_TYPE_INVALID));
        assert_eq!(with(0x40, 0x40, 512), Err(Status::SGL_TYPE_INVALID), "keyed, of RDMA");
        assert_eq!(with(0x00, 0x01, 512), Err(Status::INVALID_FIELD));
    }
}
