//! A client that measures how long it waits for the data-plane thread.
//!
//! Both ends of its socket are served by that thread, and it measures CPU time of that thread: so the result
//! includes the delays that the server causes to a client, but not those that a busy machine causes to the
//! threads of real clients.

use std::io::{self, Read, Write};
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::server::server;
use crate::plane::{Client, FrontEnd, RawSocket, Worker};

/// Runs `work`, and returns the longest wait of a client on the server's thread during it, in CPU time of the
/// thread.
pub fn longest_wait_during(work: impl FnOnce()) -> Duration {
    let mut neighbour = std::os::unix::net::UnixStream::connect(&server().neighbour).unwrap();
    neighbour.set_read_timeout(Some(super::TIMEOUT)).unwrap();
    neighbour.read_exact(&mut [0]).unwrap();
    work();
    neighbour.write_all(&[0]).unwrap();
    let mut longest = [0; 8];
    neighbour.read_exact(&mut longest).unwrap();
    Duration::from_nanos(u64::from_be_bytes(longest))
}

/// The server of [`longest_wait_during`]: sends a byte when it starts a measurement, and the measured
/// nanoseconds after it receives a byte.
pub(super) struct Neighbour;

impl FrontEnd for Neighbour {
    fn spawn(&self, _: &Rc<Worker>, client: Client) {
        let RawSocket::Unix(socket) = client.socket else { return };
        tokio::task::spawn_local(async move { measure(UnixStream::from_std(socket)?).await });
    }
}

async fn measure(mut client: UnixStream) -> io::Result<()> {
    let mut pair = UnixStream::pair()?;
    let mut longest = Duration::ZERO;
    client.write_u8(0).await?;
    loop {
        tokio::select! {
            biased;
            over = client.readable() => break over?,
            waited = wait_for_a_turn(&mut pair) => longest = longest.max(waited?),
        }
    }
    client.write_u64(longest.as_nanos() as u64).await
}

/// Measures the time until this thread notices a byte. The waits follow each other, so that every poll falls
/// into one of them.
async fn wait_for_a_turn((client, server): &mut (UnixStream, UnixStream)) -> io::Result<Duration> {
    let begun = thread_time();
    client.write_u8(0).await?;
    server.read_u8().await?;
    Ok(thread_time() - begun)
}

/// CPU time of this thread.
fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec for the call to write.
    let done = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(done, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
