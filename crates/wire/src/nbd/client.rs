//! The client's side of the protocol: options and their replies, and the headers of replies.
//!
//! The decoders take the bytes received so far. They return `None` while a message is not complete, and
//! otherwise the number of bytes used.

use super::consts::*;
use super::{CHUNK_HEADER, ProtocolError, SIMPLE_REPLY, take};

/// Bytes of a reply to an option before its data.
const OPTION_REPLY_HEADER: usize = 20;
/// The position of the cookie, of 8 bytes, in the header of a request, of a simple reply, and of a chunk.
pub const COOKIE: std::ops::Range<usize> = 8..16;

/// Appends an option whose data is the concatenation of `data`.
pub fn option(out: &mut Vec<u8>, number: u32, data: &[&[u8]]) {
    let len: usize = data.iter().map(|d| d.len()).sum();
    debug_assert!(len <= OPTION_MAX as usize, "options of this program are short");
    out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    out.extend_from_slice(&number.to_be_bytes());
    out.extend_from_slice(&(len as u32).to_be_bytes());
    data.iter().for_each(|d| out.extend_from_slice(d));
}

/// Pieces of information that a client requests with an option, `INFO_…`.
pub type RequestedInfo<'a> = &'a [u16];

/// Appends `OPT_GO` for an export.
pub fn option_go(out: &mut Vec<u8>, export: &str, info: RequestedInfo<'_>) {
    let kinds: Vec<u8> = info.iter().flat_map(|kind| kind.to_be_bytes()).collect();
    let (name_len, count) = ((export.len() as u32).to_be_bytes(), (info.len() as u16).to_be_bytes());
    option(out, OPT_GO, &[&name_len, export.as_bytes(), &count, &kinds]);
}

/// A reply to an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionReply<'a> {
    /// Number of the option.
    pub option: u32,
    /// Type of the reply, `REP_…`.
    pub kind: u32,
    /// Data of the reply.
    pub data: &'a [u8],
}

/// Decodes a reply to an option.
///
/// # Errors
/// [`ProtocolError::OptionReplyMagic`]; [`ProtocolError::OptionReplyTooLong`].
pub fn option_reply(bytes: &[u8]) -> Result<Option<(usize, OptionReply<'_>)>, ProtocolError> {
    if let Some(magic) = take::<8>(bytes, 0).map(u64::from_be_bytes)
        && magic != OPTION_REPLY_MAGIC
    {
        return Err(ProtocolError::OptionReplyMagic(magic));
    }
    let field = |at| take::<4>(bytes, at).map(u32::from_be_bytes);
    let (Some(option), Some(kind), Some(len)) = (field(8), field(12), field(16)) else { return Ok(None) };
    if len > OPTION_MAX {
        return Err(ProtocolError::OptionReplyTooLong { option, len });
    }
    let end = OPTION_REPLY_HEADER + len as usize;
    let data = bytes.get(OPTION_REPLY_HEADER..end);
    Ok(data.map(|data| (end, OptionReply { option, kind, data })))
}

/// The header of a message in the transmission phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplyHeader {
    /// A simple reply, which the data of a read follows only if structured replies were not negotiated.
    Simple {
        /// Identifier of the request.
        cookie: u64,
        /// Error value; 0 for success.
        error: u32,
    },
    /// A chunk of a structured reply, which its payload follows.
    Chunk {
        /// Identifier of the request.
        cookie: u64,
        /// Type of the chunk, `CHUNK_…`.
        kind: u16,
        /// This is the last chunk of its reply.
        is_last: bool,
        /// Length of the payload in bytes.
        len: u32,
    },
}

/// Decodes the header of a reply; the number of used bytes does not include the payload.
///
/// # Errors
/// [`ProtocolError::ReplyMagic`].
#[inline]
pub fn reply_header(bytes: &[u8]) -> Result<Option<(usize, ReplyHeader)>, ProtocolError> {
    let Some(magic) = take::<4>(bytes, 0).map(u32::from_be_bytes) else { return Ok(None) };
    let number = |at| take::<4>(bytes, at).map(u32::from_be_bytes);
    let cookie = take::<8>(bytes, COOKIE.start).map(u64::from_be_bytes);
    Ok(match magic {
        SIMPLE_REPLY_MAGIC => match (number(4), cookie) {
            (Some(error), Some(cookie)) => Some((SIMPLE_REPLY, ReplyHeader::Simple { cookie, error })),
            _ => None,
        },
        CHUNK_MAGIC => match (number(4), cookie, number(16)) {
            (Some(both), Some(cookie), Some(len)) => {
                let (flags, kind) = ((both >> 16) as u16, both as u16);
                let is_last = flags & CHUNK_FLAG_DONE != 0;
                Some((CHUNK_HEADER, ReplyHeader::Chunk { cookie, kind, is_last, len }))
            }
            _ => None,
        },
        magic => return Err(ProtocolError::ReplyMagic(magic)),
    })
}

#[cfg(test)]
mod tests {
    use super::super::{
        ErrorCode, InfoRequest, OptionDecoder, OptionEvent, OptionRequest, data_chunk_header, error_chunk,
        option_error, simple_reply,
    };
    use super::*;

    #[test]
    fn the_server_decodes_options_of_this_side() {
        let mut bytes = 3_u32.to_be_bytes().to_vec();
        option_go(&mut bytes, "vol", &[INFO_NAME, INFO_BLOCK_SIZE]);
        let mut decoder = OptionDecoder::new();
        assert_eq!(decoder.next(&bytes), Ok((4, OptionEvent::ClientFlags { no_zeroes: true })));
        let name = "vol".to_owned();
        let info = InfoRequest { name, want_name: true, want_block_size: true, ..InfoRequest::default() };
        let expected = OptionEvent::Option(OptionRequest::Go(info));
        assert_eq!(decoder.next(&bytes[4..]), Ok((bytes.len() - 4, expected)));
    }

    #[test]
    fn option_replies_are_decoded_when_they_are_complete() {
        let mut bytes = Vec::new();
        option_error(&mut bytes, OPT_GO, REP_ERR_POLICY, "no");
        for len in 0..bytes.len() {
            assert_eq!(option_reply(&bytes[..len]), Ok(None));
        }
        let reply = OptionReply { option: OPT_GO, kind: REP_ERR_POLICY, data: b"no" };
        assert_eq!(option_reply(&bytes), Ok(Some((bytes.len(), reply))));
        bytes[16] = 1;
        let too_long = ProtocolError::OptionReplyTooLong { option: OPT_GO, len: (1 << 24) + 2 };
        assert_eq!(option_reply(&bytes), Err(too_long));
        assert!(matches!(option_reply(&[7; 8]), Err(ProtocolError::OptionReplyMagic(_))));
    }

    #[test]
    fn reply_headers_are_decoded_when_they_are_complete() {
        let simple = simple_reply(7, Some(ErrorCode::Io));
        let data = data_chunk_header(8, 4096, 512, true);
        let mut error = Vec::new();
        error_chunk(&mut error, 9, ErrorCode::NoSpc, "full");
        let chunk = |cookie, kind, len| ReplyHeader::Chunk { cookie, kind, is_last: true, len };
        for (bytes, header, used) in [
            (&simple[..], ReplyHeader::Simple { cookie: 7, error: 5 }, SIMPLE_REPLY),
            (&data, chunk(8, CHUNK_OFFSET_DATA, 520), CHUNK_HEADER),
            (&error, chunk(9, CHUNK_ERROR, 10), CHUNK_HEADER),
        ] {
            for len in 0..used {
                assert_eq!(reply_header(&bytes[..len]), Ok(None), "{len}");
            }
            assert_eq!(reply_header(bytes), Ok(Some((used, header))));
        }
        assert_eq!(reply_header(&[0; 4]), Err(ProtocolError::ReplyMagic(0)));
    }
}
