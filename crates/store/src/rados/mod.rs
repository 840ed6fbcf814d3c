//! A store in Ceph RADOS: a pool is the objects of one namespace.
//!
//! Modules, lowest first: [`cluster`] declares the operations of RADOS that are needed; [`librados`] and
//! [`simulated`] implement them; [`header`] is the layout of the pool's objects; [`ownership`] argues why no
//! late operation of an earlier owner has an effect; [`lease`] determines how long an owner may answer;
//! [`watch`], [`standby`] and [`handover`] decide when a server takes a pool; [`ops`] implements the contract
//! between engine and store; [`notice`] is the object by which owners publish data for other servers.

mod cluster;
mod connection;
mod fullness;
mod growing;
mod handover;
mod header;
mod images;
mod lease;
pub mod librados;
mod membership;
mod notice;
mod ops;
mod owner;
mod ownership;
mod patience;
mod pool_watch;
#[cfg(feature = "test-util")]
mod simulated;
mod standby;
mod watch;

use std::future::Future;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch as channel;

pub use self::cluster::{Answer, Cluster, Contents, Entries, Errno, Operation, Step, Wanted, WhenFull};
pub use self::connection::{HandedOver, Heir, PoolConnection};
use self::fullness::Fullness;
use self::growing::Growing;
pub use self::header::{HEADER as POOL_HEADER, digits};
use self::header::{Header, HeaderKeys};
pub use self::images::{ImageObjects, images_namespace};
use self::lease::{Lease, Moment};
use self::librados::LibradosCluster;
pub use self::membership::Membership;
pub use self::notice::{MAX_GROUPS, MAX_NOTICE, NoticeBoard, PoolView};
use self::owner::Owner;
pub use self::ownership::DEAD_AFTER;
use self::ownership::{
    BEAT_EVERY, Claimant, Taken, announce_serving, beat, fence, invite, release, take, taking_failed,
};
use self::patience::Patience;
pub use self::pool_watch::{PoolWatch, Sight};
#[cfg(feature = "test-util")]
pub use self::simulated::{Broken, GROUPS, SimulatedClient, SimulatedRados, World};
pub use self::standby::StandbyWatch;
use crate::{BoxFuture, Result, StoreError};

/// Maximum time for which a server waits when it gives its pool back.
const RELEASE_TIME: Duration = Duration::from_secs(3);

/// Location of a pool in a Ceph cluster: `rados:POOL/NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RadosAddress {
    /// The Ceph pool.
    pub pool: String,
    /// The name of our pool; its objects are in the namespace of this name.
    pub name: String,
}

/// How to reach the cluster.
#[derive(Debug, Clone, Default)]
pub struct RadosOptions {
    /// Path of the configuration file; `None` for the library's default, `/etc/ceph/ceph.conf`.
    pub conf: Option<PathBuf>,
    /// Name of the user without `client.`; `None` for `admin`.
    pub user: Option<String>,
}

/// What opening does while another server owns the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// Fail with [`StoreError::Busy`], unless the owner is dead.
    IfFree,
    /// Wait until the owner releases the pool or dies, and announce the wait, so that the owner can hand the
    /// pool over.
    Wait,
    /// Like `IfFree`; in addition, the pool is taken back if this server released it in `term`, although it
    /// is reserved for another server.
    Back {
        /// The term in which this server released the pool.
        term: u64,
    },
    /// As `IfFree`, and take the pool without observing its owner, if the owner has given no sign of life
    /// since another process of this host has found it silent ([`PoolWatch`]).
    Silent(SignOfLife),
}

/// The last sign of life of the owner of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignOfLife {
    /// Number of the ownership.
    pub term: u64,
    /// Number of the owner's heartbeat.
    pub beat: u64,
}

impl std::fmt::Display for SignOfLife {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.term, self.beat)
    }
}

impl FromStr for SignOfLife {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        let numbers =
            text.split_once('.').and_then(|(term, beat)| Some((term.parse().ok()?, beat.parse().ok()?)));
        let (term, beat) = numbers.ok_or_else(|| format!("{text:?} is not TERM.BEAT"))?;
        Ok(SignOfLife { term, beat })
    }
}

/// What the caller of an opening provides, if the opening may wait.
pub struct Waiting<'a> {
    /// Returns whether to give up waiting.
    pub is_cancelled: &'a (dyn Fn() -> bool + Sync),
    /// Called once with the name of the owner when the wait for a living owner begins.
    pub began: &'a (dyn Fn(&str) + Sync),
}

impl Waiting<'_> {
    /// A value for an opening that does not wait.
    pub const NONE: Waiting<'static> = Waiting { is_cancelled: &|| false, began: &|_| () };
}

/// Who owns a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ownership {
    /// Name of the owner, for messages; `None` if the owner has released the pool.
    pub owner: Option<String>,
    /// Name of the server for which a pool without an owner is reserved.
    pub reserved_for: Option<String>,
    /// Term of the ownership.
    pub term: u64,
    /// Whether the owner's heartbeat changes; `None` without an owner.
    pub alive: Option<bool>,
    /// Whether the owner has begun to serve clients.
    pub is_serving: bool,
    /// Number of segments to which the owner may be appending.
    pub open_segments: usize,
    /// Servers that wait to own the pool.
    pub standbys: Vec<Standby>,
}

/// A server that waits for a pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standby {
    /// Name of the server, for messages.
    pub server: String,
    /// Whether the server has renewed its announcement.
    pub alive: bool,
}

/// A store in RADOS.
pub struct RadosStore {
    shared: Arc<Shared>,
    is_writable: bool,
    /// Name of this server, as the header of the pool states it.
    owner: String,
    /// The previous owner, or the server for which the pool was reserved; empty if any server could take it.
    before: String,
}

/// State of the store that operations in flight use as well.
struct Shared {
    cluster: Arc<dyn Cluster>,
    /// The term of the ownership as text.
    term: String,
    keys: Arc<HeaderKeys>,
    growing: Arc<Growing>,
    fullness: Fullness,
    patience: Patience,
    lost: Lost,
    lease: Arc<Lease>,
    /// The server for which the pool is to be reserved when it is released.
    heir: Mutex<Option<Owner>>,
    /// The namespace of the cluster of which the pool is a shard; empty if it is that of a single server.
    shard_of: String,
    /// The segments of the images of that cluster, once one was read.
    images: OnceLock<ImageObjects>,
    /// The store was closed. Requests that are under way keep the other fields alive.
    is_closed: AtomicBool,
}

/// Set when the pool has another owner.
struct Lost(channel::Sender<bool>);

impl Lost {
    fn set(&self) {
        self.0.send_replace(true);
    }
}

impl RadosStore {
    /// Opens a pool for maintenance, and creates it if it is missing. Blocks; with [`Claim::Wait`] until the
    /// owner releases the pool or dies.
    ///
    /// # Errors
    /// [`StoreError::Busy`] if another server owns the pool; `ECANCELED` as [`StoreError::Io`] if cancelled;
    /// other errors of the system if the cluster cannot be reached.
    pub fn open(
        address: &RadosAddress,
        options: &RadosOptions,
        claim: Claim,
        waiting: &Waiting<'_>,
    ) -> Result<Arc<RadosStore>> {
        PoolConnection::new(address, options, Membership::Maintenance)?.claim(claim, waiting)
    }

    /// Opens a pool that no server owns, read-only. Blocks.
    ///
    /// # Errors
    /// As [`RadosStore::open`].
    pub fn open_read_only(address: &RadosAddress, options: &RadosOptions) -> Result<Arc<RadosStore>> {
        let cluster = LibradosCluster::connect(address, options)?;
        block_on(async {
            let seen = ownership::look(&*cluster, &Owner::this()).await?;
            match (seen.alive, seen.owner) {
                (Some(true), Some(owner)) => Err(StoreError::Busy(format!(" ({owner})"))),
                _ => {
                    let header = Header::read(&*cluster).await.map_err(taking_failed)?;
                    Ok(RadosStore::read_only(cluster.clone(), header.shard_of))
                }
            }
        })
    }

    fn read_only(cluster: Arc<dyn Cluster>, shard_of: String) -> Arc<RadosStore> {
        let shared = Shared::new(cluster, String::new(), shard_of);
        let (owner, before) = (String::new(), String::new());
        Arc::new(RadosStore { shared: Arc::new(shared), is_writable: false, owner, before })
    }

    async fn claim(
        cluster: Arc<dyn Cluster>,
        here: &Claimant,
        claim: Claim,
        waiting: &Waiting<'_>,
    ) -> Result<Arc<RadosStore>> {
        loop {
            let taken = take(&*cluster, here, claim, waiting).await?;
            let tries_again = matches!(claim, Claim::Back { .. });
            if let Some(store) =
                RadosStore::of_owner(cluster.clone(), &here.owner, taken, tries_again).await?
            {
                return Ok(store);
            }
        }
    }

    /// The store of the owner of a term, after the fence; `None` if another server has taken the pool over.
    /// The heartbeat begins before the fence, because the fence may take longer than the time after which
    /// other servers regard an owner as dead. If the fence fails, a server that tries again keeps a
    /// reservation.
    async fn of_owner(
        cluster: Arc<dyn Cluster>,
        owner: &Owner,
        taken: Taken,
        tries_again: bool,
    ) -> Result<Option<Arc<RadosStore>>> {
        let Taken { term, before, shard_of } = taken;
        let shared = Arc::new(Shared::new(cluster.clone(), digits(term), shard_of));
        cluster.spawn(Box::pin(keep(Arc::downgrade(&shared))));
        let store = Arc::new(RadosStore { shared, is_writable: true, owner: owner.to_string(), before });
        match fence(&*cluster, term).await {
            Ok(obsolete_keys) => {
                store.shared.keys.remove_later(obsolete_keys);
                Ok(Some(store))
            }
            Err(Errno(libc::ECANCELED)) => {
                store.shared.lost.set();
                Ok(None)
            }
            Err(e) => {
                if tries_again {
                    store.release_to(Heir(owner.clone()));
                }
                Err(taking_failed(e))
            }
        }
    }

    /// Opens a pool of a simulated cluster. If the store is dropped there, its server has crashed.
    #[cfg(feature = "test-util")]
    pub async fn open_simulated(
        cluster: Arc<SimulatedClient>,
        name: &str,
        claim: Claim,
    ) -> Result<Arc<RadosStore>> {
        let here = Claimant { owner: Owner::simulated(name), membership: Membership::Single };
        RadosStore::claim(cluster, &here, claim, &Waiting::NONE).await
    }

    /// Opens a pool of a cluster in which no time passes.
    #[cfg(feature = "test-util")]
    pub fn open_immediate(
        cluster: Arc<SimulatedClient>,
        name: &str,
        claim: Claim,
    ) -> Result<Arc<RadosStore>> {
        block_on(RadosStore::open_simulated(cluster, name, claim))
    }

    /// Name of this server, as the header of the pool states it.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// Term of the ownership.
    pub fn term(&self) -> u64 {
        u64::from_str_radix(&self.shared.term, 16).unwrap_or_default()
    }

    /// Whether no server had the pool since this server released it in `term`. If it was released to `heir`,
    /// the heir may have had it until this ownership began.
    pub fn continues(&self, term: u64, heir: Option<&Heir>) -> bool {
        let terms = self.term().saturating_sub(term);
        terms == 1 || (terms == 2 && heir.is_some_and(|heir| heir.text() == self.before))
    }

    /// The objects of another namespace of the same Ceph pool, reached by the same client of Ceph.
    ///
    /// # Errors
    /// If the client cannot open the namespace.
    pub fn beside(&self, namespace: &str) -> Result<Arc<dyn Cluster>> {
        self.shared.cluster.beside(namespace)
    }

    /// Watches the servers that wait for the pool.
    pub fn standbys(&self) -> StandbyWatch {
        StandbyWatch::new(self.shared.cluster.clone())
    }

    /// Announces to a standby that the pool is about to be released to it, so that the standby takes it
    /// without delay; `None` withdraws the announcement. Nothing is reserved yet.
    pub fn invite(&self, heir: Option<&Heir>) -> BoxFuture<'static, Result<()>> {
        let (shared, heir) = (self.shared.clone(), heir.map(|heir| heir.0.clone()));
        Box::pin(async move {
            let invited = invite(&*shared.cluster, &shared.term, heir.as_ref()).await;
            invited.map_err(|e| shared.failed("announcing the handover", None, e))
        })
    }

    /// Makes the store, when it is dropped, release the pool to this server: the pool is then reserved for it
    /// for some seconds.
    pub fn release_to(&self, heir: Heir) {
        *self.shared.heir.lock() = Some(heir.0);
    }

    /// Announces that this owner serves clients.
    pub fn announce_serving(&self) {
        let shared = self.shared.clone();
        self.shared.cluster.spawn(Box::pin(async move {
            if let Err(Errno(e)) = announce_serving(&*shared.cluster, &shared.term).await {
                tracing::warn!("the pool could not be marked as served (error {e})");
            }
        }));
    }

    /// Completes when another server has taken the pool over.
    pub fn lost(&self) -> BoxFuture<'static, ()> {
        let mut lost = self.shared.lost.0.subscribe();
        Box::pin(async move {
            if lost.wait_for(|lost| *lost).await.is_err() {
                // The store was closed.
                std::future::pending::<()>().await;
            }
        })
    }

    /// Returns a function that returns the rest of the lease: the time in which no other server can take the
    /// pool over. The function does not keep the store open.
    pub fn lease_left(&self) -> Arc<dyn Fn() -> Duration + Send + Sync> {
        let (lease, cluster) = (self.shared.lease.clone(), Arc::downgrade(&self.shared.cluster));
        Arc::new(move || {
            let left = |cluster: Arc<dyn Cluster>| lease.left(Moment::of(&*cluster));
            cluster.upgrade().map_or(Duration::ZERO, left)
        })
    }

    /// A function that returns whether it is certain that no other server has taken the pool over. The
    /// function does not keep the store open, and returns false after the store was closed.
    pub fn ownership(&self) -> Arc<dyn Fn() -> bool + Send + Sync> {
        let left = self.lease_left();
        Arc::new(move || !left().is_zero())
    }
}

impl Shared {
    fn new(cluster: Arc<dyn Cluster>, term: String, shard_of: String) -> Shared {
        let keys = HeaderKeys::new(cluster.clone(), term.clone());
        let lost = Lost(channel::Sender::new(false));
        Shared {
            cluster,
            term,
            keys,
            growing: Arc::default(),
            fullness: Fullness::default(),
            patience: Patience::default(),
            lost,
            lease: Arc::default(),
            heir: Mutex::default(),
            is_closed: AtomicBool::new(false),
            shard_of,
            images: OnceLock::new(),
        }
    }

    /// The segments of the images of the cluster; `None` if the pool belongs to no cluster.
    ///
    /// # Errors
    /// If the client of Ceph cannot open their namespace.
    fn images(&self) -> Result<Option<&ImageObjects>> {
        if self.shard_of.is_empty() {
            return Ok(None);
        }
        if self.images.get().is_none() {
            let namespace = self.cluster.beside(&images_namespace(&self.shard_of))?;
            // Another thread may have opened it.
            let _ = self.images.set(ImageObjects::new(namespace));
        }
        Ok(self.images.get())
    }
}

impl Drop for RadosStore {
    fn drop(&mut self) {
        self.shared.is_closed.store(true, Relaxed);
        // An operation that is under way keeps the cluster alive, and thus the function that returns the
        // remaining lease.
        self.shared.lease.end();
        if self.is_writable && !*self.shared.lost.0.borrow() {
            let (shared, heir) = (self.shared.clone(), self.shared.heir.lock().take());
            let give_back = async move {
                if let Err(Errno(e)) = release(&*shared.cluster, &shared.term, heir.as_ref()).await {
                    tracing::warn!("the pool was not given back (error {e}): the next server waits for 4 s");
                }
            };
            self.shared.cluster.finish(Box::pin(give_back), RELEASE_TIME);
        }
    }
}

/// Sends heartbeats until the store is closed or the pool is lost.
async fn keep(store: Weak<Shared>) {
    for count in 1.. {
        let Some(shared) = store.upgrade().filter(|shared| !shared.is_closed.load(Relaxed)) else { return };
        let sent = Moment::of(&*shared.cluster);
        match beat(&*shared.cluster, &shared.term, count).await {
            Ok(()) => {
                if let Some(missed) = shared.lease.extend(sent) {
                    tracing::warn!(
                        ?missed,
                        "the clock stood still, as while a hypervisor pauses this machine"
                    );
                }
            }
            Err(Errno(libc::ECANCELED | libc::ENOENT | libc::ESHUTDOWN)) => return shared.lost.set(),
            Err(Errno(e)) => tracing::warn!("a heartbeat failed (error {e})"),
        }
        let rest = shared.cluster.sleep(BEAT_EVERY);
        drop(shared);
        rest.await;
    }
}

/// Who owns a pool. Observes its owner for some seconds if it is not known to have ended.
///
/// # Errors
/// `ENOENT` as [`StoreError::Io`] if there is no such pool, and as [`RadosStore::open`].
pub fn ownership(address: &RadosAddress, options: &RadosOptions) -> Result<Ownership> {
    let cluster = LibradosCluster::connect(address, options)?;
    block_on(ownership::look(&*cluster, &Owner::this()))
}

/// The names of the pools in a Ceph pool.
///
/// # Errors
/// As [`RadosStore::open`].
pub fn list_pools(pool: &str, options: &RadosOptions) -> Result<Vec<String>> {
    librados::namespaces_with(pool, options, header::HEADER)
}

/// Translates an error that is not about a single segment.
fn store_error(what: &str, e: Errno) -> StoreError {
    match e {
        Errno(libc::ENOSPC | libc::EDQUOT) => StoreError::Full,
        // A comparison of terms failed, or this client was blocked by an administrator.
        Errno(libc::ECANCELED | libc::ESHUTDOWN) => StoreError::Fenced,
        Errno(errno) => {
            let reason = std::io::Error::from_raw_os_error(errno).to_string();
            StoreError::Io { what: what.to_owned(), reason, errno }
        }
    }
}

/// Waits for a future of a cluster, which progresses without being polled.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Thread(std::thread::Thread);
    impl Wake for Thread {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Thread(std::thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

impl FromStr for RadosAddress {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        let wrong = || format!("{text:?} is not the address of a pool: expected rados:POOL/NAME");
        let (pool, name) = text.strip_prefix("rados:").and_then(|t| t.split_once('/')).ok_or_else(wrong)?;
        let is_valid = |s: &str| {
            let valid = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
            !s.is_empty() && s.len() <= 64 && s.bytes().all(valid)
        };
        match is_valid(pool) && is_valid(name) {
            true => Ok(RadosAddress { pool: pool.to_owned(), name: name.to_owned() }),
            false => Err(format!("{} (letters, digits, '-', '_' and '.', at most 64)", wrong())),
        }
    }
}

impl std::fmt::Display for RadosAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rados:{}/{}", self.pool, self.name)
    }
}
