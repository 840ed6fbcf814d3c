//! Retained memory and the log: what is in both is applied once, what is in one is never lost.

use std::sync::Arc;
use std::time::Duration;

use forebay_engine::{Error, Host, Mutation, Pool, PoolConfig, SyncMode};
use forebay_sim::{MemoryFate, Ran, Round, attempt};
use forebay_store::{Crash, Fault, FaultyOp, When};

const BLOCK: usize = 4096;
const BLOCKS: usize = 128;

/// A round without other clients, whose log has room for few batches in a segment.
fn round(mutation: Mutation) -> Round {
    let mut round = Round::new(1, None);
    round.medium.faults().set_delay(4);
    round.plan.pool = PoolConfig {
        read_cache: 1 << 20,
        map_cache: 1 << 20,
        write_buffer: 4 << 20,
        segment_bytes: 256 << 10,
        learn_classes: false,
        compress: false,
        mutation,
        ..PoolConfig::default()
    };
    round
}

/// Blocks of which each is filled with one byte.
fn blocks(byte: u8) -> Vec<u8> {
    vec![byte; BLOCKS * BLOCK]
}

fn kill(round: &mut Round, pool: Arc<Pool>) {
    round.exec.end_process(MemoryFate::Kept);
    round.medium.faults().clear_faults();
    round.medium.faults().set_capacity(1 << 40);
    round.medium.crash(Crash::Kill);
    round.exec.kill_tasks();
    drop(pool);
}

fn contents(round: &mut Round) -> Vec<u8> {
    let pool = round.open();
    round.exec.finish(async move {
        let disk = pool.attach("v").unwrap();
        let mut data = blocks(0xee);
        disk.read(0, &mut data).await.unwrap();
        data
    })
}

/// Kills a rollback of a volume with buffered writes after `steps` steps. Returns whether it had ended.
fn roll_back_until(steps: u64, mutation: Mutation) -> bool {
    let mut round = round(mutation);
    let pool = round.open();
    let working = pool.clone();
    round.exec.finish(async move {
        working.create_volume("v", (BLOCKS * BLOCK) as u64, SyncMode::Flush, 0).await.unwrap();
        let disk = working.attach("v").unwrap();
        disk.write(0, &blocks(1), false).await.unwrap();
        working.create_snapshot("v", "s").await.unwrap();
        disk.write(0, &blocks(2), false).await.unwrap();
        disk.flush().await.unwrap();
        // These are in the same group as the rollback.
        disk.write(0, &[3; BLOCK], false).await.unwrap();
        disk.write_zeroes(4 * BLOCK as u64, 2 * BLOCK as u64, true, false).await.unwrap();
    });
    let before = {
        let mut data = blocks(2);
        data[..BLOCK].fill(3);
        data[4 * BLOCK..6 * BLOCK].fill(0);
        data
    };
    // A separate sync has more steps, at which the rollback can be killed.
    round.medium.faults().set_syncs_appends(false);
    let rolling = pool.clone();
    let ran = round.exec.run(async move { rolling.rollback("v", "s").await }, steps);
    kill(&mut round, pool);
    let found = contents(&mut round);
    match ran {
        Ran::Done(result) => {
            result.unwrap();
            assert!(found == blocks(1), "the rollback is undone");
            true
        }
        Ran::OutOfSteps => {
            assert!(found == blocks(1) || found == before, "half a rollback after {steps} steps");
            false
        }
    }
}

#[test]
fn a_rollback_that_is_killed_is_made_or_not_made() {
    let mut steps = 1;
    while !roll_back_until(steps, Mutation::None) {
        steps += 1;
    }
    println!("the rollback took {steps} steps");
    let broken = (1..=steps).find(|n| attempt(*n, || roll_back_until(*n, Mutation::IgnoreCover)).is_err());
    assert!(broken.is_some(), "records that are in the log were applied again, and nothing was wrong");
}

/// Writes for which the store has no room, then a checkpoint, for which it has, and which is killed after
/// `steps` steps. Returns whether the checkpoint had ended, and whether the writes are there after the kill.
fn give_up_a_group(steps: u64, mutation: Mutation) -> (bool, bool) {
    let mut round = round(mutation);
    let pool = round.open();
    let working = pool.clone();
    round.exec.finish(async move {
        working.create_volume("v", (BLOCKS * BLOCK) as u64, SyncMode::Flush, 0).await.unwrap();
        let disk = working.attach("v").unwrap();
        disk.write(0, &blocks(1), false).await.unwrap();
        disk.flush().await.unwrap();
        for block in 0..BLOCKS {
            // No two blocks are equal, so that all have to be stored.
            disk.write((block * BLOCK) as u64, &[100 + block as u8; BLOCK], false).await.unwrap();
        }
    });
    let used: u64 = {
        let store = round.medium.store();
        round.exec.finish(async move { store.list().await.unwrap().iter().map(|o| o.len).sum() })
    };
    round.medium.faults().set_capacity(used + 4 * BLOCK as u64);
    let working = pool.clone();
    round.exec.finish(async move {
        let disk = working.attach("v").unwrap();
        // The last reclaim may end the first one; the second one ends when the group is given up.
        for _ in 0..2 {
            assert!(disk.flush().await.is_err(), "there is room for the writes");
        }
    });
    round.medium.faults().set_capacity(1 << 40);
    let working = pool.clone();
    let ran = round.exec.run(async move { working.checkpoint().await.unwrap() }, steps);
    kill(&mut round, pool);
    let found = contents(&mut round);
    let kept = (0..BLOCKS).all(|block| found[block * BLOCK] == 100 + block as u8);
    (matches!(ran, Ran::Done(())), kept)
}

#[test]
fn a_group_that_is_given_up_stays_in_memory() {
    let mut steps = 1;
    loop {
        let (ended, kept) = give_up_a_group(steps, Mutation::None);
        assert!(kept, "writes are lost after {steps} steps");
        if ended {
            break;
        }
        steps += 1;
    }
    // The group is written again while the checkpoint is made, but not at once.
    let lost = (1..=steps).find(|steps| !give_up_a_group(*steps, Mutation::KeepCover).1);
    assert!(lost.is_some(), "the cover of a group that was given up has no effect");
}

/// The reads of a commit fail while a checkpoint waits for the log. Returns whether the writes are there
/// after a kill.
fn fail_a_group(mutation: Mutation) -> bool {
    let mut round = round(mutation);
    round.plan.pool.read_cache = 0;
    let (pool, host) = (round.open(), round.exec.host());
    let working = pool.clone();
    round.exec.finish(async move {
        working.create_volume("v", (BLOCKS * BLOCK) as u64, SyncMode::Flush, 0).await.unwrap();
        let disk = working.attach("v").unwrap();
        disk.write(0, &blocks(1), false).await.unwrap();
        disk.flush().await.unwrap();
        disk.write(0, &[2; BLOCK], false).await.unwrap();
        // Its base has to be read.
        disk.write(BLOCK as u64, &[2; 512], false).await.unwrap();
    });
    round.medium.faults().inject(FaultyOp::Read, Fault::NoFiles, When::From(0));
    let flushing = pool.clone();
    round.exec.spawn("flush", async move {
        assert!(matches!(flushing.flush().await, Err(Error::Latched(_))));
    });
    let working = pool.clone();
    round.exec.finish(async move {
        host.sleep(Duration::from_millis(200)).await;
        let _ = working.checkpoint().await;
    });
    kill(&mut round, pool);
    let found = contents(&mut round);
    found[..BLOCK] == [2; BLOCK]
        && found[BLOCK..BLOCK + 512] == [2; 512]
        && found[BLOCK + 512..] == blocks(1)[BLOCK + 512..]
}

#[test]
fn a_group_whose_reads_fail_stays_in_memory() {
    assert!(fail_a_group(Mutation::None), "writes are lost");
    assert!(!fail_a_group(Mutation::TakeNumber), "the next group took the number, and nothing was lost");
}
