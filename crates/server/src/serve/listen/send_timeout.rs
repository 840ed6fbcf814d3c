//! A connection that ends when its client does not read.
//!
//! If a client does not read, the kernel accepts data until its buffers are full; from then on, writes wait.
//! A write that waits for [`SEND_TIME`] fails, so that a client that stopped reading does not keep a
//! connection of the listener. A slow client is served: whenever the kernel accepts more data, the time
//! begins again.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// How long a write waits for the client.
const SEND_TIME: Duration = Duration::from_secs(20);

/// A connection with a limit on the time in which nothing can be written.
pub(in crate::serve) struct SendTimeout<T> {
    io: T,
    /// Timer that ends the wait of a write; `None` while no write waits.
    stall: Option<Pin<Box<Sleep>>>,
}

impl<T: AsyncWrite + Unpin> SendTimeout<T> {
    pub fn new(io: T) -> SendTimeout<T> {
        SendTimeout { io, stall: None }
    }

    fn limited<R>(
        &mut self,
        cx: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut T>, &mut Context<'_>) -> Poll<io::Result<R>>,
    ) -> Poll<io::Result<R>> {
        if let Poll::Ready(written) = write(Pin::new(&mut self.io), cx) {
            self.stall = None;
            return Poll::Ready(written);
        }
        let stall = self.stall.get_or_insert_with(|| Box::pin(sleep(SEND_TIME)));
        stall
            .as_mut()
            .poll(cx)
            .map(|()| Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for SendTimeout<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for SendTimeout<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().limited(cx, |io, cx| io.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().limited(cx, |io, cx| io.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().limited(cx, |io, cx| io.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().limited(cx, |io, cx| io.poll_shutdown(cx))
    }
}
