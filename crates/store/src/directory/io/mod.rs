//! Reads, writes and syncs of files, whoever carries them out: an io_uring or a pool of threads.
//!
//! An [`Op`] owns everything that it touches (file, buffer, what to do at the end), so it runs to its end
//! whether or not anyone waits for it. Both carriers feed what the kernel answered to [`Op::advance`], the
//! one place that knows how a short or interrupted transfer goes on.

mod pool;
mod ring;

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;

use super::patience::{Patience, is_interruption, is_shortage};
use crate::IoBuf;

pub(super) use pool::Pool;
use ring::Ring;

/// Most bytes in one call; the kernel takes up to 2 GiB less a page.
const MAX_TRANSFER: usize = 1 << 30;

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Read,
    Write,
    Sync,
}

/// How an operation ended: the buffer, and the bytes that were moved.
pub(super) type Finish = Box<dyn FnOnce(IoBuf, io::Result<usize>) + Send>;

/// One operation on one file.
pub(super) struct Op {
    action: Action,
    file: Arc<File>,
    buf: IoBuf,
    offset: u64,
    /// Bytes that are to be moved in all, at most the buffer's capacity.
    len: usize,
    /// Where the next call goes on, aligned wherever direct I/O needs it.
    done: usize,
    /// Highest byte that any call reached; tells the end of a file from a short read.
    reached: usize,
    /// The kernel could not start it without blocking.
    must_block: bool,
    /// The last call found the system short of something: pause before the next one.
    short: bool,
    patience: Patience,
    finish: Finish,
}

impl Op {
    /// Reads `len` bytes, fewer at the end of the file. `finish` runs on an I/O thread and must not block.
    pub(super) fn read(file: Arc<File>, offset: u64, len: usize, finish: Finish) -> Op {
        Op::new(Action::Read, file, IoBuf::with_capacity(len), offset, len, finish)
    }

    /// Writes the whole buffer.
    pub(super) fn write(file: Arc<File>, offset: u64, buf: IoBuf, finish: Finish) -> Op {
        let len = buf.len();
        Op::new(Action::Write, file, buf, offset, len, finish)
    }

    /// Makes the file's data durable, and the metadata that is needed to read it.
    pub(super) fn sync(file: Arc<File>, finish: Finish) -> Op {
        Op::new(Action::Sync, file, IoBuf::with_capacity(0), 0, 0, finish)
    }

    fn new(action: Action, file: Arc<File>, buf: IoBuf, offset: u64, len: usize, finish: Finish) -> Op {
        assert!(len <= buf.capacity());
        let (short, patience) = (false, Patience::default());
        Op { action, file, buf, offset, len, done: 0, reached: 0, must_block: false, short, patience, finish }
    }

    /// Bytes of the next call.
    fn next_len(&self) -> usize {
        (self.len - self.done).min(MAX_TRANSFER)
    }

    /// Where the next call's bytes are.
    fn next_ptr(&mut self) -> *mut u8 {
        // SAFETY: `done <= len <= capacity`, so the pointer stays inside the allocation.
        unsafe { self.buf.as_mut_ptr().add(self.done) }
    }

    fn next_offset(&self) -> u64 {
        self.offset + self.done as u64
    }

    /// Takes in what a call answered. The result of the whole, or `None` where another call is needed.
    fn advance(&mut self, answer: io::Result<usize>) -> Option<io::Result<usize>> {
        let moved = match answer {
            Ok(moved) => moved,
            Err(e) => {
                let again = is_interruption(&e);
                self.must_block |= again;
                // A sync that failed is never repeated.
                self.short = !again && is_shortage(&e) && self.action != Action::Sync;
                return if again || self.short { None } else { Some(Err(e)) };
            }
        };
        match self.action {
            Action::Sync => Some(Ok(0)),
            Action::Write if moved == 0 => Some(Err(io::ErrorKind::WriteZero.into())),
            Action::Read if moved == 0 => Some(Ok(self.reached.max(self.done))),
            Action::Read | Action::Write => self.went_on_to(self.done + moved),
        }
    }

    /// The pause before the next call, where the last one found the system short of something; an error where that
    /// has lasted too long.
    fn pause(&mut self) -> io::Result<Option<Duration>> {
        if !std::mem::take(&mut self.short) {
            return Ok(None);
        }
        let too_long = io::Error::from_raw_os_error(libc::ENOMEM);
        self.patience.next_pause().ok_or(too_long).map(Some)
    }

    fn went_on_to(&mut self, end: usize) -> Option<io::Result<usize>> {
        if end >= self.len {
            return Some(Ok(self.len));
        }
        if end <= self.reached {
            // A second try did not get further: the file ends here, or the medium takes no more.
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

    /// Hands the result over.
    fn complete(mut self, result: io::Result<usize>) {
        if let (Action::Read, Ok(len)) = (self.action, &result) {
            self.buf.set_len(*len);
        }
        // First, so that whoever then deletes the file gets its room back.
        drop(self.file);
        (self.finish)(self.buf, result);
    }

    /// Runs it to its end on this thread.
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
        // SAFETY: the file is open while the operation owns it, and `len` bytes at `ptr` are inside its buffer.
        let answer = unsafe {
            match self.action {
                Action::Read => libc::pread(fd, ptr.cast(), len, offset),
                Action::Write => libc::pwrite(fd, ptr.cast(), len, offset),
                Action::Sync => libc::fdatasync(fd) as isize,
            }
        };
        usize::try_from(answer).map_err(|_| io::Error::last_os_error())
    }
}

/// Who carries operations out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IoMode {
    /// An io_uring, or threads where the kernel, the container or `FOREBAY_IO=threads` forbids it.
    #[default]
    Auto,
    /// Always threads.
    Threads,
}

/// The carriers: the pool is always there, for what may block (opening, creating, deleting).
pub(super) struct Io {
    ring: Option<Ring>,
    pub(super) pool: Pool,
}

impl Io {
    pub(super) fn new(mode: IoMode) -> io::Result<Io> {
        let threads =
            mode == IoMode::Threads || std::env::var_os("FOREBAY_IO").is_some_and(|v| v == "threads");
        let ring = if threads { None } else { Ring::new().inspect_err(warn_no_ring).ok() };
        Ok(Io { ring, pool: Pool::new()? })
    }

    /// Whether an io_uring carries the data.
    pub(super) fn is_uring(&self) -> bool {
        self.ring.is_some()
    }

    /// Starts an operation and returns at once.
    pub(super) fn start(&self, op: Op) {
        match &self.ring {
            Some(ring) => ring.start(op),
            None => self.pool.run(move || op.run()),
        }
    }

    /// Starts an operation from a thread that may block.
    pub(super) fn start_here(&self, op: Op) {
        match &self.ring {
            Some(ring) => ring.start(op),
            None => op.run(),
        }
    }

    /// Completes everything that was started and ends the threads.
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
        || tracing::warn!(%error, "io_uring is not available here: using threads, at some CPU cost"),
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
    fn a_short_transfer_goes_on_at_an_aligned_place() {
        for action in [Action::Read, Action::Write] {
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
    fn a_shortage_of_memory_is_waited_out_but_not_by_a_sync() {
        for action in [Action::Read, Action::Write] {
            let mut op = op(action, 8192);
            assert!(op.advance(Ok(4096)).is_none());
            assert_eq!(op.pause().unwrap(), None);
            assert!(op.advance(errno(libc::ENOMEM)).is_none());
            assert!(op.pause().unwrap().is_some());
            assert_eq!((op.next_offset(), op.next_len()), (4096, 4096), "it goes on where it was");
            assert_eq!(op.advance(Ok(4096)).unwrap().unwrap(), 8192);
        }
        let mut op = op(Action::Sync, 0);
        assert_eq!(op.advance(errno(libc::ENOMEM)).unwrap().unwrap_err().raw_os_error(), Some(libc::ENOMEM));
    }

    #[test]
    fn a_read_ends_with_the_file() {
        let mut aligned = op(Action::Read, 16384);
        assert!(aligned.advance(Ok(8192)).is_none());
        assert_eq!(aligned.advance(Ok(0)).unwrap().unwrap(), 8192);
        let mut ragged = op(Action::Read, 16384);
        assert!(ragged.advance(Ok(9000)).is_none());
        assert_eq!(ragged.advance(Ok(9000 - 8192)).unwrap().unwrap(), 9000);
    }

    #[test]
    fn a_write_that_gets_no_further_is_an_error() {
        let mut stuck = op(Action::Write, 16384);
        assert!(stuck.advance(Ok(100)).is_none());
        assert!(stuck.advance(Ok(100)).unwrap().is_err());
        assert!(op(Action::Write, 4096).advance(Ok(0)).unwrap().is_err());
    }
}
