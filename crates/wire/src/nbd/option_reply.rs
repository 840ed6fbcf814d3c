//! The server's messages of a negotiation. All encoders append to `out`.

use super::consts::*;
use super::cut;

const LIMIT: usize = NAME_MAX as usize;

/// Block sizes of an export, in bytes ("Block size constraints").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockSizes {
    /// Offsets and lengths of requests must be multiples of this number.
    pub min: u32,
    /// Offsets and lengths of requests should be multiples of this number.
    pub preferred: u32,
    /// Maximum bytes of a read or write.
    pub max: u32,
}

/// The greeting, the first message of a connection.
pub fn greeting(out: &mut Vec<u8>) {
    out.extend_from_slice(&NBD_MAGIC.to_be_bytes());
    out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    out.extend_from_slice(&(HANDSHAKE_FIXED_NEWSTYLE | HANDSHAKE_NO_ZEROES).to_be_bytes());
}

/// Appends a reply of type `kind` (`REP_…`) to an option; its data is the concatenation of `data`.
pub fn reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[&[u8]]) {
    let len: usize = data.iter().map(|d| d.len()).sum();
    debug_assert!(len <= OPTION_MAX as usize, "the server's own replies are short");
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&(len as u32).to_be_bytes());
    data.iter().for_each(|d| out.extend_from_slice(d));
}

/// Success of an option.
pub fn option_ack(out: &mut Vec<u8>, option: u32) {
    reply(out, option, REP_ACK, &[]);
}

/// Failure of an option with `error` (`REP_ERR_…`); `text` is a message for the client's user, truncated to
/// the limit of the protocol.
pub fn option_error(out: &mut Vec<u8>, option: u32, error: u32, text: &str) {
    reply(out, option, error, &[cut(text, LIMIT).as_bytes()]);
}

/// Encodes one export of a list, with a description for users.
pub fn option_server(out: &mut Vec<u8>, name: &str, description: &str) {
    let name = cut(name, LIMIT);
    reply(
        out,
        OPT_LIST,
        REP_SERVER,
        &[&(name.len() as u32).to_be_bytes(), name.as_bytes(), cut(description, LIMIT).as_bytes()],
    );
}

/// Size and transmission flags.
pub fn option_info_export(out: &mut Vec<u8>, option: u32, size: u64, flags: u16) {
    reply(out, option, REP_INFO, &[&INFO_EXPORT.to_be_bytes(), &size.to_be_bytes(), &flags.to_be_bytes()]);
}

/// `INFO_NAME` or `INFO_DESCRIPTION`.
pub fn option_info_text(out: &mut Vec<u8>, option: u32, info: u16, text: &str) {
    reply(out, option, REP_INFO, &[&info.to_be_bytes(), cut(text, LIMIT).as_bytes()]);
}

/// `INFO_BLOCK_SIZE`.
pub fn option_info_block_size(out: &mut Vec<u8>, option: u32, sizes: BlockSizes) {
    let (min, preferred, max) =
        (sizes.min.to_be_bytes(), sizes.preferred.to_be_bytes(), sizes.max.to_be_bytes());
    reply(out, option, REP_INFO, &[&INFO_BLOCK_SIZE.to_be_bytes(), &min, &preferred, &max]);
}

/// Describes a metadata context; `id` is significant only in the reply to `OPT_SET_META_CONTEXT`.
pub fn option_meta_context(out: &mut Vec<u8>, option: u32, id: u32, name: &str) {
    reply(out, option, REP_META_CONTEXT, &[&id.to_be_bytes(), name.as_bytes()]);
}

/// The reply to `OPT_EXPORT_NAME`, which has a special format.
pub fn option_export_name(out: &mut Vec<u8>, size: u64, flags: u16, no_zeroes: bool) {
    out.extend_from_slice(&size.to_be_bytes());
    out.extend_from_slice(&flags.to_be_bytes());
    if !no_zeroes {
        out.extend_from_slice(&[0; 124]);
    }
}
