//! Many requests in progress on one connection: the [`Flight`] of requests, and the socket below it.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use super::flight::{Done, Flight};
use super::{Command, Connection, Export, FUA, NbdError, Parser, request};
use crate::socket;

/// A connection with up to a fixed number of requests in progress.
pub struct Pipeline {
    connection: Connection,
    flight: Flight,
    parser: Parser,
}

impl Pipeline {
    /// Room for `depth` reads and writes, and one flush.
    pub fn new(connection: Connection, depth: usize) -> Pipeline {
        Pipeline { connection, flight: Flight::new(depth), parser: Parser::default() }
    }

    /// The same, with writes that are durable when they are answered (FUA).
    pub fn with_durable_writes(mut self) -> Pipeline {
        self.flight.write_flags = FUA;
        self
    }

    /// The export.
    pub fn export(&self) -> &Export {
        &self.connection.export
    }

    /// Whether another read or write can be queued.
    pub fn has_room(&self) -> bool {
        self.flight.has_room()
    }

    /// Number of requests queued and not answered.
    pub fn under_way(&self) -> usize {
        self.flight.under_way()
    }

    /// Queues a read and returns its slot; there must be room. With `keep`, its data is available in
    /// [`Pipeline::data`].
    pub fn queue_read(&mut self, offset: u64, len: u32, keep: bool, due: Instant) -> usize {
        self.flight.queue_read(offset, len, keep, due)
    }

    /// Queues a write of the data that `fill` writes into its argument, and returns its slot; there must be
    /// room.
    pub fn queue_write(
        &mut self,
        offset: u64,
        len: u32,
        due: Instant,
        fill: impl FnOnce(&mut [u8]),
    ) -> usize {
        self.flight.queue_write(offset, len, due, fill)
    }

    /// Queues a flush unless one is in progress. Returns whether it was queued.
    pub fn queue_flush(&mut self, due: Instant) -> bool {
        self.flight.queue_flush(due)
    }

    /// The next request that has been answered. Its slot may be used again by the next request that is
    /// queued.
    pub fn next_done(&mut self) -> Option<Done> {
        self.flight.next_done()
    }

    /// The data of the last request of a slot: of a write, or of a read that kept it.
    pub fn data(&self, slot: usize) -> &[u8] {
        self.flight.data(slot)
    }

    /// Sends queued requests until the socket would block. Returns whether requests remain unsent.
    pub fn send(&mut self) -> io::Result<bool> {
        let fd = self.as_raw_fd();
        while self.flight.unsent() {
            if !self.flight.send(|parts| socket::send(fd, parts))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Receives and parses replies; with `wait`, waits for them. Returns whether any bytes arrived.
    pub fn receive(&mut self, buffer: &mut [u8], wait: bool) -> Result<bool, NbdError> {
        match socket::receive(self.as_raw_fd(), buffer, wait)? {
            Some(0) => Err(NbdError::Closed(self.flight.under_way())),
            Some(n) => {
                self.flight.now = Instant::now();
                self.parser.feed(&buffer[..n], &mut self.flight)?;
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// Sends queued requests, then waits for replies and parses them: at most until `until`, or else for
    /// `stall`, after which the server counts as stalled.
    pub fn turn(
        &mut self,
        buffer: &mut [u8],
        until: Option<Instant>,
        stall: Duration,
    ) -> Result<(), NbdError> {
        let blocked = self.send()?;
        // If only a reply can allow progress, one system call is enough: it waits and receives.
        let only_replies = !blocked && until.is_none();
        let ready = only_replies || {
            let left = until.map_or(stall, |until| until.saturating_duration_since(Instant::now()));
            socket::wait(&mut [socket::poll(self.as_raw_fd(), blocked)], left)?
        };
        let received = ready && self.receive(buffer, only_replies)?;
        // The socket may be ready only for sending, or `until` may have passed.
        if received || until.is_some() || ready && blocked {
            return Ok(());
        }
        Err(NbdError::Stalled(stall.as_secs()))
    }
}

impl AsRawFd for Pipeline {
    fn as_raw_fd(&self) -> RawFd {
        self.connection.as_raw_fd()
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        // The server does not answer a disconnect, and may have closed the connection already.
        let disconnect = request(Command::Disconnect, 0, 0, 0, 0);
        let _ = socket::send(self.as_raw_fd(), &[IoSlice::new(&disconnect)]);
    }
}
