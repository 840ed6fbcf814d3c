//! Disks that lie: real ones with changed bytes, and random ones. A scan of any of them ends within its limits, does
//! not panic, and takes no more memory than the limits allow. A program of its own, since it counts with its own
//! allocator.
#![allow(clippy::unwrap_used)] // helpers fail as the tests do

mod bombs;
#[path = "../../format/tests/counting/mod.rs"]
mod counting;

use std::path::Path;

use counting::{Counting, peak_of};
use forebay_guest::fuzzing::{LIMITS, SparseDisk, check_scan};
use forebay_guest::{Blocks, Class, Limits, Options, ReadError, Scan, scan};
use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::RngSeed;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What `scan` returns, if it took no more memory than these limits promise.
fn measured(limits: Limits, scan: impl FnOnce() -> Scan) -> Scan {
    let (scan, used) = peak_of(scan);
    let most = limits.memory_bytes() as isize;
    println!("{used} bytes of {most}");
    assert!(used <= most, "{used} bytes were in use, and {most} are promised");
    scan
}

fn check(disk: &mut dyn Blocks) -> Scan {
    measured(LIMITS, || check_scan(disk))
}

fn seed(name: &str) -> SparseDisk {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/guest_disk");
    SparseDisk::unpack(&std::fs::read(corpus.join(name)).unwrap())
}

/// Few bytes, of values that are often special: counts, lengths, block numbers and flags.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let special = prop::sample::select(vec![0_u8, 1, 2, 0x7f, 0x80, 0xff]);
    prop::collection::vec(prop_oneof![special, any::<u8>()], 1..9)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, rng_seed: RngSeed::Fixed(0x0f0e_0bea), ..ProptestConfig::default() })]

    #[test]
    fn changed_disks(
        name in prop::sample::select(vec!["ntfs", "ext4", "ext2", "xfs", "gpt", "mbr"]),
        changes in prop::collection::vec((any::<Index>(), bytes()), 1..30),
    ) {
        let mut disk = seed(name);
        // Most of what is not zero is metadata.
        changes.iter().for_each(|(at, bytes)| disk.change(at.index(1 << 20), bytes));
        check(&mut disk);
    }

    #[test]
    fn random_disks(noise in prop::collection::vec(any::<u8>(), 0..20_000), kind in 0..4) {
        let mut packed = forebay_guest::fuzzing::pack(&noise);
        // Behind a magic number, or it would stop at the door.
        let magic: &[u8] = match kind {
            0 => b"\0\0\0\0\x0b\xeb\x52\x90NTFS    ",
            1 => b"\0\0\0\0\x04XFSB",
            2 => b"\0\0\x02\0\x3a\x20\0\0\0\0\x40\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\x20\0\0\0\x20\0\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x53\xef",
            _ => b"",
        };
        packed.extend_from_slice(magic);
        check(&mut SparseDisk::unpack(&packed));
    }
}

/// Each byte of the first sectors in turn is all ones, and all zeroes.
#[test]
fn every_field_of_a_boot_sector() {
    for (name, sectors) in [("ntfs", 1), ("ext4", 3), ("xfs", 4), ("mbr", 1), ("gpt", 3)] {
        for at in 0..sectors * 512 {
            for bytes in [[0xff; 4], [0; 4]] {
                let mut disk = seed(name);
                disk.change(at, &bytes);
                check(&mut disk);
            }
        }
    }
}

/// More of a thing than there is room for: the scan says that it left something out. Nearly all room is given to that
/// thing, so that nothing hides in the room of the others.
#[test]
fn lists_end_where_their_room_ends() {
    let small = Limits { names_bytes: 64 << 10, file_bytes: 64 << 10, claims: 1000, ..Limits::default() };
    let files = Limits { file_bytes: 1 << 20, ..small };
    let names = Limits { names_bytes: 8 << 20, ..small };
    let claims = Limits { claims: 12_000, ..small };
    let disks = [
        ("pieces of a file, ext", files, bombs::ext::pieces()),
        ("pieces of a file, XFS", files, bombs::xfs::pieces()),
        ("records of a file, NTFS", files, bombs::ntfs::records(24)),
        ("records of the table, NTFS", files, bombs::ntfs::records(0)),
        ("names, ext", names, bombs::ext::names(false)),
        ("claims, ext", claims, bombs::ext::claims()),
    ];
    for (name, limits, disk) in disks {
        println!("{name}");
        let options = Options { limits, ..Options::default() };
        let scan = measured(limits, || scan(&mut &disk[..], &options));
        assert!(!scan.complete, "{name}: a bomb that does not go off tests nothing");
    }
}

/// What takes long is paid for by how long it takes: long names, long paths, holes.
#[test]
fn work_is_paid_for() {
    let disks = [
        ("long names", bombs::ext::names(true)),
        ("long paths", bombs::ntfs::paths(200, 400)),
        ("a hole", bombs::ntfs::hole()),
    ];
    for (name, disk) in disks {
        println!("{name}");
        assert!(!check(&mut &disk[..]).complete, "{name}");
    }
    // The same at a length that people have.
    let disk = bombs::ntfs::paths(8, 400);
    let scan = check(&mut &disk[..]);
    assert!(scan.complete && scan.map.bytes_per_class()[Class::Metadata as usize] > 0);
}

/// A disk that counts the reads of what is not zero, and the chances to rest.
struct Counted<'a> {
    disk: &'a [u8],
    reads: u64,
    bytes: u64,
    pauses: u64,
}

impl Blocks for Counted<'_> {
    fn size(&self) -> u64 {
        self.disk.len() as u64
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<(), ReadError> {
        self.disk.read(offset, out)?;
        if out.iter().any(|b| *b != 0) {
            self.reads += 1;
            self.bytes += out.len() as u64;
        }
        Ok(())
    }

    fn pause(&mut self) -> bool {
        self.pauses += 1;
        self.pauses < 100
    }
}

/// A guest that writes little can have its disk scanned for little only: a region of 16 KiB costs at most 32 times its
/// bytes and 256 reads, however often its blocks are named.
#[test]
fn a_scan_costs_by_what_the_disk_holds() {
    let disks = [
        ("blocks of trees, ext", bombs::ext::repeated_blocks()),
        ("clusters of the table, NTFS", bombs::ntfs::repeated_table()),
    ];
    for (name, disk) in disks {
        let mut counted = Counted { disk: &disk, reads: 0, bytes: 0, pauses: 0 };
        let scan = measured(Limits::default(), || scan(&mut counted, &Options::default()));
        let regions = disk.chunks(16 << 10).filter(|r| r.iter().any(|b| *b != 0)).count() as u64;
        println!("{name}: {} reads, {} bytes of {regions} regions", counted.reads, counted.bytes);
        assert!(!scan.complete, "{name}: a bomb that does not go off tests nothing");
        assert!(counted.reads <= 257 * regions, "{name}: {} reads of {regions} regions", counted.reads);
        // What is read at once may be 256 KiB, and go over.
        let most = 33 * regions * (16 << 10) + (1 << 20);
        assert!(counted.bytes <= most, "{name}: {} bytes of {regions} regions", counted.bytes);
    }
}

/// A scan that reads nothing for long rests too, and ends on request.
#[test]
fn a_scan_that_only_works_can_rest() {
    let disk = bombs::ext::names(true);
    let mut counted = Counted { disk: &disk, reads: 0, bytes: 0, pauses: 0 };
    let scan = scan(&mut counted, &Options::default());
    assert_eq!(counted.pauses, 100);
    assert!(!scan.complete);
}

/// Numbers that fit where they stand, but not when they are counted with.
#[test]
fn numbers_that_are_too_large() {
    bombs::ext::clusters().iter().for_each(|disk| drop(check(&mut &disk[..])));
    check(&mut &bombs::xfs::far_places()[..]);
    check(&mut &bombs::ext::empty()[..]);
}

/// What the documentation says of the defaults.
#[test]
fn the_default_limits_are_some_200_mib() {
    assert!(Limits::default().memory_bytes() <= 280 << 20);
}
