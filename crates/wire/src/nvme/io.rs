//! I/O commands (NVM 3.2).

use super::reservation::{Reservation, report_len};
use super::{BLOCK, Fuse, Sqe, Status, TRANSFER_MAX, get32, get64};

/// Maximum ranges of a Dataset Management command (NVM 3.2.3).
pub const DSM_RANGES_MAX: usize = 256;

/// An I/O command. Offsets and lengths are in bytes, and within the namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Io {
    /// Flush.
    Flush,
    /// Write.
    Write {
        /// Offset of the range.
        offset: u64,
        /// Length of the range.
        len: u32,
        /// The change has to be durable when it is answered.
        fua: bool,
    },
    /// Read.
    Read {
        /// Offset of the range.
        offset: u64,
        /// Length of the range.
        len: u32,
    },
    /// Compare.
    Compare {
        /// Offset of the range.
        offset: u64,
        /// Length of the range.
        len: u32,
    },
    /// Write Zeroes.
    WriteZeroes {
        /// Offset of the range.
        offset: u64,
        /// Length of the range.
        len: u32,
        /// The range may be deallocated (DEAC).
        deallocate: bool,
        /// The change has to be durable when it is answered.
        fua: bool,
    },
    /// Dataset Management.
    Dataset {
        /// Number of ranges.
        ranges: usize,
        /// The ranges are to be deallocated (AD); otherwise the attributes are hints, which are ignored.
        deallocate: bool,
    },
    /// Verify.
    Verify {
        /// Offset of the range.
        offset: u64,
        /// Length of the range.
        len: u32,
    },
    /// A command that changes reservations.
    Reservation(Reservation),
    /// Reservation Report.
    ReservationReport {
        /// Bytes that are sent to the host.
        len: u32,
    },
}

impl Io {
    /// Decodes a command to a namespace of `blocks` blocks.
    ///
    /// # Errors
    /// The status of an invalid command.
    pub fn decode(sqe: &Sqe, blocks: u64) -> Result<Io, Status> {
        let io = Io::decode_any(sqe, blocks)?;
        let may_fuse = match sqe.fuse() {
            Fuse::Alone => true,
            Fuse::First => matches!(io, Io::Compare { .. }),
            Fuse::Second => matches!(io, Io::Write { .. }),
            Fuse::Reserved => false,
        };
        if may_fuse { Ok(io) } else { Err(Status::INVALID_FIELD) }
    }

    fn decode_any(sqe: &Sqe, blocks: u64) -> Result<Io, Status> {
        if let Some(reservation) = Reservation::decode(sqe) {
            return reservation.map(Io::Reservation);
        }
        let controls = sqe.dword(12);
        let fua = controls & 1 << 30 != 0;
        let range = |most: u32| {
            let (first, count) = (sqe.long(40), u64::from(controls & 0xffff) + 1);
            if first.checked_add(count).is_none_or(|end| end > blocks) {
                return Err(Status::LBA_OUT_OF_RANGE);
            }
            let len = u32::try_from(count).map_err(|_| Status::INVALID_FIELD)? * BLOCK;
            if len > most { Err(Status::INVALID_FIELD) } else { Ok((first * u64::from(BLOCK), len)) }
        };
        // There is no protection information (PRINFO) to check or insert.
        if matches!(sqe.opcode(), 0x01 | 0x02 | 0x05 | 0x08 | 0x0c) && controls & 0xf << 26 != 0 {
            return Err(Status::INVALID_FIELD);
        }
        Ok(match sqe.opcode() {
            0x00 => Io::Flush,
            0x01 => {
                let (offset, len) = range(TRANSFER_MAX)?;
                Io::Write { offset, len, fua }
            }
            0x02 => {
                let (offset, len) = range(TRANSFER_MAX)?;
                Io::Read { offset, len }
            }
            0x05 => {
                let (offset, len) = range(TRANSFER_MAX)?;
                Io::Compare { offset, len }
            }
            0x08 => {
                let (offset, len) = range(u32::MAX)?;
                Io::WriteZeroes { offset, len, deallocate: controls & 1 << 25 != 0, fua }
            }
            0x09 => Io::Dataset {
                ranges: (sqe.dword(10) & 0xff) as usize + 1,
                deallocate: sqe.dword(11) & 4 != 0,
            },
            0x0e => Io::ReservationReport { len: report_len(sqe)? },
            0x0c => {
                let (offset, len) = range(u32::MAX)?;
                Io::Verify { offset, len }
            }
            _ => return Err(Status::INVALID_OPCODE),
        })
    }

    /// Bytes that the host sends with the command.
    pub fn data_out(&self) -> u32 {
        match *self {
            Io::Write { len, .. } | Io::Compare { len, .. } => len,
            Io::Dataset { ranges, .. } => ranges as u32 * 16,
            Io::Reservation(reservation) => reservation.data_out(),
            _ => 0,
        }
    }

    /// Bytes that are sent to the host.
    pub fn data_in(&self) -> u32 {
        match *self {
            Io::Read { len, .. } => len,
            Io::ReservationReport { len } => len,
            _ => 0,
        }
    }

    /// Whether the command changes the namespace.
    pub fn changes(&self) -> bool {
        matches!(self, Io::Write { .. } | Io::WriteZeroes { .. } | Io::Dataset { deallocate: true, .. })
    }
}

/// The parameter list of a SCSI UNMAP of the ranges of a Dataset Management command, by which the device
/// server deallocates them (NVM 3.2.3, figure 40; SBC-3, "UNMAP command").
///
/// # Errors
/// A range ends beyond the namespace of `blocks` blocks.
pub fn unmap_list(data: &[u8], blocks: u64) -> Result<Vec<u8>, Status> {
    let descriptors = data.chunks_exact(16).take(DSM_RANGES_MAX);
    let bytes = (descriptors.len() * 16) as u16;
    let mut list = Vec::with_capacity(8 + usize::from(bytes));
    list.extend_from_slice(&(bytes + 6).to_be_bytes());
    list.extend_from_slice(&bytes.to_be_bytes());
    list.extend_from_slice(&[0; 4]);
    for range in descriptors {
        let (count, first) = (get32(range, 4), get64(range, 8));
        if first.checked_add(count.into()).is_none_or(|end| end > blocks) {
            return Err(Status::LBA_OUT_OF_RANGE);
        }
        list.extend_from_slice(&first.to_be_bytes());
        list.extend_from_slice(&count.to_be_bytes());
        list.extend_from_slice(&[0; 4]);
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scsi;

    fn sqe(opcode: u8, first: u64, controls: u32) -> Sqe {
        let mut bytes = [0; 64];
        bytes[0] = opcode;
        bytes[40..48].copy_from_slice(&first.to_le_bytes());
        bytes[48..52].copy_from_slice(&controls.to_le_bytes());
        Sqe::new(bytes)
    }

    #[test]
    fn ranges_are_checked() {
        let read = |first, count: u32| Io::decode(&sqe(2, first, count - 1), 100);
        assert_eq!(read(99, 1), Ok(Io::Read { offset: 99 * 512, len: 512 }));
        assert_eq!(read(99, 2), Err(Status::LBA_OUT_OF_RANGE));
        assert_eq!(read(u64::MAX, 1), Err(Status::LBA_OUT_OF_RANGE));
        assert_eq!(Io::decode(&sqe(2, 0, 2048), 1 << 40), Err(Status::INVALID_FIELD), "longer than MDTS");
        let zeroes = Io::WriteZeroes { offset: 0, len: 65536 * 512, deallocate: true, fua: true };
        assert_eq!(Io::decode(&sqe(8, 0, 0xffff | 1 << 25 | 1 << 30), 1 << 40), Ok(zeroes));
        assert_eq!(Io::decode(&sqe(1, 0, 1 << 29), 100), Err(Status::INVALID_FIELD), "protection");
        assert_eq!(Io::decode(&sqe(0x84, 0, 0), 100), Err(Status::INVALID_OPCODE));
    }

    #[test]
    fn deallocated_ranges_become_a_valid_list() {
        let mut data = Vec::new();
        for (first, count) in [(1u64, 2u32), (90, 10), (5, 0)] {
            data.extend_from_slice(&[0; 4]);
            data.extend_from_slice(&count.to_le_bytes());
            data.extend_from_slice(&first.to_le_bytes());
        }
        let list = unmap_list(&data, 100).unwrap();
        let ranges = scsi::unmap_list(&list, &scsi::Rules { blocks: 100 }).unwrap();
        let found: Vec<_> = ranges.iter().map(|r| (r.offset / 512, r.len / 512)).collect();
        assert_eq!(found, [(1, 2), (90, 10), (5, 0)]);
        assert_eq!(unmap_list(&data, 99), Err(Status::LBA_OUT_OF_RANGE));
    }
}
