//! Properties of the queue: shares, weights, no starvation; and the gate under cancellation.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use proptest::prelude::*;

use super::queue::{Budget, Queue};
use super::{Flow, Gate};

const BUDGET: u64 = 8 << 20;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// A resource whose bytes are given back in the order in which they were taken.
struct Resource {
    queue: Queue<u64>,
    flows: Vec<Arc<Flow>>,
    held: VecDeque<(usize, u64)>,
    /// Bytes that each flow was admitted.
    served: Vec<u64>,
    budget: Budget,
}

impl Resource {
    fn new(weights: &[u64]) -> Resource {
        let flows = weights.iter().enumerate().map(|(id, weight)| {
            let flow = Flow::new(id as u64);
            flow.set_weight(*weight);
            Arc::new(flow)
        });
        let served = vec![0; weights.len()];
        Resource {
            queue: Queue::default(),
            flows: flows.collect(),
            held: VecDeque::new(),
            served,
            budget: Budget::of(BUDGET),
        }
    }

    fn used(&self) -> u64 {
        self.held.iter().map(|(_, cost)| cost).sum()
    }

    fn hold(&mut self, id: usize, cost: u64) {
        self.flows[id].add(cost as i64);
        self.held.push_back((id, cost));
        self.served[id] += cost;
    }

    fn request(&mut self, id: usize, cost: u64) {
        let budget = self.budget;
        if self.queue.may_pass(&self.flows[id], cost, self.used(), |_, _| Some(budget)) {
            self.hold(id, cost);
            self.queue.recount(&self.flows[id]);
        } else {
            self.queue.push(&self.flows[id].clone(), cost, cost);
        }
    }

    /// Gives back the bytes that were taken first, and admits requests that wait.
    fn give_back(&mut self) {
        let Some((id, cost)) = self.held.pop_front() else { return };
        self.flows[id].add(-(cost as i64));
        self.queue.recount(&self.flows[id]);
        let (budget, before) = (self.budget, self.used());
        let (mut admitted, flows) = (Vec::new(), &self.flows);
        let used = std::cell::Cell::new(before);
        self.queue.drain(
            || used.get(),
            |_, _| Some(budget),
            |flow, cost| {
                used.set(used.get() + cost);
                flows[flow.id() as usize].add(cost as i64);
                admitted.push((flow.id() as usize, cost));
            },
        );
        for (id, cost) in admitted {
            self.held.push_back((id, cost));
            self.served[id] += cost;
        }
    }
}

/// Flows that always want more are served in proportion to their weights, whatever the sizes of their
/// requests.
#[test]
fn busy_flows_are_served_by_weight() {
    let weights = [100, 200, 400];
    let sizes = [64 * KIB, 1024 * KIB, 4 * KIB];
    let mut r = Resource::new(&weights);
    // Each has more requests waiting than it may use.
    let mut asked = [0; 3];
    for _ in 0..200_000 {
        for id in 0..3 {
            while asked[id] < r.served[id] + 2 * BUDGET {
                asked[id] += sizes[id];
                r.request(id, sizes[id]);
            }
        }
        r.give_back();
        if r.served.iter().sum::<u64>() > 100 * BUDGET {
            break;
        }
    }
    let unit = r.served.iter().sum::<u64>() as f64 / 7.0;
    for (id, part) in [1.0, 2.0, 4.0].iter().enumerate() {
        let off = r.served[id] as f64 / (unit * part);
        assert!((0.93..1.07).contains(&off), "flow {id}: {off}, {:?}", r.served);
    }
}

#[test]
fn a_flow_below_its_share_never_waits_for_those_above() {
    let mut r = Resource::new(&[100, 100]);
    for _ in 0..200 {
        r.request(0, 1024 * KIB);
    }
    for _ in 0..100 {
        let waiting = r.queue.len();
        r.request(1, 4 * KIB);
        assert_eq!(r.queue.len(), waiting, "it was admitted at once");
        r.give_back();
    }
}

proptest! {
    /// Every request is admitted after finitely many bytes are given back, although others of the same and
    /// of other flows keep arriving; those of a flow in order. The budget is kept.
    #[test]
    fn no_request_starves(
        weights in prop::collection::vec(1u64..10_000, 2..6),
        arrivals in prop::collection::vec((0usize..6, 1u64..3 * BUDGET), 1..60),
        victim in 0usize..6,
        cost in 1u64..2 * BUDGET,
    ) {
        let mut r = Resource::new(&weights);
        let victim = victim % weights.len();
        for (id, cost) in &arrivals {
            r.request(id % weights.len(), *cost);
        }
        let waiting_before: u64 = r.queue.waiting_cost(victim as u64);
        let target = r.served[victim] + waiting_before + cost;
        r.request(victim, cost);
        let mut rounds = 0;
        while r.served[victim] < target {
            let (id, cost) = arrivals[rounds % arrivals.len()];
            if id % weights.len() != victim {
                r.request(id % weights.len(), cost);
            }
            r.give_back();
            let largest = r.held.iter().map(|(_, cost)| *cost).max().unwrap_or(0);
            prop_assert!(r.used() <= BUDGET.max(largest), "{} bytes", r.used());
            rounds += 1;
            prop_assert!(rounds < 200_000, "request of {cost} bytes starves");
        }
    }

    /// Requests that leave the queue in any order leave nothing behind.
    #[test]
    fn the_queue_forgets_what_leaves(requests in prop::collection::vec((0usize..4, 1u64..BUDGET), 1..40)) {
        let flows: Vec<_> = (0..4).map(|id| Arc::new(Flow::new(id))).collect();
        let gate = Gate::default();
        let budget = |_: &Flow, _: u64| Some(Budget::of(BUDGET));
        let mut waiting: Vec<_> = requests
            .iter()
            .map(|(id, cost)| gate.enqueue(&flows[*id], (*cost, *cost)).unwrap())
            .collect();
        gate.drain(budget);
        while !waiting.is_empty() {
            let at = waiting.len() * 7 / 11;
            drop(waiting.remove(at));
            gate.drain(budget);
        }
        prop_assert_eq!((gate.used(), gate.has_waiting()), (0, false));
        prop_assert!(flows.iter().all(|flow| flow.used() == 0 && flow.counted() == 0));
        prop_assert!(gate.may(&flows[0], BUDGET, budget));
    }
}

/// Flows that were above their shares while another one was served many times: when it is above its share as
/// well, it does not wait until they have caught up.
#[test]
fn a_flow_does_not_make_up_for_all_that_it_lacked() {
    let mut queue = Queue::default();
    let [a, b] = [1, 2].map(|id| Arc::new(Flow::new(id)));
    let admit = |queue: &mut Queue<()>, most: usize| {
        let admitted = std::cell::RefCell::new(Vec::new());
        // All fits until `most` were admitted.
        let used = || if admitted.borrow().len() < most { 0 } else { BUDGET };
        queue.drain(used, |_, _| Some(Budget::of(BUDGET)), |flow, ()| admitted.borrow_mut().push(flow.id()));
        admitted.into_inner()
    };
    a.add(BUDGET as i64 / 2);
    queue.push(&a, MIB, ());
    for _ in 0..1000 {
        queue.push(&b, MIB, ());
        assert_eq!(admit(&mut queue, 1), [2], "it is below its share");
    }
    b.add(BUDGET as i64 / 2);
    for _ in 0..100 {
        queue.push(&a, MIB, ());
        queue.push(&b, MIB, ());
    }
    let admitted = admit(&mut queue, 40);
    let of_b = admitted.iter().filter(|id| **id == 2).count();
    assert!((15..=20).contains(&of_b), "{of_b} of {admitted:?}");
}

#[test]
fn requests_are_looked_at_again_only_after_bytes_were_given_back() {
    let gate = Gate::default();
    let [a, b] = [1, 2].map(|id| Arc::new(Flow::new(id)));
    assert!(gate.take(&a, (BUDGET, BUDGET), |_, _| Some(Budget::of(BUDGET))));
    let mut waiting = gate.enqueue(&b, (MIB, MIB)).unwrap();
    let looks = std::cell::Cell::new(0);
    let budget = |_: &Flow, _: u64| {
        looks.set(looks.get() + 1);
        Some(Budget::of(BUDGET))
    };
    let looked = || {
        gate.drain_returned(budget);
        looks.take() > 0
    };
    gate.drain(budget);
    assert!(looks.take() > 0 && !looked());
    // Bytes that move from a reservation to the buffers are given back and taken again.
    gate.add(&a, -(KIB as i64));
    gate.add(&a, KIB as i64);
    assert!(!looked());
    // Too few for the request: looking once is enough.
    gate.add(&a, -(KIB as i64));
    assert!(looked() && !looked());
    // Flow by flow at first, then at once.
    gate.give_back_later(&a, MIB);
    assert!(!looked());
    gate.give_back(MIB);
    assert!(looked());
    let mut cx = Context::from_waker(Waker::noop());
    assert!(matches!(pin!(waiting.admitted()).poll(&mut cx), Poll::Ready(Ok(()))));
    assert_eq!((gate.used(), a.used(), b.used()), (BUDGET - KIB, BUDGET - MIB - KIB, MIB));
    assert!(!looked());
}

#[test]
fn a_request_is_admitted_when_the_one_before_it_is_dropped() {
    let (gate, budget) = (Gate::default(), |_: &Flow, _: u64| Some(Budget::of(BUDGET)));
    let [a, b] = [1, 2].map(|id| Arc::new(Flow::new(id)));
    assert!(gate.take(&a, (BUDGET, BUDGET), budget));
    let first = gate.enqueue(&a, (BUDGET, BUDGET)).unwrap();
    let mut second = gate.enqueue(&b, (BUDGET, BUDGET)).unwrap();
    gate.drain(budget);
    let mut cx = Context::from_waker(Waker::noop());
    assert!(pin!(second.admitted()).poll(&mut cx).is_pending());
    gate.add(&a, -(BUDGET as i64));
    drop(first);
    gate.drain(budget);
    assert!(matches!(pin!(second.admitted()).poll(&mut cx), Poll::Ready(Ok(()))));
    assert_eq!((gate.used(), b.used(), a.used()), (BUDGET, BUDGET, 0));
}
