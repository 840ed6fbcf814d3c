//! The streams of NBD clients at the owner of a shard: a newer one of a client ends the older ones.
//!
//! **Invariant.** When [`Fences::begin`] has returned, the stream of each older generation of the client is
//! closed, and [`Fences::begin`] of an older generation fails from then on while the newer stream exists. The
//! process of the shard drops the requests of a stream that was closed before it attaches the next one to the
//! disk, so a request that a client has sent again is not executed after that by its first sending.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{NbdClient, Stream};

/// The streams of all clients.
#[derive(Clone, Default)]
pub struct Fences(Arc<Mutex<HashMap<String, Entry>>>);

struct Entry {
    generation: u64,
    stream: Weak<Shared>,
}

/// A stream that can be closed from outside.
#[derive(Default)]
struct Shared {
    stream: Mutex<Option<Stream>>,
    reader: AtomicWaker,
    writer: AtomicWaker,
}

impl Shared {
    fn close(&self) {
        *self.stream.lock() = None;
        self.reader.wake();
        self.writer.wake();
    }
}

impl Fences {
    /// Begins the stream of a client, and closes those of its older generations. The stream is opened by the
    /// caller afterwards ([`Place::fill`]).
    ///
    /// # Errors
    /// If a stream of the same or a newer generation has begun.
    pub fn begin(&self, client: &NbdClient) -> io::Result<Place> {
        let shared = Arc::new(Shared::default());
        let mut all = self.0.lock();
        let known = all.get(&client.id);
        if known.is_some_and(|known| known.generation >= client.generation) {
            return Err(io::Error::other("a newer connection of the same client has begun"));
        }
        if let Some(older) = known.and_then(|known| known.stream.upgrade()) {
            older.close();
        }
        let entry = Entry { generation: client.generation, stream: Arc::downgrade(&shared) };
        all.insert(client.id.clone(), entry);
        Ok(Place { fences: self.clone(), client: client.clone(), shared })
    }

    /// Number of clients with a stream.
    pub fn len(&self) -> usize {
        self.0.lock().len()
    }

    /// Whether no client has a stream.
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

/// The place of a stream. Its drop ends the stream.
pub struct Place {
    fences: Fences,
    client: NbdClient,
    shared: Arc<Shared>,
}

impl Place {
    /// The stream of the client, over this one.
    ///
    /// # Errors
    /// If a newer stream of the client has begun.
    pub fn fill(self, stream: Stream) -> io::Result<Stream> {
        let is_newest = |entry: &Entry| entry.generation == self.client.generation;
        // With the lock, so that a newer one finds the stream.
        let all = self.fences.0.lock();
        if !all.get(&self.client.id).is_some_and(is_newest) {
            return Err(closed());
        }
        *self.shared.stream.lock() = Some(stream);
        drop(all);
        Ok(Box::new(self))
    }

    fn poll<T>(
        &self,
        waker: &AtomicWaker,
        cx: &mut Context<'_>,
        work: impl FnOnce(Pin<&mut Stream>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        // Before the stream is used: a close after that wakes this task.
        waker.register(cx.waker());
        match &mut *self.shared.stream.lock() {
            Some(stream) => work(Pin::new(stream), cx),
            None => Poll::Ready(Err(closed())),
        }
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "a newer connection of the same client has begun")
}

impl Drop for Place {
    fn drop(&mut self) {
        // The stream is closed before a later one can begin.
        self.shared.close();
        let mut all = self.fences.0.lock();
        if all.get(&self.client.id).is_some_and(|entry| entry.generation == self.client.generation) {
            all.remove(&self.client.id);
        }
    }
}

impl AsyncRead for Place {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll(&self.shared.reader, cx, |stream, cx| stream.poll_read(cx, buf))
    }
}

impl AsyncWrite for Place {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll(&self.shared.writer, cx, |stream, cx| stream.poll_write(cx, buf))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll(&self.shared.writer, cx, |stream, cx| stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll(&self.shared.writer, cx, |stream, cx| stream.poll_shutdown(cx))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;

    fn client(id: &str, generation: u64) -> NbdClient {
        NbdClient { id: id.to_owned(), generation, name: String::new() }
    }

    fn open(fences: &Fences, id: &str, generation: u64) -> io::Result<(Stream, DuplexStream)> {
        let (near, far) = duplex(64);
        Ok((fences.begin(&client(id, generation))?.fill(Box::new(near))?, far))
    }

    #[tokio::test]
    async fn a_newer_stream_ends_the_older_one_also_while_it_waits() {
        let fences = Fences::default();
        let (mut old, mut far) = open(&fences, "a", 1).unwrap();
        let waiting = tokio::spawn(async move { old.read(&mut [0]).await.map_err(|e| e.kind()) });
        tokio::task::yield_now().await;
        let (mut new, mut new_far) = open(&fences, "a", 2).unwrap();
        assert_eq!(waiting.await.unwrap(), Err(io::ErrorKind::ConnectionAborted));
        assert_eq!(far.read(&mut [0]).await.unwrap(), 0, "the process of the shard sees the end");
        new.write_all(b"x").await.unwrap();
        assert_eq!(new_far.read_u8().await.unwrap(), b'x');
        assert!(open(&fences, "a", 1).is_err() && open(&fences, "a", 2).is_err());
        assert!(open(&fences, "b", 1).is_ok());
    }

    #[test]
    fn an_attempt_that_takes_long_gives_way() {
        let fences = Fences::default();
        let slow = fences.begin(&client("a", 1)).unwrap();
        let _new = open(&fences, "a", 2).unwrap();
        assert!(slow.fill(Box::new(duplex(1).0)).is_err());
        assert_eq!(fences.len(), 1);
    }

    #[test]
    fn ended_streams_leave_nothing() {
        let fences = Fences::default();
        drop(open(&fences, "a", 1).unwrap());
        drop(fences.begin(&client("a", 1)).unwrap());
        assert!(fences.is_empty());
    }
}
