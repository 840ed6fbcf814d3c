//! A boot profile: runs of blocks in the order in which they were first read.

use std::ops::Range;

use hashbrown::HashMap;

use crate::hash::BuildU64Hasher;

/// The version of the encoding that this release writes, and the only version that it reads.
const VERSION: u8 = 1;
/// Bytes of the version and the time.
const HEADER: usize = 9;
/// Maximum number of blocks of a profile: 2 GiB. A longer recording is not of a boot, or not worth keeping in
/// RAM.
const MAX_BLOCKS: u64 = 1 << 19;

/// The blocks that a boot reads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Profile {
    /// When the boot was recorded, in Unix milliseconds.
    pub recorded_ms: u64,
    /// Runs of blocks; no block is in two runs.
    pub runs: Vec<Range<u64>>,
}

impl Profile {
    pub fn blocks(&self) -> u64 {
        self.runs.iter().map(|run| run.end - run.start).sum()
    }

    /// Encodes version, time in Unix milliseconds, and for each run the distance of its start from the end of
    /// the previous run (zigzag) and its length, as LEB128 numbers.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend_from_slice(&self.recorded_ms.to_le_bytes());
        let mut end = 0;
        for run in &self.runs {
            let distance = run.start.wrapping_sub(end) as i64;
            put(&mut out, (distance << 1 ^ distance >> 63) as u64);
            put(&mut out, run.end - run.start);
            end = run.end;
        }
        out
    }

    /// Decodes the output of [`Profile::encode`]; returns `None` for all other bytes.
    pub fn decode(bytes: &[u8]) -> Option<Profile> {
        let (header, mut rest) = bytes.split_first_chunk::<HEADER>()?;
        let (version, recorded_ms) = header.split_first()?;
        if *version != VERSION {
            return None;
        }
        let recorded_ms = u64::from_le_bytes(recorded_ms.try_into().ok()?);
        let (mut runs, mut end, mut remaining) = (Vec::new(), 0_u64, MAX_BLOCKS);
        while !rest.is_empty() {
            let distance = take(&mut rest)?;
            let start = end.checked_add_signed((distance >> 1) as i64 ^ -((distance & 1) as i64))?;
            let len = take(&mut rest)?;
            remaining = remaining.checked_sub(len.max(1))?;
            end = start.checked_add(len)?;
            runs.push(start..end);
        }
        Some(Profile { recorded_ms, runs })
    }
}

fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// A profile that is being recorded.
#[derive(Default)]
pub(crate) struct Recorder {
    /// For each 64 blocks, a mask of the blocks that were recorded. Every read looks here, and this table
    /// stays in the processor's cache.
    seen: HashMap<u64, u64, BuildU64Hasher>,
    blocks: u64,
    runs: Vec<Range<u64>>,
}

impl Recorder {
    /// Records a block that was read; returns whether it is new.
    pub fn record(&mut self, block: u64) -> bool {
        if self.is_full() {
            return false;
        }
        let (seen, this) = (self.seen.entry(block / 64).or_default(), 1 << (block % 64));
        if *seen & this != 0 {
            return false;
        }
        *seen |= this;
        self.blocks += 1;
        match self.runs.last_mut() {
            Some(last) if last.end == block => last.end += 1,
            _ => self.runs.push(block..block + 1),
        }
        true
    }

    pub fn is_full(&self) -> bool {
        self.blocks() >= MAX_BLOCKS
    }

    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    pub fn finish(self, recorded_ms: u64) -> Profile {
        Profile { recorded_ms, runs: self.runs }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn blocks_are_listed_once_and_in_order() {
        let mut recorder = Recorder::default();
        let read = [5, 6, 7, 100, 6, 101, 3, 4, 5];
        let new = read.iter().filter(|block| recorder.record(**block)).count();
        let profile = recorder.finish(77);
        assert_eq!((new as u64, profile.blocks()), (7, 7));
        assert_eq!(profile.runs, [5..8, 100..102, 3..5]);
        assert_eq!(Profile::decode(&profile.encode()), Some(profile));
    }

    proptest! {
        #[test]
        fn an_encoded_profile_is_decoded(starts in prop::collection::vec((0..1_u64 << 52, 1..99_u64), 0..40)) {
            let runs = starts.into_iter().map(|(start, len)| start..start + len).collect();
            let profile = Profile { recorded_ms: 1, runs };
            prop_assert_eq!(Profile::decode(&profile.encode()), Some(profile));
        }

        /// A disk may hold any bytes.
        #[test]
        fn arbitrary_bytes_decode_to_a_bounded_profile_or_fail(mut bytes in prop::collection::vec(any::<u8>(), 0..200), first in 0..2_u8) {
            if let Some(version) = bytes.first_mut() {
                *version = first;
            }
            if let Some(profile) = Profile::decode(&bytes) {
                prop_assert!(profile.blocks() <= MAX_BLOCKS);
            }
        }
    }
}
