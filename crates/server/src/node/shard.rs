//! The task of one shard at a node: it looks at the pool, decides, and starts, stops and hands over.

use std::sync::Arc;
use std::time::Duration;

use forebay_cluster::map::{Change, Map, Maps};
use forebay_store::rados::{PoolWatch, Sight};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use super::NodeConfig;
use super::decide::{Action, Claim, Process, RANKS, View, decide};
use super::process::ShardProcess;

/// Interval of looks at a pool whose owner lives, and at one that may have to be taken.
const LOOK: Duration = Duration::from_secs(1);
const LOOK_CLOSELY: Duration = Duration::from_millis(250);
/// Silence of an owner, in excess of the second between its heartbeats, from which the node looks closely.
const MISSED_BEAT: Duration = Duration::from_millis(1500);
/// Pause before a process that has failed is started again: at first, and at most.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(60);
/// A process that has run for this long did not fail at its start.
const HAS_RUN: Duration = Duration::from_secs(30);

/// What the tasks of a node share.
pub(super) struct Shared {
    pub config: NodeConfig,
    pub number: u32,
    pub maps: Maps,
    /// The map, and when the membership changed last.
    pub map: watch::Receiver<Seen>,
    /// One pool at a time is handed over.
    pub handover: Semaphore,
    pub stop: watch::Receiver<bool>,
}

/// The map as this node has read it.
#[derive(Clone)]
pub(super) struct Seen {
    pub map: Arc<Map>,
    pub members_since: Instant,
}

/// The task of one shard.
pub(super) struct ShardTask {
    shared: Arc<Shared>,
    number: u32,
    watch: PoolWatch,
    running: Option<Running>,
    /// The pause before the next start, and when it ends.
    retry: (Duration, Instant),
}

struct Running {
    process: ShardProcess,
    claim: Claim,
    started: Instant,
    /// The map says that this node is the owner.
    is_recorded: bool,
}

impl ShardTask {
    pub fn new(shared: Arc<Shared>, number: u32, watch: PoolWatch) -> ShardTask {
        ShardTask { shared, number, watch, running: None, retry: (FIRST_RETRY, Instant::now()) }
    }

    /// Runs until the node stops.
    pub async fn run(mut self) {
        let (mut map, mut stop) = (self.shared.map.clone(), self.shared.stop.clone());
        let mut interval = Duration::ZERO;
        while !*stop.borrow() {
            let rank = self.rank(&map.borrow_and_update().map);
            if rank.is_none() && self.running.is_none() {
                tokio::select! {
                    _ = map.changed() => {}
                    _ = stop.changed() => {}
                }
                continue;
            }
            let seen = tokio::select! {
                seen = self.watch.look(interval) => seen,
                _ = stop.changed() => break,
            };
            // An error of the cluster is logged by the watch, and is no sign of the owner's state.
            let Ok(sight) = seen else { continue };
            interval = self.act(rank, sight.as_ref()).await;
        }
        if let Some(mut running) = self.running.take() {
            running.process.stop().await;
        }
    }

    /// The place of this node in the ranking, if the node is to look at the shard.
    fn rank(&self, map: &Map) -> Option<usize> {
        let shard = map.shards.get(&self.number)?;
        let rank = map.ranking(shard).iter().position(|node| *node == self.shared.number)?;
        (rank < RANKS).then_some(rank)
    }

    /// Does what the state requires; returns the time until the next look.
    async fn act(&mut self, rank: Option<usize>, sight: Option<&Sight>) -> Duration {
        self.note_end();
        let process = match &self.running {
            None => Process::None,
            Some(running) => match running.process.nbd() {
                None => Process::Starting,
                Some(_) => {
                    Process::Serving { standby: rank != Some(0) && running.process.has_standby().await }
                }
            },
        };
        if let Process::Serving { .. } = process {
            self.record_owner().await;
        }
        let view = View { rank, pool: sight, process, hands_over: self.hands_over() };
        match decide(&view) {
            Action::Nothing => {}
            Action::Start(claim) => self.start(claim),
            Action::Stop => self.stop().await,
            Action::HandOver => self.hand_over().await,
        }
        let is_quiet = sight.is_some_and(|seen| seen.owner.is_some() && seen.silent_for < MISSED_BEAT);
        if is_quiet { LOOK } else { LOOK_CLOSELY }
    }

    fn hands_over(&self) -> bool {
        let seen = self.shared.map.borrow();
        let drains = seen.map.nodes.get(&self.shared.number).is_none_or(|node| !node.is_eligible());
        drains || seen.members_since.elapsed() >= self.shared.config.settle
    }

    /// Notices that the process has ended.
    fn note_end(&mut self) {
        let Some(running) = &mut self.running else { return };
        let Some((status, reason)) = running.process.ended() else { return };
        let pause = match running.started.elapsed() >= HAS_RUN {
            true => FIRST_RETRY,
            false => (self.retry.0 * 2).min(LAST_RETRY),
        };
        let status = status.map_or_else(String::new, |status| status.to_string());
        tracing::warn!("the process of shard {} has ended ({status}): {reason}", self.number);
        self.retry = (pause, Instant::now() + pause);
        self.running = None;
    }

    fn start(&mut self, claim: Claim) {
        if Instant::now() < self.retry.1 {
            return;
        }
        let (namespace, budget) = {
            let seen = self.shared.map.borrow();
            let Some(shard) = seen.map.shards.get(&self.number) else { return };
            (shard.namespace.clone(), self.shared.config.cache / shards_per_node(&seen.map))
        };
        tracing::info!("starting the process of shard {} ({})", self.number, reason(claim));
        match ShardProcess::start(&self.shared.config, self.number, &namespace, claim, budget) {
            Ok(process) => {
                self.running = Some(Running { process, claim, started: Instant::now(), is_recorded: false });
            }
            Err(e) => {
                tracing::error!("the process of shard {} cannot be started: {e}", self.number);
                self.retry = (self.retry.0, Instant::now() + self.retry.0);
            }
        }
    }

    async fn stop(&mut self) {
        if let Some(mut running) = self.running.take() {
            tracing::info!("stopping the process of shard {}: another node is to own the shard", self.number);
            running.process.stop().await;
        }
    }

    async fn hand_over(&mut self) {
        let Ok(_permit) = self.shared.handover.try_acquire() else { return };
        let Some(mut running) = self.running.take() else { return };
        match running.process.hand_over().await {
            Ok(to) => {
                tracing::info!(
                    "shard {} was handed over to {}; pause {} ms, {} connections were closed",
                    self.number,
                    to.owner,
                    to.pause_ms,
                    to.closed
                );
                // A standby would wait for the pool again.
                running.process.stop().await;
            }
            Err(e) => {
                tracing::warn!("shard {} was not handed over: {e}", self.number);
                self.running = Some(running);
            }
        }
    }

    /// Records in the map that this node owns the shard, and that the owner before did not answer if the
    /// shard was taken over from it.
    async fn record_owner(&mut self) {
        let Some(running) = self.running.as_mut().filter(|running| !running.is_recorded) else { return };
        let (own, number) = (self.shared.number, self.number);
        let (nbd, claim) = (running.process.nbd().unwrap_or_default(), running.claim);
        let changed = self.shared.maps.change(|map| {
            let Some(shard) = map.shards.get(&number) else { return Ok(Change::default()) };
            let mut change = Change::default();
            let before = shard.owner.filter(|owner| *owner != own).and_then(|owner| map.nodes.get(&owner));
            if let (Some(node), Claim::Silent(_)) = (before, claim)
                && !node.is_suspect()
            {
                let mut node = node.clone();
                node.suspect.clone_from(&node.process);
                change = change.set_node(node);
            }
            if shard.owner != Some(own) || shard.nbd != nbd {
                let mut shard = shard.clone();
                (shard.owner, shard.nbd) = (Some(own), nbd.clone());
                change = change.set_shard(shard);
            }
            Ok(change)
        });
        match changed.await {
            Ok(_) => running.is_recorded = true,
            Err(e) => tracing::warn!("the owner of shard {number} cannot be recorded yet: {e}"),
        }
    }
}

/// The shards that a node has at most while all members are up.
fn shards_per_node(map: &Map) -> u64 {
    let nodes = map.candidates().len().max(1);
    map.shards.len().div_ceil(nodes).max(1) as u64
}

fn reason(claim: Claim) -> &'static str {
    match claim {
        Claim::Free => "no node owns the shard",
        Claim::Silent(_) => "its owner does not answer",
        Claim::Standby => "its owner is to hand it over to this node",
    }
}
