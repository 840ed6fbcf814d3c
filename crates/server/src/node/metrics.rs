//! `GET /metrics` at a node: its own figures, and the metrics of the processes of its shards.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use forebay_api::NodeStateView;
use forebay_control::front::NodeMetrics;
use forebay_control::metrics::node::{LinkFigures, MoveFigures, NbdFigures, NodeFigures, NodeSample, render};
use forebay_gateway::api::{Cluster, texts};
use forebay_gateway::nbd;
use forebay_store::BoxFuture;
use tokio::sync::Semaphore;

use super::decide::Process;
use super::gateway::{Gateway, nodes};

/// What the metrics of a node are made of.
pub(super) struct MetricsOfNode {
    gateway: Arc<Gateway>,
    nbd: Arc<nbd::Gateway>,
    /// One scrape at a time asks the processes: a text can have megabytes.
    scrape: Semaphore,
}

impl MetricsOfNode {
    pub fn new(gateway: Arc<Gateway>, nbd: Arc<nbd::Gateway>) -> MetricsOfNode {
        MetricsOfNode { gateway, nbd, scrape: Semaphore::new(1) }
    }

    fn sample(&self) -> NodeSample {
        let (figures, map) = (self.gateway.figures(), self.gateway.map());
        let of = |count: &AtomicU64| count.load(Relaxed);
        let watched = figures.watched();
        let count = |is: fn(&Process) -> bool| watched.values().filter(|shard| is(&shard.process)).count();
        let counters = self.nbd.counters();
        let requests = nbd::OPERATIONS.into_iter().zip(&counters.requests).zip(&counters.bytes);
        let (own, other) = (of(&figures.api_own), of(&figures.api_other));
        NodeSample {
            uptime: figures.started.elapsed(),
            map_version: map.version,
            map_age: figures.map_age(),
            nodes: nodes(&map)
                .into_iter()
                .map(|node| NodeFigures {
                    name: node.name,
                    state: match node.state {
                        NodeStateView::Up => "up",
                        NodeStateView::Suspect => "suspect",
                        NodeStateView::Draining => "draining",
                    },
                    owned: node.owned as u64,
                    homes: node.homes as u64,
                })
                .collect(),
            shards: map.shards.len(),
            watched: watched.iter().map(|(shard, watched)| (*shard, watched.unowned_for())).collect(),
            serving: count(|process| matches!(process, Process::Serving { .. })),
            starting: count(|process| matches!(process, Process::Starting(_))),
            moves: MoveFigures {
                takeovers: of(&figures.takeovers),
                handovers: of(&figures.handovers),
                handover_pause: Duration::from_millis(of(&figures.handover_pause_ms)),
                handover_failures: of(&figures.handover_failures),
                process_ends: of(&figures.process_ends),
            },
            nbd: NbdFigures {
                clients: of(&counters.clients),
                requests: requests.map(|((op, requests), bytes)| (op, of(requests), of(bytes))).collect(),
                reconnects: of(&counters.reconnected),
                repeated: of(&counters.repeated),
                given_up: of(&counters.given_up),
                memory: self.nbd.held_memory() as u64,
            },
            links: LinkFigures {
                accepted: of(&figures.links.accepted),
                failures: [of(&figures.links.not_begun), of(&figures.links.unreachable)],
            },
            api: [own, other, of(&figures.api_failed)],
        }
    }
}

impl NodeMetrics for MetricsOfNode {
    fn render(&self) -> BoxFuture<'_, String> {
        Box::pin(async move {
            // The semaphore is never closed.
            let _turn = self.scrape.acquire().await;
            let cluster: Arc<dyn Cluster> = self.gateway.clone();
            let shards = texts(&cluster, &cluster.own_shards(), "/metrics").await;
            render(&self.sample(), &shards)
        })
    }
}
