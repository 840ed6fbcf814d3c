//! Frames on the socket pair between predecessor and successor.
//!
//! | bytes | |
//! |---|---|
//! | 8 | magic |
//! | 4 | version of the frames and messages: 1 |
//! | 4 | number of descriptors |
//! | 4 | length of the message in bytes |
//! | 8 | length of the attached bytes |
//!
//! Integers are big-endian. The message follows, then the attached bytes, then the descriptors: each byte
//! that follows carries up to [`FDS_AT_ONCE`] of them as ancillary data. A peer of another version is refused
//! before anything else of its frame is interpreted.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::message::Message;

const MAGIC: [u8; 8] = *b"FBHANDOV";
const VERSION: u32 = 1;
const HEADER: usize = 28;
/// Limits of a frame, against a peer that is not Forebay.
#[derive(Debug, Clone, Copy)]
struct Limits {
    message: usize,
    bytes: u64,
    fds: usize,
}

const OF_PREDECESSOR: Limits = Limits { message: 256 << 20, bytes: 8 << 30, fds: 1 << 20 };
/// Limits of what a successor sends: it only sends reports.
const OF_SUCCESSOR: Limits = Limits { message: 64 << 10, bytes: 0, fds: 0 };
/// Maximum number of descriptors in one call; the kernel allows 253 (unix(7), SCM_MAX_FD).
const FDS_AT_ONCE: usize = 128;
/// Memory that is reserved for attached bytes before they arrive.
const RESERVED: usize = 1 << 20;

/// Why an exchange failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChannelError {
    #[error("it did not answer within {0:?}")]
    TimedOut(Duration),
    #[error("it ended")]
    Ended,
    #[error("it is not a Forebay server that can take over")]
    Foreign,
    #[error("it uses version {0} of the hand-over protocol, this server uses version {VERSION}")]
    Version(u32),
    #[error("its message is invalid: {0}")]
    Invalid(String),
    #[error("cannot exchange messages with it: {0}")]
    Io(io::Error),
}

/// A frame that was received from the other process.
pub(super) struct Frame {
    pub message: Message,
    pub bytes: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

/// One end of the socket pair. Its methods block.
pub(super) struct Channel {
    stream: UnixStream,
    /// Limits of the frames that are received.
    limits: Limits,
}

impl Channel {
    /// Makes the end of the channel that the predecessor uses.
    pub fn to_successor(stream: UnixStream) -> Channel {
        Channel { stream, limits: OF_SUCCESSOR }
    }

    /// Makes the end of the channel that the successor uses.
    pub fn to_predecessor(stream: UnixStream) -> Channel {
        Channel { stream, limits: OF_PREDECESSOR }
    }

    /// Sends a message. Fails if the peer does not receive it within `time`.
    pub fn send(
        &self,
        message: &Message,
        bytes: &[u8],
        fds: &[BorrowedFd<'_>],
        time: Duration,
    ) -> Result<(), ChannelError> {
        let text = serde_json::to_vec(message).map_err(|e| ChannelError::Invalid(e.to_string()))?;
        let mut frame = Vec::with_capacity(HEADER + text.len());
        frame.extend_from_slice(&MAGIC);
        frame.extend_from_slice(&VERSION.to_be_bytes());
        frame.extend_from_slice(&(fds.len() as u32).to_be_bytes());
        frame.extend_from_slice(&(text.len() as u32).to_be_bytes());
        frame.extend_from_slice(&(bytes.len() as u64).to_be_bytes());
        frame.extend_from_slice(&text);
        let done = || {
            self.stream.set_write_timeout(Some(time))?;
            let mut stream = &self.stream;
            stream.write_all(&frame)?;
            stream.write_all(bytes)?;
            fds.chunks(FDS_AT_ONCE).try_for_each(|fds| send_fds(&self.stream, fds))
        };
        done().map_err(|e: io::Error| failed(e, time))
    }

    /// Receives a message within `time`; without limit if that is `None`.
    pub fn receive(&self, time: Option<Duration>) -> Result<Frame, ChannelError> {
        let limit = time.map(|time| (Instant::now() + time, time));
        let mut header = [0; HEADER];
        self.fill(&mut header[..12], limit)?;
        if header[..8] != MAGIC {
            return Err(ChannelError::Foreign);
        }
        let field =
            |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        if field(8) != VERSION {
            return Err(ChannelError::Version(field(8)));
        }
        let mut rest = [0; HEADER - 12];
        self.fill(&mut rest, limit)?;
        let field = |at: usize| u32::from_be_bytes([rest[at], rest[at + 1], rest[at + 2], rest[at + 3]]);
        let (fds, text) = (field(0) as usize, field(4) as usize);
        let bytes = u64::from(field(8)) << 32 | u64::from(field(12));
        if fds > self.limits.fds || text > self.limits.message || bytes > self.limits.bytes {
            return Err(ChannelError::Invalid("it is too long".into()));
        }
        let text = self.read(text, limit)?;
        let bytes = self.read(bytes as usize, limit)?;
        let message = serde_json::from_slice(&text).map_err(|e| ChannelError::Invalid(e.to_string()))?;
        let mut received = Vec::new();
        while received.len() < fds {
            let wanted = FDS_AT_ONCE.min(fds - received.len());
            self.set_timeout(limit)?;
            let some =
                receive_fds(&self.stream).map_err(|e| failed(e, limit.map_or(Duration::ZERO, |l| l.1)))?;
            if some.len() != wanted {
                return Err(ChannelError::Invalid("descriptors are missing".into()));
            }
            received.extend(some);
        }
        Ok(Frame { message, bytes, fds: received })
    }

    /// Reads `len` bytes, and reserves memory only as they arrive.
    fn read(&self, len: usize, limit: Option<(Instant, Duration)>) -> Result<Vec<u8>, ChannelError> {
        let mut bytes = Vec::new();
        while bytes.len() < len {
            let at = bytes.len();
            bytes.resize(len.min(at + RESERVED.max(at)), 0);
            self.fill(&mut bytes[at..], limit)?;
        }
        Ok(bytes)
    }

    fn fill(&self, mut buffer: &mut [u8], limit: Option<(Instant, Duration)>) -> Result<(), ChannelError> {
        while !buffer.is_empty() {
            self.set_timeout(limit)?;
            match (&self.stream).read(buffer) {
                Ok(0) => return Err(ChannelError::Ended),
                Ok(n) => buffer = &mut buffer[n..],
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(failed(e, limit.map_or(Duration::ZERO, |limit| limit.1))),
            }
        }
        Ok(())
    }

    fn set_timeout(&self, limit: Option<(Instant, Duration)>) -> Result<(), ChannelError> {
        let left = match limit {
            None => None,
            Some((deadline, time)) => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(ChannelError::TimedOut(time));
                }
                Some(left)
            }
        };
        self.stream.set_read_timeout(left).map_err(ChannelError::Io)
    }
}

fn failed(e: io::Error, time: Duration) -> ChannelError {
    match e.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ChannelError::TimedOut(time),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof => {
            ChannelError::Ended
        }
        _ => ChannelError::Io(e),
    }
}

/// Room for the ancillary data of one call, aligned as `cmsghdr` requires.
#[repr(C, align(8))]
struct Ancillary([u8; 24 + 4 * FDS_AT_ONCE]);

/// Sends one byte with descriptors.
fn send_fds(stream: &UnixStream, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut byte = [0_u8];
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut ancillary = Ancillary([0; 24 + 4 * FDS_AT_ONCE]);
    let bytes = size_of_val(fds) as libc::c_uint;
    assert!(fds.len() <= FDS_AT_ONCE);
    // SAFETY: all fields of `msghdr` are integers and pointers, for which zero is valid.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = ancillary.0.as_mut_ptr().cast();
    // SAFETY: CMSG_SPACE and CMSG_LEN only compute. The buffer has room for FDS_AT_ONCE descriptors (asserted
    // above), so CMSG_FIRSTHDR returns a pointer into it, after which there is room for all of `fds`.
    // BorrowedFd has the layout of a descriptor number.
    unsafe {
        header.msg_controllen = libc::CMSG_SPACE(bytes) as _;
        let first = libc::CMSG_FIRSTHDR(&raw const header);
        (*first).cmsg_level = libc::SOL_SOCKET;
        (*first).cmsg_type = libc::SCM_RIGHTS;
        (*first).cmsg_len = libc::CMSG_LEN(bytes) as _;
        std::ptr::copy_nonoverlapping(fds.as_ptr().cast::<u8>(), libc::CMSG_DATA(first), bytes as usize);
    }
    loop {
        // SAFETY: the header and all that it points to are valid during the call.
        let sent = unsafe { libc::sendmsg(stream.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL) };
        if sent >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Receives one byte with descriptors.
fn receive_fds(stream: &UnixStream) -> io::Result<Vec<OwnedFd>> {
    let mut byte = [0_u8];
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut ancillary = Ancillary([0; 24 + 4 * FDS_AT_ONCE]);
    // SAFETY: as above.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = ancillary.0.as_mut_ptr().cast();
    header.msg_controllen = ancillary.0.len() as _;
    loop {
        // SAFETY: the header and all that it points to are valid for the call to write.
        let n = unsafe { libc::recvmsg(stream.as_raw_fd(), &raw mut header, libc::MSG_CMSG_CLOEXEC) };
        match n {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            1.. => break,
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    let mut fds = Vec::new();
    // SAFETY: the kernel has written `msg_controllen` bytes of well-formed headers; each SCM_RIGHTS header is
    // followed by descriptors that are open and have no other owner.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(&raw const header);
        while !at.is_null() {
            if ((*at).cmsg_level, (*at).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let bytes = (*at).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                for n in 0..bytes / size_of::<libc::c_int>() {
                    let fd = libc::CMSG_DATA(at).cast::<libc::c_int>().add(n).read_unaligned();
                    fds.push(OwnedFd::from_raw_fd(fd));
                }
            }
            at = libc::CMSG_NXTHDR(&raw const header, at);
        }
    }
    Ok(fds)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    const TIME: Duration = Duration::from_secs(10);

    fn pair() -> (Channel, UnixStream) {
        let (a, b) = UnixStream::pair().unwrap();
        (Channel::to_successor(a), b)
    }

    #[test]
    fn messages_arrive_with_their_bytes_and_descriptors() {
        let (a, b) = pair();
        let b = Channel::to_predecessor(b);
        let file = tempfile::tempfile().unwrap();
        let (bytes, fds) = (vec![7; 3 << 20], vec![file.as_fd(); 300]);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                a.send(&Message::Refused { reason: "x".into() }, &bytes, &fds, TIME).unwrap();
                a.send(&Message::Go, &[], &[], TIME).unwrap();
            });
            let frame = b.receive(Some(TIME)).unwrap();
            assert!(matches!(frame.message, Message::Refused { reason } if reason == "x"));
            assert_eq!((frame.bytes.len(), frame.fds.len()), (3 << 20, 300));
            let sent = identity(&file);
            assert!(frame.fds.into_iter().all(|fd| identity(&fd.into()) == sent));
            assert!(matches!(b.receive(Some(TIME)).unwrap().message, Message::Go));
        });
        drop(a);
        assert!(matches!(b.receive(Some(TIME)), Err(ChannelError::Ended)));
    }

    fn identity(file: &std::fs::File) -> (u64, u64) {
        use std::os::unix::fs::MetadataExt;
        let meta = file.metadata().unwrap();
        (meta.dev(), meta.ino())
    }

    #[test]
    fn a_peer_that_is_foreign_newer_or_silent_is_refused() {
        let (channel, mut peer) = pair();
        peer.write_all(b"forebay is ready").unwrap();
        assert!(matches!(channel.receive(Some(TIME)), Err(ChannelError::Foreign)));
        let (channel, mut peer) = pair();
        peer.write_all(&[&MAGIC[..], &9_u32.to_be_bytes()].concat()).unwrap();
        assert!(matches!(channel.receive(Some(TIME)), Err(ChannelError::Version(9))));
        let (channel, mut peer) = pair();
        let lengths = [&0_u32.to_be_bytes()[..], &u32::MAX.to_be_bytes(), &0_u64.to_be_bytes()].concat();
        peer.write_all(&[&MAGIC[..], &VERSION.to_be_bytes(), &lengths].concat()).unwrap();
        assert!(matches!(channel.receive(Some(TIME)), Err(ChannelError::Invalid(_))));
        let (channel, mut peer) = pair();
        let lengths = [&0_u32.to_be_bytes()[..], &2_u32.to_be_bytes(), &1_u64.to_be_bytes()].concat();
        peer.write_all(&[&MAGIC[..], &VERSION.to_be_bytes(), &lengths, b"{}x"].concat()).unwrap();
        let refused = channel.receive(Some(TIME));
        assert!(matches!(refused, Err(ChannelError::Invalid(_))), "a successor sends no attached bytes");
        let (channel, _peer) = pair();
        let short = Duration::from_millis(20);
        assert!(matches!(channel.receive(Some(short)), Err(ChannelError::TimedOut(_))));
    }
}
