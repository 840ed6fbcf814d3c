//! The limits of a disk and of its tenant, and the requests that wait for them.
//!
//! A request takes tokens of its disk and of its tenant at one moment, so it holds none while it waits.
//! **Order**: requests wait in a queue of their disk, and the first of them, when its disk has the tokens, in
//! the queue of its tenant: a slow disk does not delay other disks of its tenant. Each queue is an
//! asynchronous lock, which is granted in order of arrival; its holder waits for the tokens. Reads and writes
//! have separate queues, unless a limit applies to both together: otherwise small requests of one kind could
//! take the tokens for which a large request of the other kind waits. A request that is dropped leaves its
//! queues. **Cost without limits**: one relaxed load for each request.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::bucket::Bucket;
use super::rates::{Limits, Rate, RateLimits};
use super::usage::Usage;
use crate::Host;
use crate::fair::DEFAULT_WEIGHT;
use crate::stats::Counter;
use crate::sync::atomic::AtomicBool;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::{Mutex, RwLock};

/// Bytes of a request that count as one operation.
const OPERATION_BYTES: u64 = 256 << 10;
/// Maximum wait before the limits are checked again: a low rate waits long, on a clock that may jump.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// What a request does to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
}

/// Buckets of one unit: for reads and writes together, for reads, for writes.
#[derive(Debug, Default)]
struct Buckets([Option<Bucket>; 3]);

impl Buckets {
    fn set(&mut self, limits: &RateLimits, now: Duration) {
        let rates = [limits.total, limits.read, limits.write];
        for (bucket, rate) in self.0.iter_mut().zip(rates) {
            let changed = |rate: Rate| match bucket.as_ref() {
                Some(old) => old.with_rate(rate, now),
                None => Bucket::new(rate, now),
            };
            *bucket = rate.map(changed);
        }
    }

    fn of(&mut self, kind: Kind) -> impl Iterator<Item = &mut Bucket> {
        let [total, read, write] = &mut self.0;
        let own = if kind == Kind::Read { read } else { write };
        [total, own].into_iter().flatten()
    }
}

#[derive(Debug, Default)]
struct State {
    limits: Limits,
    iops: Buckets,
    bandwidth: Buckets,
}

impl State {
    fn delay(&mut self, kind: Kind, cost: Cost, now: Duration) -> Duration {
        let iops = self.iops.of(kind).map(|b| b.delay(cost.operations, now)).max();
        let bandwidth = self.bandwidth.of(kind).map(|b| b.delay(cost.bytes, now)).max();
        iops.max(bandwidth).unwrap_or_default()
    }

    fn take(&mut self, kind: Kind, cost: Cost) {
        self.iops.of(kind).for_each(|b| b.take(cost.operations));
        self.bandwidth.of(kind).for_each(|b| b.take(cost.bytes));
    }

    fn give_back(&mut self, kind: Kind, cost: Cost) {
        self.iops.of(kind).for_each(|b| b.give_back(cost.operations));
        self.bandwidth.of(kind).for_each(|b| b.give_back(cost.bytes));
    }
}

/// What a request costs, in operations and bytes.
#[derive(Debug, Clone, Copy)]
struct Cost {
    operations: u64,
    bytes: u64,
}

impl Cost {
    fn of(bytes: u64) -> Cost {
        Cost { operations: bytes.div_ceil(OPERATION_BYTES).max(1), bytes }
    }
}

/// The tokens of a request, or `None` if no limit applied to it. Dropping the tokens returns them to their
/// buckets, unless the request was made.
#[must_use]
pub(crate) struct Tokens<'a>(Option<(&'a Limiter, Kind, Cost)>);

impl Tokens<'_> {
    /// Tokens for a change to which no limit applies.
    pub fn none() -> Self {
        Tokens(None)
    }

    /// Uses up the tokens, because the request was made.
    pub fn use_up(mut self) {
        self.0 = None;
    }
}

impl Drop for Tokens<'_> {
    fn drop(&mut self) {
        if let Some((limiter, kind, cost)) = self.0 {
            limiter.give_back(kind, cost);
        }
    }
}

/// The limits of a disk or of a tenant.
#[derive(Debug, Default)]
pub(crate) struct Scope {
    state: Mutex<State>,
    /// Queues: the first for reads, or for all requests if a limit applies to reads and writes together; the
    /// second for writes.
    queues: [tokio::sync::Mutex<()>; 2],
    changed: Notify,
}

impl Scope {
    pub fn limits(&self) -> Limits {
        self.state.lock().limits
    }

    /// Replaces the limits. They apply to requests that wait, too.
    pub fn set(&self, limits: Limits, now: Duration) {
        let mut state = self.state.lock();
        state.iops.set(&limits.iops, now);
        state.bandwidth.set(&limits.bandwidth, now);
        state.limits = limits;
        drop(state);
        self.changed.notify_waiters();
    }

    /// Waits until there are tokens for a request.
    async fn wait(&self, kind: Kind, cost: Cost, host: &dyn Host) {
        loop {
            // The notification is created before the limits are checked.
            let changed = self.changed.notified();
            let delay = self.state.lock().delay(kind, cost, host.now());
            if delay.is_zero() {
                return;
            }
            tokio::select! {
                biased;
                () = changed => {}
                () = host.sleep(delay.min(LONGEST_WAIT)) => {}
            }
        }
    }

    fn queue(&self, kind: Kind) -> &tokio::sync::Mutex<()> {
        let limits = self.limits();
        let is_common = limits.iops.total.is_some() || limits.bandwidth.total.is_some();
        &self.queues[usize::from(kind == Kind::Write && !is_common)]
    }
}

/// A tenant: disks whose requests are limited together.
#[derive(Debug)]
pub(crate) struct Tenant {
    pub name: String,
    pub scope: Scope,
    pub usage: Usage,
    weights: Mutex<Weights>,
}

/// The weights of the disks of a tenant.
#[derive(Debug, Default)]
struct Weights {
    /// Number of disks with each weight.
    disks: BTreeMap<u64, usize>,
    /// The largest weight of a disk when the weights were last applied.
    applied: u64,
}

impl Weights {
    /// The disk weight that corresponds to the whole weight of the tenant.
    fn whole(&self) -> u64 {
        self.disks.keys().next_back().copied().unwrap_or_default().max(DEFAULT_WEIGHT)
    }
}

impl Tenant {
    /// A tenant without limits.
    pub fn new(name: &str) -> Tenant {
        Tenant {
            name: name.to_owned(),
            scope: Scope::default(),
            usage: Usage::default(),
            weights: Mutex::default(),
        }
    }

    /// Whether the largest weight of the tenant's disks has changed since the last call.
    pub fn has_other_weights(&self) -> bool {
        let mut weights = self.weights.lock();
        let whole = weights.whole();
        std::mem::replace(&mut weights.applied, whole).max(DEFAULT_WEIGHT) != whole
    }

    fn add_weight(&self, weight: u64) {
        *self.weights.lock().disks.entry(weight).or_default() += 1;
    }

    fn remove_weight(&self, weight: u64) {
        let disks = &mut self.weights.lock().disks;
        if let Some(count) = disks.get_mut(&weight) {
            *count -= 1;
            if *count == 0 {
                disks.remove(&weight);
            }
        }
    }
}

/// The weight of these limits.
fn weight(limits: Limits) -> u64 {
    limits.weight.map_or(DEFAULT_WEIGHT, u64::from)
}

/// Limits the requests of one disk; see the module documentation.
#[derive(Debug, Default)]
pub(crate) struct Limiter {
    /// Whether the disk or its tenant has limits.
    is_limited: AtomicBool,
    own: Scope,
    tenant: RwLock<Option<Arc<Tenant>>>,
    /// Number of requests that waited because of a limit, and the microseconds that they waited.
    pub waited: Counter,
}

impl Limiter {
    /// The limits of the disk itself.
    pub fn limits(&self) -> Limits {
        self.own.limits()
    }

    /// The weight of the disk. A disk of a tenant has a part of the tenant's weight. The part is the disk's
    /// weight divided by the largest weight of the tenant's disks, or by the default weight if that is
    /// larger. An operator can thus divide the weight of a tenant, but takes nothing from other tenants.
    pub fn weight(&self) -> u64 {
        let own = weight(self.limits());
        match self.tenant() {
            None => own,
            Some(tenant) => {
                let whole = tenant.weights.lock().whole();
                (own * weight(tenant.scope.limits()) / whole).max(1)
            }
        }
    }

    pub fn tenant(&self) -> Option<Arc<Tenant>> {
        self.tenant.read().clone()
    }

    /// Replaces the limits of the disk, and its tenant.
    pub fn set(&self, limits: Limits, tenant: Option<Arc<Tenant>>, now: Duration) {
        tenant.iter().for_each(|tenant| tenant.add_weight(weight(limits)));
        let before = std::mem::replace(&mut *self.tenant.write(), tenant);
        before.iter().for_each(|tenant| tenant.remove_weight(weight(self.limits())));
        self.own.set(limits, now);
        self.update();
    }

    /// Removes the disk from its tenant; returns the tenant.
    pub fn leave_tenant(&self) -> Option<Arc<Tenant>> {
        let tenant = self.tenant.write().take()?;
        tenant.remove_weight(weight(self.limits()));
        self.update();
        Some(tenant)
    }

    /// Applies changed limits of the disk's tenant.
    pub fn update(&self) {
        let tenant = self.tenant().is_some_and(|tenant| !tenant.scope.limits().limits_nothing());
        self.is_limited.store(tenant || !self.own.limits().limits_nothing(), Relaxed);
        // Requests of this disk may wait for a tenant to which it belonged before.
        self.own.changed.notify_waiters();
    }

    /// Admits all requests, also those that wait, until [`Limiter::update`] is called.
    pub fn lift(&self) {
        self.is_limited.store(false, Relaxed);
        self.own.changed.notify_waiters();
    }

    /// Returns the tokens for a request of `bytes`, if the request need not wait behind another request.
    pub fn try_take(&self, kind: Kind, bytes: u64, host: &dyn Host) -> Option<Tokens<'_>> {
        if !self.is_limited.load(Relaxed) {
            return Some(Tokens(None));
        }
        let tenant = self.tenant();
        let _turn = self.own.queue(kind).try_lock().ok()?;
        let tenant_turn = tenant.as_ref().map(|tenant| tenant.scope.queue(kind).try_lock());
        let cost = Cost::of(bytes);
        let is_admitted = !matches!(tenant_turn, Some(Err(_)))
            && self.take_now(tenant.as_deref(), kind, cost, host.now()).is_zero();
        // `then_some` would create tokens that were not taken, and drop them.
        is_admitted.then(|| Tokens(Some((self, kind, cost))))
    }

    fn give_back(&self, kind: Kind, cost: Cost) {
        self.own.state.lock().give_back(kind, cost);
        if let Some(tenant) = self.tenant() {
            tenant.scope.state.lock().give_back(kind, cost);
        }
    }

    /// Waits for the tokens for a request of `bytes`.
    pub async fn take(&self, kind: Kind, bytes: u64, host: &dyn Host) -> Tokens<'_> {
        if !self.is_limited.load(Relaxed) {
            return Tokens(None);
        }
        let begun = host.now();
        let tokens = self.take_in_turn(kind, Cost::of(bytes), host).await;
        let waited = host.now().saturating_sub(begun);
        if !waited.is_zero() {
            self.waited.add(waited.as_micros() as u64);
        }
        tokens
    }

    async fn take_in_turn(&self, kind: Kind, cost: Cost, host: &dyn Host) -> Tokens<'_> {
        let _turn = self.own.queue(kind).lock().await;
        loop {
            // The notification is created before the limits are checked.
            let changed = self.own.changed.notified();
            if !self.is_limited.load(Relaxed) {
                // The request leaves the queue of the tenant as well.
                return Tokens(None);
            }
            let tenant = self.tenant();
            let wait = self.wait(tenant.as_deref(), kind, cost, host);
            tokio::select! {
                biased;
                () = wait => return Tokens(Some((self, kind, cost))),
                () = changed => {}
            }
        }
    }

    /// Takes tokens, as the first request of the disk's queue, when there are enough.
    async fn wait(&self, tenant: Option<&Tenant>, kind: Kind, cost: Cost, host: &dyn Host) {
        loop {
            self.own.wait(kind, cost, host).await;
            let _turn = match tenant {
                None => None,
                Some(tenant) => {
                    let turn = tenant.scope.queue(kind).lock().await;
                    tenant.scope.wait(kind, cost, host).await;
                    Some(turn)
                }
            };
            // In the meantime, requests of the other kind may have taken tokens of the disk.
            if self.take_now(tenant, kind, cost, host.now()).is_zero() {
                return;
            }
        }
    }

    /// Takes the tokens for a request if there are enough, and returns zero. Otherwise returns the time until
    /// there are enough.
    fn take_now(&self, tenant: Option<&Tenant>, kind: Kind, cost: Cost, now: Duration) -> Duration {
        let mut own = self.own.state.lock();
        let mut shared = tenant.map(|tenant| tenant.scope.state.lock());
        let of_tenant = shared.as_mut().map(|state| state.delay(kind, cost, now)).unwrap_or_default();
        let delay = own.delay(kind, cost, now).max(of_tenant);
        if delay.is_zero() {
            own.take(kind, cost);
            if let Some(state) = &mut shared {
                state.take(kind, cost);
            }
        }
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::StillHost;

    #[test]
    fn the_disks_of_a_tenant_divide_its_weight() {
        let tenant = Arc::new(Tenant::new("t"));
        let [a, b, other] = std::array::from_fn(|_| Limiter::default());
        let set = |disk: &Limiter, weight, tenant: Option<&Arc<Tenant>>| {
            disk.set(Limits { weight, ..Limits::default() }, tenant.cloned(), Duration::ZERO);
        };
        set(&a, None, Some(&tenant));
        set(&b, Some(50), Some(&tenant));
        set(&other, None, None);
        assert_eq!((a.weight(), b.weight(), other.weight()), (100, 50, 100));
        assert!(!tenant.has_other_weights());
        set(&a, Some(10_000), Some(&tenant));
        assert_eq!((a.weight(), b.weight()), (100, 1), "no more than a disk of another tenant");
        assert!(tenant.has_other_weights() && !tenant.has_other_weights());
        tenant.scope.set(Limits { weight: Some(400), ..Limits::default() }, Duration::ZERO);
        assert_eq!((a.weight(), b.weight()), (400, 2));
        a.leave_tenant();
        assert!(tenant.has_other_weights());
        assert_eq!((a.weight(), b.weight()), (10_000, 200));
    }

    #[test]
    fn a_request_that_is_not_made_returns_its_tokens() {
        let (disk, tenant, host) = (Limiter::default(), Arc::new(Tenant::new("t")), StillHost);
        let two = |total| RateLimits { total, ..RateLimits::default() };
        let limits = Limits { iops: two(Some(Rate { per_second: 1, burst: Some(2) })), ..Limits::default() };
        tenant.scope.set(limits, Duration::ZERO);
        disk.set(Limits::default(), Some(tenant), Duration::ZERO);
        let take = || disk.try_take(Kind::Write, 4096, &host);
        let (first, second) = (take().unwrap(), take().unwrap());
        assert!(take().is_none());
        drop(first);
        let first = take().expect("tokens were returned");
        second.use_up();
        first.use_up();
        assert!(take().is_none(), "used tokens are not returned");
    }
}
