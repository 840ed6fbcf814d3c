//! The claims that wait for memory, and the claims that were granted but whose connection has not noticed
//! yet.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::task::Waker;

use super::Party;

/// A claim that waits for memory.
pub(super) struct Waiting {
    pub bytes: usize,
    /// Bytes that the claim's connection would hold with the grant.
    pub holds: usize,
    pub party: Arc<Party>,
    pub waker: Waker,
}

#[derive(Clone, Copy)]
pub(super) struct Grant {
    pub bytes: usize,
    pub of_reserve: bool,
}

impl Grant {
    /// Bytes of the budget without its reserve.
    fn of_budget(&self) -> usize {
        if self.of_reserve { 0 } else { self.bytes }
    }
}

/// The claims of a party that wait.
#[derive(Default)]
struct OfParty {
    /// Claims, ordered by size class, then by order of arrival.
    claims: BTreeSet<(u32, u64)>,
    /// The entry of the party's first claim in [`Queue::next`]; `None` if the party has used up its part.
    entry: Option<(u32, u64)>,
}

/// The queue of claims. Every operation takes logarithmic time, since all connections return memory while
/// some wait.
#[derive(Default)]
pub(super) struct Queue {
    last_id: u64,
    /// Waiting claims in order of arrival.
    waiting: BTreeMap<u64, Waiting>,
    /// The claims in `waiting` by party, which is identified by its address.
    by_party: HashMap<usize, OfParty>,
    /// The first claim of each party that may have more, ordered by the size class of what the party would
    /// hold.
    next: BTreeSet<(u32, u64)>,
    granted: HashMap<u64, Granted>,
    pub reserve_is_taken: bool,
}

struct Granted {
    grant: Grant,
    party: Arc<Party>,
}

/// The size class of a connection or party that holds `holds` bytes.
fn size_class(holds: usize) -> u32 {
    holds.max(1).ilog2()
}

fn key(party: &Arc<Party>) -> usize {
    Arc::as_ptr(party) as usize
}

impl Queue {
    /// Number of claims that wait.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Number of grants that were not taken yet.
    #[cfg(test)]
    pub fn grants(&self) -> usize {
        self.granted.len()
    }

    /// Adds a claim to the queue, and returns its number.
    pub fn add(&mut self, claim: Waiting) -> u64 {
        self.last_id += 1;
        let (id, party) = (self.last_id, claim.party.clone());
        self.by_party.entry(key(&party)).or_default().claims.insert((size_class(claim.holds), id));
        self.waiting.insert(id, claim);
        self.reconsider(&party);
        id
    }

    /// Considers the claims of a party again: the party may have more, or holds less than before, or its
    /// claims have changed.
    pub fn reconsider(&mut self, party: &Arc<Party>) {
        let Some(of_party) = self.by_party.get_mut(&key(party)) else { return };
        if let Some(entry) = of_party.entry.take() {
            self.next.remove(&entry);
        }
        let first = of_party.claims.first().and_then(|(_, id)| Some((*id, self.waiting.get(id)?)));
        let Some((id, claim)) = first else {
            self.by_party.remove(&key(party));
            return;
        };
        let entry = (size_class(claim.holds.max(party.held() + claim.bytes)), id);
        of_party.entry = Some(entry);
        self.next.insert(entry);
    }

    /// Ignores the claims of a party until [`Queue::reconsider`], because the party holds its maximum share.
    pub fn put_off(&mut self, party: &Arc<Party>) {
        let of_party = self.by_party.get_mut(&key(party));
        if let Some(entry) = of_party.and_then(|of_party| of_party.entry.take()) {
            self.next.remove(&entry);
        }
    }

    /// Returns the claim that has waited longest.
    pub fn oldest(&self) -> Option<u64> {
        self.waiting.first_key_value().map(|(id, _)| *id)
    }

    /// The next claim to be granted: of the party that would hold least, the claim of the connection that
    /// would hold least.
    pub fn first(&self) -> Option<(u64, &Waiting)> {
        let (_, id) = self.next.first()?;
        Some((*id, self.waiting.get(id)?))
    }

    /// Whether a claim of this party waits, or any claim for which `permits` is true.
    pub fn has(&self, party: &Arc<Party>, permits: impl Fn(&Waiting) -> bool) -> bool {
        let mut next = self.next.iter().filter_map(|(_, id)| self.waiting.get(id));
        self.by_party.contains_key(&key(party)) || next.any(permits)
    }

    fn remove(&mut self, id: u64) -> Option<Waiting> {
        let claim = self.waiting.remove(&id)?;
        if let Some(of_party) = self.by_party.get_mut(&key(&claim.party)) {
            of_party.claims.remove(&(size_class(claim.holds), id));
        }
        self.reconsider(&claim.party);
        Some(claim)
    }

    /// Grants the bytes of a claim. Returns the waker to call.
    pub fn grant(&mut self, id: u64, of_reserve: bool) -> Option<Waker> {
        let Waiting { bytes, party, waker, .. } = self.remove(id)?;
        let grant = Grant { bytes, of_reserve };
        // The grant counts for the party until the connection takes it; then it counts as held.
        party.add(grant.of_budget());
        self.granted.insert(id, Granted { grant, party });
        Some(waker)
    }

    /// Takes the grant of a claim; returns `None` while the claim waits, and calls `waker` when it is
    /// granted.
    pub fn granted(&mut self, id: u64, waker: &Waker) -> Option<Grant> {
        if let Some(waiting) = self.waiting.get_mut(&id) {
            waiting.waker.clone_from(waker);
            return None;
        }
        self.take(id).map(|granted| granted.grant)
    }

    fn take(&mut self, id: u64) -> Option<Granted> {
        let granted = self.granted.remove(&id)?;
        granted.party.subtract(granted.grant.of_budget());
        Some(granted)
    }

    /// Removes an abandoned claim. Returns the grant, if the claim was granted, and the party.
    pub fn leave(&mut self, id: u64) -> Option<(Grant, Arc<Party>)> {
        self.remove(id);
        self.take(id).map(|Granted { grant, party }| (grant, party))
    }
}
