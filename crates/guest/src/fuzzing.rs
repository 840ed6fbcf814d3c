//! Entry points for fuzzing: plain functions that take any bytes and panic where a promise of this crate is broken.
//! The targets in `fuzz/` call them, and so does a test with the checked-in corpus.
//!
//! The promises: no panic; a scan ends within its limits and says something of every block; what was decoded is
//! encoded to the same bytes again.

use crate::map::ClassMap;
use crate::scan::{Options, scan};
use crate::{BLOCK, Class, Limits};

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

/// [`scan`] of a disk. A whole disk is much too large for a fuzzer, so the input is only what is not zero of it:
/// pieces of the form place (three bytes, in units of 512), length (two bytes), content.
pub fn guest_disk(data: &[u8]) {
    let limits = Limits {
        reads: 20_000,
        read_bytes: 64 << 20,
        work: 500_000,
        names_bytes: 1 << 20,
        claims: 10_000,
        runs: 1000,
    };
    let disk = unpack(data);
    let scan = scan(&mut &disk[..], &Options { limits, ..Options::default() });
    assert_eq!(scan.map.blocks(), (disk.len() as u64).div_ceil(BLOCK));
    assert!(scan.map.len() <= limits.runs.max(1));
    assert!(scan.read_bytes <= limits.read_bytes);
    assert_eq!(scan.failed_reads, 0);
    assert_eq!(ClassMap::decode(&scan.map.encode()).as_ref(), Ok(&scan.map));
    assert_eq!(scan.map.class_of(scan.map.blocks()), Class::Other);
}

const UNIT: usize = 512;
const MAX_DISK: usize = 16 << 20;
const PIECE_HEAD: usize = 5;

/// The disk that an input of [`guest_disk`] describes.
pub fn unpack(mut data: &[u8]) -> Vec<u8> {
    let mut disk = Vec::new();
    while let Some((head, rest)) = data.split_first_chunk::<PIECE_HEAD>() {
        let at = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let len = usize::from(head[3]) << 8 | usize::from(head[4]);
        let (piece, behind) = rest.split_at(len.min(rest.len()));
        let at = at * UNIT % MAX_DISK;
        let end = (at + piece.len()).min(MAX_DISK);
        disk.resize(disk.len().max(end), 0);
        disk[at..end].copy_from_slice(&piece[..end - at]);
        data = behind;
    }
    disk
}

/// The input of [`guest_disk`] for a disk, which must be small enough.
pub fn pack(disk: &[u8]) -> Vec<u8> {
    assert!(disk.len() <= MAX_DISK, "{} bytes are too many", disk.len());
    let mut data = Vec::new();
    let mut put = |unit: usize, piece: &[u8]| {
        data.extend_from_slice(&(unit as u32).to_be_bytes()[1..]);
        data.extend_from_slice(&(piece.len() as u16).to_be_bytes());
        data.extend_from_slice(piece);
    };
    for (unit, piece) in disk.chunks(UNIT).enumerate() {
        let used = piece.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
        // The last one says how large the disk is.
        if used != 0 || (unit + 1) * UNIT >= disk.len() {
            put(unit, if used == 0 { piece } else { &piece[..used] });
        }
    }
    data
}
