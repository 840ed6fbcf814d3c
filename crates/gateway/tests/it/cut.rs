//! Streams that break.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::random::Random;

/// A stream that breaks after a number of bytes in one of its directions, and until then transfers parts of
/// random lengths.
pub struct Cut<S> {
    inner: S,
    random: Random,
    /// Bytes until the stream breaks, by reading and by writing.
    reads: u64,
    writes: u64,
}

impl<S> Cut<S> {
    /// A stream that breaks after at most `longest` bytes of one direction.
    pub fn new(inner: S, mut random: Random, longest: u64) -> Cut<S> {
        let at = random.below(longest);
        let (reads, writes) = if random.once_in(2) { (at, u64::MAX) } else { (u64::MAX, at) };
        Cut { inner, random, reads, writes }
    }

    /// A stream that never breaks.
    pub fn never(inner: S, random: Random) -> Cut<S> {
        Cut { inner, random, reads: u64::MAX, writes: u64::MAX }
    }

    fn part(&mut self, len: usize, left: u64) -> usize {
        let most = if self.random.once_in(4) { 1 + self.random.below(64) } else { 64 << 10 };
        (len as u64).min(most).min(left) as usize
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Cut<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.reads == 0 {
            return Poll::Ready(if self.random.once_in(2) {
                Ok(())
            } else {
                Err(io::ErrorKind::ConnectionReset.into())
            });
        }
        let left = self.reads;
        let most = self.part(buf.remaining(), left);
        let mut bytes = vec![0; most];
        let mut part = ReadBuf::new(&mut bytes);
        ready!(Pin::new(&mut self.inner).poll_read(cx, &mut part))?;
        buf.put_slice(part.filled());
        self.reads -= part.filled().len() as u64;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Cut<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.writes == 0 {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let left = self.writes;
        let most = self.part(buf.len(), left);
        let written = ready!(Pin::new(&mut self.inner).poll_write(cx, &buf[..most]))?;
        self.writes -= written as u64;
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
