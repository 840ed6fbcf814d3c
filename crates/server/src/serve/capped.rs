//! A listener of the API with a limit on its connections; further ones wait in the kernel's queue. So do
//! those that come after the control plane has stopped, for a successor.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// A listener with a limit on its open connections.
pub(super) struct Capped<L> {
    listener: L,
    permits: Arc<Semaphore>,
    stopping: watch::Receiver<bool>,
}

impl<L> Capped<L> {
    /// `stopping` becomes true when no more connections are to be accepted.
    pub fn new(listener: L, connections: usize, stopping: watch::Receiver<bool>) -> Capped<L> {
        Capped { listener, permits: Arc::new(Semaphore::new(connections)), stopping }
    }
}

impl<L: Listener> Listener for Capped<L>
where
    L::Io: Sync,
{
    type Io = WithPermit<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        // The semaphore is never closed; without a permit the connection would be served nevertheless.
        let permit = self.permits.clone().acquire_owned().await.ok();
        let accepted = tokio::select! {
            biased;
            () = stopped(&mut self.stopping) => None,
            accepted = self.listener.accept() => Some(accepted),
        };
        let Some((io, address)) = accepted else { return std::future::pending().await };
        (WithPermit { io, _permit: permit }, address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

/// Waits until the control plane has stopped.
pub(super) async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // An error means that the control plane was dropped, so it has stopped.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

/// A connection that holds a permit of its listener.
pub(super) struct WithPermit<T> {
    io: T,
    _permit: Option<OwnedSemaphorePermit>,
}

impl<T: AsyncRead + Unpin> AsyncRead for WithPermit<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for WithPermit<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}
