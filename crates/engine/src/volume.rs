//! A disk in memory: what the catalogue records of it, its write buffer, its block map.
//!
//! Locks, in the order in which they may be taken: the pool's freeze gate, `buffers`, `tree`. Each is held for
//! the time of a few look-ups and never across an await.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};

use forebay_format::{BLOCK, DiskId, DiskRecord, Role, SyncMode};
use parking_lot::{Mutex, RwLock};

use crate::buffer::Buffers;
use crate::classes::Classes;
use crate::map::Tree;
use crate::stats::GuestCounters;
use crate::{Error, Result};

/// A volume, snapshot, image or import.
pub(crate) struct Volume {
    id: DiskId,
    record: RwLock<Arc<DiskRecord>>,
    /// Size in bytes; also in the record, here for the fast path.
    size: AtomicU64,
    /// Of a desktop: most bytes in its write buffer; else 0.
    write_cache: AtomicU64,
    /// Of a desktop: bytes in its write buffer.
    cached: AtomicI64,
    /// Of a desktop: a writer waits for room.
    pub wants_room: AtomicBool,
    /// What it reads is being recorded; see [`crate::profile`].
    pub is_recorded: AtomicBool,
    pub buffers: Mutex<Buffers>,
    pub tree: RwLock<Tree>,
    clients: Mutex<Clients>,
    pub guest: GuestCounters,
    pub classes: Classes,
    broken: OnceLock<String>,
}

#[derive(Default)]
struct Clients {
    count: usize,
    /// An operation is under way that no client may see half done.
    exclusive: bool,
}

/// Blocks of a disk of `size` bytes.
pub(crate) fn blocks(size: u64) -> u64 {
    size.div_ceil(BLOCK as u64)
}

impl Volume {
    pub fn new(record: DiskRecord, tree: Tree) -> Volume {
        Volume {
            id: record.id,
            size: AtomicU64::new(record.size),
            write_cache: AtomicU64::new(record.write_cache),
            cached: AtomicI64::new(0),
            wants_room: AtomicBool::new(false),
            is_recorded: AtomicBool::new(false),
            record: RwLock::new(Arc::new(record)),
            buffers: Mutex::default(),
            tree: RwLock::new(tree),
            clients: Mutex::default(),
            guest: GuestCounters::default(),
            classes: Classes::default(),
            broken: OnceLock::new(),
        }
    }

    pub fn id(&self) -> DiskId {
        self.id
    }

    /// The record as of now; its root and height are not kept up to date.
    pub fn record(&self) -> Arc<DiskRecord> {
        self.record.read().clone()
    }

    /// Replaces the record, of which only the commit makes new ones.
    pub fn set_record(&self, record: DiskRecord) {
        self.size.store(record.size, Relaxed);
        self.write_cache.store(record.write_cache, Relaxed);
        *self.record.write() = Arc::new(record);
    }

    pub fn size(&self) -> u64 {
        self.size.load(Relaxed)
    }

    /// Whether what is written to it stays in RAM, and is gone after a restart; see [`crate::desktop`].
    pub fn is_desktop(&self) -> bool {
        self.write_cache() > 0
    }

    /// Of a desktop: most bytes in its write buffer; else 0.
    pub fn write_cache(&self) -> u64 {
        self.write_cache.load(Relaxed)
    }

    /// Of a desktop: bytes in its write buffer.
    pub fn cached(&self) -> u64 {
        self.cached.load(Relaxed).max(0) as u64
    }

    /// Notes by how much the write buffer of a desktop grew; its size now.
    pub fn note_cached(&self, grown: i64) -> i64 {
        self.cached.fetch_add(grown, Relaxed) + grown
    }

    /// Makes it commit as others do. The bytes that are in its write buffer.
    pub fn leave_desktops(&self) -> i64 {
        self.write_cache.store(0, Relaxed);
        self.cached.swap(0, Relaxed)
    }

    /// Makes it a desktop, with so many bytes in its write buffer.
    pub fn join_desktops(&self, write_cache: u64, cached: i64) {
        self.cached.store(cached, Relaxed);
        self.write_cache.store(write_cache, Relaxed);
    }

    pub fn role(&self) -> Role {
        self.record.read().role
    }

    pub fn dedup_domain(&self) -> u32 {
        self.record.read().dedup_domain
    }

    pub fn sync(&self) -> SyncMode {
        self.record.read().sync
    }

    pub fn clients(&self) -> usize {
        self.clients.lock().count
    }

    /// Counts a client, unless an operation has the disk for itself; how many there are.
    pub fn attach(&self, name: &str) -> Result<usize> {
        let mut clients = self.clients.lock();
        if clients.exclusive {
            return Err(Error::InUse { name: name.to_owned(), clients: 1 });
        }
        clients.count += 1;
        Ok(clients.count)
    }

    /// One client less; how many are left.
    pub fn detach(&self) -> usize {
        let mut clients = self.clients.lock();
        clients.count -= 1;
        clients.count
    }

    /// Takes the disk for an operation that needs it without clients; ends when the guard goes.
    pub fn exclude_clients(self: &Arc<Volume>, name: &str) -> Result<Exclusive> {
        let mut clients = self.clients.lock();
        if clients.count > 0 || clients.exclusive {
            return Err(Error::InUse { name: name.to_owned(), clients: clients.count.max(1) });
        }
        clients.exclusive = true;
        Ok(Exclusive(self.clone()))
    }

    /// Marks the disk as one whose block map cannot be read any more.
    pub fn fail(&self, why: &Error) {
        if self.broken.set(why.to_string()).is_ok() {
            tracing::error!(disk = %self.record().name, "disk taken out of service: {why}");
        }
    }

    /// An error where the block map was found damaged while it was being changed: what the disk holds is not
    /// known any more.
    pub fn check_sound(&self) -> Result<()> {
        match self.broken.get() {
            Some(why) => Err(Error::Damaged(format!("the block map of '{}' ({why})", self.record().name))),
            None => Ok(()),
        }
    }
}

/// No client can attach while this lives.
pub(crate) struct Exclusive(Arc<Volume>);

impl Drop for Exclusive {
    fn drop(&mut self) {
        self.0.clients.lock().exclusive = false;
    }
}
