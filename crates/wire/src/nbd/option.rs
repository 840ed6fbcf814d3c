//! Decoding of the negotiation ("Fixed newstyle negotiation", "Option types").
//!
//! A client sends its flags (4 bytes), then options: magic (8), number (4), length (4), data. An option is
//! decoded only when it is complete, so the caller buffers at most [`OPTION_MAX`] bytes and a header; longer
//! data is skipped on arrival, without buffering.

use super::consts::*;
use super::{ProtocolError, take};

const OPTION_HEADER: usize = 16;

/// A well-formed option. The server decides whether to accept it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OptionRequest {
    /// Start transmission with this export; errors cannot be reported.
    ExportName(String),
    /// End the negotiation.
    Abort,
    /// List the exports.
    List,
    /// Continue under TLS.
    StartTls,
    /// Describe an export.
    Info(InfoRequest),
    /// Describe an export and start transmission.
    Go(InfoRequest),
    /// Use structured replies from now on.
    StructuredReply,
    /// List the matching metadata contexts.
    ListMetaContext(MetaRequest),
    /// Choose metadata contexts; each such option replaces the previous choice.
    SetMetaContext(MetaRequest),
}

impl OptionRequest {
    /// The option's number.
    pub fn number(&self) -> u32 {
        match self {
            OptionRequest::ExportName(_) => OPT_EXPORT_NAME,
            OptionRequest::Abort => OPT_ABORT,
            OptionRequest::List => OPT_LIST,
            OptionRequest::StartTls => OPT_STARTTLS,
            OptionRequest::Info(_) => OPT_INFO,
            OptionRequest::Go(_) => OPT_GO,
            OptionRequest::StructuredReply => OPT_STRUCTURED_REPLY,
            OptionRequest::ListMetaContext(_) => OPT_LIST_META_CONTEXT,
            OptionRequest::SetMetaContext(_) => OPT_SET_META_CONTEXT,
        }
    }
}

/// The data of `OPT_INFO` and `OPT_GO`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InfoRequest {
    /// Name of the export; empty for the default export.
    pub name: String,
    /// The client requests the canonical name.
    pub want_name: bool,
    /// The client requests the description.
    pub want_description: bool,
    /// The client requests the block sizes, and will obey them.
    pub want_block_size: bool,
}

/// The data of `OPT_LIST_META_CONTEXT` and `OPT_SET_META_CONTEXT`, reduced to the contexts of this server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MetaRequest {
    /// Name of the export.
    pub export: String,
    /// A query names `base:allocation`.
    pub allocation: bool,
    /// A query names the whole namespace `base:`; only lists treat it as a wildcard.
    pub base: bool,
    /// The name of a snapshot or an image in the first query for [`CHANGED_SINCE`] with a name.
    pub changed_since: Option<String>,
    /// A query names the whole namespace `forebay:`, or [`CHANGED_SINCE`] without a name; only lists treat it
    /// as a wildcard.
    pub forebay: bool,
    /// The request has no query, which in a list selects all contexts.
    pub empty: bool,
}

/// An option that is answered with an error; the negotiation continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OptionRefusal {
    /// The number of the option is unknown or not supported.
    #[error("this server does not support option {0}")]
    Unknown(u32),
    /// The data contains contradictory lengths, or the option must not have data.
    #[error("the option's data is malformed")]
    Malformed,
    /// More data than any valid option of this kind has.
    #[error("the option is too long")]
    TooBig,
    /// A string exceeds the protocol's limit.
    #[error("a name is longer than 4096 bytes")]
    NameTooLong,
    /// A name is not UTF-8.
    #[error("a name is not valid UTF-8")]
    NotUtf8,
}

impl OptionRefusal {
    /// The reply type (`REP_ERR_…`).
    pub fn reply(self) -> u32 {
        match self {
            OptionRefusal::Unknown(_) => REP_ERR_UNSUP,
            OptionRefusal::Malformed | OptionRefusal::NotUtf8 => REP_ERR_INVALID,
            OptionRefusal::TooBig | OptionRefusal::NameTooLong => REP_ERR_TOO_BIG,
        }
    }
}

/// The result of decoding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OptionEvent {
    /// No complete message. The used bytes are consumed; more are needed.
    NeedMore,
    /// The client's flags, which it sends first.
    ClientFlags {
        /// The client expects no padding after the reply to `OPT_EXPORT_NAME`.
        no_zeroes: bool,
    },
    /// The client sent a valid option.
    Option(OptionRequest),
    /// An option to be answered with an error.
    Refused {
        /// Number of the option.
        option: u32,
        /// Why the option is refused.
        refusal: OptionRefusal,
    },
}

/// Decodes the client's side of a negotiation.
#[derive(Debug, Default)]
pub struct OptionDecoder {
    flags_seen: bool,
    skipping: Option<(u32, usize)>,
}

impl OptionDecoder {
    /// A decoder for a client that has just connected.
    pub fn new() -> OptionDecoder {
        OptionDecoder::default()
    }

    /// Decodes the front of `bytes`, which start where the last call stopped. Returns the number of used
    /// bytes, and the result.
    pub fn next(&mut self, bytes: &[u8]) -> Result<(usize, OptionEvent), ProtocolError> {
        if !self.flags_seen {
            return self.client_flags(bytes);
        }
        if let Some((option, left)) = self.skipping {
            return Ok(self.skip(option, left, bytes));
        }
        let Some(header) = take::<OPTION_HEADER>(bytes, 0) else {
            return self.check_magic(bytes).map(|()| (0, OptionEvent::NeedMore));
        };
        self.check_magic(bytes)?;
        let [.., a, b, c, d, e, f, g, h] = header;
        let (option, len) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
        if len > OPTION_SKIP_MAX {
            return Err(ProtocolError::OptionTooLong { option, len });
        }
        if len > OPTION_MAX {
            self.skipping = Some((option, len as usize));
            let (used, event) = self.skip(option, len as usize, &bytes[OPTION_HEADER..]);
            return Ok((OPTION_HEADER + used, event));
        }
        let end = OPTION_HEADER + len as usize;
        let Some(data) = bytes.get(OPTION_HEADER..end) else {
            return Ok((0, OptionEvent::NeedMore));
        };
        Ok(match parse(option, data) {
            Ok(request) => (end, OptionEvent::Option(request)),
            Err(refusal) => (end, OptionEvent::Refused { option, refusal }),
        })
    }

    fn client_flags(&mut self, bytes: &[u8]) -> Result<(usize, OptionEvent), ProtocolError> {
        let Some(flags) = take::<4>(bytes, 0).map(u32::from_be_bytes) else {
            return Ok((0, OptionEvent::NeedMore));
        };
        let known = u32::from(HANDSHAKE_FIXED_NEWSTYLE | HANDSHAKE_NO_ZEROES);
        if flags & !known != 0 {
            return Err(ProtocolError::ClientFlags(flags));
        }
        self.flags_seen = true;
        let no_zeroes = flags & u32::from(HANDSHAKE_NO_ZEROES) != 0;
        Ok((4, OptionEvent::ClientFlags { no_zeroes }))
    }

    /// Checks the magic as soon as it has arrived, so that a peer with another protocol is rejected
    /// immediately.
    fn check_magic(&self, bytes: &[u8]) -> Result<(), ProtocolError> {
        match take::<8>(bytes, 0).map(u64::from_be_bytes) {
            Some(magic) if magic != OPTION_MAGIC => Err(ProtocolError::OptionMagic(magic)),
            _ => Ok(()),
        }
    }

    fn skip(&mut self, option: u32, left: usize, bytes: &[u8]) -> (usize, OptionEvent) {
        let used = left.min(bytes.len());
        if used < left {
            self.skipping = Some((option, left - used));
            return (used, OptionEvent::NeedMore);
        }
        self.skipping = None;
        (used, OptionEvent::Refused { option, refusal: OptionRefusal::TooBig })
    }
}

fn parse(option: u32, data: &[u8]) -> Result<OptionRequest, OptionRefusal> {
    match option {
        OPT_EXPORT_NAME => Ok(OptionRequest::ExportName(name(data)?)),
        // An abort ends the negotiation, whatever its data.
        OPT_ABORT => Ok(OptionRequest::Abort),
        OPT_LIST => no_data(data, OptionRequest::List),
        OPT_STARTTLS => no_data(data, OptionRequest::StartTls),
        OPT_STRUCTURED_REPLY => no_data(data, OptionRequest::StructuredReply),
        OPT_INFO => Ok(OptionRequest::Info(info(data)?)),
        OPT_GO => Ok(OptionRequest::Go(info(data)?)),
        OPT_LIST_META_CONTEXT => Ok(OptionRequest::ListMetaContext(meta(data)?)),
        OPT_SET_META_CONTEXT => Ok(OptionRequest::SetMetaContext(meta(data)?)),
        other => Err(OptionRefusal::Unknown(other)),
    }
}

fn no_data(data: &[u8], request: OptionRequest) -> Result<OptionRequest, OptionRefusal> {
    if data.is_empty() { Ok(request) } else { Err(OptionRefusal::Malformed) }
}

fn name(bytes: &[u8]) -> Result<String, OptionRefusal> {
    if bytes.len() > NAME_MAX as usize {
        return Err(OptionRefusal::NameTooLong);
    }
    match std::str::from_utf8(bytes) {
        Ok(s) => Ok(s.to_owned()),
        Err(_) => Err(OptionRefusal::NotUtf8),
    }
}

/// Reads the fields of an option's data; all of the data must be used.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, len: usize) -> Result<&'a [u8], OptionRefusal> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(OptionRefusal::Malformed)?;
        self.0 = rest;
        Ok(head)
    }
    fn u16(&mut self) -> Result<u16, OptionRefusal> {
        take::<2>(self.bytes(2)?, 0).map(u16::from_be_bytes).ok_or(OptionRefusal::Malformed)
    }
    fn u32(&mut self) -> Result<u32, OptionRefusal> {
        take::<4>(self.bytes(4)?, 0).map(u32::from_be_bytes).ok_or(OptionRefusal::Malformed)
    }
    /// A string preceded by its length.
    fn string(&mut self) -> Result<&'a [u8], OptionRefusal> {
        let len = self.u32()?;
        self.bytes(len as usize)
    }
    fn end(self) -> Result<(), OptionRefusal> {
        if self.0.is_empty() { Ok(()) } else { Err(OptionRefusal::Malformed) }
    }
}

fn info(data: &[u8]) -> Result<InfoRequest, OptionRefusal> {
    let mut fields = Fields(data);
    let mut request = InfoRequest { name: name(fields.string()?)?, ..InfoRequest::default() };
    for _ in 0..fields.u16()? {
        match fields.u16()? {
            INFO_NAME => request.want_name = true,
            INFO_DESCRIPTION => request.want_description = true,
            INFO_BLOCK_SIZE => request.want_block_size = true,
            // INFO_EXPORT is always sent; unknown requests need not be answered.
            _ => {}
        }
    }
    fields.end()?;
    Ok(request)
}

fn meta(data: &[u8]) -> Result<MetaRequest, OptionRefusal> {
    let mut fields = Fields(data);
    let mut request = MetaRequest { export: name(fields.string()?)?, ..MetaRequest::default() };
    let queries = fields.u32()?;
    request.empty = queries == 0;
    // Each query has at least the four bytes of its length, so the loop ends with the data, whatever count is
    // given.
    for _ in 0..queries {
        match fields.string()? {
            q if q == BASE_ALLOCATION.as_bytes() => request.allocation = true,
            b"base:" => request.base = true,
            q if q == b"forebay:" || q == CHANGED_SINCE.as_bytes() => request.forebay = true,
            q if q.len() > NAME_MAX as usize => return Err(OptionRefusal::NameTooLong),
            q if q.starts_with(CHANGED_SINCE.as_bytes()) => {
                let earlier = name(&q[CHANGED_SINCE.len()..])?;
                request.changed_since.get_or_insert(earlier);
            }
            // A context of another namespace is not an error; it just does not match.
            _ => {}
        }
    }
    fields.end()?;
    Ok(request)
}
