//! A limited number of places, of which each client has a share, so that one client cannot exclude other
//! clients.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;

/// The places that are taken, by client.
pub(crate) struct Places<K: Eq + Hash> {
    taken: Arc<Mutex<HashMap<K, usize>>>,
    /// Number of places of all clients, and of one.
    all: usize,
    of_one: usize,
}

/// A place. It is free again when it is dropped.
pub(crate) struct Place<K: Eq + Hash> {
    taken: Arc<Mutex<HashMap<K, usize>>>,
    client: K,
}

impl<K: Eq + Hash> Clone for Places<K> {
    fn clone(&self) -> Places<K> {
        Places { taken: self.taken.clone(), ..*self }
    }
}

impl<K: Eq + Hash + Clone> Places<K> {
    /// `all` places, of which one client can have `of_one`.
    pub fn new(all: usize, of_one: usize) -> Places<K> {
        Places { taken: Arc::default(), all, of_one }
    }

    /// A place for this client; `None` if the client has its share, or all places are taken.
    pub fn take(&self, client: K) -> Option<Place<K>> {
        let mut taken = self.taken.lock();
        let own = taken.get(&client).copied().unwrap_or(0);
        if own >= self.of_one || taken.values().sum::<usize>() >= self.all {
            return None;
        }
        taken.insert(client.clone(), own + 1);
        Some(Place { taken: self.taken.clone(), client })
    }

    /// Whether all places are free.
    #[cfg(test)]
    pub fn are_free(&self) -> bool {
        self.taken.lock().is_empty()
    }
}

impl<K: Eq + Hash> Drop for Place<K> {
    fn drop(&mut self) {
        let mut taken = self.taken.lock();
        if let Some(own) = taken.get_mut(&self.client) {
            *own -= 1;
            if *own == 0 {
                taken.remove(&self.client);
            }
        }
    }
}
