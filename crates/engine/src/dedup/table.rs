//! Fingerprints and where their blocks are, in a fixed piece of memory.
//!
//! Sets of [`WAYS`] places; a fingerprint's first bits choose the set, its last ones whether it is sampled. When
//! three quarters of the places are taken, only every second fingerprint stays: from then on at once for new
//! ones, and for those that are there set by set, so that no insertion takes long.

use forebay_format::{BlockRef, Fingerprint, MapValue};

const WAYS: usize = 16;
/// Sets from which what is not sampled any more is swept at each insertion.
const SWEEP: usize = 4;
/// More would keep next to nothing.
const MAX_SAMPLING: u8 = 40;

/// A fingerprint and the block's reference, in 28 bytes; all zero where there is none.
#[derive(Clone, Copy)]
struct Place {
    print: [u32; 4],
    at: [u32; 3],
}

const EMPTY: Place = Place { print: [0; 4], at: [0; 3] };

impl Place {
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

/// Whether a fingerprint is one of the `2^-sampling` that are kept.
fn is_sampled(print: &[u32; 4], sampling: u8) -> bool {
    let last = u64::from(print[3]) << 32 | u64::from(print[2]);
    last.trailing_zeros() >= sampling.into()
}

/// See the module.
pub(super) struct Table {
    places: Vec<Place>,
    len: usize,
    sampling: u8,
    /// Next set to sweep; as many as there are when none is.
    swept: usize,
}

impl Table {
    /// An empty table of at most `bytes`, at least one set.
    pub fn new(bytes: u64, sampling: u8) -> Table {
        let sets = (bytes as usize / (WAYS * size_of::<Place>())).max(1);
        // Zeroed memory costs nothing until it is used.
        Table { places: vec![EMPTY; sets * WAYS], len: 0, sampling: sampling.min(MAX_SAMPLING), swept: sets }
    }

    fn sets(&self) -> usize {
        self.places.len() / WAYS
    }

    fn set(&mut self, print: &[u32; 4]) -> &mut [Place] {
        let hash = u64::from(print[0]) << 32 | u64::from(print[1]);
        let set = ((u128::from(hash) * self.sets() as u128) >> 64) as usize;
        &mut self.places[set * WAYS..][..WAYS]
    }

    pub fn get(&mut self, fingerprint: &Fingerprint) -> Option<BlockRef> {
        let print = words(fingerprint);
        self.set(&print).iter().find(|p| p.print == print && !p.is_empty()).and_then(Place::get)
    }

    /// Takes a fingerprint in, or its block's newer place. False where it is not sampled.
    pub fn insert(&mut self, fingerprint: Fingerprint, at: BlockRef) -> bool {
        self.sweep();
        let print = words(&fingerprint);
        if !is_sampled(&print, self.sampling) || fingerprint == Fingerprint::default() {
            return false;
        }
        let set = self.set(&print);
        let known = set.iter().position(|p| p.print == print && !p.is_empty());
        let free = known.or_else(|| set.iter().position(Place::is_empty));
        let grown = known.is_none() && free.is_some();
        // A full set loses one at random.
        let way = free.unwrap_or(print[3] as usize >> 28);
        set[way] = Place { print, at: MapValue::At(at).to_words() };
        self.len += usize::from(grown);
        if self.len > self.places.len() / 4 * 3 && self.swept >= self.sets() && self.sampling < MAX_SAMPLING {
            self.sampling += 1;
            self.swept = 0;
        }
        true
    }

    /// Forgets a fingerprint if its block is the one that `is` knows.
    pub fn remove(&mut self, fingerprint: &Fingerprint, is: impl Fn(&BlockRef) -> bool) {
        let print = words(fingerprint);
        let set = self.set(&print);
        if let Some(place) = set.iter_mut().find(|p| p.print == print && p.get().is_some_and(|at| is(&at))) {
            *place = EMPTY;
            self.len -= 1;
        }
    }

    fn sweep(&mut self) {
        for _ in 0..SWEEP {
            if self.swept >= self.sets() {
                return;
            }
            for place in &mut self.places[self.swept * WAYS..][..WAYS] {
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

    /// Bytes, whether they are in use or not.
    pub fn bytes(&self) -> u64 {
        size_of_val(&self.places[..]) as u64
    }
}
