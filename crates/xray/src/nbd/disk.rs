//! An export that is written one request at a time: for preparing benchmarks, not for measuring.

use std::io::{Read, Write};
use std::time::Duration;

use super::{Command, Connection, NbdError, Target, connect, request};

/// A server that does not answer for this long counts as stalled.
const STALL: Duration = Duration::from_secs(60);
const SIMPLE_MAGIC: u32 = 0x6744_6698;
const COOKIE: u64 = 0x666f_7265_6261_7921;

/// A disk for preparations; see the module documentation.
pub struct Disk(Connection);

impl Disk {
    /// Connects to an export.
    pub fn open(target: &Target, export: &str) -> Result<Disk, NbdError> {
        // Only reads have structured replies, and this client does not read.
        connect(target, export, false, STALL).map(Disk)
    }

    /// Writes to the export.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), NbdError> {
        self.call(Command::Write, offset, data.len() as u32, data)
    }

    /// Discards a range of the export.
    pub fn trim(&mut self, offset: u64, len: u32) -> Result<(), NbdError> {
        self.call(Command::Trim, offset, len, &[])
    }

    /// Makes all writes durable.
    pub fn flush(&mut self) -> Result<(), NbdError> {
        self.call(Command::Flush, 0, 0, &[])
    }

    fn call(&mut self, command: Command, offset: u64, len: u32, data: &[u8]) -> Result<(), NbdError> {
        self.0.write_all(&request(command, 0, COOKIE, offset, len))?;
        self.0.write_all(data)?;
        let mut reply = [0; 16];
        self.0.read_exact(&mut reply)?;
        let field = |at: usize| u32::from_be_bytes([reply[at], reply[at + 1], reply[at + 2], reply[at + 3]]);
        if field(0) != SIMPLE_MAGIC || reply[8..] != COOKIE.to_be_bytes() {
            return Err(NbdError::Protocol("a reply to a different request"));
        }
        match field(4) {
            0 => Ok(()),
            code => Err(NbdError::Failed(code)),
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // The server does not answer a disconnect, and may have closed the connection already.
        let _ = self.0.write_all(&request(Command::Disconnect, 0, 0, 0, 0));
    }
}
