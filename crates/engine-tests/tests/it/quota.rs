//! Quotas of tenants: what counts, what is refused, and that the count stays exact.

use std::sync::Arc;
use std::time::Duration;

use crate::common::*;
use forebay_engine::{
    CloneRequest, DiskHandle, DiskLimits, Error, Fast, Limits, Pool, PoolConfig, Result, Room, SyncMode,
    TenantUsage,
};
use forebay_store::MemoryStore;

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
/// What a snapshot counts, apart from the blocks that only it keeps.
const SNAPSHOT: u64 = 16 * BLOCK;

fn quota(bytes: u64) -> Limits {
    Limits { quota: Some(bytes), ..Limits::default() }
}

fn join(pool: &Pool, disk: &str, tenant: &str) {
    let limits = DiskLimits { tenant: Some(tenant.into()), limits: Limits::default() };
    pool.set_limits(disk, &limits).unwrap();
}

fn usage(pool: &Pool, tenant: &str) -> TenantUsage {
    pool.tenants().into_iter().find(|t| t.name == tenant).unwrap().usage.unwrap()
}

/// Bytes used, when all volumes are counted.
async fn used(pool: &Pool, tenant: &str) -> u64 {
    for _ in 0..1000 {
        let usage = usage(pool, tenant);
        if usage.counting == 0 {
            return usage.used_bytes;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the volumes were not counted");
}

/// Counts again, from the maps.
async fn recounted(pool: &Pool, tenant: &str) -> u64 {
    let limits = pool.tenants().into_iter().find(|t| t.name == tenant).unwrap().limits;
    pool.set_tenant_limits(tenant, Limits { quota: None, ..limits });
    pool.set_tenant_limits(tenant, limits);
    used(pool, tenant).await
}

async fn write(disk: &DiskHandle, block: u64, number: u64) -> Result<()> {
    disk.write(block * BLOCK, &noise(number, BLOCK as usize), false).await
}

fn is_refused(result: Result<()>) -> bool {
    match result {
        Err(Error::OverQuota { tenant, .. }) => tenant == "t",
        other => panic!("{other:?} instead of a refusal"),
    }
}

async fn volume(pool: &Pool, name: &str, tenant: &str) -> Arc<DiskHandle> {
    pool.create_volume(name, 8 * MIB, SyncMode::Flush, 0).await.unwrap();
    join(pool, name, tenant);
    pool.attach(name).unwrap()
}

#[tokio::test]
async fn a_tenant_cannot_grow_beyond_its_quota() {
    let pool = open(&Arc::new(MemoryStore::new())).await;
    let (a, b) = (volume(&pool, "a", "t").await, volume(&pool, "b", "t").await);
    let other = volume(&pool, "other", "u").await;
    pool.set_tenant_limits("t", quota(10 * BLOCK));
    pool.set_tenant_limits("u", quota(10 * BLOCK));
    for n in 0..5 {
        write(&a, n, n).await.unwrap();
        write(&b, n, 10 + n).await.unwrap();
    }
    assert_eq!((used(&pool, "t").await, b.room(), other.room()), (10 * BLOCK, Room::Full, Room::Ok));
    // Whether in the buffer or committed, with or without waiting.
    for _ in 0..2 {
        assert!(is_refused(write(&a, 5, 20).await));
        assert!(is_refused(a.try_write(5 * BLOCK, &noise(20, 4096)).map(drop)));
        assert!(is_refused(
            a.update(5 * BLOCK, 10, false, |b| {
                b.fill(1);
                std::ops::ControlFlow::<()>::Continue(())
            })
            .await
            .map(drop)
        ));
        assert!(is_refused(a.write(4 * BLOCK, &noise(21, 3 * 4096), false).await));
        assert_eq!(read(&a, 4 * BLOCK, 8192).await[4096..], [0; 4096], "a refused write changes nothing");
        write(&other, 5, 22).await.unwrap();
        a.flush().await.unwrap();
        pool.flush().await.unwrap();
    }
    assert!(usage(&pool, "t").refused >= 8);
    // Overwrites, zeroes and discards are accepted.
    write(&a, 4, 23).await.unwrap();
    assert_eq!(b.try_write(0, &noise(24, 4096)).unwrap(), Fast::Done);
    a.write(6 * BLOCK, &[0; 8192], false).await.unwrap();
    a.write_zeroes(7 * BLOCK, BLOCK, true, false).await.unwrap();
    a.discard(6 * BLOCK + 512, 2 * BLOCK, false).await.unwrap();
    a.write_zeroes(9 * BLOCK + 512, 3 * BLOCK, true, false).await.unwrap();
    assert_eq!(used(&pool, "t").await, 10 * BLOCK);
    // A discard of one volume makes room for the other.
    a.discard(0, 2 * BLOCK, false).await.unwrap();
    assert_eq!(used(&pool, "t").await, 8 * BLOCK);
    b.write(5 * BLOCK, &noise(25, 2 * 4096), true).await.unwrap();
    assert!(is_refused(write(&b, 7, 26).await));
    // Zeroes free what they replace, in the same request as data.
    let mut both = noise(27, 4 * 4096);
    both[..4096].fill(0);
    assert!(is_refused(b.write(5 * BLOCK, &both, false).await), "two more, one less");
    b.write(4 * BLOCK, &[0; 4096], false).await.unwrap();
    b.write(5 * BLOCK, &both, false).await.unwrap();
    assert_eq!(used(&pool, "t").await, 10 * BLOCK);
    assert_eq!(recounted(&pool, "t").await, 10 * BLOCK, "with writes in the buffers");
    // A smaller quota refuses growth only, a larger one admits it.
    pool.set_tenant_limits("t", quota(BLOCK));
    assert!(is_refused(write(&b, 9, 28).await));
    write(&b, 8, 29).await.unwrap();
    pool.set_tenant_limits("t", quota(11 * BLOCK));
    write(&b, 9, 30).await.unwrap();
    pool.set_tenant_limits("t", Limits::default());
    write(&b, 20, 31).await.unwrap();
    assert_eq!(pool.tenants()[0].usage, None);
}

#[tokio::test]
async fn a_clone_counts_what_it_does_not_share_with_its_origin() {
    let pool = open(&Arc::new(MemoryStore::new())).await;
    let golden = volume(&pool, "golden", "vendor").await;
    golden.write(0, &noise(1, 2 * MIB as usize), false).await.unwrap();
    pool.create_image("image", "golden").await.unwrap();
    pool.clone_disk("image", &[clone("c")]).await.unwrap();
    join(&pool, "c", "t");
    pool.set_tenant_limits("t", quota(8 * BLOCK));
    let c = pool.attach("c").unwrap();
    assert_eq!(used(&pool, "t").await, 0);
    c.discard(0, 4 * BLOCK, false).await.unwrap();
    assert_eq!(used(&pool, "t").await, 0, "what it shared was not counted");
    for block in 0..8 {
        write(&c, block, 50 + block).await.unwrap();
    }
    assert!(is_refused(write(&c, 9, 60).await), "an overwrite of a shared block is growth");
    // A snapshot counts, and so does what only it keeps.
    assert!(is_refused(pool.create_snapshot("c", "s").await.map(drop)));
    pool.set_tenant_limits("t", quota(14 * BLOCK + SNAPSHOT));
    pool.create_snapshot("c", "s").await.unwrap();
    assert_eq!(used(&pool, "t").await, 8 * BLOCK + SNAPSHOT);
    for number in [70, 80] {
        for block in 0..6 {
            write(&c, block, number + block).await.unwrap();
        }
        assert_eq!(used(&pool, "t").await, 14 * BLOCK + SNAPSHOT, "the first overwrite of each block counts");
    }
    assert!(is_refused(write(&c, 7, 90).await));
    for checkpoint in [false, true] {
        if checkpoint {
            pool.checkpoint().await.unwrap();
        }
        assert_eq!(recounted(&pool, "t").await, 14 * BLOCK + SNAPSHOT);
    }
    c.discard(6 * BLOCK, 2 * BLOCK, false).await.unwrap();
    assert_eq!(used(&pool, "t").await, 14 * BLOCK + SNAPSHOT, "the snapshot keeps what is discarded");
    c.discard(0, 3 * BLOCK, false).await.unwrap();
    assert_eq!(used(&pool, "t").await, 11 * BLOCK + SNAPSHOT);
    // A rollback counts again.
    drop(c);
    pool.rollback("c", "s").await.unwrap();
    assert_eq!(used(&pool, "t").await, 8 * BLOCK + SNAPSHOT);
    pool.reset("c").await.unwrap();
    assert_eq!(used(&pool, "t").await, 8 * BLOCK + SNAPSHOT);
    // A clone of the snapshot begins with nothing, one of the volume with all that it maps.
    pool.clone_disk("c@s", &[clone("d")]).await.unwrap();
    join(&pool, "d", "t");
    assert_eq!(used(&pool, "t").await, 8 * BLOCK + SNAPSHOT);
    join(&pool, "golden", "t");
    assert_eq!(used(&pool, "t").await, 2 * MIB + 8 * BLOCK + SNAPSHOT);
    join(&pool, "golden", "vendor");
    assert_eq!(used(&pool, "t").await, 8 * BLOCK + SNAPSHOT);
    pool.delete("d").await.unwrap();
    pool.delete("c@s").await.unwrap();
    assert_eq!(used(&pool, "t").await, 0, "the reset volume occupies nothing");
}

/// Overwrites and snapshots by turns, as an operator of the tenant may make them, end at the quota.
#[tokio::test]
async fn snapshots_do_not_fill_the_store_beyond_the_quota() {
    let pool = open(&Arc::new(MemoryStore::new())).await;
    let disk = volume(&pool, "v", "t").await;
    pool.set_tenant_limits("t", quota(4 * MIB));
    let mut rounds = 0;
    let refused = loop {
        assert!(rounds < 100, "{} bytes are used", used(&pool, "t").await);
        let written = disk.write(0, &noise(rounds, MIB as usize / 2), true).await;
        let made = match written {
            Ok(()) => pool.create_snapshot("v", &format!("s{rounds}")).await.map(drop),
            Err(e) => Err(e),
        };
        if let Err(e) = made {
            break e;
        }
        rounds += 1;
    };
    assert!(matches!(refused, Error::OverQuota { .. }), "{refused}");
    assert!((6..8).contains(&rounds), "refused in round {rounds}");
    let full = used(&pool, "t").await;
    assert_eq!(recounted(&pool, "t").await, full);
    // Without any data, too.
    while pool.create_snapshot("v", &format!("s{rounds}")).await.is_ok() {
        rounds += 1;
        assert!(rounds < 100);
    }
    for round in 0..rounds {
        pool.delete(&format!("v@s{round}")).await.unwrap();
    }
    assert_eq!(used(&pool, "t").await, MIB / 2);
    disk.write(MIB, &noise(7, MIB as usize), true).await.unwrap();
}

#[tokio::test]
async fn the_count_of_snapshots_equals_the_maps_after_any_history() {
    for seed in 0..8 {
        let store = Arc::new(MemoryStore::new());
        let pool = open(&store).await;
        let disk = volume(&pool, "v", "t").await;
        pool.set_tenant_limits("t", quota(1 << 40));
        let mut random: u64 = seed * 977 + 1;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let mut snapshots = Vec::new();
        for step in 0..300 {
            let (block, most) = (next(2000), if next(4) == 0 { 300 } else { 8 });
            let (offset, len) = (block * BLOCK, (1 + next(most)).min(2048 - block) * BLOCK);
            match next(12) {
                0..5 => disk.write(offset, &noise(1000 * seed + step, len as usize), false).await.unwrap(),
                5 | 6 => disk.discard(offset, len, false).await.unwrap(),
                7 => disk.write_zeroes(offset, len, true, false).await.unwrap(),
                8 => pool.flush().await.unwrap(),
                9 => pool.checkpoint().await.unwrap(),
                10 => {
                    pool.create_snapshot("v", &format!("s{step}")).await.unwrap();
                    snapshots.push(step);
                }
                _ if snapshots.len() > 2 => {
                    let gone = snapshots.remove(next(snapshots.len() as u64) as usize);
                    pool.delete(&format!("v@s{gone}")).await.unwrap();
                }
                _ => {}
            }
            if step % 50 == 49 {
                let before = used(&pool, "t").await;
                assert_eq!(recounted(&pool, "t").await, before, "seed {seed}, step {step}");
            }
        }
        let before = used(&pool, "t").await;
        drop(disk);
        pool.close().await.unwrap();
        let pool = open(&store).await;
        join(&pool, "v", "t");
        pool.set_tenant_limits("t", quota(1 << 40));
        assert_eq!(used(&pool, "t").await, before, "seed {seed}, after a restart");
    }
}

/// Whatever happens, the count is what a new count from the maps finds, and all acknowledged writes are kept.
#[tokio::test]
async fn the_count_equals_the_maps_after_any_history() {
    for seed in 0..12 {
        let store = Arc::new(MemoryStore::new());
        let config = || PoolConfig { write_buffer: 256 << 10, map_cache: 64 << 10, ..config() };
        let pool = open_with(&store, config()).await;
        let image = volume(&pool, "image", "vendor").await;
        image.write(MIB, &noise(1, 2 * MIB as usize), false).await.unwrap();
        pool.create_snapshot("image", "s").await.unwrap();
        let names = ["a", "b", "desktop"];
        let desktop = CloneRequest { write_cache: MIB, ..clone("desktop") };
        pool.clone_disk("image@s", &[clone("a"), clone("b"), desktop]).await.unwrap();
        names.iter().for_each(|name| join(&pool, name, "t"));
        pool.set_tenant_limits("t", quota(3 * MIB));
        let mut disks: Vec<_> = names.iter().map(|name| pool.attach(name).unwrap()).collect();
        let mut random: u64 = seed * 977 + 1;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        for step in 0..400 {
            let n = next(3) as usize;
            let (block, most) = (next(1024), if next(4) == 0 { 300 } else { 8 });
            let len = 1 + next(most);
            let (offset, len) = (block * BLOCK, len.min(2048 - block) * BLOCK);
            let disk = &disks[n];
            let allowed = |result: Result<()>| match result {
                Ok(()) | Err(Error::OverQuota { .. }) => {}
                other => panic!("{other:?}"),
            };
            match next(16) {
                0..6 => allowed(disk.write(offset, &noise(1000 * seed + step, len as usize), false).await),
                6 => disk.write(offset, &vec![0; len as usize], false).await.unwrap(),
                7 => allowed(disk.write(offset + 512, &noise(step, len as usize - 512), false).await),
                8 | 9 => disk.discard(offset, len, false).await.unwrap(),
                10 => disk.write_zeroes(offset, len, true, false).await.unwrap(),
                11 => disk.flush().await.unwrap(),
                12 => pool.checkpoint().await.unwrap(),
                13 => {
                    let to = next(1024) * BLOCK;
                    allowed(disk.copy_from(to, &disks[(n + 1) % 3], offset, len).await);
                }
                14 => tokio::task::yield_now().await,
                _ if n < 2 && step % 5 == 0 => {
                    disks.remove(n);
                    pool.reset(names[n]).await.unwrap();
                    disks.insert(n, pool.attach(names[n]).unwrap());
                }
                _ => {}
            }
            assert!(usage(&pool, "t").used_bytes <= 3 * MIB, "step {step}");
        }
        let before = used(&pool, "t").await;
        assert_eq!(recounted(&pool, "t").await, before, "seed {seed}, with buffers");
        pool.flush().await.unwrap();
        pool.checkpoint().await.unwrap();
        assert_eq!(recounted(&pool, "t").await, before, "seed {seed}, from the maps");
        pool.resize("a", 12 * MIB).await.unwrap();
        let contents = read(&disks[0], 0, 8 * MIB as usize).await;
        drop(disks);
        pool.resize("a", MIB / 2).await.unwrap();
        let shrunk = used(&pool, "t").await;
        assert_eq!(recounted(&pool, "t").await, shrunk, "seed {seed}, after shrinking");
        pool.close().await.unwrap();

        let pool = open_with(&store, config()).await;
        names[..2].iter().for_each(|name| join(&pool, name, "t"));
        pool.set_tenant_limits("t", quota(MIB));
        let a = pool.attach("a").unwrap();
        assert!(read(&a, 0, MIB as usize / 2).await == contents[..MIB as usize / 2]);
        assert!(used(&pool, "t").await <= shrunk, "seed {seed}: the desktop was reset");
    }
}

/// Writers of many volumes at the edge of the quota never exceed it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_writers_do_not_exceed_the_quota() {
    let pool = open(&Arc::new(MemoryStore::new())).await;
    let disks: Vec<_> = {
        let mut disks = Vec::new();
        for n in 0..4 {
            disks.push(volume(&pool, &format!("v{n}"), "t").await);
        }
        disks
    };
    pool.set_tenant_limits("t", quota(100 * BLOCK));
    let tasks: Vec<_> = (0..16u64)
        .map(|n| {
            let (disk, pool) = (disks[n as usize % 4].clone(), pool.clone());
            tokio::spawn(async move {
                let mut written = 0;
                for i in 0..200 {
                    let block = (n / 4) * 200 + i;
                    match write(&disk, block, n * 1000 + i).await {
                        Ok(()) => written += 1,
                        Err(Error::OverQuota { .. }) if i % 3 == 0 => {
                            disk.discard((n / 4) * 200 * BLOCK, 200 * BLOCK, false).await.unwrap();
                        }
                        Err(Error::OverQuota { .. }) => {}
                        other => panic!("{other:?}"),
                    }
                    assert!(usage(&pool, "t").used_bytes <= 100 * BLOCK);
                }
                written
            })
        })
        .collect();
    let mut written = 0;
    for task in tasks {
        written += task.await.unwrap();
    }
    assert!(written > 100, "discards made room: {written}");
    let before = used(&pool, "t").await;
    assert_eq!(recounted(&pool, "t").await, before);
}

/// A volume that is written while it is counted has the right count in the end.
#[tokio::test]
async fn writes_during_a_count_are_counted_once() {
    let pool = open_with(&Arc::new(MemoryStore::new()), cold_config()).await;
    let v = volume(&pool, "v", "t").await;
    for n in 0..8 {
        v.write(n * MIB, &noise(n, MIB as usize), true).await.unwrap();
    }
    pool.checkpoint().await.unwrap();
    pool.set_tenant_limits("t", quota(64 * MIB));
    for n in 0..64u64 {
        v.discard(n * 31 * BLOCK, BLOCK, false).await.unwrap();
        write(&v, n * 7 + 1, 100 + n).await.unwrap();
        if n % 5 == 0 {
            pool.flush().await.unwrap();
        }
        tokio::task::yield_now().await;
    }
    let before = used(&pool, "t").await;
    pool.flush().await.unwrap();
    assert_eq!(recounted(&pool, "t").await, before);
}
