//! Caches in the API: sizes, hits, and what a larger read cache would save.

use forebay_guest::Class;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A cache.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct CacheView {
    /// Hits.
    pub hits: u64,
    /// Misses.
    pub misses: u64,
    /// Share of look-ups that are hits; `None` before the first look-up.
    pub hit_rate: Option<f64>,
    /// Bytes in the cache.
    pub bytes: u64,
    /// Budget in bytes.
    pub budget_bytes: u64,
}

/// The read cache.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct ReadCacheView {
    /// Look-ups of blocks that hit.
    pub hits: u64,
    /// Look-ups of blocks that missed.
    pub misses: u64,
    /// Share of look-ups that are hits; `None` before the first look-up.
    pub hit_rate: Option<f64>,
    /// Bytes in the cache, the simulation behind `advice` included.
    pub bytes: u64,
    /// Budget in bytes.
    pub budget_bytes: u64,
    /// Blocks that were evicted.
    pub evictions: u64,
    /// What larger caches would save, by size; empty before enough samples are known, and in caches under 60
    /// MiB.
    pub advice: Vec<CacheAdviceView>,
    /// Reads of guests by the class of their first block; all are 0 as long as no disk was scanned.
    pub classes: Vec<ClassReadsView>,
}

/// What a larger read cache would save.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CacheAdviceView {
    /// Its size.
    pub size_bytes: u64,
    /// How much larger it is than the present budget, in percent.
    #[schema(example = 10)]
    pub more_percent: u64,
    /// Estimated misses of blocks that would have been hits.
    pub saved_reads: u64,
    /// The same for each second, in the last one or two minutes; `None` if that is not known yet.
    pub saved_reads_per_s: Option<f64>,
}

/// Reads of one class.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClassReadsView {
    /// The class.
    #[schema(value_type = String, example = "code")]
    pub class: Class,
    /// Reads that were served from RAM, estimated from one of sixteen.
    pub hits: u64,
    /// Reads that waited for the store, estimated from one of sixteen.
    pub misses: u64,
    /// Share of reads that were served from RAM; `None` before the first.
    pub hit_rate: Option<f64>,
}
