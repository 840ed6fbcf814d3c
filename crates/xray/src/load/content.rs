//! The content of writes: blocks that differ from each other and can be identified.
//!
//! A unit (4 KiB, or the request if it is smaller) is a window of a random arena, selected by the unit's
//! position and version, with a stamp of both at its start. Therefore no two written units are equal
//! (deduplication gains nothing), they do not compress, a reader can compute the expected content, and
//! filling a request costs one copy.
//!
//! To measure reduction, the arena is real data instead, or the units are whole blocks of it without a
//! stamp; or a share of each unit is zero, and a share of the units is equal to one of a few
//! (`Fill::Shaped`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::spec::Fill;
use crate::rng::Rng;

const ARENA_BYTES: usize = 256 << 10;
const UNIT_BYTES: usize = 4096;
const STAMP_BYTES: usize = 24;
/// Units that the duplicates of shaped content are equal to.
const REPEATED_UNITS: u64 = 1024;

/// Numbers the workers of this process that write.
static WRITERS: AtomicU64 = AtomicU64::new(0);

/// The version before the first one of a worker. Versions differ between all workers of a process, those of
/// other runs included: otherwise a run with the seed of an earlier one would write what is stored already,
/// and a server with deduplication would be measured with duplicates.
pub(super) fn base_version() -> u64 {
    WRITERS.fetch_add(1, Relaxed) << 32
}

/// Generates and verifies content; deterministic for a seed.
pub(crate) struct Content {
    seed: u64,
    arena: Arc<Vec<u8>>,
    /// The windows of blocks start at multiples of this number.
    grain: usize,
    stamp_bytes: usize,
    unit_bytes: usize,
    /// Consecutive units whose windows are consecutive too.
    run: u64,
    /// Share of zeroes at the end of a unit, and share of units that are duplicates.
    zero_percent: u8,
    duplicate_percent: u8,
}

impl Content {
    /// Returns incompressible content.
    pub fn new(seed: u64) -> Content {
        let mut arena = vec![0; ARENA_BYTES + UNIT_BYTES];
        Rng::new(seed).fill(&mut arena);
        Content {
            seed,
            arena: Arc::new(arena),
            grain: 8,
            stamp_bytes: STAMP_BYTES,
            unit_bytes: UNIT_BYTES,
            run: 1,
            zero_percent: 0,
            duplicate_percent: 0,
        }
    }

    /// Content of the kind `fill`.
    pub fn of(seed: u64, fill: &Fill) -> Content {
        let (arena, grain, stamp_bytes) = match fill {
            Fill::Noise => return Content::new(seed),
            Fill::Stamped(arena) => (arena, 8, STAMP_BYTES),
            Fill::Repeated(arena) => (arena, UNIT_BYTES, 0),
            Fill::Shaped { zero_percent, duplicate_percent } => {
                let shares = (*zero_percent, *duplicate_percent);
                return Content { zero_percent: shares.0, duplicate_percent: shares.1, ..Content::new(seed) };
            }
        };
        assert!(arena.len() >= 16 * UNIT_BYTES, "an arena of {} bytes is too small", arena.len());
        Content { arena: Arc::clone(arena), grain, stamp_bytes, ..Content::new(seed) }
    }

    /// Returns the content in units of at most this size, if requests can begin at multiples of it.
    pub fn in_units_of(self, bytes: u64) -> Content {
        Content { unit_bytes: (bytes as usize).min(UNIT_BYTES), ..self }
    }

    /// Returns the content with windows of this number of units in a row, so that they compress together.
    pub fn in_runs_of(self, run: u64) -> Content {
        Content { run, ..self }
    }

    /// Fills `data`, to be written at `offset`.
    pub fn fill(&self, offset: u64, version: u64, data: &mut [u8]) {
        for (i, unit) in data.chunks_mut(self.unit_bytes).enumerate() {
            let (window, stamp) = self.unit(self.position(offset, i), version, unit.len());
            let zeroes = self.zeroes(unit.len());
            let (filled, zero) = unit.split_at_mut(unit.len() - zeroes);
            filled.copy_from_slice(&window[..filled.len()]);
            zero.fill(0);
            filled[..self.stamp_bytes].copy_from_slice(&stamp[..self.stamp_bytes]);
        }
    }

    /// Whether `data`, read at `offset`, is the content that `fill` generates.
    pub fn matches(&self, offset: u64, version: u64, data: &[u8]) -> bool {
        data.chunks(self.unit_bytes).enumerate().all(|(i, unit)| {
            let (window, stamp) = self.unit(self.position(offset, i), version, unit.len());
            let (filled, zero) = unit.split_at(unit.len() - self.zeroes(unit.len()));
            let n = self.stamp_bytes;
            filled[..n] == stamp[..n]
                && filled[n..] == window[n..filled.len()]
                && zero.iter().all(|b| *b == 0)
        })
    }

    /// Zeroes at the end of a unit, which always has room for its stamp.
    fn zeroes(&self, len: usize) -> usize {
        (len * usize::from(self.zero_percent) / 100).min(len - self.stamp_bytes)
    }

    fn unit(&self, at: u64, version: u64, len: usize) -> (&[u8], [u8; STAMP_BYTES]) {
        let in_run = if self.run == 1 { 0 } else { at % (self.run * self.unit_bytes as u64) };
        let mut mixed = Rng::new((at - in_run) ^ version.rotate_left(32));
        let windows = ((self.arena.len() - self.run as usize * UNIT_BYTES) / self.grain) as u64;
        let (mut start, mut words) = (mixed.below(windows), [self.seed, at, version]);
        if self.duplicate_percent > 0 && mixed.below(100) < u64::from(self.duplicate_percent) {
            let number = mixed.below(REPEATED_UNITS);
            // Duplicates are the same on all disks, whatever their seeds are.
            (start, words) = (Rng::new(number).below(windows), [u64::MAX, number, len as u64]);
        }
        let start = start as usize * self.grain + in_run as usize;
        let mut stamp = [0; STAMP_BYTES];
        for (part, word) in stamp.chunks_exact_mut(8).zip(words) {
            part.copy_from_slice(&word.to_le_bytes());
        }
        (&self.arena[start..start + len], stamp)
    }

    fn position(&self, offset: u64, unit: usize) -> u64 {
        offset + (unit * self.unit_bytes) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_expected_content_matches() {
        let content = Content::new(7);
        for len in [512, 4096, 16384] {
            let mut data = vec![0; len];
            content.fill(8192, 3, &mut data);
            assert!(content.matches(8192, 3, &data));
            assert!(!content.matches(8192, 4, &data), "another version");
            assert!(!content.matches(12288, 3, &data), "another place");
            assert!(!Content::new(8).matches(8192, 3, &data), "another run");
            data[len - 1] ^= 1;
            assert!(!content.matches(8192, 3, &data), "a damaged bit");
        }
    }

    #[test]
    fn repeated_content_consists_of_blocks_of_the_arena_and_matches() {
        let mut arena = vec![0; 1 << 20];
        Rng::new(5).fill(&mut arena);
        let arena = Arc::new(arena);
        for fill in [Fill::Repeated(arena.clone()), Fill::Stamped(arena.clone())] {
            let content = Content::of(1, &fill);
            let mut data = vec![0; 8192];
            content.fill(0, 9, &mut data);
            assert!(content.matches(0, 9, &data));
            let known = data.chunks(4096).all(|d| arena.chunks(4096).any(|a| a == d));
            assert_eq!(known, matches!(fill, Fill::Repeated(_)));
        }
    }

    #[test]
    fn shaped_content_has_its_shares_and_matches() {
        let shaped = Fill::Shaped { zero_percent: 50, duplicate_percent: 40 };
        let content = Content::of(1, &shaped);
        let mut data = vec![0; 4096 * 2000];
        content.fill(0, 9, &mut data);
        assert!(content.matches(0, 9, &data) && !content.matches(0, 8, &data));
        assert!(data.chunks(4096).all(|unit| unit[2048..].iter().all(|b| *b == 0)));
        let mut units: Vec<&[u8]> = data.chunks(4096).collect();
        units.sort_unstable();
        units.dedup();
        // 1,200 units that differ, and some 550 of the 1,024 repeated ones.
        assert!((1_600..1_900).contains(&units.len()), "{}", units.len());
        *data.last_mut().expect("has bytes") = 1;
        assert!(!content.matches(0, 9, &data), "a damaged zero");
        let small = Content::of(1, &shaped).in_units_of(512);
        small.fill(512, 3, &mut data[..1024]);
        assert!(small.matches(1024, 3, &data[512..1024]), "each unit has a stamp");
    }

    #[test]
    fn the_units_of_one_request_differ() {
        let mut data = vec![0; 8192];
        Content::new(1).fill(0, 1, &mut data);
        assert_ne!(data[..4096], data[4096..]);
    }

    #[test]
    fn no_two_workers_write_the_same_content() {
        let content = Content::new(7);
        let first_write = || {
            let mut data = vec![0; 4096];
            content.fill(8192, base_version() + 1, &mut data);
            data
        };
        assert_ne!(first_write(), first_write());
    }
}
