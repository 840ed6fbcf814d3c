//! A session of an initiator: the commands in progress, and the socket below them.

use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Instant;

use super::command::{Command, SECTOR, Status};
use super::flight::{Done, Flight};
use super::login::{connect, isid, login};
use super::parser::Parser;
use super::{Address, IscsiError, STALL};
use crate::socket;

/// Room for the replies to commands that are executed one at a time.
const RECEIVE_BYTES: usize = 64 << 10;
/// More consecutive unit attentions than this count as a fault of the target.
const MAX_ATTENTIONS: usize = 32;

/// The result of a command.
#[derive(Debug)]
pub struct Answer {
    /// The status of the command.
    pub status: Status,
    /// The data that the target has sent.
    pub data: Vec<u8>,
}

/// A session with one logical unit.
pub struct InitiatorSession {
    stream: TcpStream,
    flight: Flight,
    parser: Parser,
    buffer: Vec<u8>,
}

impl InitiatorSession {
    /// Logs in as initiator number `n` and prepares the unit for `depth` concurrent commands.
    pub fn connect(address: &Address, n: u16, depth: u16) -> Result<InitiatorSession, IscsiError> {
        let mut stream = connect(&address.portal)?;
        let name = format!("iqn.2026-01.org.example:xray-{n}");
        let login = login(&mut stream, &name, &address.target, &isid(n))?;
        let flight = Flight::new(address.lun, login, depth.into());
        let mut session =
            InitiatorSession { stream, flight, parser: Parser::default(), buffer: vec![0; RECEIVE_BYTES] };
        session.must(&Command::test_unit_ready(), &[])?;
        Ok(session)
    }

    /// Size of the unit in bytes.
    pub fn capacity(&mut self) -> Result<u64, IscsiError> {
        let data = self.must(&Command::read_capacity(), &[])?;
        let (Some(last), Some(block)) = (data.first_chunk::<8>(), data.get(8..12)) else {
            return Err(IscsiError::Protocol("an invalid capacity"));
        };
        if block != (SECTOR as u32).to_be_bytes() {
            return Err(IscsiError::Protocol("a block length other than 512"));
        }
        Ok(u64::from_be_bytes(*last).saturating_add(1).saturating_mul(SECTOR))
    }

    /// Whether another command can be queued.
    pub fn has_room(&self) -> bool {
        self.flight.has_room()
    }

    /// Number of commands queued and not answered.
    pub fn under_way(&self) -> usize {
        self.flight.under_way()
    }

    /// Queues a command and returns its slot; there must be room. `fill` writes its outgoing data. With
    /// `keep`, [`InitiatorSession::data`] has the received data when the command has ended.
    pub fn queue(&mut self, command: &Command, keep: bool, fill: impl FnOnce(&mut [u8])) -> usize {
        self.flight.queue(command, keep, fill)
    }

    /// The next command that has ended.
    pub fn next_done(&mut self) -> Option<Done> {
        self.flight.next_done()
    }

    /// The data of the last command of a slot, if it was kept.
    pub fn data(&self, slot: usize) -> &[u8] {
        self.flight.kept(slot)
    }

    /// Sends queued PDUs until the socket would block. Returns whether PDUs remain unsent.
    pub fn send(&mut self) -> Result<bool, IscsiError> {
        let fd = self.stream.as_raw_fd();
        while self.flight.unsent() {
            if !self.flight.send(|parts| socket::send(fd, parts))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Receives and parses replies; with `wait`, waits for them. Returns whether any bytes arrived.
    pub fn receive(&mut self, buffer: &mut [u8], wait: bool) -> Result<bool, IscsiError> {
        match socket::receive(self.stream.as_raw_fd(), buffer, wait)? {
            Some(0) => Err(IscsiError::Closed(self.flight.under_way())),
            Some(n) => {
                self.flight.now = Instant::now();
                self.parser.feed(&buffer[..n], &mut self.flight)?;
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// Sends queued PDUs and waits for replies.
    fn exchange(&mut self) -> Result<(), IscsiError> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let blocked = self.send()?;
        let fd = self.stream.as_raw_fd();
        let ready = !blocked || socket::wait(&mut [socket::poll(fd, true)], STALL)?;
        // While PDUs remain unsent, the socket may be ready only for sending.
        let done = ready && (self.receive(&mut buffer, !blocked)? || blocked);
        self.buffer = buffer;
        if done { Ok(()) } else { Err(IscsiError::Stalled) }
    }

    /// Executes one command while no other is in progress, and repeats it after a unit attention.
    pub fn execute(&mut self, command: &Command, data: &[u8]) -> Result<Answer, IscsiError> {
        for _ in 0..MAX_ATTENTIONS {
            if !self.flight.has_room() {
                return Err(IscsiError::Protocol("a closed command window without commands in progress"));
            }
            self.flight.queue(command, true, |room| room.copy_from_slice(data));
            let done = loop {
                match self.flight.next_done() {
                    Some(done) => break done,
                    None => self.exchange()?,
                }
            };
            if !done.status.is_attention() {
                let data = self.flight.kept(done.slot)[..done.got as usize].to_vec();
                return Ok(Answer { status: done.status, data });
            }
        }
        Err(IscsiError::Protocol("endless unit attentions"))
    }

    /// Executes one command that must succeed.
    pub fn must(&mut self, command: &Command, data: &[u8]) -> Result<Vec<u8>, IscsiError> {
        let answer = self.execute(command, data)?;
        match answer.status {
            Status::Good => Ok(answer.data),
            status => Err(IscsiError::Failed { what: command.name, status }),
        }
    }

    /// Sends a logout, unless the connection accepts nothing now.
    pub fn log_out(&mut self) -> Result<(), IscsiError> {
        self.flight.queue_logout();
        self.send().map(drop)
    }

    /// Logs out, and waits for the target's answer; no command may be in progress.
    pub fn leave(mut self) -> Result<(), IscsiError> {
        self.log_out()?;
        while !self.flight.left {
            self.exchange()?;
        }
        Ok(())
    }
}

impl AsRawFd for InitiatorSession {
    fn as_raw_fd(&self) -> RawFd {
        self.stream.as_raw_fd()
    }
}
