//! A listener of the API with a limit on its connections; further ones wait in the kernel's queue. So do
//! those that arrive after the control plane has stopped, for a successor.
//!
//! One remote address, or /64 network of IPv6, has at most half of the connections: further ones are closed
//! at once. So a single host, which needs no token to connect, cannot lock out administrators of other
//! networks. Connections over loopback are not counted, since a proxy has all its clients there; one on
//! another host has half of the connections for all of its clients.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::http::ClientAddress;
use crate::plane::network;
use crate::registry::{Registered, Registry};

/// A listener with a limit on its open connections.
pub(super) struct Capped<L> {
    listener: L,
    permits: Arc<Semaphore>,
    /// The remote addresses of connections, and how many one of them may have.
    remote: Registry<IpAddr>,
    share: usize,
    stopping: watch::Receiver<bool>,
}

impl<L> Capped<L> {
    /// `stopping` becomes true when no more connections are to be accepted.
    pub fn new(listener: L, connections: usize, stopping: watch::Receiver<bool>) -> Capped<L> {
        let (permits, share) = (Arc::new(Semaphore::new(connections)), connections.div_ceil(2));
        Capped { listener, permits, remote: Registry::default(), share, stopping }
    }

    /// Counts a connection from this address; `Err` if there are too many.
    fn admit(&self, address: Option<IpAddr>) -> Result<Option<Registered<IpAddr>>, ()> {
        let Some(address) = address.filter(|address| !address.is_loopback()).map(network) else {
            return Ok(None);
        };
        if self.remote.list(|other| *other == address).len() >= self.share {
            return Err(());
        }
        Ok(Some(self.remote.begin(address)))
    }
}

impl<L: Listener> Listener for Capped<L>
where
    L::Io: Sync,
    L::Addr: ClientAddress,
{
    type Io = WithPermit<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        // The semaphore is never closed; without a permit the connection would be served nevertheless.
        let permit = self.permits.clone().acquire_owned().await.ok();
        loop {
            let accepted = tokio::select! {
                biased;
                () = stopped(&mut self.stopping) => None,
                accepted = self.listener.accept() => Some(accepted),
            };
            let Some((io, address)) = accepted else { return std::future::pending().await };
            if let Ok(counted) = self.admit(address.ip()) {
                return (WithPermit { io, _permit: (permit, counted) }, address);
            }
        }
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
    _permit: (Option<OwnedSemaphorePermit>, Option<Registered<IpAddr>>),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_remote_address_has_half_of_the_connections() {
        let capped = Capped::new((), 4, watch::channel(false).1);
        let admit = |address: &str| capped.admit(Some(address.parse().expect("an address")));
        let mut open: Vec<_> = ["10.0.0.1", "10.0.0.1"].into_iter().map(admit).collect();
        assert!(admit("10.0.0.1").is_err(), "a third connection");
        let network = [admit("2001:db8::1"), admit("2001:db8::2")];
        assert!(admit("2001:db8::3").is_err(), "a third one of a network");
        assert!(admit("10.0.0.2").is_ok(), "another address");
        for _ in 0..9 {
            open.push(admit("127.0.0.1"));
            open.push(capped.admit(None));
        }
        assert!(open.iter().chain(&network).all(Result::is_ok), "connections that are admitted");
        drop(open);
        assert!(admit("10.0.0.1").is_ok(), "after the first ones have ended");
    }
}
