//! The iSCSI initiator of a fuzzing session.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use forebay_wire::iscsi::{BHS, Digests, NO_TAG, Step, decode, text};
use md5::{Digest, Md5};

use super::script::{ISCSI_SESSION, flags, take, take_some};
use super::server::{OPEN, SECRET, SECURED, USER, server};
use super::{TIMEOUT, assert_no_panic, cut};

/// Data segment lengths that an initiator may declare.
const MAX_RECV: [usize; 6] = [512, 1024, 8192, 65536, 262_144, 16_777_215];
/// Option bits of a session.
const HEADER_DIGEST: u8 = 0x01;
const DATA_DIGEST: u8 = 0x02;
const NO_INITIAL_R2T: u8 = 0x04;
const NO_IMMEDIATE_DATA: u8 = 0x08;
const SHORT_BURSTS: u8 = 0x10;
const MANY_R2TS: u8 = 0x20;
/// Maximum number of numbered commands that a script can send: they fit into the command window.
const NUMBERED_MAX: u32 = 100;
/// Maximum bytes of data in answer to one R2T.
const DATA_OUT_MAX: u32 = 64 << 10;
/// Tag of the pings that wait for the target.
const PING_TAG: u32 = 0xfefe_fefe;

/// The state received from the target.
#[derive(Default)]
struct Received {
    /// Headers of R2Ts that were not answered yet.
    r2ts: VecDeque<[u8; BHS]>,
    pings: u32,
    closed: bool,
}

/// A session from the initiator's side.
struct Initiator {
    socket: TcpStream,
    pieces: u8,
    digests: Digests,
    max_recv: usize,
    cmd_sn: u32,
    numbered: u32,
    pings: u32,
    /// PDU boundaries may differ between both sides, so pings are not answered any more.
    desynchronised: bool,
    /// The next expected status number.
    stat_sn: u32,
    received: Arc<(Mutex<Received>, Condvar)>,
}

/// Runs the initiator of `script`. The first bytes are the kind of session (0: the rest is sent unchanged; 1:
/// discovery; 2: on an open target; 3: with CHAP), the declared data segment length, the options, and the
/// size of the pieces that are sent.
pub fn iscsi_session(script: &[u8]) {
    let panics = crate::plane::panics();
    let mut script = script;
    let Some([kind, max_recv, options, pieces]) = take::<ISCSI_SESSION>(&mut script) else { return };
    let socket = TcpStream::connect(&server().iscsi).unwrap();
    socket.set_nodelay(true).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket.set_write_timeout(Some(TIMEOUT)).unwrap();
    let mut initiator = Initiator {
        socket,
        pieces,
        digests: Digests::default(),
        max_recv: MAX_RECV[usize::from(max_recv) % MAX_RECV.len()],
        cmd_sn: 1,
        numbered: 0,
        pings: 0,
        desynchronised: false,
        stat_sn: 0,
        received: Arc::default(),
    };
    if kind % 4 != 0 {
        initiator.log_in(kind % 4, options);
    }
    let reader = initiator.listen(kind % 4 != 0);
    // The target may close the connection at any time.
    let _ = match kind % 4 {
        0 => cut(script, pieces, |piece| initiator.socket.write_all(piece)),
        _ => initiator.send_records(script),
    };
    let _ = initiator.socket.shutdown(std::net::Shutdown::Write);
    reader.join().expect("the PDUs of the target are well-formed");
    assert_no_panic(panics);
}

impl Initiator {
    fn log_in(&mut self, kind: u8, options: u8) {
        let yes_if = |on: bool| if on { "Yes" } else { "No" }.to_owned();
        let digest = |on: u8| if options & on != 0 { "CRC32C" } else { "None" }.to_owned();
        let mut first = vec![("InitiatorName", "iqn.2026-01.org.example:fuzz".to_owned())];
        match kind {
            1 => first.push(("SessionType", "Discovery".into())),
            2 => first.push(("TargetName", OPEN.into())),
            _ => first.push(("TargetName", SECURED.into())),
        }
        if kind == 3 {
            first.push(("AuthMethod", "CHAP".into()));
            self.log_in_with(0x00, &std::mem::take(&mut first));
            let answer = self.log_in_with(0x00, &[("CHAP_A", "5".into())]);
            let value = |key: &str| answer.iter().find(|(k, _)| k == key).map(|(_, v)| v.clone()).unwrap();
            let challenge = text::binary(&value("CHAP_C"), 1024).unwrap();
            let id: u8 = value("CHAP_I").parse().unwrap();
            let proof = Md5::new().chain_update([id]).chain_update(SECRET).chain_update(challenge).finalize();
            self.log_in_with(0x81, &[("CHAP_N", USER.into()), ("CHAP_R", text::hex(&proof))]);
        }
        first.push(("MaxRecvDataSegmentLength", self.max_recv.to_string()));
        first.push(("HeaderDigest", digest(HEADER_DIGEST)));
        first.push(("DataDigest", digest(DATA_DIGEST)));
        if kind != 1 {
            let burst = if options & SHORT_BURSTS != 0 { "512" } else { "262144" }.to_owned();
            first.push(("InitialR2T", yes_if(options & NO_INITIAL_R2T == 0)));
            first.push(("ImmediateData", yes_if(options & NO_IMMEDIATE_DATA == 0)));
            first.push(("MaxBurstLength", burst.clone()));
            first.push(("FirstBurstLength", burst));
            first.push(("MaxOutstandingR2T", if options & MANY_R2TS != 0 { "65535" } else { "1" }.into()));
        }
        self.log_in_with(0x87, &first);
        self.digests = Digests { header: options & HEADER_DIGEST != 0, data: options & DATA_DIGEST != 0 };
    }

    /// Sends one request of the login phase; returns the keys of the answer.
    fn log_in_with(&mut self, stage: u8, keys: &[(&str, String)]) -> Vec<(String, String)> {
        let mut request = Vec::new();
        keys.iter().for_each(|(key, value)| text::push(&mut request, key, value));
        let mut header = [0; BHS];
        (header[0], header[1]) = (0x43, stage);
        header[8] = 0x80;
        header[5..8].copy_from_slice(&(request.len() as u32).to_be_bytes()[1..]);
        header[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        let mut bytes = Vec::new();
        self.digests.append(&header, &request, &mut bytes);
        self.socket.write_all(&bytes).unwrap();
        let mut header = [0; BHS];
        self.socket.read_exact(&mut header).unwrap();
        let len = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
        let mut answer = vec![0; len.next_multiple_of(4)];
        self.socket.read_exact(&mut answer).unwrap();
        assert_eq!((header[0], header[36], header[37]), (0x23, 0, 0), "the login succeeds");
        self.stat_sn = u32::from_be_bytes([header[24], header[25], header[26], header[27]]).wrapping_add(1);
        let pairs = text::parse(&answer[..len]).unwrap();
        pairs.into_iter().map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
    }

    /// Sends the records of a script.
    fn send_records(&mut self, mut script: &[u8]) -> std::io::Result<()> {
        while let Some([flags, record @ ..]) = take::<{ 1 + BHS + 2 }>(&mut script) {
            let (header, len) = record.split_at(BHS);
            let len = u16::from_be_bytes([len[0], len[1]]);
            let mut header: [u8; BHS] = header.try_into().unwrap();
            let mut data = take_some(&mut script, len.into()).to_vec();
            if flags & flags::WAIT != 0 && !self.desynchronised && !self.wait()? {
                return Ok(());
            }
            self.desynchronised |= flags & (flags::RAW | flags::AHS) != 0;
            let mut bytes = Vec::new();
            if flags & flags::RAW != 0 {
                bytes = [&header[..], &data].concat();
            } else if self.fill_in(flags, &mut header, &mut data) {
                self.digests.append(&header, &data, &mut bytes);
            } else {
                continue;
            }
            if flags & flags::DAMAGE != 0
                && let Some(last) = bytes.last_mut()
            {
                *last ^= 1;
            }
            if flags & flags::BREAK_OFF != 0 {
                return self.socket.write_all(&bytes[..bytes.len() - 1]);
            }
            cut(&bytes, self.pieces, |piece| self.socket.write_all(piece))?;
        }
        Ok(())
    }

    /// Fills in the fields of a header. Returns false if the record has no R2T to answer, or no command
    /// number is left.
    fn fill_in(&mut self, flags: u8, header: &mut [u8; BHS], data: &mut Vec<u8>) -> bool {
        const DATA_OUT: u8 = 0x05;
        const NUMBERED: [u8; 5] = [0x00, 0x01, 0x02, 0x04, 0x06];
        let opcode = header[0] & 0x3f;
        if opcode == DATA_OUT && flags & flags::ANSWER_R2T != 0 {
            let Some(r2t) = self.received.0.lock().unwrap().r2ts.pop_front() else { return false };
            let word = |at: usize| u32::from_be_bytes(r2t[at..at + 4].try_into().unwrap());
            let (wrong_sn, wrong_offset) = (header[39], header[43]);
            header[1] |= 0x80;
            header[16..24].copy_from_slice(&r2t[16..24]);
            header[36..40].fill(0);
            header[40..44].copy_from_slice(&word(40).to_be_bytes());
            if flags & flags::WRONG_PLACE != 0 {
                (header[39], header[43]) = (wrong_sn, wrong_offset);
            }
            data.resize(word(44).min(DATA_OUT_MAX) as usize, 0x5a);
        }
        if flags & flags::KEEP_NUMBER == 0 && NUMBERED.contains(&opcode) {
            header[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
            if header[0] & 0x40 == 0 {
                if self.numbered >= NUMBERED_MAX {
                    return false;
                }
                self.numbered += 1;
                self.cmd_sn = self.cmd_sn.wrapping_add(1);
            }
        }
        if flags & flags::AHS == 0 {
            header[4] = 0;
        }
        header[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
        true
    }

    /// Waits until the target has answered everything that it answers immediately. Returns false if the
    /// target has closed the connection.
    fn wait(&mut self) -> std::io::Result<bool> {
        let mut header = [0; BHS];
        (header[0], header[1]) = (0x40, 0x80);
        header[16..20].copy_from_slice(&PING_TAG.to_be_bytes());
        header[20..24].copy_from_slice(&NO_TAG.to_be_bytes());
        header[24..28].copy_from_slice(&self.cmd_sn.to_be_bytes());
        let mut bytes = Vec::new();
        self.digests.append(&header, &[], &mut bytes);
        self.socket.write_all(&bytes)?;
        self.pings += 1;
        let (received, changed) = &*self.received;
        let (received, timeout) = changed
            .wait_timeout_while(received.lock().unwrap(), TIMEOUT, |h| h.pings < self.pings && !h.closed)
            .unwrap();
        assert!(!timeout.timed_out(), "a ping was not answered");
        Ok(!received.closed)
    }

    /// Reads the PDUs of the target, and checks them if `is_checked`.
    fn listen(&self, is_checked: bool) -> thread::JoinHandle<()> {
        let (mut socket, received) = (self.socket.try_clone().unwrap(), self.received.clone());
        let (digests, max_recv, mut stat_sn) = (self.digests, self.max_recv, self.stat_sn);
        thread::spawn(move || {
            let _closed = MarkClosed(received.clone());
            let (mut held, mut bytes) = (Vec::new(), vec![0; 1 << 16]);
            loop {
                match socket.read(&mut bytes) {
                    Ok(0) => return,
                    Ok(n) => held.extend_from_slice(&bytes[..n]),
                    Err(e) if e.kind() == ErrorKind::WouldBlock => {
                        panic!("the target did not end the session")
                    }
                    Err(_) => return,
                }
                let mut done = 0;
                while is_checked
                    && let Step::Pdu { used, pdu } = decode(&held[done..], digests, max_recv).unwrap()
                {
                    assert!(pdu.intact, "a digest of the target is wrong");
                    check(pdu.header.as_bytes(), &mut stat_sn, &received);
                    done += used;
                }
                held.drain(..if is_checked { done } else { held.len() });
            }
        })
    }
}

/// A guard that records, when dropped, that the target has closed the connection.
struct MarkClosed(Arc<(Mutex<Received>, Condvar)>);

impl Drop for MarkClosed {
    fn drop(&mut self) {
        self.0.0.lock().unwrap().closed = true;
        self.0.1.notify_all();
    }
}

/// Checks one PDU of the target, and records its effect on the initiator.
fn check(header: &[u8; BHS], stat_sn: &mut u32, received: &(Mutex<Received>, Condvar)) {
    let word = |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let tag = word(16);
    let has_status = match header[0] {
        0x20 => tag != NO_TAG,
        0x21 | 0x22 | 0x24 | 0x26 | 0x32 | 0x3f => true,
        0x25 => header[1] & 1 != 0,
        0x31 => {
            received.0.lock().unwrap().r2ts.push_back(*header);
            false
        }
        other => panic!("{other:#x} is not an opcode of a target"),
    };
    if has_status {
        assert_eq!(word(24), *stat_sn, "the status number");
        *stat_sn = stat_sn.wrapping_add(1);
    }
    if header[0] == 0x20 && tag == PING_TAG {
        received.0.lock().unwrap().pings += 1;
        received.1.notify_all();
    }
}
