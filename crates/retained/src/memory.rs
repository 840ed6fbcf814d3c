//! Memory in chunks: the contract, and memory on the heap for tests.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use parking_lot::Mutex;

/// Unit in bytes in which memory is taken and given back.
pub const CHUNK: usize = 1 << 20;

/// Memory in chunks of [`CHUNK`] bytes.
///
/// # Safety
///
/// While a chunk is present, the [`CHUNK`] bytes at its address are aligned to 4096 bytes, readable and
/// writable, cannot fault, and no code accesses them except through the one owner that [`Memory::claim`]
/// returned true to. The address of a chunk does not change while it is present.
pub unsafe trait Memory: Send + Sync {
    /// The largest number of chunks. Chunk 0 holds the header.
    fn max_chunks(&self) -> u32;
    /// Whether a chunk has memory.
    fn is_present(&self, chunk: u32) -> bool;
    /// Address of a chunk; valid for [`CHUNK`] bytes while the chunk is present.
    fn address(&self, chunk: u32) -> NonNull<u8>;
    /// Makes a chunk present and zeroed. Later accesses to it cannot fault. Fails if there is no memory.
    fn add(&self, chunk: u32) -> io::Result<()>;
    /// Gives the memory of a chunk back. It is not present afterwards.
    fn release(&self, chunk: u32);
    /// Takes the memory for one owner; returns false if the memory has an owner already.
    fn claim(&self) -> bool;
    /// Ends the ownership of the memory.
    fn unclaim(&self);
}

/// Memory on the heap: for tests, and for servers that retain nothing.
pub struct HeapMemory {
    chunks: Box<[AtomicPtr<u8>]>,
    /// Locked while chunks are added, released or copied.
    changes: Mutex<()>,
    claimed: AtomicBool,
}

const CHUNK_LAYOUT: Layout = match Layout::from_size_align(CHUNK, 4096) {
    Ok(layout) => layout,
    Err(_) => panic!("the alignment is a power of two"),
};

impl HeapMemory {
    /// Memory of at most `max_chunks` chunks, none of which is present.
    pub fn new(max_chunks: u32) -> HeapMemory {
        let chunks = (0..max_chunks).map(|_| AtomicPtr::default()).collect();
        HeapMemory { chunks, changes: Mutex::new(()), claimed: AtomicBool::new(false) }
    }

    /// Memory of at most `limit` bytes, in addition to the header.
    pub fn of_bytes(limit: u64) -> HeapMemory {
        HeapMemory::new(u32::try_from(limit / CHUNK as u64 + 1).unwrap_or(u32::MAX))
    }

    /// Memory with this content: chunks of [`CHUNK`] bytes, or none.
    #[cfg(feature = "test-util")]
    pub fn with_content(chunks: &[Option<Vec<u8>>]) -> HeapMemory {
        let memory = HeapMemory::new(chunks.len() as u32);
        for (to, from) in memory.chunks.iter().zip(chunks) {
            let Some(from) = from else { continue };
            assert_eq!(from.len(), CHUNK, "a chunk has this size");
            let new = allocate().expect("memory for the copy");
            // SAFETY: `new` was allocated with CHUNK bytes just now, and no other reference to it exists.
            unsafe { new.as_ptr().copy_from_nonoverlapping(from.as_ptr(), CHUNK) };
            to.store(new.as_ptr(), Ordering::Release);
        }
        memory
    }

    /// A copy of the present chunks as they are now.
    ///
    /// The kernel makes the copy, so that bytes which another thread is writing are no data race.
    #[cfg(feature = "test-util")]
    pub fn content(&self) -> Vec<Option<Vec<u8>>> {
        use std::os::unix::fs::FileExt;
        let memory = std::fs::File::open("/proc/self/mem").expect("a process can read its own memory");
        let _guard = self.changes.lock();
        let copy = |chunk: &AtomicPtr<u8>| {
            let from = chunk.load(Ordering::Acquire);
            (!from.is_null()).then(|| {
                let mut bytes = vec![0; CHUNK];
                memory.read_exact_at(&mut bytes, from as u64).expect("a present chunk is readable");
                bytes
            })
        };
        self.chunks.iter().map(copy).collect()
    }

    /// A copy of all bytes as they are now: what a kill of the process would leave.
    #[cfg(feature = "test-util")]
    pub fn snapshot(&self) -> HeapMemory {
        HeapMemory::with_content(&self.content())
    }
}

/// The exclusive right to use a memory.
pub(crate) struct Claim(Arc<dyn Memory>);

impl Claim {
    /// Takes a memory that has no owner.
    pub fn take(memory: Arc<dyn Memory>) -> Option<Claim> {
        memory.claim().then(|| Claim(memory))
    }
}

impl Deref for Claim {
    type Target = dyn Memory;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.0.unclaim();
    }
}

fn allocate() -> io::Result<NonNull<u8>> {
    // SAFETY: the layout is not of size zero.
    NonNull::new(unsafe { alloc_zeroed(CHUNK_LAYOUT) }).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

// SAFETY: a present chunk is an allocation of CHUNK bytes with the alignment of `CHUNK_LAYOUT`, which stays
// at its address until it is released. Heap memory does not fault. Only the address gives access to it.
unsafe impl Memory for HeapMemory {
    fn max_chunks(&self) -> u32 {
        self.chunks.len() as u32
    }

    fn is_present(&self, chunk: u32) -> bool {
        self.chunks.get(chunk as usize).is_some_and(|c| !c.load(Ordering::Acquire).is_null())
    }

    fn address(&self, chunk: u32) -> NonNull<u8> {
        NonNull::new(self.chunks[chunk as usize].load(Ordering::Acquire)).expect("the chunk is present")
    }

    fn add(&self, chunk: u32) -> io::Result<()> {
        let _guard = self.changes.lock();
        let place = &self.chunks[chunk as usize];
        assert!(place.load(Ordering::Acquire).is_null(), "a chunk is added once");
        place.store(allocate()?.as_ptr(), Ordering::Release);
        Ok(())
    }

    fn release(&self, chunk: u32) {
        let _guard = self.changes.lock();
        free(&self.chunks[chunk as usize]);
    }

    fn claim(&self) -> bool {
        !self.claimed.swap(true, Ordering::AcqRel)
    }

    fn unclaim(&self) {
        self.claimed.store(false, Ordering::Release);
    }
}

fn free(chunk: &AtomicPtr<u8>) {
    let address = chunk.swap(std::ptr::null_mut(), Ordering::AcqRel);
    if !address.is_null() {
        // SAFETY: it was allocated with this layout, and its pointer was removed, so it is freed once.
        unsafe { dealloc(address, CHUNK_LAYOUT) };
    }
}

impl Drop for HeapMemory {
    fn drop(&mut self) {
        self.chunks.iter().for_each(free);
    }
}
