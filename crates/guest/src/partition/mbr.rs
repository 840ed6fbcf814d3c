//! The partition table of the master boot record (MBR), with its chain of extended boot records (EBR).

use std::ops::Range;

use super::MAX_PARTITIONS;
use crate::bytes::{le16, le32};
use crate::class::Class;
use crate::disk::{Disk, Result, Tolerate};

const SECTOR: u64 = 512;

#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    kind: u8,
    first: u64,
    sectors: u64,
}

impl Entry {
    fn is_extended(&self) -> bool {
        matches!(self.kind, 0x05 | 0x0f | 0x85)
    }

    fn is_used(&self) -> bool {
        self.kind != 0 && self.sectors != 0
    }

    fn bytes(&self, base: u64) -> Range<u64> {
        let start = (base + self.first) * SECTOR;
        start..start + self.sectors * SECTOR
    }
}

/// The four partition entries of a sector.
#[derive(Debug)]
pub(super) struct Table([Entry; 4]);

impl Table {
    /// Returns `None` if the sector is not a partition table: no signature, or invalid entries.
    pub fn parse(sector: &[u8], disk_size: u64) -> Option<Table> {
        if le16(sector, 510) != Some(0xaa55) {
            return None;
        }
        let mut table = Table(Default::default());
        for (i, entry) in table.0.iter_mut().enumerate() {
            let at = 446 + 16 * i;
            if sector.get(at)? & 0x7f != 0 {
                return None;
            }
            let kind = *sector.get(at + 4)?;
            *entry =
                Entry { kind, first: le32(sector, at + 8)?.into(), sectors: le32(sector, at + 12)?.into() };
            // The protective entry of a large or shrunk disk can end beyond the disk.
            if entry.is_used() && entry.kind != 0xee && entry.bytes(0).start >= disk_size {
                return None;
            }
        }
        Some(table)
    }

    pub fn announces_gpt(&self) -> bool {
        self.0.iter().any(|e| e.kind == 0xee)
    }

    pub fn is_used(&self) -> bool {
        self.0.iter().any(|e| e.is_used() && e.first != 0)
    }

    /// Returns the primary and logical partitions.
    pub fn partitions(&self, disk: &mut Disk) -> Result<Vec<Range<u64>>> {
        disk.found.claim(0, SECTOR, Class::Metadata);
        let mut found = Vec::new();
        for entry in self.0.iter().filter(|e| e.is_used() && e.first != 0) {
            if entry.is_extended() {
                logical(disk, entry, &mut found)?;
            } else {
                found.push(entry.bytes(0));
            }
        }
        found.truncate(MAX_PARTITIONS);
        Ok(found)
    }
}

/// Follows the chain of EBRs: each has a logical partition, relative to itself, and the next EBR, relative to
/// the first.
fn logical(disk: &mut Disk, extended: &Entry, found: &mut Vec<Range<u64>>) -> Result<()> {
    let mut at = 0;
    while found.len() < MAX_PARTITIONS {
        disk.work(1)?;
        let offset = (extended.first + at) * SECTOR;
        let mut sector = [0; SECTOR as usize];
        if disk.read(offset, &mut sector).tolerate()?.is_none() {
            return Ok(());
        }
        let Some(table) = Table::parse(&sector, u64::MAX) else { return Ok(()) };
        disk.found.claim(offset, SECTOR, Class::Metadata);
        let (links, partitions): (Vec<&Entry>, Vec<&Entry>) =
            table.0.iter().filter(|e| e.is_used()).partition(|e| e.is_extended());
        found.extend(partitions.iter().map(|e| e.bytes(extended.first + at)));
        // Links must point forward, because the chain could be a loop otherwise.
        match links.first() {
            Some(next) if next.first > at && next.first < extended.sectors => at = next.first,
            _ => return Ok(()),
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // a list of one range is intended
mod tests {
    use super::*;
    use crate::disk::Limits;

    fn entry(disk: &mut [u8], sector: usize, slot: usize, kind: u8, first: u32, sectors: u32) {
        let at = sector * 512 + 446 + 16 * slot;
        disk[at + 4] = kind;
        disk[at + 8..at + 12].copy_from_slice(&first.to_le_bytes());
        disk[at + 12..at + 16].copy_from_slice(&sectors.to_le_bytes());
        disk[sector * 512 + 510..sector * 512 + 512].copy_from_slice(&[0x55, 0xaa]);
    }

    fn partitions(bytes: &[u8]) -> Vec<Range<u64>> {
        let mut blocks = bytes;
        let mut disk = Disk::new(&mut blocks, Limits::default());
        super::super::find(&mut disk).unwrap()
    }

    #[test]
    fn a_loop_of_extended_boot_records_ends() {
        let mut disk = vec![0; 64 * 512];
        entry(&mut disk, 0, 0, 0x83, 1, 9);
        entry(&mut disk, 0, 1, 0x0f, 10, 50);
        entry(&mut disk, 10, 0, 0x83, 2, 8);
        entry(&mut disk, 10, 1, 0x05, 20, 10);
        entry(&mut disk, 30, 0, 0x07, 1, 5);
        entry(&mut disk, 30, 1, 0x05, 20, 10);
        assert_eq!(partitions(&disk), [512..5120, 12 * 512..20 * 512, 31 * 512..36 * 512]);
        entry(&mut disk, 30, 1, 0x05, 0, 10);
        assert_eq!(partitions(&disk).len(), 3);
    }

    #[test]
    fn a_disk_without_a_valid_table_is_one_volume() {
        let mut disk = vec![0; 64 * 512];
        let whole = vec![0..disk.len() as u64];
        assert_eq!(partitions(&disk), whole);
        entry(&mut disk, 0, 0, 0x83, 100, 9);
        assert_eq!(partitions(&disk), whole);
        entry(&mut disk, 0, 0, 0x83, 10, 9);
        disk[446] = 0x41;
        assert_eq!(partitions(&disk), whole);
        assert_eq!(partitions(&[]), [0..0]);
        assert_eq!(partitions(&[0x55; 700]), [0..700]);
    }
}
