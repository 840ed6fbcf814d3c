//! The Network Block Device protocol, server side: fixed newstyle negotiation and transmission.
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

mod consts;
mod option;
mod option_reply;
mod reply;
mod request;

pub use consts::*;
pub use option::{InfoRequest, MetaRequest, OptionDecoder, OptionEvent, OptionRefusal, OptionRequest};
pub use option_reply::{
    BlockSizes, greeting, option_ack, option_error, option_export_name, option_info_block_size,
    option_info_export, option_info_text, option_meta_context, option_server,
};
pub use reply::{
    BlockDescriptor, CHUNK_HEADER, DATA_CHUNK_HEADER, ERROR_TEXT_MAX, HOLE_CHUNK, SIMPLE_REPLY,
    block_status_chunk, data_chunk_header, error_chunk, hole_chunk, none_chunk, simple_reply,
};
pub use request::{Command, Refusal, Request, RequestDecoder, Rules, Step};

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
