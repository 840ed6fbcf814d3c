//! A disk with many requests in flight, whatever the transport is: NBD, iSCSI, NVMe, or a file of this
//! machine.
//!
//! A load queues requests, sends them, waits until the descriptor is readable, and receives answers. All
//! loads of this crate do so through [`Device`]. Only [`Endpoint::open`] blocks, and [`Device::receive`] if
//! the caller requests it.

mod drive;
mod file;
mod iscsi;
mod nvme;

pub use drive::{Client, drive};
pub(crate) use file::{FileDevice, has_data};
pub(crate) use iscsi::IscsiDevice;
pub(crate) use nvme::NvmeDevice;

use std::fmt;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::iscsi::{Address, IscsiError};
use crate::nbd::{NbdError, Pipeline, Target};
use crate::nvme::{Namespace, NvmeError};
use crate::socket;

/// At least the capacity of a socket buffer: room for all answers of a deep queue of small reads, and for one
/// large answer.
pub const RECEIVE_BYTES: usize = 1 << 20;

/// A request that has been answered.
#[derive(Debug, Clone, Copy)]
pub struct Done {
    /// Slot of the request, which is free again.
    pub slot: usize,
    /// Whether the request was a flush.
    pub flush: bool,
    /// Nanoseconds from when the request was due until its answer was received.
    pub nanos: u64,
    /// The error as a number of the protocol; `None` if the request succeeded.
    pub error: Option<u32>,
    /// The request was not executed, and can be sent again. `error` has the target's answer.
    pub again: Option<Again>,
}

/// Why a target did not execute a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Again {
    /// Another host has reserved the disk.
    Reserved,
    /// The target reported an earlier event in place of the request (a unit attention).
    Event,
}

/// An open disk.
pub trait Device: AsRawFd + Send {
    /// Size of the disk in bytes.
    fn size(&self) -> u64;
    /// Whether another read or write can be queued.
    fn has_room(&self) -> bool;
    /// Number of requests that are queued and not answered.
    fn under_way(&self) -> usize;
    /// Queues a read; there must be room. With `keep`, [`Device::data`] returns the data of the read once it
    /// is answered.
    fn queue_read(&mut self, offset: u64, len: u32, keep: bool, due: Instant) -> usize;
    /// Queues a write of what `fill` writes into its argument; there must be room.
    fn queue_write(&mut self, offset: u64, len: u32, due: Instant, fill: &mut dyn FnMut(&mut [u8])) -> usize;
    /// Queues a flush unless a flush is in progress. Returns whether it was queued.
    fn queue_flush(&mut self, due: Instant) -> bool;
    /// Sends queued requests until the transport would block. Returns whether requests remain unsent.
    fn send(&mut self) -> Result<bool, DeviceError>;
    /// Receives the answers that have arrived; with `wait`, waits for one, within the patience of the
    /// connection. Returns whether anything arrived.
    fn receive(&mut self, buffer: &mut [u8], wait: bool) -> Result<bool, DeviceError>;
    /// The next request that was answered.
    fn next_done(&mut self) -> Option<Done>;
    /// The data of the last request of a slot.
    fn data(&self, slot: usize) -> &[u8];
}

/// Sends queued requests, then waits for answers and receives them: at most until `until`, or else for
/// `stall`, after which the target counts as stalled.
pub fn turn<D: Device + ?Sized>(
    device: &mut D,
    buffer: &mut [u8],
    until: Option<Instant>,
    stall: Duration,
) -> Result<(), DeviceError> {
    let blocked = device.send()?;
    // If only an answer can allow progress, one system call is enough: it waits and receives.
    let only_answers = !blocked && until.is_none();
    let ready = only_answers || {
        let left = until.map_or(stall, |until| until.saturating_duration_since(Instant::now()));
        socket::wait(&mut [socket::poll(device.as_raw_fd(), blocked)], left)?
    };
    let received = ready && device.receive(buffer, only_answers)?;
    // The descriptor may be ready only for sending, or `until` may have passed.
    if received || until.is_some() || ready && blocked {
        return Ok(());
    }
    Err(DeviceError::Stalled(stall.as_secs()))
}

/// Number of slots of a device of a depth: the reads and writes, and one flush.
pub fn slots(depth: usize) -> usize {
    depth + 1
}

/// Where a disk is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// An export of an NBD server.
    Nbd(Target, String),
    /// A unit of an iSCSI target.
    Iscsi(Address),
    /// A namespace of an NVMe/TCP subsystem.
    Nvme(Namespace),
    /// A file or block device.
    File(PathBuf),
}

/// What a load needs of a disk.
#[derive(Debug, Clone, Copy)]
pub struct Needs {
    /// Maximum number of reads and writes in flight.
    pub depth: usize,
    /// The disk must accept writes.
    pub writes: bool,
    /// The disk must accept flushes.
    pub flushes: bool,
    /// The disk must accept writes that are durable when they are answered.
    pub durable: bool,
    /// Simple replies of an NBD server, as the Linux kernel's client requests them.
    pub simple_replies: bool,
    /// Maximum wait for the server, while connecting and in [`Device::receive`].
    pub patience: Duration,
}

impl Needs {
    /// Returns the needs of reads at this depth.
    pub fn reads(depth: usize, patience: Duration) -> Needs {
        Needs { depth, writes: false, flushes: false, durable: false, simple_replies: false, patience }
    }

    /// Reads, writes and flushes.
    pub fn all(depth: usize, patience: Duration) -> Needs {
        Needs { writes: true, flushes: true, ..Needs::reads(depth, patience) }
    }
}

impl Endpoint {
    /// Opens the disk.
    pub fn open(&self, needs: Needs) -> Result<Box<dyn Device>, DeviceError> {
        Ok(match self {
            Endpoint::Nbd(target, export) => Box::new(Pipeline::open(target, export, needs)?),
            Endpoint::Iscsi(address) => Box::new(IscsiDevice::open(address, needs)?),
            Endpoint::Nvme(namespace) => Box::new(NvmeDevice::open(namespace, needs)?),
            Endpoint::File(path) => Box::new(FileDevice::open(path, needs)?),
        })
    }
}

impl fmt::Display for Endpoint {
    /// The URI in the format of libnbd and libiscsi.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Nbd(Target::Unix(path), export) => {
                write!(f, "nbd+unix:///{export}?socket={}", path.display())
            }
            Endpoint::Nbd(Target::Tcp(address), export) => write!(f, "nbd://{address}/{export}"),
            Endpoint::Iscsi(a) => write!(f, "iscsi://{}/{}/{}", a.portal, a.target, a.lun),
            Endpoint::Nvme(n) => write!(f, "nvme://{}/{}/{}", n.portal, n.subsystem, n.number),
            Endpoint::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

/// Why a disk cannot be used, or is not reachable any more.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// A device over NBD failed.
    #[error(transparent)]
    Nbd(#[from] NbdError),
    /// A device over iSCSI failed.
    #[error(transparent)]
    Iscsi(#[from] IscsiError),
    /// A device over NVMe failed.
    #[error(transparent)]
    Nvme(#[from] NvmeError),
    /// A file cannot be used as a disk.
    #[error("{what} {}: {source}", path.display())]
    File {
        /// The attempted action: "cannot …".
        what: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The system call that waits for answers has failed.
    #[error("cannot wait for answers: {0}")]
    Wait(#[from] std::io::Error),
    /// The target lacks what the load needs.
    #[error("the target {0}")]
    Lacks(&'static str),
    /// The target has answered nothing in time.
    #[error("no answer from the target for {0} seconds")]
    Stalled(u64),
}

impl DeviceError {
    /// Whether a client tries again: the transport failed, the disk is the same.
    pub fn is_connection(&self) -> bool {
        match self {
            DeviceError::Nbd(e) => {
                matches!(e, NbdError::Io(_) | NbdError::Closed(_) | NbdError::Refused { .. })
            }
            DeviceError::Iscsi(e) => {
                matches!(
                    e,
                    IscsiError::Io(_) | IscsiError::Closed(_) | IscsiError::Refused(_) | IscsiError::Stalled
                )
            }
            DeviceError::Nvme(e) => {
                matches!(
                    e,
                    NvmeError::Io(_) | NvmeError::Closed(_) | NvmeError::Failed { what: "Connect", .. }
                )
            }
            DeviceError::Stalled(_) => true,
            DeviceError::File { .. } | DeviceError::Wait(_) | DeviceError::Lacks(_) => false,
        }
    }
}
