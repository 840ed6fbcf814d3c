//! Entry points for fuzzing: functions that accept any bytes and panic if this crate violates a guarantee.
//! The targets in `fuzz/` call them, and so does a test with the checked-in corpus.
//!
//! The guarantees: no panic; a scan ends within its limits and classifies every block; a decoded map is
//! encoded to the same bytes again.

use std::collections::BTreeMap;

use crate::bytes::{le32, le64};
use crate::map::ClassMap;
use crate::scan::{Options, Scan, scan};
use crate::{BLOCK, Blocks, Class, Limits, ReadError};

/// A target: its name, which is also the name of its corpus, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[("class_map", class_map), ("guest_disk", guest_disk)];

/// Decodes a [`ClassMap`], with the checksum as given and with a corrected checksum.
pub fn class_map(data: &[u8]) {
    let mut sealed = data.to_vec();
    crate::map::seal(&mut sealed);
    for bytes in [data, &sealed] {
        if let Ok(map) = ClassMap::decode(bytes) {
            assert_eq!(map.encode(), bytes);
            assert_eq!(map.runs().map(|(range, _)| range.end - range.start).sum::<u64>(), map.blocks());
        }
    }
}

/// Scans a disk in the format of [`pack`], with the checksums of its partition table as given and corrected.
pub fn guest_disk(data: &[u8]) {
    let mut disk = SparseDisk::unpack(data);
    check_scan(&mut disk);
    if disk.seal_gpt() {
        check_scan(&mut disk);
    }
}

/// Limits of a scan in the fuzz targets.
pub const LIMITS: Limits = Limits {
    reads: 20_000,
    read_bytes: 64 << 20,
    work: 300_000,
    names_bytes: 1 << 20,
    file_bytes: 128 << 10,
    claims: 10_000,
    runs: 1000,
};

/// Scans within [`LIMITS`] and checks the result.
pub fn check_scan(disk: &mut dyn Blocks) -> Scan {
    let scan = scan(disk, &Options { limits: LIMITS, ..Options::default() });
    assert_eq!(scan.map.blocks(), disk.size().div_ceil(BLOCK));
    assert!(scan.map.len() <= LIMITS.runs);
    assert!(scan.read_bytes <= LIMITS.read_bytes);
    assert_eq!(scan.failed_reads, 0, "no read is beyond the end of the disk");
    assert_eq!(ClassMap::decode(&scan.map.encode()).as_ref(), Ok(&scan.map));
    assert_eq!(scan.map.class_of(scan.map.blocks()), Class::Other);
    scan
}

const UNIT: usize = 512;
/// Length of the header of a piece: number and length.
const PIECE_HEAD: usize = 5;

/// A sparse disk, which stores only non-zero units.
#[derive(Debug, Clone)]
pub struct SparseDisk {
    units: u64,
    content: BTreeMap<u64, [u8; UNIT]>,
}

impl Blocks for SparseDisk {
    fn size(&self) -> u64 {
        self.units * UNIT as u64
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<(), ReadError> {
        let end = offset + out.len() as u64;
        if end > self.size() {
            return Err(ReadError { offset, source: None });
        }
        out.fill(0);
        for (unit, content) in self.content.range(offset / UNIT as u64..end.div_ceil(UNIT as u64)) {
            let at = unit * UNIT as u64;
            let (from, to) = (offset.max(at), end.min(at + UNIT as u64));
            let part = &content[(from - at) as usize..(to - at) as usize];
            out[(from - offset) as usize..(to - offset) as usize].copy_from_slice(part);
        }
        Ok(())
    }
}

impl SparseDisk {
    /// Parses pieces: number of a unit of 512 bytes (three bytes), length (two bytes), content. The disk ends
    /// with the last unit.
    pub fn unpack(mut data: &[u8]) -> SparseDisk {
        let mut disk = SparseDisk { units: 0, content: BTreeMap::new() };
        while let Some((head, rest)) = data.split_first_chunk::<PIECE_HEAD>() {
            let unit = u64::from(head[0]) << 16 | u64::from(head[1]) << 8 | u64::from(head[2]);
            let len = usize::from(u16::from_be_bytes([head[3], head[4]]));
            let (piece, behind) = rest.split_at(len.min(rest.len()));
            for (i, part) in piece.chunks(UNIT).enumerate() {
                disk.content.entry(unit + i as u64).or_insert([0; UNIT])[..part.len()].copy_from_slice(part);
            }
            disk.units =
                disk.units.max(unit + 1).max(disk.content.last_key_value().map_or(0, |(n, _)| n + 1));
            data = behind;
        }
        disk
    }

    /// Overwrites bytes in the stored units; `at` is an offset in the concatenation of these units.
    pub fn change(&mut self, at: usize, bytes: &[u8]) {
        let units = self.content.len().max(1);
        if let Some(unit) = self.content.values_mut().nth(at / UNIT % units) {
            let to = unit[at % UNIT..].iter_mut();
            to.zip(bytes).for_each(|(to, byte)| *to = *byte);
        }
    }

    /// Corrects the checksums of a GPT. Returns false if there is no GPT.
    fn seal_gpt(&mut self) -> bool {
        let mut sector = [0; UNIT];
        let is_gpt = self.read(UNIT as u64, &mut sector).is_ok() && sector.starts_with(b"EFI PART");
        if is_gpt {
            let array_at = le64(&sector, 72).unwrap_or(0).saturating_mul(UNIT as u64);
            let len = le32(&sector, 80).unwrap_or(0).saturating_mul(le32(&sector, 84).unwrap_or(0));
            let mut array = vec![0; len.min(1 << 16) as usize];
            let fits = array_at.checked_add(array.len() as u64).is_some_and(|end| end <= self.size());
            if fits && self.read(array_at, &mut array).is_ok() {
                crate::partition::seal_gpt(&mut sector, &array);
            }
            self.content.insert(1, sector);
        }
        is_gpt
    }
}

/// Converts a disk of at most 8 GiB to an input of [`guest_disk`].
pub fn pack(disk: &[u8]) -> Vec<u8> {
    let mut data = Vec::new();
    for (unit, piece) in disk.chunks(UNIT).enumerate() {
        let used = piece.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
        // The last unit is always included, because it determines the size of the disk.
        if used != 0 || (unit + 1) * UNIT >= disk.len() {
            data.extend_from_slice(&(unit as u32).to_be_bytes()[1..]);
            data.extend_from_slice(&(used as u16).to_be_bytes());
            data.extend_from_slice(&piece[..used]);
        }
    }
    data
}
