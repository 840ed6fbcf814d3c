//! Disks that lie: real ones with changed bytes, and random ones. A scan of any of them ends within its limits, does
//! not panic, and takes no more memory than the limits allow. A program of its own, since it counts with its own
//! allocator.
#![allow(clippy::unwrap_used)] // helpers fail as the tests do

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::Path;

use forebay_guest::fuzzing::{LIMITS, SparseDisk, check_scan};
use proptest::prelude::*;
use proptest::sample::Index;

/// The system's allocator, which counts for each thread: bytes in use now, and the most since the last reset.
struct Counting;

thread_local! {
    static IN_USE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    IN_USE.with(|in_use| {
        in_use.set(in_use.get() + bytes);
        PEAK.with(|peak| peak.set(peak.get().max(in_use.get())));
    });
}

// SAFETY: hands everything on to the system's allocator; the counters do not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Scans within the limits, also of memory: what is remembered, and buffers.
fn check(disk: &mut SparseDisk) {
    let before = IN_USE.with(Cell::get);
    PEAK.with(|peak| peak.set(before));
    check_scan(disk);
    let used = PEAK.with(Cell::get) - before;
    let most = 8 * LIMITS.names_bytes;
    assert!(used < most as isize, "{used} bytes were in use");
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
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

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
