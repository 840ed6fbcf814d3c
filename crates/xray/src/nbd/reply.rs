//! The parser of the reply stream. It produces the same data however the stream is split into reads, and
//! passes payload without a copy, so that a generator that ignores data never copies it.

use super::NbdError;

const SIMPLE_MAGIC: u32 = 0x6744_6698;
const STRUCTURED_MAGIC: u32 = 0x668e_33ef;
const FLAG_DONE: u16 = 1;
const NONE: u16 = 0;
const OFFSET_DATA: u16 = 1;
const OFFSET_HOLE: u16 = 2;
const ERROR_BIT: u16 = 1 << 15;

const SIMPLE_LEN: usize = 16;
const STRUCTURED_LEN: usize = 20;
/// A structured header and the longest fixed part after it (a hole's offset and length).
const STAGE_LEN: usize = STRUCTURED_LEN + 12;

/// A piece of a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chunk<'a> {
    /// A chunk with data of a read.
    Data {
        /// The request's cookie.
        cookie: u64,
        /// Position on the disk.
        offset: u64,
        /// The payload, or a part of it.
        bytes: &'a [u8],
    },
    /// A range that reads as zeroes.
    Hole {
        /// The request's cookie.
        cookie: u64,
        /// Position on the disk.
        offset: u64,
        /// Length in bytes.
        len: u32,
    },
    /// The request failed; `Done` follows.
    Error {
        /// The request's cookie.
        cookie: u64,
        /// NBD error number.
        code: u32,
    },
    /// The reply is complete.
    Done {
        /// The request's cookie.
        cookie: u64,
    },
}

/// The receiver of chunks.
pub trait Sink {
    /// Position and length of the payload that follows a simple reply without error: those of the read, or
    /// (0, 0) if the request is not a read. `None` if no request with this cookie is in progress.
    fn simple_payload(&self, cookie: u64) -> Option<(u64, u32)>;
    /// Handles one chunk.
    fn chunk(&mut self, chunk: Chunk<'_>) -> Result<(), NbdError>;
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// Collecting a header until the stage holds this many bytes.
    Head(usize),
    /// Payload of `left` bytes.
    Payload { cookie: u64, offset: u64, left: u32, done: bool },
    /// The message of an error chunk is skipped.
    Skip { cookie: u64, left: u32, done: bool },
}

/// The parser's state between two reads of the socket.
#[derive(Debug)]
pub struct Parser {
    stage: [u8; STAGE_LEN],
    staged: usize,
    state: State,
}

impl Default for Parser {
    fn default() -> Self {
        Parser { stage: [0; STAGE_LEN], staged: 0, state: State::Head(4) }
    }
}

impl Parser {
    /// Parses all of `input`.
    pub fn feed(&mut self, mut input: &[u8], sink: &mut impl Sink) -> Result<(), NbdError> {
        loop {
            match self.state {
                State::Head(need) => {
                    let n = (need - self.staged).min(input.len());
                    self.stage[self.staged..self.staged + n].copy_from_slice(&input[..n]);
                    self.staged += n;
                    input = &input[n..];
                    if self.staged < need {
                        return Ok(());
                    }
                    self.head(sink)?;
                }
                State::Payload { cookie, offset, left, done } => {
                    let n = (left as usize).min(input.len());
                    if n > 0 {
                        sink.chunk(Chunk::Data { cookie, offset, bytes: &input[..n] })?;
                    }
                    input = &input[n..];
                    let left = left - n as u32;
                    if left > 0 {
                        self.state = State::Payload { cookie, offset: offset + n as u64, left, done };
                        return Ok(());
                    }
                    self.end(sink, cookie, done)?;
                }
                State::Skip { cookie, left, done } => {
                    let n = (left as usize).min(input.len());
                    input = &input[n..];
                    let left = left - n as u32;
                    if left > 0 {
                        self.state = State::Skip { cookie, left, done };
                        return Ok(());
                    }
                    self.end(sink, cookie, done)?;
                }
            }
            if input.is_empty() {
                return Ok(());
            }
        }
    }

    /// Handles the bytes staged so far: requests more bytes, or passes a chunk on.
    fn head(&mut self, sink: &mut impl Sink) -> Result<(), NbdError> {
        match (self.u32_at(0), self.staged) {
            (SIMPLE_MAGIC, 4) => self.state = State::Head(SIMPLE_LEN),
            (STRUCTURED_MAGIC, 4) => self.state = State::Head(STRUCTURED_LEN),
            (SIMPLE_MAGIC, _) => self.simple(sink)?,
            (STRUCTURED_MAGIC, STRUCTURED_LEN) => self.structured_header(sink)?,
            (STRUCTURED_MAGIC, _) => self.structured_body(sink)?,
            _ => return Err(NbdError::Protocol("a reply with the wrong magic")),
        }
        Ok(())
    }

    fn simple(&mut self, sink: &mut impl Sink) -> Result<(), NbdError> {
        let (error, cookie) = (self.u32_at(4), self.u64_at(8));
        let (offset, len) = sink.simple_payload(cookie).ok_or(NbdError::Protocol("a reply to no request"))?;
        if error != 0 {
            sink.chunk(Chunk::Error { cookie, code: error })?;
            return self.end(sink, cookie, true);
        }
        self.state = State::Payload { cookie, offset, left: len, done: true };
        if len == 0 { self.end(sink, cookie, true) } else { Ok(()) }
    }

    fn structured_header(&mut self, sink: &mut impl Sink) -> Result<(), NbdError> {
        let (kind, len) = (self.u16_at(6), self.u32_at(16));
        let fixed = match kind {
            NONE if len == 0 => return self.end(sink, self.u64_at(8), self.done_flag()),
            OFFSET_DATA if len > 8 => 8,
            OFFSET_HOLE if len == 12 => 12,
            kind if kind & ERROR_BIT != 0 && len >= 6 => 6,
            _ => return Err(NbdError::Protocol("a structured reply of unknown type or length")),
        };
        self.state = State::Head(STRUCTURED_LEN + fixed);
        Ok(())
    }

    fn structured_body(&mut self, sink: &mut impl Sink) -> Result<(), NbdError> {
        let (kind, cookie, len, done) = (self.u16_at(6), self.u64_at(8), self.u32_at(16), self.done_flag());
        match kind {
            OFFSET_DATA => {
                let offset = self.u64_at(STRUCTURED_LEN);
                self.state = State::Payload { cookie, offset, left: len - 8, done };
                self.staged = 0;
                Ok(())
            }
            OFFSET_HOLE => {
                let (offset, len) = (self.u64_at(STRUCTURED_LEN), self.u32_at(STRUCTURED_LEN + 8));
                sink.chunk(Chunk::Hole { cookie, offset, len })?;
                self.end(sink, cookie, done)
            }
            _ => {
                sink.chunk(Chunk::Error { cookie, code: self.u32_at(STRUCTURED_LEN) })?;
                self.state = State::Skip { cookie, left: len - 6, done };
                self.staged = 0;
                if len == 6 { self.end(sink, cookie, done) } else { Ok(()) }
            }
        }
    }

    fn end(&mut self, sink: &mut impl Sink, cookie: u64, done: bool) -> Result<(), NbdError> {
        self.state = State::Head(4);
        self.staged = 0;
        if done { sink.chunk(Chunk::Done { cookie }) } else { Ok(()) }
    }

    fn done_flag(&self) -> bool {
        self.u16_at(4) & FLAG_DONE != 0
    }
    fn u16_at(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.stage[at], self.stage[at + 1]])
    }
    fn u32_at(&self, at: usize) -> u32 {
        u32::from(self.u16_at(at)) << 16 | u32::from(self.u16_at(at + 2))
    }
    fn u64_at(&self, at: usize) -> u64 {
        u64::from(self.u32_at(at)) << 32 | u64::from(self.u32_at(at + 4))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records chunks with adjacent data joined, so that differently split streams compare equal.
    #[derive(Default, PartialEq, Debug)]
    struct Seen(Vec<(u64, &'static str, u64, Vec<u8>)>);

    impl Sink for Seen {
        fn simple_payload(&self, cookie: u64) -> Option<(u64, u32)> {
            [(1, (4096, 5)), (2, (0, 0))].into_iter().find(|(c, _)| *c == cookie).map(|(_, p)| p)
        }
        fn chunk(&mut self, chunk: Chunk<'_>) -> Result<(), NbdError> {
            match chunk {
                Chunk::Data { cookie, offset, bytes } => match self.0.last_mut() {
                    Some((c, "data", o, b)) if *c == cookie && *o + b.len() as u64 == offset => {
                        b.extend_from_slice(bytes);
                    }
                    _ => self.0.push((cookie, "data", offset, bytes.to_vec())),
                },
                Chunk::Hole { cookie, offset, len } => self.0.push((cookie, "hole", offset, vec![len as u8])),
                Chunk::Error { cookie, code } => self.0.push((cookie, "error", u64::from(code), vec![])),
                Chunk::Done { cookie } => self.0.push((cookie, "done", 0, vec![])),
            }
            Ok(())
        }
    }

    fn simple(error: u32, cookie: u64, data: &[u8]) -> Vec<u8> {
        [&SIMPLE_MAGIC.to_be_bytes()[..], &error.to_be_bytes(), &cookie.to_be_bytes(), data].concat()
    }

    fn structured(flags: u16, kind: u16, cookie: u64, parts: &[&[u8]]) -> Vec<u8> {
        let body = parts.concat();
        let mut m = STRUCTURED_MAGIC.to_be_bytes().to_vec();
        m.extend_from_slice(&flags.to_be_bytes());
        m.extend_from_slice(&kind.to_be_bytes());
        m.extend_from_slice(&cookie.to_be_bytes());
        m.extend_from_slice(&(body.len() as u32).to_be_bytes());
        m.extend_from_slice(&body);
        m
    }

    #[test]
    fn every_split_of_the_stream_gives_the_same_chunks() {
        let stream = [
            simple(0, 1, b"hello"),
            simple(0, 2, b""),
            simple(5, 1, b""),
            structured(0, OFFSET_DATA, 9, &[&8192u64.to_be_bytes(), b"data"]),
            structured(0, OFFSET_HOLE, 9, &[&8196u64.to_be_bytes(), &7u32.to_be_bytes()]),
            structured(FLAG_DONE, NONE, 9, &[]),
            structured(FLAG_DONE, ERROR_BIT | 1, 3, &[&28u32.to_be_bytes(), &4u16.to_be_bytes(), b"full"]),
            structured(FLAG_DONE, ERROR_BIT | 1, 4, &[&5u32.to_be_bytes(), &0u16.to_be_bytes()]),
        ]
        .concat();
        let mut whole = Seen::default();
        Parser::default().feed(&stream, &mut whole).expect("parses");
        let kinds: Vec<_> = whole.0.iter().map(|(c, k, o, _)| (*c, *k, *o)).collect();
        assert_eq!(
            kinds,
            [
                (1, "data", 4096),
                (1, "done", 0),
                (2, "done", 0),
                (1, "error", 5),
                (1, "done", 0),
                (9, "data", 8192),
                (9, "hole", 8196),
                (9, "done", 0),
                (3, "error", 28),
                (3, "done", 0),
                (4, "error", 5),
                (4, "done", 0),
            ]
        );
        for step in 1..stream.len() {
            let (mut parser, mut seen) = (Parser::default(), Seen::default());
            for part in stream.chunks(step) {
                parser.feed(part, &mut seen).expect("parses");
            }
            assert_eq!(seen, whole, "cut into pieces of {step}");
        }
    }

    #[test]
    fn protocol_violations_are_errors() {
        for bad in [
            vec![0; 16],
            simple(0, 77, b""),
            structured(FLAG_DONE, NONE, 1, &[b"x"]),
            structured(FLAG_DONE, OFFSET_DATA, 1, &[b"short"]),
            structured(FLAG_DONE, 99, 1, &[b"xxxxxxxx"]),
        ] {
            assert!(Parser::default().feed(&bad, &mut Seen::default()).is_err(), "{bad:?}");
        }
    }
}
