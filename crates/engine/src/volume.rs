//! A disk in memory: what the catalogue records of it, its write buffer, its block map.
//!
//! Locks, in the order in which they may be taken: the pool's freeze gate, `buffers`, `tree`. Each is held for
//! the time of a few look-ups and never across an await.

use std::sync::Arc;

use forebay_format::{BLOCK, DiskId, DiskRecord, Role, SyncMode};

use crate::buffer::Buffers;
use crate::classes::Classes;
use crate::map::Tree;
use crate::stats::GuestCounters;
use crate::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use crate::sync::{Mutex, RwLock};
use crate::warm::Cold;
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
    /// How often its block map was found damaged, since that was last known to be sound.
    map_damage: AtomicU64,
    /// Writes for whose commit something has to be read.
    pub cold: Cold,
    /// Writes that were acknowledged and are lost, ...
    lost_writes: AtomicU64,
    /// ... and how many of them a client has learned of.
    reported_losses: AtomicU64,
}

#[derive(Default)]
struct Clients {
    count: usize,
    /// Of these, the ones that have ended in good order and only finish what they had begun.
    leaving: usize,
    /// An operation is under way that no client may see half done.
    exclusive: bool,
    /// What stands between a desktop and its next client; see [`crate::reset`].
    reset: Reset,
    /// The desktop is becoming a persistent volume.
    persisting: bool,
}

/// Whether a desktop holds the data of a client that has left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Reset {
    /// It does not, or its client may reconnect.
    #[default]
    No,
    /// It does, and is to be reset before the next client attaches.
    Due,
    /// The reset is in a commit.
    Running,
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
            map_damage: AtomicU64::new(record.map_damaged.into()),
            record: RwLock::new(Arc::new(record)),
            buffers: Mutex::default(),
            tree: RwLock::new(tree),
            clients: Mutex::default(),
            guest: GuestCounters::default(),
            classes: Classes::default(),
            cold: Cold::default(),
            lost_writes: AtomicU64::new(0),
            reported_losses: AtomicU64::new(0),
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
    ///
    /// # Errors
    /// [`Error::InUse`]; [`Error::Resetting`] where the disk still holds what its last client wrote.
    pub fn attach(&self, name: &str) -> Result<usize> {
        let mut clients = self.clients.lock();
        if clients.reset != Reset::No {
            return Err(Error::Resetting(name.to_owned()));
        }
        if clients.exclusive {
            return Err(Error::InUse { name: name.to_owned(), clients: 1 });
        }
        clients.count += 1;
        Ok(clients.count)
    }

    /// Notes that a client ends in good order. When all have, a desktop that is reset at disconnect is due from this
    /// moment on, although requests of theirs may still be under way.
    pub fn leave(&self) {
        let mut clients = self.clients.lock();
        clients.leaving += 1;
        self.mark_if_left(&mut clients);
    }

    /// One client less, which may have called [`Volume::leave`] before. Whether a reset is due that had to wait for it.
    pub fn detach(&self, was_leaving: bool) -> bool {
        let mut clients = self.clients.lock();
        clients.count -= 1;
        clients.leaving -= usize::from(was_leaving);
        if clients.count > 0 {
            self.mark_if_left(&mut clients);
        }
        clients.count == 0 && clients.reset == Reset::Due
    }

    fn mark_if_left(&self, clients: &mut Clients) {
        let record = self.record();
        let resets = record.write_cache > 0 && record.reset_at_disconnect;
        if resets && clients.leaving == clients.count && clients.reset == Reset::No {
            clients.reset = Reset::Due;
        }
    }

    /// Marks a desktop as one that is to be reset before the next client attaches.
    pub fn require_reset(&self) {
        self.clients.lock().reset = Reset::Due;
    }

    /// Whether the disk holds what its last client wrote, and is to be reset.
    pub fn is_reset_due(&self) -> bool {
        self.clients.lock().reset != Reset::No
    }

    /// Takes a desktop that is due for its reset. `None` where it is not due any more; else whether it could be taken:
    /// while it has a client that leaves, or an operation has it, it cannot.
    pub fn begin_reset(&self) -> Option<bool> {
        let mut clients = self.clients.lock();
        if clients.reset == Reset::No {
            return None;
        }
        let free = clients.count == 0 && !clients.exclusive && !clients.persisting;
        // A mark that came while it became persistent: what it holds is to be kept.
        if free && self.record().write_cache == 0 {
            clients.reset = Reset::No;
            return None;
        }
        if free {
            clients.reset = Reset::Running;
        }
        Some(free)
    }

    /// The disk has the contents of another now. The log says so already.
    pub fn reset_done(&self) {
        self.clients.lock().reset = Reset::No;
    }

    /// A reset was not done, and is due again.
    pub fn reset_failed(&self) {
        let mut clients = self.clients.lock();
        if clients.reset == Reset::Running {
            clients.reset = Reset::Due;
        }
    }

    /// Keeps a desktop from being reset while it becomes a persistent volume.
    ///
    /// # Errors
    /// [`Error::Resetting`]: what it holds is to be forgotten.
    pub fn begin_persist(&self, name: &str) -> Result<()> {
        let mut clients = self.clients.lock();
        if clients.reset != Reset::No {
            return Err(Error::Resetting(name.to_owned()));
        }
        clients.persisting = true;
        Ok(())
    }

    /// Ends that. A desktop that was `kept` is none any more, and keeps what clients wrote that left meanwhile.
    pub fn end_persist(&self, kept: bool) {
        let mut clients = self.clients.lock();
        clients.persisting = false;
        if kept {
            clients.reset = Reset::No;
        }
    }

    /// Takes the disk for an operation that needs it without clients; ends when the guard goes.
    pub fn exclude_clients(self: &Arc<Volume>, name: &str) -> Result<Exclusive> {
        let mut clients = self.clients.lock();
        if clients.count > 0 || clients.exclusive || clients.reset == Reset::Running {
            return Err(Error::InUse { name: name.to_owned(), clients: clients.count.max(1) });
        }
        clients.exclusive = true;
        Ok(Exclusive(self.clone()))
    }

    /// Counts a write that was acknowledged and is lost; before the flush that waits for it is answered.
    pub fn note_lost_write(&self) {
        self.lost_writes.fetch_add(1, Relaxed);
    }

    /// Losses that a client learned of, whichever it was: where a new one begins to count.
    pub fn reported_losses(&self) -> u64 {
        self.reported_losses.load(Relaxed)
    }

    /// An error, once, where writes were lost since a client last asked. `seen` is what that client has learned of.
    pub fn check_losses(&self, seen: &AtomicU64) -> Result<()> {
        let lost = self.lost_writes.load(Relaxed);
        if seen.swap(lost, Relaxed) >= lost {
            return Ok(());
        }
        self.reported_losses.fetch_max(lost, Relaxed);
        let name = &self.record().name;
        Err(Error::Damaged(format!("a block of '{name}' of which a part was written: that write is lost")))
    }

    /// Marks the disk as one whose block map is damaged; see [`crate::damage`].
    pub fn note_map_damage(&self, why: &dyn std::fmt::Display) {
        if self.map_damage.fetch_add(1, Relaxed) == 0 {
            tracing::error!(disk = %self.record().name, "its block map is damaged: {why}");
        }
    }

    /// How often its block map was found damaged, since that was last known to be sound: 0 if it is.
    pub fn map_damage(&self) -> u64 {
        self.map_damage.load(Relaxed)
    }

    /// Whether it is known that a node of its block map cannot be read.
    pub fn has_damaged_map(&self) -> bool {
        self.map_damage() > 0
    }

    /// It has got the contents of another disk in place of what it held.
    pub fn inherit_map_damage(&self, source: &Volume) {
        self.map_damage.store(source.has_damaged_map().into(), Relaxed);
    }

    /// It has got a part of the contents of another disk.
    pub fn add_map_damage(&self, source: &Volume) {
        if source.has_damaged_map() {
            self.map_damage.fetch_max(1, Relaxed);
        }
    }

    /// All of the map was read as it was when [`Volume::map_damage`] was `found`: it is sound, if nothing was found since.
    pub fn map_is_sound(&self, found: u64) {
        if self.map_damage.compare_exchange(found, 0, Relaxed, Relaxed).is_ok() && found > 0 {
            tracing::info!(disk = %self.record().name, "its block map is sound again");
        }
    }

    /// An error where its contents are not to be copied, since its block map is damaged.
    pub fn check_map(&self, name: &str) -> Result<()> {
        match self.has_damaged_map() {
            true => Err(Error::MapDamaged(name.to_owned())),
            false => Ok(()),
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
