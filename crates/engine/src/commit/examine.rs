//! Examines the contents of blocks: the part of reduction that needs only a block, the read cache, and the
//! value that the map has for the block now. It runs on several threads at once.

use std::sync::Arc;

use forebay_format::{BLOCK, BlockRef, Fingerprint, MapValue, crc32c};

use crate::cache::{Owner, Rank, ReadCache};
use crate::dedup::Fingerprinter;
use crate::lost::is_lost;
use crate::zero::is_zero;

/// A written block, and what is known about it.
pub(super) struct Given<'a> {
    pub content: &'a [u8; BLOCK],
    /// The checksum of the content, if it is known.
    pub crc: Option<u32>,
    /// Fingerprint of the content, if it is known.
    pub fingerprint: Option<Fingerprint>,
    /// Value of the block in the map, unless the same group zeroes a range that includes the block.
    pub now: Option<MapValue>,
    /// Computes the block's fingerprint; `None` if the block is not to be deduplicated.
    pub fingerprinter: Option<Arc<Fingerprinter>>,
    pub compress: bool,
    /// Rank of the block in the read cache.
    pub rank: Rank,
    /// The block is one of many consecutive blocks.
    pub is_in_run: bool,
}

/// The result of examining a block.
pub(super) enum Examined {
    /// The block is all zeroes; `known` if the map states that already.
    Zero { known: bool },
    /// The block is equal to the block that the disk already has at this place, so nothing has to be stored.
    Unchanged,
    Other {
        crc: u32,
        fingerprint: Option<Fingerprint>,
        /// The present block of the disk, if its checksum is equal.
        now: Option<BlockRef>,
        /// Rank of the block in the read cache.
        rank: Rank,
    },
}

/// Examines blocks. The blocks that need fingerprints are hashed together.
pub(super) fn examine(blocks: &[Given<'_>], cache: &ReadCache) -> Vec<Examined> {
    let mut found: Vec<Examined> = blocks.iter().map(|given| examine_one(given, cache)).collect();
    let mut at = 0;
    while at < blocks.len() {
        let fingerprinter = &blocks[at].fingerprinter;
        let is_same = |given: &Given<'_>| match (&given.fingerprinter, fingerprinter) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (a, b) => a.is_none() && b.is_none(),
        };
        let end = at + blocks[at..].iter().take_while(|given| is_same(given)).count();
        if let Some(fingerprinter) = fingerprinter {
            add_fingerprints(fingerprinter, &blocks[at..end], &mut found[at..end]);
        }
        at = end;
    }
    found
}

fn examine_one(given: &Given<'_>, cache: &ReadCache) -> Examined {
    if is_zero(given.content) {
        return Examined::Zero { known: given.now == Some(MapValue::Zero) };
    }
    let crc = given.crc.unwrap_or_else(|| crc32c(given.content));
    let now = match given.now {
        Some(MapValue::At(now)) if now.crc == crc && !is_lost(&now) => Some(now),
        _ => None,
    };
    if now.is_some_and(|now| is_cached_as(cache, now, given.content)) {
        return Examined::Unchanged;
    }
    Examined::Other { crc, fingerprint: None, now, rank: rank(given, cache) }
}

/// The rank of a block in the read cache. A block of a large write displaces other blocks from the cache only
/// if it overwrites a block that was read from the cache. Data of large writes (copies, backups,
/// installations) is seldom read back soon, and the guest may still have it in memory. Copying it into the
/// cache would take a fifth of the CPU time of its commit.
fn rank(given: &Given<'_>, cache: &ReadCache) -> Rank {
    let replaces = || matches!(given.now, Some(MapValue::At(now)) if cache.is_used(now.addr));
    match given.rank {
        rank if rank > Rank::Spare && given.is_in_run && (cache.has_room() || !replaces()) => Rank::Spare,
        rank => rank,
    }
}

/// Whether the read cache holds the block `at` and it equals `content`.
fn is_cached_as(cache: &ReadCache, at: BlockRef, content: &[u8; BLOCK]) -> bool {
    let mut cached = [0; BLOCK];
    cache.probe(at.addr, 0, &mut cached, Owner::SHARED) && cached == *content
}

/// Adds the missing fingerprints of the blocks of one dedup domain.
fn add_fingerprints(fingerprinter: &Fingerprinter, blocks: &[Given<'_>], found: &mut [Examined]) {
    let (mut contents, mut places) = (Vec::with_capacity(blocks.len()), Vec::with_capacity(blocks.len()));
    for (given, found) in blocks.iter().zip(found) {
        if let Examined::Other { fingerprint, .. } = found {
            if given.fingerprint.is_some() {
                *fingerprint = given.fingerprint;
                debug_assert_eq!(given.fingerprint, Some(fingerprinter.of(given.content)));
                continue;
            }
            contents.push(given.content);
            places.push(fingerprint);
        }
    }
    let mut fingerprints = Vec::with_capacity(contents.len());
    fingerprinter.of_each(&contents, &mut fingerprints);
    for (place, fingerprint) in places.into_iter().zip(fingerprints) {
        *place = Some(fingerprint);
    }
}
