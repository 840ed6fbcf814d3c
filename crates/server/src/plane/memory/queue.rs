//! The claims that wait for memory, and those that were granted and whose connection has not noticed yet.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::task::Waker;

use super::Party;

/// A claim that waits.
pub(super) struct Waiting {
    pub bytes: usize,
    /// Bytes that its connection would hold with the grant.
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

/// The claims of a party by size class, then by order of arrival.
struct OfParty {
    party: Arc<Party>,
    claims: BTreeSet<(u32, u64)>,
}

#[derive(Default)]
pub(super) struct Queue {
    last_id: u64,
    /// Waiting claims in order of arrival.
    waiting: BTreeMap<u64, Waiting>,
    /// The same claims by party, which is identified by its address.
    by_party: HashMap<usize, OfParty>,
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
    /// Number of waiting claims.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Number of grants that were not taken yet.
    #[cfg(test)]
    pub fn grants(&self) -> usize {
        self.granted.len()
    }

    /// Adds a claim.
    pub fn add(&mut self, claim: Waiting) -> u64 {
        self.last_id += 1;
        let id = self.last_id;
        let of_party = self.by_party.entry(key(&claim.party));
        let of_party =
            of_party.or_insert_with(|| OfParty { party: claim.party.clone(), claims: BTreeSet::new() });
        of_party.claims.insert((size_class(claim.holds), id));
        self.waiting.insert(id, claim);
        id
    }

    /// The claim that has waited longest.
    pub fn oldest(&self) -> Option<u64> {
        self.waiting.first_key_value().map(|(id, _)| *id)
    }

    /// The next claim to be granted: of the parties that may have it, that of the one which would hold least;
    /// of its claims, that of the connection which would hold least.
    pub fn first(&self, permits: impl Fn(&Waiting) -> bool) -> Option<(u64, &Waiting)> {
        let firsts = self.by_party.values().filter_map(|of_party| {
            let (_, id) = of_party.claims.first()?;
            let claim = self.waiting.get(id)?;
            let holds = claim.holds.max(of_party.party.held() + claim.bytes);
            permits(claim).then_some((size_class(holds), *id, claim))
        });
        firsts.min_by_key(|(class, id, _)| (*class, *id)).map(|(_, id, claim)| (id, claim))
    }

    fn remove(&mut self, id: u64) -> Option<Waiting> {
        let claim = self.waiting.remove(&id)?;
        if let Some(of_party) = self.by_party.get_mut(&key(&claim.party)) {
            of_party.claims.remove(&(size_class(claim.holds), id));
            if of_party.claims.is_empty() {
                self.by_party.remove(&key(&claim.party));
            }
        }
        Some(claim)
    }

    /// Grants the bytes of a claim. Returns the waker to call.
    pub fn grant(&mut self, id: u64, of_reserve: bool) -> Option<Waker> {
        let Waiting { bytes, party, waker, .. } = self.remove(id)?;
        let grant = Grant { bytes, of_reserve };
        // Until the connection takes the grant, which then counts as held.
        party.add(grant.of_budget());
        self.granted.insert(id, Granted { grant, party });
        Some(waker)
    }

    /// Takes the grant of a claim; `None` while it waits: `waker` is called then.
    pub fn granted(&mut self, id: u64, waker: &Waker) -> Option<Grant> {
        if let Some(waiting) = self.waiting.get_mut(&id) {
            waiting.waker.clone_from(waker);
            return None;
        }
        self.take(id)
    }

    fn take(&mut self, id: u64) -> Option<Grant> {
        let Granted { grant, party } = self.granted.remove(&id)?;
        party.subtract(grant.of_budget());
        Some(grant)
    }

    /// Removes an abandoned claim. Returns its grant, if it was granted.
    pub fn leave(&mut self, id: u64) -> Option<Grant> {
        self.remove(id);
        self.take(id)
    }
}
