//! The Network Block Device protocol: fixed newstyle negotiation and transmission.
//!
//! Follows the protocol document of the NetworkBlockDevice project (`doc/proto.md`); comments cite its
//! section names.
//!
//! A connection uses two decoders in turn. [`OptionDecoder`] decodes the bytes of the negotiation into
//! [`OptionRequest`]s, [`RequestDecoder`] those of the transmission into [`Request`]s. Both take the bytes
//! received so far and return the number of bytes used, so the result does not depend on packet boundaries.
//! Both distinguish two kinds of bad input: errors that the protocol can answer ([`OptionRefusal`],
//! [`Refusal`]; the connection continues) and errors after which the next message cannot be found
//! ([`ProtocolError`]; the connection ends).
//!
//! A node of a cluster is also a client, of the server that has the disk: `client` has that side of the
//! messages, and `relay` the additions that only nodes use.

mod client;
mod consts;
mod option;
mod option_reply;
mod relay;
mod reply;
mod request;

pub use client::{
    COOKIE, OptionReply, ReplyHeader, RequestedInfo, option, option_go, option_reply, reply_header,
};
pub use consts::*;
pub use option::{InfoRequest, MetaRequest, OptionDecoder, OptionEvent, OptionRefusal, OptionRequest};
pub use option_reply::reply as encode_option_reply;
pub use option_reply::{
    BlockSizes, greeting, option_ack, option_error, option_export_name, option_info_block_size,
    option_info_export, option_info_text, option_meta_context, option_server,
};
pub use relay::{PREAMBLE_MAX, Preamble, RelayInfo, option_info_relay};
pub use reply::{
    BlockDescriptor, CHUNK_HEADER, DATA_CHUNK_HEADER, ERROR_TEXT_MAX, HOLE_CHUNK, SIMPLE_REPLY,
    block_status_chunk, data_chunk_header, error_chunk, hole_chunk, none_chunk, simple_reply,
};
pub use request::{Command, Refusal, Request, RequestDecoder, RequestHeader, Rules, Step};

/// Errors after which the next message cannot be found, so the connection must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// Client flags that were not offered.
    #[error("unknown client flags {0:#x}; is this an NBD client?")]
    ClientFlags(u32),
    /// An option that does not start with its magic number.
    #[error("bad magic number {0:#018x} in an option; is this an NBD client?")]
    OptionMagic(u64),
    /// The option is longer than [`OPTION_SKIP_MAX`].
    #[error("option {option} announces {len} bytes")]
    OptionTooLong {
        /// Number of the option.
        option: u32,
        /// Announced length of the option.
        len: u32,
    },
    /// A request that does not start with its magic number.
    #[error("bad magic number {0:#010x} in a request")]
    RequestMagic(u32),
    /// A server's greeting, or its reply to an option, that does not start with its magic number.
    #[error("bad magic number {0:#018x} from a server")]
    OptionReplyMagic(u64),
    /// A server's reply to an option that is longer than [`OPTION_MAX`].
    #[error("a server's reply to option {option} announces {len} bytes")]
    OptionReplyTooLong {
        /// Number of the option.
        option: u32,
        /// Announced length of the reply.
        len: u32,
    },
    /// A reply that does not start with its magic number.
    #[error("bad magic number {0:#010x} in a reply")]
    ReplyMagic(u32),
    /// A connection between nodes that does not start with a [`Preamble`].
    #[error("the connection does not begin with the line of a node")]
    Preamble,
}

/// Error values of the protocol ("Error values").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ErrorCode {
    /// Operation not permitted: a write to a read-only export.
    Perm = 1,
    /// Input/output error.
    Io = 5,
    /// Out of memory.
    NoMem = 12,
    /// Invalid argument.
    Inval = 22,
    /// No space left, or a write beyond the end.
    NoSpc = 28,
    /// Value too large: a reply that must not be split and does not fit.
    Overflow = 75,
    /// The request is not supported: a fast zero that would not be fast.
    NotSup = 95,
    /// The server is shutting down.
    Shutdown = 108,
}

/// The `N` bytes of `bytes` at `at`, if they exist.
fn take<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk::<N>().copied()
}

/// `text`, truncated at a character boundary to at most `max` bytes.
fn cut(text: &str, max: usize) -> &str {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
