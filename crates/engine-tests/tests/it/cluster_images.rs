//! Images of a cluster: pools read them from segments that no pool owns. A segment is removed when no pool is
//! registered as a user of its image, and no disk of any pool may refer to it then.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use forebay_engine::{
    BoxFuture, ClusterImage, DiskHandle, Error, Host, ImageSegments, Pool, PoolConfig, SegmentId, SyncMode,
    WrittenImage, segments_of_image,
};
use forebay_store::{Completion, IoBuf, MemoryStore, Store, StoreError, forward_store};

use crate::common::{clone, config, left_by_crash, noise, read, text};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 600;
/// A map of three levels.
const MANY_BLOCKS: u64 = 70_000;

/// A host that gives each disk a separate identity.
struct Identities(Instant, AtomicU64);

impl Identities {
    fn host(seed: u64) -> Arc<Identities> {
        Arc::new(Identities(Instant::now(), AtomicU64::new(seed << 32)))
    }
}

impl Host for Identities {
    crate::common::of_runtime!(0);
    fn boot_id(&self) -> [u8; 16] {
        crate::common::boot_of(self.0)
    }
    fn random(&self, bytes: &mut [u8]) {
        bytes.fill(0);
        let number = self.1.fetch_add(1, Relaxed).to_le_bytes();
        let len = bytes.len().min(8);
        bytes[..len].copy_from_slice(&number[..len]);
    }
}

/// The segments of all images.
type Shared = Arc<std::sync::Mutex<BTreeMap<SegmentId, Vec<u8>>>>;

/// The store of a pool that is a shard of a cluster.
struct ShardStore {
    own: Arc<MemoryStore>,
    images: Shared,
}

impl Store for ShardStore {
    forward_store!(own; except read);

    fn read(&self, id: SegmentId, offset: u64, len: usize) -> Completion<IoBuf> {
        if !id.is_of_image() {
            return self.own.read(id, offset, len);
        }
        let images = self.images.lock().unwrap();
        let Some(bytes) = images.get(&id) else { return Completion::ended(Err(StoreError::NotFound(id))) };
        let (start, end) = ((offset as usize).min(bytes.len()), (offset as usize + len).min(bytes.len()));
        let mut buf = IoBuf::with_capacity(len);
        buf.extend_from_slice(&bytes[start..end]);
        Completion::ended(Ok(buf))
    }
}

/// Writes segments into the shared store; fails after some.
struct Writer {
    images: Shared,
    fails_after: AtomicU64,
}

impl ImageSegments for Writer {
    fn write(&self, segment: SegmentId, bytes: Vec<u8>) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            if self.fails_after.fetch_sub(1, Relaxed) == 0 {
                return Err(Error::NoSpace);
            }
            let before = self.images.lock().unwrap().insert(segment, bytes);
            assert!(before.is_none(), "segment {segment} is written twice");
            Ok(())
        })
    }
}

fn writer(images: &Shared) -> Writer {
    Writer { images: images.clone(), fails_after: AtomicU64::new(u64::MAX) }
}

fn shard(images: &Shared) -> Arc<ShardStore> {
    Arc::new(ShardStore { own: Arc::new(MemoryStore::new()), images: images.clone() })
}

async fn open_shard(store: &Arc<ShardStore>, seed: u64, config: PoolConfig) -> Arc<Pool> {
    Pool::open(store.clone(), Identities::host(seed), config).await.unwrap()
}

async fn after_crash(store: &ShardStore) -> Arc<ShardStore> {
    Arc::new(ShardStore { own: left_by_crash(&store.own).await, images: store.images.clone() })
}

async fn problems(store: &Arc<ShardStore>) -> Vec<String> {
    let report = forebay_engine::check(store.clone(), Identities::host(99), |_| {}).await.unwrap();
    report.problems.iter().map(|p| format!("{} at {}, of {:?}", p.what, p.place, p.disks)).collect()
}

/// A volume with text, noise, equal blocks, zeroes and holes, and an image of it. Returns what it contains.
async fn golden(pool: &Pool, blocks: u64) -> Vec<u8> {
    pool.create_volume("v", blocks * BLOCK, SyncMode::Flush, 0).await.unwrap();
    let v = pool.attach("v").unwrap();
    let mut contents = vec![0; (blocks * BLOCK) as usize];
    let mut parts = vec![
        (3, text(1, 100 * BLOCK as usize)),
        (250, noise(2, 20 * BLOCK as usize)),
        (300, noise(3, BLOCK as usize).repeat(8)),
    ];
    if blocks > 66_000 {
        parts.push((65_530, noise(4, 20 * BLOCK as usize)));
    }
    for (block, bytes) in parts {
        v.write(block * BLOCK, &bytes, false).await.unwrap();
        contents[(block * BLOCK) as usize..][..bytes.len()].copy_from_slice(&bytes);
    }
    v.write_zeroes(320 * BLOCK, 10 * BLOCK, true, false).await.unwrap();
    if blocks > 60_000 {
        // A whole subtree of allocated zeroes.
        v.write_zeroes(512 * BLOCK, 1024 * BLOCK, true, false).await.unwrap();
    }
    drop(v);
    pool.create_image("golden", "v").await.unwrap();
    contents
}

async fn all(pool: &Pool, name: &str, blocks: u64) -> Vec<u8> {
    read(&pool.attach(name).unwrap(), 0, (blocks * BLOCK) as usize).await
}

fn known(pool: &Pool, written: WrittenImage) -> ClusterImage {
    let image = pool.disk("golden").unwrap();
    ClusterImage {
        uuid: image.uuid,
        name: "golden".into(),
        size: image.size,
        dedup_domain: 0,
        root: written.root,
    }
}

fn numbers_from(first: u32, size: u64) -> std::ops::Range<u32> {
    let first = SegmentId::FIRST_OF_IMAGES + first;
    first..first + segments_of_image(size)
}

/// Publishes the image of the pool.
async fn publish(pool: &Arc<Pool>, images: &Shared, first: u32) -> ClusterImage {
    let image = pool.disk("golden").unwrap();
    let numbers = numbers_from(first, image.size);
    let written = pool.cluster_images().write(image.uuid, numbers, &writer(images)).await.unwrap().unwrap();
    pool.cluster_images().adopt(image.uuid, written.root).await.unwrap();
    known(pool, written)
}

#[tokio::test]
async fn an_image_is_stored_once_and_cloned_in_two_pools() {
    for blocks in [BLOCKS, MANY_BLOCKS] {
        let images = Shared::default();
        let (home, other) = (shard(&images), shard(&images));
        let cold = || PoolConfig { map_cache: 0, read_cache: 0, ..config() };
        let (a, b) = (open_shard(&home, 1, cold()).await, open_shard(&other, 2, cold()).await);
        let contents = golden(&a, blocks).await;
        let image = publish(&a, &images, 0).await;
        assert!(all(&a, "golden", blocks).await == contents, "the image after it was published");
        a.delete("v").await.unwrap();
        a.reclaim(&|_| {}).await.unwrap();
        assert!(all(&a, "golden", blocks).await == contents, "the image after a reclaim");
        let space = a.stats().await.space.unwrap();
        assert_eq!((space.live_bytes, space.unique_bytes), (0, 0), "the pool stores nothing of the image");

        b.cluster_images().attach(&image).await.unwrap();
        b.cluster_images().attach(&image).await.unwrap();
        assert_eq!(b.cluster_images().attached(), [image.uuid]);
        assert!(b.disks().is_empty(), "the image is not visible");
        let made = b.cluster_images().clone_to(image.uuid, &[clone("c"), clone("d")]).await.unwrap();
        assert_eq!(made[0].origin.as_deref(), Some("golden"));
        assert!(all(&b, "c", blocks).await == contents);
        let stored = b.stats().await.space.map_or(0, |space| space.live_bytes);
        assert_eq!(stored, 0);

        // Clones are written, snapshotted, reset, and survive a crash.
        let c = b.attach("c").unwrap();
        c.write(260 * BLOCK, &noise(9, 2 * BLOCK as usize), false).await.unwrap();
        c.flush().await.unwrap();
        let mut changed = contents.clone();
        changed[(260 * BLOCK) as usize..][..2 * BLOCK as usize]
            .copy_from_slice(&noise(9, 2 * BLOCK as usize));
        b.create_snapshot("c", "s").await.unwrap();
        let other = after_crash(&other).await;
        let b = open_shard(&other, 3, cold()).await;
        assert!(all(&b, "c", blocks).await == changed && all(&b, "c@s", blocks).await == changed);
        b.checkpoint().await.unwrap();
        b.reclaim(&|_| {}).await.unwrap();
        b.reset("c").await.unwrap();
        assert!(all(&b, "c", blocks).await == contents && all(&b, "d", blocks).await == contents);
        assert_eq!(problems(&after_crash(&other).await).await, Vec::<String>::new());
        let found = b.cluster_images().segments_in_use().await.unwrap();
        let stored: BTreeSet<SegmentId> = images.lock().unwrap().keys().copied().collect();
        assert_eq!(found, stored, "all segments of the image are in use");
    }
}

#[tokio::test]
async fn a_pool_states_when_it_has_no_reference_left() {
    let images = Shared::default();
    let (home, other) = (shard(&images), shard(&images));
    let (a, b) = (open_shard(&home, 1, config()).await, open_shard(&other, 2, config()).await);
    let contents = golden(&a, BLOCKS).await;
    let image = publish(&a, &images, 0).await;
    b.cluster_images().attach(&image).await.unwrap();
    b.cluster_images().clone_to(image.uuid, &[clone("c")]).await.unwrap();
    assert!(matches!(b.cluster_images().detach(image.uuid).await, Err(Error::HasClones { .. })));
    // Another volume gets blocks of the image by reference.
    b.create_volume("w", BLOCKS * BLOCK, SyncMode::Flush, 0).await.unwrap();
    let (c, w) = (b.attach("c").unwrap(), b.attach("w").unwrap());
    w.copy_from(250 * BLOCK, &c, 250 * BLOCK, 20 * BLOCK).await.unwrap();
    drop(c);
    b.delete("c").await.unwrap();
    b.cluster_images().detach(image.uuid).await.unwrap();
    b.cluster_images().detach(image.uuid).await.unwrap();
    assert_eq!(b.cluster_images().attached(), Vec::<[u8; 16]>::new());
    assert!(matches!(b.cluster_images().clone_to(image.uuid, &[clone("e")]).await, Err(Error::NotFound(_))));
    assert!(
        !b.cluster_images().segments_in_use().await.unwrap().is_empty(),
        "the other volume refers to the image"
    );
    let at = (250 * BLOCK) as usize;
    assert_eq!(read(&w, 250 * BLOCK, BLOCK as usize).await, &contents[at..at + BLOCK as usize]);
    w.discard(250 * BLOCK, 20 * BLOCK, false).await.unwrap();
    w.flush().await.unwrap();
    drop(w);
    assert!(b.cluster_images().segments_in_use().await.unwrap().is_empty());
    let b = open_shard(&after_crash(&other).await, 4, config()).await;
    assert!(
        b.cluster_images().segments_in_use().await.unwrap().is_empty(),
        "a crash leads to no earlier state"
    );
}

#[tokio::test]
async fn a_copy_that_fails_leaves_the_image_as_it_was() {
    let images = Shared::default();
    let home = shard(&images);
    let a = open_shard(&home, 1, config()).await;
    let contents = golden(&a, BLOCKS).await;
    let image = a.disk("golden").unwrap();
    let failing = Writer { images: images.clone(), fails_after: AtomicU64::new(1) };
    let failed = a.cluster_images().write(image.uuid, numbers_from(0, image.size), &failing).await;
    assert!(matches!(failed, Err(Error::NoSpace)), "{failed:?}");
    let too_few = SegmentId::FIRST_OF_IMAGES + 100..SegmentId::FIRST_OF_IMAGES + 101;
    let failed = a.cluster_images().write(image.uuid, too_few, &writer(&images)).await;
    assert!(matches!(failed, Err(Error::NoSpace)), "{failed:?}");
    let unknown = a.cluster_images().write([7; 16], numbers_from(200, image.size), &writer(&images)).await;
    assert!(matches!(unknown, Err(Error::NotFound(_))), "{unknown:?}");
    assert_eq!(a.disks().len(), 2, "no hidden copy is left");
    assert!(all(&a, "golden", BLOCKS).await == contents);
    // An image without data has no segments.
    a.create_volume("empty", BLOCKS * BLOCK, SyncMode::Flush, 0).await.unwrap();
    a.create_image("nothing", "empty").await.unwrap();
    let uuid = a.disk("nothing").unwrap().uuid;
    let written = a.cluster_images().write(uuid, numbers_from(300, BLOCKS * BLOCK), &writer(&images)).await;
    assert_eq!(written.unwrap(), None);
    // The image can be removed while it is copied: what was written is not in use.
    let written = a.cluster_images().write(image.uuid, numbers_from(400, image.size), &writer(&images)).await;
    a.delete("golden").await.unwrap();
    let adopted = a.cluster_images().adopt(image.uuid, written.unwrap().unwrap().root).await;
    assert!(matches!(adopted, Err(Error::NotFound(_))), "{adopted:?}");
}

/// The number of histories; `FOREBAY_IMAGE_SEEDS` runs more.
fn seeds() -> u64 {
    std::env::var("FOREBAY_IMAGE_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(60)
}

/// One pool of a history.
struct Member {
    store: Arc<ShardStore>,
    pool: Arc<Pool>,
    /// The contents of each disk, by block; 0 is a hole.
    disks: BTreeMap<String, Vec<u64>>,
    handles: BTreeMap<String, Arc<DiskHandle>>,
    /// The images for which the pool is registered.
    registered: BTreeSet<usize>,
}

/// An image of the cluster in a history.
struct Published {
    image: ClusterImage,
    contents: Vec<u64>,
    segments: std::ops::Range<u32>,
    is_deleting: bool,
}

struct World {
    images: Shared,
    members: Vec<Member>,
    published: Vec<Published>,
    random: u64,
    written: u64,
    next_number: u32,
    openings: u64,
}

fn bytes_of(contents: &[u64]) -> Vec<u8> {
    let block = |number: &u64| match number {
        0 => vec![0; BLOCK as usize],
        number => noise(*number, BLOCK as usize),
    };
    contents.iter().flat_map(block).collect()
}

const FEW: u64 = 300;

impl World {
    async fn new(seed: u64) -> World {
        let images = Shared::default();
        let mut world = World {
            images: images.clone(),
            members: Vec::new(),
            published: Vec::new(),
            random: seed * 977 + 1,
            written: 0,
            next_number: 0,
            openings: seed * 1000,
        };
        for _ in 0..2 {
            let store = shard(&images);
            let pool = world.open(&store).await;
            let (disks, handles) = (BTreeMap::new(), BTreeMap::new());
            world.members.push(Member { store, pool, disks, handles, registered: BTreeSet::new() });
        }
        world
    }

    async fn open(&mut self, store: &Arc<ShardStore>) -> Arc<Pool> {
        self.openings += 1;
        let cold = PoolConfig { map_cache: 0, read_cache: 0, checkpoint_bytes: 1 << 20, ..config() };
        open_shard(store, self.openings, cold).await
    }

    fn next(&mut self, below: u64) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }

    /// A volume of a member.
    fn some_disk(&mut self, member: usize) -> Option<String> {
        let names: Vec<String> = self.members[member].disks.keys().cloned().collect();
        let count = names.len() as u64;
        (count > 0).then(|| names[self.next(count) as usize].clone())
    }

    async fn step(&mut self, step: u64) {
        let member = self.next(2) as usize;
        match self.next(16) {
            0 | 1 => self.publish(member, step).await,
            2..5 => self.clone_one(member, step).await,
            5..8 => self.write(member).await,
            8 => self.copy(member).await,
            9 => self.delete_disk(member).await,
            10 => self.delete_image().await,
            11 => self.release(member).await,
            12 => self.crash(member).await,
            13 => self.members[member].pool.checkpoint().await.unwrap(),
            14 => drop(self.members[member].pool.reclaim(&|_| {}).await.unwrap()),
            _ => self.check_one(member).await,
        }
    }

    /// Makes an image, publishes it, and removes the local one: only the image of the cluster is left.
    async fn publish(&mut self, member: usize, step: u64) {
        let name = format!("base{step}");
        let pool = self.members[member].pool.clone();
        pool.create_volume(&name, FEW * BLOCK, SyncMode::Flush, 0).await.unwrap();
        let mut contents = vec![0; FEW as usize];
        let handle = pool.attach(&name).unwrap();
        for _ in 0..4 {
            let (first, count) = (self.next(FEW - 20) as usize, 1 + self.next(20) as usize);
            for number in &mut contents[first..first + count] {
                self.written += 1;
                *number = self.written;
            }
            let bytes = bytes_of(&contents[first..first + count]);
            handle.write(first as u64 * BLOCK, &bytes, false).await.unwrap();
        }
        drop(handle);
        let image_name = format!("image{step}");
        pool.create_image(&image_name, &name).await.unwrap();
        pool.delete(&name).await.unwrap();
        let local = pool.disk(&image_name).unwrap();
        let segments = numbers_from(self.next_number, local.size);
        self.next_number += segments_of_image(local.size);
        let to = writer(&self.images);
        let written = pool.cluster_images().write(local.uuid, segments.clone(), &to).await.unwrap().unwrap();
        assert!(written.segments <= segments_of_image(local.size));
        let image = ClusterImage {
            uuid: local.uuid,
            name: image_name.clone(),
            size: local.size,
            dedup_domain: 0,
            root: written.root,
        };
        self.published.push(Published { image: image.clone(), contents, segments, is_deleting: false });
        self.members[member].registered.insert(self.published.len() - 1);
        pool.cluster_images().adopt(image.uuid, image.root).await.unwrap();
        pool.delete(&image_name).await.unwrap();
    }

    async fn clone_one(&mut self, member: usize, step: u64) {
        let live: Vec<usize> =
            (0..self.published.len()).filter(|i| !self.published[*i].is_deleting).collect();
        if live.is_empty() {
            return;
        }
        let chosen = live[self.next(live.len() as u64) as usize];
        let one = &mut self.members[member];
        one.registered.insert(chosen);
        let published = &self.published[chosen];
        one.pool.cluster_images().attach(&published.image).await.unwrap();
        let name = format!("c{step}");
        one.pool.cluster_images().clone_to(published.image.uuid, &[clone(&name)]).await.unwrap();
        one.disks.insert(name.clone(), published.contents.clone());
        one.handles.insert(name.clone(), one.pool.attach(&name).unwrap());
    }

    async fn write(&mut self, member: usize) {
        let Some(name) = self.some_disk(member) else { return };
        let (first, count) = (self.next(FEW - 8) as usize, 1 + self.next(8) as usize);
        // Sometimes the contents of an image are written again, which may be found as a duplicate.
        let again = self.next(3) == 0 && !self.published.is_empty();
        let source = match again {
            true => {
                let chosen = self.next(self.published.len() as u64) as usize;
                self.published[chosen].contents[first..first + count].to_vec()
            }
            false => {
                self.written += count as u64;
                (self.written - count as u64 + 1..=self.written).collect()
            }
        };
        let one = &mut self.members[member];
        one.disks.get_mut(&name).unwrap()[first..first + count].copy_from_slice(&source);
        let (handle, bytes) = (&one.handles[&name], bytes_of(&source));
        handle.write(first as u64 * BLOCK, &bytes, false).await.unwrap();
        handle.flush().await.unwrap();
    }

    /// Copies blocks of one volume to another by reference.
    async fn copy(&mut self, member: usize) {
        let (Some(from), Some(to)) = (self.some_disk(member), self.some_disk(member)) else { return };
        if from == to {
            return;
        }
        let (first, count) = (self.next(FEW - 40) as usize, 1 + self.next(40) as usize);
        let one = &mut self.members[member];
        let (at, len) = (first as u64 * BLOCK, count as u64 * BLOCK);
        one.handles[&to].copy_from(at, &one.handles[&from], at, len).await.unwrap();
        one.handles[&to].flush().await.unwrap();
        let copied = one.disks[&from][first..first + count].to_vec();
        one.disks.get_mut(&to).unwrap()[first..first + count].copy_from_slice(&copied);
    }

    async fn delete_disk(&mut self, member: usize) {
        let Some(name) = self.some_disk(member) else { return };
        let one = &mut self.members[member];
        one.disks.remove(&name);
        one.handles.remove(&name);
        one.pool.delete(&name).await.unwrap();
    }

    /// No new clone of the image can be made from now on.
    async fn delete_image(&mut self) {
        let count = self.published.len() as u64;
        if count > 0 {
            let chosen = self.next(count) as usize;
            self.published[chosen].is_deleting = true;
        }
    }

    /// Removes registrations of a member, and segments of images without one.
    async fn release(&mut self, member: usize) {
        let one = &mut self.members[member];
        let unwanted: Vec<usize> =
            one.registered.iter().copied().filter(|i| self.published[*i].is_deleting).collect();
        let mut detached = Vec::new();
        for chosen in unwanted {
            match one.pool.cluster_images().detach(self.published[chosen].image.uuid).await {
                Ok(()) => detached.push(chosen),
                Err(Error::HasClones { .. }) => {}
                Err(e) => panic!("{e}"),
            }
        }
        let in_use = one.pool.cluster_images().segments_in_use().await.unwrap();
        for chosen in detached {
            let Published { segments, .. } = &self.published[chosen];
            let range = SegmentId(segments.start)..SegmentId(segments.end);
            if in_use.range(range.clone()).next().is_some() {
                continue;
            }
            self.members[member].registered.remove(&chosen);
            if self.members.iter().all(|one| !one.registered.contains(&chosen)) {
                self.images.lock().unwrap().retain(|id, _| !range.contains(id));
            }
        }
    }

    async fn crash(&mut self, member: usize) {
        let store = after_crash(&self.members[member].store).await;
        self.members[member].handles.clear();
        let pool = self.open(&store).await;
        let one = &mut self.members[member];
        (one.store, one.pool) = (store, pool);
        for name in one.disks.keys() {
            one.handles.insert(name.clone(), one.pool.attach(name).unwrap());
        }
    }

    async fn check_one(&mut self, member: usize) {
        let Some(name) = self.some_disk(member) else { return };
        let one = &self.members[member];
        let found = read(&one.handles[&name], 0, (FEW * BLOCK) as usize).await;
        assert!(found == bytes_of(&one.disks[&name]), "{name} of pool {member}");
    }
}

#[tokio::test]
async fn no_disk_refers_to_a_segment_that_was_removed_after_any_history() {
    let mut removed = 0;
    for seed in 0..seeds() {
        let mut world = World::new(seed).await;
        for step in 0..80 {
            world.step(step).await;
        }
        for member in 0..2 {
            world.crash(member).await;
            for name in world.members[member].disks.keys() {
                let one = &world.members[member];
                let found = read(&one.handles[name], 0, (FEW * BLOCK) as usize).await;
                assert!(found == bytes_of(&one.disks[name]), "{name} of pool {member}, seed {seed}");
            }
            let store = after_crash(&world.members[member].store).await;
            assert_eq!(problems(&store).await, Vec::<String>::new(), "pool {member}, seed {seed}");
        }
        let stored: BTreeSet<u32> = world.images.lock().unwrap().keys().map(|id| id.0).collect();
        let is_gone = |one: &&Published| one.segments.clone().all(|segment| !stored.contains(&segment));
        removed += world.published.iter().filter(is_gone).count();
    }
    assert!(removed as u64 * 4 >= seeds(), "only {removed} images were removed: the histories show little");
}
