//! Fingerprints and the references to their blocks, in bounded memory.
//!
//! The table consists of sets of [`WAYS`] entries; a fingerprint's first bits choose the set, its last ones
//! determine whether it is sampled. While more than three in ten entries are used, each insertion adds a set
//! and splits an existing one into it (linear hashing: sets that have not been split yet hold twice as much
//! as the others), up to the budget. At that size all sets are alike again and up to three in four entries
//! may be used; then only every second fingerprint is kept: at once for new fingerprints, set by set for
//! existing ones. Memory therefore follows the amount of stored data, and no insertion takes long.

use forebay_format::{BlockRef, Fingerprint, MapValue};

const WAYS: usize = 16;
/// Sets that each insertion sweeps for fingerprints that are no longer sampled.
const SWEEP: usize = 4;
/// A higher sampling would keep almost no fingerprints.
const MAX_SAMPLING: u8 = 40;

/// A fingerprint and the block's reference, in 28 bytes; all zero if the entry is empty.
#[derive(Clone, Copy)]
struct IndexSlot {
    print: [u32; 4],
    at: [u32; 3],
}

const EMPTY: IndexSlot = IndexSlot { print: [0; 4], at: [0; 3] };

impl IndexSlot {
    fn is_empty(&self) -> bool {
        self.at[0] == 0
    }

    fn get(&self) -> Option<BlockRef> {
        match MapValue::from_words(self.at) {
            Some(MapValue::At(at)) => Some(at),
            _ => None,
        }
    }
}

fn words(fingerprint: &Fingerprint) -> [u32; 4] {
    let b = &fingerprint.0;
    std::array::from_fn(|i| u32::from_le_bytes([b[4 * i], b[4 * i + 1], b[4 * i + 2], b[4 * i + 3]]))
}

fn fingerprint_of(print: &[u32; 4]) -> Fingerprint {
    let mut fingerprint = Fingerprint::default();
    fingerprint.0.chunks_exact_mut(4).zip(print).for_each(|(b, word)| b.copy_from_slice(&word.to_le_bytes()));
    fingerprint
}

/// Whether a fingerprint is one of the one in `2^sampling` that are kept.
fn is_sampled(print: &[u32; 4], sampling: u8) -> bool {
    let last = u64::from(print[3]) << 32 | u64::from(print[2]);
    last.trailing_zeros() >= sampling.into()
}

/// Initial and least number of sets; the maximum is this times a power of two.
const FIRST_SETS: usize = 16;

type Set = [IndexSlot; WAYS];

/// The table; see the module documentation.
pub(super) struct Table {
    /// At least `base` sets, fewer than twice as many: those from `base` on were split off from the first
    /// ones.
    sets: Vec<Set>,
    base: usize,
    most: usize,
    len: usize,
    sampling: u8,
    /// Next set to sweep; equal to the number of sets if none is left.
    swept: usize,
}

impl Table {
    /// An empty table of at most `bytes`, but at least a few KiB.
    pub fn new(bytes: u64, sampling: u8) -> Table {
        let most = (bytes as usize / size_of::<Set>()).max(FIRST_SETS);
        let doublings = (most / FIRST_SETS).ilog2();
        let first = most >> doublings;
        Table {
            sets: vec![[EMPTY; WAYS]; first],
            base: first,
            most: first << doublings,
            len: 0,
            sampling: sampling.min(MAX_SAMPLING),
            swept: usize::MAX,
        }
    }

    /// The set to which a fingerprint belongs.
    fn index(&self, print: &[u32; 4]) -> usize {
        let hash = (u64::from(print[0]) << 32 | u64::from(print[1])) as usize;
        let index = hash % (2 * self.base);
        if index < self.sets.len() { index } else { index - self.base }
    }

    pub fn get(&self, fingerprint: &Fingerprint) -> Option<BlockRef> {
        let print = words(fingerprint);
        let set = &self.sets[self.index(&print)];
        set.iter().find(|p| p.print == print && !p.is_empty()).and_then(IndexSlot::get)
    }

    /// Inserts a fingerprint, or updates the reference of a known one. Returns a fingerprint for which there
    /// is no room: this one if it is not sampled, or another one that was displaced.
    pub fn insert(&mut self, fingerprint: Fingerprint, at: BlockRef) -> Option<(Fingerprint, BlockRef)> {
        self.sweep();
        let print = words(&fingerprint);
        if fingerprint == Fingerprint::default() {
            return None;
        }
        if !is_sampled(&print, self.sampling) {
            return Some((fingerprint, at));
        }
        let index = self.index(&print);
        let set = &mut self.sets[index];
        let known = set.iter().position(|p| p.print == print && !p.is_empty());
        let free = known.or_else(|| set.iter().position(IndexSlot::is_empty));
        let grown = known.is_none() && free.is_some();
        // In a full set a random entry is displaced.
        let way = free.unwrap_or(print[3] as usize >> 28);
        let gone = std::mem::replace(&mut set[way], IndexSlot { print, at: MapValue::At(at).to_words() });
        let gone =
            if known.is_none() { gone.get().map(|at| (fingerprint_of(&gone.print), at)) } else { None };
        self.len += usize::from(grown);
        let places = self.sets.len() * WAYS;
        if self.sets.len() < self.most {
            if self.len > places / 10 * 3 {
                self.split();
            }
        } else if self.len > places / 4 * 3 && self.swept >= self.sets.len() && self.sampling < MAX_SAMPLING {
            self.sampling += 1;
            self.swept = 0;
        }
        gone
    }

    /// Adds a set, and moves into it the fingerprints that now belong there from the set that held them.
    fn split(&mut self) {
        let (new, old) = (self.sets.len(), self.sets.len() - self.base);
        self.sets.push([EMPTY; WAYS]);
        for way in 0..WAYS {
            let place = self.sets[old][way];
            if !place.is_empty() && self.index(&place.print) == new {
                self.sets[new][way] = place;
                self.sets[old][way] = EMPTY;
            }
        }
        if self.sets.len() == 2 * self.base {
            self.base *= 2;
        }
    }

    /// Removes a fingerprint if `is` accepts its block.
    pub fn remove(&mut self, fingerprint: &Fingerprint, is: impl Fn(&BlockRef) -> bool) {
        let print = words(fingerprint);
        let index = self.index(&print);
        let set = &mut self.sets[index];
        if let Some(place) = set.iter_mut().find(|p| p.print == print && p.get().is_some_and(|at| is(&at))) {
            *place = EMPTY;
            self.len -= 1;
        }
    }

    fn sweep(&mut self) {
        for _ in 0..SWEEP {
            let Some(set) = self.sets.get_mut(self.swept) else { return };
            for place in set {
                if !place.is_empty() && !is_sampled(&place.print, self.sampling) {
                    *place = EMPTY;
                    self.len -= 1;
                }
            }
            self.swept += 1;
        }
    }

    /// One of `2^n` fingerprints is kept.
    pub fn sampling(&self) -> u8 {
        self.sampling
    }

    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Memory use in bytes.
    pub fn bytes(&self) -> u64 {
        size_of_val(&self.sets[..]) as u64
    }
}
