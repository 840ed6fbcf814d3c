//! Counts of references for the block maps of one checkpoint.
//!
//! *The invariant*: for the disks in `disks`, with these roots,
//!
//! - the count of a node in `nodes` is the number of references to it as a child: from roots, and from the
//!   entries of nodes whose own count is above zero. Its value is the number of blocks below it;
//! - the count of a slot in `slots` is the sum of three numbers: the entries that refer to the slot, in
//!   leaves whose own count is above zero; the number of such leaves whose base is stored in the slot; and
//!   one if `nodes` has a count for the slot. The entries that a leaf inherits from its base
//!   ([`Node::uncovered`](crate::map::Node::uncovered)) count as entries of the leaf.
//!
//! So a slot is live, as [`super::mark`] defines it, exactly if it has a count in `slots`. A stored node
//! never changes, and a segment number is never used again. Therefore the counts depend on the roots alone,
//! and stay valid while segments are moved. A segment that is dropped has no counts.

use std::collections::BTreeMap;

use forebay_format::{Address, BLOCK, BlockRef, Codec, DiskId, MapValue, Role, SegmentId};
use hashbrown::HashMap;
use roaring::RoaringBitmap;

use super::deltas::Delta;
use super::scratch::Scratch;
use super::table::{Table, apply};
use crate::Result;
use crate::commit::Taken;
use crate::disk::blocks;
use crate::hash::BuildU64Hasher;
use crate::map::{NeedNode, Ref, Tree};
use crate::read::RelocationRef;

/// The live slots of a segment, in total.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Live {
    pub slots: u64,
    /// Bytes that the live slots took when they were written.
    pub bytes: u64,
    /// Number of these slots that were reached from an image when the image was first marked; at most
    /// `slots`. The slots stay in this number when the image is deleted.
    pub of_images: u64,
    /// Bytes that the live slots take at their present location; differs from `bytes` once the segment is
    /// moved.
    pub stored: u64,
    /// The relocation map from which `stored` was computed.
    pub moved: Option<RelocationRef>,
}

/// A disk that the checkpoint contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MarkedDisk {
    root: Option<NeedNode>,
    is_image: bool,
    /// Number of blocks below the root, once that was looked up.
    mapped: Option<u64>,
}

/// What is known of the exclusive space of a disk.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Exclusive {
    /// Number of the mark after which the exclusive space was determined, or attempted.
    pub mark: u64,
    /// Number of nodes that were read to determine it; twice as many if that did not suffice.
    pub cost: u64,
    /// Its bytes, and when they were found, in Unix milliseconds; `None` before the first success.
    pub found: Option<(u64, u64)>,
}

/// Counts of the references to slots; see the module documentation.
#[derive(Debug)]
pub(super) struct Counts {
    pub nodes: Table,
    pub slots: Table,
    /// Totals of the segments that have counts in `slots`.
    pub live: BTreeMap<SegmentId, Live>,
    /// Number of distinct live blocks of the pool; the other live slots are nodes, or belong to images of the
    /// cluster.
    pub blocks: u64,
    disks: BTreeMap<DiskId, MarkedDisk>,
    /// Number of marks that led to these counts.
    pub marks: u64,
    pub exclusive: HashMap<DiskId, Exclusive, BuildU64Hasher>,
    /// Number of nodes that may be read to determine exclusive space.
    pub credit: u64,
}

impl Default for Counts {
    /// Counts without any disk.
    fn default() -> Counts {
        Counts {
            nodes: Table::with_values(),
            slots: Table::default(),
            live: BTreeMap::new(),
            blocks: 0,
            disks: BTreeMap::new(),
            marks: 0,
            exclusive: HashMap::default(),
            credit: 0,
        }
    }
}

/// The change of a count by a reference from a root.
pub(super) fn root_delta(root: &NeedNode, by: i64, of_image: bool) -> Delta {
    Delta { at: root.at, by, index: root.index_bits(), is_block: false, of_image }
}

impl Counts {
    /// Bytes that the counts take in memory.
    pub fn bytes(&self) -> usize {
        self.nodes.bytes() + self.slots.bytes()
    }

    /// Whether the counts can be kept when the reclaim ends.
    pub fn is_in_memory(&self) -> bool {
        self.nodes.is_in_memory() && self.slots.is_in_memory()
    }

    /// Replaces the disks by the disks of a checkpoint. Returns the changes of the counts of their roots.
    /// Images that were not among the disks before are walked completely.
    pub fn replace_disks(&mut self, taken: &Taken) -> Result<Vec<Delta>> {
        let mut disks = BTreeMap::new();
        for disk in &taken.checkpoint.disks {
            let root = root_of(disk.root, disk.height, disk.size)?;
            let known = self.disks.get(&disk.id).filter(|old| old.root == root);
            let mapped = known.and_then(|old| old.mapped);
            disks.insert(disk.id, MarkedDisk { root, is_image: disk.role == Role::Image, mapped });
        }
        let mut deltas = Vec::new();
        for (id, new) in &disks {
            let old = self.disks.get(id);
            let of_image = new.is_image && !old.is_some_and(|old| old.is_image);
            let is_same = old.is_some_and(|old| old.root == new.root);
            if !is_same {
                deltas.extend(old.and_then(|old| old.root).map(|root| root_delta(&root, -1, false)));
                deltas.extend(new.root.map(|root| root_delta(&root, 1, of_image)));
            } else if of_image {
                deltas.extend(new.root.map(|root| root_delta(&root, 0, true)));
            }
        }
        for (_, gone) in self.disks.iter().filter(|(id, _)| !disks.contains_key(id)) {
            deltas.extend(gone.root.map(|root| root_delta(&root, -1, false)));
        }
        self.exclusive.retain(|id, _| disks.contains_key(id));
        self.disks = disks;
        Ok(deltas)
    }

    /// The disks and the roots of their maps.
    pub fn roots(&self) -> impl Iterator<Item = (DiskId, Option<NeedNode>)> {
        self.disks.iter().map(|(id, disk)| (*id, disk.root))
    }

    /// Applies changes of the slots of one segment. Returns false if that contradicts the counts.
    pub async fn change_slots(&mut self, deltas: &[Delta], scratch: &Scratch) -> Result<bool> {
        let Some(segment) = deltas.first().map(|d| d.at.addr.segment) else { return Ok(true) };
        let old = self.slots.get(segment, scratch).await?;
        let mut live = self.live.get(&segment).copied().unwrap_or_default();
        let mut blocks = self.blocks;
        let changed = |delta: &Delta, before: u64, after: u64| {
            let len = written_len(&delta.at);
            if before == 0 && after > 0 {
                (live.slots, live.bytes) = (live.slots + 1, live.bytes + len);
                blocks += u64::from(delta.is_block && !segment.is_of_image());
            } else if before > 0 && after == 0 {
                // The reference of a lost block has another form than the block; if it is used, the bytes are
                // not exact.
                (live.slots, live.bytes) = (live.slots - 1, live.bytes.saturating_sub(len));
                blocks = blocks.saturating_sub((delta.is_block && !segment.is_of_image()).into());
            }
            live.of_images += u64::from(delta.of_image && after > 0);
        };
        let Some(counts) = apply(&old, deltas, changed) else { return Ok(false) };
        self.slots.set(segment, &counts);
        self.blocks = blocks;
        if counts.is_empty() {
            self.live.remove(&segment);
        } else {
            (live.stored, live.moved) = (live.bytes, None);
            live.of_images = live.of_images.min(live.slots);
            self.live.insert(segment, live);
        }
        Ok(true)
    }

    /// Bytes that changes of the slots of one segment would free. Nothing is changed.
    pub async fn freed_by(&self, deltas: &[Delta], scratch: &Scratch) -> Result<u64> {
        let Some(segment) = deltas.first().map(|d| d.at.addr.segment) else { return Ok(0) };
        if segment.is_of_image() {
            // The pool does not store the images of the cluster.
            return Ok(0);
        }
        let counts = self.slots.get(segment, scratch).await?;
        let mut bytes = 0;
        let freed = |delta: &Delta, before: u64, after: u64| {
            if before > 0 && after == 0 {
                bytes += written_len(&delta.at);
            }
        };
        if apply(&counts, deltas, freed).is_none() {
            return Ok(0);
        }
        let live = self.live.get(&segment).copied().unwrap_or_default();
        Ok((u128::from(bytes) * u128::from(live.stored) / u128::from(live.bytes.max(1))) as u64)
    }

    /// The number of blocks that a disk maps.
    pub async fn mapped(&mut self, id: DiskId, scratch: &Scratch) -> Result<u64> {
        let Some(disk) = self.disks.get_mut(&id) else { return Ok(0) };
        let mapped = match (disk.mapped, disk.root) {
            (Some(known), _) => known,
            (None, None) => 0,
            (None, Some(root)) => {
                let Address { segment, slot } = root.at.addr;
                let counts = self.nodes.get(segment, scratch).await?;
                let found = counts.binary_search_by_key(&slot.0, |c| c.slot);
                found.map_or(0, |i| counts[i].value)
            }
        };
        disk.mapped = Some(mapped);
        Ok(mapped)
    }

    /// Returns the live slots of a segment.
    pub async fn live_slots(&self, segment: SegmentId, scratch: &Scratch) -> Result<RoaringBitmap> {
        Ok(self.slots.get(segment, scratch).await?.iter().map(|c| c.slot).collect())
    }
}

/// The root of a disk's map; `None` if the map is all holes or zeroes.
fn root_of(root: MapValue, height: u8, size: u64) -> Result<Option<NeedNode>> {
    let tree = Tree::from_record(root, height, blocks(size))?;
    Ok(match tree.root() {
        Some(Ref::Node(root)) => Some(root),
        _ => None,
    })
}

/// Bytes that a block or node took when it was written.
fn written_len(at: &BlockRef) -> u64 {
    match at.form.codec() {
        Some(Codec::Raw | Codec::Lz4) => at.form.stored_len() as u64,
        // Blocks become members of a group only when they are moved. A damaged reference is detected when it
        // is read.
        _ => BLOCK as u64,
    }
}
