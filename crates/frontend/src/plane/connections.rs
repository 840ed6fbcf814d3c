//! Limits on the number of connected clients: in all, from one address, and before they have negotiated.
//!
//! Connecting without negotiating (choosing an export, logging in to a target) costs a client nothing, so one
//! host can open many such connections. They have a deadline for the whole negotiation, and a separate limit;
//! when that or another limit is reached, the oldest of them is evicted to admit a new client. It is taken
//! from the address that has most of them, so a flood from one address evicts its own connections. A client
//! younger than [`MIN_AGE`] is never evicted, since a host that starts all of its guests at once would
//! otherwise evict its own; the next client waits to be accepted instead. Clients that have negotiated are
//! never evicted.
//!
//! An evicted client keeps its descriptor until its thread closes it; the number of such clients is bounded
//! too.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Worker;

/// Minimum age of a client that can be evicted.
const MIN_AGE: Duration = Duration::from_millis(500);
/// Maximum number of evicted clients whose descriptor is not closed yet.
pub const MAX_LEAVING: usize = 64;
/// Time to wait until some of these descriptors are closed.
const LEAVE_TIME: Duration = Duration::from_millis(10);

/// Limits on the number of connected clients, for all front ends together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Maximum number of clients.
    pub all: usize,
    /// Maximum number of clients from one IP address (for IPv6, from one /64 network). Clients of UNIX
    /// sockets have no address.
    pub per_address: usize,
    /// Maximum number of clients that have not completed their negotiation.
    pub negotiating: usize,
    /// Time limit for the whole negotiation, and for an idle discovery session.
    pub negotiation: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> ConnectionLimits {
        ConnectionLimits {
            all: 8192,
            per_address: 4096,
            negotiating: 1024,
            negotiation: Duration::from_secs(20),
        }
    }
}

/// The address of a client; `None` for a UNIX socket.
type Peer = Option<IpAddr>;

/// Changes the limits of a running data plane, for clients that connect from then on.
#[derive(Clone)]
pub struct LimitsHandle(Arc<Connections>);

impl LimitsHandle {
    pub(super) fn new(connections: Arc<Connections>) -> LimitsHandle {
        LimitsHandle(connections)
    }

    /// Sets the limits.
    pub fn set(&self, limits: ConnectionLimits) {
        *self.0.limits.lock() = limits;
    }
}

/// The address that counts as one client; for IPv6, its /64 network.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64)),
        ip => ip,
    }
}

/// The address or network under which a client is counted.
fn counted(peer: Peer) -> Peer {
    peer.map(network)
}

/// Reasons for which a client is not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Too many clients are connected, and none of them can be evicted.
    All,
    /// Too many clients are connected from the client's address.
    Address,
    /// The client may be admitted after this time, or when another client leaves.
    Wait(Duration),
}

/// Reasons for which a negotiation is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Cut {
    #[error("the server is stopping")]
    Stopping,
    #[error("evicted before the negotiation was complete, to admit another client")]
    Evicted,
    #[error("the negotiation was not complete after {0:?}")]
    Deadline(Duration),
}

/// The clients of all threads.
pub(crate) struct Connections {
    limits: Mutex<ConnectionLimits>,
    inner: Mutex<Inner>,
    /// Notified when a client leaves.
    left: Notify,
}

#[derive(Default)]
struct Inner {
    last_id: u64,
    all: Count,
    negotiating: usize,
    peers: HashMap<Peer, PeerClients>,
}

#[derive(Default)]
struct PeerClients {
    count: Count,
    /// Clients that are negotiating, the oldest first.
    negotiating: BTreeMap<u64, Negotiating>,
}

#[derive(Default, Clone, Copy)]
struct Count {
    connected: usize,
    /// Number of connected clients that are being evicted.
    leaving: usize,
}

impl Count {
    fn remaining(self) -> usize {
        self.connected - self.leaving
    }

    fn leave(&mut self, evicted: bool) {
        self.connected -= 1;
        self.leaving -= usize::from(evicted);
    }
}

struct Negotiating {
    since: Instant,
    evict: Arc<Notify>,
}

impl Connections {
    pub fn new(limits: ConnectionLimits) -> Arc<Connections> {
        Arc::new(Connections { limits: Mutex::new(limits), inner: Mutex::default(), left: Notify::new() })
    }

    fn limits(&self) -> ConnectionLimits {
        *self.limits.lock()
    }

    /// Admits a client, or returns the reason for the refusal.
    pub fn admit(self: &Arc<Self>, peer: Peer) -> Result<Admission, Refused> {
        self.admit_at(counted(peer), Instant::now())
    }

    /// Counts a client that another process has admitted. The limits are not applied again.
    pub fn adopt(self: &Arc<Self>, peer: Peer) -> Admission {
        let peer = counted(peer);
        let mut inner = self.inner.lock();
        inner.last_id += 1;
        inner.all.connected += 1;
        inner.peers.entry(peer).or_default().count.connected += 1;
        let (id, evict) = (inner.last_id, Arc::new(Notify::new()));
        let (since, kept) = (Instant::now(), Cell::new(true));
        Admission { connections: self.clone(), id, peer, since, evict, kept }
    }

    /// Waits until a client leaves; `most` is the maximum wait.
    pub async fn wait(&self, most: Duration) {
        let _ = tokio::time::timeout(most, self.left.notified()).await;
    }

    fn admit_at(self: &Arc<Self>, peer: Peer, now: Instant) -> Result<Admission, Refused> {
        let limits = self.limits();
        let mut inner = self.inner.lock();
        if inner.all.leaving >= MAX_LEAVING {
            return Err(Refused::Wait(LEAVE_TIME));
        }
        if peer.is_some() && inner.peers.get(&peer).is_some_and(|p| p.count.remaining() >= limits.per_address)
        {
            inner.evict(peer, now).map_err(|no| no.unwrap_or(Refused::Address))?;
        }
        if inner.all.remaining() >= limits.all || inner.negotiating >= limits.negotiating {
            let most_negotiating =
                inner.peers.iter().max_by_key(|(_, p)| p.negotiating.len()).map(|(peer, _)| *peer);
            inner.evict(most_negotiating.unwrap_or(peer), now).map_err(|no| no.unwrap_or(Refused::All))?;
        }
        inner.last_id += 1;
        let (id, evict) = (inner.last_id, Arc::new(Notify::new()));
        inner.all.connected += 1;
        inner.negotiating += 1;
        let peer_clients = inner.peers.entry(peer).or_default();
        peer_clients.count.connected += 1;
        peer_clients.negotiating.insert(id, Negotiating { since: now, evict: evict.clone() });
        Ok(Admission { connections: self.clone(), id, peer, since: now, evict, kept: Cell::new(false) })
    }
}

impl Inner {
    /// Evicts the oldest negotiating client of an address. Returns an error if this client is too young, or
    /// if no client of the address is negotiating.
    fn evict(&mut self, peer: Peer, now: Instant) -> Result<(), Option<Refused>> {
        let peer_clients = self.peers.get_mut(&peer).ok_or(None)?;
        let oldest = peer_clients.negotiating.first_entry().ok_or(None)?;
        let age = now.duration_since(oldest.get().since);
        if age < MIN_AGE {
            return Err(Some(Refused::Wait(MIN_AGE - age)));
        }
        oldest.remove().evict.notify_one();
        peer_clients.count.leaving += 1;
        self.all.leaving += 1;
        self.negotiating -= 1;
        Ok(())
    }

    /// Removes a client from the negotiating clients; returns false if the client was evicted or had
    /// completed its negotiation.
    fn end_negotiation(&mut self, peer: Peer, id: u64) -> bool {
        let peer_clients = self.peers.get_mut(&peer);
        let negotiated = peer_clients.is_some_and(|p| p.negotiating.remove(&id).is_some());
        self.negotiating -= usize::from(negotiated);
        negotiated
    }
}

/// The admission of a client. The client counts until this guard is dropped.
pub(crate) struct Admission {
    connections: Arc<Connections>,
    id: u64,
    peer: Peer,
    since: Instant,
    evict: Arc<Notify>,
    kept: Cell<bool>,
}

impl Admission {
    /// Runs a client's negotiation within its deadline. The client can be evicted until [`Admission::keep`].
    pub async fn negotiate<T>(
        &self,
        worker: &Worker,
        negotiation: impl Future<Output = T>,
    ) -> Result<T, Cut> {
        let most = self.negotiation_time();
        let deadline = tokio::time::Instant::from_std(self.since + most);
        tokio::select! {
            biased;
                        // A client that is still negotiating has no requests in progress that could be lost.
            () = worker.stopping() => Err(Cut::Stopping),
            () = self.evicted() => Err(Cut::Evicted),
            done = tokio::time::timeout_at(deadline, negotiation) => done.map_err(|_| Cut::Deadline(most)),
        }
    }

    /// Excludes a client that has negotiated from eviction. Returns an error if it has been evicted.
    pub fn keep(&self) -> Result<(), Cut> {
        self.kept.set(self.connections.inner.lock().end_negotiation(self.peer, self.id));
        if self.kept.get() { Ok(()) } else { Err(Cut::Evicted) }
    }

    /// Waits until the client is evicted.
    pub async fn evicted(&self) {
        self.evict.notified().await;
    }

    /// The time limit of a negotiation.
    pub fn negotiation_time(&self) -> Duration {
        self.connections.limits().negotiation
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let mut inner = self.connections.inner.lock();
        let evicted = !inner.end_negotiation(self.peer, self.id) && !self.kept.get();
        inner.all.leave(evicted);
        if let Some(peer_clients) = inner.peers.get_mut(&self.peer) {
            peer_clients.count.leave(evicted);
            if peer_clients.count.connected == 0 {
                inner.peers.remove(&self.peer);
            }
        }
        drop(inner);
        self.connections.left.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Duration = Duration::from_secs(1);

    fn connections(all: usize, per_address: usize, negotiating: usize) -> Arc<Connections> {
        Connections::new(ConnectionLimits { all, per_address, negotiating, ..Default::default() })
    }

    fn peer(n: u8) -> Peer {
        Some(IpAddr::from([10, 0, 0, n]))
    }

    async fn is_evicted(admission: &Admission) -> bool {
        tokio::time::timeout(Duration::ZERO, admission.evicted()).await.is_ok()
    }

    #[tokio::test]
    async fn a_newcomer_evicts_the_oldest_of_the_address_that_has_most() {
        let (connections, begin) = (connections(100, 100, 4), Instant::now());
        let quiet = connections.admit_at(peer(1), begin).unwrap();
        let flood: Vec<_> = (0..3).map(|_| connections.admit_at(peer(2), begin).unwrap()).collect();
        let young = connections.admit_at(peer(3), begin + MIN_AGE / 2).map(|_| ());
        assert_eq!(young.unwrap_err(), Refused::Wait(MIN_AGE / 2));
        let newcomer = connections.admit_at(peer(3), begin + OLD).unwrap();
        assert!(is_evicted(&flood[0]).await);
        assert!(!is_evicted(&flood[1]).await && !is_evicted(&quiet).await && !is_evicted(&newcomer).await);
        assert_eq!(flood[0].keep(), Err(Cut::Evicted));
        drop((flood, quiet, newcomer));
        let inner = connections.inner.lock();
        assert_eq!((inner.all.connected, inner.all.leaving, inner.negotiating), (0, 0, 0));
        assert!(inner.peers.is_empty());
    }

    #[test]
    fn clients_that_have_negotiated_are_not_evicted() {
        let (connections, begin) = (connections(3, 2, 9), Instant::now());
        let admit = |n| connections.admit_at(peer(n), begin).inspect(|a| a.keep().unwrap());
        let first = admit(1).unwrap();
        let _second = admit(1).unwrap();
        let refused = |n| connections.admit_at(peer(n), begin + OLD).map(|_| ()).unwrap_err();
        assert_eq!(refused(1), Refused::Address);
        let _third = admit(2).unwrap();
        assert_eq!(refused(2), Refused::All);
        drop(first);
        assert!(connections.admit_at(peer(2), begin + OLD).is_ok());
        assert_eq!(connections.inner.lock().all.connected, 2);
    }

    #[test]
    fn the_limit_in_all_includes_clients_that_are_negotiating() {
        let (connections, begin) = (connections(2, 9, 9), Instant::now());
        let _kept = connections.admit_at(None, begin).inspect(|a| a.keep().unwrap()).unwrap();
        let idle = connections.admit_at(None, begin).unwrap();
        let _newcomer = connections.admit_at(None, begin + OLD).unwrap();
        assert_eq!(idle.keep(), Err(Cut::Evicted));
    }

    #[test]
    fn the_number_of_evicted_clients_with_a_descriptor_is_bounded() {
        let (connections, begin) = (connections(999, 999, 1), Instant::now());
        let at = |n: u32| begin + OLD * n;
        let mut clients: Vec<_> =
            (0..=MAX_LEAVING as u32).map(|n| connections.admit_at(peer(1), at(n)).unwrap()).collect();
        let next = connections.admit_at(peer(1), at(1000)).map(|_| ());
        assert_eq!(next.unwrap_err(), Refused::Wait(LEAVE_TIME));
        clients.remove(0);
        assert!(connections.admit_at(peer(1), at(1000)).is_ok());
    }

    #[test]
    fn ipv6_clients_are_counted_by_their_64_bit_network() {
        let of = |text: &str| counted(Some(text.parse().unwrap()));
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:2"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_eq!(counted(None), None);
    }
}
