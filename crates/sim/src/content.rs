//! The content of a block in the model: the write from which each byte comes.
//!
//! The bytes of a write are a function of its number and their position on the disk, so that any byte that is
//! stale, torn, misplaced or from another disk is detected, and eight bytes are enough to determine their
//! origin.
//!
//! There are exceptions: of every eight writes, three put the same bytes into every block that they touch,
//! which gives deduplication something to find, and one puts compressible bytes.

use std::fmt;
use std::ops::Range;
use std::rc::Rc;

use forebay_format::BLOCK;

use crate::rng::mix;

/// Number of a write; 0 stands for zeroes.
pub type WriteId = u32;

/// Bytes of a block whose origin is one write: start, end, the write, and the distance in bytes by which they
/// were copied upwards since, to another position of the same disk or of another disk.
type Run = (u16, u16, WriteId, i64);

/// The content of one block: disjoint runs of bytes by ascending start; bytes outside all runs are zero.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Content(Rc<[Run]>);

/// Numbers of writes that have the same content everywhere; other writes have unique numbers.
const TWINS: std::ops::RangeInclusive<WriteId> = u32::MAX - 4..=u32::MAX;
/// Eight-byte words of a block.
const WORDS: u64 = BLOCK as u64 / 8;

/// The eight bytes of `write` at the eight-byte word `word` of a disk.
fn word(write: WriteId, word: u64) -> u64 {
    let number = mix(write.into());
    let (write, seed) = match number % 8 {
        _ if TWINS.contains(&write) => (write, word % WORDS),
        0..3 => (TWINS.start() + (number >> 8) as u32 % 5, word % WORDS),
        3 => (write, word / WORDS),
        _ => (write, word),
    };
    let low = mix(u64::from(write) << 40 ^ seed) & 0xffff_ffff;
    u64::from(write) << 32 | low
}

/// Fills `out` with the bytes of `write` at byte `offset` of a disk.
pub fn fill(write: WriteId, offset: u64, out: &mut [u8]) {
    if write == 0 {
        return out.fill(0);
    }
    let (mut at, mut i) = (offset, 0);
    while i < out.len() {
        let bytes = word(write, at / 8).to_le_bytes();
        let from = (at % 8) as usize;
        let n = (8 - from).min(out.len() - i);
        out[i..i + n].copy_from_slice(&bytes[from..from + n]);
        (at, i) = (at + n as u64, i + n);
    }
}

/// The write to which the bytes at `offset` correspond.
fn origin(offset: u64, bytes: &[u8]) -> Option<WriteId> {
    if bytes.iter().all(|b| *b == 0) {
        return Some(0);
    }
    let aligned = offset.next_multiple_of(8);
    let at = (aligned - offset) as usize;
    let found = u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?);
    let write = (found >> 32) as WriteId;
    (word(write, aligned / 8) == found).then_some(write)
}

impl Content {
    /// A block of zeroes.
    pub fn zero() -> Content {
        Content::default()
    }

    /// Whether it is known to be all zero.
    pub fn is_zero(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the bytes `range` of block number `block` are zero; single bytes of a write can be zero.
    pub fn is_zero_in(&self, block: u64, range: Range<usize>) -> bool {
        let untouched = self.0.iter().all(|&(s, e, ..)| e as usize <= range.start || s as usize >= range.end);
        untouched || self.bytes(block, range).iter().all(|b| *b == 0)
    }

    /// The write from which a byte comes.
    pub fn write_at(&self, at: usize) -> Option<WriteId> {
        self.0.iter().find(|(s, e, ..)| (*s as usize..*e as usize).contains(&at)).map(|r| r.2)
    }

    /// Returns this content with the bytes `range` replaced by those of `write`.
    pub fn with(&self, range: Range<usize>, write: WriteId) -> Content {
        let run = (range.start as u16, range.end as u16, write, 0);
        self.with_runs(range, (write != 0).then_some(run))
    }

    /// Returns this content, in which the bytes `range` of the block `from` replace the bytes at `at`. On the
    /// disk, the copied bytes move by `shift` bytes.
    pub fn with_copy(&self, at: usize, from: &Content, range: Range<usize>, shift: i64) -> Content {
        let clip = |&(s, e, w, moved): &Run| {
            let (s, e) = ((s as usize).max(range.start), (e as usize).min(range.end));
            let there = |i: usize| (i - range.start + at) as u16;
            (s < e).then(|| (there(s), there(e), w, moved + shift))
        };
        self.with_runs(at..at + range.len(), from.0.iter().filter_map(clip))
    }

    fn with_runs(&self, range: Range<usize>, new: impl IntoIterator<Item = Run>) -> Content {
        let (start, end) = (range.start as u16, range.end as u16);
        let mut runs = Vec::with_capacity(self.0.len() + 2);
        for &(s, e, w, moved) in self.0.iter() {
            if s < start {
                runs.push((s, e.min(start), w, moved));
            }
            if e > end {
                runs.push((s.max(end), e, w, moved));
            }
        }
        runs.extend(new.into_iter().filter(|(s, e, ..)| s < e));
        runs.sort_unstable();
        Content(runs.into())
    }

    /// The bytes `range` of block number `block`.
    pub fn bytes(&self, block: u64, range: Range<usize>) -> Vec<u8> {
        let mut out = vec![0; range.len()];
        for &(s, e, w, moved) in self.0.iter() {
            let (s, e) = ((s as usize).max(range.start), (e as usize).min(range.end));
            if s < e {
                let at = (block * BLOCK as u64 + s as u64).wrapping_add_signed(-moved);
                fill(w, at, &mut out[s - range.start..e - range.start]);
            }
        }
        out
    }

    /// Whether `bytes` are the bytes `range` of block number `block` with this content.
    pub fn matches(&self, block: u64, range: Range<usize>, bytes: &[u8]) -> bool {
        self.bytes(block, range) == bytes
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_zero() {
            return f.write_str("zero");
        }
        for (i, &(s, e, w, moved)) in self.0.iter().enumerate() {
            let sep = if i == 0 { "" } else { "," };
            match (s, e as usize) {
                (0, BLOCK) => write!(f, "w{w}")?,
                _ => write!(f, "{sep}w{w}[{s}..{e}]")?,
            }
            if moved != 0 {
                write!(f, "{moved:+}")?;
            }
        }
        Ok(())
    }
}

/// Describes the origin of bytes read at `offset`, sector by sector.
pub fn describe(offset: u64, bytes: &[u8]) -> String {
    let mut runs: Vec<(u64, Option<WriteId>)> = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let to_next = 512 - ((offset + at as u64) % 512) as usize;
        let end = (at + to_next).min(bytes.len());
        let from = origin(offset + at as u64, &bytes[at..end]);
        if runs.last().is_none_or(|(_, w)| *w != from) {
            runs.push((offset + at as u64, from));
        }
        at = end;
    }
    let text = |(at, w): &(u64, Option<WriteId>)| {
        let at = at % BLOCK as u64;
        match w {
            Some(0) => format!("{at}: zero"),
            Some(w) => format!("{at}: w{w}"),
            None => format!("{at}: mixed or from no write"),
        }
    };
    runs.iter().map(text).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlays_keep_the_bytes_outside_their_range() {
        let c = Content::zero().with(0..4096, 7).with(512..1000, 8).with(600..700, 0);
        assert_eq!(format!("{c:?}"), "w7[0..512],w8[512..600],w8[700..1000],w7[1000..4096]");
        let mut expected = vec![0; 4096];
        fill(7, 3 * 4096, &mut expected);
        fill(8, 3 * 4096 + 512, &mut expected[512..1000]);
        expected[600..700].fill(0);
        assert!(c.matches(3, 0..4096, &expected));
        assert!(c.matches(3, 590..1100, &expected[590..1100]));
        expected[4095] ^= 1;
        assert!(!c.matches(3, 0..4096, &expected));
    }

    #[test]
    fn copies_have_the_bytes_of_their_source() {
        let from = Content::zero().with(0..4096, 7).with(512..1024, 8);
        let c = Content::zero().with(0..100, 9).with_copy(50, &from, 500..1500, 2 * 4096 - 450);
        assert_eq!(c.bytes(5, 50..1050), from.bytes(3, 500..1500));
        assert_eq!(c.bytes(5, 0..50), Content::zero().with(0..50, 9).bytes(5, 0..50));
        assert!(c.is_zero_in(5, 1050..4096));
    }

    #[test]
    fn the_origin_of_bytes_is_recognised() {
        let mut b = vec![0; 4096];
        fill(9, 8192, &mut b[..1024]);
        assert_eq!(describe(8192, &b), "0: w9, 1024: zero");
        assert_eq!(describe(4096, &b[..1024]), "0: mixed or from no write");
    }
}
