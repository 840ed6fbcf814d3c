//! Requests ("Request message"): 28 bytes (magic, flags, type, cookie, offset, length) and, for a write,
//! data.
//!
//! A decoded [`Request`] is within the disk, permitted on it, and has only flags that are valid for its
//! command; callers need not check again. An invalid request becomes a [`Refusal`], which is answered; if it
//! was a write its data is skipped first, without buffering, so that the next request is found.

use super::consts::*;
use super::{ErrorCode, ProtocolError, take};

/// The rules for requests: the negotiated features, and the present state of the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Size of the disk in bytes.
    pub size: u64,
    /// Writes to the disk are refused.
    pub read_only: bool,
    /// Structured replies were negotiated.
    pub structured: bool,
    /// The context `base:allocation` was negotiated.
    pub block_status: bool,
}

/// The command of a request. Ranges are within the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Read `len` bytes, at most [`MAX_PAYLOAD`].
    Read {
        /// Offset of the range in bytes.
        offset: u64,
        /// Length of the range in bytes.
        len: u32,
        /// The reply must be a single chunk.
        dont_fragment: bool,
    },
    /// Write the payload.
    Write {
        /// Offset of the range in bytes.
        offset: u64,
        /// The change has to be durable when it is answered.
        fua: bool,
    },
    /// Finish the requests received before, and close.
    Disconnect,
    /// Make all answered writes durable.
    Flush,
    /// Discard a range.
    Trim {
        /// Offset of the range in bytes.
        offset: u64,
        /// Length of the range in bytes.
        len: u32,
        /// The change has to be durable when it is answered.
        fua: bool,
    },
    /// Load a range into the cache.
    Cache {
        /// Offset of the range in bytes.
        offset: u64,
        /// Length of the range in bytes.
        len: u32,
    },
    /// Zero a range.
    WriteZeroes {
        /// Offset of the range in bytes.
        offset: u64,
        /// Length of the range in bytes.
        len: u32,
        /// The change has to be durable when it is answered.
        fua: bool,
        /// The range stays allocated.
        no_hole: bool,
    },
    /// Describe the allocation of a range, which is not empty.
    BlockStatus {
        /// Offset of the range in bytes.
        offset: u64,
        /// Length of the range in bytes.
        len: u32,
        /// The reply must have only one descriptor.
        one: bool,
    },
}

/// A valid request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request<'a> {
    /// The client's identifier of the request, repeated in each reply.
    pub cookie: u64,
    /// What the client requests.
    pub command: Command,
    /// The data of a write; otherwise empty.
    pub payload: &'a [u8],
}

/// A request that is answered with an error; the connection continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The type of the request is unknown.
    #[error("unknown command {0}")]
    UnknownCommand(u16),
    /// A flag that is unknown, or not valid for the command.
    #[error("flags {0:#x} are not allowed with this command")]
    BadFlags(u16),
    /// The range ends beyond the end of the disk.
    #[error("the request goes beyond the end of the disk")]
    BeyondEnd,
    /// A write (or zeroing) that ends beyond the disk.
    #[error("the write goes beyond the end of the disk")]
    WriteBeyondEnd,
    /// The request writes to a read-only disk.
    #[error("the export is read-only")]
    ReadOnly,
    /// A read or write is longer than [`MAX_PAYLOAD`].
    #[error("reads and writes are limited to 32 MiB")]
    TooLong,
    /// An unfragmented read is longer than [`MAX_PAYLOAD`].
    #[error("a read with the DF flag is limited to 32 MiB")]
    TooLongForOne,
    /// Block status was requested without a negotiated context.
    #[error("no metadata context was negotiated")]
    NoContext,
    /// Block status was requested for an empty range.
    #[error("block status needs a length")]
    EmptyRange,
}

impl Refusal {
    /// The error value of the reply.
    pub fn code(self) -> ErrorCode {
        match self {
            Refusal::ReadOnly => ErrorCode::Perm,
            Refusal::WriteBeyondEnd => ErrorCode::NoSpc,
            Refusal::TooLongForOne => ErrorCode::Overflow,
            _ => ErrorCode::Inval,
        }
    }
}

/// The result of decoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step<'a> {
    /// No complete message. The used bytes are consumed; the next message needs at least `want` bytes
    /// (counted from the first unused one).
    NeedMore {
        /// Minimum length of the message in bytes, as far as it is known.
        want: usize,
    },
    /// The client sent a valid request.
    Request(Request<'a>),
    /// A request to be answered with an error.
    Refused {
        /// The client's identifier of the request.
        cookie: u64,
        /// Why the request is refused.
        refusal: Refusal,
    },
}

/// Decodes the client's side of a transmission.
#[derive(Debug, Default)]
pub struct RequestDecoder {
    /// A refused write: its cookie, the refusal, and the number of bytes that are still to be skipped.
    skipping: Option<(u64, Refusal, usize)>,
}

/// The fields of a request before its payload, which are not checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHeader {
    /// Command flags, `CMD_FLAG_…`.
    pub flags: u16,
    /// The command, `CMD_…`.
    pub kind: u16,
    /// The client's identifier of the request.
    pub cookie: u64,
    /// Offset of the range in bytes.
    pub offset: u64,
    /// Length of the range in bytes.
    pub len: u32,
}

impl RequestDecoder {
    /// A decoder for a client that has just left negotiation.
    pub fn new() -> RequestDecoder {
        RequestDecoder::default()
    }

    /// Whether the rest of a refused write is still to be skipped, which `next` remembers.
    pub fn is_skipping(&self) -> bool {
        self.skipping.is_some()
    }

    /// Decodes the front of `bytes`, which start where the last call stopped. Returns the number of used
    /// bytes, and the result.
    pub fn next<'a>(&mut self, rules: &Rules, bytes: &'a [u8]) -> Result<(usize, Step<'a>), ProtocolError> {
        if let Some((cookie, refusal, left)) = self.skipping {
            return Ok(self.skip(cookie, refusal, left, bytes));
        }
        let Some(header) = RequestHeader::parse(bytes)? else {
            return Ok((0, Step::NeedMore { want: REQUEST_HEADER }));
        };
        let cookie = header.cookie;
        // Only writes have data, also those that are refused.
        let data_len = if header.kind == CMD_WRITE { header.len as usize } else { 0 };
        let command = match header.check(rules) {
            Ok(command) => command,
            Err(refusal) => {
                let (used, step) = self.skip(cookie, refusal, data_len, &bytes[REQUEST_HEADER..]);
                return Ok((REQUEST_HEADER + used, step));
            }
        };
        let end = REQUEST_HEADER + data_len;
        Ok(match bytes.get(REQUEST_HEADER..end) {
            Some(payload) => (end, Step::Request(Request { cookie, command, payload })),
            None => (0, Step::NeedMore { want: end }),
        })
    }

    fn skip<'a>(&mut self, cookie: u64, refusal: Refusal, left: usize, bytes: &[u8]) -> (usize, Step<'a>) {
        let used = left.min(bytes.len());
        if used < left {
            self.skipping = Some((cookie, refusal, left - used));
            return (used, Step::NeedMore { want: 1 });
        }
        self.skipping = None;
        (used, Step::Refused { cookie, refusal })
    }
}

impl RequestHeader {
    /// Decodes the header at the front of `bytes`. `None` if it is not complete.
    ///
    /// # Errors
    /// [`ProtocolError::RequestMagic`].
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Option<RequestHeader>, ProtocolError> {
        // The magic is checked as soon as it has arrived, so that a peer with another protocol is rejected
        // immediately.
        if let Some(magic) = take::<4>(bytes, 0).map(u32::from_be_bytes)
            && magic != REQUEST_MAGIC
        {
            return Err(ProtocolError::RequestMagic(magic));
        }
        let Some(h) = take::<REQUEST_HEADER>(bytes, 0) else { return Ok(None) };
        Ok(Some(RequestHeader {
            flags: u16::from_be_bytes([h[4], h[5]]),
            kind: u16::from_be_bytes([h[6], h[7]]),
            cookie: u64::from_be_bytes([h[8], h[9], h[10], h[11], h[12], h[13], h[14], h[15]]),
            offset: u64::from_be_bytes([h[16], h[17], h[18], h[19], h[20], h[21], h[22], h[23]]),
            len: u32::from_be_bytes([h[24], h[25], h[26], h[27]]),
        }))
    }

    fn check(&self, rules: &Rules) -> Result<Command, Refusal> {
        let RequestHeader { flags, offset, len, .. } = *self;
        let fua = flags & CMD_FLAG_FUA != 0;
        match self.kind {
            CMD_READ => {
                let dont_fragment = flags & CMD_FLAG_DF != 0;
                self.flags(if rules.structured { CMD_FLAG_DF } else { 0 })?;
                self.within(rules, Refusal::BeyondEnd)?;
                match (len > MAX_PAYLOAD, dont_fragment) {
                    (false, _) => Ok(Command::Read { offset, len, dont_fragment }),
                    (true, true) => Err(Refusal::TooLongForOne),
                    (true, false) => Err(Refusal::TooLong),
                }
            }
            CMD_WRITE => {
                self.flags(0)?;
                self.writable(rules)?;
                self.within(rules, Refusal::WriteBeyondEnd)?;
                if len > MAX_PAYLOAD { Err(Refusal::TooLong) } else { Ok(Command::Write { offset, fua }) }
            }
            // A disconnect is accepted with any flags and fields.
            CMD_DISC => Ok(Command::Disconnect),
            CMD_FLUSH => {
                self.flags(0)?;
                Ok(Command::Flush)
            }
            CMD_TRIM => {
                self.flags(0)?;
                self.writable(rules)?;
                self.within(rules, Refusal::BeyondEnd)?;
                Ok(Command::Trim { offset, len, fua })
            }
            CMD_CACHE => {
                self.flags(0)?;
                self.within(rules, Refusal::BeyondEnd)?;
                Ok(Command::Cache { offset, len })
            }
            CMD_WRITE_ZEROES => {
                // Zeroing is always fast here, so the flag has no effect.
                self.flags(CMD_FLAG_NO_HOLE | CMD_FLAG_FAST_ZERO)?;
                self.writable(rules)?;
                self.within(rules, Refusal::WriteBeyondEnd)?;
                Ok(Command::WriteZeroes { offset, len, fua, no_hole: flags & CMD_FLAG_NO_HOLE != 0 })
            }
            CMD_BLOCK_STATUS => {
                self.flags(CMD_FLAG_REQ_ONE)?;
                if !rules.block_status {
                    return Err(Refusal::NoContext);
                }
                self.within(rules, Refusal::BeyondEnd)?;
                if len == 0 {
                    return Err(Refusal::EmptyRange);
                }
                Ok(Command::BlockStatus { offset, len, one: flags & CMD_FLAG_REQ_ONE != 0 })
            }
            other => Err(Refusal::UnknownCommand(other)),
        }
    }

    /// Checks the flags. FUA is allowed with every command, although it has no effect with some ("Command
    /// flags").
    fn flags(&self, allowed: u16) -> Result<(), Refusal> {
        let bad = self.flags & !(allowed | CMD_FLAG_FUA);
        if bad == 0 { Ok(()) } else { Err(Refusal::BadFlags(bad)) }
    }

    fn writable(&self, rules: &Rules) -> Result<(), Refusal> {
        if rules.read_only { Err(Refusal::ReadOnly) } else { Ok(()) }
    }

    fn within(&self, rules: &Rules, refusal: Refusal) -> Result<(), Refusal> {
        match self.offset.checked_add(u64::from(self.len)) {
            Some(end) if end <= rules.size => Ok(()),
            _ => Err(refusal),
        }
    }
}
