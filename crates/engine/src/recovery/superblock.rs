//! Reads the superblock, and advances the pool's epoch.

use forebay_format::{BLOCK, Features, FormatError, PoolId, Superblock};
use forebay_store::{Metered, Store};

use super::plausible::check_superblock;
use crate::limits::{MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES, SEGMENTS_AT_LEAST};
use crate::log::{SWAP, for_good};
use crate::{Error, Host, PoolConfig, Result};

/// For which purpose a pool is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The pool is owned and may be modified.
    Own,
    /// The pool is only inspected; nothing is written.
    Look,
}

/// Reads the superblock. With [`Mode::Own`], also writes a superblock with the next epoch, and creates a pool
/// if the store is empty.
pub(super) async fn load_superblock(
    store: &Metered,
    host: &dyn Host,
    config: &PoolConfig,
    mode: Mode,
) -> Result<Superblock> {
    // A small store gets small segments: otherwise the preallocated room of open segments could be the room
    // that a full store lacks to perform a deletion.
    let share = store.capacity().await?.total / SEGMENTS_AT_LEAST;
    let segment_bytes = segment_bytes(config.segment_bytes, share, store.max_object_bytes());
    let copies = store.read_superblock().await?;
    let mut superblock = match Superblock::choose([copies[0].as_deref(), copies[1].as_deref()]) {
        Ok(superblock) => superblock,
        Err(e) if e.is_unsupported() => return Err(e.into()),
        // Copy 1 is the first to be written. If only copy 1 exists, copy 1 is damaged, and there are no
        // segments, the creation of a pool was interrupted: it contains no data.
        Err(_) if copies[0].is_none() && is_empty(store).await? => new_superblock(host),
        Err(_) if copies.iter().all(Option::is_none) => {
            return Err(Error::NoPool("there are segments, but both superblock copies are missing".into()));
        }
        Err(e) => return Err(e.into()),
    };
    check_superblock(&superblock)?;
    if mode == Mode::Look {
        return Ok(superblock);
    }
    superblock.check_writable()?;
    superblock.generation += 1;
    superblock.epoch += 1;
    superblock.segment_bytes = segment_bytes;
    store.swap_superblock(&superblock).await.map_err(|e| for_good(e, SWAP))?;
    Ok(superblock)
}

/// The length at which segments end: the configured length, if the store has room for many such segments, and
/// if objects can be twice as long. (The cleaner fills an object up to three quarters of a segment, and then
/// adds the live slots of another segment.)
fn segment_bytes(configured: u32, share: u64, max_object: u64) -> u32 {
    let fitting = u32::try_from(max_object / 2).unwrap_or(u32::MAX);
    if configured > fitting {
        tracing::info!(configured, used = fitting, "objects of this store are limited: segments are shorter");
    }
    let share = u32::try_from(share).unwrap_or(u32::MAX);
    let wanted = configured.min(fitting).min(share).clamp(MIN_SEGMENT_BYTES, MAX_SEGMENT_BYTES);
    wanted / BLOCK as u32 * BLOCK as u32
}

async fn is_empty(store: &Metered) -> Result<bool> {
    Ok(store.list_lengths_of(Box::new(|_| false)).await?.is_empty())
}

/// Raises the epoch above the epochs of all batches that were found. It is usually above them. If the newest
/// superblock copy was damaged, the epoch derived from the older copy may have been used before, and the same
/// epoch would then be used by two openings of the pool.
pub(super) async fn raise_epoch_above(
    newest: u64,
    store: &Metered,
    superblock: &mut Superblock,
) -> Result<()> {
    if newest >= superblock.epoch {
        let beyond = FormatError::Value { what: "batch", field: "epoch" };
        superblock.epoch = newest.checked_add(1).ok_or(beyond)?;
        superblock.generation += 1;
        store.swap_superblock(superblock).await.map_err(|e| for_good(e, SWAP))?;
    }
    Ok(())
}

/// An id for a retained memory.
pub(super) fn random_id(host: &dyn Host) -> u64 {
    let mut id = [0; 8];
    host.random(&mut id);
    u64::from_le_bytes(id).max(1)
}

/// Replaces the id of the pool's memory in the superblock by an id that no memory has. If the opening is
/// interrupted before the loss is recorded, the next opening finds the loss again.
pub(super) async fn disown_memory(
    host: &dyn Host,
    store: &Metered,
    superblock: &mut Superblock,
) -> Result<()> {
    superblock.memory = random_id(host);
    superblock.generation += 1;
    Ok(store.swap_superblock(superblock).await.map_err(|e| for_good(e, SWAP))?)
}

/// The superblock of a new pool, before its first generation.
fn new_superblock(host: &dyn Host) -> Superblock {
    let (mut pool, mut fingerprint_key) = ([0; 16], [0; 32]);
    host.random(&mut pool);
    host.random(&mut fingerprint_key);
    Superblock {
        pool: PoolId(pool),
        generation: 0,
        epoch: 0,
        fingerprint_key,
        created_ms: host.unix_ms(),
        segment_bytes: 0,
        seq: 0,
        chain: 0,
        blobs: Vec::new(),
        features: Features::default(),
        memory: 0,
        boot: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_fit_into_the_store_and_its_objects() {
        const MIB: u64 = 1 << 20;
        let bytes = |configured: u64, share, object| {
            u64::from(segment_bytes(u32::try_from(configured * MIB).unwrap(), share, object)) / MIB
        };
        assert_eq!(bytes(1024, u64::MAX, u64::MAX), 1024);
        assert_eq!(bytes(68, u64::MAX, 128 * MIB), 64, "packed objects are up to twice as long");
        assert_eq!(bytes(32, u64::MAX, 128 * MIB), 32);
        assert_eq!(bytes(64, 10 * MIB + 1, u64::MAX), 10, "whole blocks");
        assert_eq!(segment_bytes(1 << 20, 0, 0), MIN_SEGMENT_BYTES);
    }
}
