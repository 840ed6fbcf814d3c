//! The larger world: maps of many leaves, faults of every operation, damage during work, processes that end
//! without the machine, users of desktops. Deliberately broken rules of commit, recovery and desktops are
//! detected.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use forebay_engine::{Mutation, PoolConfig, SyncMode};
use forebay_format::BLOCK;
use forebay_sim::{Harm, Ran, Rng, Round, Tolerance, attempt, env, flip_bits, rounds};
use forebay_store::{Fault, FaultyOp, FaultyStore, When};

/// Default number of rounds.
const ROUNDS: u64 = 60;
/// Default number of rounds that write all over large disks.
const WIDE: u64 = 24;

fn wide(seed: u64, ops: Option<u64>) -> Round {
    let mut round = Round::new(seed, ops);
    round.plan.widen(&mut round.rng);
    round
}

#[test]
fn maps_of_many_leaves_lose_nothing() {
    rounds("maps_of_many_leaves", 0, WIDE, |seed, ops| {
        wide(seed, ops).run();
    });
}

/// One operation of any kind fails, once or from then on, in any way.
fn any_fault(store: &FaultyStore, rng: &mut Rng) {
    let op = *rng.pick(&FaultyOp::ALL);
    let fault = *rng.pick(&[Fault::Io, Fault::Full, Fault::NoFiles, Fault::Short]);
    let after = rng.below(30) as u32;
    store.inject(op, fault, if rng.percent(50) { When::After(after) } else { When::From(after) });
}

fn faulty(mut round: Round) -> Round {
    round.tolerance = Tolerance { full: true, latched: true, unreadable: true, ..Tolerance::default() };
    round.faults = Some(any_fault);
    round
}

#[test]
fn a_fault_of_any_operation_loses_no_durable_data() {
    rounds("a_fault_of_any_operation", 0, 2 * ROUNDS, |seed, ops| {
        let round = if seed.is_multiple_of(3) { wide(seed, ops) } else { Round::new(seed, ops) };
        faulty(round).run();
    });
}

/// The process ends, and the machine continues: reads show the data that the next process finds.
#[test]
fn a_process_that_restarts_after_a_fault_finds_the_durable_data() {
    rounds("a_process_that_starts_again", 0, ROUNDS, |seed, ops| {
        let mut round = faulty(Round::new(seed, ops));
        round.restart_after_latch = true;
        round.run();
    });
}

/// One read, and one request for block status, need more nodes of the map than the cache can contain.
#[test]
fn a_read_of_more_leaves_than_the_map_cache_holds_ends() {
    const BLOCKS: usize = 60 * 256;
    let mut round = Round::new(1, None);
    round.plan.pool = PoolConfig { map_cache: 0, read_cache: 0, compress: false, ..PoolConfig::default() };
    let pool = round.open();
    let opened = pool.clone();
    let made = round.exec.finish(async move {
        opened.create_volume("v", (BLOCKS * BLOCK) as u64, SyncMode::Flush, 0).await?;
        let disk = opened.attach("v")?;
        let mut data = vec![0; BLOCKS * BLOCK];
        // Leaves are full, and no two blocks are similar.
        data.chunks_mut(BLOCK)
            .zip(1_u64..)
            .for_each(|(block, n)| block[..8].copy_from_slice(&n.to_le_bytes()));
        for (n, part) in data.chunks(1 << 20).enumerate() {
            disk.write((n << 20) as u64, part, false).await?;
        }
        opened.checkpoint().await
    });
    made.expect("a sound store");
    let Ran::Done(read) = round.exec.run(
        async move {
            let mut data = vec![0; BLOCKS * BLOCK];
            let disk = pool.attach("v")?;
            disk.read(0, &mut data).await?;
            disk.extents(0, disk.size(), usize::MAX).await?;
            Ok::<_, forebay_engine::Error>(data)
        },
        50_000,
    ) else {
        panic!("the read does not end");
    };
    let data = read.expect("a sound store");
    assert!(data.chunks(BLOCK).zip(1_u64..).all(|(block, n)| block[..8] == n.to_le_bytes()));
}

fn rotten(seed: u64, ops: Option<u64>, crash: bool) -> bool {
    let round = if seed.is_multiple_of(2) { wide(seed, ops) } else { Round::new(seed, ops) };
    round.harmed(Harm { at_rest: Some(flip_bits), crash, ..Harm::default() })
}

#[test]
fn work_on_rotten_disks_loses_only_damaged_data() {
    let opened = AtomicU64::new(0);
    rounds("work_on_rotten_disks", 0, WIDE, |seed, ops| {
        opened.fetch_add(u64::from(rotten(seed, ops, seed % 4 < 2)), Relaxed);
    });
    assert!(opened.load(Relaxed) > 0 || env("FOREBAY_SEED").is_some(), "no pool opened");
}

/// An acknowledged write that is missing or at another position is damage.
#[test]
fn lost_and_misdirected_writes_are_detected() {
    rounds("lost_and_misdirected", 0, WIDE, |seed, ops| {
        let harm = |store: &FaultyStore, rng: &mut Rng| {
            for _ in 0..rng.range(1, 2) {
                let fault = *rng.pick(&[Fault::Lost, Fault::Misdirected]);
                store.inject(FaultyOp::Append, fault, When::After(rng.below(30) as u32));
            }
        };
        let round = if seed.is_multiple_of(2) { wide(seed, ops) } else { Round::new(seed, ops) };
        round.harmed(Harm { under_way: Some(harm), ..Harm::default() });
    });
}

/// Flushed writes after damage to the log are not dropped silently.
#[test]
fn damage_in_the_log_is_not_mistaken_for_its_end() {
    let refused = AtomicU64::new(0);
    rounds("damage_in_the_log", 0, ROUNDS, |seed, ops| {
        let noticed = Round::new(seed, ops).rot_in_log();
        refused.fetch_add(u64::from(noticed == Some(true)), Relaxed);
    });
    assert!(refused.load(Relaxed) > 0 || env("FOREBAY_SEED").is_some(), "no damage was detected");
}

fn desktops(seed: u64, ops: Option<u64>) -> Round {
    let mut round = Round::new(seed, ops);
    round.plan.sessions = 60;
    round.plan.admin = 40;
    round.plan.ops = round.plan.ops.max(60).min(ops.unwrap_or(60));
    round
}

#[test]
fn the_next_user_of_a_desktop_sees_the_image() {
    rounds("the_next_user", 0, ROUNDS, |seed, ops| {
        let mut round = desktops(seed, ops);
        if seed.is_multiple_of(3) {
            round.tolerance = Tolerance { full: true, ..Tolerance::default() };
            round.faults = Some(|store, rng| store.set_capacity(rng.range(1, 40) * (128 << 10)));
        }
        round.run();
    });
}

fn broken(mutation: Mutation, within: u64, round: impl Fn(u64) -> Round) {
    let caught = (0..within).find(|seed| {
        let mut round = round(*seed);
        round.plan.pool.mutation = mutation;
        attempt(*seed, || round.run()).is_err()
    });
    println!("{mutation:?} was detected by seed {caught:?}");
    assert!(caught.is_some(), "{mutation:?}: {within} rounds, and no data was lost");
}

#[test]
fn broken_commits_are_detected() {
    broken(Mutation::FlushEarly, 100, |seed| Round::new(seed, None));
    broken(Mutation::ForgetBeneath, 100, |seed| Round::new(seed, None));
    broken(Mutation::CheckpointAhead, 200, |seed| Round::new(seed, None));
}

#[test]
fn broken_recoveries_are_detected() {
    broken(Mutation::SkipZeroes, 100, |seed| Round::new(seed, None));
    broken(Mutation::SkipCatalogue, 100, |seed| Round::new(seed, None));
}

#[test]
fn broken_uses_of_retained_memory_are_detected() {
    broken(Mutation::DropMemory, 50, |seed| Round::new(seed, None));
    broken(Mutation::KeepInvalid, 200, |seed| desktops(seed, None));
}

#[test]
fn desktops_that_keep_writes_are_detected() {
    broken(Mutation::KeepDesktops, 600, |seed| Round::new(seed, None));
    broken(Mutation::ReuseDesktop, 400, |seed| desktops(seed, None));
}
