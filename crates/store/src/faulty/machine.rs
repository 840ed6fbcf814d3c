//! The machine under the faulty store: its objects, operations in flight, and crashes.
//!
//! An operation takes effect when it completes. Until then it is in `in_flight`, and a crash decides randomly
//! how much of it takes effect. An operation that a crash removed from `in_flight` can no longer change
//! anything, so a future from before the crash cannot affect the state of the next opening.

use std::collections::BTreeMap;
use std::ops::Range;

use forebay_format::{SegmentId, Superblock};

use super::Crash;
use super::faults::{Fault, Faults, FaultyOp};
use super::medium::{Object, SuperblockCopy};
use super::random::Random;
use crate::memory::slice_at;
use crate::reserve::{OwnedRoom, Purpose};
use crate::superblock::{check_swap, copy_of};
use crate::{Capacity, IoBuf, ObjectStat, Result, StoreError};

/// An operation, with the state captured when it began.
pub(super) enum Effect {
    Prepare { id: SegmentId, expected: u64 },
    Append { id: SegmentId, offset: u64, data: IoBuf, expected: u64, synced: bool },
    Sync { id: SegmentId, end: usize },
    Read { id: SegmentId, offset: u64, len: usize },
    Delete { id: SegmentId },
    List,
    ReadSuperblock,
    Swap { new: Box<Superblock> },
    Capacity,
}

impl Effect {
    fn op(&self) -> Option<FaultyOp> {
        match self {
            Effect::Prepare { .. } => Some(FaultyOp::Create),
            Effect::Append { .. } => Some(FaultyOp::Append),
            Effect::Sync { .. } => Some(FaultyOp::Sync),
            Effect::Read { .. } => Some(FaultyOp::Read),
            Effect::Delete { .. } => Some(FaultyOp::Delete),
            Effect::Swap { .. } => Some(FaultyOp::Swap),
            Effect::List => Some(FaultyOp::List),
            Effect::Capacity => Some(FaultyOp::Capacity),
            Effect::ReadSuperblock => None,
        }
    }
}

/// The result of an operation.
pub(super) enum Answer {
    Done,
    Buf(IoBuf),
    Objects(Vec<ObjectStat>),
    Superblock([Option<Vec<u8>>; 2]),
    Capacity(Capacity),
}

struct InFlight {
    effect: Effect,
    fault: Option<Fault>,
}

pub(super) struct Machine {
    pub(super) random: Random,
    pub(super) faults: Faults,
    /// Byte ranges of objects that cannot be read.
    pub(super) bad_sectors: Vec<(SegmentId, Range<u64>)>,
    pub(super) objects: BTreeMap<SegmentId, Object>,
    pub(super) superblock: [SuperblockCopy; 2],
    /// A superblock swap failed.
    superblock_lost: bool,
    pub(super) capacity: u64,
    /// A limit on the space in use, including the owned room. The reported capacity does not show this limit.
    pub(super) quota: Option<u64>,
    /// The room that the store owns. It exists only with a quota, and is part of the space in use.
    pub(super) owned: OwnedRoom,
    /// The room that the store was requested to own.
    wanted: u64,
    /// Maximum number of polls that an operation takes beyond the first.
    pub(super) max_delay: u32,
    /// Appends that request it are durable without a sync.
    pub(super) syncs_appends: bool,
    /// Number of operations begun since the machine was created.
    pub(super) ops: u64,
    pub(super) crash_at: Option<(u64, Crash)>,
    /// Number of the current opening of the store, and whether this opening has not crashed yet.
    pub(super) incarnation: u64,
    pub(super) alive: bool,
    in_flight: BTreeMap<u64, InFlight>,
}

/// The error of every operation on a machine that has crashed.
pub(super) fn crashed() -> StoreError {
    StoreError::Io { what: "store".into(), reason: "the machine has crashed".into(), errno: libc::ESHUTDOWN }
}

fn injected(fault: Fault, what: &str) -> StoreError {
    match fault {
        Fault::Full => StoreError::Full,
        _ => {
            let errno = if fault == Fault::NoFiles { libc::EMFILE } else { libc::EIO };
            StoreError::Io { what: what.into(), reason: "an injected fault".into(), errno }
        }
    }
}

impl Machine {
    pub(super) fn new(seed: u64) -> Machine {
        Machine {
            random: Random::new(seed),
            faults: Faults::default(),
            bad_sectors: Vec::new(),
            objects: BTreeMap::new(),
            superblock: Default::default(),
            superblock_lost: false,
            capacity: 1 << 40,
            quota: None,
            owned: OwnedRoom::default(),
            wanted: 0,
            max_delay: 0,
            syncs_appends: false,
            ops: 0,
            crash_at: None,
            incarnation: 0,
            alive: true,
            in_flight: BTreeMap::new(),
        }
    }

    /// Puts an operation in flight; returns its number, and the number of polls that it takes.
    pub(super) fn begin(&mut self, incarnation: u64, mut effect: Effect) -> Result<(u64, u64)> {
        if !self.alive || incarnation != self.incarnation {
            return Err(crashed());
        }
        match &mut effect {
            Effect::Prepare { id, expected } => {
                assert!(!self.objects.contains_key(id), "object {id} is created twice");
                self.check_room(*expected)?;
            }
            Effect::Append { id, offset, data, expected, .. } => {
                self.check_append(*id, *offset, data.len() as u64, expected)?;
            }
            Effect::Sync { id, end } => *end = self.object(*id)?.view.len(),
            _ => {}
        }
        let mut fault = effect.op().and_then(|op| self.faults.next_fault(op, &mut self.random));
        if let Effect::Append { id, offset: 0, .. } = &effect
            && !self.objects.contains_key(id)
        {
            fault = fault.or_else(|| self.faults.next_fault(FaultyOp::Create, &mut self.random));
        }
        let polls = self.random.below(u64::from(self.max_delay) + 1);
        self.ops += 1;
        self.in_flight.insert(self.ops, InFlight { effect, fault });
        if let Some((_, kind)) = self.crash_at.take_if(|(at, _)| *at <= self.ops) {
            self.crash(kind);
        }
        Ok((self.ops, polls))
    }

    /// Whether all data of the object is durable, so that a sync would have no effect.
    pub(super) fn is_synced(&self, incarnation: u64, id: SegmentId) -> bool {
        let is_open = self.alive && incarnation == self.incarnation;
        is_open && self.syncs_appends && self.objects.get(&id).is_some_and(Object::is_synced)
    }

    fn object(&mut self, id: SegmentId) -> Result<&mut Object> {
        self.objects.get_mut(&id).ok_or(StoreError::NotFound(id))
    }

    fn check_append(&mut self, id: SegmentId, offset: u64, len: u64, expected: &mut u64) -> Result<()> {
        let other = |op: &InFlight| matches!(&op.effect, Effect::Append { id: other, .. } if *other == id);
        assert!(!self.in_flight.values().any(other), "concurrent appends to object {id}");
        let before = match self.objects.get(&id) {
            None if offset > 0 => return Err(StoreError::NotFound(id)),
            None => 0,
            Some(object) if offset == 0 && !object.is_prepared => {
                return Err(StoreError::Io {
                    what: format!("create object {id}"),
                    reason: "it exists".into(),
                    errno: libc::EEXIST,
                });
            }
            Some(object) if object.end_unknown => {
                return Err(injected(Fault::Io, "append after a failed one"));
            }
            Some(object) => {
                assert_eq!(object.view.len() as u64, offset, "append to object {id} is not at its end");
                object.len()
            }
        };
        let after = before.max(offset + len).max(if offset == 0 { *expected } else { 0 });
        let preallocated = self.check_room(after - before);
        if preallocated.is_ok() || self.owned.goal == 0 {
            return preallocated;
        }
        // As in a directory, only the data itself may use the owned room.
        let more = before.max(offset + len) - before;
        while self.check_room(more).is_err() {
            let left = self.owned.without(more, Purpose::Data, IoBuf::ALIGN as u64);
            self.owned.held = left.ok_or(StoreError::Full)?;
        }
        *expected = (*expected).min(offset + len);
        Ok(())
    }

    /// Checks whether `more` bytes can be used. A store that uses more than its capacity, which may have
    /// shrunk, also refuses space that it has reserved.
    fn check_room(&self, more: u64) -> Result<()> {
        if self.used() + more > self.limit() { Err(StoreError::Full) } else { Ok(()) }
    }

    /// Maximum number of bytes that can be used.
    fn limit(&self) -> u64 {
        self.capacity.min(self.quota.unwrap_or(u64::MAX))
    }

    /// Makes the store own `bytes`, if it has a quota.
    pub(super) fn reserve(&mut self, bytes: u64) {
        self.wanted = bytes;
        self.set_quota(self.quota);
    }

    pub(super) fn set_quota(&mut self, quota: Option<u64>) {
        self.quota = quota;
        match quota {
            None => self.owned = OwnedRoom::default(),
            Some(_) => {
                self.owned.goal = self.wanted;
                self.replenish();
            }
        }
    }

    /// Holds as much of the owned room as there is room for.
    fn replenish(&mut self) {
        let missing = self.owned.goal.saturating_sub(self.owned.held);
        self.owned.held += missing.min(self.limit().saturating_sub(self.used()));
    }

    /// Space in use, including the space that appends in flight will take.
    fn used(&self) -> u64 {
        let pending = self.in_flight.values().map(|op| match &op.effect {
            Effect::Prepare { expected, .. } => *expected,
            Effect::Append { id, offset: 0, data, expected, .. } => {
                let len = self.objects.get(id).map_or(0, Object::len);
                (*expected).max(data.len() as u64).saturating_sub(len)
            }
            Effect::Append { id, offset, data, .. } => {
                let len = self.objects.get(id).map_or(0, Object::len);
                (offset + data.len() as u64).saturating_sub(len)
            }
            _ => 0,
        });
        self.objects.values().map(Object::len).sum::<u64>() + pending.sum::<u64>() + self.owned.held
    }

    /// Completes an operation; `None` if a crash interrupted the operation.
    pub(super) fn complete(&mut self, op: u64) -> Option<Result<Answer>> {
        let InFlight { effect, fault } = self.in_flight.remove(&op)?;
        Some(match effect {
            Effect::Prepare { id, expected } => self.prepare(id, expected, fault),
            Effect::Append { id, data, expected, synced, .. } => {
                let appended = self.append(id, data, expected, fault);
                if let (Ok(_), true, Some(object)) = (&appended, synced, self.objects.get_mut(&id)) {
                    object.write_through();
                }
                appended
            }
            Effect::Sync { id, end } => self.sync(id, end, fault),
            Effect::Read { id, offset, len } => self.read(id, offset, len, fault),
            Effect::Delete { id } => self.delete(id, fault),
            Effect::List | Effect::Capacity if fault.is_some_and(Fault::is_reported) => {
                Err(injected(fault.unwrap_or(Fault::Io), "the store"))
            }
            Effect::List => {
                let stats = self.objects.iter().map(|(id, object)| ObjectStat { id: *id, len: object.len() });
                Ok(Answer::Objects(stats.collect()))
            }
            Effect::ReadSuperblock => {
                Ok(Answer::Superblock(self.superblock.each_ref().map(|copy| copy.view.clone())))
            }
            Effect::Swap { new } => self.swap(&new, fault),
            Effect::Capacity => {
                self.replenish();
                let unused = self.capacity.saturating_sub(self.used());
                Ok(Answer::Capacity(self.owned.capacity(self.capacity, unused)))
            }
        })
    }

    fn prepare(&mut self, id: SegmentId, expected: u64, fault: Option<Fault>) -> Result<Answer> {
        if let Some(fault) = fault.filter(|f| f.is_reported()) {
            return Err(injected(fault, "prepare"));
        }
        let mut object = Object::new(expected);
        object.is_prepared = true;
        self.objects.insert(id, object);
        Ok(Answer::Done)
    }

    fn append(&mut self, id: SegmentId, data: IoBuf, expected: u64, fault: Option<Fault>) -> Result<Answer> {
        if matches!(fault, Some(Fault::Lost | Fault::Misdirected)) {
            if fault == Some(Fault::Misdirected) {
                self.write_elsewhere(&data);
            }
            let there = vec![0; data.len()];
            self.objects.entry(id).or_insert_with(|| Object::new(expected)).append(&there);
            return Ok(Answer::Buf(data));
        }
        let Some(fault) = fault.filter(|f| f.is_reported()) else {
            self.objects.entry(id).or_insert_with(|| Object::new(expected)).append(&data);
            return Ok(Answer::Buf(data));
        };
        let written = match fault {
            Fault::NoFiles => return Err(injected(fault, "append")),
            Fault::Short => 1 + self.random.below(data.len() as u64 - 1) as usize,
            Fault::Full => self.random.below((data.len() / IoBuf::ALIGN) as u64) as usize * IoBuf::ALIGN,
            _ if self.random.one_in(2) => data.len(),
            _ => 0,
        };
        if written > 0 || self.objects.contains_key(&id) {
            let object = self.objects.entry(id).or_insert_with(|| Object::new(expected));
            object.append(&data[..written]);
            object.lose(&mut self.random);
            object.end_unknown = true;
        }
        Err(injected(fault, "append"))
    }

    /// Overwrites page-aligned bytes of a random object, like a disk that writes to a wrong address.
    fn write_elsewhere(&mut self, data: &[u8]) {
        let fits = |o: &&mut Object| o.view.len() > data.len();
        let mut objects: Vec<_> = self.objects.values_mut().filter(fits).collect();
        if objects.is_empty() {
            return;
        }
        let chosen = self.random.below(objects.len() as u64) as usize;
        let view = &mut objects[chosen].view;
        let pages = (view.len() - data.len()) / IoBuf::ALIGN;
        let at = self.random.below(pages as u64 + 1) as usize * IoBuf::ALIGN;
        view[at..at + data.len()].copy_from_slice(data);
    }

    fn sync(&mut self, id: SegmentId, end: usize, fault: Option<Fault>) -> Result<Answer> {
        let object = self.objects.get_mut(&id).ok_or(StoreError::NotFound(id))?;
        match fault.filter(|f| f.is_reported()) {
            Some(Fault::NoFiles) => Err(injected(Fault::NoFiles, "sync")),
            Some(fault) => {
                object.lose(&mut self.random);
                Err(injected(fault, "sync"))
            }
            None => {
                object.sync(end);
                Ok(Answer::Done)
            }
        }
    }

    fn read(&mut self, id: SegmentId, offset: u64, len: usize, fault: Option<Fault>) -> Result<Answer> {
        let object = self.objects.get_mut(&id).ok_or(StoreError::NotFound(id))?;
        match fault {
            Some(Fault::Rot) => {
                let bits = slice_at(&object.view, offset, len).len() as u64 * 8;
                if bits > 0 {
                    let bit = self.random.below(bits);
                    object.view[(offset + bit / 8) as usize] ^= 1 << (bit % 8);
                }
            }
            Some(fault) if fault.is_reported() => return Err(injected(fault, "read")),
            _ => {}
        }
        let read = offset..offset + len as u64;
        if self.bad_sectors.iter().any(|(of, bad)| *of == id && bad.start < read.end && read.start < bad.end)
        {
            return Err(injected(Fault::Io, "read"));
        }
        let mut buf = IoBuf::from(slice_at(&object.view, offset, len));
        // The object reads as zeroes from its end up to the expected length.
        let end = object.len().saturating_sub(offset).min(len as u64);
        buf.resize(end as usize);
        Ok(Answer::Buf(buf))
    }

    fn delete(&mut self, id: SegmentId, fault: Option<Fault>) -> Result<Answer> {
        let fault = fault.filter(|f| f.is_reported());
        if fault.is_none() || fault != Some(Fault::NoFiles) && self.random.one_in(2) {
            self.objects.remove(&id);
        }
        fault.map_or(Ok(Answer::Done), |fault| Err(injected(fault, "delete")))
    }

    fn swap(&mut self, new: &Superblock, fault: Option<Fault>) -> Result<Answer> {
        if self.superblock_lost {
            return Err(injected(Fault::Io, "superblock swap after a failed one"));
        }
        check_swap(self.superblock.each_ref().map(|copy| copy.view.as_deref()), new)?;
        if fault == Some(Fault::NoFiles) {
            return Err(injected(Fault::NoFiles, "superblock swap"));
        }
        let copy = &mut self.superblock[copy_of(new)];
        if let Some(fault) = fault.filter(|f| f.is_reported()) {
            self.superblock_lost = true;
            copy.tear(&new.encode(), &mut self.random);
            return Err(injected(fault, "superblock swap"));
        }
        copy.view = Some(new.encode());
        self.superblock.iter_mut().for_each(SuperblockCopy::sync);
        Ok(Answer::Done)
    }

    /// Ends the current opening.
    pub(super) fn crash(&mut self, kind: Crash) {
        self.alive = false;
        self.crash_at = None;
        for (_, op) in std::mem::take(&mut self.in_flight) {
            self.interrupt(op.effect, kind);
        }
        if kind == Crash::PowerLoss {
            let random = &mut self.random;
            self.objects.retain(|_, object| object.lose_power(random));
            self.superblock.iter_mut().for_each(|copy| copy.lose_power(random));
        }
        self.objects.values_mut().for_each(|object| object.is_prepared = false);
        self.superblock_lost = false;
    }

    /// Decides how far an interrupted operation got. The effect of a power loss on the operation is decided
    /// later.
    fn interrupt(&mut self, effect: Effect, kind: Crash) {
        let coin = self.random.one_in(2);
        match effect {
            Effect::Prepare { id, expected } if coin => drop(self.objects.insert(id, Object::new(expected))),
            Effect::Append { id, data, expected, .. } => {
                // A kill leaves a prefix of the data. Before a power loss all data counts as written; it is
                // then lost by sectors.
                let len = data.len() as u64;
                let reached = match (kind, self.random.below(4)) {
                    (Crash::PowerLoss, _) | (_, 0) => len,
                    (Crash::Kill, 1) => 0,
                    (Crash::Kill, _) => self.random.below(len),
                };
                if reached > 0 || coin {
                    let object = self.objects.entry(id).or_insert_with(|| Object::new(expected));
                    object.append(&data[..reached as usize]);
                }
            }
            Effect::Sync { id, end } if coin => {
                if let Some(object) = self.objects.get_mut(&id) {
                    object.sync(end);
                }
            }
            Effect::Delete { id } if coin => {
                self.objects.remove(&id);
            }
            Effect::Swap { new } if !self.superblock_lost => {
                let copies = self.superblock.each_ref().map(|copy| copy.view.as_deref());
                if coin && check_swap(copies, &new).is_ok() {
                    // The copy is not synced: a power loss, now or after the next opening, can still tear it.
                    self.superblock[copy_of(&new)].view = Some(new.encode());
                }
            }
            _ => {}
        }
    }
}
