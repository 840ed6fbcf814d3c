//! The predecessor's side: it starts the successor, and hands over to it step by step. Blocks; called on
//! separate threads.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};
use std::time::Duration;

use forebay_frontend::plane::Parked;
use forebay_frontend::scsi::UnitState;
use forebay_store::rados::Heir;

use super::VARIABLE;
use super::cache::CacheCopy;
use super::channel::{Channel, ChannelError, Frame};
use super::message::{ConnectionState, Message};
use crate::serve::listen::sockets::Sockets;

/// The process that is to take over, while this process decides whether it does.
static CHILD: AtomicI32 = AtomicI32::new(0);

/// Stops the process that is to take over, if any, although the caller ends without waiting for it.
pub(in crate::serve) fn stop_successor() {
    let pid = CHILD.load(SeqCst);
    if pid > 0 {
        // SAFETY: the call accesses no memory. The child was not waited for, so its id is not reused.
        unsafe { libc::kill(pid, libc::SIGTERM) };
    }
}

/// Time to wait for the end of a process that was killed.
const REAP_STEP: Duration = Duration::from_millis(5);

/// Path of the server's binary.
#[derive(Debug, Clone)]
pub(in crate::serve) struct Binary(PathBuf);

impl Binary {
    /// The path from which this process was started. It is not resolved further: a new release replaces the
    /// file, or a symbolic link on the way to it.
    pub fn at_start() -> Binary {
        let name = std::env::args_os().next().map(PathBuf::from).unwrap_or_default();
        let found = if name.components().count() > 1 {
            std::path::absolute(&name).ok()
        } else {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path).map(|dir| dir.join(&name)).find(|file| is_executable(file))
        };
        let found = found.filter(|file| is_executable(file)).or_else(|| std::env::current_exe().ok());
        Binary(found.unwrap_or(name))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

fn is_executable(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Why the successor cannot take over.
#[derive(Debug, thiserror::Error)]
pub(in crate::serve) enum Failure {
    #[error("cannot start {}: {error}", binary.display())]
    Start { binary: PathBuf, error: io::Error },
    #[error(
        "this process is the first one of its container, which ends with it; restart the container with the new \
         release"
    )]
    First,
    #[error("the new process refused: {0}")]
    Refused(String),
    #[error("the new process {0}; see the server's log")]
    Exited(String),
    #[error("the new process gave no sign of life in the pool")]
    Silent,
    #[error("the new process cannot take over: {0}")]
    Channel(String),
    #[error(
        "release {release} reads on-store format versions {oldest} to {newest}, this pool has version {needed}"
    )]
    Format { release: String, oldest: u32, newest: u32, needed: u32 },
}

/// What is handed over, in addition to the pool and the listening sockets.
#[derive(Default)]
pub(in crate::serve) struct HandedOver {
    pub connections: Vec<Parked>,
    pub units: Vec<UnitState>,
    pub cache: Option<CacheCopy>,
}

/// The connection to the successor, which is killed when this is dropped before it serves.
pub(in crate::serve) struct Predecessor {
    child: Child,
    channel: Channel,
    time: Duration,
    /// Release of the successor.
    pub release: String,
    /// The successor as the heir of a pool in Ceph.
    pub heir: Option<Heir>,
    serves: bool,
}

impl Drop for Predecessor {
    fn drop(&mut self) {
        CHILD.store(0, SeqCst);
        if !self.serves {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Predecessor {
    /// Starts the successor with the arguments and the environment of this process, and waits until it is
    /// prepared, at most `time`.
    pub fn start(binary: &Path, sockets: &Sockets, time: Duration) -> Result<Predecessor, Failure> {
        if std::process::id() == 1 {
            return Err(Failure::First);
        }
        let failed = |error| Failure::Start { binary: binary.to_owned(), error };
        let (mine, theirs) = UnixStream::pair().map_err(failed)?;
        let args: Vec<OsString> = std::env::args_os().skip(1).collect();
        let child = Command::new(binary)
            .args(args)
            .env(VARIABLE, std::process::id().to_string())
            .env_remove("LISTEN_PID")
            .env_remove("LISTEN_FDS")
            .env_remove("LISTEN_FDNAMES")
            .stdin(OwnedFd::from(theirs))
            .spawn()
            .map_err(failed)?;
        CHILD.store(child.id().cast_signed(), SeqCst);
        let channel = Channel::to_successor(mine);
        let mut this =
            Predecessor { child, channel, time, release: String::new(), heir: None, serves: false };
        let (listeners, fds) = sockets.describe();
        this.send(&Message::Start { listeners }, &[], &fds)?;
        match this.receive()? {
            Message::Ready { release, formats: (oldest, newest), .. }
                if !(oldest..=newest).contains(&forebay_format::VERSION) =>
            {
                Err(Failure::Format { release, oldest, newest, needed: forebay_format::VERSION })
            }
            Message::Ready { release, heir, .. } => {
                this.release = release;
                this.heir = heir.as_deref().and_then(Heir::parse);
                Ok(this)
            }
            _ => Err(unexpected()),
        }
    }

    /// Process id of the successor.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Hands the connections over, and waits until the successor is able to serve them.
    pub fn hand_over(&mut self, state: &HandedOver) -> Result<(), Failure> {
        let mut bytes = Vec::new();
        let connections = state.connections.iter().map(|c| ConnectionState::of(c, &mut bytes)).collect();
        let sockets = state.connections.iter().map(|parked| parked.stream.socket.as_fd());
        let fds: Vec<_> = sockets.chain(state.cache.iter().map(CacheCopy::as_fd)).collect();
        let (units, has_cache) = (state.units.clone(), state.cache.is_some());
        self.send(&Message::State { connections, units, has_cache }, &bytes, &fds)?;
        match self.receive()? {
            Message::Opened => Ok(()),
            _ => Err(unexpected()),
        }
    }

    /// Gives the connections to the successor, and waits until it serves them. Returns their number. After
    /// this call they must not be used by this process, also if it fails.
    pub fn go(&mut self) -> Result<usize, Failure> {
        self.send(&Message::Go, &[], &[])?;
        match self.receive()? {
            Message::Serving { resumed } => {
                self.serves = true;
                Ok(resumed)
            }
            _ => Err(unexpected()),
        }
    }

    fn send(
        &mut self,
        message: &Message,
        bytes: &[u8],
        fds: &[std::os::fd::BorrowedFd<'_>],
    ) -> Result<(), Failure> {
        let sent = self.channel.send(message, bytes, fds, self.time);
        sent.or_else(|e| match e {
            // The successor may have sent the reason before it ended.
            ChannelError::Ended => self.receive().map(drop),
            e => Err(Failure::Channel(e.to_string())),
        })
    }

    fn receive(&mut self) -> Result<Message, Failure> {
        match self.channel.receive(Some(self.time)) {
            Ok(Frame { message: Message::Refused { reason }, .. }) => Err(Failure::Refused(reason)),
            Ok(frame) => Ok(frame.message),
            Err(ChannelError::Ended) => Err(self.exited()),
            Err(e) => Err(Failure::Channel(e.to_string())),
        }
    }

    /// Why the successor closed the channel.
    fn exited(&mut self) -> Failure {
        // A process that closes its descriptors has usually exited a moment later.
        for _ in 0..20 {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Failure::Exited(format!("ended ({status}) before it took over"));
            }
            std::thread::sleep(REAP_STEP);
        }
        Failure::Exited("closed its connection to this one before it took over".into())
    }
}

fn unexpected() -> Failure {
    Failure::Channel("its message is out of order".into())
}
