//! A client that measures how long it waits for its turn of the data-plane thread.
//!
//! Both ends of the socket that it is served by are on that thread, and what it counts is time of that thread: so it
//! sees what the server does to a client, and nothing of what a busy machine does to the threads of real ones.

use std::io::{self, Read, Write};
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::world::world;
use crate::plane::{Client, FrontEnd, RawSocket, Worker};

/// Does `work`, and returns how long a client of the server's thread waited at most meanwhile, in CPU time of the thread.
pub fn longest_wait_beside(work: impl FnOnce()) -> Duration {
    let mut neighbour = std::os::unix::net::UnixStream::connect(&world().neighbour).unwrap();
    neighbour.set_read_timeout(Some(super::PATIENCE)).unwrap();
    neighbour.read_exact(&mut [0]).unwrap();
    work();
    neighbour.write_all(&[0]).unwrap();
    let mut longest = [0; 8];
    neighbour.read_exact(&mut longest).unwrap();
    Duration::from_nanos(u64::from_be_bytes(longest))
}

/// Speaks with [`longest_wait_beside`]: a byte when it begins to measure, and the nanoseconds when it gets one.
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

/// How long it takes this thread to notice a byte. One wait follows the other, so that no poll falls between two.
async fn wait_for_a_turn((client, server): &mut (UnixStream, UnixStream)) -> io::Result<Duration> {
    let begun = thread_time();
    client.write_u8(0).await?;
    server.read_u8().await?;
    Ok(thread_time() - begun)
}

/// CPU time of this thread.
fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec, through a pointer to one that is alive.
    let done = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    assert_eq!(done, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
