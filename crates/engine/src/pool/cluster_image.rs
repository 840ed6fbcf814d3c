//! Images of a cluster, of which the pool is a shard.
//!
//! An image of the cluster is stored once, in separate segments (`SegmentId::is_of_image`), which no pool
//! writes, moves or deletes: `store::WithImages` adds them to the objects that a pool can read. A pool that
//! uses the image has a hidden disk with the root of the image's map, and the clones that the pool has of
//! the image are clones of that disk. So reads, writes, snapshots, resets and copies of these clones need
//! nothing else: an address is an address.
//!
//! **Writing.** [`ClusterImages::write`] copies an image of this pool into new segments, while the pool
//! serves its clients. Then the image of this pool gets the root of the copy ([`ClusterImages::adopt`]),
//! and its former blocks are reclaimed, unless clones refer to them that were made before.
//!
//! **Use.** The caller registers the pool as a user of the image before it calls
//! [`ClusterImages::attach`] or [`ClusterImages::adopt`], so no disk of the pool can refer to a
//! segment of the image without a registration. Only these calls, and copies of what a disk of the pool
//! refers to already, make such a reference: the index of fingerprints does not contain blocks of images.
//!
//! **The end of use.** The registration may be removed only when the pool has no reference any more, and can
//! get none again. [`ClusterImages::detach`] removes the hidden disk, unless it has clones; but other
//! disks may hold blocks of the image that were copied by reference. [`ClusterImages::segments_in_use`]
//! states the segments to which the pool refers, as found by a mark that begins after the call. Both
//! superblock copies are at the checkpoint of the mark or behind it, so that no recovery leads back to a
//! state with more references. The caller makes both calls, and does not attach the image in between.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use forebay_format::{
    Address, BLOCK, BlockRef, CatalogueOp, DiskRecord, Form, MapValue, Role, SegmentId, Slot,
};
use hashbrown::{HashMap, HashSet};
use tokio::task::yield_now;

use super::admin::{CloneRequest, DiskInfo};
use super::export::hidden_copy;
use super::pool::Pool;
use crate::catalogue::{check_name, check_size, disk_by_id};
use crate::disk::{Disk, blocks};
use crate::host::BoxFuture;
use crate::limits::{IMAGE_SEGMENT_BYTES, KNOWN_COPIES, WORKER_BLOCKS};
use crate::map::{EncodedNode, MapBuilder, NeedNode, NodeCache, Tree, end_of_part};
use crate::read::{Reader, with_nodes};
use crate::stored::compress;
use crate::text::shorten;
use crate::workers::map;
use crate::{Error, Result};

/// The root of the block map of an image of the cluster: a node in one of its segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageRoot(BlockRef);

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

/// An image that has its name in this pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolImage {
    /// Identity of the image.
    pub uuid: [u8; 16],
    /// Name of the image.
    pub name: String,
    /// Size of the image in bytes.
    pub size: u64,
    /// Deduplication domain of the image.
    pub dedup_domain: u32,
    /// The map of the image is in segments of an image of the cluster.
    pub is_adopted: bool,
}

/// An image of the cluster, as a pool needs to know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterImage {
    /// Identity of the image.
    pub uuid: [u8; 16],
    /// Name of the image.
    pub name: String,
    /// Size of the image in bytes.
    pub size: u64,
    /// Deduplication domain of the image, and of its clones.
    pub dedup_domain: u32,
    /// Root of the block map of the image.
    pub root: ImageRoot,
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

/// The images of the cluster, for a pool that is a shard of it.
pub struct ClusterImages(pub(super) Arc<Pool>);

/// Where the segments of an image are stored.
pub trait ImageSegments: Send + Sync {
    /// Stores a segment, durably. No segment is stored twice.
    ///
    /// # Errors
    /// Those of the store.
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

/// The stored forms of blocks, each with its bytes.
fn pack(blocks: &[[u8; BLOCK]], compressed: bool) -> Vec<(Form, Vec<u8>)> {
    let pack = |block: &[u8; BLOCK]| {
        let mut bytes = Vec::new();
        let form = if compressed { compress(block, &mut bytes) } else { Form::RAW_BLOCK };
        if bytes.is_empty() {
            bytes.extend_from_slice(block);
        }
        bytes.resize(form.stored_len(), 0);
        (form, bytes)
    };
    blocks.iter().map(pack).collect()
}

/// A copy of an image that is under way.
struct Copying<'a> {
    reader: &'a Reader,
    image: Arc<Disk>,
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
        let packed = map(cx.host.workers(), parts, |blocks| pack(blocks, cx.config.compress));
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
        let (disk, nodes) = (&self.image, &self.reader.nodes);
        with_nodes(
            || look_up(&disk.tree.read(), &nodes.cache),
            |need| Box::pin(async move { nodes.load_for_read(disk, need).await.map(drop) }),
        )
        .await
    }
}

impl ClusterImages {
    /// Copies an image of this pool into segments, whose numbers the caller has reserved
    /// ([`segments_of_image`]). Returns `None` for an image without data, which needs no segments.
    ///
    /// # Errors
    /// [`Error::NotFound`]; those of reading the image and of writing the segments. The segments that were
    /// written are not in use then.
    pub async fn write(
        &self,
        uuid: [u8; 16],
        numbers: Range<u32>,
        to: &dyn ImageSegments,
    ) -> Result<Option<WrittenImage>> {
        let admin = self.0.components.editor.lock.lock().await;
        let image = self.find_local(uuid)?;
        let name = image.record().name.clone();
        let copy = hidden_copy(&self.0, &image, &name).await?;
        drop(admin);
        let first = numbers.start;
        let (full, written) = (Vec::new(), 0);
        let segments = Segments { numbers, first, blocks: None, nodes: None, full, written, to };
        let (blocks, reader) = (blocks(image.size()), &*self.0.components.reader);
        let done = match disk_by_id(&self.0.components.catalogue, copy.id()) {
            Some(image) => Copying { reader, image, segments, copied: HashMap::new() }.run(blocks).await,
            None => Err(Error::NotFound(shorten(&name))),
        };
        let ended = self.0.abandon_import(copy).await;
        done.and_then(|written| ended.map(|()| written))
    }

    /// The image of this pool with this identity.
    fn find_local(&self, uuid: [u8; 16]) -> Result<Arc<Disk>> {
        let catalogue = self.0.components.catalogue.read();
        let found = catalogue.images_with(uuid).find(|disk| disk.role() == Role::Image);
        found.cloned().ok_or_else(|| Error::NotFound("the image".to_owned()))
    }

    /// The images that have their names in this pool.
    pub fn local(&self) -> Vec<PoolImage> {
        let catalogue = self.0.components.catalogue.read();
        let images = catalogue.images().filter(|disk| disk.role() == Role::Image);
        let image = |disk: &Arc<Disk>| {
            let record = disk.record();
            let root = disk.tree.read().record();
            PoolImage {
                uuid: record.uuid,
                name: record.name.clone(),
                size: disk.size(),
                dedup_domain: record.dedup_domain,
                is_adopted: matches!(root, Some((MapValue::At(at), _)) if at.addr.segment.is_of_image()),
            }
        };
        images.map(image).collect()
    }

    /// Gives an image of this pool the map of its copy, which has the same contents.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the image was removed in the meantime.
    pub async fn adopt(&self, uuid: [u8; 16], root: ImageRoot) -> Result<()> {
        let _admin = self.0.components.editor.lock.lock().await;
        let image = self.find_local(uuid)?;
        let attach = CatalogueOp::Attach { disk: image.id(), root: root.0 };
        self.0.components.intake.commit_ops(vec![attach]).await?;
        self.0.components.space.reclaim_is_due();
        Ok(())
    }

    /// Makes clones of an image of the cluster possible in this pool. Has no effect if they are possible
    /// already.
    ///
    /// # Errors
    /// [`Error::TooManyDisks`]; [`Error::BadName`] and [`Error::BadSize`] if no image can be like this.
    pub async fn attach(&self, image: &ClusterImage) -> Result<()> {
        check_name(&image.name)?;
        check_size(image.size)?;
        let _admin = self.0.components.editor.lock.lock().await;
        if self.find_attached(&image.uuid).is_some() || self.find_local(image.uuid).is_ok() {
            return Ok(());
        }
        self.0.check_count(1)?;
        let disk = DiskRecord {
            uuid: image.uuid,
            dedup_domain: image.dedup_domain,
            ..self.0.components.editor.new_record(&image.name, image.size, Role::ClusterImage)
        };
        let attach = CatalogueOp::Attach { disk: disk.id, root: image.root.0 };
        self.0.components.intake.commit_ops(vec![CatalogueOp::Create { disk, from: None }, attach]).await?;
        if let Some(disk) = self.find_attached(&image.uuid) {
            self.0.components.classes.scans.request(&disk);
        }
        Ok(())
    }

    /// The hidden disk of an image of the cluster.
    fn find_attached(&self, uuid: &[u8; 16]) -> Option<Arc<Disk>> {
        let catalogue = self.0.components.catalogue.read();
        catalogue.images_with(*uuid).find(|disk| disk.role() == Role::ClusterImage).cloned()
    }

    /// The images of the cluster that are attached to this pool: their identities.
    pub fn attached(&self) -> Vec<[u8; 16]> {
        let catalogue = self.0.components.catalogue.read();
        let attached = catalogue.images().filter(|disk| disk.role() == Role::ClusterImage);
        attached.map(|disk| disk.record().uuid).collect()
    }

    /// Creates clones of an image of the cluster: all of them, or none. The image is attached, or is an image
    /// of this pool.
    ///
    /// # Errors
    /// As [`Pool::clone_disk`].
    pub async fn clone_to(&self, uuid: [u8; 16], clones: &[CloneRequest]) -> Result<Vec<DiskInfo>> {
        let _admin = self.0.components.editor.lock.lock().await;
        let from = self.usable_image(uuid)?;
        let name = from.record().name.clone();
        self.0.make_clones(&from, &name, clones).await
    }

    /// Resets clones to an image of the cluster, which is their origin from then on: all of them, or none.
    /// The image is attached, or is an image of this pool.
    ///
    /// # Errors
    /// As [`Pool::reset_all_to`].
    pub async fn reset(&self, volumes: &[&str], uuid: [u8; 16]) -> Result<()> {
        let _admin = self.0.components.editor.lock.lock().await;
        let image = self.usable_image(uuid)?;
        self.0.reset_to(volumes, Some(image)).await
    }

    /// The hidden disk of an image of the cluster, or the image of this pool.
    fn usable_image(&self, uuid: [u8; 16]) -> Result<Arc<Disk>> {
        self.find_attached(&uuid).map_or_else(|| self.find_local(uuid), Ok)
    }

    /// Makes clones of an image of the cluster impossible in this pool. Other disks may continue to refer to
    /// segments of the image. Has no effect on an image that is not attached.
    ///
    /// # Errors
    /// [`Error::HasClones`]
    pub async fn detach(&self, uuid: [u8; 16]) -> Result<()> {
        let _admin = self.0.components.editor.lock.lock().await;
        match self.find_attached(&uuid) {
            Some(disk) => self.0.delete_disks(&[disk]).await,
            None => Ok(()),
        }
    }

    /// The segments of images to which this pool refers, as found by a reclaim that begins now; see the
    /// module documentation.
    ///
    /// # Errors
    /// [`Error::MapsDamaged`] if they cannot be known, since a map is damaged; others of a reclaim.
    pub async fn segments_in_use(&self) -> Result<BTreeSet<SegmentId>> {
        self.0.components.reclaimer.image_segments_in_use().await
    }
}
