//! A table of fingerprints with the references to their blocks. It is the whole index of a pool while it fits
//! the budget.

use forebay_format::{BlockRef, Fingerprint, MapValue};

use super::bits::{place_bits, sample_bits};
use super::buckets::{Buckets, Entry};

const WAYS: usize = 16;
/// Minimum number of sets in the index.
const LEAST_SETS: usize = 16;

/// A fingerprint and the block's reference, in 28 bytes; all zero if the entry is empty.
#[derive(Clone, Copy)]
struct Exact {
    print: [u32; 4],
    at: [u32; 3],
}

impl Entry for Exact {
    const EMPTY: Exact = Exact { print: [0; 4], at: [0; 3] };

    fn is_empty(&self) -> bool {
        self.at[0] == 0
    }

    fn hash(&self, _: usize, _: usize) -> usize {
        place_bits(&fingerprint_of(&self.print)) as usize
    }
}

impl Exact {
    fn get(&self) -> Option<(Fingerprint, BlockRef)> {
        match MapValue::from_words(self.at) {
            Some(MapValue::At(at)) => Some((fingerprint_of(&self.print), at)),
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

/// The exact index; see the module documentation.
pub(super) struct ExactTable(Buckets<Exact, WAYS>);

impl ExactTable {
    /// An empty table of at most `bytes`, but at least a few KiB.
    pub fn new(bytes: u64) -> ExactTable {
        let most = (bytes as usize / size_of::<[Exact; WAYS]>()).max(LEAST_SETS);
        let doublings = (most / LEAST_SETS).ilog2();
        ExactTable(Buckets::new(most >> doublings, doublings))
    }

    pub fn get(&self, fingerprint: &Fingerprint) -> Option<BlockRef> {
        let print = words(fingerprint);
        let mut set = self.0.of(place_bits(fingerprint) as usize);
        set.find(|e| e.print == print)?.get().map(|(_, at)| at)
    }

    /// Loads what is needed to search or insert these fingerprints, so that this takes less time.
    pub fn fetch<'a>(&self, fingerprints: impl Iterator<Item = &'a Fingerprint>) {
        self.0.fetch(fingerprints.map(|fingerprint| place_bits(fingerprint) as usize));
    }

    /// Inserts a fingerprint, or updates the reference of a known fingerprint. Returns a fingerprint that was
    /// displaced.
    pub fn insert(&mut self, fingerprint: Fingerprint, at: BlockRef) -> Option<(Fingerprint, BlockRef)> {
        let print = words(&fingerprint);
        let entry = Exact { print, at: MapValue::At(at).to_words() };
        let random = (sample_bits(&fingerprint) >> 60) as usize;
        self.0.insert(place_bits(&fingerprint) as usize, entry, random, |e| e.print == print)?.get()
    }

    pub fn is_full(&self) -> bool {
        self.0.is_full()
    }

    /// Removes a fingerprint if `is` accepts its block.
    pub fn remove(&mut self, fingerprint: &Fingerprint, is: impl Fn(&BlockRef) -> bool) {
        let print = words(fingerprint);
        let is = |e: &Exact| e.print == print && e.get().is_some_and(|(_, at)| is(&at));
        self.0.remove(place_bits(fingerprint) as usize, is);
    }

    /// Takes some entries out of the table; `None` if it is empty. After this call nothing may be inserted.
    pub fn drain(&mut self) -> Option<impl Iterator<Item = (Fingerprint, BlockRef)> + use<>> {
        Some(self.0.drain()?.filter_map(|e| e.get()))
    }

    pub fn len(&self) -> u64 {
        self.0.len() as u64
    }

    /// Memory of the table in bytes.
    pub fn bytes(&self) -> u64 {
        self.0.bytes()
    }
}
