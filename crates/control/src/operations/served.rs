//! How long requests of guests take, and what their connections occupy, in the API.

use forebay_api::{ClientsView, LatencyView, PathLatencyView};
use forebay_frontend::plane::{BOUNDS_NS, Front, Served};

use crate::metrics::Observed;

/// The times of requests of all front ends.
pub(super) fn latency_view(observed: &Observed) -> LatencyView {
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

/// What the connections of guests occupy.
pub(super) fn clients_view(observed: &Observed, iscsi_sessions: usize) -> ClientsView {
    let (memory, budget) = observed.plane.memory();
    ClientsView {
        connections: observed.plane.connections() as u64,
        iscsi_sessions: iscsi_sessions as u64,
        memory_bytes: memory as u64,
        memory_budget_bytes: budget as u64,
    }
}
