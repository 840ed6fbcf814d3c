//! Entry points for fuzzing: plain functions that take any bytes and panic where a promise of this crate is broken.
//! The targets in `fuzz/` call them, and so does a test with the checked-in corpus.
//!
//! The promises: no panic; a scan ends within its limits and says something of every block; what was decoded is
//! encoded to the same bytes again.

use std::collections::BTreeMap;

use crate::bytes::{le32, le64};
use crate::map::ClassMap;
use crate::scan::{Options, Scan, scan};
use crate::{BLOCK, Blocks, Class, Limits, ReadError};

/// A target: its name, which is also that of its corpus, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[("class_map", class_map), ("guest_disk", guest_disk)];

/// [`ClassMap`], with its checksum as it is and put right.
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

/// [`scan`] of a disk, packed as [`pack`] does; as it is, and with the checksums of its partition table put right.
pub fn guest_disk(data: &[u8]) {
    let mut disk = SparseDisk::unpack(data);
    check_scan(&mut disk);
    if disk.seal_gpt() {
        check_scan(&mut disk);
    }
}

/// What a scan of any disk may cost here.
pub const LIMITS: Limits = Limits {
    reads: 20_000,
    read_bytes: 64 << 20,
    work: 300_000,
    names_bytes: 1 << 20,
    file_bytes: 128 << 10,
    claims: 10_000,
    runs: 1000,
};

/// Scans within [`LIMITS`], and checks what comes out.
pub fn check_scan(disk: &mut dyn Blocks) -> Scan {
    let scan = scan(disk, &Options { limits: LIMITS, ..Options::default() });
    assert_eq!(scan.map.blocks(), disk.size().div_ceil(BLOCK));
    assert!(scan.map.len() <= LIMITS.runs);
    assert!(scan.read_bytes <= LIMITS.read_bytes);
    assert_eq!(scan.failed_reads, 0, "a read behind the end");
    assert_eq!(ClassMap::decode(&scan.map.encode()).as_ref(), Ok(&scan.map));
    assert_eq!(scan.map.class_of(scan.map.blocks()), Class::Other);
    scan
}

const UNIT: usize = 512;
/// Number, and length.
const PIECE_HEAD: usize = 5;

/// A disk of which only what is not zero takes room.
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
    /// From pieces: number of a unit of 512 bytes (three bytes), length (two), content. The disk ends with the last.
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

    /// Changes bytes that are not all zero now; which, by the number of the byte among them.
    pub fn change(&mut self, at: usize, bytes: &[u8]) {
        let units = self.content.len().max(1);
        if let Some(unit) = self.content.values_mut().nth(at / UNIT % units) {
            let to = unit[at % UNIT..].iter_mut();
            to.zip(bytes).for_each(|(to, byte)| *to = *byte);
        }
    }

    /// Puts the checksums of a GPT right. False if there is none.
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

/// A disk as an input of [`guest_disk`], at most 8 GiB.
pub fn pack(disk: &[u8]) -> Vec<u8> {
    let mut data = Vec::new();
    for (unit, piece) in disk.chunks(UNIT).enumerate() {
        let used = piece.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
        // The last one says how large the disk is.
        if used != 0 || (unit + 1) * UNIT >= disk.len() {
            data.extend_from_slice(&(unit as u32).to_be_bytes()[1..]);
            data.extend_from_slice(&(used as u16).to_be_bytes());
            data.extend_from_slice(&piece[..used]);
        }
    }
    data
}
