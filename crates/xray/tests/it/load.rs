//! The load generator against a minimal correct server, and against the same server with faults.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use forebay_xray::load::{Access, LoadError, Spec, Stop, run};
use forebay_xray::nbd::{NbdError, Target};

const SIZE: u64 = 4 << 20;

/// A fault of the server.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    None,
    /// Loses every hundredth write.
    LosesWrites,
    /// Answers every hundredth request with EIO.
    Fails,
    /// Closes the connection after a hundred requests.
    HangsUp,
}

struct Server {
    dir: tempfile::TempDir,
}

impl Server {
    fn start(fault: Fault) -> Server {
        let dir = tempfile::tempdir().expect("a directory");
        let listener = UnixListener::bind(dir.path().join("s")).expect("binds");
        let disk = Arc::new(Mutex::new(vec![0; SIZE as usize]));
        thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let disk = disk.clone();
                thread::spawn(move || serve(stream, &disk, fault));
            }
        });
        Server { dir }
    }
    fn spec(&self) -> Spec {
        Spec { stop: Stop::Requests(2000), ..Spec::new(target(self.dir.path()), "disk") }
    }
}

fn target(dir: &Path) -> Target {
    Target::Unix(dir.join("s"))
}

/// Serves until the client disconnects. Supports only simple replies; the thread ends with the connection.
fn serve(mut s: UnixStream, disk: &Mutex<Vec<u8>>, fault: Fault) -> Option<()> {
    s.write_all(b"NBDMAGICIHAVEOPT\x00\x03").ok()?;
    take::<4>(&mut s)?;
    loop {
        let head = take::<16>(&mut s)?;
        let option = u32::from_be_bytes(head[8..12].try_into().ok()?);
        let len = u32::from_be_bytes(head[12..16].try_into().ok()?);
        s.read_exact(&mut vec![0; len as usize]).ok()?;
        let reply = |s: &mut UnixStream, code: u32, data: &[u8]| {
            let mut m = 0x0003_e889_0455_65a9u64.to_be_bytes().to_vec();
            m.extend([option.to_be_bytes(), code.to_be_bytes(), (data.len() as u32).to_be_bytes()].concat());
            m.extend(data);
            s.write_all(&m).ok()
        };
        if option != 7 {
            reply(&mut s, 1 << 31 | 1, b"")?;
            continue;
        }
        // Information "export": the size, and the flags "has flags" and "flush".
        reply(&mut s, 3, &[&[0, 0][..], &SIZE.to_be_bytes(), &[0, 5]].concat())?;
        reply(&mut s, 1, b"")?;
        break;
    }
    for n in 1u64.. {
        let h = take::<28>(&mut s)?;
        let at = u64::from_be_bytes(h[16..24].try_into().ok()?) as usize;
        let len = u32::from_be_bytes(h[24..28].try_into().ok()?) as usize;
        let faulty = n % 100 == 0;
        if fault == Fault::HangsUp && faulty {
            return None;
        }
        let mut data = vec![0; len];
        match h[7] {
            0 => data.copy_from_slice(&disk.lock().ok()?[at..at + len]),
            1 => {
                s.read_exact(&mut data).ok()?;
                if !(fault == Fault::LosesWrites && faulty) {
                    disk.lock().ok()?[at..at + len].copy_from_slice(&data);
                }
            }
            3 => {}
            _ => return None,
        }
        let failed = fault == Fault::Fails && faulty;
        let error = if failed { 5u32 } else { 0 };
        s.write_all(&[&0x6744_6698u32.to_be_bytes()[..], &error.to_be_bytes(), &h[8..16]].concat()).ok()?;
        if h[7] == 0 && !failed {
            s.write_all(&data).ok()?;
        }
    }
    Some(())
}

fn take<const N: usize>(s: &mut UnixStream) -> Option<[u8; N]> {
    let mut b = [0; N];
    s.read_exact(&mut b).ok()?;
    Some(b)
}

#[test]
fn a_verified_mix_over_several_connections_is_clean() {
    let server = Server::start(Fault::None);
    let spec = Spec {
        read_percent: 50,
        connections: 3,
        verify: true,
        flush_each: Some(Duration::from_millis(5)),
        ..server.spec()
    };
    let report = run(&spec).expect("runs");
    assert_eq!(report.ops, 6000);
    assert_eq!(report.ops, report.reads + report.writes);
    assert_eq!(report.bytes, 6000 * 4096);
    assert!(report.flushes >= 3, "each connection flushes at the end");
    assert!(report.verified > 1000, "{}", report.verified);
    assert_eq!((report.errors, report.mismatches), (0, 0));
}

#[test]
fn large_sequential_requests_cover_the_range_once() {
    let server = Server::start(Fault::None);
    let spec = Spec {
        read_percent: 0,
        access: Access::Sequential,
        block_bytes: 1 << 19,
        depth: 4,
        stop: Stop::OncePerBlock,
        verify: true,
        ..server.spec()
    };
    let report = run(&spec).expect("runs");
    assert_eq!((report.writes, report.bytes), (8, SIZE));
    assert_eq!((report.verified, report.mismatches), (8, 0));
}

#[test]
fn lost_writes_are_detected() {
    let server = Server::start(Fault::LosesWrites);
    let report = run(&Spec { read_percent: 0, verify: true, ..server.spec() }).expect("runs");
    assert!(report.mismatches > 0 && report.first_mismatch.is_some());
}

#[test]
fn failed_requests_are_counted_with_the_first_error() {
    let server = Server::start(Fault::Fails);
    let report = run(&server.spec()).expect("runs");
    assert_eq!((report.errors, report.first_error, report.ops), (20, Some(5), 1980));
}

#[test]
fn a_server_that_hangs_up_is_an_error() {
    let server = Server::start(Fault::HangsUp);
    match run(&server.spec()) {
        Err(LoadError::Nbd(NbdError::Closed(_) | NbdError::Io(_))) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_rate_is_kept_on_average() {
    let server = Server::start(Fault::None);
    let report = run(&Spec { rate: Some(20_000.0), ..server.spec() }).expect("runs");
    // 2,000 arrivals at 20,000 per second take close to 0.1 s, however fast the server is.
    assert!(report.seconds > 0.08, "{}", report.seconds);
}

#[test]
fn invalid_parameters_are_rejected() {
    let server = Server::start(Fault::None);
    let bad = [
        Spec { block_bytes: 1000, ..server.spec() },
        Spec { depth: 0, ..server.spec() },
        Spec { block_bytes: 8 << 20, ..server.spec() },
        Spec { range: Some(0..4096 * 32), verify: true, ..server.spec() },
    ];
    for spec in bad {
        assert!(matches!(run(&spec), Err(LoadError::Spec(_) | LoadError::TooSmall { .. })), "{spec:?}");
    }
}
