//! The task of one shard at a node: it looks at the pool, decides, and starts, stops and hands over.

use std::collections::BTreeMap;
use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use forebay_cluster::map::{Change, Map, Maps, Node};
use forebay_frontend::plane::ListenAddr;
use forebay_store::rados::librados::LibradosCluster;
use forebay_store::rados::{PoolWatch, Sight};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;

use super::decide::{Action, Claim, Process, RANKS, View, decide};
use super::figures::Figures;
use super::process::ShardProcess;
use crate::config::NodeConfig;
use crate::serve::ShardOf;

/// Interval of looks at a pool whose owner lives, by a node of the first ranks and by another one.
const LOOK: Duration = Duration::from_secs(1);
const LOOK_SELDOM: Duration = Duration::from_secs(10);
/// Interval of looks at a pool without an owner.
const LOOK_CLOSELY: Duration = Duration::from_millis(250);
/// Pause after a process that has failed, or a handover: at first, and at most.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const FIRST_HANDOVER_RETRY: Duration = Duration::from_secs(5);
const LAST_RETRY: Duration = Duration::from_secs(60);
/// A process that has served for this long did not fail at its start.
const HAS_SERVED: Duration = Duration::from_secs(30);

/// What the tasks of a node share.
pub(super) struct Shared {
    pub config: NodeConfig,
    /// Where the node serves NBD.
    pub nbd: Vec<ListenAddr>,
    pub number: u32,
    /// The iSCSI portals of this node that initiators discover.
    pub portals: Vec<SocketAddr>,
    pub cluster: Arc<LibradosCluster>,
    pub maps: Maps,
    pub map: watch::Receiver<Seen>,
    pub figures: Arc<Figures>,
    /// Another look at the map is needed now.
    pub look: Notify,
    /// One pool at a time is handed over.
    pub handover: Semaphore,
    pub stop: watch::Receiver<bool>,
}

/// The map as this node has read it.
#[derive(Clone)]
pub(super) struct Seen {
    pub map: Arc<Map>,
    /// Since when each node can own shards.
    pub eligible_since: BTreeMap<u32, Instant>,
}

impl Seen {
    /// The next state, with another map.
    pub fn with(&self, map: Map) -> Seen {
        let eligible = map.nodes.values().filter(|node| node.is_eligible()).map(|node| node.number);
        let since = |node| self.eligible_since.get(&node).copied().unwrap_or_else(Instant::now);
        Seen { eligible_since: eligible.map(|node| (node, since(node))).collect(), map: Arc::new(map) }
    }
}

/// A pause that grows with each failure.
struct Retry {
    first: Duration,
    pause: Duration,
    until: Option<Instant>,
}

impl Retry {
    fn new(first: Duration) -> Retry {
        Retry { first, pause: first, until: None }
    }

    fn is_due(&self) -> bool {
        self.until.is_none_or(|until| Instant::now() >= until)
    }

    fn failed(&mut self) {
        self.until = Some(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(LAST_RETRY);
    }

    fn succeeded(&mut self) {
        *self = Retry::new(self.first);
    }
}

/// The task of one shard.
pub(super) struct ShardTask {
    shared: Arc<Shared>,
    number: u32,
    watch: PoolWatch,
    running: Option<Running>,
    starts: Retry,
    handovers: Retry,
    /// Since when the pool has not existed.
    missing_since: Option<Instant>,
    /// The place of this node in the ranking, as of this version of the map.
    rank: (u64, Option<usize>),
}

struct Running {
    process: ShardProcess,
    claim: Claim,
    serving_since: Option<Instant>,
    /// The owner before, if it did not answer: its node and the process of the node.
    silent: Option<(u32, String)>,
    /// The term in which this node is recorded in the map as the owner.
    recorded: Option<u64>,
}

impl ShardTask {
    pub fn new(shared: Arc<Shared>, number: u32, watch: PoolWatch) -> ShardTask {
        ShardTask {
            shared,
            number,
            watch,
            running: None,
            starts: Retry::new(FIRST_RETRY),
            handovers: Retry::new(FIRST_HANDOVER_RETRY),
            missing_since: None,
            rank: (0, None),
        }
    }

    /// Runs until the node stops.
    pub async fn run(mut self) {
        let (mut map, mut stop) = (self.shared.map.clone(), self.shared.stop.clone());
        let mut interval = Duration::ZERO;
        while !*stop.borrow() {
            let rank = self.place_in(&map.borrow_and_update().map);
            if rank.is_none() && self.running.is_none() {
                self.shared.figures.forget(self.number);
                tokio::select! {
                    _ = map.changed() => {}
                    _ = stop.changed() => {}
                }
                continue;
            }
            let step = async {
                // Noticed once: a process that serves may end before it is recorded.
                let starting = self.running.as_ref().filter(|running| running.serving_since.is_none());
                let serves = starting.map(|running| running.process.serves());
                let sight = tokio::select! {
                    sight = self.watch.look(interval) => Some(sight),
                    () = async { if let Some(serves) = serves { serves.await } else { pending().await } } => None,
                };
                match sight {
                    Some(Ok(sight)) => self.act(rank, sight.as_ref()).await,
                    // An error is no sign of the state of the owner.
                    Some(Err(_)) => LOOK,
                    // Other nodes learn without delay where the shard is served.
                    None => {
                        self.note_end();
                        self.process(rank).await;
                        LOOK_CLOSELY
                    }
                }
            };
            interval = tokio::select! {
                interval = step => interval,
                _ = stop.changed() => break,
            };
        }
        self.end_process().await;
    }

    /// The place of this node in the ranking of the shard.
    fn place_in(&mut self, map: &Map) -> Option<usize> {
        if self.rank.0 != map.version {
            let own = |shard| map.place_in_ranking(shard, self.shared.number);
            self.rank = (map.version, map.shards.get(&self.number).and_then(own));
        }
        self.rank.1
    }

    /// Does what the state requires; returns the time until the next look.
    async fn act(&mut self, rank: Option<usize>, sight: Option<&Sight>) -> Duration {
        self.note_end();
        let is_owned_elsewhere =
            self.running.is_none() && sight.is_some_and(|seen| seen.is_serving && !seen.is_free);
        if is_owned_elsewhere && sight.is_some_and(|seen| seen.silent_for.is_zero()) {
            self.starts.succeeded();
        }
        self.missing_since = match sight {
            Some(_) => None,
            None => self.missing_since.or_else(|| Some(Instant::now())),
        };
        let process = self.process(rank).await;
        let is_watched = self.running.is_some() || rank.is_some_and(|rank| rank < RANKS);
        match is_watched {
            true => self.shared.figures.saw(self.number, process, sight),
            false => self.shared.figures.forget(self.number),
        }
        let view = View {
            rank,
            pool: sight,
            missing_for: self.missing_since.map_or(Duration::ZERO, |since| since.elapsed()),
            process,
            hands_over: self.hands_over(),
        };
        match decide(&view) {
            Action::Nothing => {}
            Action::Start(claim) => self.start(claim),
            Action::Stop => {
                tracing::info!(
                    "stopping the process of shard {}: another node is to own the shard",
                    self.number
                );
                self.end_process().await;
            }
            Action::HandOver => self.hand_over().await,
        }
        match sight {
            Some(seen) if seen.owner.is_some() && rank.is_some_and(|rank| rank < RANKS) => LOOK,
            _ if self.running.is_some() => LOOK,
            _ if rank.is_some_and(|rank| rank >= RANKS) => LOOK_SELDOM,
            _ => LOOK_CLOSELY,
        }
    }

    /// How far the process is. Records the ownership of one that has begun to serve.
    async fn process(&mut self, rank: Option<usize>) -> Process {
        let Some(running) = &mut self.running else { return Process::None };
        if running.process.nbd().is_none() {
            return Process::Starting(running.claim);
        }
        if running.serving_since.is_none() {
            running.serving_since = Some(Instant::now());
            if matches!(running.claim, Claim::Silent(_)) {
                self.shared.figures.takeovers.fetch_add(1, Relaxed);
            }
        }
        if running.recorded.is_some() && rank == Some(0) {
            return Process::Serving { standby: false };
        }
        let owner = running.process.owner().await;
        // A process that could not hand its pool over has the pool in another term.
        let unrecorded =
            owner.as_ref().map(|owner| owner.term).filter(|term| running.recorded != Some(*term));
        if let Some(term) = unrecorded {
            self.record_owner(term).await;
        }
        let standbys = owner.and_then(|owner| owner.standbys).unwrap_or_default();
        Process::Serving { standby: standbys.iter().any(|standby| standby.alive) }
    }

    fn hands_over(&self) -> bool {
        let seen = self.shared.map.borrow();
        let drains = seen.map.nodes.get(&self.shared.number).is_none_or(|node| !node.is_eligible());
        let home = seen.map.shards.get(&self.number).and_then(|shard| shard.home);
        let since = home.and_then(|home| seen.eligible_since.get(&home));
        let is_settled = since.is_some_and(|since| since.elapsed() >= self.shared.config.settle);
        (drains || is_settled) && self.handovers.is_due()
    }

    /// Notices that the process has ended.
    fn note_end(&mut self) {
        let Some(running) = &mut self.running else { return };
        let Some((status, reason)) = running.process.ended() else { return };
        if running.serving_since.is_some_and(|since| since.elapsed() >= HAS_SERVED) {
            self.starts.succeeded();
        }
        self.starts.failed();
        self.shared.figures.process_ends.fetch_add(1, Relaxed);
        let status = status.map_or_else(String::new, |status| status.to_string());
        tracing::warn!("the process of shard {} has ended ({status}): {reason}", self.number);
        self.running = None;
    }

    fn start(&mut self, claim: Claim) {
        if !self.starts.is_due() {
            return;
        }
        let seen = self.shared.map.borrow().clone();
        let Some(shard) = seen.map.shards.get(&self.number) else { return };
        let owner = shard.owner.filter(|owner| *owner != self.shared.number);
        let silent = match claim {
            Claim::Silent(_) => {
                owner.and_then(|owner| Some((owner, seen.map.nodes.get(&owner)?.process.clone())))
            }
            _ => None,
        };
        let own = ShardOf {
            cluster: self.shared.config.cluster.name.clone(),
            shard: self.number,
            nbd: self.shared.nbd.iter().map(ToString::to_string).collect(),
            portals: self.shared.portals.clone(),
            processes: processes_of_node(&seen.map),
        };
        tracing::info!("starting the process of shard {} ({})", self.number, reason(claim));
        match ShardProcess::start(&self.shared.config, &shard.namespace, &own, claim) {
            Ok(process) => {
                let (serving_since, recorded) = (None, None);
                self.running = Some(Running { process, claim, serving_since, silent, recorded });
            }
            Err(e) => {
                tracing::error!("the process of shard {} cannot be started: {e}", self.number);
                self.starts.failed();
            }
        }
    }

    async fn end_process(&mut self) {
        if let Some(running) = &mut self.running {
            running.process.stop().await;
        }
        self.running = None;
    }

    async fn hand_over(&mut self) {
        let shared = self.shared.clone();
        let Ok(_permit) = shared.handover.try_acquire() else { return };
        let Some(running) = &self.running else { return };
        match running.process.hand_over().await {
            Ok(to) => {
                tracing::info!(
                    "shard {} was handed over to {}; pause {} ms, {} connections were closed",
                    self.number,
                    to.owner,
                    to.pause_ms,
                    to.closed
                );
                shared.figures.handovers.fetch_add(1, Relaxed);
                shared.figures.handover_pause_ms.fetch_add(to.pause_ms, Relaxed);
                self.handovers.succeeded();
                self.end_process().await;
            }
            Err(e) => {
                tracing::warn!("shard {} was not handed over: {e}", self.number);
                shared.figures.handover_failures.fetch_add(1, Relaxed);
                self.handovers.failed();
            }
        }
    }

    /// Records in the map that this node owns the shard in this term. If the shard was taken over from a node
    /// that did not answer, that node is examined afterwards: clients wait for the record.
    async fn record_owner(&mut self, term: u64) {
        let Some(running) = &mut self.running else { return };
        let nbd = running.process.nbd().unwrap_or_default();
        let (own, number) = (self.shared.number, self.number);
        let changed = self.shared.maps.change(|map| {
            let change = Change::default();
            // A later owner may have recorded itself.
            let Some(shard) = map.shards.get(&number).filter(|shard| shard.term <= term) else {
                return Ok(change);
            };
            if shard.owner == Some(own) && shard.nbd == nbd && shard.term == term {
                return Ok(change);
            }
            let mut shard = shard.clone();
            (shard.owner, shard.nbd, shard.term) = (Some(own), nbd.clone(), term);
            Ok(change.set_shard(shard))
        });
        match changed.await {
            Ok(_) => {
                running.recorded = Some(term);
                self.shared.look.notify_one();
                if let Some((node, process)) = running.silent.take() {
                    tokio::spawn(suspect(self.shared.clone(), number, node, process));
                }
            }
            Err(e) => tracing::warn!("the owner of shard {number} cannot be recorded yet: {e}"),
        }
    }
}

/// Marks the process of a node from which this node has taken a shard over as suspect, unless the node serves
/// another shard: then only the process of one shard has failed.
async fn suspect(shared: Arc<Shared>, shard: u32, node: u32, process: String) {
    let map = shared.map.borrow().map.clone();
    let other = map.shards.values().find(|other| other.number != shard && other.owner == Some(node));
    if let Some(other) = other
        && let Ok(namespace) = shared.cluster.namespace(&other.namespace)
    {
        // In another term, yet another node has taken that shard over.
        let found = PoolWatch::new(namespace).observe().await.ok().flatten();
        if found.is_some_and(|(sight, lives)| lives && sight.sign.term == other.term) {
            return;
        }
    }
    let marked = shared.maps.change(|map| {
        let silent = map.nodes.get(&node).filter(|node| node.process == process);
        let marked = silent.map(|node| Node { suspect: process.clone(), ..node.clone() });
        Ok(marked.into_iter().fold(Change::default(), Change::set_node))
    });
    if let Err(e) = marked.await {
        tracing::warn!("a node that does not answer cannot be marked: {e}");
    }
}

/// The processes that share the memory of a node: its shards, also after one other node has failed.
fn processes_of_node(map: &Map) -> u64 {
    let others = map.candidates().len().saturating_sub(1).max(1);
    map.shards.len().div_ceil(others).max(1) as u64
}

fn reason(claim: Claim) -> &'static str {
    match claim {
        Claim::Free => "no node owns the shard",
        Claim::Silent(_) => "its owner does not answer",
        Claim::Standby => "its owner is to hand it over to this node",
    }
}
