//! Attacks the protocol of the images of a cluster: owners that crash, that are paused and continue after
//! another server has taken their shard, and operations that arrive late, in random orders. At each step, all
//! segments exist to which a shard refers; in the end, no others exist.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use forebay_store::rados::{ImageObjects, SimulatedRados, World};
use forebay_store::{BoxFuture, SegmentId};
use parking_lot::Mutex;

use crate::images::{Image, State, Uuid};
use crate::owned_images::{Copied, LocalImage, OwnedImages, ShardPool};

const SHARDS: u32 = 3;

#[derive(Clone)]
struct Random(Arc<AtomicU64>);

impl Random {
    fn next(&self, below: u64) -> u64 {
        let next = |state: u64| {
            Some(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407))
        };
        let before = self.0.fetch_update(Relaxed, Relaxed, next).unwrap();
        (before >> 33) % below
    }

    /// Completes after some polls.
    fn wait(&self, most: u64) -> BoxFuture<'static, ()> {
        let mut left = self.next(most + 1);
        Box::pin(std::future::poll_fn(move |_| {
            let is_over = left == 0;
            left = left.saturating_sub(1);
            if is_over { Poll::Ready(()) } else { Poll::Pending }
        }))
    }
}

type Tasks = Arc<Mutex<Vec<BoxFuture<'static, ()>>>>;

/// A world in which every task makes progress in a random order.
struct Weather {
    random: Random,
    tasks: Tasks,
    /// Requests take up to this number of polls.
    delay: u64,
}

impl World for Weather {
    fn now(&self) -> Duration {
        Duration::ZERO
    }
    fn sleep(&self, time: Duration) -> BoxFuture<'static, ()> {
        self.random.wait(time.as_millis() as u64)
    }
    fn spawn(&self, _: Option<u64>, task: BoxFuture<'static, ()>) {
        self.tasks.lock().push(task);
    }
    fn delay(&self) -> Duration {
        // Some requests are under way for very long.
        let most = if self.random.next(40) == 0 { 3000 } else { self.delay };
        Duration::from_millis(self.random.next(most + 1))
    }
}

/// What a shard has on its store.
#[derive(Default, Clone)]
struct Durable {
    term: u64,
    local: BTreeMap<Uuid, LocalImage>,
    attached: BTreeSet<Uuid>,
    /// Clones by name: the image, and the segments to which the clone refers.
    clones: BTreeMap<String, (Uuid, Vec<u32>)>,
    /// Segments to which other disks refer, which got blocks of clones by reference.
    copies: BTreeMap<String, Vec<u32>>,
    /// Segments of local images that were adopted, and of attached images.
    roots: BTreeMap<Uuid, Vec<u32>>,
}

impl Durable {
    fn references(&self) -> BTreeSet<u32> {
        let of_clones = self.clones.values().flat_map(|(_, segments)| segments);
        of_clones
            .chain(self.copies.values().flatten())
            .chain(self.roots.values().flatten())
            .copied()
            .collect()
    }
}

/// The pool of one owner. What it has in memory stays as it was when another server takes the shard.
struct Owner {
    term: u64,
    shard: Arc<Mutex<Durable>>,
    memory: Mutex<Durable>,
    random: Random,
    stopped: AtomicBool,
    /// The segments of the copy of each image, by root.
    copies: Arc<Mutex<BTreeMap<[u8; 12], Vec<u32>>>>,
}

impl Owner {
    /// A commit: it takes effect later, unless another server has taken the shard by then.
    async fn commit<T>(&self, change: impl FnOnce(&mut Durable) -> Result<T, String>) -> Result<T, String> {
        self.random.wait(3).await;
        let done = {
            let mut durable = self.shard.lock();
            if durable.term != self.term {
                self.stopped.store(true, Relaxed);
                return Err("another server has the shard".to_owned());
            }
            let done = change(&mut durable)?;
            *self.memory.lock() = durable.clone();
            done
        };
        self.random.wait(3).await;
        Ok(done)
    }

    fn segments(&self, root: [u8; 12]) -> Vec<u32> {
        self.copies.lock()[&root].clone()
    }
}

impl ShardPool for Owner {
    fn local(&self) -> Vec<LocalImage> {
        self.memory.lock().local.values().cloned().collect()
    }

    fn find(&self, uuid: Uuid) -> Option<LocalImage> {
        self.memory.lock().local.get(&uuid).cloned()
    }

    fn is_attached(&self, uuid: Uuid) -> bool {
        self.memory.lock().attached.contains(&uuid)
    }

    fn segments_for(&self, _: u64) -> u32 {
        4
    }

    fn copy<'a>(
        &'a self,
        uuid: Uuid,
        numbers: Range<u32>,
        to: &'a ImageObjects,
    ) -> BoxFuture<'a, Result<Option<Copied>, String>> {
        Box::pin(async move {
            let count = 1 + self.random.next(3) as u32;
            let segments: Vec<u32> = numbers.clone().take(count as usize).collect();
            let mut root = [0; 12];
            root[..4].copy_from_slice(&numbers.start.to_le_bytes());
            root[4] = uuid[0];
            self.copies.lock().insert(root, segments.clone());
            for segment in segments {
                to.write(SegmentId(segment), &[1; 64]).await.map_err(|e| e.to_string())?;
            }
            if self.random.next(6) == 0 {
                return Err("a block is damaged".to_owned());
            }
            Ok(Some(Copied { root, segments: count, bytes: 64 }))
        })
    }

    fn adopt(&self, uuid: Uuid, root: [u8; 12]) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            let segments = self.segments(root);
            self.commit(|durable| {
                let local = durable.local.get_mut(&uuid).ok_or("the image is gone")?;
                local.is_adopted = true;
                durable.roots.insert(uuid, segments);
                Ok(())
            })
            .await
        })
    }

    fn attach<'a>(&'a self, uuid: Uuid, image: &'a Image) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            let segments = self.segments(image.root().unwrap());
            self.commit(|durable| {
                if !durable.local.contains_key(&uuid) {
                    durable.attached.insert(uuid);
                    durable.roots.insert(uuid, segments);
                }
                Ok(())
            })
            .await
        })
    }

    fn detach(&self, uuid: Uuid) -> BoxFuture<'_, Result<Option<(u64, String)>, String>> {
        Box::pin(self.commit(move |durable| {
            let mut clones = durable.clones.iter().filter(|(_, (of, _))| *of == uuid);
            if let Some((name, _)) = clones.next() {
                return Ok(Some((1, name.clone())));
            }
            durable.attached.remove(&uuid);
            durable.roots.remove(&uuid);
            Ok(None)
        }))
    }

    fn segments_in_use(&self) -> BoxFuture<'_, Result<BTreeSet<u32>, String>> {
        Box::pin(self.commit(|durable| Ok(durable.references())))
    }

    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        self.random.wait(8)
    }

    fn has_stopped(&self) -> bool {
        self.stopped.load(Relaxed)
    }
}

/// A process that owns a shard, or believes that it does.
struct Process {
    shard: u32,
    owner: Arc<Owner>,
    images: Arc<OwnedImages>,
    tasks: Vec<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// It makes no progress until this step.
    paused_until: u64,
}

struct Model {
    random: Random,
    tasks: Tasks,
    metadata: Arc<SimulatedRados>,
    segments: Arc<SimulatedRados>,
    shards: BTreeMap<u32, Arc<Mutex<Durable>>>,
    copies: Arc<Mutex<BTreeMap<[u8; 12], Vec<u32>>>>,
    processes: Vec<Process>,
    step: u64,
    made: u64,
    clones_made: Arc<AtomicU64>,
    deletions: Arc<AtomicU64>,
}

impl Model {
    fn new(seed: u64) -> Model {
        let random = Random(Arc::new(AtomicU64::new(seed * 7919 + 3)));
        let tasks = Tasks::default();
        let world = |delay| {
            let (random, tasks) = (random.clone(), tasks.clone());
            SimulatedRados::new(Arc::new(Weather { random, tasks, delay }))
        };
        let delay = [1, 3, 6][(seed % 3) as usize];
        let (metadata, segments) = (world(delay), world(delay));
        let mut model = Model {
            random,
            tasks,
            metadata,
            segments,
            shards: (1..=SHARDS).map(|shard| (shard, Arc::default())).collect(),
            copies: Arc::default(),
            processes: Vec::new(),
            step: 0,
            made: 0,
            clones_made: Arc::default(),
            deletions: Arc::default(),
        };
        (1..=SHARDS).for_each(|shard| model.take(shard));
        model
    }

    /// Another server takes a shard. Its earlier owner does not know.
    fn take(&mut self, shard: u32) {
        let durable = self.shards[&shard].clone();
        let (term, memory) = {
            let mut durable = durable.lock();
            durable.term += 1;
            (durable.term, durable.clone())
        };
        let owner = Arc::new(Owner {
            term,
            shard: durable,
            memory: Mutex::new(memory),
            random: self.random.clone(),
            stopped: AtomicBool::new(false),
            copies: self.copies.clone(),
        });
        let (cluster, segments) = (self.metadata.client(), self.segments.client());
        let images = Arc::new(OwnedImages::new(cluster, segments, (shard, term), owner.clone()));
        let (keeps, publishes) = (images.clone(), images.clone());
        let tasks: Vec<Pin<Box<dyn Future<Output = ()> + Send>>> = vec![
            Box::pin(async move { keeps.maintain().await }),
            Box::pin(async move { publishes.publish_all().await }),
        ];
        self.processes.push(Process { shard, owner, images, tasks, paused_until: 0 });
    }

    /// The process that has taken a shard last.
    fn newest(&mut self, shard: u32) -> &mut Process {
        self.processes.iter_mut().rev().find(|process| process.shard == shard).unwrap()
    }

    fn act(&mut self) {
        let shard = 1 + self.random.next(SHARDS.into()) as u32;
        let random = self.random.clone();
        match self.random.next(14) {
            0 if self.made < 30 => self.make_image(shard),
            1..4 if self.made > 0 => self.begin_clone(shard),
            4..7 => {
                let name = format!("d{}", self.step);
                let process = self.newest(shard);
                let owner = process.owner.clone();
                process.tasks.push(Box::pin(async move {
                    let (some, what) = (random.next(3), random.next(4));
                    let change = |durable: &mut Durable| {
                        match what {
                            0 => {
                                if let Some((_, segments)) = durable.clones.values().next() {
                                    durable.copies.insert(name, segments.clone());
                                }
                            }
                            1 => drop(durable.copies.pop_first()),
                            _ => drop(remove_one(&mut durable.clones, some)),
                        }
                        Ok(())
                    };
                    let _ = owner.commit(change).await;
                }));
            }
            7 | 11 | 12 => self.begin_deletion(shard),
            8 => {
                self.processes.retain(|process| process.shard != shard);
                self.take(shard);
            }
            9 => {
                let until = self.step + self.random.next(4000);
                self.newest(shard).paused_until = until;
                self.take(shard);
            }
            10 => {
                // A pause that its shard survives, at any step.
                let until = self.step + self.random.next(6000);
                self.newest(shard).paused_until = until;
            }
            _ => {}
        }
    }

    fn make_image(&mut self, shard: u32) {
        self.made += 1;
        let uuid = [self.made as u8; 16];
        let local =
            LocalImage { uuid, name: format!("i{}", self.made), size: 1, domain: 0, is_adopted: false };
        let process = self.newest(shard);
        let owner = process.owner.clone();
        process.tasks.push(Box::pin(async move {
            let _ = owner.commit(|durable| Ok(durable.local.insert(uuid, local))).await;
        }));
    }

    fn begin_clone(&mut self, shard: u32) {
        // One of the last images: the others are mostly removed.
        let number = self.made - self.random.next(self.made.min(3));
        let (clone, made) = (format!("c{}", self.step), self.clones_made.clone());
        let process = self.newest(shard);
        let (owner, images) = (process.owner.clone(), process.images.clone());
        process.tasks.push(Box::pin(async move {
            let uuid = match images.attach(&format!("i{number}")).await {
                Ok(Some(uuid)) => uuid,
                Ok(None) | Err(_) => return,
            };
            let done = owner
                .commit(|durable| {
                    let segments = durable.roots.get(&uuid).ok_or("it is not attached")?.clone();
                    Ok(durable.clones.insert(clone, (uuid, segments)))
                })
                .await;
            made.fetch_add(u64::from(done.is_ok()), Relaxed);
        }));
    }

    fn begin_deletion(&mut self, shard: u32) {
        let (some, ended) = (self.random.next(3), self.deletions.clone());
        let process = self.newest(shard);
        let (owner, images) = (process.owner.clone(), process.images.clone());
        process.tasks.push(Box::pin(async move {
            let all = owner.local();
            let Some(local) = all.get(some as usize % all.len().max(1)) else { return };
            let Ok(deletion) = images.begin_deletion(local.uuid, &local.name).await else { return };
            let done = owner
                .commit(|durable| {
                    if durable.clones.values().any(|(of, _)| *of == local.uuid) {
                        return Err("it has clones".to_owned());
                    }
                    durable.local.remove(&local.uuid);
                    durable.roots.remove(&local.uuid);
                    Ok(())
                })
                .await;
            ended.fetch_add(u64::from(done.is_ok()), Relaxed);
            images.end_deletion(deletion, done.is_ok()).await;
        }));
    }

    fn run(&mut self) {
        self.step += 1;
        let mut context = Context::from_waker(Waker::noop());
        let in_flight = self.tasks.lock().len();
        if in_flight > 0 {
            let chosen = self.random.next(in_flight as u64) as usize;
            let mut task = self.tasks.lock().swap_remove(chosen);
            if task.as_mut().poll(&mut context).is_pending() {
                self.tasks.lock().push(task);
            }
        }
        let chosen = self.random.next(self.processes.len() as u64) as usize;
        let step = self.step;
        let process = &mut self.processes[chosen];
        if process.paused_until <= step && !process.tasks.is_empty() {
            let chosen = self.random.next(process.tasks.len() as u64) as usize;
            if process.tasks[chosen].as_mut().poll(&mut context).is_ready() {
                drop(process.tasks.swap_remove(chosen));
            }
        }
    }

    fn stored(&self) -> BTreeSet<u32> {
        let objects = self.segments.snapshot();
        let number = |name: &String| u32::from_str_radix(name.strip_prefix("segment.")?, 16).ok();
        objects.keys().filter_map(number).collect()
    }

    fn check(&self, when: &str) {
        let stored = self.stored();
        for (shard, durable) in &self.shards {
            let missing: Vec<u32> = durable.lock().references().difference(&stored).copied().collect();
            assert!(missing.is_empty(), "shard {shard} refers to removed segments {missing:x?}, {when}");
        }
    }
}

fn remove_one(clones: &mut BTreeMap<String, (Uuid, Vec<u32>)>, number: u64) -> Option<String> {
    let name = clones.keys().nth(number as usize % clones.len().max(1))?.clone();
    clones.remove(&name);
    Some(name)
}

/// The number of seeds; `FOREBAY_IMAGE_MODEL_SEEDS` runs more, from `FOREBAY_IMAGE_MODEL_FROM` on.
fn seeds() -> Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text: String| text.parse().ok());
    let from = number("FOREBAY_IMAGE_MODEL_FROM").unwrap_or(0);
    from..from + number("FOREBAY_IMAGE_MODEL_SEEDS").unwrap_or(150)
}

#[test]
fn no_shard_refers_to_a_segment_that_was_removed() {
    let (mut clones, mut deletions, mut published) = (0, 0, 0);
    for seed in seeds() {
        let mut model = Model::new(seed);
        for step in 0..12_000 {
            if step % 60 == 0 {
                model.act();
            }
            model.run();
            model.check(&format!("seed {seed}, step {step}"));
        }
        // Only the last owners are left. They remove what is not needed.
        for shard in 1..=SHARDS {
            model.processes.retain(|process| process.shard != shard);
            model.take(shard);
        }
        let is_done = |model: &Model| {
            let entries = model.metadata.entries_of("images");
            let images: Vec<(Uuid, Image)> = entries
                .iter()
                .filter(|(key, _)| key.starts_with("i."))
                .map(|(key, value)| {
                    let byte = u8::from_str_radix(&key[2..4], 16).unwrap();
                    ([byte; 16], serde_json::from_slice(value).unwrap())
                })
                .collect();
            let named: BTreeSet<u32> = images.iter().flat_map(|(_, image)| image.segments()).collect();
            let settled = images.iter().all(|(uuid, image)| {
                let home = model.shards[&image.home].lock().clone();
                let has_user = model.shards.values().any(|shard| {
                    let shard = shard.lock();
                    let copied = shard.copies.values().flatten().any(|at| image.segments().contains(at));
                    copied || shard.clones.values().any(|(of, _)| of == uuid)
                });
                match image.state {
                    State::Live => home.local.get(uuid).is_some_and(|local| local.is_adopted),
                    State::Deleting => !home.local.contains_key(uuid) && has_user,
                    State::Publishing => false,
                }
            });
            settled && model.stored().is_subset(&named)
        };
        let mut steps = 0;
        while !is_done(&model) {
            (0..500).for_each(|_| model.run());
            model.check(&format!("seed {seed}, in the end"));
            steps += 500;
            assert!(steps < 3_000_000, "seed {seed}: {:?}", model.metadata.entries_of("images"));
        }
        clones += model.clones_made.load(Relaxed);
        deletions += model.deletions.load(Relaxed);
        published += model.copies.lock().len() as u64;
    }
    let of = seeds().end - seeds().start;
    assert!(clones > of && deletions * 4 > of && published > of, "{clones} {deletions} {published}");
}
