//! How long requests of guests take, and what their connections occupy, in the API.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::metrics::Observed;
use crate::plane::{BOUNDS_NS, Front, Served};

/// Times from the receipt of a request until its reply was ready, since the server was started.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct LatencyView {
    /// Upper bounds of the buckets in microseconds. One further bucket has no bound.
    pub bounds_us: Vec<u64>,
    /// The requests of each front end and path.
    pub paths: Vec<PathLatencyView>,
}

/// The times of the requests of a front end that took a path.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct PathLatencyView {
    /// `nbd` or `iscsi`.
    pub front_end: String,
    /// How they were served: `ram` and `store` are reads, `buffered` and `durable` are changes.
    pub path: String,
    /// Number of requests in each bucket.
    pub buckets: Vec<u64>,
    /// Sum of their times in microseconds.
    pub sum_us: u64,
}

/// Connections of guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ClientsView {
    /// Connections, including those that are negotiating.
    pub connections: u64,
    /// iSCSI sessions at targets.
    pub iscsi_sessions: u64,
    /// Memory that the server holds for them.
    pub memory_bytes: u64,
    /// Memory that the server may hold for them.
    pub memory_budget_bytes: u64,
}

impl LatencyView {
    pub(super) fn new(observed: &Observed) -> LatencyView {
        let path = |front: Front, served: Served| {
            let counts = observed.plane.latencies(front, served);
            PathLatencyView {
                front_end: front.name().to_owned(),
                path: served.name().to_owned(),
                buckets: counts.buckets.to_vec(),
                sum_us: counts.sum_ns / 1000,
            }
        };
        let all = Front::ALL.into_iter().flat_map(|front| Served::ALL.map(|served| path(front, served)));
        LatencyView { bounds_us: BOUNDS_NS.iter().map(|ns| ns / 1000).collect(), paths: all.collect() }
    }
}

impl ClientsView {
    pub(super) fn new(observed: &Observed, iscsi_sessions: usize) -> ClientsView {
        let (memory, budget) = observed.plane.memory();
        ClientsView {
            connections: observed.plane.connections() as u64,
            iscsi_sessions: iscsi_sessions as u64,
            memory_bytes: memory as u64,
            memory_budget_bytes: budget as u64,
        }
    }
}
