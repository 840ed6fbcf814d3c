//! The GUID partition table (UEFI specification, chapter 5): two copies, each with a header and a partition
//! entry array, which are protected by CRCs.

use std::ops::Range;

use crc_fast::{CrcAlgorithm, checksum};

use super::MAX_PARTITIONS;
use crate::bytes::{le32, le64};
use crate::class::Class;
use crate::disk::{Disk, Result, Tolerate, ensure};

const MIN_HEADER: usize = 92;
/// Maximum length of the partition entry array; 16 KiB is usual.
const MAX_ARRAY: u64 = 1 << 20;

fn crc(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32IsoHdlc, bytes) as u32
}

struct Header {
    array: u64,
    entries: u64,
    entry_len: u64,
    array_crc: u32,
    usable: Range<u64>,
    other: u64,
}

impl Header {
    /// Parses the header in sector `lba`, if its field MyLBA has this value.
    fn parse(sector: &[u8], lba: u64) -> Option<Header> {
        let len = le32(sector, 12)? as usize;
        if !sector.starts_with(b"EFI PART") || len < MIN_HEADER || le64(sector, 24)? != lba {
            return None;
        }
        let mut plain = sector.get(..len)?.to_vec();
        let expected = le32(&plain, 16)?;
        plain.get_mut(16..20)?.fill(0);
        if crc(&plain) != expected {
            return None;
        }
        Some(Header {
            other: le64(sector, 32)?,
            usable: le64(sector, 40)?..le64(sector, 48)?.checked_add(1)?,
            array: le64(sector, 72)?,
            entries: le32(sector, 80)?.into(),
            entry_len: le32(sector, 84)?.into(),
            array_crc: le32(sector, 88)?,
        })
    }

    fn array_len(&self) -> u64 {
        self.entries * self.entry_len
    }
}

/// Returns the partitions of the first valid copy; `None` without a valid copy.
pub(super) fn find(disk: &mut Disk) -> Result<Option<Vec<Range<u64>>>> {
    for sector in [512, 4096] {
        let last = (disk.size() / sector).saturating_sub(1);
        for lba in [1, last] {
            if let Some(partitions) = read_copy(disk, sector, lba).tolerate()? {
                return Ok(Some(partitions));
            }
        }
    }
    Ok(None)
}

fn read_copy(disk: &mut Disk, sector: u64, lba: u64) -> Result<Vec<Range<u64>>> {
    let mut bytes = vec![0; sector as usize];
    disk.read(lba.saturating_mul(sector), &mut bytes)?;
    let header = Header::parse(&bytes, lba).ok_or(crate::disk::Fault::Invalid)?;
    ensure((128..=4096).contains(&header.entry_len) && header.array_len() <= MAX_ARRAY)?;
    let mut array = vec![0; header.array_len() as usize];
    disk.read(header.array.saturating_mul(sector), &mut array)?;
    ensure(crc(&array) == header.array_crc)?;
    let mut found = Vec::new();
    for entry in array.chunks_exact(header.entry_len as usize) {
        disk.work(1)?;
        let (Some(first), Some(last)) = (le64(entry, 32), le64(entry, 40)) else { continue };
        let used = entry[..16] != [0; 16] && first <= last;
        if used && header.usable.contains(&first) && header.usable.contains(&last) {
            found.push(first.saturating_mul(sector)..(last + 1).saturating_mul(sector));
        }
    }
    found.truncate(MAX_PARTITIONS);
    // The other copy is claimed too, without reading it. Its array is adjacent to its header.
    let array_len = header.array_len().next_multiple_of(sector);
    let claims = [(0, sector), (header.array.saturating_mul(sector), array_len)];
    claims.into_iter().for_each(|(at, len)| disk.found.claim(at, len, Class::Metadata));
    for lba in [lba, header.other] {
        let at = lba.saturating_mul(sector);
        let array = if lba == 1 { at.saturating_add(sector) } else { at.saturating_sub(array_len) };
        disk.found.claim(at, sector, Class::Metadata);
        disk.found.claim(array, array_len, Class::Metadata);
    }
    Ok(found)
}

/// Corrects the checksums of a header and its array, as an attacker could.
#[cfg(feature = "fuzzing")]
pub(crate) fn seal(sector: &mut [u8], array: &[u8]) {
    let Some(len) = le32(sector, 12).map(|len| len as usize).filter(|len| *len >= MIN_HEADER) else { return };
    if let Some(header) = sector.get_mut(..len) {
        header[88..92].copy_from_slice(&crc(array).to_le_bytes());
        header[16..20].fill(0);
        let check = crc(header);
        header[16..20].copy_from_slice(&check.to_le_bytes());
    }
}
