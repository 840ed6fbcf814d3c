//! What the server observes in addition to the pool: for metrics, and for the statistics of the API.

use std::sync::Arc;
use std::time::Duration;

use forebay_frontend::nbd::Clients;
use forebay_frontend::plane::PlaneCounters;
use forebay_store::rados::Standby;
use forebay_text::NamePattern;

/// Default of `max_volumes`.
const MAX_VOLUMES: usize = 2000;

/// The volumes with separate series.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeSeries {
    /// Name patterns of the volumes; there are none by default.
    pub volumes: Vec<NamePattern>,
    /// Maximum number of volumes.
    pub max: usize,
}

impl Default for VolumeSeries {
    fn default() -> VolumeSeries {
        VolumeSeries { volumes: Vec::new(), max: MAX_VOLUMES }
    }
}

/// The ownership of a pool in Ceph.
#[derive(Clone)]
pub struct Held {
    /// Name of this server, as the pool states it.
    pub owner: String,
    /// Term of the ownership.
    pub term: u64,
    /// How long it is still certain that no other server has the pool.
    pub lease_left: Arc<dyn Fn() -> Duration + Send + Sync>,
    /// The servers that wait for the pool; `None` before they were first read.
    pub standbys: Option<Vec<Standby>>,
}

/// What is measured in addition to the pool.
#[derive(Clone, Default)]
pub struct Observed {
    /// Counters of the data plane.
    pub plane: PlaneCounters,
    /// The ownership of the pool, if the pool is in Ceph.
    pub held: Option<Held>,
    /// The connected NBD clients.
    pub nbd: Clients,
    /// Budget of the write buffers in bytes.
    pub write_buffer: u64,
    /// The volumes with separate series.
    pub series: VolumeSeries,
}
