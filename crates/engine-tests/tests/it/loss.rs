//! Damage in the log after the checkpoint: the pool opens only if no flushed write is lost, or if its
//! administrator accepts the loss.

use std::sync::Arc;
use std::time::Instant;

use crate::common::*;
use forebay_engine::{
    BatchView, Error, LossReport, Mutation, Pool, PoolConfig, SegmentId, SyncMode, inspect_batches,
    inspect_segments, inspect_superblocks, recover_log,
};
use forebay_store::{Fault, FaultyOp, FaultyStore, Image, MemoryStore, Store, When};

const BYTES: usize = 4 << 20;

fn host() -> Arc<TestHost> {
    Arc::new(TestHost(Instant::now()))
}

async fn try_open(store: &Arc<MemoryStore>) -> Result<Arc<Pool>, Error> {
    try_open_with(store, log_config()).await
}

async fn recover(store: &Arc<MemoryStore>, accept: Option<u64>) -> Result<LossReport, Error> {
    let store: Arc<dyn Store> = store.clone();
    recover_log(store, host(), accept).await
}

/// Checkpoints are made only when a test requests one, and commits only for a flush.
fn log_config() -> PoolConfig {
    PoolConfig { checkpoint_bytes: 1 << 40, write_buffer: 8 << 20, ..config() }
}

/// A pool after a crash, the contents of its volume after each flush, and the last batch of each flush.
struct Scene {
    store: Arc<MemoryStore>,
    states: Vec<(u64, Vec<u8>)>,
    /// Batches of the log that the checkpoint does not cover.
    batches: Vec<(SegmentId, BatchView)>,
}

impl Scene {
    /// Writes `flushes` groups after the checkpoint, some of several batches and segments.
    async fn new(seed: u64, flushes: u64) -> Scene {
        for _ in 0..20 {
            // On a slow machine a commit may occur between two parts of a write.
            if let Some(scene) = Scene::with_a_group_for_each_flush(seed, flushes).await {
                return scene;
            }
        }
        panic!("other commits than those of the flushes");
    }

    async fn with_a_group_for_each_flush(seed: u64, flushes: u64) -> Option<Scene> {
        let store = Arc::new(MemoryStore::new());
        let pool = try_open(&store).await.unwrap();
        pool.create_volume("v", BYTES as u64, SyncMode::Flush, 0).await.unwrap();
        pool.create_volume("w", 1 << 20, SyncMode::Flush, 0).await.unwrap();
        let v = pool.attach("v").unwrap();
        mark(&v).await;
        let mut state = vec![0; BYTES];
        let mut states = Vec::new();
        for n in 0..flushes + 2 {
            let len = if (seed + n).is_multiple_of(3) { 600 << 10 } else { 8192 };
            let at = ((seed * 7 + n * 5) as usize % 50) * 65536;
            let content = noise(seed * 100 + n, len);
            let before = pool.stats().await.commits;
            v.write(at as u64, &content, false).await.unwrap();
            state[at..at + len].copy_from_slice(&content);
            v.flush().await.unwrap();
            if pool.stats().await.commits != before + 1 {
                drop(v);
                pool.close().await.unwrap();
                return None;
            }
            states.push((pool.stats().await.seq, state.clone()));
            if n == 1 {
                pool.checkpoint().await.unwrap();
            }
            if n == flushes {
                // Without a flush of `w`: next to one, a long write may need several groups.
                pool.attach("w").unwrap().write(0, &[7; 4096], false).await.unwrap();
                pool.create_volume("x", 1 << 20, SyncMode::Flush, 0).await.unwrap();
            }
        }
        let mut scene = Scene { store: left_by_crash(&store).await, states, batches: Vec::new() };
        scene.batches = scene.find_batches().await;
        drop(v);
        pool.close().await.unwrap();
        Some(scene)
    }

    async fn covered(&self) -> u64 {
        let copies = inspect_superblocks(&*self.store).await.unwrap();
        copies.iter().max_by_key(|c| c.generation).unwrap().checkpoint_seq
    }

    async fn find_batches(&self) -> Vec<(SegmentId, BatchView)> {
        let covered = self.covered().await;
        let mut found = Vec::new();
        for object in self.store.list().await.unwrap() {
            let batches = inspect_batches(&*self.store, object.id).await.unwrap();
            found.extend(batches.into_iter().filter(|b| b.seq > covered).map(|b| (object.id, b)));
        }
        found.sort_by_key(|(_, b)| b.seq);
        assert!(found.iter().zip(covered + 1..).all(|((_, b), seq)| b.seq == seq));
        found
    }

    /// Number of the group of a batch, counted from 0.
    fn group(&self, seq: u64) -> usize {
        self.batches.iter().filter(|(_, b)| b.seq < seq && b.group_end).count()
    }

    fn groups(&self) -> usize {
        self.batches.iter().filter(|(_, b)| b.group_end).count()
    }

    /// The contents of the volume when batch `seq` was the last.
    fn state(&self, seq: u64) -> &[u8] {
        &self.states.iter().rev().find(|(at, _)| *at <= seq).unwrap().1
    }

    async fn copy(&self) -> Arc<MemoryStore> {
        left_by_crash(&self.store).await
    }
}

async fn contents(pool: &Arc<Pool>) -> Vec<u8> {
    read(&pool.attach("v").unwrap(), 0, BYTES).await
}

fn damage_of(e: Error) -> forebay_engine::LogDamage {
    match e {
        Error::LogDamaged(damage) => *damage,
        other => panic!("{other}"),
    }
}

/// Opening a damaged pool is refused; with the damage undone, all data is present; with the loss accepted, a
/// prefix.
async fn refused(scene: &Scene, damaged: &Arc<MemoryStore>, first: u64, what: &str) {
    let before = left_by_crash(damaged).await;
    let report = recover(damaged, None).await.unwrap();
    let damage = report.damage.unwrap_or_else(|| panic!("{what}: no damage is reported"));
    assert!(!report.accepted && damage.id == first, "{what}: {damage:?}");
    assert!(same(&before, damaged).await, "{what}: a report changed the store");
    let refused = damage_of(try_open(damaged).await.map(drop).unwrap_err());
    assert_eq!((refused.id, refused.intact_until), (damage.id, damage.intact_until), "{what}");
    let problems = check(damaged).await;
    assert!(problems.iter().any(|p| p.starts_with("the log is damaged")), "{what}: {problems:?}");

    for wrong in [first + 1, first - 1, 0] {
        assert!(matches!(recover(damaged, Some(wrong)).await, Err(Error::OtherLoss(_))), "{what}");
    }
    let accepted = recover(damaged, Some(first)).await.unwrap();
    assert!(accepted.accepted && accepted.damage.is_some_and(|d| d.id == first), "{what}");
    let expected = scene.state(damage.intact_until);
    for life in 0..3_u8 {
        let pool = try_open(damaged).await.unwrap();
        let found = contents(&pool).await;
        assert!(found[4096..] == expected[4096..], "{what}, life {life}: the contents are not a prefix");
        // New writes are applied on top of the prefix, and persist through crashes.
        let v = pool.attach("v").unwrap();
        assert!(life == 0 || found[..4096] == [life; 4096], "{what}, life {life}");
        v.write(0, &[life + 1; 4096], true).await.unwrap();
        let left = left_by_crash(damaged).await;
        let again = try_open(&left).await.unwrap();
        assert!(contents(&again).await[..4096] == [life + 1; 4096], "{what}, life {life}");
        again.close().await.unwrap();
        drop(v);
        pool.close().await.unwrap();
    }
    assert!(recover(damaged, None).await.unwrap().damage.is_none(), "{what}");
}

async fn same(a: &MemoryStore, b: &MemoryStore) -> bool {
    let (left, right) = (a.list().await.unwrap(), b.list().await.unwrap());
    let mut same = left == right && a.read_superblock().await.unwrap() == b.read_superblock().await.unwrap();
    for object in left {
        let len = (object.len as usize).max(4096);
        same = same
            && a.read(object.id, 0, len).await.unwrap()[..] == b.read(object.id, 0, len).await.unwrap()[..];
    }
    same
}

/// Opens a pool whose last group is damaged: it is indistinguishable from one that was not synced.
async fn opens_without_the_last_group(scene: &Scene, damaged: &Arc<MemoryStore>, what: &str) {
    assert!(recover(damaged, None).await.unwrap().damage.is_none(), "{what}");
    assert_eq!(check(damaged).await, Vec::<String>::new(), "{what}");
    let ends: Vec<u64> = scene.batches.iter().filter(|(_, b)| b.group_end).map(|(_, b)| b.seq).collect();
    let end = ends.iter().rev().nth(1).copied().unwrap();
    for life in 0..2 {
        let pool = try_open(damaged).await.unwrap_or_else(|e| panic!("{what}, life {life}: {e}"));
        assert!(
            contents(&pool).await == scene.state(end),
            "{what}, life {life}: the contents are not a prefix"
        );
        // The next life begins with the state left by this one: no checkpoint, and batches that it never
        // reached.
        let left = left_by_crash(damaged).await;
        pool.attach("w").unwrap().write(4096, &[life; 4096], true).await.unwrap();
        let after_a_write = left_by_crash(damaged).await;
        try_open(&after_a_write).await.unwrap().close().await.unwrap();
        try_open(&left).await.unwrap().close().await.unwrap();
        pool.close().await.unwrap();
    }
}

#[tokio::test]
async fn a_flipped_bit_in_a_batch_prevents_opening_only_if_a_later_group_is_intact() {
    for seed in 0..6 {
        let scene = Scene::new(seed, 6).await;
        let (batches, groups) = (&scene.batches, scene.groups());
        let several = batches.iter().filter(|(_, b)| !b.group_end).count();
        assert!(groups > 6 && several > 2, "{groups} groups, {several} batches that end none");
        for (n, (segment, batch)) in batches.iter().enumerate() {
            // In the header, among the entries or after them, or in the payload.
            let places = if batch.payload_bytes == 0 { [50, 3000, 90] } else { [50, 3000, 4096 + 20] };
            let at = batch.offset as usize + places[(n + seed as usize) % 3];
            let what = format!("seed {seed}, batch {}, segment {segment}, byte {at}", batch.seq);
            let damaged = scene.copy().await;
            damaged.damage(*segment, |bytes| bytes[at] ^= 16);
            if scene.group(batch.seq) + 1 == groups {
                opens_without_the_last_group(&scene, &damaged, &what).await;
            } else if batch.blobs > 0 && at as u64 >= batch.offset + 4096 {
                // The checkpoint itself.
                assert!(matches!(try_open(&damaged).await.map(drop), Err(Error::Damaged(_))), "{what}");
            } else if batch.nodes + batch.blobs > 0
                && batches.iter().any(|(s, b)| s == segment && b.offset > batch.offset)
            {
                // Recovery applies nothing from it, as the batches around it show.
                let report = recover(&damaged, None).await.unwrap();
                assert!(report.damage.is_none(), "{what}: {:?}, {batches:?}", report.damage);
                try_open(&damaged).await.unwrap().close().await.unwrap();
            } else {
                refused(&scene, &damaged, batch.seq, &what).await;
            }
            damaged.damage(*segment, |bytes| bytes[at] ^= 16);
            let whole = scene.copy().await;
            assert!(
                contents(&try_open(&whole).await.unwrap()).await == scene.states.last().unwrap().1,
                "{what}"
            );
        }
    }
}

/// The same store on a medium whose sectors can be made unreadable.
async fn on_a_medium(store: &MemoryStore) -> Arc<FaultyStore> {
    let mut image = Image { superblock: store.read_superblock().await.unwrap(), ..Image::default() };
    for object in store.list().await.unwrap() {
        let bytes = store.read(object.id, 0, (object.len as usize).max(4096)).await.unwrap();
        image.objects.insert(object.id, bytes.to_vec());
    }
    FaultyStore::of_image(1, &image)
}

/// An unreadable sector may become readable again, on another path or at another time.
#[tokio::test]
async fn an_unreadable_sector_in_the_log_prevents_opening_until_its_loss_is_accepted() {
    for seed in 0..4 {
        let scene = Scene::new(seed, 6).await;
        for (segment, batch) in &scene.batches {
            let what = format!("seed {seed}, batch {}, segment {segment}", batch.seq);
            let store = on_a_medium(&scene.store).await;
            // In the header or in the payload.
            let at = batch.offset + if batch.payload_bytes == 0 { 0 } else { seed % 2 * 4096 };
            store.break_sectors(*segment, at..at + 512);
            let is_last = !scene.batches.iter().any(|(_, b)| b.seq > batch.seq);
            let report = recover_log(store.clone(), host(), None).await;
            if batch.nodes + batch.blobs > 0 && !is_last {
                // A damaged checkpoint, a batch that held only map nodes, or one that may have.
                continue;
            }
            let damage = report.unwrap().damage.unwrap_or_else(|| panic!("{what}: no damage is reported"));
            assert_eq!(damage.id, batch.seq, "{what}");
            let place = &damage.places[0];
            assert_eq!((place.segment.as_str(), place.what), (&*segment.to_string(), "it cannot be read"));
            assert_eq!(place.offset, batch.offset, "{what}");
            let refused = try_open_with(&store, log_config()).await.map(drop).unwrap_err();
            assert_eq!(damage_of(refused).id, batch.seq, "{what}");
            assert!(check(&store).await.iter().any(|p| p.contains("it cannot be read")), "{what}");

            let mended = FaultyStore::of_image(1, &store.image());
            let pool = try_open_with(&mended, log_config()).await.unwrap();
            assert!(contents(&pool).await == scene.states.last().unwrap().1, "{what}: repaired");
            pool.close().await.unwrap();

            assert!(recover_log(store.clone(), host(), Some(damage.id)).await.unwrap().accepted, "{what}");
            for life in 0..2 {
                let pool = try_open_with(&store, log_config()).await.unwrap();
                assert!(contents(&pool).await == scene.state(damage.intact_until), "{what}, life {life}");
                pool.close().await.unwrap();
            }
        }
    }
}

#[tokio::test]
async fn an_unreadable_segment_prevents_opening() {
    let scene = Scene::new(1, 6).await;
    let (segment, first) =
        scene.batches.iter().rfind(|(s, b)| *s != scene.batches[0].0 && b.blobs == 0).unwrap();
    let first = scene.batches.iter().find(|(s, _)| s == segment).map_or(first, |(_, b)| b);
    let store = on_a_medium(&scene.store).await;
    store.break_sectors(*segment, 0..u64::MAX);
    let damage = damage_of(try_open_with(&store, log_config()).await.map(drop).unwrap_err());
    assert_eq!(damage.id, first.seq, "{damage}");
    recover_log(store.clone(), host(), Some(damage.id)).await.unwrap();
    let pool = try_open_with(&store, log_config()).await.unwrap();
    assert!(contents(&pool).await == scene.state(damage.intact_until));
    pool.close().await.unwrap();
}

/// A store that does not answer is not damage to the log whose loss could be accepted.
#[tokio::test]
async fn an_unresponsive_store_is_not_damage() {
    let scene = Scene::new(1, 6).await;
    let store = on_a_medium(&scene.store).await;
    store.inject(FaultyOp::Read, Fault::Io, When::From(0));
    for object in store.list().await.unwrap() {
        store.break_sectors(object.id, 0..u64::MAX);
    }
    for accept in [None, Some(scene.batches[0].1.seq)] {
        let refused = recover_log(store.clone(), host(), accept).await.unwrap_err();
        assert!(matches!(refused, Error::Store(_)), "{refused}");
    }
    assert!(matches!(try_open_with(&store, log_config()).await.map(drop), Err(Error::Store(_))));
}

/// A lost write leaves zeroes, or the previous contents.
#[tokio::test]
async fn missing_batches_prevent_opening() {
    for seed in 0..3 {
        let scene = Scene::new(seed, 6).await;
        for (segment, batch) in &scene.batches {
            let data = batch.puts + batch.references + batch.zeroes > 0;
            if !data || scene.group(batch.seq) + 1 == scene.groups() {
                continue;
            }
            let damaged = scene.copy().await;
            let next = scene
                .batches
                .iter()
                .filter(|(s, b)| s == segment && b.offset > batch.offset)
                .map(|(_, b)| b.offset);
            let (from, until) = (batch.offset as usize, next.min().unwrap_or(u64::MAX) as usize);
            damaged.damage(*segment, |bytes| {
                let until = until.min(bytes.len());
                bytes[from..until].fill(0);
            });
            refused(&scene, &damaged, batch.seq, &format!("seed {seed}, batch {}", batch.seq)).await;
        }
    }
}

#[tokio::test]
async fn a_missing_segment_or_segment_header_prevents_opening() {
    for seed in 0..4 {
        let scene = Scene::new(seed, 8).await;
        let mut segments: Vec<SegmentId> = scene.batches.iter().map(|(s, _)| *s).collect();
        segments.sort_unstable();
        segments.dedup();
        assert!(segments.len() > 2, "{segments:?}");
        for segment in segments {
            let of_it = || scene.batches.iter().filter(|(s, _)| *s == segment);
            let first = of_it().map(|(_, b)| b.seq).min().unwrap();
            if of_it().any(|(_, b)| b.blobs + b.nodes > 0) || scene.group(first) + 1 == scene.groups() {
                continue;
            }
            let headless = scene.copy().await;
            headless.damage(segment, |bytes| bytes[40] ^= 1);
            // The stream of a segment that was open at the checkpoint is known.
            let was_open = of_it().all(|(_, b)| b.offset > 4096);
            if !was_open {
                refused(&scene, &headless, first, &format!("seed {seed}, no header in {segment}")).await;
            }
            let later =
                |(s, b): &(SegmentId, BatchView)| *s != segment && scene.group(b.seq) > scene.group(first);
            if !scene.batches.iter().any(later) {
                continue;
            }
            let gone = scene.copy().await;
            gone.delete(segment).await.unwrap();
            let report = recover(&gone, None).await.unwrap().damage.unwrap();
            let places = || report.places.iter().map(|p| p.segment.clone());
            assert!(places().any(|p| p == segment.to_string()), "{report:?}");
            assert!(matches!(try_open(&gone).await.map(drop), Err(Error::LogDamaged(_))));
            // If the segment was open at the checkpoint, other batches are missing as well.
            if !was_open {
                refused(&scene, &gone, first, &format!("seed {seed}, segment {segment} is gone")).await;
            }
        }
    }
}

/// Remains of the last group after a power loss: any of its batches, in any segment.
#[tokio::test]
async fn a_torn_last_group_with_intact_batches_behind_it_is_not_damage() {
    let mut torn = 0;
    for seed in 0..8 {
        let scene = Scene::new(seed, 7).await;
        // The last group of several batches; the batches after it are removed.
        let ends: Vec<u64> = scene.batches.iter().filter(|(_, b)| b.group_end).map(|(_, b)| b.seq).collect();
        let last = ends.windows(2).rev().find(|w| w[1] - w[0] > 2).map(|w| (w[0] + 1, w[1]));
        let Some((first, end)) = last else { continue };
        let cut = |store: Arc<MemoryStore>, gone: Vec<u64>| {
            for (segment, batch) in scene.batches.iter().filter(|(_, b)| b.seq > end || gone.contains(&b.seq))
            {
                let (from, len) = (batch.offset as usize, 4096 + batch.payload_bytes as usize);
                store.damage(*segment, |bytes| bytes[from..from + len].fill(0));
            }
            store
        };
        let whole = cut(scene.copy().await, Vec::new());
        assert!(contents(&try_open(&whole).await.unwrap()).await == scene.state(end), "seed {seed}");
        for mask in 1..1_u64 << (end - first + 1) {
            let gone: Vec<u64> = (first..=end).filter(|seq| mask >> (seq - first) & 1 == 1).collect();
            let what = format!("seed {seed}, without {gone:?} of {first}..={end}");
            let left = cut(scene.copy().await, gone);
            assert!(recover(&left, None).await.unwrap().damage.is_none(), "{what}");
            assert_eq!(check(&left).await, Vec::<String>::new(), "{what}");
            let pool = try_open(&left).await.unwrap_or_else(|e| panic!("{what}: {e}"));
            assert!(contents(&pool).await == scene.state(first - 1), "{what}");
            pool.attach("v").unwrap().write(0, &[9; 4096], true).await.unwrap();
            // The numbers of the torn group are assigned again: its remains are not mistaken for a later
            // group.
            let again = left_by_crash(&left).await;
            assert!(contents(&try_open(&again).await.unwrap()).await[..4096] == [9; 4096], "{what}");
            pool.close().await.unwrap();
            torn += 1;
        }
    }
    assert!(torn > 20, "{torn}");
}

/// The newer superblock copy is missing: the older one leads to an older checkpoint, and to the whole log
/// since.
#[tokio::test]
async fn damage_is_detected_from_either_superblock_copy() {
    let scene = Scene::new(1, 6).await;
    let copies = inspect_superblocks(&*scene.store).await.unwrap();
    let newer = copies.iter().max_by_key(|c| c.generation).unwrap().copy;
    let damaged = scene.copy().await;
    damaged.set_superblock(newer, None);
    let whole = left_by_crash(&damaged).await;
    assert!(contents(&try_open(&whole).await.unwrap()).await == scene.states.last().unwrap().1);
    let (segment, batch) = scene.batches.iter().find(|(_, b)| b.puts > 0).unwrap();
    damaged.damage(*segment, |bytes| bytes[batch.offset as usize + 4096] ^= 1);
    refused(&scene, &damaged, batch.seq, "the older copy").await;
}

/// An accepted loss is permanent, whichever superblock copy remains.
#[tokio::test]
async fn an_accepted_loss_does_not_reappear() {
    let scene = Scene::new(2, 6).await;
    let (segment, batch) = scene.batches.iter().find(|(_, b)| b.puts > 0).unwrap();
    for copy in 0..2 {
        let damaged = scene.copy().await;
        damaged.damage(*segment, |bytes| bytes[batch.offset as usize + 4096] ^= 1);
        let report = recover(&damaged, Some(batch.seq)).await.unwrap();
        let until = report.damage.unwrap().intact_until;
        // The segment is restored to its former state, too late.
        damaged.damage(*segment, |bytes| bytes[batch.offset as usize + 4096] ^= 1);
        damaged.set_superblock(copy, None);
        assert!(recover(&damaged, None).await.unwrap().damage.is_none());
        let pool = try_open(&damaged).await.unwrap();
        assert!(contents(&pool).await == scene.state(until), "copy {copy}");
        pool.close().await.unwrap();
    }
}

#[tokio::test]
async fn the_report_lists_the_lost_writes() {
    let store = Arc::new(MemoryStore::new());
    let pool = try_open(&store).await.unwrap();
    for name in ["a", "b"] {
        pool.create_volume(name, 1 << 20, SyncMode::Flush, 0).await.unwrap();
    }
    pool.checkpoint().await.unwrap();
    let (a, b) = (pool.attach("a").unwrap(), pool.attach("b").unwrap());
    a.write(0, &noise(1, 4096), true).await.unwrap();
    let first = pool.stats().await.seq;
    a.write(8192, &noise(2, 8192), true).await.unwrap();
    b.write(0, &noise(3, 12288), true).await.unwrap();
    b.discard(65536, 8192, true).await.unwrap();
    pool.create_volume("c", 1 << 20, SyncMode::Flush, 0).await.unwrap();
    pool.attach("c").unwrap().write(0, &noise(4, 4096), true).await.unwrap();
    let left = left_by_crash(&store).await;
    drop((a, b));
    pool.close().await.unwrap();

    let mut place = None;
    for segment in inspect_segments(&*left).await.unwrap() {
        let id = SegmentId(u32::from_str_radix(&segment.segment, 16).unwrap());
        let batches = inspect_batches(&*left, id).await.unwrap();
        place = place.or(batches.iter().find(|b| b.seq == first).map(|b| (id, b.offset)));
    }
    let (segment, offset) = place.unwrap();
    left.damage(segment, |bytes| bytes[offset as usize + 200] ^= 1);
    let e = try_open(&left).await.map(drop).unwrap_err();
    let text = e.to_string();
    assert!(text.contains(&format!("segment {segment}, offset {offset}")), "{text}");
    assert!(
        text.contains("5 blocks of 'b'") && text.contains("forebay recover") && !text.contains('\n'),
        "{text}"
    );
    let damage = damage_of(e);
    let lost = |name: &str| {
        let found = damage.disks.iter().find(|d| d.name == name);
        found.map(|d| (d.written_blocks, d.zeroed_blocks))
    };
    assert_eq!((lost("a"), lost("b"), lost("c")), (Some((2, 0)), Some((3, 2)), Some((1, 0))), "{damage:?}");
    assert_eq!((damage.id, damage.missing_batches), (first, 1), "{damage:?}");
    assert!(damage.lost_groups >= 5 && damage.lost_batches >= 5, "{damage:?}");
    assert!(damage.catalogue.iter().any(|c| c.contains("'c'")), "{damage:?}");
    assert_eq!(damage.places.len(), 1, "{damage:?}");
    assert_eq!((&damage.places[0].segment, damage.places[0].offset), (&segment.to_string(), offset));
}

/// A pool after a cleaning and a later flushed write to another volume, as left by a crash.
async fn cleaned(mutation: Mutation) -> (Arc<MemoryStore>, Vec<u8>) {
    let store = Arc::new(MemoryStore::new());
    let config = PoolConfig { mutation, ..log_config() };
    let pool = open_with(&store, config).await;
    for name in ["v", "w"] {
        pool.create_volume(name, BYTES as u64, SyncMode::Flush, 0).await.unwrap();
    }
    let v = pool.attach("v").unwrap();
    let mut state = noise(1, BYTES);
    v.write(0, &state, true).await.unwrap();
    // Three of four blocks are overwritten: each segment has some live data, and much garbage.
    for block in (0..BYTES / 4096).filter(|block| block % 4 != 0) {
        let content = noise(1000 + block as u64, 4096);
        v.write(block as u64 * 4096, &content, false).await.unwrap();
        state[block * 4096..][..4096].copy_from_slice(&content);
    }
    v.flush().await.unwrap();
    assert!(pool.reclaim(&|_| ()).await.unwrap() > 1 << 20);
    let w = pool.attach("w").unwrap();
    for n in 0..3 {
        w.write(n * 4096, &noise(n, 4096), true).await.unwrap();
    }
    let left = left_by_crash(&store).await;
    drop((v, w));
    pool.close().await.unwrap();
    (left, state)
}

/// Whether the volume is intact after damage to any one batch after the checkpoint whose loss was accepted.
async fn survives_a_cut(store: &Arc<MemoryStore>, state: &[u8]) -> bool {
    let copies = inspect_superblocks(&**store).await.unwrap();
    let covered = copies.iter().max_by_key(|c| c.generation).unwrap().checkpoint_seq;
    let mut cuts = 0;
    for object in store.list().await.unwrap() {
        for batch in inspect_batches(&**store, object.id).await.unwrap() {
            if batch.seq <= covered {
                continue;
            }
            let damaged = left_by_crash(store).await;
            damaged.damage(object.id, |bytes| bytes[batch.offset as usize + 1000] ^= 1);
            // Batches of the checkpoint, or with only parts of maps, are not covered here.
            let Ok(LossReport { damage: Some(damage), .. }) = recover(&damaged, None).await else { continue };
            let Ok(_) = recover(&damaged, Some(damage.id)).await else { return false };
            let Ok(pool) = try_open(&damaged).await else { return false };
            let mut found = vec![0; BYTES];
            if pool.attach("v").unwrap().read(0, &mut found).await.is_err() || found != state {
                return false;
            }
            pool.close().await.unwrap();
            assert_eq!(check(&damaged).await, Vec::<String>::new());
            cuts += 1;
        }
    }
    assert!(cuts > 1, "no loss was accepted");
    true
}

/// Moved blocks are found even if the log is cut before the batch that published the move: the originals are
/// deleted only when a checkpoint has the new locations.
#[tokio::test]
async fn a_cut_log_does_not_lose_moved_blocks() {
    let (store, state) = cleaned(Mutation::None).await;
    assert!(survives_a_cut(&store, &state).await);
    let (store, state) = cleaned(Mutation::DeleteUncovered).await;
    assert!(!survives_a_cut(&store, &state).await, "the test does not detect the mutation");
}
