//! The NBD client of a fuzzing session.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::thread;

use forebay_wire::nbd::*;

use super::script::{NBD_SESSION, flags, take};
use super::server::server;
use super::{TIMEOUT, assert_no_panic, cut};

/// Option bits of a session.
const STRUCTURED: u8 = 0x01;
const BLOCK_STATUS: u8 = 0x02;
/// Maximum bytes of data of a write; the client disconnects in the middle of a longer write.
const WRITE_MAX: usize = 2 << 20;

/// Bytes that the replies to the reads in progress contain, by cookie of the read.
type Reads = Arc<Mutex<HashMap<u64, usize>>>;

/// Runs the client of `script`. The first bytes are the kind of session (0: all further bytes are sent
/// unchanged; 1, 2, 3: the disk), the options, and the size of the pieces that are sent.
pub fn nbd_session(script: &[u8]) {
    let panics = crate::plane::panics();
    let mut script = script;
    let Some([kind, options, pieces]) = take::<NBD_SESSION>(&mut script) else { return };
    let mut socket = UnixStream::connect(&server().nbd).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket.set_write_timeout(Some(TIMEOUT)).unwrap();
    let reads = Reads::default();
    let structured = options & STRUCTURED != 0;
    let export = match kind % 4 {
        0 => None,
        1 => Some("vol"),
        2 => Some("sparse"),
        _ => Some("vol@s"),
    };
    if let Some(export) = export {
        negotiate(&mut socket, export, structured, options & BLOCK_STATUS != 0);
    }
    let reader = {
        let (socket, reads) = (socket.try_clone().unwrap(), reads.clone());
        let is_checked = export.is_some();
        thread::spawn(
            move || if is_checked { check_replies(socket, &reads, structured) } else { drain(socket) },
        )
    };
    // The server may close the connection at any time.
    let _ = match export {
        None => cut(script, pieces, |piece| socket.write_all(piece)),
        Some(_) => send_records(&mut socket, script, pieces, &reads),
    };
    let _ = socket.shutdown(std::net::Shutdown::Write);
    reader.join().expect("the replies are well-formed");
    assert_no_panic(panics);
}

fn negotiate(socket: &mut UnixStream, export: &str, structured: bool, block_status: bool) {
    let option = |number: u32, data: &[u8]| {
        [&OPTION_MAGIC.to_be_bytes()[..], &number.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data]
            .concat()
    };
    let name = [&(export.len() as u32).to_be_bytes()[..], export.as_bytes()].concat();
    let mut options = 3u32.to_be_bytes().to_vec();
    if structured {
        options.extend(option(OPT_STRUCTURED_REPLY, b""));
    }
    if block_status {
        let query = [&name[..], &1u32.to_be_bytes(), &15u32.to_be_bytes(), b"base:allocation"].concat();
        options.extend(option(OPT_SET_META_CONTEXT, &query));
    }
    options.extend(option(OPT_GO, &[&name[..], &0u16.to_be_bytes()].concat()));
    socket.write_all(&options).unwrap();
    socket.read_exact(&mut [0; 18]).unwrap();
    loop {
        let mut head = [0; 20];
        socket.read_exact(&mut head).unwrap();
        let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
        let (option, kind, len) = (word(8), word(12), word(16));
        socket.read_exact(&mut vec![0; len as usize]).unwrap();
        if option == OPT_GO && kind != REP_INFO {
            assert_eq!(kind, REP_ACK, "the server does not serve '{export}' any more");
            return;
        }
    }
}

/// Sends the records of a script.
fn send_records(
    socket: &mut UnixStream,
    mut script: &[u8],
    pieces: u8,
    reads: &Reads,
) -> std::io::Result<()> {
    let mut cookie = 0u64;
    while let Some([flags, f1, f0, k1, k0, rest @ ..]) = take::<17>(&mut script) {
        let (offset, len) = rest.split_at(8);
        let mut message = REQUEST_MAGIC.to_be_bytes().to_vec();
        message.extend_from_slice(&[f1, f0, k1, k0]);
        message.extend_from_slice(&cookie.to_be_bytes());
        message.extend_from_slice(offset);
        message.extend_from_slice(len);
        let len = u32::from_be_bytes(len.try_into().unwrap()) as usize;
        let kind = u16::from_be_bytes([k1, k0]);
        let mut is_whole = flags & flags::BREAK_OFF == 0;
        if flags & flags::RAW == 0 && kind == CMD_WRITE {
            is_whole &= len <= WRITE_MAX;
            message.extend((0..len.min(WRITE_MAX)).map(|n| (n / 512) as u8 ^ f0));
        }
        if flags & flags::DAMAGE != 0 {
            message[..4].reverse();
        }
        if kind == CMD_READ {
            reads.lock().unwrap().insert(cookie, len);
        }
        if !is_whole {
            return socket.write_all(&message[..message.len() - 1]);
        }
        cut(&message, pieces, |piece| socket.write_all(piece))?;
        cookie += 1;
    }
    Ok(())
}

/// Reads and discards all input.
fn drain(mut socket: UnixStream) {
    let mut bytes = vec![0; 1 << 16];
    while is_some(socket.read(&mut bytes)) {}
}

/// Whether any bytes were read. A server may end a session with an error, but must do so within the time
/// limit.
fn is_some(read: std::io::Result<usize>) -> bool {
    match read {
        Ok(n) => n > 0,
        Err(e) => {
            assert_ne!(e.kind(), ErrorKind::WouldBlock, "the server did not end the session");
            false
        }
    }
}

/// Checks that all input consists of replies, until its end.
fn check_replies(mut socket: UnixStream, reads: &Reads, structured: bool) {
    let mut next = |bytes: &mut [u8]| {
        let mut done = 0;
        while done < bytes.len() {
            match socket.read(&mut bytes[done..]) {
                Ok(n) if n > 0 => done += n,
                other => return is_some(other),
            }
        }
        true
    };
    let mut magic = [0; 4];
    while next(&mut magic) {
        let (mut cookie, mut head) = ([0; 8], [0; 4]);
        if !next(&mut head) || !next(&mut cookie) {
            return;
        }
        let read = reads.lock().unwrap().get(&u64::from_be_bytes(cookie)).copied();
        let len = match u32::from_be_bytes(magic) {
            SIMPLE_REPLY_MAGIC if head != [0; 4] || structured => 0,
            SIMPLE_REPLY_MAGIC => read.unwrap_or(0),
            CHUNK_MAGIC => {
                assert!(structured, "a chunk although simple replies were negotiated");
                let mut len = [0; 4];
                if !next(&mut len) {
                    return;
                }
                u32::from_be_bytes(len) as usize
            }
            other => panic!("{other:#x} is not the start of a reply"),
        };
        assert!(len <= MAX_PAYLOAD as usize + 64, "a reply of {len} bytes");
        if !next(&mut vec![0; len]) {
            return;
        }
    }
}
