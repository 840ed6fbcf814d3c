//! The memory held by one connection: its account, the charges on it, and waiting claims.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use tokio::sync::Semaphore;

use super::{BASE, Memory, Party, SHARE, Waiting};

/// For which purpose memory is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Bytes sent by the client: messages, and gathered data.
    Input,
    /// Memory for requests, their work, and their replies.
    Work,
}

/// The memory held by one connection.
pub(crate) struct MemoryAccount {
    pub(super) memory: Arc<Memory>,
    /// Bytes that are charged even if the connection holds less.
    pub(super) base: Cell<usize>,
    /// Bytes of [`Kind::Input`] that the connection holds, including bytes of the reserve.
    input: Cell<usize>,
    /// Bytes of [`Kind::Work`] that the connection holds, including bytes of the reserve.
    pub(super) work: Cell<usize>,
    /// The part of the held bytes that belongs to the reserve.
    reserve: Cell<usize>,
    /// Bytes for which the connection waits.
    waits_for: Cell<usize>,
    party: RefCell<Arc<Party>>,
    /// Bytes of [`SHARE`] that the account does not use.
    pub(super) share: Semaphore,
}

impl MemoryAccount {
    pub fn new(memory: &Arc<Memory>) -> Rc<MemoryAccount> {
        memory.force(BASE);
        Rc::new(MemoryAccount {
            memory: memory.clone(),
            base: Cell::new(BASE),
            input: Cell::new(0),
            work: Cell::new(0),
            reserve: Cell::new(0),
            waits_for: Cell::new(0),
            party: RefCell::default(),
            share: Semaphore::new(SHARE),
        })
    }

    /// Joins the party of the connections to `what`. Before this call, the connection is alone in a separate
    /// party.
    pub fn join(&self, what: &str) {
        let party = self.memory.party(what);
        party.add(self.of_party());
        let before = self.party.replace(party);
        before.subtract(self.of_party());
    }

    /// Bytes that the connection adds to its party: what is charged to the budget, without its base.
    fn of_party(&self) -> usize {
        self.charged() - self.base.get()
    }

    /// Changes what the connection holds, and updates its party.
    fn change<T>(&self, change: impl FnOnce() -> T) -> T {
        let before = self.of_party();
        let changed = change();
        let after = self.of_party();
        if after > before {
            self.party.borrow().add(after - before);
        } else if after < before {
            self.party.borrow().subtract(before - after);
        }
        changed
    }

    /// Whether no room is left for forced charges of this connection.
    pub fn is_full(&self) -> bool {
        self.memory.is_full() || !self.memory.permits(&self.party.borrow(), 0, usize::MAX)
    }

    /// Whether another connection waits for memory, and would get it if this connection returned what it
    /// holds.
    pub fn is_waited_for(&self) -> bool {
        self.memory.is_waited_for(&self.party.borrow())
    }

    /// Adds `bytes` that the connection needs for its whole lifetime.
    pub fn add_to_base(&self, bytes: usize) {
        let before = self.charged();
        self.change(|| self.base.set(self.base.get() + bytes));
        self.memory.force(self.charged() - before);
    }

    /// Bytes that are charged to the budget, without the reserve.
    fn charged(&self) -> usize {
        (self.held() - self.reserve.get()).max(self.base.get())
    }

    /// Additional bytes of the budget that are needed to hold `bytes` more.
    fn excess(&self, bytes: usize) -> usize {
        (self.held() - self.reserve.get() + bytes).max(self.base.get()) - self.charged()
    }

    pub(super) fn held(&self) -> usize {
        self.input.get() + self.work.get()
    }

    /// Whether the requests and replies of the connection have reached the limit for one connection.
    pub fn is_spent(&self) -> bool {
        // A connection that has the reserve must continue until it returns the reserve.
        self.work.get() >= if self.has_reserve() { 2 * SHARE } else { SHARE }
    }

    /// Whether the connection holds the reserve, for which other connections may wait.
    pub fn has_reserve(&self) -> bool {
        self.reserve.get() > 0
    }

    /// Takes `bytes` if there is room now.
    pub fn try_take(self: &Rc<Self>, bytes: usize, kind: Kind) -> Option<Charge> {
        let excess = self.excess(bytes);
        let taken = excess == 0 || self.memory.take(excess, self.held() + bytes, &self.party.borrow());
        taken.then(|| self.hold(bytes, kind))
    }

    /// Takes `bytes` even without room, because they are allocated already, or will be allocated at once.
    pub fn force(self: &Rc<Self>, bytes: usize, kind: Kind) -> Charge {
        let excess = self.excess(bytes);
        if excess > 0 {
            self.memory.force(excess);
        }
        self.hold(bytes, kind)
    }

    /// Waits until `bytes` are charged to the account.
    pub fn claim(self: &Rc<Self>, bytes: usize, kind: Kind) -> Claim {
        Claim { account: self.clone(), bytes, kind, id: None }
    }

    /// Takes `bytes` for a job: waits first for room in the connection's share, then for the budget.
    pub async fn take_shared(self: &Rc<Self>, bytes: usize) -> Charge {
        let permits = u32::try_from(bytes.min(SHARE)).unwrap_or(u32::MAX);
        let permit = self.share.acquire_many(permits).await.ok();
        let mut claim = self.claim(bytes, Kind::Work);
        let mut charge = std::future::poll_fn(|cx| claim.poll(cx.waker())).await;
        if let Some(permit) = permit {
            permit.forget();
            charge.share = permits as usize;
        }
        charge
    }

    /// Records bytes that are already charged to the budget.
    fn hold(self: &Rc<Self>, bytes: usize, kind: Kind) -> Charge {
        let part = self.part(kind);
        self.change(|| part.set(part.get() + bytes));
        Charge { account: self.clone(), bytes, reserve: 0, share: 0, kind }
    }

    fn part(&self, kind: Kind) -> &Cell<usize> {
        match kind {
            Kind::Input => &self.input,
            Kind::Work => &self.work,
        }
    }
}

impl Drop for MemoryAccount {
    fn drop(&mut self) {
        // Charges hold a reference to their account, so no charge is left.
        self.memory.give_back(self.charged(), false, &self.party.borrow());
    }
}

/// A wait for memory. Dropping it cancels the wait. Its owner polls it until it is ready.
pub(crate) struct Claim {
    pub(super) account: Rc<MemoryAccount>,
    bytes: usize,
    kind: Kind,
    id: Option<u64>,
}

impl Claim {
    /// Returns ready once, when the memory is available.
    pub fn poll(&mut self, waker: &Waker) -> Poll<Charge> {
        let Claim { account, bytes, kind, id } = self;
        let waiting = match *id {
            Some(waiting) => waiting,
            None => {
                let excess = account.excess(*bytes);
                // Counts everything for which the connection waits: many claims at once do not precede the
                // single claim of another connection.
                let holds = account.held() + account.waits_for.get() + *bytes;
                let memory = &account.memory;
                let party = account.party.borrow().clone();
                if excess == 0 || (!memory.has_waiting_claims() && memory.take(excess, holds, &party)) {
                    return Poll::Ready(account.hold(*bytes, *kind));
                }
                let claim = Waiting { bytes: *bytes, holds, party: party.clone(), waker: waker.clone() };
                let waiting = memory.enqueue(claim);
                *id = Some(waiting);
                account.waits_for.set(account.waits_for.get() + *bytes);
                memory.grant(&party);
                waiting
            }
        };
        let Some(grant) = account.memory.granted(waiting, waker) else { return Poll::Pending };
        *id = None;
        account.waits_for.set(account.waits_for.get() - *bytes);
        // The grant does not account for the unused part of the base.
        let excess = account.excess(*bytes);
        let mut charge = account.hold(*bytes, *kind);
        if grant.of_reserve {
            charge.reserve = *bytes;
            account.change(|| account.reserve.set(account.reserve.get() + *bytes));
        } else {
            account.memory.give_back(grant.bytes - excess, false, &account.party.borrow());
        }
        Poll::Ready(charge)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.account.waits_for.set(self.account.waits_for.get() - self.bytes);
            self.account.memory.leave(id);
        }
    }
}

/// Held memory; returned to the budget when dropped.
pub(crate) struct Charge {
    pub(super) account: Rc<MemoryAccount>,
    bytes: usize,
    /// The part of the bytes that belongs to the reserve.
    reserve: usize,
    /// The part of the bytes that is taken from the connection's share.
    share: usize,
    kind: Kind,
}

impl Charge {
    /// The number of bytes that the charge holds.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds the memory of another charge of the same connection.
    pub fn join(&mut self, mut other: Charge) {
        debug_assert!(
            Rc::ptr_eq(&self.account, &other.account),
            "both charges belong to the same connection"
        );
        other.change_kind(self.kind);
        self.bytes += std::mem::take(&mut other.bytes);
        self.reserve += std::mem::take(&mut other.reserve);
        self.share += std::mem::take(&mut other.share);
    }

    /// Converts received input into the memory of a request.
    pub fn into_work(mut self) -> Charge {
        self.change_kind(Kind::Work);
        self
    }

    fn change_kind(&mut self, kind: Kind) {
        let (from, to) = (self.account.part(self.kind), self.account.part(kind));
        from.set(from.get() - self.bytes);
        to.set(to.get() + self.bytes);
        self.kind = kind;
    }

    /// Moves `bytes`, at most all of them, to a new charge. The reserve stays in this charge as far as
    /// possible.
    pub fn split(&mut self, bytes: usize) -> Charge {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        let reserve = self.reserve.saturating_sub(self.bytes);
        self.reserve -= reserve;
        let share = self.share.min(bytes);
        self.share -= share;
        Charge { account: self.account.clone(), bytes, reserve, share, kind: self.kind }
    }

    /// Returns all bytes but the first `bytes`.
    pub fn shrink(&mut self, bytes: usize) {
        let back = self.bytes.saturating_sub(bytes);
        drop(self.split(back));
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let account = &self.account;
        let before = account.charged();
        let part = account.part(self.kind);
        account.change(|| {
            part.set(part.get() - self.bytes);
            account.reserve.set(account.reserve.get() - self.reserve);
        });
        if self.share > 0 {
            account.share.add_permits(self.share);
        }
        let party = account.party.borrow();
        account.memory.give_back(before - account.charged(), false, &party);
        if self.reserve > 0 && !account.has_reserve() {
            account.memory.give_back(0, true, &party);
        }
    }
}
