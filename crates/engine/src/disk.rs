//! A disk in memory: its catalogue record, write buffers and block map.
//!
//! Locks, in the order in which they may be taken: the pool's freeze gate, `buffers`, `tree`. Each is held
//! for a few look-ups and never across an await.

use std::sync::Arc;

use forebay_format::{BLOCK, DiskId, DiskRecord, Mark, Role, SyncMode};
use forebay_retained::{Flag, Retained};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::block_classes::Classes;
use crate::buffer::Buffers;
use crate::client::Clientele;
use crate::fair::Flow;
use crate::limit::Limiter;
use crate::map::{Touch, Tree};
use crate::memory::VALID;
use crate::occupied_blocks::Blocks;
use crate::stats::{Counter, GuestCounters};
use crate::streams::Streams;
use crate::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};
use crate::sync::{Mutex, RwLock};
use crate::text::shorten;
use crate::used_blocks::UsedBlocks;
use crate::{Count, Error, Result};

/// The beginning of the names of internal disks. No document has a name with a `/`.
pub(crate) const INTERNAL: &str = "internal/";

/// A disk: volume, snapshot, image, import or metadata disk.
pub(crate) struct Disk {
    id: DiskId,
    record: RwLock<Arc<DiskRecord>>,
    /// Size in bytes; a copy of the record's field for the fast path.
    size: AtomicU64,
    /// For a desktop: limit of its write buffer in bytes; otherwise 0.
    write_cache: AtomicU64,
    /// For a desktop: bytes in its write buffer.
    cached: AtomicI64,
    /// For a desktop: number of overflows, and the bytes of RAM that they freed.
    overflowed: Counter,
    /// The clients to which writes may be answered before the writes are durable: 0 none, 1 local, 2 all.
    /// Raised when the mark that permits it is durable; see [`crate::marks`].
    marked: AtomicU8,
    /// For a desktop: a writer waits for room.
    wants_room: AtomicBool,
    /// Reads of this disk are being recorded; see [`crate::profile`].
    is_recorded: AtomicBool,
    pub buffers: Mutex<Buffers>,
    /// The disk's use of the write buffers, unless it is a desktop.
    pub writes: Arc<Flow>,
    /// Reads of the disk's clients at the store.
    pub reads: Arc<Flow>,
    /// Reads at the store that are made ahead of the disk's clients.
    pub reads_ahead: Arc<Flow>,
    /// Sequential reads of the disk's clients.
    pub streams: Streams,
    /// Limits on the requests of the disk's clients.
    pub limiter: Limiter,
    /// The blocks that count for the quota of the tenant: those that the volume occupies, or that only the
    /// snapshot keeps.
    pub occupied: Arc<Blocks>,
    /// How much data it has that its origin does not have.
    pub used: UsedBlocks,
    pub tree: RwLock<Tree>,
    clients: Mutex<Clients>,
    pub guest: GuestCounters,
    pub classes: Classes,
    /// Number of times that the block map of the disk was found damaged, since the map was last known to be
    /// sound.
    map_damage: AtomicU64,
    retained: Arc<Retained>,
    /// Writes to the disk whose commit requires reads.
    pub cold: Cold,
    /// Number of acknowledged writes that are lost.
    lost_writes: AtomicU64,
    /// The part of `lost_writes` that was reported to at least one client.
    reported_losses: AtomicU64,
    /// See [`Disk::replacements`].
    replacements: AtomicU64,
}

#[derive(Default)]
struct Clients {
    /// The open handles.
    handles: usize,
    /// The clients of these handles: a handle can have several, or none.
    count: usize,
    /// The number of handles that have disconnected cleanly, and only complete requests that had begun.
    leaving: usize,
    /// An operation is under way whose intermediate state no client may see.
    exclusive: bool,
    /// Reset state of a desktop, which determines whether its next client can attach; see [`crate::desktop`].
    reset: Reset,
    /// The desktop is becoming a persistent volume.
    persisting: bool,
    /// For a desktop: the record in retained memory that its contents are valid. Without this record, the
    /// contents are discarded when the pool is opened. A desktop has the record from its first client until a
    /// reset is due.
    valid: Option<Flag>,
}

impl Clients {
    /// Records that the contents of the desktop are no longer valid. The next opening of the pool must see
    /// this even if the pool has latched.
    fn require_reset(&mut self) {
        self.reset = Reset::Due;
        if let Some(valid) = self.valid.take() {
            valid.withdraw();
        }
    }
}

/// Whether a desktop must be reset before its next client can attach.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Reset {
    /// The desktop need not be reset: it holds no data of a former client, or that client may reconnect.
    #[default]
    No,
    /// The desktop holds data of a client that has left.
    Due,
    /// The reset of the desktop is in a commit.
    Running,
}

/// The clients to which a mark permits answers before durability; see [`Disk::marked`]. Any mark permits them
/// for local clients: remote clients cannot use a disk with lost writes, and its mark is not removed before
/// they can.
fn permits(mark: Mark) -> u8 {
    match mark {
        Mark::None => 0,
        Mark::Local | Mark::Lost { .. } => Clientele::Local as u8,
        Mark::Remote => Clientele::Remote as u8,
    }
}

/// Number of blocks of a disk of `size` bytes.
pub(crate) fn blocks(size: u64) -> u64 {
    size.div_ceil(BLOCK as u64)
}

impl Disk {
    /// A disk whose writes are buffered in `retained`.
    pub fn new(record: DiskRecord, tree: Tree, retained: Arc<Retained>) -> Disk {
        Disk {
            buffers: Mutex::new(Buffers::new(retained.clone(), record.id)),
            retained,
            writes: Arc::new(Flow::new(record.id.0.into())),
            reads: Arc::new(Flow::new(record.id.0.into())),
            reads_ahead: Arc::new(Flow::new(record.id.0.into())),
            streams: Streams::default(),
            limiter: Limiter::default(),
            occupied: Arc::new(match record.role {
                Role::Snapshot => Blocks::of_snapshot(),
                _ => Blocks::new(record.origin.is_some()),
            }),
            used: UsedBlocks::new(&tree),
            id: record.id,
            size: AtomicU64::new(record.size),
            write_cache: AtomicU64::new(record.write_cache),
            cached: AtomicI64::new(0),
            overflowed: Counter::default(),
            marked: AtomicU8::new(permits(record.mark)),
            wants_room: AtomicBool::new(false),
            is_recorded: AtomicBool::new(false),
            map_damage: AtomicU64::new(record.map_damaged.into()),
            record: RwLock::new(Arc::new(record)),
            tree: RwLock::new(tree),
            clients: Mutex::default(),
            guest: GuestCounters::default(),
            classes: Classes::default(),
            cold: Cold::default(),
            lost_writes: AtomicU64::new(0),
            reported_losses: AtomicU64::new(0),
            replacements: AtomicU64::new(0),
        }
    }

    pub fn id(&self) -> DiskId {
        self.id
    }

    /// Whether reads of the disk are being recorded; see [`crate::profile`].
    pub fn is_recorded(&self) -> bool {
        self.is_recorded.load(Relaxed)
    }

    pub fn set_recorded(&self, is_recorded: bool) {
        self.is_recorded.store(is_recorded, Relaxed);
    }

    /// Records whether a writer of the desktop waits for room, which an overflow has to make.
    pub fn set_wants_room(&self, wants_room: bool) {
        self.wants_room.store(wants_room, Relaxed);
    }

    /// Whether a writer of the desktop waits for room, as set by [`Disk::set_wants_room`].
    pub fn wants_room(&self) -> bool {
        self.wants_room.load(Relaxed)
    }

    /// Returns [`Disk::wants_room`], and resets it to false.
    pub fn take_wants_room(&self) -> bool {
        self.wants_room.swap(false, Relaxed)
    }

    /// Counts an overflow, which freed `bytes` in RAM.
    pub fn count_overflow(&self, bytes: u64) {
        self.overflowed.add(bytes);
    }

    /// Number of overflows of the desktop, and the bytes of RAM that they freed.
    pub fn overflows(&self) -> Count {
        self.overflowed.get()
    }

    /// Changes the weight of the disk against other disks, for writes and for reads at the store.
    pub fn set_weight(&self, weight: u64) {
        [&self.writes, &self.reads, &self.reads_ahead].into_iter().for_each(|flow| flow.set_weight(weight));
    }

    /// The current record of the disk. The root and the height in it are not kept up to date.
    pub fn record(&self) -> Arc<DiskRecord> {
        self.record.read().clone()
    }

    /// Replaces the record. Only changes to the catalogue do this, in a commit or in recovery.
    ///
    /// Whether the disk is a desktop does not change: a desktop that is becoming a volume ceases to be a
    /// desktop before its record states that, and the log may have other changes of the record between these
    /// two.
    pub fn set_record(&self, record: DiskRecord) {
        self.size.store(record.size, Relaxed);
        *self.record.write() = Arc::new(record);
    }

    /// Works like [`Disk::set_record`]; also makes the disk a desktop or a volume as the record states.
    pub fn set_kind(&self, record: DiskRecord) {
        self.write_cache.store(record.write_cache, Relaxed);
        self.set_record(record);
    }

    /// Replaces the mark of the disk. The caller has written the new mark to the log.
    pub fn set_mark(&self, mark: Mark) {
        let record = DiskRecord { mark, ..(*self.record()).clone() };
        self.set_record(record);
        self.marked.store(permits(mark), Relaxed);
    }

    /// Whether a durable mark permits to answer writes of these clients before the writes are durable.
    pub fn is_marked_for(&self, clients: Clientele) -> bool {
        self.marked.load(Relaxed) >= clients as u8
    }

    /// Whether the disk has a mark that permits to answer writes before they are durable.
    pub fn is_marked(&self) -> bool {
        self.marked.load(Relaxed) > 0
    }

    /// Stops permitting answers before durability, although the mark is still in the log. Called while the
    /// freeze gate is closed.
    pub fn begin_unmark(&self) {
        self.marked.store(0, Relaxed);
    }

    /// Reverts [`Disk::begin_unmark`]: the mark stays in the log.
    pub fn keep_mark(&self) {
        self.marked.store(permits(self.record().mark), Relaxed);
    }

    pub fn size(&self) -> u64 {
        self.size.load(Relaxed)
    }

    /// Whether the disk is an internal disk of a front end; see `pool/internal.rs`.
    pub fn is_internal(&self) -> bool {
        let record = self.record();
        record.role == Role::Metadata && record.parent.is_none() && record.name.starts_with(INTERNAL)
    }

    /// Whether the disk is a desktop: its writes stay in RAM and are discarded by a restart; see
    /// [`crate::desktop`].
    pub fn is_desktop(&self) -> bool {
        self.write_cache() > 0
    }

    /// For a desktop: limit of its write buffer in bytes; otherwise 0.
    pub fn write_cache(&self) -> u64 {
        self.write_cache.load(Relaxed)
    }

    /// For a desktop: bytes in its write buffer.
    pub fn cached(&self) -> u64 {
        self.cached.load(Relaxed).max(0) as u64
    }

    /// Records growth of a desktop's write buffer; returns its new size.
    pub fn record_cached(&self, grown: i64) -> i64 {
        self.cached.fetch_add(grown, Relaxed) + grown
    }

    /// Makes the desktop a persistent disk, which is committed. Returns the bytes in its write buffer.
    pub fn leave_desktops(&self) -> i64 {
        self.write_cache.store(0, Relaxed);
        self.cached.swap(0, Relaxed)
    }

    /// Makes the disk a desktop with a limit of `write_cache` bytes and `cached` bytes in its write buffer.
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

    /// The number of clients that have the disk open.
    pub fn clients(&self) -> usize {
        self.clients.lock().count
    }

    /// Whether a handle of the disk is open.
    pub fn is_open(&self) -> bool {
        self.clients.lock().handles > 0
    }

    /// Replaces the number of clients that one handle has.
    pub fn change_clients(&self, before: usize, now: usize) {
        let mut clients = self.clients.lock();
        clients.count = clients.count - before + now;
    }

    /// Counts a handle, and one client that it has; returns the number of handles.
    ///
    /// # Errors
    /// [`Error::InUse`] while an operation has exclusive use of the disk; [`Error::Resetting`] if the disk
    /// still holds data of its last client.
    pub fn attach(&self, name: &str) -> Result<usize> {
        let mut clients = self.clients.lock();
        if clients.reset != Reset::No {
            return Err(Error::Resetting(name.to_owned()));
        }
        if clients.exclusive {
            return Err(Error::InUse { name: name.to_owned(), clients: 1 });
        }
        clients.handles += 1;
        clients.count += 1;
        if self.is_desktop() && clients.valid.is_none() {
            clients.valid = Some(self.retained.flag(self.id.0, VALID));
        }
        Ok(clients.handles)
    }

    /// Sets the record that the contents of a desktop are valid, which was found in retained memory.
    pub fn set_valid(&self, flag: Flag) {
        self.clients.lock().valid = Some(flag);
    }

    /// Records that a client disconnects cleanly. When all clients have disconnected cleanly, a desktop that
    /// is reset at disconnect becomes due for a reset at once, although requests of these clients may still
    /// be under way.
    pub fn record_clean_disconnect(&self) {
        let mut clients = self.clients.lock();
        clients.leaving += 1;
        self.mark_if_all_left(&mut clients);
    }

    /// Removes a handle with this number of clients; `was_leaving` states whether
    /// [`Disk::record_clean_disconnect`] was called for it. Returns whether a reset is due that had to wait
    /// for it.
    pub fn detach(&self, was_leaving: bool, count: usize) -> bool {
        let mut clients = self.clients.lock();
        clients.handles -= 1;
        clients.count -= count;
        clients.leaving -= usize::from(was_leaving);
        if clients.handles > 0 {
            self.mark_if_all_left(&mut clients);
        }
        clients.handles == 0 && clients.reset == Reset::Due
    }

    fn mark_if_all_left(&self, clients: &mut Clients) {
        let record = self.record();
        let resets = record.write_cache > 0 && record.reset_at_disconnect;
        if resets && clients.leaving == clients.handles && clients.reset == Reset::No {
            clients.require_reset();
        }
    }

    /// Marks a desktop as due for a reset before the next client attaches.
    pub fn require_reset(&self) {
        self.clients.lock().require_reset();
    }

    /// Whether the disk holds data of its last client, and must be reset.
    pub fn is_reset_due(&self) -> bool {
        self.clients.lock().reset != Reset::No
    }

    /// Begins the reset of a desktop that is due. Returns `None` if the reset is no longer due, otherwise
    /// whether it began. It cannot begin while the desktop has a client or an operation uses it.
    pub fn begin_reset(&self) -> Option<bool> {
        let mut clients = self.clients.lock();
        if clients.reset == Reset::No {
            return None;
        }
        let free = clients.handles == 0 && !clients.exclusive && !clients.persisting;
        // It became due while it was becoming persistent: its contents are kept.
        if free && self.record().write_cache == 0 {
            clients.reset = Reset::No;
            return None;
        }
        if free {
            clients.reset = Reset::Running;
        }
        Some(free)
    }

    /// Ends a reset: the disk now has the contents of its image, and the reset is in the log.
    pub fn reset_done(&self) {
        self.clients.lock().reset = Reset::No;
    }

    /// Records that the reset of the desktop failed, and is due again.
    pub fn reset_failed(&self) {
        let mut clients = self.clients.lock();
        if clients.reset == Reset::Running {
            clients.reset = Reset::Due;
        }
    }

    /// Prevents a desktop from being reset while it becomes a persistent volume.
    ///
    /// # Errors
    /// [`Error::Resetting`] if its contents are about to be discarded.
    pub fn begin_persist(&self, name: &str) -> Result<()> {
        let mut clients = self.clients.lock();
        if clients.reset != Reset::No {
            return Err(Error::Resetting(name.to_owned()));
        }
        clients.persisting = true;
        Ok(())
    }

    /// Ends [`Disk::begin_persist`]. If `kept` is true, the disk is persistent from now on, and keeps the
    /// writes of clients that disconnected in the meantime.
    pub fn end_persist(&self, kept: bool) {
        let mut clients = self.clients.lock();
        clients.persisting = false;
        if kept {
            clients.reset = Reset::No;
            clients.valid = None;
        }
    }

    /// Reserves the disk for an operation that requires a disk without clients. The reservation ends when the
    /// guard is dropped.
    pub fn exclude_clients(self: &Arc<Disk>, name: &str) -> Result<Exclusive> {
        let mut clients = self.clients.lock();
        if clients.handles > 0 || clients.exclusive || clients.reset == Reset::Running {
            return Err(Error::InUse { name: name.to_owned(), clients: clients.count.max(1) });
        }
        clients.exclusive = true;
        Ok(Exclusive(self.clone()))
    }

    /// How often the contents of the disk were replaced or cut off since the pool was opened: by a rollback,
    /// a reset, or by shrinking. It does not change while the disk has clients.
    pub fn replacements(&self) -> u64 {
        self.replacements.load(Relaxed)
    }

    /// Counts a replacement of the contents; called before another client can attach.
    pub fn count_replacement(&self) {
        self.replacements.fetch_add(1, Relaxed);
    }

    /// Forgets the replacements that recovery has repeated from the log.
    pub fn forget_replacements(&self) {
        self.replacements.store(0, Relaxed);
    }

    /// Counts an acknowledged write that is lost; called before the flush that waits for it is completed.
    pub fn record_lost_write(&self) {
        self.lost_writes.fetch_add(1, Relaxed);
    }

    /// Number of lost writes that were reported to at least one client. A new client begins with this number.
    pub fn reported_losses(&self) -> u64 {
        self.reported_losses.load(Relaxed)
    }

    /// Whether writes were lost since the client's last check.
    pub fn has_losses(&self, seen: &AtomicU64) -> bool {
        seen.load(Relaxed) < self.lost_writes.load(Relaxed)
    }

    /// Returns an error, once per client, if writes were lost since the client's last check. `seen` is the
    /// number of losses reported to that client.
    pub fn check_losses(&self, seen: &AtomicU64) -> Result<()> {
        let lost = self.lost_writes.load(Relaxed);
        if seen.swap(lost, Relaxed) >= lost {
            return Ok(());
        }
        self.reported_losses.fetch_max(lost, Relaxed);
        let name = &self.record().name;
        Err(Error::Damaged(format!("a partially written block of '{name}': that write is lost")))
    }

    /// Sets the damage flag of the disk, and counts the detection; see [`crate::read::damage`].
    pub fn record_map_damage(&self, why: &dyn std::fmt::Display) {
        if self.map_damage.fetch_add(1, Relaxed) == 0 {
            tracing::error!(disk = %self.record().name, "the block map is damaged: {why}");
        }
    }

    /// Number of times that the block map of the disk was found damaged since it was last known to be sound;
    /// 0 means sound.
    pub fn map_damage(&self) -> u64 {
        self.map_damage.load(Relaxed)
    }

    /// Whether a node of the disk's block map is known to be unreadable.
    pub fn has_damaged_map(&self) -> bool {
        self.map_damage() > 0
    }

    /// Replaces the damage flag when the contents of the disk were replaced by those of `source`.
    pub fn inherit_map_damage(&self, source: &Disk) {
        self.map_damage.store(source.has_damaged_map().into(), Relaxed);
    }

    /// Adds the damage flag of `source` when the disk received a part of its contents.
    pub fn add_map_damage(&self, source: &Disk) {
        if source.has_damaged_map() {
            self.map_damage.fetch_max(1, Relaxed);
        }
    }

    /// Clears the damage flag after the whole map was read, unless damage was found since. `found` is what
    /// [`Disk::map_damage`] returned for the state of the map that was read.
    pub fn map_is_sound(&self, found: u64) {
        if self.map_damage.compare_exchange(found, 0, Relaxed, Relaxed).is_ok() && found > 0 {
            tracing::info!(disk = %self.record().name, "the block map is sound again");
        }
    }

    /// Returns an error if the block map of the disk is damaged, so that the disk must not be copied by
    /// reference.
    pub fn check_map(&self, name: &str) -> Result<()> {
        match self.has_damaged_map() {
            true => Err(Error::MapDamaged(name.to_owned())),
            false => Ok(()),
        }
    }
}

/// Excludes clients from the disk until this guard is dropped.
pub(crate) struct Exclusive(Arc<Disk>);

impl Drop for Exclusive {
    fn drop(&mut self) {
        self.0.clients.lock().exclusive = false;
    }
}

/// The outstanding cold writes of a disk; see [`crate::commit::warm`].
#[derive(Default)]
pub(crate) struct Cold {
    touches: Mutex<Vec<Touch>>,
    /// Number of outstanding cold writes, including those whose reads are under way.
    count: AtomicUsize,
    /// Signalled when a cold write is no longer outstanding.
    fewer: Notify,
}

impl Cold {
    /// Number of outstanding cold writes, including those whose reads are under way.
    pub fn count(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// Adds cold writes; returns whether the list was empty before.
    pub fn push(&self, mut more: Vec<Touch>) -> bool {
        self.count.fetch_add(more.len(), Relaxed);
        let mut touches = self.touches.lock();
        let was_empty = touches.is_empty();
        touches.append(&mut more);
        was_empty
    }

    /// Takes the list. Its cold writes stay outstanding until [`Cold::done`].
    pub fn take(&self) -> Vec<Touch> {
        std::mem::take(&mut *self.touches.lock())
    }

    /// Completes when fewer cold writes are outstanding than at the time of this call.
    pub fn fewer(&self) -> Notified<'_> {
        self.fewer.notified()
    }

    /// Records that the reads for `count` cold writes are complete.
    pub fn done(&self, count: usize) {
        self.count.fetch_sub(count, Relaxed);
        self.fewer.notify_waiters();
    }
}

/// Returns an error if the disk is a desktop, for operations that require a disk that keeps its writes.
pub(crate) fn check_persistent(disk: &Disk, name: &str) -> Result<()> {
    if disk.is_desktop() {
        let (is, needs) = ("a desktop", "a volume that keeps its writes; 'volume persist' makes it one");
        return Err(Error::WrongKind { name: shorten(name), is, needs });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{parts, volume};

    /// A mark may be in the log between the end of the desktop and the record of the volume.
    #[tokio::test]
    async fn a_mark_does_not_make_a_volume_a_desktop_again() {
        let record = DiskRecord { write_cache: 1 << 20, ..volume(1, 1 << 20) };
        let disk = Disk::new(record.clone(), Tree::new(256), parts().await.reader.context().retained.clone());
        assert!(disk.is_desktop());
        disk.leave_desktops();
        disk.set_mark(Mark::Local);
        assert!(disk.is_marked() && !disk.is_desktop());
        disk.set_kind(record);
        assert!(disk.is_desktop());
    }
}
