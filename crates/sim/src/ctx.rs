//! State shared by the clients of a life: the pool, the model, and the locks that clients hold.
//!
//! The workload follows the rules that make its results predictable. Guest operations on a disk hold it
//! *busy*; an operation that begins a new era of the disk (delete, rollback, resize, ...) *takes* it: it
//! blocks new operations and waits for those in progress. Writers lock their blocks against each other,
//! except that in an overlapping run writers of whole blocks share the locks.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::{DiskHandle, Error, Host, Pool};

use crate::exec::SimHost;
use crate::model::Model;
use crate::plan::Plan;
use crate::rng::Rng;

/// The errors that a run tolerates in addition to those that the model predicts.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tolerance {
    /// The pool is closing.
    pub closed: bool,
    /// The store may be full.
    pub full: bool,
    /// Whether reads may fail or find damage.
    pub unreadable: bool,
    /// The pool may have latched.
    pub latched: bool,
    /// Another server has taken the pool over: any operation may fail.
    pub superseded: bool,
}

impl Tolerance {
    /// Whether `e` is possible in this run.
    pub fn permits(&self, e: &Error) -> bool {
        match e {
            Error::Fenced => self.superseded,
            _ if self.superseded => true,
            Error::Closed => self.closed || self.latched,
            Error::NoSpace => self.full,
            Error::Latched(_) => self.latched,
            Error::Store(_) => self.unreadable || self.latched,
            Error::Damaged(_) | Error::MapDamaged(_) | Error::MapsDamaged { .. } | Error::Format(_) => {
                self.unreadable
            }
            _ => false,
        }
    }
}

#[derive(Default)]
struct Slot {
    busy: u64,
    taken: bool,
    locks: Vec<(u64, u64, bool)>,
    handles: Vec<Arc<DiskHandle>>,
}

/// What the clients of a run share; see the module documentation.
pub struct Ctx {
    /// The pool that the run uses.
    pub pool: Arc<Pool>,
    /// The simulated environment of the pool.
    pub host: Arc<SimHost>,
    /// The model with which the pool is compared.
    pub model: Rc<RefCell<Model>>,
    /// The shape of the run.
    pub plan: Plan,
    /// Number of operations left in this life.
    pub left: Cell<u64>,
    /// Whether an operation has found the pool latched.
    pub latched: Cell<bool>,
    /// The tolerated errors, apart from [`Ctx::is_superseded`].
    pub tolerance: Cell<Tolerance>,
    /// Whether another server has taken the pool over.
    pub is_superseded: Option<Box<dyn Fn() -> bool>>,
    slots: RefCell<BTreeMap<String, Slot>>,
    next_name: Cell<u64>,
}

/// A disk that is held busy until this guard is dropped.
pub struct Busy {
    ctx: Rc<Ctx>,
    name: String,
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.ctx.slot(&self.name, |s| s.busy -= 1);
    }
}

/// A disk that is taken until this guard is dropped.
pub struct Taken {
    ctx: Rc<Ctx>,
    name: String,
    is_kept: bool,
}

impl Taken {
    /// Name of the disk.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Never releases it in this life, because its state is unknown.
    pub fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if !self.is_kept {
            self.ctx.slot(&self.name, |s| s.taken = false);
        }
    }
}

/// Blocks that are locked against other writers. Dropping this guard unlocks them.
pub struct Locked {
    ctx: Rc<Ctx>,
    name: String,
    blocks: (u64, u64, bool),
    is_kept: bool,
}

impl Locked {
    /// Never unlocks them in this life, because their contents are unknown.
    pub fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        self.ctx.slot(&self.name, |s| {
            let at = s.locks.iter().position(|l| *l == self.blocks).expect("it is locked");
            s.locks.swap_remove(at);
        });
    }
}

impl Ctx {
    /// Returns the context of a new life of the pool.
    pub fn new(pool: Arc<Pool>, host: Arc<SimHost>, model: Rc<RefCell<Model>>, plan: Plan) -> Ctx {
        let names = model.borrow();
        let slots = names.names.keys().map(|n| (n.clone(), Slot::default())).collect();
        let used = names.now();
        drop(names);
        Ctx {
            pool,
            host,
            model,
            left: Cell::new(plan.ops),
            plan,
            tolerance: Cell::default(),
            is_superseded: None,
            latched: Cell::new(false),
            slots: RefCell::new(slots),
            next_name: Cell::new(used * 1000),
        }
    }

    /// The errors that are tolerated now.
    pub fn tolerance(&self) -> Tolerance {
        let superseded = self.is_superseded.as_ref().is_some_and(|is| is());
        Tolerance { superseded, ..self.tolerance.get() }
    }

    fn slot<T>(&self, name: &str, f: impl FnOnce(&mut Slot) -> T) -> T {
        f(self.slots.borrow_mut().entry(name.to_owned()).or_default())
    }

    /// Returns `None` for a tolerated error; any other error ends the run.
    pub fn judge<T>(&self, what: &str, result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(e) => {
                crate::note!("{what}: {e}");
                self.latched.set(self.latched.get() || matches!(e, Error::Latched(_) | Error::Fenced));
                assert!(self.tolerance().permits(&e), "{what} failed: {e}");
                None
            }
        }
    }

    /// A name that was never used.
    pub fn new_name(&self, prefix: &str) -> String {
        self.next_name.set(self.next_name.get() + 1);
        format!("{prefix}{}", self.next_name.get())
    }

    /// Sleeps for `ms` milliseconds of virtual time.
    pub async fn sleep(&self, ms: u64) {
        self.host.sleep(Duration::from_millis(ms)).await;
    }

    /// Whether no operation has taken a disk.
    pub fn is_free(&self, name: &str) -> bool {
        self.slots.borrow().get(name).is_none_or(|s| !s.taken)
    }

    /// Names of the disks that are not taken and for which `want` holds.
    pub fn names(&self, want: impl Fn(&crate::model::DiskState) -> bool) -> Vec<String> {
        let model = self.model.borrow();
        let is = |name: &&String| model.disk(name).is_some_and(&want);
        let public = |name: &&String| !name.starts_with(crate::recover::IMPORT);
        model.names.keys().filter(public).filter(is).filter(|n| self.is_free(n)).cloned().collect()
    }

    /// Returns a random name among those that `want` accepts.
    pub fn pick(&self, rng: &mut Rng, want: impl Fn(&crate::model::DiskState) -> bool) -> Option<String> {
        let names = self.names(want);
        (!names.is_empty()).then(|| rng.pick(&names).clone())
    }

    /// Holds a disk busy, unless it is taken.
    pub fn busy(self: &Rc<Ctx>, name: &str) -> Option<Busy> {
        let free = self.slot(name, |s| {
            s.busy += u64::from(!s.taken);
            !s.taken
        });
        free.then(|| Busy { ctx: self.clone(), name: name.to_owned() })
    }

    /// Takes a name immediately, if it is free.
    pub fn take_now(self: &Rc<Ctx>, name: &str) -> Option<Taken> {
        let free = self.slot(name, |s| s.busy == 0 && !std::mem::replace(&mut s.taken, true));
        free.then(|| Taken { ctx: self.clone(), name: name.to_owned(), is_kept: false })
    }

    /// Takes a disk: waits for the operations in progress. `detach` closes the handles that clients share.
    pub async fn take(self: &Rc<Ctx>, name: &str, detach: bool) -> Option<Taken> {
        if self.slot(name, |s| std::mem::replace(&mut s.taken, true)) {
            return None;
        }
        let taken = Taken { ctx: self.clone(), name: name.to_owned(), is_kept: false };
        let mut waits = 0;
        while self.slot(name, |s| s.busy) > 0 {
            self.sleep(1).await;
            waits += 1;
            assert!(waits < 600_000, "an operation on '{name}' has not ended for ten minutes");
        }
        if detach {
            let handles = self.slot(name, |s| std::mem::take(&mut s.handles));
            drop(handles);
        }
        Some(taken)
    }

    /// Number of open shared handles of a disk.
    pub fn handles(&self, name: &str) -> usize {
        self.slot(name, |s| s.handles.len())
    }

    /// Returns a handle to a disk: a shared handle, or a new handle, which can become shared.
    pub fn handle(&self, name: &str, rng: &mut Rng) -> Option<Arc<DiskHandle>> {
        let shared = self.slot(name, |s| match s.handles.len() {
            0 => None,
            n => Some(s.handles[rng.below(n as u64) as usize].clone()),
        });
        if let Some(disk) = shared
            && rng.percent(90)
        {
            return Some(disk);
        }
        let disk = self.judge(&format!("attach '{name}'"), self.pool.attach(name))?;
        if rng.percent(60) {
            self.slot(name, |s| s.handles.truncate(2));
            self.slot(name, |s| s.handles.push(disk.clone()));
        }
        Some(disk)
    }

    /// Locks blocks `first..end` against other writers, if all of them are unlocked.
    pub fn lock(self: &Rc<Ctx>, name: &str, first: u64, end: u64, shared: bool) -> Option<Locked> {
        let clash = |l: &(u64, u64, bool)| l.0 < end && first < l.1 && !(shared && l.2);
        let free = self.slot(name, |s| {
            let free = !s.locks.iter().any(clash);
            if free {
                s.locks.push((first, end, shared));
            }
            free
        });
        let blocks = (first, end, shared);
        free.then(|| Locked { ctx: self.clone(), name: name.to_owned(), blocks, is_kept: false })
    }

    /// Ends the run if `result` is a verdict against the engine.
    pub fn insist(&self, result: Result<(), String>) {
        if let Err(why) = result {
            panic!("{why}");
        }
    }
}
