//! An export with many requests in progress: the [`Flight`] of requests, and the socket below it.

use std::io::IoSlice;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Instant;

use super::flight::Flight;
use super::{Command, Connection, FUA, NbdError, Parser, Target, connect, request};
use crate::device::{Device, DeviceError, Done, Needs};
use crate::socket;

/// A connection with up to a fixed number of requests in progress.
pub struct Pipeline {
    connection: Connection,
    flight: Flight,
    parser: Parser,
}

impl Pipeline {
    /// Connects, with room for as many reads and writes as needed, and one flush.
    pub fn open(target: &Target, export: &str, needs: Needs) -> Result<Pipeline, DeviceError> {
        let connection = connect(target, export, !needs.simple_replies, needs.patience)?;
        let found = connection.export;
        if needs.writes && found.read_only() {
            return Err(DeviceError::Lacks("is read-only"));
        }
        if needs.flushes && !found.flushes() {
            return Err(DeviceError::Lacks("cannot flush"));
        }
        if needs.durable && !found.durable_writes() {
            return Err(DeviceError::Lacks("has no durable writes (FUA)"));
        }
        let mut flight = Flight::new(needs.depth);
        flight.write_flags = if needs.durable { FUA } else { 0 };
        Ok(Pipeline { connection, flight, parser: Parser::default() })
    }
}

impl Device for Pipeline {
    fn size(&self) -> u64 {
        self.connection.export.size
    }

    fn has_room(&self) -> bool {
        self.flight.has_room()
    }

    fn under_way(&self) -> usize {
        self.flight.under_way()
    }

    fn queue_read(&mut self, offset: u64, len: u32, keep: bool, due: Instant) -> usize {
        self.flight.queue_read(offset, len, keep, due)
    }

    fn queue_write(&mut self, offset: u64, len: u32, due: Instant, fill: &mut dyn FnMut(&mut [u8])) -> usize {
        self.flight.queue_write(offset, len, due, fill)
    }

    fn queue_flush(&mut self, due: Instant) -> bool {
        self.flight.queue_flush(due)
    }

    fn send(&mut self) -> Result<bool, DeviceError> {
        let fd = self.as_raw_fd();
        while self.flight.unsent() {
            if !self.flight.send(|parts| socket::send(fd, parts)).map_err(NbdError::from)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn receive(&mut self, buffer: &mut [u8], wait: bool) -> Result<bool, DeviceError> {
        match socket::receive(self.as_raw_fd(), buffer, wait).map_err(NbdError::from)? {
            Some(0) => Err(NbdError::Closed(self.flight.under_way()).into()),
            Some(n) => {
                self.flight.now = Instant::now();
                self.parser.feed(&buffer[..n], &mut self.flight)?;
                Ok(true)
            }
            None => Ok(false),
        }
    }

    fn next_done(&mut self) -> Option<Done> {
        self.flight.next_done()
    }

    fn data(&self, slot: usize) -> &[u8] {
        self.flight.data(slot)
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
