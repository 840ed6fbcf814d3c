//! A store in Ceph RADOS.

mod cluster;
pub mod librados;

pub use cluster::{Answer, Cluster, Contents, Errno, Step, WhenFull};

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use forebay_format::{SegmentId, Superblock};

use crate::{BoxFuture, Capacity, IoBuf, ObjectStat, Result, Store, StoreError};

/// Where a pool is in a Ceph cluster: `rados:POOL/NAME`.
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
    /// Configuration file; the library's default, `/etc/ceph/ceph.conf`, if `None`.
    pub conf: Option<PathBuf>,
    /// User without `client.`; `admin` if `None`.
    pub user: Option<String>,
}

impl FromStr for RadosAddress {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        let wrong = || format!("{text:?} is not the address of a pool: expected rados:POOL/NAME");
        let (pool, name) = text.strip_prefix("rados:").and_then(|t| t.split_once('/')).ok_or_else(wrong)?;
        let valid = |s: &str| {
            !s.is_empty()
                && s.len() <= 64
                && s.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        };
        match valid(pool) && valid(name) {
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

// Stub: the store follows.

/// What opening does if another server holds the pool.
pub enum Claim {
    /// Fail with `Busy` unless the owner is known to be dead.
    IfFree,
    /// Wait until the owner releases the pool or dies.
    Wait,
}

/// A pool in RADOS, opened for writing.
pub struct RadosStore;

impl RadosStore {
    /// Blocks until it is open; with [`Claim::Wait`] possibly for ever. Gives up with `Io` (`ECANCELED`) when
    /// `cancelled` returns true.
    pub fn open(
        _address: &RadosAddress,
        _options: &RadosOptions,
        _claim: Claim,
        _cancelled: &dyn Fn() -> bool,
    ) -> Result<Arc<RadosStore>> {
        Err(stub())
    }

    /// Opens it read-only.
    pub fn open_read_only(_address: &RadosAddress, _options: &RadosOptions) -> Result<Arc<RadosStore>> {
        Err(stub())
    }

    /// Completes when another server took the pool or this server's claim cannot be renewed any more.
    pub fn lost(&self) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }
}

/// Who holds a pool, for `forebay pool show`.
pub struct Ownership {
    /// The owner.
    pub owner: Option<String>,
    /// The term.
    pub term: u64,
    /// Whether it is alive.
    pub alive: Option<bool>,
    /// Objects to fence.
    pub objects_to_fence: usize,
}

/// Reads the ownership without changing it; observes the owner for about 4 s to tell whether it is alive.
pub fn ownership(_address: &RadosAddress, _options: &RadosOptions) -> Result<Ownership> {
    Err(stub())
}

/// Names of the pools (namespaces with a header) in a Ceph pool.
pub fn list_pools(_pool: &str, _options: &RadosOptions) -> Result<Vec<String>> {
    Err(stub())
}

fn stub() -> StoreError {
    let (what, reason) = ("opening the store".into(), "this build has no support for Ceph".into());
    StoreError::Io { what, reason, errno: libc::ENOSYS }
}

fn failed<T: Send + 'static>() -> BoxFuture<'static, Result<T>> {
    Box::pin(std::future::ready(Err(stub())))
}

impl Store for RadosStore {
    fn append(&self, _: SegmentId, _: u64, _: IoBuf, _: u64) -> BoxFuture<'_, Result<IoBuf>> {
        failed()
    }
    fn sync(&self, _: SegmentId) -> BoxFuture<'_, Result<()>> {
        failed()
    }
    fn read(&self, _: SegmentId, _: u64, _: usize) -> BoxFuture<'_, Result<IoBuf>> {
        failed()
    }
    fn delete(&self, _: SegmentId) -> BoxFuture<'_, Result<()>> {
        failed()
    }
    fn list(&self) -> BoxFuture<'_, Result<Vec<ObjectStat>>> {
        failed()
    }
    fn read_superblock(&self) -> BoxFuture<'_, Result<[Option<Vec<u8>>; 2]>> {
        failed()
    }
    fn swap_superblock(&self, _: &Superblock) -> BoxFuture<'_, Result<()>> {
        failed()
    }
    fn capacity(&self) -> BoxFuture<'_, Result<Capacity>> {
        failed()
    }
}
