//! Parties: what several connections hold together.

use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// The connections to one disk or target, of all threads.
#[derive(Default)]
pub(crate) struct Party {
    held: AtomicUsize,
}

impl Party {
    /// Bytes of the budget that the party's connections hold, or that were granted to them, without their
    /// base and without the reserve.
    pub fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    pub fn add(&self, bytes: usize) {
        self.held.fetch_add(bytes, Relaxed);
    }

    pub fn subtract(&self, bytes: usize) {
        self.held.fetch_sub(bytes, Relaxed);
    }
}

/// The parties with connections.
#[derive(Default)]
pub(super) struct Parties(Mutex<Named>);

#[derive(Default)]
struct Named {
    by_name: HashMap<String, Weak<Party>>,
    /// Number of names from which on parties without connections are removed.
    most: usize,
}

impl Parties {
    /// Returns the party of the connections to `what`.
    pub fn of(&self, what: &str) -> Arc<Party> {
        let mut named = self.0.lock();
        if let Some(party) = named.by_name.get(what).and_then(Weak::upgrade) {
            return party;
        }
        if named.by_name.len() >= named.most {
            named.by_name.retain(|_, party| party.strong_count() > 0);
            named.most = 2 * named.by_name.len() + 16;
        }
        let party = Arc::default();
        named.by_name.insert(what.to_owned(), Arc::downgrade(&party));
        party
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_without_connections_are_forgotten() {
        let parties = Parties::default();
        let kept = parties.of("kept");
        for n in 0..1000 {
            parties.of(&format!("disk {n}"));
        }
        assert!(Arc::ptr_eq(&kept, &parties.of("kept")));
        assert!(parties.0.lock().by_name.len() < 40);
    }
}
