//! The replies of the owner on their way to the client. This module does no I/O.
//!
//! A simple reply with its data, and each chunk of a structured reply, is relayed only when it is complete;
//! so an owner that is lost never leaves a part of one with the client. Of a read that is answered in several
//! chunks, some may be with the client already: then the next owner executes the whole read, and the chunks
//! that the client has are dropped.
//!
//! `ESHUTDOWN` means that the owner does not execute the request because it stops. It is not relayed: the
//! request stays unanswered, and the connection to this owner is given up.

use std::collections::VecDeque;

use forebay_wire::nbd::{
    BASE_ALLOCATION_ID, CHANGED_SINCE_ID, CHUNK_BLOCK_STATUS, CHUNK_ERROR, CHUNK_HEADER, CHUNK_NONE,
    CHUNK_OFFSET_DATA, CHUNK_OFFSET_HOLE, CMD_BLOCK_STATUS, CMD_READ, COOKIE, DATA_CHUNK_HEADER, DISMISSED,
    ErrorCode, HOLE_CHUNK, MAX_PAYLOAD, ReplyHeader, none_chunk, reply_header,
};

use super::limits::{MAX_OTHER_REPLY, REPLIES, UNSENT};
use super::requests::{Request, Requests};

/// Length of a buffer that is kept when it is empty.
const KEEP: usize = REPLIES + UNSENT;
const SHUTDOWN: u32 = ErrorCode::Shutdown as u32;

/// Why the replies of an owner cannot be relayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// The owner is about to stop.
    Stops,
    /// The owner violated the protocol.
    Protocol(String),
    /// The rest of a read does not fit what the client has received of it.
    Torn,
}

fn violation<T>(why: &str) -> Result<T, Fault> {
    Err(Fault::Protocol(why.to_owned()))
}

/// Replies between the owner and the client.
#[derive(Debug, Default)]
pub(super) struct Replies {
    buffer: Vec<u8>,
    /// The bytes before this position are with the client.
    sent: usize,
    /// The bytes before this position are complete messages for the client.
    ready: usize,
    /// The bytes before this position were received.
    filled: usize,
    /// Length of the message at `ready`, as far as it is known.
    want: usize,
    /// The replies before `ready` that are not with the client: where each ends, in bytes since the beginning
    /// of the connection, and the memory of its request.
    leaving: VecDeque<(u64, usize)>,
    /// Number of bytes that the client has received.
    total_sent: u64,
    /// Structured replies were negotiated.
    structured: bool,
    /// An administrator has disconnected the client.
    pub is_dismissed: bool,
    /// Number of replies that were completed.
    pub completed: u64,
}

impl Replies {
    /// No replies yet, of a connection with structured replies or without.
    pub fn new(structured: bool) -> Replies {
        Replies { structured, ..Replies::default() }
    }

    /// Bytes for the client.
    pub fn unsent(&self) -> &[u8] {
        &self.buffer[self.sent..self.ready]
    }

    /// Whether enough replies wait for the client, so that the owner is not read from.
    pub fn is_full(&self) -> bool {
        self.ready - self.sent >= UNSENT
    }

    /// Room for bytes of the owner; at least one byte.
    pub fn room(&mut self) -> &mut [u8] {
        if self.sent == self.filled {
            (self.sent, self.ready, self.filled) = (0, 0, 0);
            if self.buffer.len() > KEEP && self.want <= KEEP {
                self.buffer.truncate(KEEP);
                self.buffer.shrink_to_fit();
            }
        }
        let needed = self.ready + self.want.max(REPLIES);
        if needed > self.buffer.len() && self.sent > 0 {
            self.buffer.copy_within(self.sent..self.filled, 0);
            (self.ready, self.filled) = (self.ready - self.sent, self.filled - self.sent);
            self.sent = 0;
        }
        let needed = (self.ready + self.want.max(REPLIES)).max(self.filled + 1);
        if needed > self.buffer.len() {
            self.buffer.resize(needed, 0);
        }
        &mut self.buffer[self.filled..]
    }

    /// Records that bytes of the owner were received into [`Replies::room`].
    pub fn received(&mut self, bytes: usize) {
        self.filled = (self.filled + bytes).min(self.buffer.len());
    }

    /// Records that the client has received bytes. Returns the memory that its answered requests give back.
    pub fn advance(&mut self, bytes: usize) -> usize {
        self.sent = (self.sent + bytes).min(self.ready);
        self.total_sent += bytes as u64;
        let mut cost = 0;
        while let Some((_, of_reply)) = self.leaving.front().filter(|(end, _)| *end <= self.total_sent) {
            cost += of_reply;
            self.leaving.pop_front();
        }
        cost
    }

    /// Whether structured replies were negotiated.
    pub fn is_structured(&self) -> bool {
        self.structured
    }

    /// Adds a reply of this side.
    pub fn insert(&mut self, reply: &[u8]) {
        let after = self.ready..self.ready;
        self.buffer.splice(after, reply.iter().copied());
        self.ready += reply.len();
        self.filled += reply.len();
    }

    /// Forgets what was received of an incomplete message, since its owner is lost.
    pub fn restart(&mut self) {
        self.filled = self.ready;
        self.want = 0;
    }

    /// Makes complete messages ready for the client.
    ///
    /// # Errors
    /// What the owner did wrong. The messages before are ready.
    pub fn process(&mut self, requests: &mut Requests) -> Result<(), Fault> {
        loop {
            let bytes = &self.buffer[self.ready..self.filled];
            let header = reply_header(bytes).map_err(|e| Fault::Protocol(e.to_string()))?;
            let Some((start, header)) = header else {
                self.want = CHUNK_HEADER.max(bytes.len() + 1);
                return Ok(());
            };
            if let ReplyHeader::Simple { cookie: DISMISSED, .. } = header {
                self.is_dismissed = true;
                self.drop_message(start);
                continue;
            }
            let cookie = match header {
                ReplyHeader::Simple { cookie, .. } | ReplyHeader::Chunk { cookie, .. } => cookie,
            };
            let Some(request) = requests.get(cookie) else {
                return violation("it answered a request that it does not have");
            };
            let len = start + payload_len(header, request, self.structured)?;
            let Some(message) = self.buffer[self.ready..self.filled].get_mut(..len) else {
                self.want = len;
                return Ok(());
            };
            let action = examine(header, message, request)?;
            message[COOKIE].copy_from_slice(&request.header.cookie.to_be_bytes());
            match action {
                Action::Relay => self.ready += len,
                Action::Drop => self.drop_message(len),
                Action::End => {
                    let last = none_chunk(request.header.cookie);
                    self.drop_message(len);
                    self.insert(&last);
                }
            }
            self.want = 0;
            let is_complete = !matches!(header, ReplyHeader::Chunk { is_last: false, .. });
            if is_complete && let Some(request) = requests.remove(cookie) {
                let end = self.total_sent + (self.ready - self.sent) as u64;
                self.leaving.push_back((end, request.cost()));
                self.completed += 1;
            }
        }
    }

    fn drop_message(&mut self, len: usize) {
        self.buffer.copy_within(self.ready + len..self.filled, self.ready);
        self.filled -= len;
    }
}

/// What is done with a complete message.
enum Action {
    Relay,
    /// The client has the contents already.
    Drop,
    /// The client has the contents already, and the reply ends here.
    End,
}

/// The length of what follows a header.
fn payload_len(header: ReplyHeader, request: &Request, structured: bool) -> Result<usize, Fault> {
    let is_read = request.header.kind == CMD_READ;
    let read = request.header.len as usize;
    if is_read && request.header.len > MAX_PAYLOAD && !is_error(header) {
        return violation("it answered a read that is too long");
    }
    match header {
        ReplyHeader::Simple { error: 0, .. } if is_read && structured => violation("a read has no data"),
        ReplyHeader::Simple { error: 0, .. } if is_read => Ok(read),
        ReplyHeader::Simple { .. } => Ok(0),
        ReplyHeader::Chunk { .. } if !structured => violation("structured replies were not negotiated"),
        ReplyHeader::Chunk { kind, is_last, len, .. } => {
            let len = len as usize;
            let header = DATA_CHUNK_HEADER - CHUNK_HEADER;
            let is_valid = match kind {
                CHUNK_NONE => len == 0 && is_last,
                CHUNK_OFFSET_DATA => is_read && len > header && len - header <= read,
                CHUNK_OFFSET_HOLE => is_read && len == HOLE_CHUNK - CHUNK_HEADER,
                CHUNK_BLOCK_STATUS => {
                    request.header.kind == CMD_BLOCK_STATUS && (12..=MAX_OTHER_REPLY).contains(&len)
                }
                CHUNK_ERROR => is_last && (6..=MAX_OTHER_REPLY).contains(&len),
                _ => false,
            };
            if is_valid { Ok(len) } else { violation("a chunk does not suit its request") }
        }
    }
}

/// Whether a header belongs to a failure.
fn is_error(header: ReplyHeader) -> bool {
    match header {
        ReplyHeader::Simple { error, .. } => error != 0,
        ReplyHeader::Chunk { kind, .. } => kind == CHUNK_ERROR,
    }
}

/// Examines a description of a range in one metadata context. A reply has one chunk for each context, so the
/// chunks that the client has are recorded by the id of their context.
fn examine_status(context: u32, is_last: bool, request: &mut Request) -> Result<Action, Fault> {
    if !matches!(context, BASE_ALLOCATION_ID | CHANGED_SINCE_ID) {
        return violation("the metadata context is unknown");
    }
    let chunk = (u64::from(context), 0);
    if request.relayed.contains(&chunk) {
        return match request.is_repeated {
            true => Ok(if is_last { Action::End } else { Action::Drop }),
            false => violation("a metadata context is described twice"),
        };
    }
    if !is_last {
        request.relayed.push(chunk);
    }
    Ok(Action::Relay)
}

/// Examines a complete message.
fn examine(header: ReplyHeader, message: &[u8], request: &mut Request) -> Result<Action, Fault> {
    let number = |at: usize| message[at..].first_chunk::<4>().map_or(0, |n| u32::from_be_bytes(*n));
    let (kind, is_last) = match header {
        ReplyHeader::Simple { error: SHUTDOWN, .. } => return Err(Fault::Stops),
        ReplyHeader::Simple { .. } => return Ok(Action::Relay),
        ReplyHeader::Chunk { kind, is_last, .. } => (kind, is_last),
    };
    let len = match kind {
        CHUNK_ERROR if number(CHUNK_HEADER) == SHUTDOWN => return Err(Fault::Stops),
        CHUNK_BLOCK_STATUS => return examine_status(number(CHUNK_HEADER), is_last, request),
        CHUNK_OFFSET_DATA => (message.len() - DATA_CHUNK_HEADER) as u32,
        CHUNK_OFFSET_HOLE => number(CHUNK_HEADER + 8),
        _ => return Ok(Action::Relay),
    };
    let offset = message[CHUNK_HEADER..].first_chunk().map_or(0, |n| u64::from_be_bytes(*n));
    let (start, end) =
        (request.header.offset, request.header.offset.saturating_add(request.header.len.into()));
    let end_of_chunk = offset.checked_add(len.into()).filter(|chunk_end| *chunk_end <= end);
    let Some(end_of_chunk) = end_of_chunk.filter(|_| offset >= start && len > 0) else {
        return violation("a chunk is outside of its read");
    };
    if request.is_repeated && !request.relayed.is_empty() {
        let overlaps = |(at, len): &(u64, u32)| *at < end_of_chunk && offset < *at + u64::from(*len);
        if request.relayed.contains(&(offset, len)) {
            return Ok(if is_last { Action::End } else { Action::Drop });
        }
        if request.relayed.iter().any(overlaps) {
            return Err(Fault::Torn);
        }
    }
    if !is_last {
        request.relayed.push((offset, len));
    }
    Ok(Action::Relay)
}
