//! A minimal correct NBD server, and the same server with faults.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use forebay_xray::device::Endpoint;
use forebay_xray::load::{Spec, Stop};
use forebay_xray::nbd::Target;

/// Size of the disk.
pub const SIZE: u64 = 4 << 20;
/// When a server that pauses does so, after the first request that it gets, and for how long.
pub const PAUSE_AFTER: Duration = Duration::from_millis(1500);
/// See above.
pub const PAUSE: Duration = Duration::from_secs(1);

/// A fault of the server.
#[derive(Clone, Copy, PartialEq)]
pub enum Fault {
    /// None.
    None,
    /// Loses every hundredth write.
    LosesWrites,
    /// Answers every hundredth request with EIO.
    Fails,
    /// Closes the connection after a hundred requests.
    HangsUp,
    /// Answers every hundredth read with wrong data.
    Lies,
    /// Has no space for writes in the second half.
    Full,
    /// Answers nothing for `PAUSE`, once, `PAUSE_AFTER` the second connection was made.
    Pauses,
}

/// A server that ends with the test's process.
pub struct Server {
    dir: tempfile::TempDir,
}

impl Server {
    /// Starts one.
    pub fn start(fault: Fault) -> Server {
        let dir = tempfile::tempdir().expect("a directory");
        let listener = UnixListener::bind(dir.path().join("s")).expect("binds");
        let disk = Arc::new(Mutex::new(vec![0; SIZE as usize]));
        thread::spawn(move || {
            let mut connections = 0;
            let mut pause = None;
            while let Ok((stream, _)) = listener.accept() {
                let disk = disk.clone();
                connections += 1;
                if fault == Fault::Pauses && connections == 2 {
                    pause = Some(Instant::now() + PAUSE_AFTER);
                }
                thread::spawn(move || serve(stream, &disk, fault, pause));
            }
        });
        Server { dir }
    }
    /// Its address, as `forebay-xray run --target` expects it.
    pub fn uri(&self) -> String {
        format!("nbd+unix:///disk?socket={}", self.dir.path().join("s").display())
    }
    /// A load on it.
    pub fn spec(&self) -> Spec {
        Spec { stop: Stop::Requests(2000), ..Spec::new(endpoint(self.dir.path())) }
    }
}

fn endpoint(dir: &Path) -> Endpoint {
    Endpoint::Nbd(Target::Unix(dir.join("s")), "disk".to_owned())
}

/// Serves until the client disconnects. Supports only simple replies; the thread ends with the connection.
fn serve(mut s: UnixStream, disk: &Mutex<Vec<u8>>, fault: Fault, pause: Option<Instant>) -> Option<()> {
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
        if let Some(at) = pause
            && Instant::now() >= at
        {
            thread::sleep((at + PAUSE).saturating_duration_since(Instant::now()));
        }
        match h[7] {
            0 => {
                data.copy_from_slice(&disk.lock().ok()?[at..at + len]);
                if fault == Fault::Lies && faulty {
                    data[len / 2] ^= 1;
                }
            }
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
        let full = fault == Fault::Full && h[7] == 1 && at >= SIZE as usize / 2;
        let error = if full {
            28u32
        } else if failed {
            5
        } else {
            0
        };
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
