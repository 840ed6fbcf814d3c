//! Servers that this program starts, measures and ends.
//!
//! A `process` is a server's program, `workdir` has its files and sockets, `forebay` and `peers` know the
//! command line of each server, and `command` runs programs that end by themselves. A [`Disk`] of a running
//! server is what a load needs: an endpoint, and the process whose CPU time the load costs.

mod command;
mod counters;
mod forebay;
mod peers;
mod process;
mod workdir;

use std::net::TcpListener;
use std::ops::Range;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

pub use command::{program, run, unusable, version, version_of};
pub use counters::StoreOps;
pub(crate) use counters::counters;
pub use forebay::{Forebay, ForebayConfig, Stats};
pub use peers::{Tgtd, Unit, nbdkit, nbdkit_files, qemu_nbd, serve_by_qemu};
pub use process::{Memory, Process, cpu_of, memory_of};
pub use workdir::{WorkDir, random_image, sparse_image};

use crate::device::Endpoint;
use crate::error::{During, Result};
use crate::nbd::Target;

/// A disk of a running server.
#[derive(Clone)]
pub struct Disk<'a> {
    /// The process of the server.
    pub process: &'a Process,
    /// Where a load finds the disk.
    pub endpoint: Endpoint,
}

/// A running NBD server.
pub struct Server {
    /// The process of the server.
    pub process: Process,
    socket: PathBuf,
}

impl Server {
    fn start(name: &'static str, command: Command, socket: PathBuf, log: &Path) -> Result<Server> {
        // The socket of a server that was killed remains.
        let _ = std::fs::remove_file(&socket);
        let mut process = Process::start(name, command, log)?;
        process.wait_until(|| answers(&socket))?;
        Ok(Server { process, socket })
    }

    /// Address of the server.
    pub fn target(&self) -> Target {
        Target::Unix(self.socket.clone())
    }

    /// An export of the server.
    pub fn disk(&self, export: &str) -> Disk<'_> {
        Disk { process: &self.process, endpoint: Endpoint::Nbd(self.target(), export.to_owned()) }
    }
}

fn answers(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok()
}

/// Ports of servers: below the ports that Linux gives to clients, so that a server that is started later, or
/// again, finds its port unused.
const PORTS: Range<u32> = 30_000..32_000;

/// An address of this machine with a free port.
pub fn portal() -> Result<String> {
    // Servers that do not listen yet have different ports, and so have servers of other processes.
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_add(GIVEN.fetch_add(1, Relaxed));
    let count = PORTS.end - PORTS.start;
    let mut addresses = (0..count).map(|n| PORTS.start + first.wrapping_add(n) % count);
    let free = addresses.find_map(|port| {
        let address = format!("127.0.0.1:{port}");
        TcpListener::bind(&address).ok().map(|_| address)
    });
    let none = || std::io::Error::from(std::io::ErrorKind::AddrInUse);
    free.ok_or_else(none).during(|| "cannot find a free port".to_owned())
}
