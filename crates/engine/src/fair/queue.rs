//! Decides which requests are admitted to a resource, and the order of the requests that wait.
//!
//! **Shares.** A flow is *active* while it uses the resource or waits for it. The share of an active flow is
//! the open part of the budget, divided by weight among the active flows and one more flow of the default
//! weight, which represents the next flow to become active. A flow is *below its share* if the request fits
//! into the share, or if the flow uses nothing. A request of such a flow may use the whole budget; any other
//! request leaves an eighth of the budget free. So a flow that uses little finds room at once, however much
//! the other flows request.
//!
//! **Order.** Each flow has a separate queue, in order of arrival. Flows are served by start-time fair
//! queueing: the start tag of the request at the front is the end of the flow's last request, but not before
//! the present virtual time; its end is later by its cost divided by the weight. Requests below their share
//! are served first, then the other requests; in both classes, the request with the lowest start tag is
//! first. The first request that does not fit ends the round, even if a later request would fit. A flow that
//! was above its share for a long time has an old tag. When this flow is served, its tag is raised to
//! [`MAX_LAG`] before the present virtual time, so that the flow does not precede the other flows for as long
//! as it waited.
//!
//! **No starvation.** The resource is given back after a finite time, and a request of any size fits when
//! nothing is used. Consider the request with the lowest tag among the requests below their share. No request
//! is admitted before it, not even a new request ([`Queue::may_pass`]), so the use falls until the request
//! fits. Each time a flow is served, the tags of its later requests rise by at least the cost of a request.
//! So every request below its share has the lowest tag in the end. A request above its share is below its
//! share at the latest when its flow uses nothing, and no other request of its flow is admitted before it.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use super::flow::{DEFAULT_WEIGHT, Flow, MAX_WEIGHT};

/// Bytes of a resource that a flow may use even beyond its share, if the budget permits: a flow that writes a
/// little now and then does not wait for others.
const SMALL: u64 = 64 << 10;
/// Unit of costs in virtual time.
const COST_UNIT: u64 = 512;
/// Maximum virtual time by which a tag lags behind the present: the virtual time of 4 MiB of a flow of the
/// default weight.
const MAX_LAG: u64 = (4 << 20) / COST_UNIT * MAX_WEIGHT / DEFAULT_WEIGHT;

/// The bytes of a resource that may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Budget {
    /// Bytes that all flows together may use.
    pub all: u64,
    /// The part of the budget that is divided into shares. A flow above its share leaves an eighth of this
    /// part free.
    pub open: u64,
}

impl Budget {
    /// A budget that is shared out as a whole.
    #[cfg(test)]
    pub fn of(bytes: u64) -> Budget {
        Budget { all: bytes, open: bytes }
    }

    /// The bytes that may be used after a request of a flow above its share.
    pub fn above(&self) -> u64 {
        (self.open - self.open / 8).min(self.all)
    }
}

/// The decision on a request.
#[derive(Debug, Clone, Copy)]
struct Decision {
    /// The flow of the request is below its share.
    is_below: bool,
    fits: bool,
}

/// A request that waits.
struct Entry<T> {
    number: u64,
    cost: u64,
    what: T,
}

/// The requests of one flow that wait; never empty.
struct Lane<T> {
    flow: Arc<Flow>,
    entries: VecDeque<Entry<T>>,
}

/// The place of a lane in the queue: the start tag of its first request, and the id of its flow.
type Place = (u64, u64);

/// Requests that wait; see the module documentation.
pub(crate) struct Queue<T> {
    /// The lanes, in the order of their tags.
    lanes: BTreeMap<Place, Lane<T>>,
    /// The start tag of each flow that has a lane.
    starts: HashMap<u64, u64>,
    /// Virtual time: the tag of the last request that was admitted.
    now: u64,
    /// Sum of the weights of the active flows: those that use bytes of the budget or have waiting requests.
    active: u64,
    next_number: u64,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Queue { lanes: BTreeMap::new(), starts: HashMap::new(), now: 0, active: 0, next_number: 0 }
    }
}

impl<T> Queue<T> {
    /// Number of requests that wait.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.lanes.values().map(|lane| lane.entries.len()).sum()
    }

    /// Bytes for which requests of a flow wait.
    #[cfg(test)]
    pub fn waiting_cost(&self, id: u64) -> u64 {
        let lane = self.place(id).and_then(|place| self.lanes.get(&place));
        lane.map_or(0, |lane| lane.entries.iter().map(|e| e.cost).sum())
    }

    fn place(&self, id: u64) -> Option<Place> {
        self.starts.get(&id).map(|start| (*start, id))
    }

    /// Adds the lane of a flow that had none.
    fn add_lane(&mut self, start: u64, lane: Lane<T>) {
        self.starts.insert(lane.flow.id(), start);
        self.lanes.insert((start, lane.flow.id()), lane);
    }

    fn remove_lane(&mut self, place: Place) -> Option<Lane<T>> {
        self.starts.remove(&place.1);
        self.lanes.remove(&place)
    }

    /// Updates the total weight of the active flows after a change of this flow.
    pub fn recount(&mut self, flow: &Flow) {
        let is_active = flow.used() > 0 || self.starts.contains_key(&flow.id());
        let weight = if is_active { flow.weight() } else { 0 };
        self.active = self.active + weight - flow.set_counted(weight);
    }

    /// Share of a flow in bytes.
    fn share(&self, flow: &Flow, budget: &Budget) -> u64 {
        let (weight, others) = (flow.weight(), self.active - flow.counted());
        let share =
            u128::from(budget.open) * u128::from(weight) / u128::from(weight + others + DEFAULT_WEIGHT);
        (share as u64).max(SMALL.min(budget.all / 8))
    }

    /// Decides on a request of a flow, when all flows together use `used` bytes.
    fn decide(&self, flow: &Flow, cost: u64, used: u64, budget: &Budget) -> Decision {
        let own = flow.used();
        let is_below = own == 0 || own + cost <= self.share(flow, budget);
        let most = if is_below { budget.all } else { budget.above() };
        Decision { is_below, fits: used == 0 || used + cost <= most }
    }

    /// Whether a new request is admitted before the requests that wait. `budget_of` returns the budget for a
    /// request of a flow; `None` if the flow is not considered now.
    pub fn may_pass(
        &self,
        flow: &Flow,
        cost: u64,
        used: u64,
        budget_of: impl Fn(&Flow, u64) -> Option<Budget>,
    ) -> bool {
        let decide = |flow: &Flow, cost: u64| {
            budget_of(flow, cost).map(|budget| self.decide(flow, cost, used, &budget))
        };
        let Some(Decision { is_below, fits: true }) = decide(flow, cost) else { return false };
        let precedes = |lane: &Lane<T>| {
            let first = lane.entries.front().and_then(|e| decide(&lane.flow, e.cost));
            first.is_some_and(|first| first.is_below || !is_below)
        };
        !self.starts.contains_key(&flow.id()) && !self.lanes.values().any(precedes)
    }

    /// Adds a request at the end of its flow's lane; returns the number of the request.
    pub fn push(&mut self, flow: &Arc<Flow>, cost: u64, what: T) -> u64 {
        self.next_number += 1;
        let entry = Entry { number: self.next_number, cost, what };
        match self.place(flow.id()).and_then(|place| self.lanes.get_mut(&place)) {
            Some(lane) => lane.entries.push_back(entry),
            None => {
                let lane = Lane { flow: flow.clone(), entries: VecDeque::from([entry]) };
                self.add_lane(self.now.max(flow.finish()), lane);
                self.recount(flow);
            }
        }
        self.next_number
    }

    /// Removes a request that waits; `None` if it does not wait any more.
    pub fn remove(&mut self, flow: &Arc<Flow>, number: u64) -> Option<T> {
        let place = self.place(flow.id())?;
        let lane = self.lanes.get_mut(&place)?;
        let at = lane.entries.iter().position(|e| e.number == number)?;
        let entry = lane.entries.remove(at)?;
        if lane.entries.is_empty() {
            self.remove_lane(place);
            self.recount(flow);
        }
        Some(entry.what)
    }

    /// Removes the first request of a lane, and charges its cost to its flow.
    fn take_first(&mut self, place: Place) -> Option<(Arc<Flow>, T)> {
        let mut lane = self.remove_lane(place)?;
        let entry = lane.entries.pop_front()?;
        let flow = lane.flow.clone();
        let start = place.0.max(self.now.saturating_sub(MAX_LAG));
        let finish = start + entry.cost.div_ceil(COST_UNIT).max(1) * MAX_WEIGHT / flow.weight().max(1);
        flow.set_finish(finish);
        self.now = self.now.max(start);
        match lane.entries.is_empty() {
            true => self.recount(&flow),
            false => self.add_lane(finish, lane),
        }
        Some((flow, entry.what))
    }

    /// Admits requests that wait, in order, until one does not fit. `used` returns the bytes in use, which
    /// `admit` increases; `budget_of` is that of [`Queue::may_pass`].
    pub fn drain(
        &mut self,
        used: impl Fn() -> u64,
        budget_of: impl Fn(&Flow, u64) -> Option<Budget>,
        mut admit: impl FnMut(&Flow, T),
    ) {
        for only_below in [true, false] {
            // Tags only increase, and no flow falls below its share in here: one pass suffices.
            let mut cursor = (0, 0);
            loop {
                let used = used();
                let next = self.lanes.range(cursor..).find_map(|(place, lane)| {
                    let cost = lane.entries.front()?.cost;
                    let decision = self.decide(&lane.flow, cost, used, &budget_of(&lane.flow, cost)?);
                    (decision.is_below || !only_below).then_some((*place, decision.fits))
                });
                match next {
                    None => break,
                    Some((_, false)) => return,
                    Some((place, true)) => {
                        cursor = place;
                        if let Some((flow, what)) = self.take_first(place) {
                            admit(&flow, what);
                            self.recount(&flow);
                        }
                    }
                }
            }
        }
    }

    /// Removes the requests for which `is_due` returns true.
    pub fn remove_if(&mut self, is_due: impl Fn(&Flow, u64) -> bool) -> Vec<(u64, T)> {
        let mut due = Vec::new();
        for lane in self.lanes.values() {
            let numbers =
                lane.entries.iter().filter(|e| is_due(&lane.flow, e.cost)).map(|e| (e.number, e.cost));
            due.extend(numbers.map(|(number, cost)| (lane.flow.clone(), number, cost)));
        }
        let take = |(flow, number, cost): (Arc<Flow>, u64, u64)| Some((cost, self.remove(&flow, number)?));
        due.into_iter().filter_map(take).collect()
    }
}
