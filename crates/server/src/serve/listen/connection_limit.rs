//! A listener of the API with a limit on its connections. Further connections wait in the kernel's queue.
//! Connections that arrive after the control plane has stopped wait there for the next process.
//!
//! **Silent connections.** A connection without a request in progress is idle. When all places are taken, the
//! connection that has been idle for the longest time, and for [`GRACE`] at least, gives its place to a new
//! connection. Without this, clients that connect and send nothing would make each request wait, also on a
//! loopback address, where connections are not counted by address. A connection that is idle for
//! [`IDLE_TIME`] ends in any case.
//!
//! One remote address, or /64 network of IPv6, has at most half of the connections: further connections are
//! closed at once. So a single host, which needs no token to connect, cannot lock out administrators of other
//! networks. Connections over loopback are not counted, since they can come from a proxy for many clients. A
//! proxy on another host has half of the connections for all of its clients.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use forebay_frontend::plane::network;
use forebay_frontend::registry::{Registered, Registry};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;

use super::http::ClientAddress;

/// How long an idle connection keeps its place while another connection needs one.
const GRACE: Duration = Duration::from_millis(500);
/// How long a connection is kept without a request.
const IDLE_TIME: Duration = Duration::from_secs(60);

/// The place of a connection among the limited number of connections.
#[derive(Debug)]
pub(crate) struct Place {
    /// Time since which no request is in progress; `None` while a request is in progress.
    idle_since: Mutex<Option<Instant>>,
    displaced: Notify,
}

impl Default for Place {
    fn default() -> Place {
        Place { idle_since: Mutex::new(Some(Instant::now())), displaced: Notify::new() }
    }
}

impl Place {
    /// Begins a request of the connection.
    pub fn begin(self: &Arc<Place>) -> Busy {
        *self.idle_since.lock() = None;
        Busy(self.clone())
    }

    fn idle(&self) -> Option<Duration> {
        self.idle_since.lock().map(|since| since.elapsed())
    }

    /// Completes when the connection has to end: another connection needs its place, or it has been idle for
    /// too long.
    pub async fn ended(&self) {
        loop {
            let left = IDLE_TIME.saturating_sub(self.idle().unwrap_or_default());
            if left.is_zero() {
                return;
            }
            tokio::select! {
                // A request may have begun since the notification; then the connection is no longer idle.
                () = self.displaced.notified() => if self.idle().is_some() { return },
                () = tokio::time::sleep(left) => {}
            }
        }
    }
}

/// A request in progress. The request ends when this guard is dropped. A connection has one request at a
/// time.
pub(crate) struct Busy(Arc<Place>);

impl Drop for Busy {
    fn drop(&mut self) {
        *self.0.idle_since.lock() = Some(Instant::now());
    }
}

/// The remote addresses of connections.
struct Addresses {
    remote: Registry<IpAddr>,
    /// Number of connections that an address may have.
    share: usize,
}

/// A connection that is counted by its address, unless that is a loopback address.
type Counted = Option<Registered<IpAddr>>;

impl Addresses {
    /// Counts a connection from this address; `Err` if there are too many.
    fn admit(&self, address: Option<IpAddr>) -> Result<Counted, ()> {
        let Some(address) = address.filter(|address| !address.is_loopback()).map(network) else {
            return Ok(None);
        };
        if self.remote.list(|other| *other == address).len() >= self.share {
            return Err(());
        }
        Ok(Some(self.remote.begin(address)))
    }
}

/// A listener with a limit on its open connections.
pub(crate) struct LimitedListener<L: Listener> {
    listener: L,
    permits: Arc<Semaphore>,
    places: Registry<Arc<Place>>,
    addresses: Addresses,
    /// A connection that waits for a permit. It is stored here, because the wait can be cancelled and
    /// repeated.
    waiting: Option<(L::Io, L::Addr, Counted)>,
    stopping: watch::Receiver<bool>,
}

impl<L: Listener> LimitedListener<L> {
    /// `stopping` becomes true when no more connections are to be accepted.
    pub fn new(listener: L, connections: usize, stopping: watch::Receiver<bool>) -> LimitedListener<L> {
        let addresses = Addresses { remote: Registry::default(), share: connections.div_ceil(2) };
        let permits = Arc::new(Semaphore::new(connections));
        LimitedListener { listener, permits, places: Registry::default(), addresses, waiting: None, stopping }
    }

    /// Waits for a permit, at the expense of idle connections. `None` if the control plane stops.
    async fn permit(&mut self) -> Option<OwnedSemaphorePermit> {
        loop {
            if let Ok(permit) = self.permits.clone().try_acquire_owned() {
                return Some(permit);
            }
            let wait = self.displace();
            tokio::select! {
                () = stopped(&mut self.stopping) => return None,
                // The semaphore is never closed.
                permit = self.permits.clone().acquire_owned() => return permit.ok(),
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Ends the connection that has been idle for the longest time, if that was long enough. Returns the time
    /// after which another connection may be.
    fn displace(&self) -> Duration {
        let idle = self.places.list(|_| true).into_iter().filter_map(|place| Some((place.idle()?, place)));
        match idle.max_by_key(|(time, _)| *time) {
            Some((time, place)) if time >= GRACE => {
                place.displaced.notify_one();
                GRACE
            }
            Some((time, _)) => GRACE.saturating_sub(time),
            None => GRACE,
        }
    }
}

impl<L: Listener> Listener for LimitedListener<L>
where
    L::Io: Sync,
    L::Addr: ClientAddress,
{
    type Io = WithPermit<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        while self.waiting.is_none() {
            let accepted = tokio::select! {
                biased;
                () = stopped(&mut self.stopping) => None,
                accepted = self.listener.accept() => Some(accepted),
            };
            let Some((io, address)) = accepted else { return std::future::pending().await };
            if let Ok(counted) = self.addresses.admit(address.ip()) {
                self.waiting = Some((io, address, counted));
            }
        }
        // Without a permit, because the control plane stops, the connection is served nevertheless.
        let permit = self.permit().await;
        let Some((io, address, counted)) = self.waiting.take() else { return std::future::pending().await };
        let place = Arc::new(Place::default());
        let held = (permit, counted, self.places.begin(place.clone()));
        (WithPermit { io, place, _held: held }, address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

/// Waits until the control plane has stopped.
pub(crate) async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // An error means that the control plane was dropped, so it has stopped.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

/// A connection that holds a permit of its listener.
pub(crate) struct WithPermit<T> {
    io: T,
    place: Arc<Place>,
    _held: (Option<OwnedSemaphorePermit>, Counted, Registered<Arc<Place>>),
}

impl<T> WithPermit<T> {
    /// The place of the connection.
    pub fn place(&self) -> Arc<Place> {
        self.place.clone()
    }
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
        let addresses = Addresses { remote: Registry::default(), share: 2 };
        let admit = |address: &str| addresses.admit(Some(address.parse().expect("an address")));
        let mut open: Vec<_> = ["10.0.0.1", "10.0.0.1"].into_iter().map(admit).collect();
        assert!(admit("10.0.0.1").is_err(), "a third connection");
        let network = [admit("2001:db8::1"), admit("2001:db8::2")];
        assert!(admit("2001:db8::3").is_err(), "a third one of a network");
        assert!(admit("10.0.0.2").is_ok(), "another address");
        for _ in 0..9 {
            open.push(admit("127.0.0.1"));
            open.push(addresses.admit(None));
        }
        assert!(open.iter().chain(&network).all(Result::is_ok), "connections that are admitted");
        drop(open);
        assert!(admit("10.0.0.1").is_ok(), "after the first ones have ended");
    }
}
