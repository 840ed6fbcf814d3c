//! A registry of what is in progress now, such as sessions and connections. Whatever serves an entry
//! registers it; administrators see the list.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// The registered entries, in the order in which they began.
#[derive(Debug)]
pub struct Registry<T>(Arc<Mutex<Entries<T>>>);

#[derive(Debug)]
struct Entries<T> {
    next: u64,
    all: BTreeMap<u64, T>,
}

/// A registered entry. The entry ends when this guard is dropped.
#[derive(Debug)]
#[must_use = "the entry is listed until this is dropped"]
pub struct Registered<T> {
    registry: Registry<T>,
    id: u64,
}

impl<T> Default for Registry<T> {
    fn default() -> Registry<T> {
        Registry(Arc::new(Mutex::new(Entries { next: 0, all: BTreeMap::new() })))
    }
}

/// A clone is another handle of the same registry.
impl<T> Clone for Registry<T> {
    fn clone(&self) -> Registry<T> {
        Registry(self.0.clone())
    }
}

impl<T> Registry<T> {
    /// Adds an entry, which ends with the returned guard.
    pub fn begin(&self, entry: T) -> Registered<T> {
        let mut entries = self.0.lock();
        let id = entries.next;
        entries.next += 1;
        entries.all.insert(id, entry);
        Registered { registry: self.clone(), id }
    }

    /// The number of entries in the registry.
    pub fn count(&self) -> usize {
        self.0.lock().all.len()
    }
}

impl<T: Clone> Registry<T> {
    /// The entries for which `wanted` returns true, in the order in which they began.
    pub fn list(&self, wanted: impl Fn(&T) -> bool) -> Vec<T> {
        self.0.lock().all.values().filter(|entry| wanted(entry)).cloned().collect()
    }
}

impl<T> Drop for Registered<T> {
    fn drop(&mut self) {
        self.registry.0.lock().all.remove(&self.id);
    }
}
