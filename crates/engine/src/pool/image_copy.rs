//! Copying an image of the pool into segments that belong to no pool; see [`super::cluster_image`].
//!
//! The blocks are copied in the order of the image, leaf by leaf, and the map of the copy is built from its
//! leaves ([`MapBuilder`]). Memory: two unfinished segments, a leaf of blocks, and the references of
//! [`KNOWN_COPIES`] blocks, so that a block that occurs several times is stored once.

use std::ops::Range;

use forebay_format::{Address, BLOCK, BlockRef, MapValue, SegmentId, Slot};
use hashbrown::{HashMap, HashSet};
use tokio::task::yield_now;

use crate::disk::{Disk, blocks};
use crate::host::BoxFuture;
use crate::limits::{IMAGE_SEGMENT_BYTES, KNOWN_COPIES, WORKER_BLOCKS};
use crate::map::{EncodedNode, MapBuilder, NeedNode, NodeCache, Tree, end_of_part};
use crate::read::{Reader, with_nodes};
use crate::stored::store_singly;
use crate::workers::map;
use crate::{Error, Result};

/// The root of the block map of an image of the cluster: a node in one of its segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageRoot(pub(super) BlockRef);

impl ImageRoot {
    /// The root as a block reference in its stored form.
    pub fn to_bytes(self) -> [u8; 12] {
        MapValue::At(self.0).encode()
    }

    /// The root with this stored form; `None` if no writer produces these bytes.
    pub fn from_bytes(bytes: &[u8; 12]) -> Option<ImageRoot> {
        match MapValue::decode(bytes)? {
            MapValue::At(at) if at.addr.segment.is_of_image() && at.form.of_node().is_some() => {
                Some(ImageRoot(at))
            }
            _ => None,
        }
    }
}

/// The copy of an image in separate segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrittenImage {
    /// Root of the block map.
    pub root: ImageRoot,
    /// Number of segments, which are the first of those that the caller has reserved.
    pub segments: u32,
    /// Bytes of these segments.
    pub bytes: u64,
}

/// Where the segments of an image are stored.
pub trait ImageSegments: Send + Sync {
    /// Stores a segment, durably. No segment is stored twice.
    ///
    /// # Errors
    /// The errors of the store.
    fn write(&self, segment: SegmentId, bytes: Vec<u8>) -> BoxFuture<'_, Result<()>>;
}

/// The number of segments to reserve for the copy of an image of this size, in bytes. A copy needs at most
/// 4.02 KiB for each block, and a segment is not filled if the next block does not fit.
pub fn segments_of_image(size: u64) -> u32 {
    let filled = IMAGE_SEGMENT_BYTES as u64 / 8 * 7;
    u32::try_from(size.div_ceil(filled) + 2).unwrap_or(u32::MAX)
}

/// A segment that is not complete yet.
struct OpenSegment {
    id: SegmentId,
    bytes: Vec<u8>,
}

/// Fills the segments of an image: one with blocks, and one with nodes, which readers of the map need
/// together.
struct Segments<'a> {
    numbers: Range<u32>,
    first: u32,
    blocks: Option<OpenSegment>,
    nodes: Option<OpenSegment>,
    /// Segments that are full.
    full: Vec<OpenSegment>,
    written: u64,
    to: &'a dyn ImageSegments,
}

impl Segments<'_> {
    /// Adds bytes to a segment; returns their address.
    fn place(&mut self, is_node: bool, bytes: &[u8]) -> Result<Address> {
        debug_assert!(bytes.len().is_multiple_of(Slot::UNIT) && bytes.len() <= IMAGE_SEGMENT_BYTES);
        let open = if is_node { &mut self.nodes } else { &mut self.blocks };
        let is_full = |open: &mut OpenSegment| open.bytes.len() + bytes.len() > IMAGE_SEGMENT_BYTES;
        self.full.extend(open.take_if(is_full));
        let open = match open {
            Some(open) => open,
            None => {
                let id = self.numbers.next().map(SegmentId).ok_or(Error::NoSpace)?;
                open.insert(OpenSegment { id, bytes: Vec::with_capacity(IMAGE_SEGMENT_BYTES) })
            }
        };
        let slot = Slot::at(open.bytes.len() as u64);
        open.bytes.extend_from_slice(bytes);
        Ok(Address { segment: open.id, slot })
    }

    fn place_node(&mut self, node: &EncodedNode) -> Result<BlockRef> {
        Ok(node.at(self.place(true, &node.bytes)?))
    }

    /// Stores the segments that are full.
    async fn store_full(&mut self) -> Result<()> {
        for OpenSegment { id, bytes } in std::mem::take(&mut self.full) {
            self.written += bytes.len() as u64;
            self.to.write(id, bytes).await?;
        }
        Ok(())
    }

    /// Stores all segments.
    async fn finish(mut self) -> Result<(u32, u64)> {
        let open = [self.blocks.take(), self.nodes.take()];
        self.full.extend(open.into_iter().flatten());
        self.store_full().await?;
        Ok((self.numbers.start - self.first, self.written))
    }
}

/// Copies the disk of an image, which does not change, into segments with these numbers. Returns `None` for
/// an image without data.
///
/// # Errors
/// [`Error::NoSpace`] if the numbers do not suffice; the errors of reading and writing.
pub(super) async fn copy_image(
    reader: &Reader,
    image: &Disk,
    numbers: Range<u32>,
    to: &dyn ImageSegments,
) -> Result<Option<WrittenImage>> {
    let first = numbers.start;
    let (full, written) = (Vec::new(), 0);
    let segments = Segments { numbers, first, blocks: None, nodes: None, full, written, to };
    Copying { reader, image, segments, copied: HashMap::new() }.run(blocks(image.size())).await
}

/// A copy of an image that is under way.
struct Copying<'a> {
    reader: &'a Reader,
    image: &'a Disk,
    segments: Segments<'a>,
    /// New references of blocks that were copied, by their former addresses. When it is full, further blocks
    /// that occur twice are stored twice.
    copied: HashMap<u64, BlockRef>,
}

impl Copying<'_> {
    async fn run(mut self, blocks: u64) -> Result<Option<WrittenImage>> {
        let (mut map, mut block) = (MapBuilder::new(blocks), 0);
        while block < blocks {
            self.reader.context().check_running()?;
            block = self.copy_part(&mut map, block).await?;
            self.segments.store_full().await?;
            yield_now().await;
        }
        let root = map.finish(&mut |node| self.segments.place_node(node))?;
        let (segments, bytes) = self.segments.finish().await?;
        Ok(match root {
            MapValue::At(root) => Some(WrittenImage { root: ImageRoot(root), segments, bytes }),
            MapValue::Hole | MapValue::Zero => None,
        })
    }

    /// Copies the blocks from `block` on: to the end of a subtree without data, or of one leaf. Returns the
    /// block after them.
    async fn copy_part(&mut self, map: &mut MapBuilder, block: u64) -> Result<u64> {
        let levels = self.image.tree.read().levels();
        for level in (0..levels).rev() {
            let part = self.look_up(|tree, nodes| tree.part(nodes, level, block)).await?;
            // A part of one value begins here: otherwise the step before would have ended behind it.
            let Some(value) = part.and_then(|part| part.value_of_all()) else { continue };
            if value == MapValue::Zero {
                map.zero(level, block, &mut |node| self.segments.place_node(node))?;
            }
            return Ok(end_of_part(level, block));
        }
        let (mut values, count) = self.look_up(|tree, nodes| tree.rest_of_leaf(nodes, block)).await?;
        let (mut wanted, mut seen) = (Vec::new(), HashSet::new());
        for value in &values {
            if let MapValue::At(at) = value {
                let key = at.addr.to_u64();
                if !self.copied.contains_key(&key) && seen.insert(key) {
                    wanted.push(*at);
                }
            }
        }
        let mut found = HashMap::new();
        self.copy_blocks(&wanted, &mut found).await?;
        for value in &mut values {
            if let MapValue::At(at) = value {
                let key = at.addr.to_u64();
                let copy = found.get(&key).or_else(|| self.copied.get(&key));
                *at = *copy.ok_or_else(|| Error::Damaged("a block of the image".to_owned()))?;
            }
        }
        let room = KNOWN_COPIES.saturating_sub(self.copied.len());
        self.copied.extend(found.into_iter().take(room));
        map.leaf(block, &values, &mut |node| self.segments.place_node(node))?;
        Ok(block + count as u64)
    }

    /// Copies blocks, and adds their new references by their former addresses.
    async fn copy_blocks(&mut self, wanted: &[BlockRef], found: &mut HashMap<u64, BlockRef>) -> Result<()> {
        let source = &self.reader.source;
        let (mut plain, mut damaged) = (vec![0; wanted.len() * BLOCK], None);
        source
            .read_blocks(wanted, |i, content| match content {
                Ok(content) => plain[i * BLOCK..][..BLOCK].copy_from_slice(content),
                Err(e) => damaged = Some(e),
            })
            .await;
        if let Some(e) = damaged {
            return Err(source.not_found_is_corruption(e));
        }
        let cx = self.reader.context();
        let parts = plain.as_chunks::<BLOCK>().0.chunks(WORKER_BLOCKS).collect();
        let store = |blocks: &[[u8; BLOCK]]| -> Vec<_> {
            blocks.iter().map(|block| store_singly(block, cx.config.compress)).collect()
        };
        let packed = map(cx.host.workers(), parts, store);
        for ((form, bytes), at) in packed.into_iter().flatten().zip(wanted) {
            let addr = self.segments.place(false, &bytes)?;
            found.insert(at.addr.to_u64(), BlockRef { addr, form, crc: at.crc });
        }
        Ok(())
    }

    /// Looks something up in the map of the image, and loads the nodes that the look-up needs.
    async fn look_up<T>(
        &self,
        look_up: impl Fn(&Tree, &NodeCache) -> std::result::Result<T, NeedNode>,
    ) -> Result<T> {
        let (disk, nodes) = (self.image, &self.reader.nodes);
        with_nodes(
            || look_up(&disk.tree.read(), &nodes.cache),
            |need| Box::pin(async move { nodes.load_for_read(disk, need).await.map(drop) }),
        )
        .await
    }
}
