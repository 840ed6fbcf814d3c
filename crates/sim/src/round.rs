//! One round: several lives of a pool, with a crash or a close between them, under a workload derived from
//! the seed, and a verdict after each life.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use forebay_engine::{Error, Host, LogDamage, Pool, check, recover_log};
use forebay_store::{Crash, Fault, FaultyOp, FaultyStore, Image, Store, When};

use crate::admin::admin_op;
use crate::ctx::{Ctx, Tolerance};
use crate::exec::{Executor, Ran};
use crate::guest::guest_op;
use crate::machine::MemoryFate;
use crate::medium::Medium;
use crate::model::Model;
use crate::note;
use crate::plan::Plan;
use crate::recover::{no_silent_loss, recover};
use crate::rng::Rng;
use crate::verify::{interesting, read_back};

/// Puts a store between the pool and the medium.
pub type Wrap = fn(Arc<dyn Store>, u64) -> Arc<dyn Store>;

/// A pool that is simulated.
pub struct Round {
    /// The executor of all tasks of the round.
    pub exec: Executor,
    /// The state that survives a crash.
    pub medium: Medium,
    /// The model with which the pool is compared.
    pub model: Rc<RefCell<Model>>,
    /// The shape of the run.
    pub plan: Plan,
    /// The random numbers of the round.
    pub rng: Rng,
    /// The store between pool and medium.
    pub wrap: Option<Wrap>,
    /// Errors that this run tolerates.
    pub tolerance: Tolerance,
    /// Sets the faults of a life when the pool is open and has passed the verdict; they end with the life.
    pub faults: Option<Inject>,
    /// Sets the faults of every second opening; they end with the opening.
    pub opening_faults: Option<Inject>,
    /// During each life there are outages in which no read succeeds, while appends do.
    pub outages: bool,
    /// Check the pool before each opening: a crash causes no damage.
    pub check: bool,
    /// After the pool has latched, the process may end without the machine; until the next power loss the
    /// kernel then shows the data that it has written back.
    pub restart_after_latch: bool,
    /// The medium is damaged: unreadable data is not judged.
    pub damaged: bool,
    /// Before each opening, flip a bit, check the reported damage to the log, and flip the bit back.
    pub probe: bool,
    /// Number of times that damage to the log was reported.
    pub reported: Arc<AtomicU64>,
}

/// See [`Round::faults`].
pub type Inject = fn(&FaultyStore, &mut Rng);

/// Number of outages in a life.
const OUTAGES: u32 = 6;
/// Longer than any pause after which the engine repeats changes for which there was no room.
const RETRIES: Duration = Duration::from_secs(5);

/// How a life ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Crash,
    Close { under_load: bool },
}

impl Round {
    /// The round of a seed, with at most `ops` operations in a life.
    pub fn new(seed: u64, ops: Option<u64>) -> Round {
        let mut rng = Rng::new(seed);
        let plan = Plan::new(&mut rng, ops);
        note!("{plan:?}");
        let mut model = Model::new();
        model.overlapping = plan.overlapping;
        Round {
            exec: Executor::new(rng.next()),
            medium: Medium::new(rng.next(), plan.delay),
            model: Rc::new(RefCell::new(model)),
            plan,
            rng,
            wrap: None,
            tolerance: Tolerance::default(),
            faults: None,
            opening_faults: None,
            outages: false,
            check: false,
            restart_after_latch: false,
            damaged: false,
            probe: false,
            reported: Arc::default(),
        }
    }

    /// Runs all lives and a last verdict. Panics if a verdict is negative. Returns a hash of everything that
    /// happened.
    pub fn run(mut self) -> u64 {
        for life in 0..self.plan.lives {
            note!("life {life}");
            self.live();
        }
        let pool = self.open();
        self.judge(&pool);
        self.close(pool);
        self.exec.trace_hash()
    }

    /// Runs all lives, and returns the medium after the last close or crash.
    pub fn leave(mut self, last_words: impl AsyncFnOnce(&Arc<Pool>) + 'static) -> Image {
        for _ in 0..self.plan.lives {
            self.live();
        }
        let pool = self.open();
        let talking = pool.clone();
        self.exec.finish(async move { last_words(&talking).await });
        if self.rng.percent(50) {
            let closing = pool.clone();
            self.exec.finish(async move { closing.close().await }).expect("a sound store");
        }
        drop(pool);
        self.exec.kill_tasks();
        self.medium.faults().image()
    }

    pub(crate) fn store(&mut self) -> Arc<dyn Store> {
        let store = self.medium.store();
        match self.wrap {
            Some(wrap) => wrap(store, self.rng.next()),
            None => store,
        }
    }

    /// Opens the pool, sometimes after crashes during the opening, or faults because of which it failed.
    pub fn open(&mut self) -> Arc<Pool> {
        loop {
            if self.check {
                self.check();
            }
            if self.probe {
                self.probe_log();
            }
            let steps = if self.rng.percent(15) { self.rng.range(1, 120) } else { 3_000_000 };
            let inject = self.opening_faults.filter(|_| self.rng.percent(50));
            if let Some(inject) = inject {
                inject(self.medium.faults(), &mut self.rng);
            }
            let (store, host, config) = (self.store(), self.exec.host(), self.plan.pool.clone());
            match self.exec.run(Pool::open(store, host, config), steps) {
                Ran::Done(Ok(pool)) if inject.is_none() || self.outlasts_faults(&pool) => return pool,
                Ran::Done(Ok(_)) => {
                    note!("the pool latched when it was opened");
                    self.crash();
                }
                Ran::Done(Err(e)) => {
                    assert!(inject.is_some(), "the pool does not open: {e}");
                    note!("the opening failed: {e}");
                    self.crash();
                }
                Ran::OutOfSteps => {
                    assert!(steps < 1000, "the pool did not open in {steps} steps");
                    note!("crash while the pool opens");
                    self.crash();
                }
            }
        }
    }

    /// Ends the faults of an opening that succeeded, and waits until the pool has made the changes for which
    /// there was no room. Returns false if the pool has latched.
    fn outlasts_faults(&mut self, pool: &Arc<Pool>) -> bool {
        self.end_faults();
        let (pool, host) = (pool.clone(), self.exec.host());
        self.exec.finish(async move {
            host.sleep(RETRIES).await;
            match pool.flush().await {
                Ok(()) => true,
                Err(Error::Latched(_)) => false,
                Err(e) => panic!("flush after the faults of an opening: {e}"),
            }
        })
    }

    /// Checks that only damage that a crash can cause is reported: a superblock copy.
    fn check(&mut self) {
        let (store, host) = (self.store(), self.exec.host());
        let report = match self.exec.finish(async move { check(store, host, |_| {}).await }) {
            Ok(report) => report,
            Err(Error::NoPool(_)) => return,
            Err(e) => panic!("the pool cannot be checked: {e}"),
        };
        for p in &report.problems {
            assert!(p.place.starts_with("superblock copy"), "check says: {} at {}", p.what, p.place);
        }
        self.medium.release();
    }

    /// Checks that no damage to the log is reported without damage, and that the position of a flipped bit is
    /// reported. The bit is flipped back, so the pool is unchanged afterwards.
    fn probe_log(&mut self) {
        const BITS: u64 = 6;
        match self.log_damage() {
            Ok(None) => {}
            Ok(Some(damage)) => panic!("a crash is reported as damage: {damage}"),
            Err(Error::NoPool(_)) => return self.medium.release(),
            Err(e) => panic!("the pool cannot be inspected: {e}"),
        }
        let store = self.store();
        let objects = self.exec.finish(async move { store.list().await }).expect("a list");
        for _ in 0..BITS * u64::from(!objects.is_empty()) {
            let object = *self.rng.pick(&objects);
            let (at, bit) = (self.rng.below(object.len.max(1)), self.rng.below(8) as u8);
            if !self.medium.faults().flip_bit(object.id, at, bit) {
                continue;
            }
            // A pool that has lost its checkpoint cannot be inspected.
            if let Ok(Some(damage)) = self.log_damage() {
                note!("bit {bit} of byte {at} of {}: {damage}", object.id);
                let segment = object.id.to_string();
                assert!(
                    damage.places.iter().any(|p| p.segment == segment),
                    "byte {at} of {segment}: {damage}; {:?}",
                    damage.places
                );
                self.reported.fetch_add(1, Relaxed);
            }
            assert!(self.medium.faults().flip_bit(object.id, at, bit));
        }
        self.medium.release();
    }

    fn log_damage(&mut self) -> Result<Option<LogDamage>, Error> {
        let (store, host) = (self.store(), self.exec.host());
        let looked = self.exec.finish(async move { recover_log(store, host, None).await });
        looked.map(|report| report.damage)
    }

    /// Causes a power loss, or kills the process.
    pub fn crash(&mut self) {
        // After a failed sync, a kernel may continue to show data that it never writes, which the next
        // process cannot detect. In this simulation a reboot follows such a failure.
        let power = match self.restart_after_latch {
            true => self.rng.percent(30),
            false => self.tolerance.latched || self.rng.percent(70),
        };
        let crash = if power { Crash::PowerLoss } else { Crash::Kill };
        let fate = match crash {
            Crash::PowerLoss => MemoryFate::Restarted,
            Crash::Kill if self.rng.percent(20) => MemoryFate::Wiped,
            Crash::Kill => MemoryFate::Kept,
        };
        if fate == MemoryFate::Kept && self.rng.percent(50) {
            let (stores, steps) = (self.rng.range(1, 300), self.rng.range(1, 1000));
            let machine = self.medium.machine();
            self.exec.run_into_kill(stores, steps, move || machine.crash(Crash::Kill));
        }
        note!("{crash:?} crash at step {}, memory {fate:?}", self.exec.steps());
        self.end_process(fate);
        self.end_faults();
        self.medium.crash(crash);
        if self.restart_after_latch && crash == Crash::Kill {
            self.medium.faults().write_back();
        }
        self.exec.kill_tasks();
    }

    /// Ends the process; the next process finds its retained memory, or does not.
    fn end_process(&mut self, fate: MemoryFate) {
        self.exec.end_process(fate);
        let mut model = self.model.borrow_mut();
        model.memory = model.memory.max(fate);
    }

    fn end_faults(&mut self) {
        self.medium.faults().clear_faults();
        self.medium.faults().set_capacity(1 << 40);
        self.medium.faults().set_quota(None);
    }

    /// Compares the contents of the pool with the permitted contents.
    pub fn judge(&mut self, pool: &Arc<Pool>) {
        let (pool, blocks) = (pool.clone(), interesting(&self.model.borrow()));
        let damaged = self.damaged;
        let fate = self.model.borrow().memory;
        let (kept, wiped) = (fate == MemoryFate::Kept, fate == MemoryFate::Wiped);
        if kept {
            self.model.borrow_mut().expect_all();
        }
        let unfinished = self.unfinished_sessions();
        let model = self.model.clone();
        let found = self.exec.finish(async move {
            for name in unfinished {
                pool.reset(&name).await.map_err(|e| format!("reset of '{name}': {e}"))?;
            }
            let refused = admit_all(&pool).await?;
            let found = read_back(&pool, blocks, damaged).await;
            if kept {
                // The model starts again from what was found, so a power loss must not go back beyond it.
                pool.flush().await.map_err(|e| format!("flush of the contents of memory: {e}"))?;
            }
            match &found {
                Ok(found) if wiped => no_silent_loss(&model.borrow(), found, &refused)?,
                _ if wiped || refused.is_empty() => {}
                _ => return Err(format!("no client lost a write, but {refused:?} are refused")),
            }
            found
        });
        let verdict = found.and_then(|found| recover(&mut self.model.borrow_mut(), &found));
        if let Err(why) = verdict {
            panic!("{why}");
        }
        self.model.borrow_mut().memory = MemoryFate::Kept;
        note!("as it should be; {} disks", self.model.borrow().names.len());
    }

    /// Desktops whose users did not leave before the process ended: they can reconnect, so their contents are
    /// kept, and only what they wrote last is unknown.
    fn unfinished_sessions(&self) -> Vec<String> {
        let model = self.model.borrow();
        let exists = |name: &&String| model.disk(name).is_some_and(|disk| disk.desktop);
        let unfinished =
            model.sessions.iter().filter(|(_, left)| model.memory == MemoryFate::Kept && !**left);
        unfinished.map(|(name, _)| name).filter(exists).cloned().collect()
    }

    /// Simulates one life of the pool, from its opening to a crash or a close.
    pub(crate) fn live(&mut self) {
        let pool = self.open();
        self.judge(&pool);
        self.live_on(pool);
    }

    /// The remaining part of a life whose pool is open and has passed the verdict.
    pub(crate) fn live_on(&mut self, pool: Arc<Pool>) {
        let end = match self.rng.below(100) {
            n if n < self.plan.crashes => End::Crash,
            _ => End::Close { under_load: self.rng.percent(50) },
        };
        let steps = self.rng.range(1, self.plan.steps);
        if let Some(inject) = self.faults {
            inject(self.medium.faults(), &mut self.rng);
        }
        if self.outages {
            self.start_outages();
        }
        let ctx = Ctx::new(pool.clone(), self.exec.host(), self.model.clone(), self.plan.clone());
        let ctx = Rc::new(ctx);
        ctx.tolerance.set(self.tolerance);
        let running = start_clients(&mut self.exec, 0, &ctx, &mut self.rng);
        let idle = ctx.clone();
        let idle = async move {
            while running.get() > 0 {
                idle.sleep(20).await;
            }
        };
        match end {
            End::Crash => {
                let ran = self.exec.run(idle, steps);
                note!("{end:?} after {steps} steps: {ran:?}");
                self.crash();
            }
            End::Close { under_load: true } => {
                let _ = self.exec.run(idle, steps);
                // An operation that finds no space while the pool closes never will: the pool latches.
                let latched = self.tolerance.latched || self.tolerance.full;
                ctx.tolerance.set(Tolerance { closed: true, latched, ..self.tolerance });
                drop(ctx);
                self.close(pool);
            }
            End::Close { under_load: false } => {
                self.exec.finish(idle);
                drop(ctx);
                self.close(pool);
            }
        }
    }

    /// Starts a task that causes outages: no read succeeds, as while a path to the store fails over or the
    /// process has no descriptor left. They end with the process.
    fn start_outages(&mut self) {
        let (host, machine, mut rng) = (self.exec.host(), self.medium.machine(), self.rng.fork());
        self.exec.spawn("outages", async move {
            for _ in 0..OUTAGES {
                host.sleep(Duration::from_millis(rng.below(1_000))).await;
                let fault = *rng.pick(&[Fault::Io, Fault::NoFiles]);
                note!("reads fail: {fault:?}");
                machine.inject(FaultyOp::Read, fault, When::From(0));
                host.sleep(Duration::from_millis(rng.range(100, 1_500))).await;
                machine.clear_faults();
                note!("reads succeed");
            }
        });
    }

    /// Closes the pool, or crashes while it closes. A close that succeeds makes all acknowledged changes
    /// durable, including those acknowledged during the close.
    pub fn close(&mut self, pool: Arc<Pool>) {
        let steps = if self.rng.percent(20) { self.rng.range(1, 200) } else { 3_000_000 };
        note!("{} close", self.model.borrow().now());
        let closing = pool.clone();
        match self.exec.run(async move { closing.close().await }, steps) {
            Ran::Done(Ok(())) => {
                let mut model = self.model.borrow_mut();
                let now = model.tick();
                model.all_flushed(now);
                note!("{now} closed");
            }
            Ran::Done(Err(e)) => {
                assert!(self.tolerance.permits(&e) || self.tolerance.full, "close failed: {e}");
                note!("close failed: {e}");
                drop(pool);
                return self.crash();
            }
            Ran::OutOfSteps => {
                assert!(steps < 1000, "close did not end in {steps} steps");
                note!("crash while the pool closes");
                drop(pool);
                return self.crash();
            }
        }
        drop(pool);
        self.end_faults();
        self.medium.release();
        self.exec.kill_tasks();
        let fate =
            *self.rng.pick(&[MemoryFate::Kept, MemoryFate::Kept, MemoryFate::Wiped, MemoryFate::Restarted]);
        self.end_process(fate);
    }
}

/// Admits clients to all disks again that refuse them because answered writes are lost. Returns their names.
pub(crate) async fn admit_all(pool: &Arc<Pool>) -> Result<BTreeSet<String>, String> {
    let mut refused = BTreeSet::new();
    for disk in pool.disks() {
        if let Err(Error::MemoryLost { .. }) = pool.attach(&disk.name) {
            let name = disk.name;
            let done = if disk.write_cache > 0 {
                pool.reset(&name).await
            } else {
                pool.resume(&name).await.map(drop)
            };
            done.map_err(|e| format!("admitting clients to '{name}': {e}"))?;
            refused.insert(name);
        }
    }
    Ok(refused)
}

/// Starts the clients of a life in a process. Returns the number of those that run.
pub(crate) fn start_clients(
    exec: &mut Executor,
    process: u64,
    ctx: &Rc<Ctx>,
    rng: &mut Rng,
) -> Rc<Cell<u64>> {
    let running = Rc::new(Cell::new(ctx.plan.clients));
    if let Some(most) = ctx.plan.reclaim_every {
        let (ctx, mut rng, running) = (ctx.clone(), rng.fork(), running.clone());
        // The task counts as a running client, and ends when it is the only one.
        running.set(running.get() + 1);
        exec.spawn_in(process, "cleaner", async move {
            while running.get() > 1 && !ctx.latched.get() {
                ctx.sleep(1 + rng.below(most)).await;
                crate::admin::reclaim(&ctx).await;
            }
            running.set(running.get() - 1);
        });
    }
    for _ in 0..ctx.plan.clients {
        let (ctx, mut rng, running) = (ctx.clone(), rng.fork(), running.clone());
        exec.spawn_in(process, "client", async move {
            client(&ctx, &mut rng).await;
            running.set(running.get() - 1);
        });
    }
    running
}

/// Runs one client: it works until the operations of this life are used up or the pool closes.
async fn client(ctx: &Rc<Ctx>, rng: &mut Rng) {
    while ctx.left.get() > 0 {
        ctx.left.set(ctx.left.get() - 1);
        if ctx.names(|_| true).is_empty() {
            crate::admin::create(ctx, rng).await;
        } else if rng.percent(ctx.plan.admin) {
            admin_op(ctx, rng).await;
        } else {
            guest_op(ctx, rng).await;
        }
        if rng.percent(20) {
            ctx.sleep(rng.below(300)).await;
        }
    }
}
