//! A raw client: sends the given bytes, well formed or not, and parses the replies.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use forebay_wire::nbd::*;

/// Time limit for an answer of the server.
const PATIENCE: Duration = Duration::from_secs(30);

pub trait Socket: Read + Write {}
impl<T: Read + Write> Socket for T {}

pub struct Client {
    pub socket: Box<dyn Socket>,
    pub structured: bool,
}

/// A reply of the transmission phase, assembled from its chunks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    pub cookie: u64,
    pub error: u32,
    pub text: String,
    pub data: Vec<u8>,
    /// Types of its chunks; empty for a simple reply.
    pub chunks: Vec<u16>,
    /// Block descriptors of `base:allocation`.
    pub extents: Vec<(u32, u32)>,
    /// Block descriptors of `forebay:changed-since=…`.
    pub changes: Vec<(u32, u32)>,
}

/// An option reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptionReply {
    pub kind: u32,
    pub data: Vec<u8>,
}

impl OptionReply {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.data).into_owned()
    }
}

impl Client {
    pub fn over(socket: impl Socket + 'static) -> Client {
        Client { socket: Box::new(socket), structured: false }
    }

    pub fn unix(path: &Path) -> Client {
        let socket = UnixStream::connect(path).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Client::over(socket)
    }

    pub fn tcp(addr: &str) -> Client {
        let socket = TcpStream::connect(addr).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Client::over(socket)
    }

    /// A client that has exchanged the handshake flags.
    pub fn greeted(path: &Path) -> Client {
        let mut client = Client::unix(path);
        client.greet();
        client
    }

    /// A client in the transmission phase on `export`, with structured replies and block status.
    pub fn open(path: &Path, export: &str) -> Client {
        let mut client = Client::greeted(path);
        client.set_up();
        client.go(export).unwrap();
        client
    }

    /// A client in the transmission phase on `export`, with simple replies.
    pub fn open_simple(path: &Path, export: &str) -> Client {
        let mut client = Client::greeted(path);
        client.go(export).unwrap();
        client
    }

    pub fn greet(&mut self) {
        assert_eq!(self.read(18), b"NBDMAGICIHAVEOPT\x00\x03");
        self.send(&3u32.to_be_bytes());
    }

    /// Negotiates structured replies.
    pub fn set_up(&mut self) {
        self.option(OPT_STRUCTURED_REPLY, b"");
        assert_eq!(self.option_reply(OPT_STRUCTURED_REPLY).kind, REP_ACK);
        self.structured = true;
    }

    /// Lists or selects metadata contexts; returns their names.
    pub fn contexts(&mut self, option: u32, export: &str, queries: &[&str]) -> Vec<String> {
        self.option(option, &meta(export, queries));
        let mut names = Vec::new();
        loop {
            let reply = self.option_reply(option);
            match reply.kind {
                REP_META_CONTEXT => names.push(String::from_utf8_lossy(&reply.data[4..]).into_owned()),
                REP_ACK => return names,
                _ => panic!("{reply:?}"),
            }
        }
    }

    /// Opens an export with the metadata contexts that were selected last.
    pub fn go_as_selected(&mut self, export: &str) {
        self.option(OPT_GO, &info(export, &[]));
        while self.option_reply(OPT_GO).kind != REP_ACK {}
    }

    pub fn go(&mut self, export: &str) -> Result<(u64, u16), OptionReply> {
        if self.structured {
            self.option(OPT_SET_META_CONTEXT, &meta(export, &[BASE_ALLOCATION]));
            if self.option_reply(OPT_SET_META_CONTEXT).kind == REP_META_CONTEXT {
                self.option_reply(OPT_SET_META_CONTEXT);
            }
        }
        self.option(OPT_GO, &info(export, &[INFO_BLOCK_SIZE]));
        let mut found = (0, 0);
        loop {
            let reply = self.option_reply(OPT_GO);
            match (reply.kind, reply.data.first_chunk::<2>()) {
                (REP_ACK, _) => return Ok(found),
                (REP_INFO, Some([0, 0])) => {
                    let size = u64::from_be_bytes(reply.data[2..10].try_into().unwrap());
                    found = (size, u16::from_be_bytes(reply.data[10..12].try_into().unwrap()));
                }
                (REP_INFO, _) => {}
                _ => return Err(reply),
            }
        }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
        self.socket.flush().unwrap();
    }

    pub fn read(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.socket.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn read_u32(&mut self) -> u32 {
        u32::from_be_bytes(self.read(4).try_into().unwrap())
    }

    fn read_u64(&mut self) -> u64 {
        u64::from_be_bytes(self.read(8).try_into().unwrap())
    }

    /// Asserts that the server closes the connection without sending another byte.
    pub fn assert_closed(&mut self) {
        let mut byte = [0];
        match self.socket.read(&mut byte) {
            Ok(0) => {}
            Err(e) if matches!(e.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe) => {}
            other => panic!("the connection is still open: {other:?}, {byte:?}"),
        }
    }

    pub fn option(&mut self, number: u32, data: &[u8]) {
        self.send(&option(number, data));
    }

    pub fn option_reply(&mut self, number: u32) -> OptionReply {
        assert_eq!(self.read_u64(), OPTION_REPLY_MAGIC);
        assert_eq!(self.read_u32(), number);
        let kind = self.read_u32();
        let len = self.read_u32();
        OptionReply { kind, data: self.read(len as usize) }
    }

    /// Sends a request without data.
    pub fn request(&mut self, flags: u16, kind: u16, cookie: u64, offset: u64, len: u32) {
        self.send(&request(flags, kind, cookie, offset, len));
    }

    pub fn write(&mut self, flags: u16, cookie: u64, offset: u64, data: &[u8]) {
        self.send(&request(flags, CMD_WRITE, cookie, offset, data.len() as u32));
        self.send(data);
    }

    /// Reads a complete reply; `read_len` is the length of the data in a successful simple reply. Fails if
    /// chunks of other replies are interleaved.
    pub fn reply(&mut self, read_len: usize) -> Reply {
        let mut reply = Reply {
            cookie: 0,
            error: 0,
            text: String::new(),
            data: vec![0xee; read_len],
            chunks: Vec::new(),
            extents: Vec::new(),
            changes: Vec::new(),
        };
        let mut first_offset = None;
        loop {
            let magic = self.read_u32();
            if magic == SIMPLE_REPLY_MAGIC {
                reply.error = self.read_u32();
                reply.cookie = self.read_u64();
                reply.data =
                    if reply.error == 0 && !self.structured { self.read(read_len) } else { Vec::new() };
                return reply;
            }
            assert_eq!(magic, CHUNK_MAGIC);
            assert!(self.structured);
            let head = self.read(4);
            let cookie = self.read_u64();
            assert!(reply.chunks.is_empty() || reply.cookie == cookie, "replies are mixed");
            reply.cookie = cookie;
            let (done, kind) = (head[1] & 1 != 0, u16::from_be_bytes([head[2], head[3]]));
            reply.chunks.push(kind);
            let len = self.read_u32() as usize;
            let payload = self.read(len);
            let number = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
            match kind {
                CHUNK_NONE => reply.data.clear(),
                CHUNK_OFFSET_DATA | CHUNK_OFFSET_HOLE => {
                    let offset = u64::from_be_bytes(payload[..8].try_into().unwrap());
                    let at = (offset - *first_offset.get_or_insert(offset)) as usize;
                    if kind == CHUNK_OFFSET_DATA {
                        reply.data[at..at + len - 8].copy_from_slice(&payload[8..]);
                    } else {
                        reply.data[at..at + number(8) as usize].fill(0);
                    }
                }
                CHUNK_BLOCK_STATUS => {
                    let runs = (4..len).step_by(8).map(|at| (number(at), number(at + 4))).collect();
                    match number(0) {
                        BASE_ALLOCATION_ID => reply.extents = runs,
                        CHANGED_SINCE_ID => reply.changes = runs,
                        other => panic!("context {other}"),
                    }
                }
                CHUNK_ERROR => {
                    reply.error = number(0);
                    reply.text = String::from_utf8(payload[6..].to_vec()).unwrap();
                }
                other => panic!("chunk of type {other}"),
            }
            if done {
                return reply;
            }
        }
    }

    /// Reads one chunk: cookie, type, whether it is the last one of its reply, payload.
    pub fn chunk(&mut self) -> (u64, u16, bool, Vec<u8>) {
        assert_eq!(self.read_u32(), CHUNK_MAGIC);
        let head = self.read(4);
        let cookie = self.read_u64();
        let len = self.read_u32();
        (cookie, u16::from_be_bytes([head[2], head[3]]), head[1] & 1 != 0, self.read(len as usize))
    }

    /// Sends a request without data, and waits for the reply.
    pub fn ask(&mut self, flags: u16, kind: u16, offset: u64, len: u32) -> Reply {
        self.request(flags, kind, 42, offset, len);
        let answered = kind == CMD_READ && len <= MAX_PAYLOAD;
        let reply = self.reply(if answered { len as usize } else { 0 });
        assert_eq!(reply.cookie, 42);
        reply
    }

    /// Sends a write, and waits for the reply.
    pub fn put(&mut self, flags: u16, offset: u64, data: &[u8]) -> Reply {
        self.write(flags, 43, offset, data);
        let reply = self.reply(0);
        assert_eq!(reply.cookie, 43);
        reply
    }

    /// Asserts that the connection is served.
    pub fn assert_alive(&mut self) {
        let reply = self.ask(0, CMD_READ, 0, 512);
        assert_eq!((reply.error, reply.data.len()), (0, 512));
    }
}

pub fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend(number.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

pub fn info(name: &str, wants: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend((wants.len() as u16).to_be_bytes());
    wants.iter().for_each(|w| data.extend(w.to_be_bytes()));
    data
}

pub fn meta(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name.as_bytes());
    data.extend((queries.len() as u32).to_be_bytes());
    for q in queries {
        data.extend((q.len() as u32).to_be_bytes());
        data.extend(q.as_bytes());
    }
    data
}

pub fn request(flags: u16, kind: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes
}
