//! Reads, writes and syncs of files, executed by an io_uring or a pool of threads.
//!
//! An [`Op`] owns all its resources (file, buffer, completion closure), so it runs to completion even if its
//! future is dropped. Both executors pass the results of the kernel to [`Op::advance`], the only place that
//! decides how a short or interrupted transfer continues.

mod inline;
mod pool;
mod ring;

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use super::retry::{Retry, is_interruption, is_shortage};
use crate::IoBuf;

use inline::SyncedWrites;
pub(super) use pool::Pool;
use ring::Ring;

/// Maximum bytes of one call; the kernel transfers up to 2 GiB less a page.
const MAX_TRANSFER: usize = 1 << 30;

/// The kind of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Read,
    Write,
    /// A write that is durable when it completes, with the metadata needed to read it (`RWF_DSYNC`).
    WriteSynced,
    Sync,
}

impl Action {
    /// Whether a failure of this action may be the failure of a sync, which is never repeated.
    fn syncs(self) -> bool {
        matches!(self, Action::WriteSynced | Action::Sync)
    }
}

/// Called at the end of an operation with its buffer and the number of bytes moved.
pub(super) type Finish = Box<dyn FnOnce(IoBuf, io::Result<usize>) + Send>;

/// One operation on one file.
pub(super) struct Op {
    action: Action,
    file: Arc<File>,
    buf: IoBuf,
    offset: u64,
    /// Number of bytes to move in all, at most the buffer's capacity.
    len: usize,
    /// Start of the next call's bytes in the buffer, aligned if direct I/O needs it.
    done: usize,
    /// The highest end of the bytes that any call reached; distinguishes the end of a file from a short read.
    reached: usize,
    /// The kernel could not start the operation without blocking.
    must_block: bool,
    /// The last call failed because of a shortage, so the next call follows after a pause.
    short: bool,
    retry: Retry,
    finish: Finish,
}

impl Op {
    /// Reads `len` bytes, fewer at the end of the file. `finish` runs on an I/O thread and must not block.
    pub fn read(file: Arc<File>, offset: u64, len: usize, finish: Finish) -> Op {
        Op::new(Action::Read, file, IoBuf::with_capacity(len), offset, len, finish)
    }

    /// Writes the whole buffer.
    pub(super) fn write(file: Arc<File>, offset: u64, buf: IoBuf, finish: Finish) -> Op {
        let len = buf.len();
        Op::new(Action::Write, file, buf, offset, len, finish)
    }

    /// Writes the whole buffer, durably. If everything that was written to the file before is durable, the
    /// file is durable.
    pub(super) fn write_synced(file: Arc<File>, offset: u64, buf: IoBuf, finish: Finish) -> Op {
        let len = buf.len();
        Op::new(Action::WriteSynced, file, buf, offset, len, finish)
    }

    /// Makes the file's data durable, and the metadata needed to read it.
    pub(super) fn sync(file: Arc<File>, finish: Finish) -> Op {
        Op::new(Action::Sync, file, IoBuf::with_capacity(0), 0, 0, finish)
    }

    fn new(action: Action, file: Arc<File>, buf: IoBuf, offset: u64, len: usize, finish: Finish) -> Op {
        assert!(len <= buf.capacity());
        let (short, retry) = (false, Retry::default());
        Op { action, file, buf, offset, len, done: 0, reached: 0, must_block: false, short, retry, finish }
    }

    /// Bytes of the next call.
    fn next_len(&self) -> usize {
        (self.len - self.done).min(MAX_TRANSFER)
    }

    /// Address of the bytes of the next call.
    fn next_ptr(&mut self) -> *mut u8 {
        // SAFETY: `done <= len <= capacity`, so the pointer stays inside the allocation.
        unsafe { self.buf.as_mut_ptr().add(self.done) }
    }

    fn next_offset(&self) -> u64 {
        self.offset + self.done as u64
    }

    /// Applies the result of a call. Returns the result of the operation, or `None` if another call is
    /// needed.
    fn advance(&mut self, answer: io::Result<usize>) -> Option<io::Result<usize>> {
        let moved = match answer {
            Ok(moved) => moved,
            Err(e) => {
                let again = is_interruption(&e);
                self.must_block |= again;
                // A failed sync is never repeated.
                self.short = !again && is_shortage(&e) && !self.action.syncs();
                return if again || self.short { None } else { Some(Err(e)) };
            }
        };
        match self.action {
            Action::Sync => Some(Ok(0)),
            Action::Write | Action::WriteSynced if moved == 0 => Some(Err(io::ErrorKind::WriteZero.into())),
            Action::Read if moved == 0 => Some(Ok(self.reached.max(self.done))),
            Action::Read | Action::Write | Action::WriteSynced => self.advance_to(self.done + moved),
        }
    }

    /// The pause before the next call, if the last call failed because of a shortage; an error if the
    /// shortage has lasted too long.
    fn pause(&mut self) -> io::Result<Option<Duration>> {
        if !std::mem::take(&mut self.short) {
            return Ok(None);
        }
        let too_long = io::Error::from_raw_os_error(libc::ENOMEM);
        self.retry.next_pause().ok_or(too_long).map(Some)
    }

    fn advance_to(&mut self, end: usize) -> Option<io::Result<usize>> {
        if end >= self.len {
            return Some(Ok(self.len));
        }
        if end <= self.reached {
            // A second call did not get further: it reached the end of the file, or the medium accepts no
            // more bytes.
            return Some(if self.action == Action::Read {
                Ok(end)
            } else {
                Err(io::ErrorKind::WriteZero.into())
            });
        }
        self.reached = end;
        self.done = end - end % IoBuf::ALIGN;
        None
    }

    /// Passes the result of the operation to its completion closure.
    fn complete(mut self, result: io::Result<usize>) {
        if let (Action::Read, Ok(len)) = (self.action, &result) {
            self.buf.set_len(*len);
        }
        // Dropped first, so that deleting the file afterwards frees its space.
        drop(self.file);
        (self.finish)(self.buf, result);
    }

    /// Runs the operation to completion on this thread.
    fn run(mut self) {
        loop {
            let answer = self.call();
            if let Some(result) = self.advance(answer) {
                return self.complete(result);
            }
            match self.pause() {
                Ok(pause) => pause.into_iter().for_each(std::thread::sleep),
                Err(e) => return self.complete(Err(e)),
            }
        }
    }

    fn call(&mut self) -> io::Result<usize> {
        let (fd, len, offset) = (self.file.as_raw_fd(), self.next_len(), self.next_offset() as libc::off_t);
        let ptr = self.next_ptr();
        // SAFETY: the operation keeps the file open, and `len` bytes at `ptr` are inside its buffer.
        let answer = unsafe {
            match self.action {
                Action::Read => libc::pread(fd, ptr.cast(), len, offset),
                Action::Write => libc::pwrite(fd, ptr.cast(), len, offset),
                Action::WriteSynced => {
                    let part = libc::iovec { iov_base: ptr.cast(), iov_len: len };
                    libc::pwritev2(fd, &raw const part, 1, offset, libc::RWF_DSYNC)
                }
                Action::Sync => libc::fdatasync(fd) as isize,
            }
        };
        usize::try_from(answer).map_err(|_| io::Error::last_os_error())
    }
}

/// How operations are executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IoMode {
    /// Operations are executed by an io_uring, or by threads if the kernel, the container or
    /// `FOREBAY_IO=threads` forbids the ring.
    #[default]
    Auto,
    /// Operations are always executed by threads.
    Threads,
}

/// The executors of operations. The thread pool always exists, for operations that may block (open, create,
/// delete).
pub(super) struct Io {
    ring: Option<Ring>,
    pub(super) pool: Pool,
    synced_writes: Arc<SyncedWrites>,
}

impl Io {
    pub(super) fn new(mode: IoMode) -> io::Result<Io> {
        let threads =
            mode == IoMode::Threads || std::env::var_os("FOREBAY_IO").is_some_and(|v| v == "threads");
        let ring = if threads { None } else { Ring::new().inspect_err(warn_no_ring).ok() };
        Ok(Io { ring, pool: Pool::new()?, synced_writes: Arc::default() })
    }

    /// Whether an io_uring executes the operations.
    pub(super) fn is_uring(&self) -> bool {
        self.ring.is_some()
    }

    /// Whether synced writes are known to be short.
    pub(super) fn synced_writes_are_fast(&self) -> bool {
        self.synced_writes.run_inline(0)
    }

    /// Starts an operation without blocking, except for short synced writes to a fast disk: see [`inline`].
    pub(super) fn start(&self, op: Op) {
        let op = match op.action {
            Action::WriteSynced => self.synced_writes.timed(op),
            _ => op,
        };
        match &self.ring {
            _ if op.action == Action::WriteSynced && self.synced_writes.run_inline(op.len) => op.run(),
            Some(ring) => ring.start(op),
            None => self.pool.run(move || op.run()),
        }
    }

    /// Starts an operation on a thread that may block.
    pub(super) fn start_here(&self, op: Op) {
        match &self.ring {
            Some(ring) => ring.start(op),
            None => op.run(),
        }
    }

    /// Completes all started operations and ends the threads.
    pub(super) fn shut_down(&self) {
        self.pool.shut_down();
        if let Some(ring) = &self.ring {
            ring.shut_down();
        }
    }
}

fn warn_no_ring(error: &io::Error) {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(
        || tracing::warn!(%error, "io_uring is not available; using threads, which costs more CPU"),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(action: Action, len: usize) -> Op {
        let file = Arc::new(File::open("/dev/null").unwrap());
        Op::new(action, file, IoBuf::zeroed(len), 0, len, Box::new(|_, _| {}))
    }

    fn errno(e: i32) -> io::Result<usize> {
        Err(io::Error::from_raw_os_error(e))
    }

    #[test]
    fn a_short_transfer_continues_at_an_aligned_offset() {
        for action in [Action::Read, Action::Write, Action::WriteSynced] {
            let mut op = op(action, 16384);
            assert!(op.advance(Ok(4096)).is_none());
            assert_eq!((op.next_offset(), op.next_len()), (4096, 12288));
            assert!(op.advance(Ok(5000)).is_none());
            assert_eq!((op.next_offset(), op.next_len()), (8192, 8192));
            assert_eq!(op.advance(Ok(8192)).unwrap().unwrap(), 16384);
        }
    }

    #[test]
    fn interruptions_are_repeated_and_errors_are_not() {
        for e in [libc::EINTR, libc::EAGAIN, libc::ECANCELED] {
            let mut op = op(Action::Sync, 0);
            assert!(op.advance(errno(e)).is_none());
            assert!(op.must_block);
        }
        let mut op = op(Action::Sync, 0);
        assert_eq!(op.advance(errno(libc::EIO)).unwrap().unwrap_err().raw_os_error(), Some(libc::EIO));
    }

    #[test]
    fn a_shortage_of_memory_is_retried_except_for_a_sync() {
        for action in [Action::Read, Action::Write] {
            let mut op = op(action, 8192);
            assert!(op.advance(Ok(4096)).is_none());
            assert_eq!(op.pause().unwrap(), None);
            assert!(op.advance(errno(libc::ENOMEM)).is_none());
            assert!(op.pause().unwrap().is_some());
            assert_eq!((op.next_offset(), op.next_len()), (4096, 4096), "it continues at the same offset");
            assert_eq!(op.advance(Ok(4096)).unwrap().unwrap(), 8192);
        }
        let mut synced = op(Action::WriteSynced, 4096);
        assert!(synced.advance(errno(libc::ENOMEM)).unwrap().is_err());
        let mut op = op(Action::Sync, 0);
        assert_eq!(op.advance(errno(libc::ENOMEM)).unwrap().unwrap_err().raw_os_error(), Some(libc::ENOMEM));
    }

    #[test]
    fn a_read_ends_at_the_end_of_the_file() {
        let mut aligned = op(Action::Read, 16384);
        assert!(aligned.advance(Ok(8192)).is_none());
        assert_eq!(aligned.advance(Ok(0)).unwrap().unwrap(), 8192);
        let mut ragged = op(Action::Read, 16384);
        assert!(ragged.advance(Ok(9000)).is_none());
        assert_eq!(ragged.advance(Ok(9000 - 8192)).unwrap().unwrap(), 9000);
    }

    #[test]
    fn a_write_that_makes_no_progress_is_an_error() {
        let mut stuck = op(Action::Write, 16384);
        assert!(stuck.advance(Ok(100)).is_none());
        assert!(stuck.advance(Ok(100)).unwrap().is_err());
        assert!(op(Action::Write, 4096).advance(Ok(0)).unwrap().is_err());
    }
}
