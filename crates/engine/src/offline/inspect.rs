//! Lists the contents of a pool that no server has open, without verifying them.

use forebay_format::{Entry, Features, SegmentHeader, SegmentId, Superblock};
use forebay_store::Store;
use serde::Serialize;

use crate::log::{Scanned, describe, scan_segment};
use crate::{Error, Result};

/// One copy of the superblock.
#[derive(Debug, Clone, Serialize)]
pub struct SuperblockView {
    /// Index of the superblock copy.
    pub copy: usize,
    /// Why the copy cannot be read; `None` if it can. The other fields are empty if it cannot.
    pub error: Option<String>,
    /// Id of the pool.
    pub pool: String,
    /// Generation of the superblock: incremented by each write.
    pub generation: u64,
    /// Epoch of the pool's ownership.
    pub epoch: u64,
    /// Time of the pool's creation, in Unix milliseconds.
    pub created_ms: u64,
    /// Size at which segments are sealed.
    pub segment_bytes: u32,
    /// Last batch that the checkpoint covers.
    pub checkpoint_seq: u64,
    /// Bytes of the checkpoint.
    pub checkpoint_bytes: u64,
    /// Features of the pool.
    pub features: FeaturesView,
}

/// The features of a pool: the numbers of their bits.
#[derive(Debug, Clone, Default, Serialize)]
pub struct FeaturesView {
    /// Features that every release may ignore.
    pub compatible: Vec<u32>,
    /// Features that a release has to know to change the pool.
    pub read_only_compatible: Vec<u32>,
    /// Features that a release has to know to read the pool.
    pub incompatible: Vec<u32>,
}

impl FeaturesView {
    fn of(features: Features) -> FeaturesView {
        let bits = |word| Features::bits(word).collect();
        FeaturesView {
            compatible: bits(features.compatible),
            read_only_compatible: bits(features.read_only),
            incompatible: bits(features.incompatible),
        }
    }
}

/// What the header of a segment states.
#[derive(Debug, Clone, Serialize)]
pub struct SegmentView {
    /// Segment number, as in the file name.
    pub segment: String,
    /// Bytes of the segment's object, including preallocated room.
    pub bytes: u64,
    /// Stream of the segment: `data`, `short`, `map`, `moved`; empty if the header cannot be read.
    pub stream: String,
    /// Epoch of the server that began the segment.
    pub epoch: u64,
    /// Sequence number of the segment's first batch.
    pub first_seq: u64,
    /// Why the header cannot be read; `None` if it can.
    pub error: Option<String>,
}

/// A batch of the log.
#[derive(Debug, Clone, Default, Serialize)]
pub struct BatchView {
    /// Byte offset of the batch in the segment.
    pub offset: u64,
    /// Sequence number of the batch.
    pub seq: u64,
    /// Epoch of the server that wrote the batch.
    pub epoch: u64,
    /// Whether the batch ends its group.
    pub group_end: bool,
    /// Bytes of the batch's payload.
    pub payload_bytes: u64,
    /// Number of entries that store blocks.
    pub puts: u64,
    /// Number of entries that refer to stored blocks.
    pub references: u64,
    /// Number of entries for zeroed ranges.
    pub zeroes: u64,
    /// Number of entries for map nodes.
    pub nodes: u64,
    /// Number of entries for pieces of checkpoints.
    pub blobs: u64,
    /// Number of entries for segments whose slots were moved.
    pub relocations: u64,
    /// The changes to the catalogue, described in words.
    pub catalogue: Vec<String>,
}

/// Reads both superblock copies.
pub async fn inspect_superblocks(store: &dyn Store) -> Result<Vec<SuperblockView>> {
    let copies = store.read_superblock().await?;
    let view = |(copy, bytes): (usize, &Option<Vec<u8>>)| {
        let decoded = match bytes {
            Some(bytes) => Superblock::decode(bytes).map_err(|e| e.to_string()),
            None => Err("it is missing".to_owned()),
        };
        let error = decoded.as_ref().err().cloned();
        let s = decoded.ok();
        SuperblockView {
            copy,
            error,
            pool: s.as_ref().map_or_else(String::new, |s| s.pool.to_string()),
            generation: s.as_ref().map_or(0, |s| s.generation),
            epoch: s.as_ref().map_or(0, |s| s.epoch),
            created_ms: s.as_ref().map_or(0, |s| s.created_ms),
            segment_bytes: s.as_ref().map_or(0, |s| s.segment_bytes),
            checkpoint_seq: s.as_ref().map_or(0, |s| s.seq),
            checkpoint_bytes: s.as_ref().map_or(0, |s| s.blobs.iter().map(|b| b.len as u64).sum()),
            features: s.as_ref().map(|s| FeaturesView::of(s.features)).unwrap_or_default(),
        }
    };
    Ok(copies.iter().enumerate().map(view).collect())
}

async fn superblock(store: &dyn Store) -> Result<Superblock> {
    let copies = store.read_superblock().await?;
    if copies.iter().all(Option::is_none) {
        return Err(Error::NoPool("there is no superblock".into()));
    }
    Ok(Superblock::choose([copies[0].as_deref(), copies[1].as_deref()])?)
}

/// Reads the headers of all segments.
pub async fn inspect_segments(store: &dyn Store) -> Result<Vec<SegmentView>> {
    let pool = superblock(store).await?.pool;
    let mut views = Vec::new();
    for object in store.list().await? {
        let head = store.read(object.id, 0, forebay_format::BLOCK).await?;
        let header = SegmentHeader::decode(&head, pool, object.id);
        views.push(SegmentView {
            segment: object.id.to_string(),
            bytes: object.len,
            stream: header
                .as_ref()
                .map_or_else(|_| String::new(), |h| format!("{:?}", h.stream).to_lowercase()),
            epoch: header.as_ref().map_or(0, |h| h.epoch),
            first_seq: header.as_ref().map_or(0, |h| h.first_seq),
            error: header.err().map(|e| e.to_string()),
        });
    }
    Ok(views)
}

/// Reads the batches of a segment, up to the first gap.
pub async fn inspect_batches(store: &dyn Store, segment: SegmentId) -> Result<Vec<BatchView>> {
    let pool = superblock(store).await?.pool;
    let objects = store.list().await?;
    let object = objects.iter().find(|o| o.id == segment);
    let len = object.ok_or_else(|| Error::NotFound(format!("segment {segment}")))?.len;
    let batches = scan_segment(store, pool, segment, None, len).await?;
    let view = |batch: &Scanned| {
        let mut view = BatchView {
            offset: batch.header.offset as u64,
            seq: batch.header.seq,
            epoch: batch.header.epoch,
            group_end: batch.header.flags & forebay_format::GROUP_END != 0,
            payload_bytes: batch.payload.end - batch.payload.start,
            ..BatchView::default()
        };
        for entry in batch.entries().flatten() {
            match entry {
                Entry::Put { .. } => view.puts += 1,
                Entry::Reference { .. } => view.references += 1,
                Entry::Zero { .. } => view.zeroes += 1,
                Entry::Node { .. } => view.nodes += 1,
                Entry::Blob { .. } => view.blobs += 1,
                Entry::Catalogue(op) => view.catalogue.push(describe(&op)),
                Entry::Relocate { .. } => view.relocations += 1,
            }
        }
        view
    };
    Ok(batches.iter().map(view).collect())
}
