//! The NVMe host of a fuzzing session: an admin queue, or an admin queue and one I/O queue, to which the
//! script belongs.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;

use forebay_wire::iscsi::crc32c;
use forebay_wire::nvme::DISCOVERY_NQN;

use super::script::{NVME_RECORD, NVME_SESSION, flags, take, take_some};
use super::server::server;
use super::{TIMEOUT, assert_no_panic, cut};

const COMMAND: u8 = 4;
const DATA: u8 = 6;
const SUBSYSTEM: &str = "nqn.2026-01.org.example:open";
const HOST: &str = "nqn.2026-01.org.example:fuzz";

/// A connection of a host.
struct Connection {
    socket: TcpStream,
    digests: u8,
}

/// Runs the host of `script`.
pub fn nvme_session(script: &[u8]) {
    let panics = crate::plane::panics();
    let mut script = script;
    let Some([kind, digests, pieces]) = take::<NVME_SESSION>(&mut script) else { return };
    let (kind, digests) = (kind % 3, digests & 3);
    if kind == 0 {
        let mut socket = connect();
        let reader = drain(&socket);
        let _ = cut(script, pieces, |piece| socket.write_all(piece));
        let _ = socket.shutdown(Shutdown::Write);
        reader.join().expect("the server ends the connection");
        return assert_no_panic(panics);
    }
    let subsystem = if kind == 1 { DISCOVERY_NQN } else { SUBSYSTEM };
    let (mut admin, controller) = queue(digests, subsystem, 0, 0xffff);
    // CC: enabled, with the sizes of entries.
    admin.command(
        &fabrics(0, &[&[0, 0, 0, 0][..], &0x14u32.to_le_bytes(), &0x46_0001u64.to_le_bytes()].concat()),
        &[],
    );
    admin.answer();
    let mut io = (kind == 2).then(|| queue(digests, SUBSYSTEM, 1, controller).0);
    let used = io.as_mut().unwrap_or(&mut admin);
    let reader = drain(&used.socket);
    // The server may close the connection at any time.
    let _ = used.send_records(script, pieces);
    let _ = used.socket.shutdown(Shutdown::Write);
    reader.join().expect("the PDUs of the server are well-formed");
    drop((io, admin));
    assert_no_panic(panics);
}

fn connect() -> TcpStream {
    let socket = TcpStream::connect(&server().nvme).unwrap();
    socket.set_nodelay(true).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket.set_write_timeout(Some(TIMEOUT)).unwrap();
    socket
}

/// A submission queue entry of a fabrics command: its type, and the bytes from offset 40 on.
fn fabrics(kind: u8, tail: &[u8]) -> [u8; 64] {
    let mut sqe = [0; 64];
    (sqe[0], sqe[1], sqe[4], sqe[39]) = (0x7f, 0x40, kind, 0x01);
    sqe[40..40 + tail.len()].copy_from_slice(tail);
    sqe
}

/// Connects a queue. Returns the identifier of the controller.
fn queue(digests: u8, subsystem: &str, number: u16, controller: u16) -> (Connection, u16) {
    let mut connection = Connection { socket: connect(), digests: 0 };
    let mut init = vec![0, 0, 128, 0, 128, 0, 0, 0];
    init.resize(128, 0);
    init[11] = digests;
    connection.socket.write_all(&init).unwrap();
    connection.answer();
    connection.digests = digests;
    let mut data = vec![0; 1024];
    data[16..18].copy_from_slice(&controller.to_le_bytes());
    data[256..256 + subsystem.len()].copy_from_slice(subsystem.as_bytes());
    data[512..512 + HOST.len()].copy_from_slice(HOST.as_bytes());
    let [low, high] = number.to_le_bytes();
    let mut sqe = fabrics(1, &[0, 0, low, high, 63, 0]);
    sqe[32..36].copy_from_slice(&1024u32.to_le_bytes());
    connection.command(&sqe, &data);
    let response = connection.answer();
    assert_eq!(response[22..24], [0, 0], "the queue is connected");
    let controller = u16::from_le_bytes([response[8], response[9]]);
    (connection, controller)
}

impl Connection {
    fn command(&mut self, sqe: &[u8; 64], data: &[u8]) {
        let pdu = self.pdu(COMMAND, sqe, data);
        self.socket.write_all(&pdu).unwrap();
    }

    /// Receives one PDU.
    fn answer(&mut self) -> Vec<u8> {
        let mut pdu = vec![0; 8];
        self.socket.read_exact(&mut pdu).unwrap();
        let len = u32::from_le_bytes(pdu[4..8].try_into().unwrap()) as usize;
        pdu.resize(len, 0);
        self.socket.read_exact(&mut pdu[8..]).unwrap();
        pdu
    }

    fn pdu(&self, kind: u8, header: &[u8], data: &[u8]) -> Vec<u8> {
        let (head, digest) = (8 + header.len(), usize::from(self.digests & 1) * 4);
        let flags = if data.is_empty() { self.digests & 1 } else { self.digests | 4 };
        let has_data_digest = !data.is_empty() && self.digests & 2 != 0;
        let total = head + digest + data.len() + usize::from(has_data_digest) * 4;
        let mut out = vec![kind, flags, head as u8, (head + digest) as u8];
        out.extend_from_slice(&(total as u32).to_le_bytes());
        out.extend_from_slice(header);
        if digest > 0 {
            out.extend_from_slice(&crc32c(&out, 0).to_le_bytes());
        }
        out.extend_from_slice(data);
        if has_data_digest {
            out.extend_from_slice(&crc32c(data, 0).to_le_bytes());
        }
        out
    }

    /// Sends the records of a script. A record is a command capsule; with [`flags::ANSWER_R2T`] it is data
    /// for the command with the identifier of the entry and the tag in its command dword 10, which is often
    /// right, since tags are counted from 0.
    fn send_records(&mut self, mut script: &[u8], pieces: u8) -> std::io::Result<()> {
        while let Some([flags, record @ ..]) = take::<NVME_RECORD>(&mut script) {
            let (sqe, len) = record.split_at(64);
            let data = take_some(&mut script, u16::from_le_bytes([len[0], len[1]]).into());
            let mut pdu = if flags & flags::ANSWER_R2T != 0 {
                let mut header = [0; 16];
                header[..2].copy_from_slice(&sqe[2..4]);
                header[2..4].copy_from_slice(&sqe[40..42]);
                header[4..8].copy_from_slice(&sqe[48..52]);
                header[8..12].copy_from_slice(&(data.len() as u32).to_le_bytes());
                self.pdu(DATA, &header, data)
            } else {
                self.pdu(COMMAND, sqe, data)
            };
            if flags & flags::RAW != 0 {
                pdu = [sqe, data].concat();
            }
            if flags & flags::DAMAGE != 0
                && let Some(last) = pdu.last_mut()
            {
                *last ^= 1;
            }
            if flags & flags::BREAK_OFF != 0 {
                return self.socket.write_all(&pdu[..pdu.len() - 1]);
            }
            cut(&pdu, pieces, |piece| self.socket.write_all(piece))?;
        }
        Ok(())
    }
}

/// Reads the PDUs of the server until it closes the connection, and checks their frames.
fn drain(socket: &TcpStream) -> thread::JoinHandle<()> {
    let mut socket = socket.try_clone().unwrap();
    thread::spawn(move || {
        let (mut held, mut bytes) = (Vec::new(), vec![0; 1 << 16]);
        loop {
            match socket.read(&mut bytes) {
                Ok(0) => break,
                Ok(n) => held.extend_from_slice(&bytes[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => panic!("the server did not end the session"),
                Err(_) => return,
            }
            while let Some(head) = held.first_chunk::<8>() {
                assert!(matches!(head[0], 1 | 3 | 5 | 7 | 9), "{} is no PDU of a controller", head[0]);
                let len = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
                assert!(len >= usize::from(head[2]) && len <= 2 << 20, "a PDU of {len} bytes");
                if held.len() < len {
                    break;
                }
                held.drain(..len);
            }
        }
    })
}
