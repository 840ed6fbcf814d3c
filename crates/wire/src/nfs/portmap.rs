//! The port mapper, version 2 (RFC 1833, section 3): clients ask for the port of a program.

use crate::rpc::{Decoder, Garbage};

/// The program number of the port mapper.
pub const PROGRAM: u32 = 100_000;
/// The version of the port mapper.
pub const VERSION: u32 = 2;
/// The protocol number of TCP, in [`Request::GetPort`].
pub const TCP: u32 = 6;

/// A decoded call of the port mapper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// `PMAPPROC_NULL`.
    Null,
    /// `PMAPPROC_GETPORT`: the port of a version of a program.
    GetPort {
        /// Program number.
        program: u32,
        /// Version of the program.
        version: u32,
        /// Number of the transport protocol.
        protocol: u32,
    },
    /// `PMAPPROC_DUMP`: all ports.
    Dump,
}

impl Request {
    /// Decodes the arguments of a procedure; `None` if the procedure is not supported.
    ///
    /// # Errors
    /// The arguments are not valid.
    pub fn decode(procedure: u32, args: &[u8]) -> Result<Option<Request>, Garbage> {
        let mut xdr = Decoder::new(args);
        Ok(match procedure {
            0 => Some(Request::Null),
            3 => Some(Request::GetPort { program: xdr.u32()?, version: xdr.u32()?, protocol: xdr.u32()? }),
            4 => Some(Request::Dump),
            _ => None,
        })
    }
}
