//! Fixed newstyle negotiation: structured replies if requested and offered, then GO.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::{NbdError, Target};

const OPTION_MAGIC: u64 = 0x4948_4156_454F_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const OPT_GO: u32 = 7;
const OPT_STRUCTURED_REPLY: u32 = 8;
const REP_ACK: u32 = 1;
const REP_INFO: u32 = 3;
const REP_ERROR_BIT: u32 = 1 << 31;
const INFO_EXPORT: u16 = 0;
/// Maximum length of an option reply that is accepted.
const OPTION_REPLY_MAX: u32 = 64 << 10;

/// Properties of the export, as reported by the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Export {
    /// Size of the export in bytes.
    pub size: u64,
    /// Transmission flags of the export.
    pub flags: u16,
}

impl Export {
    /// Whether the export is read-only (NBD_FLAG_READ_ONLY).
    pub fn read_only(&self) -> bool {
        self.flags & 1 << 1 != 0
    }
    /// Whether the export supports flushes (NBD_FLAG_SEND_FLUSH).
    pub fn flushes(&self) -> bool {
        self.flags & 1 << 2 != 0
    }
    /// Whether the export supports durable writes (NBD_FLAG_SEND_FUA).
    pub fn durable_writes(&self) -> bool {
        self.flags & 1 << 3 != 0
    }
}

/// A connection in its transmission phase.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    /// The export that the connection uses.
    pub export: Export,
    /// Whether replies to reads are structured.
    pub structured: bool,
}

impl AsRawFd for Connection {
    fn as_raw_fd(&self) -> RawFd {
        match &self.stream {
            Stream::Unix(s) => s.as_raw_fd(),
            Stream::Tcp(s) => s.as_raw_fd(),
        }
    }
}

impl Read for Connection {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.stream.read(buf)
    }
}

impl Write for Connection {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.stream.write(buf)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[derive(Debug)]
enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(s) => s.read(buf),
            Stream::Tcp(s) => s.read(buf),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Unix(s) => s.write(buf),
            Stream::Tcp(s) => s.write(buf),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Connects and negotiates `name`. With `structured`, requests structured replies; a server that does not
/// support them is used without. `timeout` bounds each wait for the server, now and later.
pub fn connect(
    target: &Target,
    name: &str,
    structured: bool,
    timeout: Duration,
) -> Result<Connection, NbdError> {
    let mut stream = match target {
        Target::Unix(path) => {
            let s = UnixStream::connect(path)?;
            s.set_read_timeout(Some(timeout))?;
            Stream::Unix(s)
        }
        Target::Tcp(address) => {
            let s = TcpStream::connect(address)?;
            s.set_nodelay(true)?;
            s.set_read_timeout(Some(timeout))?;
            Stream::Tcp(s)
        }
    };
    let (export, structured) = negotiate(&mut stream, name, structured)?;
    Ok(Connection { stream, export, structured })
}

fn negotiate<S: Read + Write>(s: &mut S, name: &str, structured: bool) -> Result<(Export, bool), NbdError> {
    let greeting: [u8; 18] = take(s)?;
    if &greeting[..8] != b"NBDMAGIC" || &greeting[8..16] != b"IHAVEOPT" {
        return Err(NbdError::Protocol("no greeting of a newstyle NBD server"));
    }
    // Both flags, "fixed newstyle" and "no zeroes", have the same value in either direction.
    let flags = u32::from(u16::from_be_bytes([greeting[16], greeting[17]]) & 3);
    if flags & 1 == 0 {
        return Err(NbdError::Protocol("no fixed newstyle negotiation"));
    }
    s.write_all(&flags.to_be_bytes())?;

    let structured = structured && {
        send_option(s, OPT_STRUCTURED_REPLY, &[])?;
        let (code, _) = option_reply(s, OPT_STRUCTURED_REPLY)?;
        code == REP_ACK
    };
    Ok((go(s, name)?, structured))
}

fn go<S: Read + Write>(s: &mut S, name: &str) -> Result<Export, NbdError> {
    let name_len =
        u32::try_from(name.len()).map_err(|_| NbdError::Protocol("the export name is too long"))?;
    let mut data = name_len.to_be_bytes().to_vec();
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&0u16.to_be_bytes());
    send_option(s, OPT_GO, &data)?;
    let mut export = None;
    loop {
        let (code, data) = option_reply(s, OPT_GO)?;
        match code {
            REP_INFO => {
                if data.len() == 12 && data[..2] == INFO_EXPORT.to_be_bytes() {
                    let mut size = [0; 8];
                    size.copy_from_slice(&data[2..10]);
                    let flags = u16::from_be_bytes([data[10], data[11]]);
                    export = Some(Export { size: u64::from_be_bytes(size), flags });
                }
            }
            REP_ACK => {
                return export.ok_or(NbdError::Protocol("GO acknowledged without the size"));
            }
            code if code & REP_ERROR_BIT != 0 => {
                return Err(NbdError::Refused { name: name.to_owned(), code });
            }
            _ => return Err(NbdError::Protocol("an unknown reply to GO")),
        }
    }
}

fn send_option<S: Write>(s: &mut S, option: u32, data: &[u8]) -> Result<(), NbdError> {
    let mut m = OPTION_MAGIC.to_be_bytes().to_vec();
    m.extend_from_slice(&option.to_be_bytes());
    m.extend_from_slice(&(data.len() as u32).to_be_bytes());
    m.extend_from_slice(data);
    Ok(s.write_all(&m)?)
}

fn option_reply<S: Read>(s: &mut S, option: u32) -> Result<(u32, Vec<u8>), NbdError> {
    if u64::from_be_bytes(take(s)?) != OPTION_REPLY_MAGIC {
        return Err(NbdError::Protocol("an option reply with the wrong magic"));
    }
    if u32::from_be_bytes(take(s)?) != option {
        return Err(NbdError::Protocol("a reply to an option that was not sent"));
    }
    let code = u32::from_be_bytes(take(s)?);
    let len = u32::from_be_bytes(take(s)?);
    if len > OPTION_REPLY_MAX {
        return Err(NbdError::Protocol("an option reply that is too long"));
    }
    let mut data = vec![0; len as usize];
    s.read_exact(&mut data)?;
    Ok((code, data))
}

fn take<const N: usize>(s: &mut impl Read) -> Result<[u8; N], NbdError> {
    let mut b = [0; N];
    s.read_exact(&mut b)?;
    Ok(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers from a script and records the requests.
    struct Script {
        input: io::Cursor<Vec<u8>>,
        sent: Vec<u8>,
    }
    impl Read for Script {
        fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
            self.input.read(buf)
        }
    }
    impl Write for Script {
        fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
            self.sent.extend_from_slice(buf);
            Ok(buf.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn script(parts: &[&[u8]]) -> Script {
        Script { input: io::Cursor::new(parts.concat()), sent: Vec::new() }
    }

    fn reply(option: u32, code: u32, data: &[u8]) -> Vec<u8> {
        let mut r = OPTION_REPLY_MAGIC.to_be_bytes().to_vec();
        r.extend_from_slice(&option.to_be_bytes());
        r.extend_from_slice(&code.to_be_bytes());
        r.extend_from_slice(&(data.len() as u32).to_be_bytes());
        r.extend_from_slice(data);
        r
    }

    const GREETING: &[u8] = b"NBDMAGICIHAVEOPT\x00\x03";

    #[test]
    fn a_server_without_structured_replies_is_used_without() {
        let info = [&[0u8, 0][..], &(1u64 << 20).to_be_bytes(), &[0, 5]].concat();
        let mut s = script(&[
            GREETING,
            &reply(OPT_STRUCTURED_REPLY, REP_ERROR_BIT | 1, b""),
            &reply(OPT_GO, REP_INFO, &info),
            &reply(OPT_GO, REP_ACK, b""),
        ]);
        let (export, structured) = negotiate(&mut s, "disk", true).expect("negotiates");
        assert_eq!(export, Export { size: 1 << 20, flags: 5 });
        assert!(!structured && export.flushes() && !export.read_only());
        assert_eq!(s.sent[..4], 3u32.to_be_bytes());
        assert!(s.sent.ends_with(b"disk\0\0"));
    }

    #[test]
    fn refusals_and_invalid_replies_are_errors() {
        let mut s = script(&[GREETING, &reply(OPT_GO, REP_ERROR_BIT | 6, b"no such export")]);
        assert!(matches!(negotiate(&mut s, "x", false), Err(NbdError::Refused { .. })));
        let mut s = script(&[GREETING, &reply(OPT_GO, REP_ACK, b"")]);
        assert!(matches!(negotiate(&mut s, "x", false), Err(NbdError::Protocol(_))));
        let mut s = script(&[b"HTTP/1.1 400 Bad Request"]);
        assert!(matches!(negotiate(&mut s, "x", false), Err(NbdError::Protocol(_))));
        let mut s = script(&[GREETING, &[0; 7]]);
        assert!(matches!(negotiate(&mut s, "x", false), Err(NbdError::Io(_))));
    }
}
