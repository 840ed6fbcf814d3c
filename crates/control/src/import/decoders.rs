//! The permit to decompress: one file of the server is decompressed at a time, since a decoder may need much
//! memory. Other imports wait for the permit.
//!
//! A decompression that neither reads nor stores a byte for [`STALL`] fails, and the next one begins: the
//! file may be on a file server that does not respond. The thread of the failed decompression, with its
//! memory, ends when the operating system returns. At most [`MAX_STALLED`] such threads exist; then imports
//! wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit, mpsc};

use super::{ImportError, Result};

/// Time without a byte that is read or stored, after which a decompression fails.
const STALL: Duration = Duration::from_secs(120);
/// Maximum number of threads whose decompression has failed without an end of the thread.
const MAX_STALLED: usize = 2;

/// Files that are decompressed at the same time.
pub(super) static DECODERS: Decoders =
    Decoders { permits: Semaphore::const_new(1), stalled: AtomicUsize::new(0), stall: STALL };

/// The decompressions of the server.
pub(super) struct Decoders {
    permits: Semaphore,
    /// Number of threads that have stalled and not ended.
    stalled: AtomicUsize,
    /// As [`STALL`].
    stall: Duration,
}

/// The permit of a thread, which is taken from it when it stalls.
pub(super) struct Permit {
    held: Mutex<Option<SemaphorePermit<'static>>>,
    decoders: &'static Decoders,
    /// The permit was taken from the thread.
    is_stalled: AtomicBool,
    /// Number of pieces that were read or stored.
    beats: AtomicU64,
}

impl Permit {
    /// Records that a piece was stored.
    pub fn beat(&self) {
        self.beats.fetch_add(1, SeqCst);
    }

    /// Gives the permit to the next import, unless too many threads have stalled.
    fn release_stalled(&self) {
        let count = |stalled: usize| (stalled < MAX_STALLED).then_some(stalled + 1);
        if self.decoders.stalled.fetch_update(SeqCst, SeqCst, count).is_ok() {
            self.is_stalled.store(true, SeqCst);
            self.held.lock().take();
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.is_stalled.load(SeqCst) {
            self.decoders.stalled.fetch_sub(1, SeqCst);
        }
    }
}

/// The progress of a decompression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// It waits until the file of another import was decompressed.
    Waits,
    /// Bytes of the compressed file that are done.
    Done(u64),
}

impl Decoders {
    /// Runs a decompression of the file `shown` on a thread that may wait, when it has the permit.
    pub async fn run<T: Send + 'static>(
        &'static self,
        shown: String,
        work: impl FnOnce(&Permit, mpsc::Sender<u64>) -> Result<T> + Send + 'static,
        mut progress: impl FnMut(Progress),
    ) -> Result<T> {
        let permit = match self.permits.try_acquire() {
            Ok(permit) => permit,
            Err(_) => {
                progress(Progress::Waits);
                self.permits.acquire().await.map_err(|_| ImportError::Cancelled)?
            }
        };
        let permit = Permit {
            held: Mutex::new(Some(permit)),
            decoders: self,
            is_stalled: AtomicBool::new(false),
            beats: AtomicU64::new(0),
        };
        let permit = Arc::new(permit);
        let (report, mut reports) = mpsc::channel(8);
        let of_thread = permit.clone();
        let work = tokio::task::spawn_blocking(move || work(&of_thread, report));
        let mut beats = 0;
        loop {
            match tokio::time::timeout(self.stall, reports.recv()).await {
                Ok(Some(done)) => progress(Progress::Done(done)),
                Ok(None) => break,
                Err(_) => {
                    let present = permit.beats.load(SeqCst);
                    if present == beats {
                        permit.release_stalled();
                        let reason = format!(
                            "nothing could be read or stored for {} s; check the file system of the file, and repeat the import",
                            self.stall.as_secs()
                        );
                        return Err(ImportError::Unpack { path: shown, reason });
                    }
                    beats = present;
                }
            }
        }
        work.await.unwrap_or(Err(ImportError::Internal("the decompression panicked")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Permit {
        /// A permit without a semaphore.
        pub fn none() -> Permit {
            let (held, is_stalled, beats) = Default::default();
            Permit { held, decoders: &DECODERS, is_stalled, beats }
        }
    }

    fn decoders(stall: Duration) -> &'static Decoders {
        Box::leak(Box::new(Decoders { permits: Semaphore::new(1), stalled: AtomicUsize::new(0), stall }))
    }

    /// Work that reads one piece, and then waits for the end of the channel.
    fn stuck(until: std::sync::mpsc::Receiver<()>) -> impl FnOnce(&Permit, mpsc::Sender<u64>) -> Result<u64> {
        move |_, report| {
            let _ = report.try_send(1);
            let _ = until.recv();
            drop(report);
            Ok(0)
        }
    }

    #[tokio::test]
    async fn an_import_reports_that_it_waits_for_another_one() {
        let decoders = decoders(STALL);
        let (end, until) = std::sync::mpsc::channel();
        let first = tokio::spawn(decoders.run("first".into(), stuck(until), |_| ()));
        while decoders.permits.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let mut seen = Vec::new();
        let mut end = Some(end);
        let second = decoders.run(
            "second".into(),
            |_, report| Ok(report.try_send(7).is_ok()),
            |progress| {
                if progress == Progress::Waits {
                    end.take();
                }
                seen.push(progress);
            },
        );
        assert!(second.await.unwrap());
        assert_eq!(seen, [Progress::Waits, Progress::Done(7)]);
        assert_eq!(first.await.unwrap().unwrap(), 0);
    }

    #[tokio::test]
    async fn a_source_that_delivers_nothing_makes_room_for_others() {
        let decoders = decoders(Duration::from_millis(10));
        let mut ends = Vec::new();
        for stalled in 0..MAX_STALLED {
            let (end, until) = std::sync::mpsc::channel();
            ends.push(end);
            let error = decoders.run("hung".into(), stuck(until), |_| ()).await.unwrap_err().to_string();
            assert!(error.contains("hung") && error.contains("nothing could be read"), "{error}");
            assert_eq!(decoders.stalled.load(SeqCst), stalled + 1);
            assert_eq!(decoders.permits.available_permits(), 1);
        }
        // The next one keeps its permit: its thread has memory, too.
        let (end, until) = std::sync::mpsc::channel();
        ends.push(end);
        assert!(decoders.run("hung".into(), stuck(until), |_| ()).await.is_err());
        assert_eq!((decoders.stalled.load(SeqCst), decoders.permits.available_permits()), (MAX_STALLED, 0));
        drop(ends);
        drop(decoders.permits.acquire().await.unwrap());
        while decoders.stalled.load(SeqCst) > 0 {
            tokio::task::yield_now().await;
        }
    }
}
