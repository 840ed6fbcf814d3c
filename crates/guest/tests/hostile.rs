//! Invalid and malicious disks: valid ones with changed bytes, random ones, and crafted ones. A scan of any
//! disk ends within its limits, does not panic, and uses no more memory than the limits allow. This is a
//! separate program because it has a counting allocator.
#![allow(clippy::unwrap_used)] // an error in a helper fails the test

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

/// Runs `scan` and asserts that its memory is within the maximum of `limits`.
fn measured(limits: Limits, scan: impl FnOnce() -> Scan) -> Scan {
    let (scan, used) = peak_of(scan);
    let most = limits.memory_bytes() as isize;
    println!("{used} bytes of {most}");
    assert!(used <= most, "{used} bytes were in use, more than the maximum of {most}");
    scan
}

fn check(disk: &mut dyn Blocks) -> Scan {
    measured(LIMITS, || check_scan(disk))
}

fn seed(name: &str) -> SparseDisk {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/guest_disk");
    SparseDisk::unpack(&std::fs::read(corpus.join(name)).unwrap())
}

/// A few bytes with many boundary values, for counts, lengths, block numbers and flags.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let special = prop::sample::select(vec![0_u8, 1, 2, 0x7f, 0x80, 0xff]);
    prop::collection::vec(prop_oneof![special, any::<u8>()], 1..9)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, rng_seed: RngSeed::Fixed(0x0f0e_0bea), ..ProptestConfig::default() })]

    #[test]
    fn scans_of_changed_disks_stay_within_their_limits(
        name in prop::sample::select(vec!["ntfs", "ext4", "ext2", "xfs", "gpt", "mbr"]),
        changes in prop::collection::vec((any::<Index>(), bytes()), 1..30),
    ) {
        let mut disk = seed(name);
        // Most non-zero data of the seeds is metadata.
        changes.iter().for_each(|(at, bytes)| disk.change(at.index(1 << 20), bytes));
        check(&mut disk);
    }

    #[test]
    fn scans_of_random_disks_stay_within_their_limits(noise in prop::collection::vec(any::<u8>(), 0..20_000), kind in 0..4) {
        let mut packed = forebay_guest::fuzzing::pack(&noise);
        // Starts with a magic number, because the scan would end at once otherwise.
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

/// Overwrites each position of the first sectors with ones and with zeroes.
#[test]
fn every_field_of_a_boot_sector_can_be_invalid() {
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

/// Disks that exceed one memory limit each: the scan is incomplete, within its memory. The other limits are
/// small, so that their unused memory cannot hide an excess.
#[test]
fn lists_end_at_their_memory_limit() {
    let small = Limits { names_bytes: 64 << 10, file_bytes: 64 << 10, claims: 1000, ..Limits::default() };
    let files = Limits { file_bytes: 1 << 20, ..small };
    let names = Limits { names_bytes: 8 << 20, ..small };
    let claims = Limits { claims: 12_000, ..small };
    let disks = [
        ("extents of a file, ext", files, bombs::ext::extents()),
        ("extents of a file, XFS", files, bombs::xfs::extents()),
        ("records of a file, NTFS", files, bombs::ntfs::records(24)),
        ("records of the table, NTFS", files, bombs::ntfs::records(0)),
        ("names, ext", names, bombs::ext::names(false)),
        ("claims, ext", claims, bombs::ext::claims()),
    ];
    for (name, limits, disk) in disks {
        println!("{name}");
        let options = Options { limits, ..Options::default() };
        let scan = measured(limits, || scan(&mut &disk[..], &options));
        assert!(!scan.complete, "{name}: the disk must exceed a limit");
    }
}

/// Work is charged in proportion to its duration: long names, long paths, sparse runs.
#[test]
fn long_names_long_paths_and_holes_exhaust_the_work_budget() {
    let disks = [
        ("long names", bombs::ext::names(true)),
        ("long paths", bombs::ntfs::paths(200, 400)),
        ("a hole", bombs::ntfs::hole()),
    ];
    for (name, disk) in disks {
        println!("{name}");
        assert!(!check(&mut &disk[..]).complete, "{name}");
    }
    // The same with paths of ordinary length.
    let disk = bombs::ntfs::paths(8, 400);
    let scan = check(&mut &disk[..]);
    assert!(scan.complete && scan.map.bytes_per_class()[Class::Metadata as usize] > 0);
}

/// A disk that counts reads of non-zero data and calls of `pause`.
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

/// The cost of a scan is bounded by the data on the disk: reads of a region of 16 KiB are limited to 32 times
/// its size and 256 reads, even if its blocks are referenced more often.
#[test]
fn the_cost_of_a_scan_is_bounded_by_the_data_on_the_disk() {
    let disks = [
        ("blocks of trees, ext", bombs::ext::repeated_blocks()),
        ("clusters of the table, NTFS", bombs::ntfs::repeated_table()),
    ];
    for (name, disk) in disks {
        let mut counted = Counted { disk: &disk, reads: 0, bytes: 0, pauses: 0 };
        let scan = measured(Limits::default(), || scan(&mut counted, &Options::default()));
        let regions = disk.chunks(16 << 10).filter(|r| r.iter().any(|b| *b != 0)).count() as u64;
        println!("{name}: {} reads, {} bytes of {regions} regions", counted.reads, counted.bytes);
        assert!(!scan.complete, "{name}: the disk must exceed a limit");
        assert!(counted.reads <= 257 * regions, "{name}: {} reads of {regions} regions", counted.reads);
        // A single read can have 256 KiB and exceed the limit by that.
        let most = 33 * regions * (16 << 10) + (1 << 20);
        assert!(counted.bytes <= most, "{name}: {} bytes of {regions} regions", counted.bytes);
    }
}

/// A scan that works for long without reading calls `pause` too, and ends on request.
#[test]
fn a_scan_that_does_not_read_can_be_paused_and_ended() {
    let disk = bombs::ext::names(true);
    let mut counted = Counted { disk: &disk, reads: 0, bytes: 0, pauses: 0 };
    let scan = scan(&mut counted, &Options::default());
    assert_eq!(counted.pauses, 100);
    assert!(!scan.complete);
}

/// Numbers that fit into their fields but overflow in calculations.
#[test]
fn numbers_that_overflow_cause_no_panic() {
    bombs::ext::clusters().iter().for_each(|disk| drop(check(&mut &disk[..])));
    check(&mut &bombs::xfs::far_extents()[..]);
    check(&mut &bombs::ext::empty()[..]);
}

/// The documentation states the default limits.
#[test]
fn the_default_limits_allow_about_200_mib() {
    assert!(Limits::default().memory_bytes() <= 280 << 20);
}
