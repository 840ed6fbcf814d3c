//! The rule of the superblock's compare-and-swap, the same for every backend.

use forebay_format::Superblock;

use crate::{Result, StoreError};

/// Bytes of one superblock copy.
pub(crate) const COPY_BYTES: usize = forebay_format::BLOCK;

/// The copies in `bytes`, which holds one after the other. A copy that was never written is all zero, or
/// missing.
pub(crate) fn written_copies(bytes: &[u8]) -> [Option<Vec<u8>>; 2] {
    [0, 1].map(|n| {
        let copy = bytes.get(n * COPY_BYTES..(n + 1) * COPY_BYTES)?;
        copy.iter().any(|b| *b != 0).then(|| copy.to_vec())
    })
}

/// The index of the copy that `new` replaces.
pub(crate) fn copy_of(new: &Superblock) -> usize {
    (new.generation % 2) as usize
}

/// Checks that `new` may replace the present copies: the newest valid copy must belong to the same pool and
/// be one generation older. A copy of an unsupported format counts as written by another server.
pub(crate) fn check_swap(copies: [Option<&[u8]>; 2], new: &Superblock) -> Result<()> {
    let newest = match Superblock::choose(copies) {
        Ok(newest) => newest,
        Err(e) if !e.is_unsupported() && new.generation <= 1 => return Ok(()),
        Err(_) => return Err(StoreError::Fenced),
    };
    let successor = newest.generation.checked_add(1) == Some(new.generation);
    if successor && newest.pool == new.pool { Ok(()) } else { Err(StoreError::Fenced) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_format::{Features, PoolId};

    fn block(pool: u8, generation: u64) -> Superblock {
        Superblock {
            pool: PoolId([pool; 16]),
            generation,
            epoch: 1,
            fingerprint_key: [0; 32],
            created_ms: 0,
            segment_bytes: 1 << 20,
            seq: 0,
            chain: 0,
            memory: 0,
            boot: 0,
            blobs: Vec::new(),
            features: Features::default(),
        }
    }

    #[test]
    fn only_the_successor_of_the_newest_copy_may_be_written() {
        let (a, b) = (block(1, 4).encode(), block(1, 5).encode());
        let copies = [Some(&a[..]), Some(&b[..])];
        assert_eq!(check_swap(copies, &block(1, 6)), Ok(()));
        for generation in [0, 1, 4, 5, 7, u64::MAX] {
            assert_eq!(check_swap(copies, &block(1, generation)), Err(StoreError::Fenced));
        }
        assert_eq!(check_swap(copies, &block(2, 6)), Err(StoreError::Fenced), "another pool");
    }

    #[test]
    fn an_empty_store_accepts_only_the_first_generations() {
        for (generation, expected) in [(0, Ok(())), (1, Ok(())), (2, Err(StoreError::Fenced))] {
            assert_eq!(check_swap([None, None], &block(1, generation)), expected);
        }
    }

    #[test]
    fn a_damaged_newest_copy_is_replaced_by_the_successor_of_the_older_one() {
        let (a, mut b) = (block(1, 4).encode(), block(1, 5).encode());
        b[100] ^= 1;
        assert_eq!(check_swap([Some(&a), Some(&b)], &block(1, 5)), Ok(()));
        assert_eq!(check_swap([Some(&a), Some(&b)], &block(1, 6)), Err(StoreError::Fenced));
    }
}
