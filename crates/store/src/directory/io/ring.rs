//! One io_uring for all threads: the thread that starts an operation submits it; a single thread, the reaper,
//! sleeps in the kernel until a completion arrives and delivers the results. It uses no CPU while idle, and
//! is independent of the executor that awaits.
//!
//! Invariants:
//! - From the push of its entry to its completion the kernel owns an operation: it is a leaked `Box<Op>`
//!   whose address is the entry's user data, and only the reaper reclaims it.
//! - Entries are pushed under `pushing`; only the reaper takes completions.
//! - The kernel binds a request to the thread that submitted it and cancels requests that are still queued
//!   when that thread ends. [`Op::advance`] then requests another attempt, which the reaper submits, and the
//!   reaper outlives all submitters.

use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use io_uring::{IoUring, Probe, opcode, squeue, types};
use parking_lot::Mutex;

use super::pool::join;
use super::{Action, Op};

/// Maximum number of entries that wait for submission. Submitters empty the queue immediately, so it is
/// seldom longer than the number of threads.
const ENTRIES: u32 = 256;

/// Maximum number of completions that wait for the reaper; the kernel keeps any further completions.
const COMPLETIONS: u32 = 4096;

/// Minimum size of an operation that a kernel thread starts, unless its buffer is in huge pages: pinning many
/// pages would delay the submitter and all later submitters.
const LARGE_BYTES: usize = 512 << 10;

/// User data of the entry that ends the reaper.
const STOP: u64 = 0;

/// Pause before another attempt if the kernel has no memory or no space for completions.
const RETRY_PAUSE: Duration = Duration::from_micros(100);

/// Maximum pause of the reaper, which delays all completions.
const LONGEST_REAPER_PAUSE: Duration = Duration::from_millis(5);

/// The io_uring with its reaper.
pub(super) struct Ring {
    shared: Arc<Shared>,
    reaper: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    ring: IoUring,
    pushing: Mutex<()>,
    /// Operations that the kernel owns.
    in_flight: AtomicUsize,
}

impl Ring {
    /// Fails if the kernel or a sandbox forbids io_uring, or does not support all of the operations.
    pub(super) fn new() -> io::Result<Ring> {
        let ring = IoUring::builder().setup_clamp().setup_cqsize(COMPLETIONS).dontfork().build(ENTRIES)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        let needed = [opcode::Read::CODE, opcode::Write::CODE, opcode::Fsync::CODE, opcode::Nop::CODE];
        if !ring.params().is_feature_nodrop() || !needed.iter().all(|code| probe.is_supported(*code)) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        try_out(&ring)?;
        let shared = Arc::new(Shared { ring, pushing: Mutex::new(()), in_flight: AtomicUsize::new(0) });
        let reaper = shared.clone();
        let reaper = thread::Builder::new().name("store-reaper".into()).spawn(move || reaper.reap())?;
        Ok(Ring { shared, reaper: Mutex::new(Some(reaper)) })
    }

    /// Submits an operation to the kernel.
    pub(super) fn start(&self, op: Op) {
        self.shared.in_flight.fetch_add(1, Ordering::Relaxed);
        self.shared.push(Box::new(op));
        self.shared.submit();
    }

    /// Completes all started operations and ends the reaper.
    pub(super) fn shut_down(&self) {
        let Some(reaper) = self.reaper.lock().take() else { return };
        self.shared.push_entry(&opcode::Nop::new().build().user_data(STOP));
        self.shared.submit();
        join(reaper);
    }
}

/// Submits one no-op entry: some sandboxes allow creating a ring and then forbid its use.
fn try_out(ring: &IoUring) -> io::Result<()> {
    // SAFETY: the ring is not shared yet, and the entry refers to no memory.
    unsafe { ring.submission_shared().push(&opcode::Nop::new().build()) }.map_err(io::Error::other)?;
    ring.submit_and_wait(1)?;
    // SAFETY: as above.
    match unsafe { ring.completion_shared() }.next() {
        Some(completion) if completion.result() == 0 => Ok(()),
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}

impl Shared {
    fn push(&self, mut op: Box<Op>) {
        let fd = types::Fd(op.file.as_raw_fd());
        let (len, offset, ptr) = (op.next_len() as u32, op.next_offset(), op.next_ptr());
        let entry = match op.action {
            Action::Read => opcode::Read::new(fd, ptr, len).offset(offset).build(),
            Action::Write => opcode::Write::new(fd, ptr, len).offset(offset).build(),
            Action::WriteSynced => {
                opcode::Write::new(fd, ptr, len).offset(offset).rw_flags(libc::RWF_DSYNC).build()
            }
            Action::Sync => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
        };
        let has_many_pages = len as usize >= LARGE_BYTES && !op.buf.is_in_huge_pages();
        let blocks = op.must_block || has_many_pages || op.action == Action::WriteSynced;
        let flags = if blocks { squeue::Flags::ASYNC } else { squeue::Flags::empty() };
        self.push_entry(&entry.flags(flags).user_data(Box::into_raw(op) as u64));
    }

    fn push_entry(&self, entry: &squeue::Entry) {
        loop {
            let pushed = {
                let _only = self.pushing.lock();
                // SAFETY: the lock makes this the only view of the submission queue. The entry points into a
                // leaked operation, which is not moved or freed until the reaper reclaims it.
                unsafe { self.ring.submission_shared().push(entry).is_ok() }
            };
            if pushed {
                return;
            }
            self.submit();
        }
    }

    /// Submits all entries that were pushed to the kernel.
    fn submit(&self) {
        while let Err(e) = self.ring.submit() {
            // The kernel has no memory, or too many completions are pending: no entry was accepted, and all
            // entries stay queued. The reaper frees space concurrently.
            if e.raw_os_error() != Some(libc::EINTR) {
                thread::sleep(RETRY_PAUSE);
            }
        }
    }

    fn reap(&self) {
        let mut completed = Vec::new();
        // Operations that failed because of a shortage. All of them are pushed again after one pause.
        let mut short = Vec::new();
        let mut stopping = false;
        while !stopping || self.in_flight.load(Ordering::Relaxed) > 0 {
            // This also submits the entries pushed by `take_in`.
            let waited = self.ring.submit_and_wait(1);
            // SAFETY: only this thread takes completions.
            let completions = unsafe { self.ring.completion_shared() };
            completed.extend(completions.map(|c| (c.user_data(), c.result())));
            if completed.is_empty() && waited.is_err_and(|e| e.raw_os_error() != Some(libc::EINTR)) {
                thread::sleep(RETRY_PAUSE);
            }
            for (user_data, result) in completed.drain(..) {
                match user_data {
                    STOP => stopping = true,
                    op => self.take_in(op as *mut Op, result, &mut short),
                }
            }
            if let Some(pause) = short.iter().map(|(_, pause)| *pause).min() {
                thread::sleep(pause.min(LONGEST_REAPER_PAUSE));
                short.drain(..).for_each(|(op, _)| self.push(op));
            }
        }
    }

    fn take_in(&self, op: *mut Op, result: i32, short: &mut Vec<(Box<Op>, Duration)>) {
        // SAFETY: the pointer was leaked in `push`, and its completion arrives once.
        let mut op = unsafe { Box::from_raw(op) };
        let answer = usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
        let result = match op.advance(answer) {
            Some(result) => result,
            None => match op.pause() {
                Ok(None) => return self.push(op),
                Ok(Some(pause)) => return short.push((op, pause)),
                Err(e) => Err(e),
            },
        };
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        op.complete(result);
    }
}
