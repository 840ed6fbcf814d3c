//! Frames: the memory of a shard, one block each, in chunks that come and go as a whole.
//!
//! A frame's number is its chunk's number times [`CHUNK_FRAMES`] plus its place there, so numbers stay valid
//! while chunks are added. Only the last chunk may be shorter than the others.

use forebay_format::BLOCK;

/// Frames of a full chunk: 1 MiB.
pub(super) const CHUNK_FRAMES: usize = 256;
/// No frame.
pub(super) const NIL: u32 = u32::MAX;

/// What is known of a frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct Meta {
    /// The address it holds, as a number.
    pub key: u64,
    /// The next frame of the queue that it is in.
    pub next: u32,
    /// Hits since it came into its queue, as far as they are counted.
    pub hits: u8,
}

/// Page-aligned blocks, so that a copy touches as few pages and cache lines as possible.
struct Chunk {
    meta: Box<[Meta]>,
    bytes: Box<[u8]>,
    start: usize,
}

impl Chunk {
    fn new(frames: usize) -> Chunk {
        // Zeroed memory comes from the kernel page by page as it is used; nothing is touched here. Aligning
        // by hand costs a page of address space for each chunk, and keeps this file free of `unsafe`.
        let bytes = vec![0; (frames + 1) * BLOCK].into_boxed_slice();
        let start = (BLOCK - bytes.as_ptr() as usize % BLOCK) % BLOCK;
        Chunk { meta: vec![Meta { key: 0, next: NIL, hits: 0 }; frames].into(), bytes, start }
    }

    fn block(&self, at: usize) -> &[u8] {
        &self.bytes[self.start + at * BLOCK..][..BLOCK]
    }

    fn block_mut(&mut self, at: usize) -> &mut [u8] {
        &mut self.bytes[self.start + at * BLOCK..][..BLOCK]
    }

    fn copy_from(&mut self, at: usize, other: &Chunk, from: usize) {
        self.meta[at] = other.meta[from];
        self.block_mut(at).copy_from_slice(other.block(from));
    }

    fn heap_bytes(&self) -> usize {
        self.bytes.len() + size_of_val(&*self.meta)
    }
}

fn split(frame: u32) -> (usize, usize) {
    (frame as usize / CHUNK_FRAMES, frame as usize % CHUNK_FRAMES)
}

/// All frames of a shard.
#[derive(Default)]
pub(super) struct Frames {
    chunks: Vec<Chunk>,
    capacity: usize,
}

impl Frames {
    /// Frames that exist.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.chunks.iter().map(Chunk::heap_bytes).sum::<usize>() + self.chunks.capacity() * size_of::<Chunk>()
    }

    /// Adds frames, up to a chunk's worth and at most to `limit` in all; returns the numbers of the new ones.
    pub fn grow(&mut self, limit: usize) -> std::ops::Range<u32> {
        let missing = limit.saturating_sub(self.capacity);
        let short = self.chunks.last().map_or(0, |c| c.meta.len()) % CHUNK_FRAMES;
        let added = missing.min(CHUNK_FRAMES - short);
        let first = self.chunks.len().saturating_sub(usize::from(short > 0)) * CHUNK_FRAMES + short;
        if added > 0 {
            let mut chunk = Chunk::new(short + added);
            if short > 0
                && let Some(old) = self.chunks.pop()
            {
                (0..short).for_each(|at| chunk.copy_from(at, &old, at));
            }
            // Exactly one more: a cache has few chunks, and room for twice as many would count.
            self.chunks.reserve_exact(1);
            self.chunks.push(chunk);
            self.capacity += added;
        }
        first as u32..(first + added) as u32
    }

    /// Number of the first frame of the last chunk, and how many it has.
    pub fn last_chunk(&self) -> (u32, usize) {
        let len = self.chunks.last().map_or(0, |c| c.meta.len());
        ((self.chunks.len().saturating_sub(1) * CHUNK_FRAMES) as u32, len)
    }

    /// Gives the last chunk back; its frames must not be in use.
    pub fn drop_last_chunk(&mut self) {
        self.capacity -= self.chunks.pop().map_or(0, |c| c.meta.len());
        self.chunks.shrink_to_fit();
    }

    /// Copies a frame of the last chunk, with what is known of it, to one of another chunk.
    pub fn move_from_last(&mut self, from: u32, to: u32) {
        let ((_, from), (chunk, to)) = (split(from), split(to));
        if let Some((last, others)) = self.chunks.split_last_mut() {
            others[chunk].copy_from(to, last, from);
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

    /// The block of a frame, and its metadata to be changed.
    pub fn hit(&mut self, frame: u32) -> (&mut Meta, &[u8]) {
        let (chunk, at) = split(frame);
        let Chunk { meta, bytes, start } = &mut self.chunks[chunk];
        (&mut meta[at], &bytes[*start + at * BLOCK..][..BLOCK])
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

    pub fn push(&mut self, frames: &mut Frames, frame: u32) {
        frames.meta_mut(frame).next = NIL;
        match self.tail {
            NIL => self.head = frame,
            tail => frames.meta_mut(tail).next = frame,
        }
        self.tail = frame;
        self.len += 1;
    }

    pub fn pop(&mut self, frames: &Frames) -> Option<u32> {
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
