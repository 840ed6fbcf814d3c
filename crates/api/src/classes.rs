//! Block classes in the API.

use forebay_guest::{Class, Content};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// `GET /volumes/{name}/classes`: the block classes of a disk.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct ClassesView {
    /// Time of the last scan in Unix milliseconds; `None` before the first.
    pub learned_ms: Option<u64>,
    /// The content of each partition.
    #[schema(value_type = Vec<String>, example = json!(["ntfs"]))]
    pub file_systems: Vec<Content>,
    /// All classes; empty before the first scan.
    pub classes: Vec<ClassView>,
}

/// A block class.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ClassView {
    /// The class.
    #[schema(value_type = String, example = "page")]
    pub class: Class,
    /// Bytes of the disk in this class.
    pub bytes: u64,
    /// Bytes written to blocks of this class since the pool was opened.
    pub written_bytes: u64,
    /// Sampled reads (one in sixteen) that were served from RAM.
    pub read_hits: u64,
    /// Sampled reads (one in sixteen) that waited for the store.
    pub read_misses: u64,
    /// Share of the sampled reads that were served from RAM; `None` before the first.
    pub hit_rate: Option<f64>,
}
