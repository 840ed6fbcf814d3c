//! Handing connections over to another process, which serves them without their clients noticing.
//!
//! **Phases.** Handing over begins with *quiescing*: no client is accepted, and each connection stops
//! reading at a request boundary; the requests that it has read are executed and answered. A connection
//! without requests in progress is *quiet*, and stays so. If one does not become quiet in time, serving
//! continues as if nothing had happened; only a connection whose client does not send the rest of a request
//! is not waited for, and is closed. Once all are quiet they are *parked*: each ends on its thread, and
//! leaves its socket with everything that its successor needs.
//!
//! **Invariant.** A parked connection has no request in progress, and no byte of its client is lost or
//! interpreted twice: every received byte was served, or is in [`Parked::input`]; every byte of a reply was
//! sent, or is in [`Parked::output`].

use std::any::Any;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use tokio::sync::Notify;

use super::Worker;
use super::connections::Admission;
use super::listen::{ListenAddr, RawSocket};

/// Maximum length of a message of any protocol, with its header, and the input that follows it in the same
/// buffer.
const MAX_MESSAGE: usize = 34 << 20;
/// Maximum bytes that a connection puts aside while it finishes its requests in progress.
pub const MAX_ASIDE: usize = 32 << 20;
/// Maximum bytes of unsent output: the share of a connection, with one more reply.
const MAX_OUTPUT: usize = 80 << 20;

/// What the connections of a server do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The connections serve requests.
    Serving,
    /// The connections finish the requests that they have read.
    Quiescing,
    /// The connections are parked, and end.
    HandingOver,
    /// The connections finish the requests that they have read, refuse others, and end.
    Closing,
}

impl Phase {
    /// Whether connections end.
    pub fn ends(self) -> bool {
        matches!(self, Phase::HandingOver | Phase::Closing)
    }
}

/// The connections of all threads that are not quiet.
#[derive(Default)]
pub(crate) struct Busy {
    working: AtomicUsize,
    awaiting: AtomicUsize,
    none: Notify,
}

/// What a connection does while it is quiesced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The connection executes requests.
    Working,
    /// The connection waits for its client, which has to send or receive the rest of a message.
    AwaitsClient,
    /// The connection has no requests in progress.
    Quiet,
}

impl Busy {
    /// The number of connections of this kind.
    fn of(&self, progress: Progress) -> Option<&AtomicUsize> {
        match progress {
            Progress::Working => Some(&self.working),
            Progress::AwaitsClient => Some(&self.awaiting),
            Progress::Quiet => None,
        }
    }

    fn is_none(&self) -> bool {
        self.working.load(SeqCst) + self.awaiting.load(SeqCst) == 0
    }

    /// Waits until all connections are quiet, at most `time`; after that, connections that wait for their
    /// clients count as quiet. Returns the number of other connections that are not quiet.
    pub async fn wait_for_none(&self, time: Duration) -> Result<(), usize> {
        let none = async {
            loop {
                let notified = self.none.notified();
                tokio::pin!(notified);
                notified.as_mut().enable();
                if self.is_none() {
                    return;
                }
                notified.await;
            }
        };
        let waited = tokio::time::timeout(time, none).await;
        let working = self.working.load(SeqCst);
        if waited.is_ok() || working == 0 { Ok(()) } else { Err(working) }
    }
}

/// Counts a connection as busy until it is quiet or dropped.
pub(crate) struct BusyGuard {
    busy: Arc<Busy>,
    progress: Progress,
}

impl BusyGuard {
    pub fn new(busy: &Arc<Busy>) -> BusyGuard {
        busy.working.fetch_add(1, SeqCst);
        BusyGuard { busy: busy.clone(), progress: Progress::Working }
    }

    pub fn set(&mut self, progress: Progress) {
        if progress == self.progress {
            return;
        }
        // The new state is counted first, so that the sum is never 0 in between.
        if let Some(count) = self.busy.of(progress) {
            count.fetch_add(1, SeqCst);
        }
        self.leave(progress);
    }

    fn leave(&mut self, to: Progress) {
        if let Some(count) = self.busy.of(std::mem::replace(&mut self.progress, to)) {
            count.fetch_sub(1, SeqCst);
            if self.busy.is_none() {
                self.busy.none.notify_waiters();
            }
        }
    }
}

impl Drop for BusyGuard {
    fn drop(&mut self) {
        self.leave(Progress::Quiet);
    }
}

/// A socket whose bytes are the bytes of the protocol, so that another process can continue to use it.
pub trait PlainSocket {
    /// The descriptor; `None` for a stream with separate state, such as TLS.
    fn plain(&self) -> Option<BorrowedFd<'_>>;
}

impl PlainSocket for tokio::net::TcpStream {
    fn plain(&self) -> Option<BorrowedFd<'_>> {
        Some(std::os::fd::AsFd::as_fd(self))
    }
}

/// How the loop of a connection ended.
pub(crate) enum Ended {
    /// The client disconnected, or the server closed the connection.
    Closed,
    /// The connection is parked, to be handed over.
    Parked(Box<ParkedStream>),
}

/// The bytes and the socket of a parked connection.
pub struct ParkedStream {
    /// The socket of the connection.
    pub socket: OwnedFd,
    /// The state of the connection's protocol.
    pub protocol: serde_json::Value,
    /// Bytes that were received and not served.
    pub input: Vec<u8>,
    /// Bytes of replies that were not sent.
    pub output: Vec<u8>,
}

/// A connection that was parked for the successor.
pub struct Parked {
    /// The bound address on which the client was accepted.
    pub listener: ListenAddr,
    /// The bytes and the socket of the connection.
    pub stream: ParkedStream,
}

/// A connection that continues in this process.
pub(crate) struct Resumed {
    pub socket: RawSocket,
    pub listener: Arc<ListenAddr>,
    pub admission: Admission,
    pub received: Received,
    /// Dropped by its front end when the client is served again.
    pub until_resumed: Arc<dyn Any + Send + Sync>,
}

/// The bytes that a connection has received and not served, and the bytes that it has not sent.
#[derive(Default)]
pub(crate) struct Received {
    pub input: Vec<u8>,
    pub output: Vec<u8>,
}

impl Received {
    /// Bytes that were received after a negotiation.
    pub fn after_negotiation(input: Vec<u8>) -> Received {
        Received { input, ..Received::default() }
    }

    /// Whether the loop of a connection can continue with these bytes.
    pub fn is_valid(&self) -> bool {
        self.input.len() <= MAX_MESSAGE + MAX_ASIDE && self.output.len() <= MAX_OUTPUT
    }
}

/// Serves a connection of another process on a data-plane thread.
pub(crate) type Resume = Box<dyn FnOnce(&Rc<Worker>, Resumed) + Send>;
