//! The retained memory of a pool: opened with the pool, and given back to the buffers of its disks.
//!
//! **The memory belongs to the pool.** The superblock names the memory that belongs to the pool. An opening
//! that does not find this memory replaces the name ([`MemoryState::Lost`]), after the loss is durably
//! recorded with the disks and before any client is served. So a memory is used only if the pool was not
//! opened without it in between. If an opening is interrupted before it replaces the name, the next opening
//! finds the loss again. An opening that fails leaves the memory as it was.
//!
//! **Records that are already in the log.** Under the lock of the log, a commit freezes the buffers and
//! states the following in the memory's *cover*: if history reaches the first batch of the group, all records
//! so far are in the log. Then the commit writes the group. A group is in history as a whole or not at all.
//! No batch of another group can have the number in the cover, for three reasons. If no part of a group is
//! written, for whatever reason, the commit withdraws the cover before it unlocks the log. After any other
//! failure of a group, no writer of this process gets the log ([`crate::commit`]). And an opening withdraws
//! the cover before it writes its first batch. If history reaches the cover, the records that it covers are
//! dropped:
//!
//! - The records of a disk that is committed are all dropped: its map has their data, or newer data from the
//!   same group, such as a copy.
//! - The records of a desktop are dropped only if the group replaced its contents. Otherwise an overflow is
//!   both in its map and in its records, with the same data.
//!
//! If history does not reach the cover, the records are kept, although batches of the interrupted group may
//! be on the store.
//!
//! **The history belongs to the memory.** Before a commit drops the records of its group, it states in the
//! memory's *floor* which batch history has reached. If history does not reach the floor, it lacks the
//! dropped records: the store was replaced by an older copy, or lost data that it had synced, or a copy of
//! the pool has used the memory. The writes that are left in the memory then lack earlier writes, so they are
//! not a prefix, and the whole memory counts as lost. Before anything is removed from the memory, the
//! superblock ceases to name it, since history may reach the floor at the next opening.
//!
//! **Desktops** keep their contents if the memory was kept and states that the contents are valid. The
//! contents of a desktop are valid from its first client on, until a reset is due. All other desktops are
//! reset ([`crate::desktop`]).

use std::collections::BTreeSet;
use std::sync::Arc;

use forebay_format::{DiskId, Role, Superblock};
use forebay_retained::{Contents, DamagedPage, Flag, Identity, Lost, Memory, Retained};
use hashbrown::HashMap;

use super::superblock::{Mode, random_id};
use crate::buffer::DiskRecords;
use crate::commit::Applier;
use crate::disk::{Disk, blocks};
use crate::memory::{NO_COVER, VALID, heap, limit};
use crate::{Error, Host, Mutation, PoolConfig, Result};

/// The retained memory of a pool that is being opened.
pub(crate) struct OpenedMemory {
    pub retained: Arc<Retained>,
    pub state: MemoryState,
}

impl OpenedMemory {
    fn new(retained: Arc<Retained>, state: MemoryState, config: &PoolConfig) -> OpenedMemory {
        // Each commit empties the buffers, and the writes after it fill them again.
        retained.keep_free(config.write_buffer);
        OpenedMemory { retained, state }
    }
}

/// Whether the retained memory has the contents that the last opening of the pool left in it.
pub(crate) enum MemoryState {
    /// The memory has these contents, or there were none.
    Kept(Contents),
    /// The memory does not have these contents, for this reason.
    Lost(String),
}

/// Opens the memory that the host provides for a pool, or formats it if it does not have the contents that
/// belong to the pool.
///
/// # Errors
/// [`Error::Memory`] if the host cannot provide memory, or provides one of a newer release, or new memory has
/// no room for any write.
pub(super) fn open_memory(
    host: &dyn Host,
    config: &PoolConfig,
    mode: Mode,
    superblock: &Superblock,
) -> Result<OpenedMemory> {
    let limit = limit(config);
    let memory: Arc<dyn Memory> = match mode {
        Mode::Own => host
            .memory(superblock.pool, superblock.memory, limit)
            .map_err(|e| Error::Memory(e.to_string()))?,
        Mode::Look => Arc::new(heap(limit)),
    };
    let identity = Identity { pool: superblock.pool.0, boot: host.boot_id() };
    let why = match Retained::open(memory.clone(), &identity, limit) {
        Ok((retained, contents)) if retained.id() == superblock.memory => {
            return Ok(OpenedMemory::new(retained, MemoryState::Kept(contents), config));
        }
        Ok(_) => "the retained memory is from an earlier opening of the pool".to_owned(),
        Err(newer @ Lost::NewerFormat { .. }) => {
            let what = "start that release, or remove the memory and accept the loss of what it holds";
            return Err(Error::Memory(format!("{newer}; {what}")));
        }
        Err(lost) => lost.to_string(),
    };
    let id = random_id(host);
    let no_room = |e| Error::Memory(format!("{e}; free some MiB there, or use another directory"));
    let retained = Retained::create(memory, &identity, id, limit).map_err(no_room)?;
    let state = match superblock.memory {
        0 => MemoryState::Kept(Contents::default()),
        _ => MemoryState::Lost(why),
    };
    Ok(OpenedMemory::new(retained, state, config))
}

/// The disks that lose writes with the memory, if such writes were answered before they were durable.
#[derive(Debug, Default)]
pub(crate) enum MemoryLoss {
    /// No disk loses writes.
    #[default]
    Nothing,
    /// All disks lose writes, for this reason.
    All(String),
    /// These disks lose writes.
    Some(BTreeSet<DiskId>),
}

impl MemoryLoss {
    /// Whether writes to this disk are lost.
    pub fn concerns(&self, disk: DiskId) -> bool {
        match self {
            MemoryLoss::Nothing => false,
            MemoryLoss::All(_) => true,
            MemoryLoss::Some(disks) => disks.contains(&disk),
        }
    }

    /// Why all disks lose writes; `None` if not all do.
    pub fn reason(&self) -> Option<&str> {
        match self {
            MemoryLoss::All(why) => Some(why),
            MemoryLoss::Nothing | MemoryLoss::Some(_) => None,
        }
    }
}

/// What the memory states about the disks of a recovered pool.
#[derive(Default)]
pub(crate) struct TakenOver {
    /// Disks whose buffers hold writes, and the cost of these buffers.
    pub dirty: Vec<(Arc<Disk>, u64)>,
    /// Desktops whose contents are valid.
    pub valid: Vec<(Arc<Disk>, Flag)>,
    /// The disks whose writes were lost with the memory.
    pub loss: MemoryLoss,
    /// The evidence of a partial loss, for the next opening if this one is interrupted.
    pub damaged_pages: Vec<DamagedPage>,
}

/// Gives the contents of retained memory back to the disks of a pool whose history ends with batch `head`.
/// `replaced` are the disks whose contents were replaced by a group, each with its sequence number.
pub(super) fn take_over(
    applier: &Applier,
    contents: Contents,
    head: u64,
    replaced: &[(DiskId, u64)],
) -> TakenOver {
    let (cx, catalogue) = (applier.context(), applier.catalogue.read());
    let mutation = cx.config.mutation;
    if mutation == Mutation::DropMemory {
        return TakenOver::default();
    }
    let covered = contents.cover.filter(|cover| cover.seq <= head && mutation != Mutation::IgnoreCover);
    let mut taken = TakenOver::default();
    if !contents.damaged.is_empty() {
        taken.loss = MemoryLoss::Some(contents.damaged.into_iter().map(DiskId).collect());
        taken.damaged_pages = contents.damaged_pages;
    }
    for (id, kind, flag) in contents.flags {
        let desktop = catalogue.get(DiskId(id)).filter(|disk| kind == VALID && disk.is_desktop());
        let valid = desktop.filter(|disk| !taken.loss.concerns(disk.id()));
        taken.valid.extend(valid.map(|disk| (disk.clone(), flag)));
    }
    let valid: BTreeSet<DiskId> = taken.valid.iter().map(|(desktop, _)| desktop.id()).collect();
    let is_valid = |disk: &Disk| valid.contains(&disk.id()) || mutation == Mutation::KeepInvalid;
    let is_kept = |disk: &Disk, order: u64| {
        let is_replaced = |seq| replaced.iter().any(|(id, at)| *id == disk.id() && *at >= seq);
        let in_log = covered
            .is_some_and(|cover| order < cover.order && (!disk.is_desktop() || is_replaced(cover.seq)));
        !in_log && disk.role() != Role::Import && (!disk.is_desktop() || is_valid(disk))
    };
    let disk_of = |id: u32, order: u64| catalogue.get(DiskId(id)).filter(|disk| is_kept(disk, order));
    let mut records: HashMap<DiskId, (Arc<Disk>, DiskRecords)> = HashMap::new();
    for (record, order, page) in contents.pages {
        if let Some(disk) = disk_of(record.disk, order).filter(|disk| record.block < blocks(disk.size())) {
            let (_, of_disk) = records.entry(disk.id()).or_insert_with(|| (disk.clone(), Default::default()));
            of_disk.blocks.push((record, page));
        }
    }
    for (record, order, range) in contents.ranges {
        if let Some(disk) = disk_of(record.disk, order).filter(|disk| record.end <= blocks(disk.size())) {
            let (_, of_disk) = records.entry(disk.id()).or_insert_with(|| (disk.clone(), Default::default()));
            of_disk.ranges.push((record, order, range));
        }
    }
    for (_, (disk, records)) in records {
        let cost = disk.buffers.lock().adopt(records);
        taken.dirty.push((disk, cost));
    }
    taken.dirty.sort_unstable_by_key(|(disk, _)| disk.id());
    let megabytes = taken.dirty.iter().map(|(_, cost)| cost).sum::<u64>() >> 20;
    if !taken.dirty.is_empty() {
        let disks = taken.dirty.len();
        tracing::info!("found {megabytes} MiB of writes to {disks} disks in the retained memory");
    }
    cx.retained.set_cover(NO_COVER);
    taken
}
