//! Builds a stored map from its leaves, in the order of the blocks.
//!
//! A node is encoded when the values of a later node of its level arrive, so the builder holds one unfinished
//! node of each level. The caller stores each encoded node at once, and returns its address, which the node
//! above refers to. No node has a base.

use forebay_format::{BlockRef, FANOUT, MapNode, MapValue, crc32c};

use super::index::NodeIndex;
use super::inner::Child;
use super::node::entries_without_base;
use super::tree::{Tree, height_for};

/// Stores an encoded node, and returns its address.
pub(crate) type StoreNode<'a, E> = &'a mut dyn FnMut(&EncodedNode) -> Result<BlockRef, E>;

/// A node in its stored layout. Its form and checksum are a part of its reference.
pub(crate) struct EncodedNode {
    pub bytes: Vec<u8>,
}

impl EncodedNode {
    /// The reference to the node, if it is stored at this address.
    pub fn at(&self, addr: forebay_format::Address) -> BlockRef {
        BlockRef { addr, form: MapNode::form(&self.bytes), crc: crc32c(&self.bytes) }
    }
}

/// A node whose values are not complete yet.
struct Open {
    index: u64,
    values: Box<[MapValue; FANOUT]>,
}

/// Builds the map of a disk; see the module documentation.
pub(crate) struct MapBuilder {
    height: u8,
    levels: Vec<Option<Open>>,
    root: MapValue,
}

impl MapBuilder {
    /// A map of holes for a disk of `blocks` blocks.
    pub fn new(blocks: u64) -> MapBuilder {
        let height = height_for(blocks);
        MapBuilder { height, levels: (0..height).map(|_| None).collect(), root: MapValue::Hole }
    }

    /// Sets the values of a whole leaf. Leaves and parts are set in ascending order.
    pub fn leaf<E>(
        &mut self,
        block: u64,
        values: &[MapValue; FANOUT],
        store: StoreNode<'_, E>,
    ) -> Result<(), E> {
        let index = NodeIndex::of(0, block).index();
        self.open(0, index, store)?.copy_from_slice(values);
        Ok(())
    }

    /// Sets all blocks of the node of this level that contains `block` to zeroes.
    pub fn zero<E>(&mut self, level: u8, block: u64, store: StoreNode<'_, E>) -> Result<(), E> {
        self.set(level, NodeIndex::of(level, block).index(), MapValue::Zero, store)
    }

    /// Ends the map, and returns its root: a node, or the value of all blocks.
    pub fn finish<E>(mut self, store: StoreNode<'_, E>) -> Result<MapValue, E> {
        for level in 0..self.height {
            self.close(level, store)?;
        }
        Ok(self.root)
    }

    /// Sets the value of a node of `level` in the node above it.
    fn set<E>(&mut self, level: u8, index: u64, value: MapValue, store: StoreNode<'_, E>) -> Result<(), E> {
        if level + 1 == self.height {
            self.root = value;
            return Ok(());
        }
        let place = (index % FANOUT as u64) as usize;
        self.open(level + 1, index / FANOUT as u64, store)?[place] = value;
        Ok(())
    }

    /// The values of the unfinished node of a level, which has this index. Another node of the level is
    /// finished before.
    fn open<E>(
        &mut self,
        level: u8,
        index: u64,
        store: StoreNode<'_, E>,
    ) -> Result<&mut [MapValue; FANOUT], E> {
        let is_open = |open: &Option<Open>| open.as_ref().is_some_and(|open| open.index == index);
        if !is_open(&self.levels[usize::from(level)]) {
            self.close(level, store)?;
        }
        let new = || Open { index, values: Box::new([MapValue::Hole; FANOUT]) };
        Ok(&mut self.levels[usize::from(level)].get_or_insert_with(new).values)
    }

    /// Finishes the open node of a level, after those below it.
    fn close<E>(&mut self, level: u8, store: StoreNode<'_, E>) -> Result<(), E> {
        if let Some(below) = level.checked_sub(1) {
            self.close(below, store)?;
        }
        let Some(Open { index, values }) = self.levels[usize::from(level)].take() else { return Ok(()) };
        let first = values[0];
        let is_one = !matches!(first, MapValue::At(_)) && values.iter().all(|value| *value == first);
        let value = match is_one {
            true => first,
            false => {
                let entries = entries_without_base((0..=u8::MAX).zip(values.iter().copied()));
                let bytes = MapNode { level, index, entries }.encode();
                MapValue::At(store(&EncodedNode { bytes })?)
            }
        };
        self.set(level, index, value, store)
    }
}

impl Tree {
    /// The map with this stored root, for a disk of `blocks` blocks.
    pub(crate) fn stored_at(root: BlockRef, blocks: u64) -> Tree {
        Tree { root: Child::Stored(root.into()), height: height_for(blocks), blocks }
    }
}
