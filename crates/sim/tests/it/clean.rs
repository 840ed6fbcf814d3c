//! Cleaning concurrently with guests, with crashes at every step, and with deliberately broken rules.

use std::sync::Arc;
use std::time::Duration;

use forebay_engine::{
    CloneRequest, Error, Mutation, Pool, PoolConfig, SegmentId, SyncMode, check, inspect_superblocks,
};
use forebay_sim::{Ran, Rng, Round, Tolerance, attempt, rounds};
use forebay_store::{Crash, Fault, FaultyOp, Store, When};

use crate::detects;

/// Default number of rounds.
const ROUNDS: u64 = 100;

/// A round in which there is always something to clean: segments are small, and reclaims follow each other
/// closely.
fn cleaning(seed: u64, ops: Option<u64>) -> Round {
    let mut round = Round::new(seed, ops);
    let plan = &mut round.plan;
    plan.reclaim_every = Some(*round.rng.pick(&[1, 10, 40]));
    plan.pool.segment_bytes = *round.rng.pick(&[64 << 10, 64 << 10, 128 << 10]);
    plan.pool.reclaim_pause = Duration::from_millis(*round.rng.pick(&[5, 100]));
    plan.ops = ops.map_or(150, |n| n.min(150));
    plan.blocks = plan.blocks.max(24);
    plan.lives += 1;
    round
}

#[test]
fn cleaning_concurrently_with_guests_loses_nothing() {
    rounds("cleaning_beside_guests", 0, ROUNDS, |seed, ops| {
        cleaning(seed, ops).run();
    });
}

/// In particular, no footer that a crash has torn, or for which there was no space.
#[test]
fn a_check_after_a_crash_reports_no_damage() {
    rounds("a_check_after_a_crash", 0, ROUNDS, |seed, ops| {
        let mut round = cleaning(seed, ops);
        round.check = true;
        if seed % 4 == 0 {
            round.tolerance = Tolerance { full: true, ..Tolerance::default() };
            round.faults = Some(|store, rng| store.set_capacity(rng.range(1, 40) * (128 << 10)));
        }
        round.run();
    });
}

fn broken(mutation: Mutation, within: u64) {
    detects(mutation, within, cleaning);
}

#[test]
fn a_live_block_that_is_not_relocated_is_detected() {
    broken(Mutation::SkipSurvivor, 20);
}

#[test]
fn an_object_that_is_freed_too_early_is_detected() {
    broken(Mutation::FreeEarly, 200);
}

#[test]
fn an_ignored_barrier_is_detected() {
    broken(Mutation::DropBarrier, 1000);
}

#[test]
fn an_object_that_is_freed_with_its_pages_is_detected() {
    broken(Mutation::FreePages, 200);
}

#[test]
fn forgotten_blocks_of_a_base_are_detected() {
    broken(Mutation::ForgetBases, 400);
}

#[test]
fn a_reference_that_a_mark_by_difference_does_not_count_is_detected() {
    broken(Mutation::LoseReference, 400);
}

#[test]
fn a_reference_that_is_released_twice_is_detected() {
    broken(Mutation::ReleaseTwice, 1000);
}

/// A pool with few live bytes in its segments, and with blocks that several disks share.
struct Scene {
    round: Round,
    /// The contents of each disk: the fill byte of each block.
    disks: Vec<(&'static str, Vec<u8>)>,
}

const BLOCKS: u64 = 160;

impl Scene {
    fn new(seed: u64) -> Scene {
        let mut round = Round::new(seed, None);
        round.plan.pool = PoolConfig {
            read_cache: 0,
            map_cache: 0,
            write_buffer: 128 << 10,
            segment_bytes: 128 << 10,
            checkpoint_bytes: 1 << 30,
            reclaim_pause: Duration::from_secs(1 << 20),
            ..PoolConfig::default()
        };
        Scene { round, disks: Vec::new() }
    }

    fn open(&mut self) -> Arc<Pool> {
        let store: Arc<dyn Store> = self.round.medium.store();
        let opening = Pool::open(store, self.round.exec.host(), self.round.plan.pool.clone());
        self.round.exec.finish(opening).expect("the pool opens")
    }

    /// The process ends.
    fn restart(&mut self) {
        self.round.medium.release();
        self.round.exec.kill_tasks();
    }

    /// Fills disks and turns most of it into garbage.
    fn fill(&mut self, pool: &Arc<Pool>) {
        let mut rng = Rng::new(7);
        let (mut v, mut s, mut c) = (vec![0; BLOCKS as usize], Vec::new(), Vec::new());
        let pool = pool.clone();
        let filled = async move {
            pool.create_volume("v", BLOCKS * 4096, SyncMode::Flush, 0).await?;
            for round in 0..5u8 {
                let disk = pool.attach("v")?;
                for block in 0..BLOCKS {
                    if round == 0 || rng.percent(60) {
                        v[block as usize] = round * 50 + (block % 49) as u8 + 1;
                        disk.write(block * 4096, &content(v[block as usize], block), false).await?;
                    }
                }
                disk.flush().await?;
                drop(disk);
                if round == 2 {
                    pool.create_snapshot("v", "s").await?;
                    s = v.clone();
                }
                if round == 3 {
                    let clone = CloneRequest { name: "c".into(), ..CloneRequest::default() };
                    pool.clone_disk("v@s", &[clone]).await?;
                    c = s.clone();
                    let disk = pool.attach("c")?;
                    for block in (0..BLOCKS).step_by(7) {
                        c[block as usize] = 255;
                        disk.write(block * 4096, &content(255, block), false).await?;
                    }
                    disk.flush().await?;
                }
                pool.checkpoint().await?;
            }
            Ok::<_, forebay_engine::Error>(vec![("v", v), ("v@s", s), ("c", c)])
        };
        self.disks = self.round.exec.finish(filled).expect("a sound store");
    }

    /// Writes more, so that the nodes of the last checkpoint are garbage by the next one.
    fn overwrite(&mut self, pool: &Arc<Pool>) {
        let pool = pool.clone();
        let written = async move {
            let disk = pool.attach("v")?;
            for byte in [253, 254] {
                for block in 0..BLOCKS {
                    disk.write(block * 4096, &content(byte, block), false).await?;
                }
                disk.flush().await?;
            }
            Ok::<_, Error>(())
        };
        self.round.exec.finish(written).expect("a sound store");
        self.disks[0].1.fill(254);
    }

    /// Reads and compares everything.
    fn judge(&mut self, pool: &Arc<Pool>, when: &str) {
        let (pool, disks, when) = (pool.clone(), self.disks.clone(), when.to_owned());
        self.round.exec.finish(async move {
            for (name, blocks) in disks {
                let disk = pool.attach(name).expect("it is there");
                let mut all = vec![0; blocks.len() * 4096];
                disk.read(0, &mut all).await.unwrap_or_else(|e| panic!("{when}: {name}: {e}"));
                for (block, (found, byte)) in all.chunks(4096).zip(blocks).enumerate() {
                    assert!(found == content(byte, block as u64), "{when}: block {block} of {name}");
                }
            }
        });
    }

    fn reclaim(&mut self, pool: &Arc<Pool>) -> Result<u64, forebay_engine::Error> {
        let pool = pool.clone();
        self.round.exec.finish(async move { pool.reclaim(&|_| ()).await })
    }

    fn stored(&mut self) -> u64 {
        let store = self.round.medium.store();
        let objects = self.round.exec.finish(async move { store.list().await }).expect("a list");
        objects.iter().map(|o| o.len).sum()
    }

    fn problems(&mut self) -> Vec<String> {
        let (store, host) = (self.round.medium.store(), self.round.exec.host());
        let report = self.round.exec.finish(async move { check(store, host, |_| {}).await });
        let problems = report.expect("a way in").problems;
        problems.iter().map(|p| format!("{} at {} of {:?}", p.what, p.place, p.disks)).collect()
    }
}

/// Half of the blocks compress well, the others do not.
fn content(byte: u8, block: u64) -> Vec<u8> {
    if block % 16 < 8 {
        return vec![byte; 4096];
    }
    let mut rng = Rng::new(u64::from(byte) << 32 | block);
    (0..4096).map(|_| rng.next() as u8).collect()
}

/// The positions of block map nodes on the store.
fn nodes(scene: &mut Scene) -> Vec<(SegmentId, u64)> {
    let store = scene.round.medium.store();
    scene.round.exec.finish(async move {
        let mut found = Vec::new();
        for object in store.list().await.expect("a list") {
            let bytes = store.read(object.id, 0, object.len as usize).await.expect("a sound store");
            let slots = (0..).step_by(64).zip(bytes.chunks_exact(64));
            found.extend(slots.filter(|(_, b)| b.starts_with(b"FBMN")).map(|(at, _)| (object.id, at)));
        }
        found
    })
}

/// Damages a node, reclaims space, and repairs the node: the data below it must be present. Returns whether
/// the damage was detected, and the bytes freed.
fn damage(number: usize, mutation: Mutation) -> Option<(bool, u64)> {
    let mut scene = Scene::new(1);
    scene.round.plan.pool.mutation = mutation;
    let pool = scene.open();
    scene.fill(&pool);
    let closing = pool.clone();
    scene.round.exec.finish(async move { closing.close().await }).expect("a sound store");
    drop(pool);
    scene.restart();
    let &(segment, at) = nodes(&mut scene).get(number)?;
    assert!(scene.round.medium.faults().flip_bit(segment, at + 40, 3));
    let pool = scene.open();
    let writing = pool.clone();
    let young = async move {
        writing.create_volume("young", BLOCKS * 4096, SyncMode::Flush, 0).await?;
        for block in 0..BLOCKS {
            let disk = writing.attach("young")?;
            disk.write(block * 4096, &content(7, BLOCKS + block), block % 20 == 0).await?;
        }
        writing.delete("young").await
    };
    scene.round.exec.finish(young).expect("a sound store");
    let (met, freed) = match scene.reclaim(&pool) {
        Ok(freed) => (false, freed),
        Err(Error::MapsDamaged { freed_bytes, .. }) => (true, freed_bytes),
        Err(e) => panic!("{e}"),
    };
    drop(pool);
    scene.restart();
    // A node without references may be deleted.
    let there = scene.round.medium.faults().flip_bit(segment, at + 40, 3);
    assert!(there || !met, "the damaged node is gone");
    let pool = scene.open();
    scene.judge(&pool, "when the node is whole again");
    Some((met, freed))
}

#[test]
fn data_below_a_damaged_node_is_kept_and_younger_garbage_is_freed() {
    let mut met = 0;
    for number in 0.. {
        match attempt(number, || damage(number as usize, Mutation::None)) {
            Ok(None) => break,
            Ok(Some((hit, freed))) => {
                met += u64::from(hit);
                assert!(freed > BLOCKS / 2 * 4096 * 3 / 4, "node {number}: {freed} bytes freed");
            }
            Err(why) => panic!("node {number}: {why}"),
        }
    }
    println!("{met} nodes were in use");
    // One leaf per disk; the leaf of the snapshot is the base of the clone's leaf.
    assert_eq!(met, 3);
    let lost = (0..).map_while(|n| attempt(n, || damage(n as usize, Mutation::DropUnseen)).transpose());
    assert!(
        lost.into_iter().any(|found| found.is_err()),
        "what is not seen is dropped, and nothing was lost"
    );
}

/// Counts the store operations of one reclaim, then repeats it with a crash in the first operation, in the
/// second, and so on.
#[test]
fn a_crash_at_any_step_of_a_relocation_loses_no_data_and_leaves_no_garbage() {
    let mut scene = Scene::new(1);
    let pool = scene.open();
    scene.fill(&pool);
    let before = scene.stored();
    let first = scene.round.medium.faults().ops();
    let freed = scene.reclaim(&pool).expect("a sound store");
    let last = scene.round.medium.faults().ops();
    let after = scene.stored();
    scene.judge(&pool, "after a reclaim");
    assert!(freed > before / 3, "{before} bytes before, {after} after, {freed} freed");
    drop(pool);
    println!("{} operations; {before} bytes before, {after} after", last - first);
    for (op, crash) in (first..last).zip([Crash::PowerLoss, Crash::Kill].into_iter().cycle()) {
        if let Err(why) = attempt(op, || crash_at(op, crash, after)) {
            panic!("{crash:?} at operation {}: {why}", op - first);
        }
    }
}

fn crash_at(op: u64, crash: Crash, after: u64) {
    let mut scene = Scene::new(1);
    let pool = scene.open();
    scene.fill(&pool);
    scene.round.medium.faults().crash_at(op, crash);
    let reclaiming = pool.clone();
    let ran = scene.round.exec.run(async move { reclaiming.reclaim(&|_| ()).await }, 3_000_000);
    assert!(matches!(ran, Ran::Done(Err(_))), "there was no crash");
    drop(pool);
    scene.round.exec.kill_tasks();
    scene.round.medium.release();
    let mut problems = scene.problems();
    if crash == Crash::PowerLoss {
        // A crash during a swap can tear the copy that is being written.
        problems.retain(|p| !p.contains("at superblock copy"));
    }
    assert!(problems.is_empty(), "after the crash: {problems:?}");
    scene.round.medium.release();
    scene.round.exec.kill_tasks();
    let pool = scene.open();
    scene.judge(&pool, "after the crash");
    scene.reclaim(&pool).expect("a sound store");
    scene.judge(&pool, "after another reclaim");
    // The open segments of the previous life take some more space.
    let stored = scene.stored();
    assert!(stored < after + after / 4 + (256 << 10), "{stored} bytes, {after} without a crash");
    let closing = pool.clone();
    scene.round.exec.finish(async move { closing.close().await }).expect("a sound store");
    drop(pool);
    scene.round.medium.release();
    scene.round.exec.kill_tasks();
    let problems = scene.problems();
    assert!(problems.is_empty(), "in the end: {problems:?}");
}

/// Crashes during operation `op` of a reclaim, or after it, and makes the newer superblock copy unreadable.
/// False if the crash has torn a copy already: no second one may be lost then.
fn lose_the_newer_copy(op: u64, crash: Crash, mutation: Mutation) -> bool {
    let mut scene = Scene::new(1);
    scene.round.plan.pool.mutation = mutation;
    let pool = scene.open();
    scene.fill(&pool);
    scene.overwrite(&pool);
    scene.round.medium.faults().crash_at(op, crash);
    scene.round.exec.run(async move { pool.reclaim(&|_| ()).await }, 3_000_000);
    scene.restart();
    let store = scene.round.medium.store();
    let copies = scene.round.exec.finish(async move { inspect_superblocks(&*store).await });
    let copies = copies.expect("a way in");
    if copies.iter().any(|c| c.error.is_some()) {
        return false;
    }
    let newer = copies.iter().max_by_key(|c| c.generation).expect("two copies").copy;
    assert!(scene.round.medium.faults().flip_superblock_bit(newer));
    let pool = scene.open();
    scene.judge(&pool, "from the older superblock copy");
    true
}

/// No object is freed before both copies name the checkpoint of the mark, so the older copy is sufficient at
/// any step.
#[test]
fn the_older_superblock_copy_is_enough_at_any_step_of_a_reclaim() {
    let mut scene = Scene::new(1);
    let pool = scene.open();
    scene.fill(&pool);
    scene.overwrite(&pool);
    let first = scene.round.medium.faults().ops();
    scene.reclaim(&pool).expect("a sound store");
    let last = scene.round.medium.faults().ops();
    drop(pool);
    let mut judged = 0;
    for (op, crash) in (first..=last).zip([Crash::PowerLoss, Crash::Kill].into_iter().cycle()) {
        match attempt(op, || lose_the_newer_copy(op, crash, Mutation::None)) {
            Ok(whole) => judged += u64::from(whole),
            Err(why) => panic!("{crash:?} at operation {}: {why}", op - first),
        }
    }
    assert!(judged + 4 > last - first, "{judged} of {} steps", last - first);
    // Up to the renewal of the copies at the end, when emptied segments are deleted.
    let early = |op| attempt(op, || lose_the_newer_copy(op, Crash::Kill, Mutation::PublishEarly)).is_err();
    assert!((first..=last).rev().any(early), "objects that one copy needs were freed, and no data was lost");
}

/// Append number `n` of a reclaim finds no space; later appends do. Returns the number of appends.
fn no_room_at(n: u32) -> u64 {
    let mut scene = Scene::new(1);
    let pool = scene.open();
    scene.fill(&pool);
    scene.round.medium.faults().inject(FaultyOp::Append, Fault::Full, When::After(n));
    let before = scene.round.medium.faults().ops();
    let refused = scene.reclaim(&pool);
    assert!(matches!(refused, Ok(_) | Err(Error::NoSpace)), "{refused:?}");
    let ops = scene.round.medium.faults().ops() - before;
    scene.round.medium.faults().clear_faults();
    let ending = pool.clone();
    scene.round.exec.finish(async move { ending.checkpoint().await }).expect("there is room");
    drop(pool);
    scene.restart();
    let problems = scene.problems();
    assert!(problems.is_empty(), "{problems:?}");
    ops
}

/// A segment for whose footer there was no space has no footer, and a check does not report it.
#[test]
fn a_check_finds_no_problem_after_a_reclaim_without_space() {
    let (mut n, mut ops) = (0, 1);
    while n < ops {
        match attempt(n, || no_room_at(n as u32)) {
            Ok(all) => ops = ops.max(all),
            Err(why) => panic!("no room at append {n}: {why}"),
        }
        n += 1;
    }
}
