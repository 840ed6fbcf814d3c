//! Frames: the memory of a shard, one block each, in chunks that are allocated and freed as a whole.
//!
//! `BYTES` is the size of a block, or 0 for a shard that simulates a cache and holds no contents.
//!
//! A frame's number is its chunk's number times [`CHUNK_FRAMES`] plus its index in the chunk, so numbers
//! stay valid while chunks are added. Only the last chunk may be shorter than the others.

use std::ops::Range;

use forebay_format::BLOCK;

use super::pages::{HUGE, Pages};
use super::share::Owner;

/// Number of frames of a full chunk: one huge page.
pub(super) const CHUNK_FRAMES: usize = HUGE / BLOCK;
/// A frame number that stands for no frame.
pub(super) const NIL: u32 = u32::MAX;

/// Metadata of a frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meta {
    /// Address of the block in the frame, as a number.
    pub key: u64,
    /// The next frame of the same queue.
    pub next: u32,
    /// Hits since the frame entered its queue, up to the counted maximum.
    pub hits: u8,
    /// The frame is evicted first; see [`super::Rank::Low`].
    pub is_low: bool,
    /// The frame is in the main queue.
    pub is_main: bool,
    /// The disk to which the frame belongs.
    pub owner: Owner,
}

impl Meta {
    /// Metadata of a frame that was never filled.
    const FREE: Meta =
        Meta { key: 0, next: NIL, hits: 0, is_low: false, is_main: false, owner: Owner::SHARED };
}

/// Blocks, page-aligned, so that a copy touches as few pages and cache lines as possible.
pub(super) struct Chunk<const BYTES: usize> {
    meta: Box<[Meta]>,
    bytes: Pages,
}

impl<const BYTES: usize> Chunk<BYTES> {
    /// Allocates the frames of a chunk; `None` if the system has no memory. This is slow, unless the blocks
    /// have no bytes: it must not be called under a lock.
    pub fn new(frames: usize) -> Option<Self> {
        let meta = vec![Meta::FREE; frames].into();
        Some(Chunk { meta, bytes: Pages::new(frames * BYTES)? })
    }

    /// Number of frames of the chunk.
    pub fn len(&self) -> usize {
        self.meta.len()
    }

    fn block(&self, at: usize) -> &[u8] {
        &self.bytes[at * BYTES..][..BYTES]
    }

    fn block_mut(&mut self, at: usize) -> &mut [u8] {
        &mut self.bytes[at * BYTES..][..BYTES]
    }

    fn copy_from(&mut self, at: usize, other: &Self, from: usize) {
        self.meta[at] = other.meta[from];
        self.block_mut(at).copy_from_slice(other.block(from));
    }

    fn truncate(&mut self, frames: usize) {
        self.meta = self.meta[..frames].into();
        self.bytes.truncate(frames * BYTES);
    }

    fn heap_bytes(&self) -> usize {
        self.bytes.len() + size_of_val(&*self.meta)
    }
}

fn split(frame: u32) -> (usize, usize) {
    (frame as usize / CHUNK_FRAMES, frame as usize % CHUNK_FRAMES)
}

/// All frames of a shard.
pub(super) struct Frames<const BYTES: usize> {
    chunks: Vec<Chunk<BYTES>>,
    capacity: usize,
}

impl<const BYTES: usize> Default for Frames<BYTES> {
    fn default() -> Self {
        Frames { chunks: Vec::new(), capacity: 0 }
    }
}

impl<const BYTES: usize> Frames<BYTES> {
    /// Number of frames of the shard.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes of the frames on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.chunks.iter().map(Chunk::heap_bytes).sum::<usize>()
            + self.chunks.capacity() * size_of::<Chunk<BYTES>>()
    }

    fn last_len(&self) -> usize {
        self.chunks.last().map_or(0, Chunk::len)
    }

    /// Length of the chunk that [`Frames::add`] is to receive next, so that there are at most `limit` frames
    /// in all; `None` if there are that many. A short last chunk is replaced by a longer chunk.
    pub fn wanted(&self, limit: usize) -> Option<usize> {
        let missing = limit.checked_sub(self.capacity).filter(|missing| *missing > 0)?;
        let short = self.last_len() % CHUNK_FRAMES;
        Some((short + missing).min(CHUNK_FRAMES))
    }

    /// Adds a chunk of the length that [`Frames::wanted`] returned; returns the numbers of the new frames.
    pub fn add(&mut self, mut chunk: Chunk<BYTES>) -> Range<u32> {
        let short = self.last_len() % CHUNK_FRAMES;
        if short > 0
            && let Some(old) = self.chunks.pop()
        {
            (0..short).for_each(|at| chunk.copy_from(at, &old, at));
        }
        let first = self.chunks.len() * CHUNK_FRAMES;
        let new = (first + short) as u32..(first + chunk.len()) as u32;
        self.capacity += new.len();
        // Reserves exactly one more chunk: a cache has few chunks, and doubling the capacity would be
        // noticeable.
        self.chunks.reserve_exact(1);
        self.chunks.push(chunk);
        new
    }

    /// Number of the first frame that [`Frames::cut`] will remove. One call removes at most one chunk.
    pub fn cut_from(&self, limit: usize) -> u32 {
        let last = self.chunks.len().saturating_sub(1) * CHUNK_FRAMES;
        limit.clamp(last, last + self.last_len()) as u32
    }

    /// Frees the frames from [`Frames::cut_from`] on; none of these frames may be in use.
    pub fn cut(&mut self, from: u32) {
        let (_, kept) = split(from);
        let Some(mut chunk) = self.chunks.pop() else { return };
        // All frames below the last chunk exist, so a number is also a count.
        self.capacity = from as usize;
        if kept > 0 {
            chunk.truncate(kept);
            self.chunks.push(chunk);
        }
        self.chunks.shrink_to_fit();
    }

    /// Copies a frame of the last chunk, with its metadata, to another frame.
    pub fn move_from_last(&mut self, from: u32, to: u32) {
        let ((_, from), (chunk, to)) = (split(from), split(to));
        let Some((last, others)) = self.chunks.split_last_mut() else { return };
        match others.get_mut(chunk) {
            Some(other) => other.copy_from(to, last, from),
            None => {
                last.meta[to] = last.meta[from];
                last.bytes.copy_within(from * BYTES..(from + 1) * BYTES, to * BYTES);
            }
        }
    }

    pub fn meta(&self, frame: u32) -> &Meta {
        let (chunk, at) = split(frame);
        &self.chunks[chunk].meta[at]
    }

    pub fn meta_mut(&mut self, frame: u32) -> &mut Meta {
        let (chunk, at) = split(frame);
        &mut self.chunks[chunk].meta[at]
    }

    /// The block of a frame, and its metadata for modification.
    pub fn hit(&mut self, frame: u32) -> (&mut Meta, &[u8]) {
        let (chunk, at) = split(frame);
        let Chunk { meta, bytes } = &mut self.chunks[chunk];
        (&mut meta[at], &bytes[at * BYTES..][..BYTES])
    }

    pub fn block(&self, frame: u32) -> &[u8] {
        let (chunk, at) = split(frame);
        self.chunks[chunk].block(at)
    }

    pub fn block_mut(&mut self, frame: u32) -> &mut [u8] {
        let (chunk, at) = split(frame);
        self.chunks[chunk].block_mut(at)
    }
}

/// A first-in-first-out queue of frames, linked through [`Meta::next`]; a frame is in one queue at a time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Queue {
    head: u32,
    tail: u32,
    len: usize,
}

impl Queue {
    pub const EMPTY: Queue = Queue { head: NIL, tail: NIL, len: 0 };

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn push<const BYTES: usize>(&mut self, frames: &mut Frames<BYTES>, frame: u32) {
        frames.meta_mut(frame).next = NIL;
        match self.tail {
            NIL => self.head = frame,
            tail => frames.meta_mut(tail).next = frame,
        }
        self.tail = frame;
        self.len += 1;
    }

    pub fn pop<const BYTES: usize>(&mut self, frames: &Frames<BYTES>) -> Option<u32> {
        let frame = self.head;
        if frame == NIL {
            return None;
        }
        self.head = frames.meta(frame).next;
        if self.head == NIL {
            self.tail = NIL;
        }
        self.len -= 1;
        Some(frame)
    }
}
