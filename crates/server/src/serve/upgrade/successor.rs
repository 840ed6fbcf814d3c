//! The successor's side: it prepares itself, waits for the connections, and takes over.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use forebay_frontend::peer::peer_of;
use forebay_store::rados::Heir;

use super::VARIABLE;
use super::cache::CacheCopy;
use super::channel::{Channel, ChannelError, Frame};
use super::message::Message;
use super::predecessor::HandedOver;
use crate::config::ServeConfig;
use crate::serve::ServeError;
use crate::serve::listen::sockets::Sockets;

/// Time limit for messages that the predecessor sends or receives at once.
const TIME: Duration = Duration::from_secs(10);
/// Maximum length of the reason of a refusal, in characters.
const REASON: usize = 2000;

/// The connection to the predecessor.
pub(in crate::serve) struct Successor {
    channel: Channel,
}

impl Successor {
    /// Returns the connection to the predecessor; `None` if no predecessor started this process.
    ///
    /// # Errors
    /// The predecessor has ended.
    pub fn from_environment() -> Result<Option<Successor>, ServeError> {
        let predecessor = std::env::var(VARIABLE).ok().and_then(|pid| pid.parse::<i32>().ok());
        let stdin = std::io::stdin();
        // A process that has only inherited the variable, such as a shell, has a different standard input.
        let Some(predecessor) = predecessor.filter(|pid| peer_of(stdin.as_fd()) == Some(*pid)) else {
            return Ok(None);
        };
        // A predecessor kills its child if it gives the upgrade up. It could not kill a grandchild.
        if u32::try_from(predecessor) != Ok(std::os::unix::process::parent_id()) {
            let why = format!("process {predecessor} has ended, or this process is not its child");
            return Err(ServeError::Predecessor(why));
        }
        let input = stdin.as_fd().try_clone_to_owned()?;
        let nothing: OwnedFd = std::fs::File::open("/dev/null")?.into();
        // SAFETY: both descriptors are open; the call accesses no memory.
        if unsafe { libc::dup2(nothing.as_raw_fd(), libc::STDIN_FILENO) } < 0 {
            return Err(std::io::Error::last_os_error().into());
        }
        Ok(Some(Successor { channel: Channel::to_predecessor(UnixStream::from(input)) }))
    }

    /// Takes the listening sockets.
    ///
    /// # Errors
    /// The addresses differ from those in the configuration.
    pub fn adopt_sockets(&self, config: &ServeConfig) -> Result<Sockets, ServeError> {
        let Frame { message: Message::Start { listeners }, fds, .. } = self.receive(Some(TIME))? else {
            return Err(lost(&ChannelError::Invalid("it is out of order".into())));
        };
        Sockets::adopt(config, listeners, fds)
    }

    /// Reports that this process is prepared. A pool in Ceph is to be released to `heir`.
    pub fn ready(&self, heir: Option<&Heir>) -> Result<(), ServeError> {
        let release = env!("CARGO_PKG_VERSION").to_owned();
        let formats = (forebay_format::VERSION, forebay_format::VERSION);
        self.send(&Message::Ready { release, formats, heir: heir.map(Heir::text) })
    }

    /// Waits for the connections. When this returns, the predecessor has closed the pool.
    ///
    /// # Errors
    /// The predecessor gave the upgrade up, or ended.
    pub fn receive_state(&self) -> Result<HandedOver, ServeError> {
        let frame = self.receive(None)?;
        let Frame { message: Message::State { connections, units, has_cache }, bytes, mut fds } = frame
        else {
            return Err(lost(&ChannelError::Invalid("it is out of order".into())));
        };
        let invalid = || lost(&ChannelError::Invalid("its connections are incomplete".into()));
        let cache = if has_cache { fds.pop().map(CacheCopy::from) } else { None };
        if connections.len() != fds.len() {
            return Err(invalid());
        }
        let mut bytes = bytes.as_slice();
        let parked = connections.into_iter().zip(fds).map(|(c, fd)| c.into_parked(fd, &mut bytes));
        let connections = parked.collect::<Option<Vec<_>>>().ok_or_else(invalid)?;
        Ok(HandedOver { connections, units, cache })
    }

    /// Reports that this process is able to serve the connections, and waits until it may.
    ///
    /// # Errors
    /// The predecessor gave the upgrade up.
    pub fn opened(&self) -> Result<(), ServeError> {
        // A predecessor that has ended no longer uses the connections. A predecessor that abandons the
        // upgrade kills this process first.
        if self.send(&Message::Opened).is_err() {
            return Ok(());
        }
        match self.channel.receive(None) {
            Ok(Frame { message: Message::Go, .. }) | Err(ChannelError::Ended) => Ok(()),
            Ok(_) => Err(lost(&ChannelError::Invalid("it is out of order".into()))),
            Err(e) => Err(lost(&e)),
        }
    }

    /// Reports that this process serves clients.
    pub fn serving(&self, resumed: usize) {
        // A predecessor that has ended needs no report.
        let _ = self.send(&Message::Serving { resumed });
    }

    /// Reports why this process cannot take over.
    pub fn refuse(&self, error: &ServeError) {
        let reason = error.to_string().chars().take(REASON).collect();
        // The predecessor also recognises the end of this process.
        let _ = self.send(&Message::Refused { reason });
    }

    fn send(&self, message: &Message) -> Result<(), ServeError> {
        self.channel.send(message, &[], &[], TIME).map_err(|e| lost(&e))
    }

    fn receive(&self, time: Option<Duration>) -> Result<Frame, ServeError> {
        self.channel.receive(time).map_err(|e| lost(&e))
    }
}

fn lost(error: &ChannelError) -> ServeError {
    ServeError::Predecessor(error.to_string())
}
