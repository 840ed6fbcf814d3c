//! A store in memory, for tests and for pools that need not outlive the process.
//!
//! It enforces the contract strictly: a misuse that a file would accept silently (an append that is not at
//! the end, two concurrent appends, an unaligned offset) panics. Every operation is complete when the call
//! returns; the future only carries the result. Space is accounted as in a directory, with the expected
//! length of an object reserved when it is created, so that [`StoreError::Full`] occurs in the same cases.
//!
//! To model a process restart, pass the same `Arc` to the next opener; for crashes see
//! [`FaultyStore`](crate::FaultyStore).

use std::collections::BTreeMap;

use forebay_format::{SegmentId, Superblock};
use parking_lot::Mutex;

use crate::contract::assert_aligned;
use crate::superblock::{check_swap, copy_of};
use crate::{Capacity, Completion, IoBuf, ObjectStat, Result, Selection, Store, StoreError};

/// Default capacity.
const DEFAULT_CAPACITY: u64 = 1 << 40;

/// A store in memory.
pub struct MemoryStore {
    state: Mutex<State>,
}

struct State {
    objects: BTreeMap<SegmentId, Object>,
    superblock: [Option<Vec<u8>>; 2],
    capacity: u64,
    used: u64,
}

#[derive(Default)]
struct Object {
    bytes: Vec<u8>,
    /// The object was created ahead of its first append.
    is_prepared: bool,
    /// Accounted space: the larger of the appended and the expected length.
    reserved: u64,
}

/// The result of reading `bytes` at `offset`.
pub(crate) fn slice_at(bytes: &[u8], offset: u64, len: usize) -> &[u8] {
    let start = usize::try_from(offset).map_or(bytes.len(), |o| o.min(bytes.len()));
    &bytes[start..start.saturating_add(len).min(bytes.len())]
}

impl Default for MemoryStore {
    fn default() -> Self {
        MemoryStore::new()
    }
}

impl MemoryStore {
    /// Creates an empty store with a capacity of 1 TiB.
    pub fn new() -> MemoryStore {
        MemoryStore::with_capacity(DEFAULT_CAPACITY)
    }

    /// Creates an empty store with a capacity of `bytes`.
    pub fn with_capacity(bytes: u64) -> MemoryStore {
        let state = State { objects: BTreeMap::new(), superblock: [None, None], capacity: bytes, used: 0 };
        MemoryStore { state: Mutex::new(state) }
    }

    /// Changes the capacity in bytes. If more bytes are in use, appends that need space fail, but no data is
    /// lost.
    pub fn set_capacity(&self, bytes: u64) {
        self.state.lock().capacity = bytes;
    }

    /// Changes stored bytes in place, to simulate bit rot. Panics if the object does not exist.
    pub fn damage(&self, id: SegmentId, change: impl FnOnce(&mut Vec<u8>)) {
        change(&mut self.state.lock().objects.get_mut(&id).expect("the object to damage exists").bytes);
    }

    /// Replaces a superblock copy, to simulate damage or a write of another server.
    pub fn set_superblock(&self, copy: usize, bytes: Option<Vec<u8>>) {
        self.state.lock().superblock[copy] = bytes;
    }
}

impl State {
    fn prepare(&mut self, id: SegmentId, expected: u64) -> Result<()> {
        assert!(!self.objects.contains_key(&id), "object {id} is created twice");
        if self.used + expected > self.capacity.max(self.used) {
            return Err(StoreError::Full);
        }
        self.used += expected;
        self.objects.insert(id, Object { bytes: Vec::new(), is_prepared: true, reserved: expected });
        Ok(())
    }

    fn append(&mut self, id: SegmentId, offset: u64, data: IoBuf, expected: u64) -> Result<IoBuf> {
        assert_aligned("append", id, offset, data.len());
        let end = offset + data.len() as u64;
        let object = self.objects.get(&id);
        if offset == 0 {
            assert!(object.is_none_or(|o| o.is_prepared), "object {id} is created twice");
        } else {
            let Some(object) = object else { return Err(StoreError::NotFound(id)) };
            assert_eq!(object.bytes.len() as u64, offset, "append to object {id} is not at its end");
        }
        let before = object.map_or(0, |o| o.reserved);
        let reserved = match offset {
            0 => before.max(expected).max(end),
            // After the last append, space that was reserved beyond it is returned.
            _ if end == expected => end,
            _ => before.max(end),
        };
        if self.used - before + reserved > self.capacity.max(self.used) {
            return Err(StoreError::Full);
        }
        self.used = self.used - before + reserved;
        let object = self.objects.entry(id).or_default();
        (object.reserved, object.is_prepared) = (reserved, false);
        object.bytes.extend_from_slice(&data);
        Ok(data)
    }

    fn delete(&mut self, id: SegmentId) {
        if let Some(object) = self.objects.remove(&id) {
            self.used -= object.reserved;
        }
    }
}

impl Store for MemoryStore {
    fn prepare(&self, id: SegmentId, expected: u64) -> Completion<()> {
        Completion::ended(self.state.lock().prepare(id, expected))
    }

    fn append(&self, id: SegmentId, offset: u64, data: IoBuf, expected: u64) -> Completion<IoBuf> {
        Completion::ended(self.state.lock().append(id, offset, data, expected))
    }

    fn sync(&self, id: SegmentId) -> Completion<()> {
        let found = self.state.lock().objects.contains_key(&id);
        Completion::ended(if found { Ok(()) } else { Err(StoreError::NotFound(id)) })
    }

    fn read(&self, id: SegmentId, offset: u64, len: usize) -> Completion<IoBuf> {
        assert_aligned("read", id, offset, len);
        let state = self.state.lock();
        let object = state.objects.get(&id).ok_or(StoreError::NotFound(id));
        Completion::ended(object.map(|o| IoBuf::from(slice_at(&o.bytes, offset, len))))
    }

    fn delete(&self, id: SegmentId) -> Completion<()> {
        self.state.lock().delete(id);
        Completion::ended(Ok(()))
    }

    fn list_lengths_of(&self, _: Selection) -> Completion<Vec<ObjectStat>> {
        let state = self.state.lock();
        let stats = state.objects.iter().map(|(id, o)| ObjectStat { id: *id, len: o.bytes.len() as u64 });
        Completion::ended(Ok(stats.collect()))
    }

    fn read_superblock(&self) -> Completion<[Option<Vec<u8>>; 2]> {
        Completion::ended(Ok(self.state.lock().superblock.clone()))
    }

    fn swap_superblock(&self, new: &Superblock) -> Completion<()> {
        let mut state = self.state.lock();
        let checked = check_swap(state.superblock.each_ref().map(Option::as_deref), new);
        if checked.is_ok() {
            state.superblock[copy_of(new)] = Some(new.encode());
        }
        Completion::ended(checked)
    }

    fn capacity(&self) -> Completion<Capacity> {
        let state = self.state.lock();
        Completion::ended(Ok(Capacity::new(state.capacity, state.capacity.saturating_sub(state.used))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn append(store: &MemoryStore, id: u32, offset: u64, len: usize) -> Result<IoBuf> {
        store.state.lock().append(SegmentId(id), offset, IoBuf::zeroed(len), 0)
    }

    #[test]
    #[should_panic(expected = "is not at its end")]
    fn an_append_beyond_the_end_panics() {
        let store = MemoryStore::new();
        append(&store, 1, 0, 4096).unwrap();
        let _ = append(&store, 1, 8192, 4096);
    }

    #[test]
    #[should_panic(expected = "is created twice")]
    fn creating_twice_panics() {
        let store = MemoryStore::new();
        append(&store, 1, 0, 4096).unwrap();
        let _ = append(&store, 1, 0, 4096);
    }

    #[test]
    #[should_panic(expected = "is not a multiple of")]
    fn an_unaligned_append_panics() {
        let _ = append(&MemoryStore::new(), 1, 0, 100);
    }

    #[test]
    fn a_delete_returns_space() {
        let store = MemoryStore::with_capacity(8192);
        append(&store, 1, 0, 8192).unwrap();
        assert_eq!(append(&store, 2, 0, 4096).unwrap_err(), StoreError::Full);
        store.state.lock().delete(SegmentId(1));
        append(&store, 2, 0, 4096).unwrap();
    }
}
