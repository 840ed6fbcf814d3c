//! Helpers of several tests.

use std::sync::Arc;

use forebay_retained::*;

pub const IDENTITY: Identity = Identity { pool: *b"pool-of-16-bytes", boot: *b"boot-of-16-bytes" };
pub const LIMIT: u64 = 64 << 20;
pub const ID: u64 = 0x1234_5678_9abc_def0;

pub fn heap() -> Arc<HeapMemory> {
    Arc::new(HeapMemory::new(64))
}

pub fn create(memory: &Arc<HeapMemory>) -> Arc<Retained> {
    Retained::create(memory.clone(), &IDENTITY, ID, LIMIT).unwrap()
}

/// Opens the memory as it would be if the process were killed at this moment.
pub fn reopen(memory: &HeapMemory) -> Result<(Arc<Retained>, Contents), Lost> {
    Retained::open(Arc::new(memory.snapshot()), &IDENTITY, LIMIT)
}

pub fn block(disk: u32, block: u64) -> BlockRecord {
    BlockRecord { disk, block, mask: 0xff, generation: 7 }
}

pub fn range(disk: u32, start: u64, end: u64) -> RangeRecord {
    RangeRecord { disk, start, end, allocated: start.is_multiple_of(2), generation: 3 }
}

/// Publishes a page that is filled with words of `seed`.
pub fn put(retained: &Arc<Retained>, room: Option<&mut Reservation>, of: BlockRecord, seed: u64) -> Page {
    retained.page(room, of, |page| page.copy_from_slice(&content(seed)))
}

pub fn content(seed: u64) -> [u8; PAGE] {
    let mut page = [0; PAGE];
    for (i, word) in page.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ i as u64).to_le_bytes());
    }
    page
}

/// SplitMix64: reproducible, and good enough to choose test cases.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

/// A number in the environment.
pub fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|e| panic!("{name}={value}: {e}")))
}

/// Runs a test with seeds from 0 on: `rounds` of them or `FOREBAY_ROUNDS`, or the one in `FOREBAY_SEED`.
pub fn with_seeds(test: &str, rounds: u64, run: impl Fn(u64)) {
    let seeds = match number("FOREBAY_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("FOREBAY_ROUNDS").unwrap_or(rounds),
    };
    for seed in seeds {
        let passed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed)));
        assert!(
            passed.is_ok(),
            "to replay: FOREBAY_SEED={seed} cargo test --workspace --locked --test it {test}"
        );
    }
}

/// A directory on tmpfs; otherwise prints why the test is skipped.
pub fn tmpfs_dir() -> Option<tempfile::TempDir> {
    let dir = tempfile::tempdir_in("/dev/shm");
    // As for the code under test, but by other means: the type in the table of mounts.
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let is_tmpfs = mounts.lines().any(|line| line.contains(" /dev/shm tmpfs "));
    match dir {
        Ok(dir) if is_tmpfs => Some(dir),
        Ok(_) => {
            println!("skipped: /dev/shm is not tmpfs");
            None
        }
        Err(e) => {
            println!("skipped: no directory in /dev/shm: {e}");
            None
        }
    }
}

/// The content of a memory with every structure in use, in three chunks: pages of several disks, one block
/// twice, overlapping ranges of several kinds, flags, two covers, and slots that were used before.
pub fn sample() -> Vec<Option<Vec<u8>>> {
    let memory = Arc::new(HeapMemory::new(3));
    let retained = create(&memory);
    let pages: Vec<_> = (0..40).map(|n| put(&retained, None, block(n % 3, u64::from(n)), n.into())).collect();
    let ranges: Vec<_> = (0..10).map(|n| retained.range(None, range(n % 2, n.into(), 20))).collect();
    retained.set_cover(Cover { seq: 5, order: 3 });
    let newer = put(&retained, None, block(1, 1), 99);
    let partial =
        retained.page(None, BlockRecord { mask: 1, generation: 8, ..block(1, 1) }, |page| page.fill(3));
    let flags = [retained.flag(1, 1), retained.flag(2, 200)];
    retained.set_cover(Cover { seq: u64::MAX, order: 0 });
    let mut pages = pages;
    let mut ranges = ranges;
    drop((pages.drain(10..14), ranges.drain(..3)));
    let content = memory.content();
    drop((pages, ranges, newer, partial, flags));
    content
}

/// Opens a file that was in use a moment ago. A process that another test starts at the same time holds a
/// copy of each descriptor, and so the lock, until it executes its program.
pub fn open_soon(path: &std::path::Path) -> std::io::Result<SharedFile> {
    let begin = std::time::Instant::now();
    loop {
        match SharedFile::open(path, LIMIT) {
            Err(e) if e.kind() == std::io::ErrorKind::ResourceBusy && begin.elapsed().as_secs() < 60 => {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            done => return done,
        }
    }
}
