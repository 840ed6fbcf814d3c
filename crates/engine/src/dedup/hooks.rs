//! Sampled fingerprints and the segments of their blocks, in five bytes each.
//!
//! An entry (*hook*) holds a part of the fingerprint, its *tag*, and the number of the segment. A tag is no
//! proof: the caller reads the segment's directory and compares the whole fingerprint.
//!
//! **Sampling.** A fingerprint is sampled if its last `coarse` bits are zero and the tag, the bits before
//! them, is below `limit`. When the table is full, the limit is reduced by an eighth: at once for new
//! fingerprints, set by set for existing fingerprints. So the table is a uniform sample of all blocks, old
//! and new, and always nearly full.
//!
//! **Length of tags.** Bits that determine the sampling or the set are the same in all tags of a set, and do
//! not distinguish them. A table grows by at most [`DOUBLINGS`], and is rebuilt with a new `coarse` at each
//! start, so at least about eleven bits remain: a fingerprint that is not in the table matches a tag in one
//! of some hundreds of look-ups, and only sampled fingerprints are looked up.

use forebay_format::{Fingerprint, SegmentId};

use super::bits::{place_bits, sample_bits};
use super::buckets::{Buckets, Entry};
use super::segments::{NUMBER_BITS, Segments};

const TAG_BITS: u32 = 20;
const TAGS: u32 = 1 << TAG_BITS;
const WAYS: usize = 12;
/// How often the table doubles: it replaces an exact table, whose entries are 5.6 times larger.
const DOUBLINGS: u32 = 3;
/// Number of sets that each insertion sweeps for hooks that are no longer needed.
const SWEEP: usize = 4;
/// Maximum of the sampling; a higher sampling would keep almost no fingerprints.
const MAX_COARSE: u8 = 40;
const MIN_LIMIT: u32 = 16;

/// A hook: the tag, and the number of the segment in the low bits; all zero if the entry is empty.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Hook([u8; 5]);

const _: () = assert!(TAG_BITS + NUMBER_BITS == 40);

impl Hook {
    fn new(tag: u32, number: u32) -> Hook {
        let bits = ((u64::from(tag) << NUMBER_BITS) | u64::from(number)).to_le_bytes();
        Hook(std::array::from_fn(|i| bits[i]))
    }

    fn bits(&self) -> u64 {
        let [a, b, c, d, e] = self.0;
        u64::from_le_bytes([a, b, c, d, e, 0, 0, 0])
    }

    fn tag(&self) -> u32 {
        (self.bits() >> NUMBER_BITS) as u32
    }

    fn number(&self) -> u32 {
        self.bits() as u32 & ((1 << NUMBER_BITS) - 1)
    }
}

/// The bits of a hash above its remainder by the first number of sets are those of the tag, since no others
/// are kept.
fn hash_of(remainder: usize, first: usize, tag: u32) -> usize {
    remainder % first + first * tag as usize
}

impl Entry for Hook {
    const EMPTY: Hook = Hook([0; 5]);

    fn is_empty(&self) -> bool {
        *self == Hook::EMPTY
    }

    fn hash(&self, set: usize, first: usize) -> usize {
        hash_of(set, first, self.tag())
    }
}

/// The sampled index; see the module documentation.
pub(super) struct Hooks {
    table: Buckets<Hook, WAYS>,
    pub segments: Segments,
    coarse: u8,
    limit: u32,
    /// The set that is swept next, during a sweep.
    sweep: Option<usize>,
}

impl Hooks {
    /// An empty table of at most `bytes`, but at least a few KiB. At first one of `2^coarse` fingerprints is
    /// sampled.
    pub fn new(bytes: u64, coarse: u8) -> Hooks {
        let first = ((bytes as usize / size_of::<[Hook; WAYS]>()) >> DOUBLINGS).max(1);
        Hooks {
            table: Buckets::new(first, DOUBLINGS),
            segments: Segments::default(),
            coarse: coarse.min(MAX_COARSE),
            limit: TAGS,
            sweep: None,
        }
    }

    /// The tag and the hash of a fingerprint, if it is sampled.
    fn sample(&self, fingerprint: &Fingerprint) -> Option<(u32, usize)> {
        let bits = sample_bits(fingerprint);
        let tag = (bits >> self.coarse) as u32 % TAGS;
        let sampled = bits.trailing_zeros() >= self.coarse.into() && tag < self.limit;
        sampled.then(|| (tag, hash_of(place_bits(fingerprint) as usize, self.table.first(), tag)))
    }

    /// Loads what is needed to search or insert these fingerprints, so that this takes less time.
    pub fn fetch<'a>(&self, fingerprints: impl Iterator<Item = &'a Fingerprint>) {
        self.table.fetch(fingerprints.filter_map(|fingerprint| Some(self.sample(fingerprint)?.1)));
    }

    /// Returns the segments in which a block with this fingerprint may be: usually none or one.
    pub fn get(&self, fingerprint: &Fingerprint) -> impl Iterator<Item = SegmentId> {
        let sample = self.sample(fingerprint);
        let hooks =
            sample.into_iter().flat_map(|(tag, hash)| self.table.of(hash).filter(move |h| h.tag() == tag));
        hooks.filter_map(|hook| self.segments.get(hook.number()))
    }

    /// Adds a stored block, if its fingerprint is sampled.
    pub fn insert(&mut self, fingerprint: &Fingerprint, segment: SegmentId) {
        let Some((tag, hash)) = self.sample(fingerprint) else { return };
        self.sweep_some();
        let Some(number) = self.segments.number(segment) else { return self.begin_sweep() };
        let random = (sample_bits(fingerprint) >> 59) as usize;
        let new = Hook::new(tag, number);
        self.table.insert(hash, new, random, |hook| *hook == new);
        if self.table.is_full() && self.sweep.is_none() {
            if !self.segments.any_freed() && self.limit > MIN_LIMIT {
                self.limit -= self.limit / 8;
            }
            self.begin_sweep();
        }
    }

    fn begin_sweep(&mut self) {
        if self.sweep.is_none() {
            self.segments.begin_sweep();
            self.sweep = Some(0);
        }
    }

    fn sweep_some(&mut self) {
        let (limit, segments) = (self.limit, &self.segments);
        let keep = move |hook: &Hook| hook.tag() < limit && segments.get(hook.number()).is_some();
        for _ in 0..SWEEP {
            let Some(set) = self.sweep else { return };
            self.sweep = self.table.retain(set, keep).then_some(set + 1);
            if self.sweep.is_none() {
                return self.segments.end_sweep();
            }
        }
    }

    /// Removes a fingerprint from a segment.
    pub fn remove(&mut self, fingerprint: &Fingerprint, segment: SegmentId) {
        let Some(number) = self.segments.known(segment) else { return };
        if let Some((tag, hash)) = self.sample(fingerprint) {
            self.table.remove(hash, |hook| *hook == Hook::new(tag, number));
        }
    }

    /// The exponent of the sampling: one of `2^n` fingerprints is kept, or slightly more.
    pub fn sampling(&self) -> u8 {
        self.coarse + (TAGS / self.limit).ilog2() as u8
    }

    pub fn len(&self) -> u64 {
        self.table.len() as u64
    }

    /// Memory of the table in bytes.
    pub fn bytes(&self) -> u64 {
        self.table.bytes() + self.segments.bytes()
    }
}
