//! Scans of disks, which determine their block classes.

use std::thread;
use std::time::{Duration, Instant};

use forebay_api::{ErrorKind, JobKind};
use forebay_engine::Peek;
use forebay_frontend::registry::{Registered, Registry};
use forebay_guest::{Blocks, Content, Options, ReadError, scan};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, watch};

use super::{Control, ControlError, Result};

/// A background scan works this long, then pauses [`PAUSE_FACTOR`] times as long as it worked.
const SCAN_BURST: Duration = Duration::from_millis(10);
const PAUSE_FACTOR: u32 = 3;

/// Maximum number of requested scans that have not ended.
const MAX_REQUESTED: usize = 4;
/// Maximum number of requested scans of one client.
const MAX_OF_CLIENT: usize = MAX_REQUESTED / 2;

/// The state of scans. One runs at a time, because each may use about 200 MiB of memory.
#[derive(Default)]
pub(super) struct Scans {
    running: Mutex<()>,
    /// The clients whose requested scans run or are queued. While there are any, scans do not pause.
    requested: Registry<String>,
}

impl Scans {
    /// Counts a scan that a client requests.
    fn admit(&self, client: &str) -> Result<Registered<String>> {
        let (all, of_client) = (self.requested.count(), self.requested.list(|other| other == client).len());
        if all >= MAX_REQUESTED || of_client >= MAX_OF_CLIENT {
            let why = format!(
                "{all} scans are running or queued, {of_client} of them for this client; repeat the request when one has \
                 ended"
            );
            return Err(ControlError::new(ErrorKind::BadState, why));
        }
        Ok(self.requested.begin(client.to_owned()))
    }
}

impl Control {
    /// Scans a disk at the request of an administrator.
    ///
    /// # Errors
    /// [`ErrorKind::BadState`] if [`MAX_REQUESTED`] scans are running or queued, or [`MAX_OF_CLIENT`] of this
    /// client: each occupies a job permit.
    pub(crate) async fn scan_classes(&self, name: &str, owner: &str) -> Result<()> {
        let _requested = self.inner.scans.admit(owner)?;
        let peek = self.pool().peek(name)?;
        let job = self.begin_job(JobKind::Scan, Some(name), owner, false);
        let learned = self.learn(peek).await;
        job.end(&learned);
        learned
    }

    /// Scans a disk on a blocking thread and stores the resulting classes.
    pub async fn learn(&self, peek: Peek) -> Result<()> {
        let _running = self.inner.scans.running.lock().await;
        let began = Instant::now();
        let (control, runtime) = (self.clone(), Handle::current());
        let work = move || {
            let (stopping, burst_began) = (control.stopping(), Instant::now());
            let mut reader = Reader { stopping, burst_began, peek, runtime, control };
            let scan = scan(&mut reader, &Options::default());
            (reader.peek, scan)
        };
        let failed = |e| ControlError::internal(format!("the scan failed: {e}"));
        let (peek, scan) = tokio::task::spawn_blocking(work).await.map_err(failed)?;
        if *self.stopping().borrow() {
            return Err(self.ended());
        }
        let file_systems: Vec<Content> = scan.volumes.iter().map(|(_, content)| *content).collect();
        tracing::info!(
            disk = peek.name(),
            ?file_systems,
            runs = scan.map.len(),
            complete = scan.complete,
            failed_reads = scan.failed_reads,
            read_bytes = scan.read_bytes,
            ms = began.elapsed().as_millis(),
            "scanned the disk for block classes"
        );
        Ok(peek.keep(scan.map, file_systems).await?)
    }
}

/// The disk of a scan, read on a thread that may block.
struct Reader {
    peek: Peek,
    runtime: Handle,
    control: Control,
    stopping: watch::Receiver<bool>,
    /// When the work after the last pause began.
    burst_began: Instant,
}

impl Blocks for Reader {
    fn size(&self) -> u64 {
        self.peek.size()
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> std::result::Result<(), ReadError> {
        if *self.stopping.borrow() {
            return Err(ReadError { offset, source: None });
        }
        let read = self.runtime.block_on(self.peek.read(offset, out));
        self.throttle();
        read.map_err(|e| ReadError { offset, source: Some(std::io::Error::other(e)) })
    }

    fn pause(&mut self) -> bool {
        self.throttle();
        !*self.stopping.borrow()
    }
}

impl Reader {
    /// Pauses after a burst of reading and processing, unless an administrator waits for a scan.
    fn throttle(&mut self) {
        let worked = self.burst_began.elapsed();
        if worked >= SCAN_BURST {
            if self.control.inner.scans.requested.count() == 0 {
                thread::sleep(worked * PAUSE_FACTOR);
            }
            self.burst_began = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_requests_many_scans_leaves_room_to_others() {
        let scans = Scans::default();
        let of_operator: Vec<_> = std::iter::from_fn(|| scans.admit("operator").ok()).collect();
        assert_eq!(of_operator.len(), MAX_OF_CLIENT);
        let of_administrator = scans.admit("administrator").unwrap();
        drop(of_operator);
        assert!(scans.admit("operator").is_ok());
        drop(of_administrator);
        assert_eq!(scans.requested.count(), 0);
    }
}
