//! An NBD client with random requests, which checks all that it receives: each request is answered once, each
//! read is answered as a whole, and sectors behave as registers.
//!
//! Also used by the tests of the front end, against a real pool.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_gateway::nbd::Presence;
use forebay_wire::nbd::*;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream};
use tokio::sync::Notify;

use super::random::Random;
use super::register::{Register, Span};

/// Length of a sector, which a write fills with one value, in bytes.
pub const SECTOR: u64 = 512;

/// Clients that give signs that they are connected, unless they are silent.
#[derive(Debug, Default)]
pub struct Signs {
    pub is_silent: AtomicBool,
    /// Whether signs were asked for, and still are.
    pub was_asked: AtomicBool,
    pub is_asked: AtomicBool,
}

impl Presence<DuplexStream> for Signs {
    fn ask(&self, _: &DuplexStream, is_asking: bool) {
        self.is_asked.store(is_asking, Relaxed);
        self.was_asked.fetch_or(is_asking, Relaxed);
    }

    fn last_sign(&self, _: &DuplexStream) -> Option<Duration> {
        Some(if self.is_silent.load(Relaxed) { Duration::MAX } else { Duration::ZERO })
    }
}

/// What a client does.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    pub seed: u64,
    pub export: &'static str,
    pub requests: usize,
    pub depth: usize,
    /// Sectors of the disk that the client uses.
    pub sectors: u64,
    /// Maximum length of a request in sectors.
    pub longest: u64,
    pub structured: bool,
}

/// What a client has seen.
#[derive(Debug, Default)]
pub struct Report {
    pub size: u64,
    pub flags: u16,
    /// Number of requests that were answered with an error.
    pub errors: usize,
    /// Why the history of a sector is not possible.
    pub violation: Option<String>,
}

/// A client that has greeted its server.
pub struct Client<S> {
    pub stream: S,
    pub structured: bool,
    pub contexts: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Client<S> {
    pub async fn greet(mut stream: S) -> Client<S> {
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).await.unwrap();
        assert_eq!(&greeting, b"NBDMAGICIHAVEOPT\x00\x03");
        stream.write_all(&3_u32.to_be_bytes()).await.unwrap();
        Client { stream, structured: false, contexts: false }
    }

    /// Sends an option. Returns the replies: type and data.
    pub async fn option(&mut self, number: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let mut message = Vec::new();
        option(&mut message, number, &[data]);
        self.stream.write_all(&message).await.unwrap();
        let mut replies = Vec::new();
        loop {
            let mut head = [0; 20];
            self.stream.read_exact(&mut head).await.unwrap();
            let len = u32::from_be_bytes(head[16..].try_into().unwrap()) as usize;
            let mut bytes = head.to_vec();
            bytes.resize(20 + len, 0);
            self.stream.read_exact(&mut bytes[20..]).await.unwrap();
            let (_, reply) = option_reply(&bytes).unwrap().unwrap();
            assert_eq!(reply.option, number);
            replies.push((reply.kind, reply.data.to_vec()));
            if reply.kind == REP_ACK || reply.kind & REP_FLAG_ERROR != 0 {
                return replies;
            }
        }
    }

    pub async fn set_structured(&mut self) {
        let replies = self.option(OPT_STRUCTURED_REPLY, &[]).await;
        assert_eq!(replies, [(REP_ACK, Vec::new())]);
        self.structured = true;
    }

    pub async fn set_context(&mut self, export: &str) {
        let replies = self.option(OPT_SET_META_CONTEXT, &meta_data(export, &[BASE_ALLOCATION])).await;
        assert_eq!(replies.len(), 2, "{replies:?}");
        assert_eq!(replies[0].1[..4], BASE_ALLOCATION_ID.to_be_bytes());
        self.contexts = true;
    }

    /// Opens an export. Returns its size and flags, or the negative reply.
    pub async fn go(&mut self, export: &str, info: &[u16]) -> Result<(u64, u16), (u32, String)> {
        let replies = self.option(OPT_GO, &info_data(export, info)).await;
        let (kind, text) = replies.last().unwrap();
        if *kind != REP_ACK {
            return Err((*kind, String::from_utf8_lossy(text).into_owned()));
        }
        for (_, data) in &replies[..replies.len() - 1] {
            assert_ne!(data[..2], INFO_RELAY.to_be_bytes(), "what is for nodes only must not be relayed");
        }
        let export = replies.iter().find(|(kind, data)| *kind == REP_INFO && data[..2] == [0, 0]);
        let data = &export.unwrap().1;
        Ok((
            u64::from_be_bytes(data[2..10].try_into().unwrap()),
            u16::from_be_bytes(data[10..12].try_into().unwrap()),
        ))
    }

    /// Opens an export with the option that has no negative reply.
    pub async fn export_name(&mut self, export: &str) -> std::io::Result<(u64, u16)> {
        let mut message = Vec::new();
        option(&mut message, OPT_EXPORT_NAME, &[export.as_bytes()]);
        self.stream.write_all(&message).await?;
        let mut reply = [0; 10];
        self.stream.read_exact(&mut reply).await?;
        Ok((
            u64::from_be_bytes(reply[..8].try_into().unwrap()),
            u16::from_be_bytes(reply[8..].try_into().unwrap()),
        ))
    }

    /// Sends one request, and receives the whole reply: error and data.
    pub async fn request(&mut self, kind: u16, offset: u64, len: u32, payload: &[u8]) -> (u32, Vec<u8>) {
        let message = request_bytes(0, kind, 99, offset, len);
        self.stream.write_all(&message).await.unwrap();
        self.stream.write_all(payload).await.unwrap();
        let mut data = Vec::new();
        loop {
            let (cookie, part, is_last) =
                reply_part(&mut self.stream, self.structured, |_| (kind, offset, len)).await.unwrap();
            assert_eq!(cookie, 99);
            match part {
                Part::Error(error) => return (error, data),
                Part::Data(_, bytes) => data.extend(bytes),
                Part::Status(extents) => data.extend(extents.iter().flat_map(|(len, _)| len.to_be_bytes())),
                Part::Nothing => {}
            }
            if is_last {
                return (0, data);
            }
        }
    }
}

pub fn info_data(export: &str, info: &[u16]) -> Vec<u8> {
    let mut data = (export.len() as u32).to_be_bytes().to_vec();
    data.extend(export.as_bytes());
    data.extend((info.len() as u16).to_be_bytes());
    info.iter().for_each(|kind| data.extend(kind.to_be_bytes()));
    data
}

pub fn meta_data(export: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = (export.len() as u32).to_be_bytes().to_vec();
    data.extend(export.as_bytes());
    data.extend((queries.len() as u32).to_be_bytes());
    for query in queries {
        data.extend((query.len() as u32).to_be_bytes());
        data.extend(query.as_bytes());
    }
    data
}

pub fn request_bytes(flags: u16, kind: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes
}

/// A part of a reply.
#[derive(Debug)]
pub enum Part {
    Nothing,
    /// Data of a read, and its offset.
    Data(u64, Vec<u8>),
    Status(Vec<(u32, u32)>),
    Error(u32),
}

/// Receives a simple reply or a chunk: cookie, contents, and whether it is the last of its reply. `known`
/// returns kind, offset and length of the request.
pub async fn reply_part<S: AsyncRead + Unpin>(
    stream: &mut S,
    structured: bool,
    known: impl FnOnce(u64) -> (u16, u64, u32),
) -> std::io::Result<(u64, Part, bool)> {
    let mut head = vec![0; SIMPLE_REPLY];
    stream.read_exact(&mut head).await?;
    if head[..4] == CHUNK_MAGIC.to_be_bytes() {
        head.resize(CHUNK_HEADER, 0);
        stream.read_exact(&mut head[SIMPLE_REPLY..]).await?;
    }
    let (_, header) = reply_header(&head).unwrap().unwrap();
    let (cookie, kind, is_last, len) = match header {
        ReplyHeader::Simple { cookie, error } => {
            let (kind, offset, len) = known(cookie);
            let part = match (kind, error) {
                (_, 1..) => Part::Error(error),
                (CMD_READ, 0) => {
                    assert!(!structured, "a simple reply to a read");
                    let mut data = vec![0; len as usize];
                    stream.read_exact(&mut data).await?;
                    Part::Data(offset, data)
                }
                _ => Part::Nothing,
            };
            return Ok((cookie, part, true));
        }
        ReplyHeader::Chunk { cookie, kind, is_last, len } => (cookie, kind, is_last, len),
    };
    assert!(structured);
    let mut payload = vec![0; len as usize];
    stream.read_exact(&mut payload).await?;
    let number = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
    let part = match kind {
        CHUNK_NONE => Part::Nothing,
        CHUNK_OFFSET_DATA => {
            Part::Data(u64::from_be_bytes(payload[..8].try_into().unwrap()), payload[8..].to_vec())
        }
        CHUNK_OFFSET_HOLE => {
            let offset = u64::from_be_bytes(payload[..8].try_into().unwrap());
            Part::Data(offset, vec![0; number(8) as usize])
        }
        CHUNK_BLOCK_STATUS => {
            Part::Status((4..payload.len()).step_by(8).map(|at| (number(at), number(at + 4))).collect())
        }
        CHUNK_ERROR => Part::Error(number(0)),
        other => panic!("chunk of type {other}"),
    };
    Ok((cookie, part, is_last))
}

/// A request of the client.
#[derive(Debug)]
struct Sent {
    kind: u16,
    offset: u64,
    len: u32,
    start: u64,
    value: u64,
    data: Vec<u8>,
    /// Which sectors of a read were received.
    received: Vec<bool>,
}

#[derive(Default)]
struct State {
    clock: u64,
    open: HashMap<u64, Sent>,
    registers: HashMap<u64, Register>,
    answered: usize,
    errors: usize,
}

impl State {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}

/// Negotiates in a random order of options, sends all requests of a plan, and disconnects.
pub async fn drive<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(stream: S, plan: Plan) -> Report {
    let mut random = Random(plan.seed);
    let mut client = Client::greet(stream).await;
    if random.once_in(2) {
        let listed = client.option(OPT_LIST, &[]).await;
        assert_eq!(listed.last().unwrap().0, REP_ACK);
    }
    if random.once_in(2) {
        client.option(OPT_INFO, &info_data(plan.export, &[INFO_BLOCK_SIZE])).await;
    }
    if plan.structured {
        client.set_structured().await;
        if random.once_in(2) {
            client.set_context(plan.export).await;
        }
    }
    let (size, flags) = match random.once_in(3) {
        true => client.export_name(plan.export).await.unwrap(),
        false => client.go(plan.export, &[INFO_NAME]).await.unwrap(),
    };
    let (contexts, structured) = (client.contexts, client.structured);
    let (mut input, mut output) = tokio::io::split(client.stream);
    let state = Arc::new(Mutex::new(State::default()));
    let room = Arc::new(Notify::new());
    let (received, freed) = (state.clone(), room.clone());
    let receiver = tokio::spawn(async move {
        loop {
            let known = |cookie| {
                let state = received.lock().unwrap();
                let sent = state.open.get(&cookie).unwrap_or_else(|| panic!("no request {cookie}"));
                (sent.kind, sent.offset, sent.len)
            };
            match reply_part(&mut input, structured, known).await {
                Ok((cookie, part, is_last)) => answer(&mut received.lock().unwrap(), cookie, part, is_last),
                Err(e) => return e,
            }
            freed.notify_one();
        }
    });
    for number in 1..=plan.requests as u64 {
        while state.lock().unwrap().open.len() >= plan.depth {
            assert!(!receiver.is_finished(), "the connection has ended");
            tokio::select! {
                () = room.notified() => {}
                () = tokio::time::sleep(std::time::Duration::from_millis(100)) => {}
            }
        }
        let message = new_request(&mut random, &plan, number, contexts, &mut state.lock().unwrap());
        output.write_all(&message).await.unwrap();
        if random.once_in(8) {
            tokio::time::sleep(std::time::Duration::from_millis(random.below(3))).await;
        }
    }
    output.write_all(&request_bytes(0, CMD_DISC, 0, 0, 0)).await.unwrap();
    let end = tokio::time::timeout(std::time::Duration::from_secs(120), receiver)
        .await
        .expect("a reply is missing");
    assert_eq!(end.unwrap().kind(), std::io::ErrorKind::UnexpectedEof);
    let state = std::mem::take(&mut *state.lock().unwrap());
    assert!(state.open.is_empty(), "requests are not answered: {:?}", state.open.values().next());
    assert_eq!(state.answered, plan.requests);
    let violation = state
        .registers
        .iter()
        .find_map(|(sector, register)| register.violation().map(|why| format!("sector {sector}: {why}")));
    Report { size, flags, errors: state.errors, violation }
}

fn new_request(random: &mut Random, plan: &Plan, number: u64, contexts: bool, state: &mut State) -> Vec<u8> {
    let sectors = 1 + random.below(plan.longest);
    let first = random.below(plan.sectors - sectors + 1);
    let (offset, len) = (first * SECTOR, (sectors * SECTOR) as u32);
    let kind = match random.below(20) {
        0..9 => CMD_WRITE,
        9..17 => CMD_READ,
        17 => CMD_FLUSH,
        18 => CMD_CACHE,
        _ if contexts => CMD_BLOCK_STATUS,
        _ => CMD_FLUSH,
    };
    let (offset, len) = if kind == CMD_FLUSH { (0, 0) } else { (offset, len) };
    let start = state.tick();
    let data = if kind == CMD_READ { vec![0xee; len as usize] } else { Vec::new() };
    let received = vec![false; if kind == CMD_READ { sectors as usize } else { 0 }];
    state.open.insert(number, Sent { kind, offset, len, start, value: number, data, received });
    let mut message = request_bytes(0, kind, number, offset, len);
    if kind == CMD_WRITE {
        message.extend(number.to_be_bytes().repeat(len as usize / 8));
    }
    message
}

fn answer(state: &mut State, cookie: u64, part: Part, is_last: bool) {
    let sent = state.open.get_mut(&cookie).unwrap();
    match part {
        Part::Data(offset, bytes) => {
            assert!(offset.is_multiple_of(SECTOR) && (bytes.len() as u64).is_multiple_of(SECTOR));
            let at = (offset - sent.offset) as usize;
            sent.data[at..at + bytes.len()].copy_from_slice(&bytes);
            for sector in at / SECTOR as usize..(at + bytes.len()) / SECTOR as usize {
                assert!(!std::mem::replace(&mut sent.received[sector], true), "data was received twice");
            }
        }
        Part::Status(extents) => assert!(!extents.is_empty() && sent.kind == CMD_BLOCK_STATUS),
        Part::Error(_) => {
            state.errors += 1;
            state.open.remove(&cookie);
            state.answered += 1;
            return;
        }
        Part::Nothing => {}
    }
    if !is_last {
        return;
    }
    let end = state.tick();
    let sent = state.open.remove(&cookie).unwrap();
    state.answered += 1;
    let span = Span { start: sent.start, end };
    assert!(sent.received.iter().all(|received| *received), "data is missing");
    let first = sent.offset / SECTOR;
    for sector in 0..u64::from(sent.len) / SECTOR {
        let register = || first + sector;
        match sent.kind {
            CMD_WRITE => state.registers.entry(register()).or_default().write(sent.value, span),
            CMD_READ => {
                let data = &sent.data[(sector * SECTOR) as usize..][..SECTOR as usize];
                let value = u64::from_be_bytes(data[..8].try_into().unwrap());
                assert!(data.chunks(8).all(|word| word == &data[..8]), "a sector is torn");
                state.registers.entry(register()).or_default().read(value, span);
            }
            _ => {}
        }
    }
}
