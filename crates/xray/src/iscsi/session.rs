//! One session: a flight of commands, and the socket under it.

use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Instant;

use super::command::{Command, SECTOR, Status};
use super::flight::{Done, Flight};
use super::login::{connect, isid, login};
use super::parser::Parser;
use super::{Address, IscsiError, STALL};
use crate::load::socket;

/// Enough for all replies of a deep queue of small reads, and for some large ones.
const RECEIVE_BYTES: usize = 1 << 20;
/// So many unit attentions one after the other are taken for a fault of the target.
const MAX_ATTENTIONS: usize = 32;

/// What a command ended with.
#[derive(Debug)]
pub struct Answer {
    /// How.
    pub status: Status,
    /// What came.
    pub data: Vec<u8>,
}

/// A session with one logical unit.
pub struct Session {
    stream: TcpStream,
    flight: Flight,
    parser: Parser,
    buffer: Vec<u8>,
}

impl Session {
    /// Logs in as initiator number `n` and makes the unit ready for `depth` commands at once.
    pub fn connect(address: &Address, n: u16, depth: u16) -> Result<Session, IscsiError> {
        let mut stream = connect(&address.portal)?;
        let name = format!("iqn.2026-01.org.example:xray-{n}");
        let login = login(&mut stream, &name, &address.target, &isid(n))?;
        let flight = Flight::new(address.lun, login, depth.into());
        let mut session =
            Session { stream, flight, parser: Parser::default(), buffer: vec![0; RECEIVE_BYTES] };
        session.must(&Command::test_unit_ready(), &[])?;
        Ok(session)
    }

    /// Bytes of the unit.
    pub fn capacity(&mut self) -> Result<u64, IscsiError> {
        let data = self.must(&Command::read_capacity(), &[])?;
        let (Some(last), Some(block)) = (data.first_chunk::<8>(), data.get(8..12)) else {
            return Err(IscsiError::Protocol("a capacity that is none"));
        };
        if block != (SECTOR as u32).to_be_bytes() {
            return Err(IscsiError::Protocol("blocks of another length than 512"));
        }
        Ok(u64::from_be_bytes(*last).saturating_add(1).saturating_mul(SECTOR))
    }

    /// Whether another command may be queued.
    pub fn has_room(&self) -> bool {
        self.flight.has_room()
    }

    /// Commands queued and not answered.
    pub fn under_way(&self) -> usize {
        self.flight.under_way()
    }

    /// Queues a command, of which `fill` gives the data; what comes is dropped. There must be room. The slot that it
    /// is in.
    pub fn queue(&mut self, command: &Command, fill: impl FnOnce(&mut [u8])) -> usize {
        self.flight.queue(command, false, fill)
    }

    /// A command that has ended.
    pub fn next_done(&mut self) -> Option<Done> {
        self.flight.next_done()
    }

    /// Sends what is due and takes what has come, and waits for that: at most until `until`.
    pub fn turn(&mut self, until: Option<Instant>) -> Result<(), IscsiError> {
        let fd = self.stream.as_raw_fd();
        let mut blocked = false;
        while self.flight.unsent() && !blocked {
            blocked = !self.flight.send(|parts| socket::send(fd, parts))?;
        }
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        // Where only replies can bring it on, one call is enough: it waits and receives.
        let alone = !blocked && left.is_none();
        if !alone && !socket::wait(fd, blocked, left.unwrap_or(STALL))? {
            return if left.is_some() { Ok(()) } else { Err(IscsiError::Stalled) };
        }
        match socket::receive(fd, &mut self.buffer, alone)? {
            Some(0) => Err(IscsiError::Closed(self.flight.under_way())),
            Some(n) => {
                self.flight.now = Instant::now();
                self.parser.feed(&self.buffer[..n], &mut self.flight)
            }
            None if alone => Err(IscsiError::Stalled),
            None => Ok(()),
        }
    }

    /// Does one command, with nothing else under way. It is sent again after a unit attention.
    pub fn execute(&mut self, command: &Command, data: &[u8]) -> Result<Answer, IscsiError> {
        for _ in 0..MAX_ATTENTIONS {
            if !self.flight.has_room() {
                return Err(IscsiError::Protocol("it takes no command, though it has none"));
            }
            self.flight.queue(command, true, |room| room.copy_from_slice(data));
            let done = loop {
                match self.flight.next_done() {
                    Some(done) => break done,
                    None => self.turn(None)?,
                }
            };
            if !done.status.is_attention() {
                let data = self.flight.kept(done.slot)[..done.got as usize].to_vec();
                return Ok(Answer { status: done.status, data });
            }
        }
        Err(IscsiError::Protocol("unit attentions without end"))
    }

    /// Does one command that has to succeed.
    pub fn must(&mut self, command: &Command, data: &[u8]) -> Result<Vec<u8>, IscsiError> {
        let answer = self.execute(command, data)?;
        match answer.status {
            Status::Good => Ok(answer.data),
            status => Err(IscsiError::Failed { what: command.name, status }),
        }
    }

    /// Logs out, with nothing under way.
    pub fn leave(mut self) -> Result<(), IscsiError> {
        self.flight.queue_logout();
        while !self.flight.left {
            self.turn(None)?;
        }
        Ok(())
    }
}
