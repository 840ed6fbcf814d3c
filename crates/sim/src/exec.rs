//! A scheduler, a clock and a random source driven by one seed: the world of a simulated pool.
//!
//! Everything runs in one thread. At each step one of the woken tasks is chosen at random and polled once;
//! therefore every order that real threads could produce *at await points* is possible, and a seed replays a
//! run. Time is virtual: it advances to the next timer when no task is ready, and sometimes although one is
//! (a slow processor). If a result is awaited while no task is ready and no timer is set, that is a deadlock.
//!
//! A kill of the process can also be in the middle of a step: between two stores to the memory that outlives
//! it ([`Executor::run_into_kill`]).
//!
//! In some steps, a task may make the commit that it waits for ([`commit_here`]).
//!
//! Tasks belong to processes, which can be killed and paused one by one ([`Executor::kill_process`]). Tasks
//! for which no process is given belong to process 0.
//!
//! It cannot detect races between instructions of two threads outside of locks.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use forebay_engine::{BoxFuture, Host, commit_here};
use forebay_format::PoolId;
use forebay_retained::{HeapMemory, Memory, set_hook};
use parking_lot::Mutex;

use crate::machine::{Machine, MemoryFate};
use crate::rng::{Rng, mix};

/// Steps of all executors of the process; a watchdog checks that it increases.
pub static STEPS: AtomicU64 = AtomicU64::new(0);

type LocalFuture = Pin<Box<dyn Future<Output = ()>>>;

#[derive(Default)]
struct State {
    now: Duration,
    next_timer: u64,
    timers: BTreeMap<(Duration, u64), Waker>,
    /// Ready tasks in ascending order. The order in which one poll woke several tasks must have no effect,
    /// because tokio's watch channel wakes its waiters in a random order.
    ready: Vec<usize>,
    /// Tasks that were spawned, each with its process.
    spawned: Vec<(u64, &'static str, BoxFuture<'static, ()>)>,
}

/// The state that tasks and executor share.
struct World {
    state: Mutex<State>,
    random: Mutex<Rng>,
}

impl State {
    fn make_ready(&mut self, task: usize) {
        if let Err(at) = self.ready.binary_search(&task) {
            self.ready.insert(at, task);
        }
    }
}

impl World {
    fn now(&self) -> Duration {
        self.state.lock().now
    }
}

/// The host that is passed to an engine.
pub struct SimHost {
    world: Arc<World>,
    process: u64,
    machine: Arc<Machine>,
}

impl SimHost {
    /// Returns this machine as another process sees it.
    pub fn of_process(&self, process: u64) -> SimHost {
        SimHost { world: self.world.clone(), process, machine: self.machine.clone() }
    }
}

impl Host for SimHost {
    fn now(&self) -> Duration {
        self.world.now()
    }
    fn unix_ms(&self) -> u64 {
        1_700_000_000_000 + self.now().as_millis() as u64
    }
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(Sleep { world: self.world.clone(), until: self.now() + duration, timer: None })
    }
    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>) {
        self.world.state.lock().spawned.push((self.process, name, task));
    }
    fn random(&self, bytes: &mut [u8]) {
        self.world.random.lock().fill(bytes);
    }
    fn boot_id(&self) -> [u8; 16] {
        self.machine.boot_id()
    }
    fn memory(&self, _: PoolId, _: u64, _: u64) -> std::io::Result<Arc<dyn Memory>> {
        Ok(self.machine.retained())
    }
}

struct Sleep {
    world: Arc<World>,
    until: Duration,
    timer: Option<u64>,
}

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let world = self.world.clone();
        let mut state = world.state.lock();
        if state.now >= self.until {
            return Poll::Ready(());
        }
        let timer = self.timer.unwrap_or(state.next_timer);
        if self.timer.is_none() {
            state.next_timer += 1;
            self.timer = Some(timer);
        }
        state.timers.insert((self.until, timer), cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer {
            self.world.state.lock().timers.remove(&(self.until, timer));
        }
    }
}

struct TaskWaker {
    world: Arc<World>,
    task: usize,
    queued: AtomicBool,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, SeqCst) {
            self.world.state.lock().make_ready(self.task);
        }
    }
}

struct Task {
    process: u64,
    name: &'static str,
    /// The engine started the task, not a client.
    is_engine: bool,
    future: LocalFuture,
    waker: Arc<TaskWaker>,
}

/// The result of a wait.
#[derive(Debug)]
pub enum Ran<T> {
    /// The future has completed with this result.
    Done(T),
    /// The given number of steps was used up.
    OutOfSteps,
}

/// A kill of the process at a store to retained memory.
struct Kill {
    memory: Arc<HeapMemory>,
    state: RefCell<KillState>,
    effect: Box<dyn Fn()>,
}

struct KillState {
    /// Number of stores to retained memory until the kill.
    stores: u64,
    /// The memory as the killed process left it.
    found: Option<HeapMemory>,
}

impl Kill {
    /// Returns a hook that is called after each store.
    fn hook(self: Rc<Kill>) -> Box<dyn FnMut()> {
        Box::new(move || {
            let mut state = self.state.borrow_mut();
            state.stores = state.stores.saturating_sub(1);
            if state.stores == 0 && state.found.is_none() {
                state.found = Some(self.memory.snapshot());
                (self.effect)();
            }
        })
    }
}

/// The deterministic executor; see the module documentation.
pub struct Executor {
    world: Arc<World>,
    tasks: Vec<Option<Task>>,
    rng: Rng,
    /// Number of steps of which one fires a timer although tasks are ready; 0 stands for none.
    pub hasty_clock: u64,
    hash: u64,
    steps: u64,
    /// The kill that is due.
    kill: Option<Rc<Kill>>,
    machine: Arc<Machine>,
    /// Processes whose tasks do not run at present.
    paused: BTreeSet<u64>,
}

impl Executor {
    /// A world without tasks.
    pub fn new(seed: u64) -> Executor {
        let mut rng = Rng::new(seed);
        let random = Mutex::new(rng.fork());
        let world = Arc::new(World { state: Mutex::default(), random });
        Executor {
            world,
            tasks: Vec::new(),
            rng,
            hasty_clock: 200,
            hash: 0,
            steps: 0,
            kill: None,
            machine: Machine::new(1),
            paused: BTreeSet::new(),
        }
    }

    /// The host for the engine.
    pub fn host(&self) -> Arc<SimHost> {
        self.host_on(0, self.machine.clone())
    }

    /// The host for the engine in a process on a machine.
    pub fn host_on(&self, process: u64, machine: Arc<Machine>) -> Arc<SimHost> {
        Arc::new(SimHost { world: self.world.clone(), process, machine })
    }

    /// Ends the process of the machine of [`Executor::host`]; see [`Machine::end_process`].
    pub fn end_process(&mut self, fate: MemoryFate) {
        self.machine.end_process(fate);
    }

    /// Virtual time.
    pub fn now(&self) -> Duration {
        self.world.now()
    }

    /// Steps taken so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// A hash of everything that happened so far: tasks, their order, times.
    pub fn trace_hash(&self) -> u64 {
        self.hash
    }

    /// Adds `n` to the hash of the run.
    pub fn note(&mut self, n: u64) {
        self.hash = mix(self.hash.rotate_left(5) ^ n);
    }

    /// Starts a task that does not belong to the engine.
    pub fn spawn(&mut self, name: &'static str, future: impl Future<Output = ()> + 'static) {
        self.spawn_in(0, name, future);
    }

    /// Spawns a task in a process; see [`Executor::spawn`].
    pub fn spawn_in(&mut self, process: u64, name: &'static str, future: impl Future<Output = ()> + 'static) {
        self.add(process, name, false, Box::pin(future));
    }

    fn add(&mut self, process: u64, name: &'static str, is_engine: bool, future: LocalFuture) {
        let task = self.tasks.len();
        let waker = Arc::new(TaskWaker { world: self.world.clone(), task, queued: AtomicBool::new(true) });
        self.tasks.push(Some(Task { process, name, is_engine, future, waker }));
        self.world.state.lock().make_ready(task);
    }

    fn take_spawned(&mut self) {
        let spawned = std::mem::take(&mut self.world.state.lock().spawned);
        for (process, name, future) in spawned {
            self.add(process, name, true, future);
        }
    }

    /// Advances the clock to the next timer and fires it; false if no timer is set.
    fn fire_timer(&mut self) -> bool {
        let first = self.world.state.lock().timers.pop_first();
        let Some(((at, _), waker)) = first else { return false };
        let mut state = self.world.state.lock();
        state.now = state.now.max(at);
        drop(state);
        waker.wake();
        true
    }

    /// Takes one of the ready tasks, except tasks of paused processes.
    fn take_ready(&mut self) -> Option<usize> {
        let ready = &mut self.world.state.lock().ready;
        if self.paused.is_empty() {
            let at = (!ready.is_empty()).then(|| self.rng.below(ready.len() as u64) as usize)?;
            return Some(ready.remove(at));
        }
        let runs =
            |task: &usize| self.tasks[*task].as_ref().is_none_or(|t| !self.paused.contains(&t.process));
        let running: Vec<usize> = ready.iter().copied().filter(runs).collect();
        let task = *(!running.is_empty()).then(|| self.rng.pick(&running))?;
        ready.retain(|other| *other != task);
        Some(task)
    }

    /// Executes one step; false if no further step is possible.
    pub fn step(&mut self) -> bool {
        STEPS.fetch_add(1, SeqCst);
        self.steps += 1;
        self.take_spawned();
        if self.hasty_clock > 0 && self.rng.one_in(self.hasty_clock) {
            self.fire_timer();
        }
        let task = loop {
            if let Some(task) = self.take_ready() {
                break task;
            }
            if !self.fire_timer() {
                return false;
            }
        };
        self.note((task as u64) << 40 ^ self.now().as_nanos() as u64);
        let Some(mut running) = self.tasks[task].take() else { return true };
        running.waker.queued.store(false, SeqCst);
        let waker = Waker::from(running.waker.clone());
        // A client could learn of an effect within the same step, so only steps of the engine are
        // interrupted.
        let hook = self.kill.as_ref().filter(|_| running.is_engine).map(|kill| kill.clone().hook());
        set_hook(hook);
        commit_here(self.rng.one_in(3));
        if running.future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            self.tasks[task] = Some(running);
        }
        set_hook(None);
        true
    }

    /// Runs until the engine has made `stores` more stores to retained memory, or at most `steps`. At that
    /// store, in the middle of a step, the process is killed: the memory stays as it is then, and `kill` is
    /// called. The rest of the step has no effect.
    pub fn run_into_kill(&mut self, stores: u64, steps: u64, kill: impl Fn() + 'static) {
        let memory = self.machine.retained();
        let state = RefCell::new(KillState { stores, found: None });
        let kill = Rc::new(Kill { memory, state, effect: Box::new(kill) });
        self.kill = Some(kill.clone());
        for _ in 0..steps {
            if !self.step() || kill.state.borrow().found.is_some() {
                break;
            }
        }
        self.kill = None;
        if let Some(found) = kill.state.borrow_mut().found.take() {
            self.machine.set_retained(found);
        }
    }

    /// Runs until `future` completes or `steps` are used up.
    pub fn run<T: 'static>(&mut self, future: impl Future<Output = T> + 'static, steps: u64) -> Ran<T> {
        let result = Rc::new(RefCell::new(None));
        let slot = result.clone();
        self.spawn("awaited", async move {
            let value = future.await;
            *slot.borrow_mut() = Some(value);
        });
        for _ in 0..steps {
            assert!(self.step(), "deadlock: nothing is ready, no timer is set; waiting: {}", self.waiting());
            if let Some(value) = result.borrow_mut().take() {
                return Ran::Done(value);
            }
        }
        Ran::OutOfSteps
    }

    /// Runs until `future` completes, which must happen in a bounded number of steps.
    pub fn finish<T: 'static>(&mut self, future: impl Future<Output = T> + 'static) -> T {
        const BOUND: u64 = 30_000_000;
        match self.run(future, BOUND) {
            Ran::Done(value) => value,
            Ran::OutOfSteps => panic!("no end after {BOUND} steps; alive: {}", self.waiting()),
        }
    }

    /// Names of the tasks that have not ended.
    fn waiting(&self) -> String {
        let mut count = BTreeMap::new();
        self.tasks.iter().flatten().for_each(|t| *count.entry(t.name).or_insert(0) += 1);
        format!("{count:?}")
    }

    /// From now on, the tasks of a process do not run.
    pub fn pause_process(&mut self, process: u64) {
        self.paused.insert(process);
    }

    /// The tasks of a paused process continue.
    pub fn resume_process(&mut self, process: u64) {
        self.paused.remove(&process);
    }

    /// Ends one process: its tasks are dropped. What they start in another process while they are dropped
    /// continues.
    pub fn kill_process(&mut self, process: u64) {
        self.take_spawned();
        let of_it = |task: &&mut Option<Task>| task.as_ref().is_some_and(|task| task.process == process);
        let dropped: Vec<_> = self.tasks.iter_mut().filter(of_it).filter_map(Option::take).collect();
        drop(dropped);
        let spawned = {
            let mut state = self.world.state.lock();
            let (of_it, others) =
                std::mem::take(&mut state.spawned).into_iter().partition(|s| s.0 == process);
            state.spawned = others;
            of_it
        };
        let spawned: Vec<_> = spawned;
        drop(spawned);
        self.paused.remove(&process);
        self.note(0xdead ^ process << 16);
    }

    /// The end of the process: all tasks are dropped.
    pub fn kill_tasks(&mut self) {
        // Effects of dropping a task (a wake-up, a task spawned from a destructor) are dropped too.
        // Numbers are not reused: a waker that survived must not wake another task.
        let tasks: Vec<_> = self.tasks.iter_mut().filter_map(Option::take).collect();
        let spawned = std::mem::take(&mut self.world.state.lock().spawned);
        drop(tasks);
        drop(spawned);
        let left = {
            let mut state = self.world.state.lock();
            state.ready.clear();
            (std::mem::take(&mut state.timers), std::mem::take(&mut state.spawned))
        };
        drop(left);
        self.note(0xdead);
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.kill_tasks();
    }
}
