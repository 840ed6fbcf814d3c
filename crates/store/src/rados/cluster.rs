//! The operations of RADOS that a pool uses: atomic operations on single objects of one namespace.
//!
//! [`super::librados`] implements these operations with a Ceph cluster, [`super::simulated`] in memory, for
//! tests. The logic of a pool uses only these operations, so the same code runs on both.
//!
//! **Guarantees that the logic builds on.** An operation takes effect as a whole or not at all. Operations of
//! one client on one object take effect in the order in which they were begun, except for [`Cluster::read`],
//! which may overtake writes that were not acknowledged yet. An operation whose answer was lost is repeated
//! by the client's library and takes effect once. An operation that was begun may take effect at any later
//! time, also after its client was paused for a long time: only a comparison within the operation prevents
//! this.

use std::sync::Arc;
use std::time::Duration;

use crate::{BoxFuture, Capacity, Completion, IoBuf, StoreError, Unsent};

/// Result of an operation, or its errno.
pub type Answer<T> = std::result::Result<T, Errno>;

/// An operation that has begun.
pub type Operation<T> = Completion<T, Errno>;

/// A positive error number of Linux, as RADOS returns them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

/// The error if the handler of a completed operation panicked.
impl Unsent for Errno {
    fn unsent() -> Errno {
        Errno(libc::EIO)
    }
}

/// A step of an atomic operation that may write.
#[derive(Debug, Clone)]
pub enum Step {
    /// Creates the object; fails with `EEXIST` if it exists.
    Create,
    /// Fails with `ENOENT` if the object does not exist.
    AssertExists,
    /// Fails with `ECANCELED` unless the attribute has this value. A missing attribute is empty.
    Require(&'static str, String),
    /// Fails with `ECANCELED` if the attribute is greater than this value; they are compared byte by byte.
    RequireAtMost(&'static str, String),
    /// Sets an attribute.
    Set(&'static str, String),
    /// Writes bytes at an offset. They are shared so that the caller gets its buffer back.
    Write(u64, Arc<IoBuf>),
    /// Adds entries with empty values to the object's map of keys and values.
    AddKeys(Vec<String>),
    /// Removes keys; missing keys are ignored.
    RemoveKeys(Vec<String>),
    /// Fails with `ECANCELED` unless the entry of this key has this value. The value of a missing entry is
    /// empty.
    RequireEntry(String, Vec<u8>),
    /// Sets the values of entries, which are added if they are missing.
    SetEntries(Vec<(String, Vec<u8>)>),
    /// Removes the object.
    Remove,
    /// Announces that appends will make the object grow to this size.
    Expect(u64),
}

/// What an operation does if the pool is full or over its quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenFull {
    /// The operation fails with `ENOSPC` or `EDQUOT` at once.
    Fail,
    /// The operation takes effect nevertheless. Used for operations that end the shortage, and for a few
    /// bytes.
    Proceed,
}

/// Attributes, keys and the first bytes of an object, as of one moment.
#[derive(Debug, Clone, Default)]
pub struct Contents {
    /// Attributes by name.
    pub attributes: Vec<(String, Vec<u8>)>,
    /// Keys of the object's map.
    pub keys: Vec<String>,
    /// The first bytes of the object, up to the requested number.
    pub bytes: Vec<u8>,
}

impl Contents {
    /// An attribute as text; empty if it is missing.
    pub fn attribute(&self, name: &str) -> String {
        attribute(&self.attributes, name)
    }
}

fn attribute(attributes: &[(String, Vec<u8>)], name: &str) -> String {
    let found = attributes.iter().find(|(n, _)| n == name);
    found.map_or_else(String::new, |(_, value)| String::from_utf8_lossy(value).into_owned())
}

/// Which entries of an object's map are read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Wanted {
    /// Those whose keys begin with this text. They are read in pages: each page is as of one moment.
    Prefix(String),
    /// Those with these keys, as of one moment. Missing entries are left out.
    Keys(Vec<String>),
}

/// Entries of an object's map, in the order of their keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Entries {
    /// Attributes by name, as of the same moment as the first page of the entries.
    pub attributes: Vec<(String, Vec<u8>)>,
    /// Keys and values.
    pub entries: Vec<(String, Vec<u8>)>,
}

impl Entries {
    /// An attribute as text; empty if it is missing.
    pub fn attribute(&self, name: &str) -> String {
        attribute(&self.attributes, name)
    }
}

/// The objects of one namespace of a RADOS pool. Every operation is begun by the call, in order, and
/// progresses without being polled.
pub trait Cluster: Send + Sync + 'static {
    /// The objects of another namespace of the same pool.
    ///
    /// # Errors
    /// If the client of the cluster cannot open it.
    fn beside(&self, namespace: &str) -> Result<Arc<dyn Cluster>, StoreError>;

    /// Executes the steps on an object, atomically.
    fn operate(&self, object: &str, steps: Vec<Step>, full: WhenFull) -> Operation<()>;

    /// Reads up to `len` bytes of an object; fewer only at its end.
    fn read(&self, object: &str, offset: u64, len: usize) -> Operation<IoBuf>;

    /// Reads attributes, keys and the first `len` bytes of an object.
    fn contents(&self, object: &str, len: usize) -> Operation<Contents>;

    /// Reads attributes and entries of an object's map.
    fn entries(&self, object: &str, wanted: Wanted) -> Operation<Entries>;

    /// The length of an object.
    fn len_of(&self, object: &str) -> Operation<u64>;

    /// The names of all objects.
    fn list(&self) -> Operation<Vec<String>>;

    /// Total and free space for data, in bytes.
    fn capacity(&self) -> Operation<Capacity>;

    /// Bytes that may be appended regardless of the limits while the pool is full.
    fn allowance(&self) -> u64 {
        128 << 20
    }

    /// Time since an arbitrary moment, including the time for which the machine was suspended. In a virtual
    /// machine, the time for which the hypervisor paused the machine may be missing.
    fn now(&self) -> Duration;

    /// A counter of the processor that continues to count while a hypervisor has paused this machine, if the
    /// processor has one.
    fn ticks(&self) -> Option<u64> {
        None
    }

    /// Completes after `time`.
    fn sleep(&self, time: Duration) -> BoxFuture<'static, ()>;

    /// Runs a task until it ends.
    fn spawn(&self, task: BoxFuture<'static, ()>);

    /// Runs a task and blocks until it ends, at most for this time.
    fn finish(&self, task: BoxFuture<'static, ()>, time: Duration);
}
