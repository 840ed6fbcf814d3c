//! Copies inside a pool: their contents, their cost, and their independence from the source.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::*;
use forebay_engine::{CloneRequest, DiskHandle, Error, Pool, PoolConfig, SyncMode};
use forebay_store::MemoryStore;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 12 * MIB + 5 * 512;

/// A pool with the volumes `from` and `to`, with different contents.
async fn pool(store: &Arc<MemoryStore>) -> (Arc<Pool>, Arc<DiskHandle>, Arc<DiskHandle>) {
    let pool = open(store).await;
    for name in ["from", "to"] {
        pool.create_volume(name, SIZE, SyncMode::Flush, 0).await.unwrap();
    }
    let (from, to) = (pool.attach("from").unwrap(), pool.attach("to").unwrap());
    to.write(0, &text(9, SIZE as usize), false).await.unwrap();
    // Data, a hole, zeroes, and single blocks.
    from.write(0, &noise(1, 3 * MIB as usize), false).await.unwrap();
    from.write_zeroes(5 * MIB, MIB, true, false).await.unwrap();
    for block in 0..200 {
        from.write(7 * MIB + block * 12_288, &noise(100 + block, 4096), false).await.unwrap();
    }
    from.write(SIZE - 512, &noise(7, 512), false).await.unwrap();
    (pool, from, to)
}

async fn all(disk: &DiskHandle) -> Vec<u8> {
    read(disk, 0, disk.size() as usize).await
}

/// Copies a range, and applies the copy to the model of the destination.
async fn copy(
    to: &DiskHandle,
    model: &mut [u8],
    offset: u64,
    from: &DiskHandle,
    source_offset: u64,
    len: u64,
) {
    let bytes = read(from, source_offset, len as usize).await;
    to.copy_from(offset, from, source_offset, len).await.unwrap();
    model[offset as usize..(offset + len) as usize].copy_from_slice(&bytes);
    assert!(read(to, offset, len as usize).await == bytes, "{len} bytes from {source_offset} to {offset}");
}

/// Whole blocks and parts, to the same offset and to others, at the ends, and ranges that cannot be copied by
/// reference.
const RANGES: [(u64, u64, u64); 10] = [
    (MIB, MIB, 9 * MIB),
    (3 * MIB, 2 * MIB, 4 * MIB),
    (5 * MIB + 4096, MIB, 2 * MIB),
    (512, 8192 + 512, 100_000),
    (600, 4096 + 600, 50_000),
    (9 * MIB, 512, 2 * MIB),
    (777, 10_000, 5000),
    (SIZE - 20_480, SIZE - 20_480, 20_480),
    (MIB, SIZE - 5 * 512, 5 * 512),
    (SIZE - 512 - 4096, 4096 - 512, 4608),
];

#[tokio::test]
async fn a_copy_has_the_contents_of_its_source() {
    let store = Arc::new(MemoryStore::new());
    let (pool, from, to) = pool(&store).await;
    let (mut model, source) = (all(&to).await, all(&from).await);
    for (n, (offset, source_offset, len)) in RANGES.into_iter().enumerate() {
        if n % 3 == 2 {
            pool.checkpoint().await.unwrap();
        }
        copy(&to, &mut model, offset, &from, source_offset, len).await;
        // Later writes take precedence.
        to.write(offset + len / 2, &[5; 300], false).await.unwrap();
        model[(offset + len / 2) as usize..][..300].fill(5);
    }
    assert!(all(&to).await == model && all(&from).await == source);
    to.flush().await.unwrap();
    let crashed = open(&left_by_crash(&store).await).await;
    let after = |pool: &Arc<Pool>, name| pool.attach(name).unwrap();
    assert!(all(&after(&crashed, "to")).await == model && all(&after(&crashed, "from")).await == source);

    // The copy does not depend on its source.
    from.discard(0, SIZE, false).await.unwrap();
    assert!(all(&to).await == model);
    drop((from, to));
    pool.delete("from").await.unwrap();
    pool.reclaim(&|_| ()).await.unwrap();
    pool.close().await.unwrap();
    assert_eq!(check(&store).await, Vec::<String>::new());
    let pool = open(&store).await;
    assert!(all(&after(&pool, "to")).await == model);
}

/// A commit changes the map while a part of the block is in the write buffer.
#[tokio::test]
async fn a_block_is_read_as_before_a_copy_or_as_after_it() {
    let store = Arc::new(MemoryStore::new());
    let (pool, from, to) = pool(&store).await;
    to.flush().await.unwrap();
    let (at, after) = (8 * 4096, read(&from, 7 * 4096, 4096).await);
    for round in 0..20 {
        to.write(at, &text(9, 4096), true).await.unwrap();
        to.write(at + 512, &noise(round, 512), false).await.unwrap();
        let before = read(&to, at, 4096).await;
        let copied = to.copy_from(4096, &from, 0, 3 * MIB);
        let reads = async {
            loop {
                let found = read(&to, at, 4096).await;
                assert!(found == before || found == after, "a mixture of both");
                if found == after {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::join!(async { copied.await.unwrap() }, reads);
    }
    drop((from, to));
    pool.close().await.unwrap();
}

#[tokio::test]
async fn holes_and_zeroes_stay_distinct_in_a_copy() {
    let store = Arc::new(MemoryStore::new());
    let (_pool, from, to) = pool(&store).await;
    for (offset, source) in [(0, 0), (MIB + 4096, 0)] {
        to.copy_from(offset, &from, source, 7 * MIB).await.unwrap();
        let (copy, original) = (
            to.extents(offset, 7 * MIB, 100).await.unwrap(),
            from.extents(source, 7 * MIB, 100).await.unwrap(),
        );
        assert_eq!(copy, original);
        assert_eq!(copy.len(), 4);
    }
}

#[tokio::test]
async fn ranges_are_copied_within_a_disk_unless_they_overlap() {
    let store = Arc::new(MemoryStore::new());
    let (_pool, from, _) = pool(&store).await;
    let mut model = all(&from).await;
    let again = from.clone();
    copy(&from, &mut model, 8 * MIB, &again, 0, 3 * MIB).await;
    copy(&from, &mut model, 0, &again, 2 * MIB, 2 * MIB).await;
    copy(&from, &mut model, 4 * MIB + 512, &again, 512, 4 * MIB).await;
    for (offset, source, len) in [(0, 0, 4096), (MIB, MIB + 4096, 8192), (8192, 0, 8193)] {
        let refused = from.copy_from(offset, &again, source, len).await;
        assert!(matches!(refused, Err(Error::Overlap)));
    }
    assert!(all(&from).await == model);
    from.copy_from(0, &again, 0, 0).await.unwrap();
}

#[tokio::test]
async fn invalid_copies_are_refused() {
    let store = Arc::new(MemoryStore::new());
    let (pool, from, to) = pool(&store).await;
    assert!(matches!(to.copy_from(SIZE - 4096, &from, 0, 8192).await, Err(Error::OutOfRange)));
    assert!(matches!(to.copy_from(0, &from, SIZE - 4096, 8192).await, Err(Error::OutOfRange)));
    assert!(matches!(to.copy_from(u64::MAX, &from, 0, 8192).await, Err(Error::OutOfRange)));
    pool.create_snapshot("from", "s").await.unwrap();
    let snapshot = pool.attach("from@s").unwrap();
    assert!(matches!(snapshot.copy_from(0, &to, 0, 4096).await, Err(Error::ReadOnly(_))));
    from.discard(0, SIZE, false).await.unwrap();
    to.copy_from(0, &snapshot, 0, MIB).await.unwrap();
    assert!(read(&to, 0, MIB as usize).await == noise(1, 3 * MIB as usize)[..MIB as usize]);
}

/// Blocks of one dedup domain are not shared with another; and a desktop's writes are not in its map.
#[tokio::test]
async fn blocks_that_must_not_be_shared_are_copied_by_reading() {
    let store = Arc::new(MemoryStore::new());
    let (pool, from, _) = pool(&store).await;
    pool.create_volume("other", SIZE, SyncMode::Flush, 1).await.unwrap();
    pool.create_snapshot("from", "s").await.unwrap();
    let desktop = CloneRequest { write_cache: 64 << 20, sync: SyncMode::Never, ..clone("desktop") };
    pool.clone_disk("from@s", &[desktop]).await.unwrap();
    let (other, desktop) = (pool.attach("other").unwrap(), pool.attach("desktop").unwrap());
    let before = pool.stats().await.reduction.new_blocks;
    let mut model = vec![0; SIZE as usize];
    copy(&other, &mut model, 0, &from, 0, 4 * MIB).await;
    assert!(pool.stats().await.reduction.new_blocks - before >= 3 * MIB / 4096);
    desktop.write(MIB, &noise(55, MIB as usize), false).await.unwrap();
    let mut model = all(&from).await;
    copy(&from, &mut model, 4 * MIB, &desktop, MIB, MIB).await;
    let mut model = all(&desktop).await;
    copy(&desktop, &mut model, 8 * MIB, &from, 0, MIB).await;
    assert!(all(&desktop).await == model);
}

#[tokio::test]
async fn a_gigabyte_is_copied_by_reference() {
    const GIB: u64 = 1 << 30;
    let config = PoolConfig {
        segment_bytes: 8 << 20,
        checkpoint_bytes: 1 << 30,
        reclaim_pause: Duration::from_secs(3600),
        ..config()
    };
    let store = Arc::new(MemoryStore::new());
    let pool = open_with(&store, config.clone()).await;
    for name in ["from", "to"] {
        pool.create_volume(name, 2 * GIB, SyncMode::Flush, 0).await.unwrap();
    }
    let from = pool.attach("from").unwrap();
    for n in 0..1024 {
        from.write(n * MIB, &vec![n as u8 | 1; MIB as usize], false).await.unwrap();
    }
    from.flush().await.unwrap();
    drop(from);
    pool.close().await.unwrap();
    let pool = open_with(&store, config).await;
    let (from, to) = (pool.attach("from").unwrap(), pool.attach("to").unwrap());
    for offset in [0, 8 * MIB, 12_288] {
        let (before, begin) = (pool.stats().await.store.write.bytes, Instant::now());
        to.copy_from(offset, &from, 0, GIB).await.unwrap();
        let written = pool.stats().await.store.write.bytes - before;
        println!("to {offset}: {written} bytes written, {:?}", begin.elapsed());
        assert!(written < MIB, "{written} bytes written");
        for n in (0..1024).step_by(77) {
            assert_eq!(read(&to, offset + n * MIB, 5000).await, vec![n as u8 | 1; 5000]);
        }
    }
    drop((from, to));
    pool.close().await.unwrap();
    assert_eq!(check(&store).await, Vec::<String>::new());
}

/// Sources are overwritten and deleted while their contents are copied, and during a mark.
#[tokio::test]
async fn copies_survive_a_concurrent_reclaim() {
    let store = Arc::new(MemoryStore::new());
    let (pool, from, to) = pool(&store).await;
    let mut model = all(&to).await;
    let gc = async {
        for _ in 0..12 {
            pool.reclaim(&|_| ()).await.unwrap();
        }
    };
    let copies = async {
        for n in 0..60 {
            let (at, len) = (n * 150_000 / 4096 * 4096, 300_000);
            from.write(at, &noise(1000 + n, len as usize), false).await.unwrap();
            let shift = [0, MIB, 4096][n as usize % 3];
            copy(&to, &mut model, at + shift, &from, at, len).await;
            from.discard(at, len, n % 2 == 0).await.unwrap();
            tokio::task::yield_now().await;
        }
    };
    tokio::join!(gc, copies);
    drop((from, to));
    pool.delete("from").await.unwrap();
    pool.reclaim(&|_| ()).await.unwrap();
    assert!(all(&pool.attach("to").unwrap()).await == model);
    pool.close().await.unwrap();
    assert_eq!(check(&store).await, Vec::<String>::new());
    assert!(all(&open(&store).await.attach("to").unwrap()).await == model);
}

/// The block that the end of a disk cuts off, while the disk grows: what is written to its new part stays.
#[tokio::test]
async fn a_request_up_to_the_end_spares_what_is_written_after_a_growth() {
    const END: u64 = 10 * 4096 + 512;
    let rest = noise(3, 4096 - 512);
    for (seed, kind) in (0..60).flat_map(|seed| [(seed, 0), (seed, 1), (seed, 2)]) {
        let store = forebay_store::FaultyStore::new(seed);
        store.set_delay(4);
        let pool = open_with(&store, PoolConfig { map_cache: 0, ..config() }).await;
        for name in ["from", "to"] {
            pool.create_volume(name, END, SyncMode::Flush, 0).await.unwrap();
            let disk = pool.attach(name).unwrap();
            disk.write(0, &noise(1, END as usize), true).await.unwrap();
        }
        let (from, to) = (pool.attach("from").unwrap(), pool.attach("to").unwrap());
        let request = async {
            for _ in 0..seed {
                tokio::task::yield_now().await;
            }
            match kind {
                0 => to.copy_from(0, &from, 0, END).await,
                // The part of the first block is written before the others are zeroed.
                1 => to.write_zeroes(512, END - 512, false, false).await,
                _ => to.discard(4096, END - 4096, false).await,
            }
        };
        let grow = async {
            pool.resize("to", 2 * END).await.unwrap();
            to.write(END, &rest, false).await.unwrap();
            to.flush().await.unwrap();
        };
        let (done, ()) = tokio::join!(request, grow);
        done.unwrap();
        assert!(read(&to, END, rest.len()).await == rest, "kind {kind}, seed {seed}: newer data is lost");
    }
}
