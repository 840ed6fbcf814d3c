//! A stream that ends when a future completes. The stream owns the future, and with it all values of the
//! future.
//!
//! A stream to the owner of a shard ends when another server owns the shard: the node of an owner that was
//! stopped or cut off does not close its streams, and TCP notices that only after a long time. The map of the
//! cluster names the new owner as soon as it serves clients.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use forebay_gateway::{BoxFuture, Stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream to which a future adds an end: after the future has completed, reads fail. Writes are not
/// affected.
pub(super) struct Until {
    pub stream: Stream,
    pub end: BoxFuture<'static, ()>,
}

impl AsyncRead for Until {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.end.as_mut().poll(cx).is_ready() {
            // The future must not be polled again.
            self.end = Box::pin(std::future::ready(()));
            return Poll::Ready(Err(io::Error::other("another server has taken the shard over")));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Until {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_reader_that_waits_notices_that_the_shard_has_moved() {
        let (near, mut far) = duplex(64);
        let (has_moved, moved) = oneshot::channel::<()>();
        let moved = Box::pin(async move { drop(moved.await) });
        let mut stream = Until { stream: Box::new(near), end: moved };
        far.write_all(b"ab").await.unwrap();
        assert_eq!(stream.read_u16().await.unwrap(), u16::from_be_bytes(*b"ab"));
        let waits = tokio::spawn(async move {
            let first = stream.read_u8().await.map_err(|e| e.to_string());
            (first, stream.read_u8().await.is_err())
        });
        tokio::task::yield_now().await;
        has_moved.send(()).unwrap();
        let expected = Err("another server has taken the shard over".to_owned());
        assert_eq!(waits.await.unwrap(), (expected, true));
    }
}
