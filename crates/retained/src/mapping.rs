//! The mapping of a file of retained memory: adding and releasing chunks, and joining their pages into huge
//! pages.
//!
//! Joining two megabytes takes the kernel some milliseconds, and much more if it searches for a free huge
//! page. A writer that needs a chunk does not wait for that: a separate thread joins the pages of chunks that
//! were added ([`Joiner`]).
//!
//! **Chunks that are absent have no memory**, so that no memory is used that is not counted. A join can give
//! memory to a chunk that is released at the same time. So the thread looks again after the join, under the
//! lock under which chunks are added and released.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::JoinHandle;

use parking_lot::Mutex;

use crate::words::step;
use crate::{CHUNK, PAGE};

/// Size of a huge page.
const HUGE_PAGE: usize = 2 << 20;
/// How often the memory of a released chunk is given back: the kernel skips the pages of a huge page that
/// another thread uses at that moment.
const PUNCHES: usize = 4;
/// Stack of the thread that joins pages, which calls the kernel only.
const STACK_BYTES: usize = 64 << 10;

/// The mapping, and which of its chunks are present.
pub(crate) struct Mapping {
    pub file: File,
    base: NonNull<u8>,
    present: Box<[AtomicBool]>,
    /// Locked while the memory of a chunk is taken or given back.
    changing: Mutex<()>,
}

// SAFETY: the mapping is usable by any thread, and exists as long as this value.
unsafe impl Send for Mapping {}
// SAFETY: as above; the other fields are atomic, locked or not changed.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a file of `len` bytes, a multiple of [`CHUNK`]. Every chunk is marked as absent at first.
    pub fn new(file: File, len: u64) -> io::Result<Mapping> {
        let base = map(&file, len as usize)?;
        let present = (0..len / CHUNK as u64).map(|_| AtomicBool::new(false)).collect();
        Ok(Mapping { file, base, present, changing: Mutex::new(()) })
    }

    pub fn chunks(&self) -> u32 {
        self.present.len() as u32
    }

    pub fn len(&self) -> usize {
        self.present.len() * CHUNK
    }

    pub fn is_present(&self, chunk: u32) -> bool {
        self.present.get(chunk as usize).is_some_and(|present| present.load(Ordering::Acquire))
    }

    pub fn set_present(&self, chunk: u32, is_present: bool) {
        self.present[chunk as usize].store(is_present, Ordering::Release);
    }

    pub fn address(&self, chunk: u32) -> NonNull<u8> {
        assert!((chunk as usize) < self.present.len(), "the chunk is in the mapping");
        // SAFETY: the chunk is in the mapping.
        unsafe { self.base.add(chunk as usize * CHUNK) }
    }

    /// Gives an absent chunk memory, filled with zeroes.
    pub fn add(&self, chunk: u32) -> io::Result<()> {
        let _changing = self.changing.lock();
        // What a killed process left of a chunk that it was adding or releasing must not be found.
        self.punch(chunk)?;
        step();
        let added = self.allocate(chunk, 0).inspect(|()| step()).and_then(|()| self.populate(chunk));
        match added {
            Ok(()) => self.set_present(chunk, true),
            // A part of the chunk may have been added.
            Err(_) => drop(self.punch(chunk)),
        }
        added
    }

    /// Gives the memory of a chunk back.
    pub fn release(&self, chunk: u32) {
        let _changing = self.changing.lock();
        self.set_present(chunk, false);
        self.give_back(chunk);
    }

    /// Gives the memory of an absent chunk back. The caller holds `changing`.
    fn give_back(&self, chunk: u32) {
        let (start, end) = (u64::from(chunk) * CHUNK as u64, (u64::from(chunk) + 1) * CHUNK as u64);
        for _ in 0..PUNCHES {
            // Without effect, the memory is used again when the chunk is added again.
            let punched = self.punch(chunk);
            let left = seek(&self.file, start, libc::SEEK_DATA).ok().flatten();
            if punched.is_err() || left.is_none_or(|data| data >= end) {
                return;
            }
        }
    }

    pub fn punch(&self, chunk: u32) -> io::Result<()> {
        self.allocate(chunk, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE)
    }

    fn allocate(&self, chunk: u32, mode: i32) -> io::Result<()> {
        let (offset, len) = (i64::from(chunk) * CHUNK as i64, CHUNK as i64);
        // SAFETY: the descriptor is open; no memory is passed. Punched pages of a mapping read as zeroes.
        retry(|| unsafe { libc::fallocate(self.file.as_raw_fd(), mode, offset, len) })
    }

    /// Makes the pages of a chunk zeroed, mapped and, for SEEK_DATA, data. Their memory was taken already.
    fn populate(&self, chunk: u32) -> io::Result<()> {
        let at = self.address(chunk);
        // SAFETY: the chunk is in the mapping. The advice does not change its contents.
        match retry(|| unsafe { libc::madvise(at.as_ptr().cast(), CHUNK, libc::MADV_POPULATE_WRITE) }) {
            // The kernel is Linux before 5.14.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                for page in (0..CHUNK).step_by(PAGE) {
                    // SAFETY: the chunk is in the mapping, has memory, and is not in use yet.
                    unsafe { at.add(page).write_volatile(0) };
                }
                Ok(())
            }
            done => done,
        }
    }

    /// Joins the pages of the huge page of a chunk if all of it is present. Its contents do not change, and
    /// it may be in use.
    fn join_pages(&self, chunk: u32) -> io::Result<()> {
        let chunks = (HUGE_PAGE / CHUNK) as u32;
        let first = chunk - chunk % chunks;
        if !(first..first + chunks).all(|c| self.is_present(c)) {
            return Ok(());
        }
        // SAFETY: the chunks are in the mapping. The advice does not change their contents.
        let joined = retry(|| unsafe {
            libc::madvise(self.address(first).as_ptr().cast(), HUGE_PAGE, libc::MADV_COLLAPSE)
        });
        let _changing = self.changing.lock();
        (first..first + chunks).filter(|c| !self.is_present(*c)).for_each(|c| self.give_back(c));
        joined
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `new` made; nothing refers to it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len()) };
    }
}

/// Joins pages into huge pages, best effort, on a thread that begins with the first request: a copy into a
/// page takes a quarter less time, since the translation of its address is usually cached. Dropping it ends
/// the thread.
#[derive(Default)]
pub(crate) struct Joiner(OnceLock<Option<(mpsc::Sender<u32>, JoinHandle<()>)>>);

impl Joiner {
    /// Requests that the pages of a chunk that was added be joined.
    pub fn request(&self, mapping: &Arc<Mapping>, chunk: u32) {
        let start = || {
            let (sender, chunks) = mpsc::channel();
            let mapping = mapping.clone();
            let thread = std::thread::Builder::new().name("huge-pages".into()).stack_size(STACK_BYTES);
            Some((sender, thread.spawn(move || join_all(&mapping, &chunks)).ok()?))
        };
        if let Some((sender, _)) = self.0.get_or_init(start) {
            // The thread has ended if the kernel cannot join pages.
            let _ = sender.send(chunk);
        }
    }
}

impl Drop for Joiner {
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.0.take().flatten() {
            drop(sender);
            // The thread has no data that a panic could damage.
            let _ = thread.join();
        }
    }
}

fn join_all(mapping: &Mapping, chunks: &mpsc::Receiver<u32>) {
    while let Ok(chunk) = chunks.recv() {
        match mapping.join_pages(chunk).map_err(|e| e.raw_os_error()) {
            // The kernel is Linux before 6.1.
            Err(Some(libc::EINVAL)) => return,
            // The kernel has searched for a free huge page without finding one, and would again.
            Err(Some(libc::ENOMEM)) => while chunks.try_recv().is_ok() {},
            // Other threads may be using this page.
            Ok(()) | Err(_) => {}
        }
    }
}

/// Maps the file at an address that is a multiple of [`HUGE_PAGE`].
fn map(file: &File, len: usize) -> io::Result<NonNull<u8>> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at an address that the kernel selects.
    let room = unsafe { libc::mmap(std::ptr::null_mut(), len + HUGE_PAGE, libc::PROT_NONE, flags, -1, 0) };
    if room == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let before = room.cast::<u8>().align_offset(HUGE_PAGE);
    // SAFETY: the mapping above has this length and `HUGE_PAGE` more, and `before` is less than that.
    let (at, end) = unsafe { (room.byte_add(before), room.byte_add(before + len)) };
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: it replaces a part of the mapping above, which nothing uses.
    let mapped = unsafe { libc::mmap(at, len, protection, flags, file.as_raw_fd(), 0) };
    let error = io::Error::last_os_error();
    // SAFETY: what is left of the mapping above on both sides, or all of it; nothing uses it.
    unsafe {
        if mapped == libc::MAP_FAILED {
            libc::munmap(room, len + HUGE_PAGE);
            return Err(error);
        }
        if before > 0 {
            libc::munmap(room, before);
        }
        if before < HUGE_PAGE {
            libc::munmap(end, HUGE_PAGE - before);
        }
    }
    NonNull::new(at.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// The next offset with data, or in a hole; `None` behind the last data.
pub(crate) fn seek(file: &File, from: u64, whence: i32) -> io::Result<Option<u64>> {
    let from = i64::try_from(from).map_err(io::Error::other)?;
    // SAFETY: the descriptor is open.
    let at = unsafe { libc::lseek64(file.as_raw_fd(), from, whence) };
    match u64::try_from(at) {
        Ok(at) => Ok(Some(at)),
        Err(_) => match io::Error::last_os_error() {
            e if e.raw_os_error() == Some(libc::ENXIO) => Ok(None),
            e => Err(e),
        },
    }
}

/// Repeats a call that a signal interrupted.
pub(crate) fn retry(mut call: impl FnMut() -> i32) -> io::Result<()> {
    loop {
        if call() == 0 {
            return Ok(());
        }
        let e = io::Error::last_os_error();
        if e.kind() != io::ErrorKind::Interrupted {
            return Err(e);
        }
    }
}
