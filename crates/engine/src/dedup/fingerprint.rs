//! Fingerprints: keyed BLAKE3 hashes of blocks.

use blake3::IncrementCounter;
use blake3::platform::Platform;
use forebay_format::{BLOCK, Fingerprint};

/// Number of blocks that are hashed at once: the widest vectors hold a word of 16 hashes.
const LANES: usize = 16;
/// Minimum number of blocks whose chunks fill these vectors.
pub(crate) const HASHED_TOGETHER: usize = LANES / (BLOCK / CHUNK);
/// Bytes of a chunk, of a compressed block, and of a chaining value (BLAKE3 specification, section 2).
const CHUNK: usize = 1024;
const COMPRESSED: usize = 64;
const CHAINING: usize = 32;
/// Flags of the compression function (BLAKE3 specification, table 3).
const CHUNK_START: u8 = 1 << 0;
const CHUNK_END: u8 = 1 << 1;
const PARENT: u8 = 1 << 2;
const ROOT: u8 = 1 << 3;
const KEYED_HASH: u8 = 1 << 4;

/// Hashes blocks of one dedup domain.
#[derive(Clone)]
pub(crate) struct Fingerprinter {
    key: [u32; 8],
    platform: Platform,
}

impl Fingerprinter {
    /// Makes a fingerprinter for a dedup domain of the pool with this key. A fingerprint reveals nothing
    /// about blocks of another domain.
    pub fn new(pool_key: &[u8; 32], domain: u32) -> Fingerprinter {
        let key = blake3::keyed_hash(pool_key, &domain.to_le_bytes());
        let (words, _) = key.as_bytes().as_chunks::<4>();
        Fingerprinter {
            key: std::array::from_fn(|n| u32::from_le_bytes(words[n])),
            platform: Platform::detect(),
        }
    }

    /// Appends the fingerprint of each block. No fingerprint has the value that stands for "no block".
    ///
    /// A block is four chunks, so its hash is a tree of seven nodes. The library computes the nodes of one
    /// block at once, which fills a quarter of the widest vectors. This function computes the same node of
    /// many blocks at once.
    pub fn of_each(&self, blocks: &[&[u8; BLOCK]], out: &mut Vec<Fingerprint>) {
        for blocks in blocks.chunks(LANES) {
            let mut chunks = [[0; CHAINING]; 4 * LANES];
            let mut values = [0; CHAINING * LANES];
            for counter in 0..BLOCK / CHUNK {
                let ends = [CHUNK_START, CHUNK_END, 0];
                self.hash(blocks.len(), |n| chunk(blocks[n], counter), counter, ends, &mut values);
                for (n, value) in values.as_chunks().0.iter().take(blocks.len()).enumerate() {
                    chunks[4 * n + counter] = *value;
                }
            }
            let mut parents = [[0; COMPRESSED]; 2 * LANES];
            for (parent, pair) in parents.iter_mut().zip(chunks.as_chunks::<2>().0) {
                parent.copy_from_slice(pair.as_flattened());
            }
            let mut roots = [[0; COMPRESSED]; LANES];
            for half in 0..2 {
                self.hash(blocks.len(), |n| &parents[2 * n + half], 0, [0, 0, PARENT], &mut values);
                for (root, value) in roots.iter_mut().zip(values.as_chunks::<CHAINING>().0) {
                    root[half * CHAINING..][..CHAINING].copy_from_slice(value);
                }
            }
            self.hash(blocks.len(), |n| &roots[n], 0, [0, 0, PARENT | ROOT], &mut values);
            let first_half = |value: &[u8; CHAINING]| {
                let mut fingerprint = Fingerprint::default();
                fingerprint.0.copy_from_slice(&value[..16]);
                fingerprint
            };
            out.extend(values.as_chunks().0.iter().take(blocks.len()).map(first_half));
        }
    }

    /// The fingerprint of one block.
    pub fn of(&self, block: &[u8; BLOCK]) -> Fingerprint {
        let mut out = Vec::new();
        self.of_each(&[block], &mut out);
        out[0]
    }

    /// Computes one node of each of `count` hashes. `flags` are the flags of the first, of the last, and of
    /// all compressed blocks.
    fn hash<'a, const N: usize>(
        &self,
        count: usize,
        node: impl Fn(usize) -> &'a [u8; N],
        counter: usize,
        [first, last, all]: [u8; 3],
        out: &mut [u8],
    ) {
        let nodes: [&[u8; N]; LANES] = std::array::from_fn(|n| node(n.min(count - 1)));
        let (nodes, no) = (&nodes[..count], IncrementCounter::No);
        self.platform.hash_many(nodes, &self.key, counter as u64, no, KEYED_HASH | all, first, last, out);
    }
}

/// The `n`th chunk of a block.
fn chunk(block: &[u8; BLOCK], n: usize) -> &[u8; CHUNK] {
    &block.as_chunks().0[n]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The test compares undocumented functions of the library with its documented interface.
        #[test]
        fn a_fingerprint_is_a_keyed_hash(seed in any::<u64>(), count in 0..40usize, domain in any::<u32>()) {
            let block = |n: usize| -> [u8; BLOCK] {
                std::array::from_fn(|at| {
                    ((seed ^ n as u64).wrapping_add(at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
                })
            };
            let blocks: Vec<_> = (0..count).map(block).collect();
            let key = blake3::keyed_hash(&[7; 32], &domain.to_le_bytes());
            let mut found = Vec::new();
            Fingerprinter::new(&[7; 32], domain).of_each(&blocks.iter().collect::<Vec<_>>(), &mut found);
            prop_assert_eq!(found.len(), count);
            for (block, found) in blocks.iter().zip(found) {
                let expected = blake3::keyed_hash(key.as_bytes(), block);
                prop_assert_eq!(&found.0[..], &expected.as_bytes()[..16]);
            }
        }
    }
}
