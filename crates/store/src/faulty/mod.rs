//! A store for tests that injects failures, delays, bit rot and crashes, all pseudorandom from one seed.
//!
//! It models durability exactly as the contract guarantees it (see [`medium`]), and time as a number of
//! polls: an operation completes when its future was polled often enough or is dropped, so that a simulation
//! on one thread interleaves operations and replays them from the seed. A run is deterministic as long as one
//! thread drives it.
//!
//! A *crash* ends the current opening: operations in flight take effect in part, as chance decides, every
//! later call on the old handle fails, and [`FaultyStore::reopen`] returns a new one on the bytes that
//! survived.

mod faults;
mod image;
mod machine;
mod medium;
mod random;

use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use forebay_format::{SegmentId, Superblock};
use parking_lot::Mutex;

use self::machine::{Answer, Effect, Machine, crashed};
use crate::contract::{assert_aligned, refuse};
use crate::{BoxFuture, Capacity, Completion, IoBuf, ObjectStat, Result, Selection, Store};

pub use self::faults::{Fault, FaultyOp, When};
pub use self::image::Image;

/// The kind of a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    /// A power loss: any part of the unsynced data survives.
    PowerLoss,
    /// The process is killed: completed operations survive, and also the first part of an append in flight.
    /// Unsynced data can still be lost in the next power loss.
    Kill,
}

/// One opening of the machine's store.
pub struct FaultyStore {
    machine: Arc<Mutex<Machine>>,
    incarnation: u64,
}

impl FaultyStore {
    /// An empty store without faults, on a new machine.
    pub fn new(seed: u64) -> Arc<FaultyStore> {
        Arc::new(FaultyStore { machine: Arc::new(Mutex::new(Machine::new(seed))), incarnation: 0 })
    }

    /// Stops the machine now. This has no effect if it has stopped already, or if the store was opened again
    /// after this handle.
    pub fn crash(&self, kind: Crash) {
        let mut machine = self.machine.lock();
        if machine.alive && machine.incarnation == self.incarnation {
            machine.crash(kind);
        }
    }

    /// Stops the machine when it has begun operation number `op` (see [`FaultyStore::ops`]), while this
    /// operation is in flight.
    pub fn crash_at(&self, op: u64, kind: Crash) {
        self.machine.lock().crash_at = Some((op, kind));
    }

    /// Operations begun since the machine was created, over all openings.
    pub fn ops(&self) -> u64 {
        self.machine.lock().ops
    }

    /// Whether this opening has ended.
    pub fn has_crashed(&self) -> bool {
        let machine = self.machine.lock();
        !machine.alive || machine.incarnation != self.incarnation
    }

    /// Opens the store again. If the machine is still running, this kills the process that has it open first.
    /// Faults, delays and capacity remain set.
    pub fn reopen(&self) -> Arc<FaultyStore> {
        let mut machine = self.machine.lock();
        if machine.alive {
            machine.crash(Crash::Kill);
        }
        machine.alive = true;
        machine.incarnation += 1;
        Arc::new(FaultyStore { machine: self.machine.clone(), incarnation: machine.incarnation })
    }

    /// Adds a fault rule.
    pub fn inject(&self, op: FaultyOp, fault: Fault, when: When) {
        self.machine.lock().faults.add(op, fault, when);
    }

    /// Removes all fault rules.
    pub fn clear_faults(&self) {
        self.machine.lock().faults.clear();
    }

    /// Makes each read that covers any of these bytes of an object fail with EIO, as with an unreadable
    /// sector, until [`FaultyStore::mend_sectors`].
    pub fn break_sectors(&self, id: SegmentId, bytes: Range<u64>) {
        self.machine.lock().bad_sectors.push((id, bytes));
    }

    /// Makes all sectors readable again, with their old contents.
    pub fn mend_sectors(&self) {
        self.machine.lock().bad_sectors.clear();
    }

    /// Delays each operation by a random number of polls up to `max_polls`; 0 initially.
    pub fn set_delay(&self, max_polls: u32) {
        self.machine.lock().max_delay = max_polls;
    }

    /// Sets whether an append that requests it is durable when it has ended, so that the following sync does
    /// nothing. Initially false, so that each sync can be made to fail.
    pub fn set_syncs_appends(&self, syncs_appends: bool) {
        self.machine.lock().syncs_appends = syncs_appends;
    }

    /// Changes the capacity; 1 TiB initially.
    pub fn set_capacity(&self, bytes: u64) {
        self.machine.lock().capacity = bytes;
    }

    /// Sets a limit on the space in use that the capacity does not show, as a quota is; initially it has
    /// none. The store owns room only if it has a quota.
    pub fn set_quota(&self, bytes: Option<u64>) {
        self.machine.lock().set_quota(bytes);
    }

    /// Simulates a write-back by the kernel: the current contents of all objects survive later power losses.
    pub fn write_back(&self) {
        self.machine.lock().objects.values_mut().for_each(medium::Object::write_back);
    }

    /// Flips one bit of an object's byte at `offset`. Returns false if the byte does not exist.
    pub fn flip_bit(&self, id: SegmentId, offset: u64, bit: u8) -> bool {
        let mut machine = self.machine.lock();
        let byte = machine.objects.get_mut(&id).and_then(|object| object.view.get_mut(offset as usize));
        byte.map(|byte| *byte ^= 1 << (bit % 8)).is_some()
    }

    /// Flips a random bit of a random object; returns its position, or `None` if the store has no bytes.
    pub fn flip_any_bit(&self) -> Option<(SegmentId, u64)> {
        let mut machine = self.machine.lock();
        let Machine { random, objects, .. } = &mut *machine;
        let total = objects.values().map(|object| object.view.len() as u64).sum::<u64>();
        let mut at = random.below(total.max(1));
        for (id, object) in objects {
            if let Some(byte) = object.view.get_mut(at as usize) {
                *byte ^= 1 << random.below(8);
                return Some((*id, at));
            }
            at -= object.view.len() as u64;
        }
        None
    }

    /// Flips a random bit of a superblock copy. Returns false if the copy does not exist.
    pub fn flip_superblock_bit(&self, copy: usize) -> bool {
        let mut machine = self.machine.lock();
        let Machine { random, superblock, .. } = &mut *machine;
        let Some(bytes) = &mut superblock[copy].view else { return false };
        let at = random.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << random.below(8);
        superblock[copy].sync();
        true
    }

    fn start<T: Send + 'static>(&self, effect: Effect, answer: fn(Answer) -> T) -> Completion<T> {
        match self.machine.lock().begin(self.incarnation, effect) {
            Ok((op, polls)) => Completion::of(Pending { machine: self.machine.clone(), op, polls, answer }),
            Err(e) => refuse(e),
        }
    }
}

/// An operation in flight.
struct Pending<T> {
    machine: Arc<Mutex<Machine>>,
    op: u64,
    polls: u64,
    answer: fn(Answer) -> T,
}

impl<T> Future for Pending<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        if self.polls > 0 {
            self.polls -= 1;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let completed = self.machine.lock().complete(self.op);
        Poll::Ready(completed.unwrap_or_else(|| Err(crashed())).map(self.answer))
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        // An operation completes even if its future is dropped. This has no effect if the operation has
        // completed, or if a crash interrupted it.
        self.machine.lock().complete(self.op);
    }
}

fn done(_: Answer) {}

fn buf(answer: Answer) -> IoBuf {
    match answer {
        Answer::Buf(buf) => buf,
        _ => unreachable!("appends and reads return a buffer"),
    }
}

impl Store for FaultyStore {
    fn prepare(&self, id: SegmentId, expected: u64) -> Completion<()> {
        self.start(Effect::Prepare { id, expected }, done)
    }

    fn append(&self, id: SegmentId, offset: u64, data: IoBuf, expected: u64) -> Completion<IoBuf> {
        assert_aligned("append", id, offset, data.len());
        self.start(Effect::Append { id, offset, data, expected, synced: false }, buf)
    }

    fn append_synced(&self, id: SegmentId, offset: u64, data: IoBuf, expected: u64) -> Completion<IoBuf> {
        assert_aligned("append", id, offset, data.len());
        let synced = self.machine.lock().syncs_appends;
        self.start(Effect::Append { id, offset, data, expected, synced }, buf)
    }

    fn sync(&self, id: SegmentId) -> Completion<()> {
        if self.machine.lock().is_synced(self.incarnation, id) {
            return Completion::ended(Ok(()));
        }
        self.start(Effect::Sync { id, end: 0 }, done)
    }

    fn read(&self, id: SegmentId, offset: u64, len: usize) -> Completion<IoBuf> {
        assert_aligned("read", id, offset, len);
        self.start(Effect::Read { id, offset, len }, buf)
    }

    fn delete(&self, id: SegmentId) -> Completion<()> {
        self.start(Effect::Delete { id }, done)
    }

    fn list_lengths_of(&self, _: Selection) -> Completion<Vec<ObjectStat>> {
        self.start(Effect::List, |answer| match answer {
            Answer::Objects(objects) => objects,
            _ => unreachable!("a list returns objects"),
        })
    }

    fn read_superblock(&self) -> Completion<[Option<Vec<u8>>; 2]> {
        self.start(Effect::ReadSuperblock, |answer| match answer {
            Answer::Superblock(copies) => copies,
            _ => unreachable!("a read of the superblock returns its copies"),
        })
    }

    fn swap_superblock(&self, new: &Superblock) -> Completion<()> {
        self.start(Effect::Swap { new: Box::new(new.clone()) }, done)
    }

    fn reserve(&self, bytes: u64) -> BoxFuture<'static, ()> {
        self.machine.lock().reserve(bytes);
        Box::pin(std::future::ready(()))
    }

    fn capacity(&self) -> Completion<Capacity> {
        self.start(Effect::Capacity, |answer| match answer {
            Answer::Capacity(capacity) => capacity,
            _ => unreachable!("a capacity query returns the capacity"),
        })
    }
}
