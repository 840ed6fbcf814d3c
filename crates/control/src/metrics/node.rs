//! Metrics of a node of a cluster: what the node knows of the cluster, what it does about shards, and what it
//! forwards for clients.
//!
//! Every node reports the whole map, so alerts combine the nodes (`max by (node)`): a node that is cut off
//! from Ceph reports an old map, and the age of the map.

use std::time::Duration;

use super::families::process;
use super::merge::Merged;
use super::text::{Labels, NONE, Text, metrics, one, put};

/// What a node reports.
#[derive(Debug, Clone, Default)]
pub struct NodeSample {
    /// Time since the node joined the cluster.
    pub uptime: Duration,
    /// Version of the map of the cluster.
    pub map_version: u64,
    /// Time since the map was known to be the present one.
    pub map_age: Duration,
    /// The nodes of the cluster.
    pub nodes: Vec<NodeFigures>,
    /// Number of shards of the cluster.
    pub shards: usize,
    /// Shards that this node looks at often, and the time for which each has had no owner that lives.
    pub watched: Vec<(u32, Duration)>,
    /// Number of processes of shards that serve clients.
    pub serving: usize,
    /// Number of processes of shards that open a pool, or wait for it.
    pub starting: usize,
    /// Counters of the decisions about shards.
    pub moves: MoveFigures,
    /// Counters of the gateway for NBD clients.
    pub nbd: NbdFigures,
    /// Counters of links to this node, and from this node.
    pub links: LinkFigures,
    /// Requests of the API that were sent to a process of this node, to another node, and nowhere, since no
    /// node served the shard.
    pub api: [u64; 3],
}

/// A node as the map has it.
#[derive(Debug, Clone)]
pub struct NodeFigures {
    /// Name of the node.
    pub name: String,
    /// State of the node: one of [`STATES`].
    pub state: &'static str,
    /// Number of shards that the node has opened last.
    pub owned: u64,
    /// Number of shards whose home is the node.
    pub homes: u64,
}

/// The states of a node.
pub const STATES: [&str; 3] = ["up", "suspect", "draining"];

/// What a node has done about shards.
#[derive(Debug, Clone, Default)]
pub struct MoveFigures {
    /// Shards that this node has taken over from an owner that did not answer.
    pub takeovers: u64,
    /// Shards that this node has handed over to another node.
    pub handovers: u64,
    /// Time for which these shards were not served.
    pub handover_pause: Duration,
    /// Handovers that were refused or have failed.
    pub handover_failures: u64,
    /// Processes of shards that have ended, and that this node has not stopped.
    pub process_ends: u64,
}

/// What a gateway has done for NBD clients.
#[derive(Debug, Clone, Default)]
pub struct NbdFigures {
    /// Clients that are connected.
    pub clients: u64,
    /// Requests and their bytes by operation.
    pub requests: Vec<(&'static str, u64, u64)>,
    /// Times that a client was connected to an owner again.
    pub reconnects: u64,
    /// Requests that were sent to an owner again.
    pub repeated: u64,
    /// Clients that were disconnected because of an outage.
    pub given_up: u64,
    /// Bytes of unanswered requests and their replies.
    pub memory: u64,
}

/// Links between nodes.
#[derive(Debug, Clone, Default)]
pub struct LinkFigures {
    /// Open links of other nodes to this one.
    pub accepted: u64,
    /// Links of other nodes that did not begin, and attempts of this node to reach another one that failed.
    pub failures: [u64; 2],
}

metrics! {
    MAP_VERSION gauge "cluster_map_version" "Version of the map of the cluster that this node has.";
    MAP_AGE gauge "cluster_map_age_seconds" "Time since the map of this node was known to be the present one.";
    NODE_STATE gauge "cluster_node_state" "State of a node: 1 for the present one.";
    NODE_SHARDS gauge "cluster_node_shards" "Shards that a node has opened last.";
    NODE_HOMES gauge "cluster_node_homes" "Shards whose home is the node.";
    SHARDS gauge "cluster_shards" "Number of shards of the cluster.";
    UNOWNED gauge "cluster_shard_without_owner_seconds" "Time for which a shard has had no owner that lives, as the first nodes of its ranking see it.";
    PROCESSES gauge "node_shard_processes" "Processes of shards on this node.";
    ANSWERS gauge "node_shard_answers" "Whether the process of a shard returned its metrics in time; without it, they are absent.";
    TAKEOVERS counter "node_takeovers_total" "Shards that this node took over from an owner that did not answer.";
    HANDOVERS counter "node_handovers_total" "Shards that this node handed over to another node.";
    PAUSE counter "node_handover_pause_seconds_total" "Time for which shards were not served while this node handed them over.";
    HANDOVER_FAILURES counter "node_handover_failures_total" "Handovers of this node that were refused or have failed.";
    PROCESS_ENDS counter "node_shard_process_ends_total" "Processes of shards that have ended by themselves.";
    NBD_CLIENTS gauge "node_nbd_clients" "NBD clients of this node.";
    NBD_REQUESTS counter "node_nbd_requests_total" "Requests of NBD clients that this node has received.";
    NBD_BYTES counter "node_nbd_bytes_total" "Bytes of reads and writes of NBD clients of this node.";
    NBD_RECONNECTS counter "node_nbd_reconnects_total" "Times that this node connected an NBD client to an owner again.";
    NBD_REPEATED counter "node_nbd_repeated_requests_total" "Requests of NBD clients that this node sent again.";
    NBD_GIVEN_UP counter "node_nbd_given_up_total" "NBD clients that this node disconnected because of an outage.";
    NBD_MEMORY gauge "node_nbd_memory_bytes" "Memory for unanswered requests of NBD clients and their replies.";
    LINKS gauge "node_links" "Open links of other nodes to this one.";
    LINK_FAILURES counter "node_link_failures_total" "Links between nodes that could not be opened.";
    API_REQUESTS counter "node_api_requests_total" "Requests of the API that this node sent to the owner of a shard.";
    API_FAILURES counter "node_api_failures_total" "Attempts to reach the owner of a shard for a request of the API that failed.";
}

/// All metrics of a node, and those of its shards. The metrics of a shard are absent if its server did not
/// return them.
pub fn render(sample: &NodeSample, shards: &[(u32, Option<String>)]) -> String {
    let mut text = Text::default();
    process(&mut text, sample.uptime);
    cluster(&mut text, sample);
    text.begin(&ANSWERS);
    for (shard, metrics) in shards {
        let value = f64::from(u8::from(metrics.is_some()));
        text.series(ANSWERS.name, &[("shard", &shard.to_string())], value);
    }
    moves(&mut text, sample);
    clients(&mut text, sample);
    let mut merged = Merged::default();
    merged.add(&text.finish(), None);
    for (shard, metrics) in shards {
        if let Some(metrics) = metrics {
            merged.add(metrics, Some(*shard));
        }
    }
    merged.finish()
}

fn cluster(text: &mut Text, s: &NodeSample) {
    one(text, &MAP_VERSION, s.map_version);
    put(text, &MAP_AGE, &[(NONE, s.map_age.as_secs_f64())]);
    text.begin(&NODE_STATE);
    for node in &s.nodes {
        for state in STATES {
            let is_present = f64::from(u8::from(node.state == state));
            text.series(NODE_STATE.name, &[("node", &node.name), ("state", state)], is_present);
        }
    }
    text.begin(&NODE_SHARDS);
    for node in &s.nodes {
        text.series(NODE_SHARDS.name, &[("node", &node.name)], node.owned as f64);
    }
    text.begin(&NODE_HOMES);
    for node in &s.nodes {
        text.series(NODE_HOMES.name, &[("node", &node.name)], node.homes as f64);
    }
    one(text, &SHARDS, s.shards as u64);
    text.begin(&UNOWNED);
    for (shard, time) in &s.watched {
        text.series(UNOWNED.name, &[("shard", &shard.to_string())], time.as_secs_f64());
    }
}

fn moves(text: &mut Text, s: &NodeSample) {
    let (serving, starting): (Labels<'_>, Labels<'_>) = (&[("state", "serving")], &[("state", "starting")]);
    put(text, &PROCESSES, &[(serving, s.serving as f64), (starting, s.starting as f64)]);
    let moves = &s.moves;
    one(text, &TAKEOVERS, moves.takeovers);
    one(text, &HANDOVERS, moves.handovers);
    put(text, &PAUSE, &[(NONE, moves.handover_pause.as_secs_f64())]);
    one(text, &HANDOVER_FAILURES, moves.handover_failures);
    one(text, &PROCESS_ENDS, moves.process_ends);
}

fn clients(text: &mut Text, s: &NodeSample) {
    let nbd = &s.nbd;
    one(text, &NBD_CLIENTS, nbd.clients);
    text.begin(&NBD_REQUESTS);
    for (op, requests, _) in &nbd.requests {
        text.series(NBD_REQUESTS.name, &[("op", op)], *requests as f64);
    }
    text.begin(&NBD_BYTES);
    for (op, _, bytes) in nbd.requests.iter().filter(|(op, ..)| ["read", "write"].contains(op)) {
        text.series(NBD_BYTES.name, &[("op", op)], *bytes as f64);
    }
    one(text, &NBD_RECONNECTS, nbd.reconnects);
    one(text, &NBD_REPEATED, nbd.repeated);
    one(text, &NBD_GIVEN_UP, nbd.given_up);
    one(text, &NBD_MEMORY, nbd.memory);
    one(text, &LINKS, s.links.accepted);
    let [accepted, opened] = s.links.failures;
    let (inward, outward): (Labels<'_>, Labels<'_>) = (&[("direction", "in")], &[("direction", "out")]);
    put(text, &LINK_FAILURES, &[(inward, accepted as f64), (outward, opened as f64)]);
    let [own, others, failed] = s.api;
    let (here, there): (Labels<'_>, Labels<'_>) = (&[("to", "own")], &[("to", "other")]);
    put(text, &API_REQUESTS, &[(here, own as f64), (there, others as f64)]);
    one(text, &API_FAILURES, failed);
}
