//! A store that is short of space, in virtual time: writers continue as long as there is garbage, and are
//! rejected in bounded time if there is none.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use crate::one_disk::{BLOCK, LIMIT, MIB, World, Writer};
use forebay_engine::{Error, Host, SyncMode};
use forebay_store::{Fault, FaultyOp, FaultyStore, When};

/// Four guests overwrite `percent` of the usable space of the pool for a minute, with concurrent snapshots.
fn churn(percent: u64) {
    let mut world = World::new(percent);
    // The reserve is two segments and twice the buffer: 6 MiB.
    let blocks = (LIMIT - 6 * MIB) * percent / 100 / BLOCK / 4;
    let mut writers: Vec<Writer> = (0..4).map(|n| world.volume(n, blocks)).collect();
    let (refused, until) = (Rc::new(Cell::new(0)), world.exec.now() + Duration::from_secs(60));
    let (before, begin) = (writers.iter().map(|w| w.written).sum::<u64>(), world.exec.now());
    let stats = world.pool.clone();
    let moved_before = world.long(async move { stats.stats().await.moved_bytes });
    world.snapshots(4, until, &refused);
    let (done, results) = (Rc::new(Cell::new(0)), Rc::new(std::cell::RefCell::new(Vec::new())));
    for mut writer in writers.drain(..) {
        let (done, results) = (done.clone(), results.clone());
        world.exec.spawn("guest", async move {
            let result = writer.overwrite(until).await;
            results.borrow_mut().push((writer, result));
            done.set(done.get() + 1);
        });
    }
    let host = world.exec.host();
    world.long(async move {
        while done.get() < 4 {
            host.sleep(Duration::from_millis(100)).await;
        }
        host.sleep(Duration::from_secs(3)).await;
    });
    let ended: Vec<_> = results.borrow_mut().drain(..).collect();
    let written = ended.iter().map(|(w, _)| w.written).sum::<u64>() - before;
    let longest = ended.iter().map(|(w, _)| w.longest).max().unwrap_or_default();
    let (stats, took) = (world.pool.clone(), world.exec.now() - begin);
    let stats = world.long(async move { stats.stats().await });
    println!(
        "{percent} % live: {} MiB written in {took:?}, {:.2} bytes moved for each, longest write {longest:?}",
        written / MIB,
        (stats.moved_bytes - moved_before) as f64 / written as f64,
    );
    for (writer, result) in ended {
        assert!(result.is_ok(), "{} at {percent} %: {result:?}", writer.disk.name());
        world.long(async move { writer.verify().await });
    }
    assert_eq!(refused.get(), 0, "snapshots refused");
    assert!(written > 32 * MIB, "only {} MiB were written in a minute", written / MIB);
    world.check();
}

#[test]
fn writers_continue_with_60_percent_live_data() {
    churn(60);
}

#[test]
fn writers_continue_with_80_percent_live_data() {
    churn(80);
}

/// Fills a pool with live data; with `churn`, snapshots are created and deleted at the same time. The
/// rejection occurs in bounded time, and space that is freed is used immediately.
fn fill_up(churn: bool) {
    let mut world = World::new(7);
    let mut writer = world.volume(0, 4 * LIMIT / BLOCK / 64);
    let (pool, host) = (world.pool.clone(), world.exec.host());
    let blocks = 2 * LIMIT / BLOCK;
    let (refused, end) = (Rc::new(Cell::new(0)), world.exec.now() + Duration::from_secs(240));
    if churn {
        world.snapshots(1, end, &refused);
    }
    world.long(async move {
        pool.create_volume("large", blocks * BLOCK, SyncMode::Flush, 0).await.expect("room for a name");
        let mut large = Writer::new(pool.attach("large").expect("it is there"), host.clone(), 1, blocks);
        let mut block = 0;
        let (refused, waited) = loop {
            let begin = host.now();
            let mut result = large.write(block, 64).await;
            if result.is_ok() {
                result = large.disk.flush().await;
            }
            block += 64;
            if let Err(e) = result {
                break (e, host.now() - begin);
            }
            assert!(block < blocks, "more data fits than the pool has space for");
        };
        assert!(matches!(refused, Error::NoSpace), "{refused}");
        println!("{} MiB fit; the refusal took {waited:?}", block * BLOCK / MIB);
        assert!(block * BLOCK > LIMIT * 3 / 4, "refused at {} MiB", block * BLOCK / MIB);
        assert!(waited < Duration::from_secs(60), "the refusal took {waited:?}");
        // A quarter of it is discarded.
        large.disk.discard(0, block / 4 * BLOCK, false).await.expect("discards need no room");
        let begin = host.now();
        for block in (0..64).step_by(16) {
            while let Err(e) = writer.write(block, 16).await {
                assert!(matches!(e, Error::NoSpace), "{e}");
                assert!(host.now() - begin < Duration::from_secs(60), "freed space is not used");
                host.sleep(Duration::from_millis(100)).await;
            }
        }
        writer.disk.flush().await.expect("there is room");
        writer.verify().await;
    });
    let host = world.exec.host();
    world.long(async move {
        while host.now() < end + Duration::from_secs(3) && churn {
            host.sleep(Duration::from_secs(1)).await;
        }
    });
    world.check();
}

#[test]
fn a_pool_full_of_live_data_rejects_writes_in_bounded_time() {
    fill_up(false);
}

#[test]
fn repeated_snapshots_do_not_delay_a_rejection_without_bound() {
    fill_up(true);
}

/// A commit that found no space is retried when a reclaim may help; neither the flush nor the snapshot that
/// waits for it fails.
#[test]
fn a_flush_that_waits_for_a_commit_without_space_succeeds_after_a_reclaim() {
    let faults = FaultyStore::new(3);
    faults.set_capacity(LIMIT);
    let mut world = World::on(3, faults.clone());
    let mut writer = world.volume(0, 4 * MIB / BLOCK);
    let host = world.exec.host();
    let pool = world.pool.clone();
    world.long(async move {
        for n in 0..4 {
            // Overwritten data is garbage, so a reclaim is worthwhile.
            writer.overwrite(host.now() + Duration::from_secs(1)).await.expect("there is room");
            faults.inject(FaultyOp::Append, Fault::Full, When::After(0));
            writer.write(n, 4).await.expect("the buffer has room");
            writer.disk.flush().await.expect("the flush waits for the reclaim");
            writer.overwrite(host.now() + Duration::from_secs(1)).await.expect("there is room");
            faults.inject(FaultyOp::Append, Fault::Full, When::After(0));
            pool.create_snapshot("v0", &format!("s{n}")).await.expect("the snapshot waits as well");
        }
        writer.verify().await;
    });
    world.check();
}
