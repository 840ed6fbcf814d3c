//! Constants of the protocol ("Values"), and additional limits of this server.

macro_rules! consts {
    ($($ty:ty: { $($name:ident = $value:expr, $doc:literal;)* })*) => {
        $($(#[doc = $doc] pub const $name: $ty = $value;)*)*
    };
}

consts! {
    u64: {
        NBD_MAGIC = 0x4e42_444d_4147_4943, "First word of the server's greeting.";
        OPTION_MAGIC = 0x4948_4156_454f_5054, "Second word of the greeting, and first of each option.";
        OPTION_REPLY_MAGIC = 0x0003_e889_0455_65a9, "Start of each option reply.";
    }
    u32: {
        REQUEST_MAGIC = 0x2560_9513, "Start of a request.";
        SIMPLE_REPLY_MAGIC = 0x6744_6698, "Start of a simple reply.";
        CHUNK_MAGIC = 0x668e_33ef, "Start of a chunk of a structured reply.";

        OPT_EXPORT_NAME = 1, "Choose an export and start transmission; errors cannot be reported.";
        OPT_ABORT = 2, "End the negotiation.";
        OPT_LIST = 3, "List the exports.";
        OPT_STARTTLS = 5, "Continue under TLS.";
        OPT_INFO = 6, "Describe an export.";
        OPT_GO = 7, "Describe an export, and start transmission.";
        OPT_STRUCTURED_REPLY = 8, "Use structured replies.";
        OPT_LIST_META_CONTEXT = 9, "List metadata contexts.";
        OPT_SET_META_CONTEXT = 10, "Choose metadata contexts.";
        OPT_EXTENDED_HEADERS = 11, "Use extended headers.";

        REP_ACK = 1, "The option succeeded.";
        REP_SERVER = 2, "One export of a list.";
        REP_INFO = 3, "One piece of information.";
        REP_META_CONTEXT = 4, "One metadata context.";
        REP_ERR_UNSUP = 0x8000_0001, "The option is not supported.";
        REP_ERR_POLICY = 0x8000_0002, "The option is not allowed here.";
        REP_ERR_INVALID = 0x8000_0003, "The option's data is malformed, or it is sent at the wrong time.";
        REP_ERR_TLS_REQD = 0x8000_0005, "TLS is required first.";
        REP_ERR_UNKNOWN = 0x8000_0006, "No such export.";
        REP_ERR_SHUTDOWN = 0x8000_0007, "The server is shutting down.";
        REP_ERR_TOO_BIG = 0x8000_0009, "The option is too long.";

        REP_FLAG_ERROR = 1 << 31, "Set in the types of negative option replies.";

        BASE_ALLOCATION_ID = 1, "The id of the context `base:allocation` in replies of this server.";
        CHANGED_SINCE_ID = 2, "The id of a context `forebay:changed-since=…` in replies of this server.";
        STATE_HOLE = 1, "`base:allocation`: not allocated.";
        STATE_ZERO = 2, "`base:allocation`: reads as zeroes.";
        STATE_CHANGED = 1, "`forebay:changed-since=…`: may differ from the earlier contents.";
        STATE_CHANGED_ZERO = 2, "`forebay:changed-since=…`: has changed, and reads as zeroes now.";

        MAX_PAYLOAD = 32 << 20, "Longest read or write, in bytes.";
        OPTION_MAX = 64 << 10, "Longest option that is decoded, in bytes; longer ones are skipped.";
        OPTION_SKIP_MAX = 32 << 20, "Longest option that is skipped, in bytes; a longer one ends the connection.";
        NAME_MAX = 4096, "Longest string that the protocol allows, in bytes.";
    }
    u16: {
        HANDSHAKE_FIXED_NEWSTYLE = 1 << 0, "Handshake and client flag: options are answered.";
        HANDSHAKE_NO_ZEROES = 1 << 1, "Handshake and client flag: no padding after `OPT_EXPORT_NAME`.";

        INFO_EXPORT = 0, "Size and transmission flags.";
        INFO_NAME = 1, "The export's canonical name.";
        INFO_DESCRIPTION = 2, "A description for users.";
        INFO_BLOCK_SIZE = 3, "Minimum, preferred and maximum request size.";
        INFO_RELAY = 0x8f01, "Between nodes only: what a node needs to connect its client again.";

        FLAG_HAS_FLAGS = 1 << 0, "Transmission flag: always set.";
        FLAG_READ_ONLY = 1 << 1, "Transmission flag: writes are refused.";
        FLAG_SEND_FLUSH = 1 << 2, "Transmission flag: flush is supported.";
        FLAG_SEND_FUA = 1 << 3, "Transmission flag: FUA is supported.";
        FLAG_ROTATIONAL = 1 << 4, "Transmission flag: rotational medium.";
        FLAG_SEND_TRIM = 1 << 5, "Transmission flag: trim is supported.";
        FLAG_SEND_WRITE_ZEROES = 1 << 6, "Transmission flag: write zeroes is supported.";
        FLAG_SEND_DF = 1 << 7, "Transmission flag: reads can request an unfragmented reply.";
        FLAG_CAN_MULTI_CONN = 1 << 8, "Transmission flag: a flush covers all connections.";
        FLAG_SEND_CACHE = 1 << 10, "Transmission flag: the cache command is supported.";
        FLAG_SEND_FAST_ZERO = 1 << 11, "Transmission flag: fast write zeroes is supported.";

        CMD_READ = 0, "Read.";
        CMD_WRITE = 1, "Write.";
        CMD_DISC = 2, "Disconnect; not answered.";
        CMD_FLUSH = 3, "Make all answered writes durable.";
        CMD_TRIM = 4, "Discard a range.";
        CMD_CACHE = 5, "Load a range into the cache.";
        CMD_WRITE_ZEROES = 6, "Zero a range.";
        CMD_BLOCK_STATUS = 7, "Query the allocation of a range.";

        CMD_FLAG_FUA = 1 << 0, "The command is durable when answered.";
        CMD_FLAG_NO_HOLE = 1 << 1, "Write zeroes: leave the range allocated.";
        CMD_FLAG_DF = 1 << 2, "Read: reply in one chunk.";
        CMD_FLAG_REQ_ONE = 1 << 3, "Block status: reply with one descriptor.";
        CMD_FLAG_FAST_ZERO = 1 << 4, "Write zeroes: fail if it would be slow.";

        CHUNK_FLAG_DONE = 1 << 0, "The last chunk of a reply.";
        CHUNK_NONE = 0, "No payload.";
        CHUNK_OFFSET_DATA = 1, "Data of a read.";
        CHUNK_OFFSET_HOLE = 2, "A range of a read that is zero.";
        CHUNK_BLOCK_STATUS = 5, "Block descriptors.";
        CHUNK_ERROR = 0x8001, "An error, with a message.";
    }
}

/// The metadata context for the allocation of an export.
pub const BASE_ALLOCATION: &str = "base:allocation";
/// The beginning of the name of a metadata context for the changes since a snapshot or an image, whose name
/// follows.
pub const CHANGED_SINCE: &str = "forebay:changed-since=";
/// Bytes of a request before its payload.
pub const REQUEST_HEADER: usize = 28;
/// Between nodes only: the cookie of a simple reply that precedes the end of the connection if an
/// administrator has disconnected the client. A node gives this cookie to no request.
pub const DISMISSED: u64 = u64::MAX;
