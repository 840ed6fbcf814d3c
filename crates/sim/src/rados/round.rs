//! A round: servers start, fail and end at random moments.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::{Host, Mutation};
use forebay_store::rados::{Broken, Claim, GROUPS, SimulatedRados};
use parking_lot::Mutex;

use super::Network;
use super::chain::Chain;
use super::server::{Server, Stage};
use crate::ctx::Ctx;
use crate::exec::{Executor, Ran};
use crate::machine::{Machine, MemoryFate};
use crate::model::Model;
use crate::note;
use crate::plan::Plan;
use crate::rng::Rng;
use crate::round::start_clients;

/// Maximum pause between two events.
const EVENTS: [u64; 5] = [20, 200, 1_000, 4_000, 12_000];
/// Everything that was sent has arrived after this time.
const ALL_ARRIVED: u64 = 120_000;
/// Time after which a takeover is complete: late answers can follow each other.
const TAKEOVER: u64 = 3_600_000;

/// What happened in a round, so that tests can check that it was not idle.
#[derive(Debug, Clone, Copy, Default)]
pub struct Seen {
    /// Hash of all events of the round.
    pub trace: u64,
    /// Number of terms of the pool.
    pub terms: u64,
    /// Number of owners that lost the pool while they ran.
    pub superseded: u64,
    /// Number of owners that closed the pool.
    pub closed: u64,
    /// Number of times that the pool was released to an heir.
    pub handed_over: u64,
    /// Number of heirs that failed, by moment: while they waited, after the owner's release, after the swap,
    /// before the verdict of the handover, and after it.
    pub failed_heirs: [u64; 5],
    /// Number of times that the former owner took the pool back.
    pub taken_back: u64,
    /// Number of operations that the simulated cluster refused because a later owner had raised the term of
    /// the object.
    pub outdated: u64,
    /// Number of times that OSDs hung.
    pub hangs: u64,
}

/// When an heir fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    /// The heir fails at this time.
    At(Duration),
    /// The heir fails when the pool is released to it.
    Released,
    /// The heir fails when it has the term.
    Taken,
    /// The heir fails when it opens the pool.
    Opening,
    /// The heir fails when it serves clients.
    Ready,
}

/// An heir that is to fail.
struct Doom {
    heir: Rc<Server>,
    when: When,
    until: Duration,
}

/// A server that is running on a machine.
struct Seat {
    server: Rc<Server>,
    /// Number of the server's clients that run, once they were started.
    running: Option<Rc<Cell<u64>>>,
    /// Time until which the server is paused or cut off.
    until: Option<Duration>,
    was_superseded: bool,
}

/// A round with a pool in RADOS; see the module documentation.
pub struct RadosRound {
    /// The executor of all tasks of the round.
    exec: Executor,
    rados: Arc<SimulatedRados>,
    chain: Rc<RefCell<Chain>>,
    /// The shape of the run.
    pub plan: Plan,
    rng: Rng,
    machines: Vec<Arc<Machine>>,
    /// Servers, indexed by their machine.
    seats: Vec<Option<Seat>>,
    events: u64,
    may_be_full: bool,
    /// Whether the store often is full, and removals are late.
    is_scarce: bool,
    /// The weight of handovers among the events.
    handovers: u64,
    /// The weight of hanging OSDs among the events.
    hangs: u64,
    doomed: Option<Doom>,
    /// Time until which some placement groups hang.
    hung_until: Option<Duration>,
    seen: Seen,
}

impl RadosRound {
    /// Makes the round of a seed, with at most `ops` operations of an owner at a time.
    pub fn new(seed: u64, ops: Option<u64>) -> RadosRound {
        let mut rng = Rng::new(seed);
        let mut plan = Plan::new(&mut rng, ops);
        plan.desktops = false;
        note!("{plan:?}");
        let exec = Executor::new(rng.next());
        let late = *rng.pick(&[60, 300, 1_000]);
        let is_scarce = rng.percent(30);
        if is_scarce {
            plan.pool.segment_bytes = 64 << 10;
        }
        let network =
            Network { host: exec.host(), rng: Mutex::new(rng.fork()), late, late_removals: is_scarce };
        let mut model = Model::new();
        model.overlapping = plan.overlapping;
        let machines: Vec<_> = (1..=rng.range(2, 3)).map(|n| Machine::new(n as u8)).collect();
        RadosRound {
            rados: SimulatedRados::new(Arc::new(network)),
            exec,
            chain: Rc::new(RefCell::new(Chain::new(model))),
            plan,
            seats: machines.iter().map(|_| None).collect(),
            machines,
            events: rng.range(5, 30),
            may_be_full: is_scarce || rng.percent(30),
            is_scarce,
            handovers: *rng.pick(&[20, 200]),
            hangs: *rng.pick(&[0, 20, 100]),
            doomed: None,
            hung_until: None,
            rng,
            seen: Seen::default(),
        }
    }

    /// Makes the cluster break a rule.
    #[must_use]
    pub fn with_broken(self, broken: Broken) -> RadosRound {
        self.rados.set_broken(broken);
        self
    }

    /// Makes the engine break a rule.
    #[must_use]
    pub fn with_mutation(mut self, mutation: Mutation) -> RadosRound {
        self.plan.pool.mutation = mutation;
        self
    }

    /// Runs the round. Panics if a verdict is negative.
    pub fn run(mut self) -> Seen {
        for _ in 0..self.events {
            for index in 0..self.seats.len() {
                if self.seats[index].is_none() && self.rng.percent(60) {
                    self.start(index);
                }
            }
            let most = *self.rng.pick(&EVENTS);
            let time = self.rng.range(1, most);
            self.pass(time);
            self.event();
        }
        self.finale();
        assert_eq!(self.rados.taken_early(), 0, "a server took a pool that was reserved for another one");
        let (terms, outdated) = (self.rados.term(), self.rados.outdated());
        Seen { trace: self.exec.trace_hash(), terms, outdated, ..self.seen }
    }

    fn start(&mut self, index: usize) {
        self.start_as(index, None);
    }

    /// Starts a server: a new server, or a server that continues as the former owner of a pool that it handed
    /// over.
    fn start_as(&mut self, index: usize, former: Option<(String, u64)>) {
        let client = self.rados.client();
        let (number, machine) = (client.number(), self.machines[index].clone());
        let waits = former.is_some() || self.rng.percent(80);
        let claim = if waits { Claim::Wait } else { Claim::IfFree };
        note!("{:?} server {number} starts on machine {index}: {claim:?}", self.exec.now());
        let server = Rc::new(Server {
            number,
            index,
            host: self.exec.host_on(number, machine.clone()),
            machine,
            client,
            rados: self.rados.clone(),
            chain: self.chain.clone(),
            plan: self.plan.clone(),
            claim,
            name: former.as_ref().map_or_else(|| format!("server{number}"), |(name, _)| name.clone()),
            settles: former.map(|(_, term)| term),
            has_handed_over: Cell::new(false),
            has_taken_back: Cell::new(false),
            checks: self.rng.percent(25),
            may_be_full: self.may_be_full,
            stage: Cell::new(Stage::Waiting),
            store: RefCell::default(),
            ctx: RefCell::default(),
        });
        self.exec.spawn_in(number, "open", server.clone().open());
        let seat = Seat { server, running: None, until: None, was_superseded: false };
        self.seats[index] = Some(seat);
    }

    /// Lets time pass.
    fn pass(&mut self, ms: u64) {
        let (host, end) = (self.exec.host(), self.exec.now() + Duration::from_millis(ms));
        while self.exec.now() < end {
            let most_ms = if self.doomed.is_some() { 10 } else { 400 };
            let slice = Duration::from_millis(self.rng.range(1, most_ms)).min(end - self.exec.now());
            let host = host.clone();
            match self.exec.run(async move { host.sleep(slice).await }, 3_000_000) {
                Ran::Done(()) => {}
                Ran::OutOfSteps => panic!("{slice:?} do not pass"),
            }
            self.look();
        }
    }

    /// Starts clients, ends pauses, and ends servers that have nothing to do any more.
    fn look(&mut self) {
        self.doom();
        if self.hung_until.is_some_and(|until| until <= self.exec.now()) {
            self.hung_until = None;
            self.rados.set_hung([]);
        }
        for index in 0..self.seats.len() {
            let Some(seat) = &mut self.seats[index] else { continue };
            let (number, stage) = (seat.server.number, seat.server.stage.get());
            if seat.until.is_some_and(|until| until <= self.exec.now()) {
                note!("{:?} server {number} continues", self.exec.now());
                seat.until = None;
                self.exec.resume_process(number);
                self.rados.resume(number);
            }
            seat.check_lease();
            if seat.server.is_superseded() && stage != Stage::Ended && !seat.was_superseded {
                note!("{:?} server {number} has lost the pool", self.exec.now());
                seat.was_superseded = true;
                self.seen.superseded += 1;
            }
            if stage == Stage::Ready {
                if seat.has_latched() {
                    // The process of the server ends.
                    let fate = self.fate();
                    self.kill(index, fate);
                    continue;
                }
                seat.work(&mut self.exec, &mut self.rng);
                if self.is_scarce && self.rados.removes(number) && self.rng.percent(30) {
                    let fate = self.fate();
                    self.kill(index, fate);
                    continue;
                }
            }
            if stage == Stage::Ended {
                let server = seat.server.clone();
                let term = server.store.borrow().as_ref().map(|store| store.term());
                self.kill(index, MemoryFate::Kept);
                if let (true, Some(term)) = (server.has_handed_over.get(), term) {
                    self.seen.handed_over += 1;
                    // The server usually waits for the outcome; otherwise it has died.
                    if self.rng.percent(70) {
                        self.start_as(index, Some((server.name.clone(), term)));
                    }
                }
            }
        }
    }

    /// Lets an heir fail when its time has come.
    fn doom(&mut self) {
        let Some(Doom { heir, when, until }) = &self.doomed else { return };
        let (owner, chosen) = self.rados.owner_and_heir();
        let is_name = |text: &str| text.split(' ').next() == Some(heir.name.as_str());
        let (stage, owns) = (heir.stage.get(), is_name(&owner));
        let is_due = match when {
            When::At(time) => *time <= self.exec.now(),
            When::Released => owner.is_empty() && is_name(&chosen),
            When::Taken => owns,
            When::Opening => stage == Stage::Opening,
            When::Ready => stage == Stage::Ready,
        };
        let index = heir.index;
        let is_seated = self.seats[index].as_ref().is_some_and(|seat| seat.server.number == heir.number);
        let step = match stage {
            Stage::Waiting if owns => 2,
            Stage::Waiting if owner.is_empty() && is_name(&chosen) => 1,
            Stage::Waiting => 0,
            Stage::Opening => 3,
            _ => 4,
        };
        if !is_seated || *until <= self.exec.now() {
            self.doomed = None;
        } else if is_due {
            note!("{:?} the heir {} fails: {when:?}, {stage:?}", self.exec.now(), heir.number);
            self.doomed = None;
            self.seen.failed_heirs[step] += 1;
            if self.rng.percent(60) {
                let fate = self.fate();
                self.kill(index, fate);
            } else {
                let pause = self.rng.range(100, 15_000);
                self.pause(index, pause, true);
            }
        }
    }

    /// A server is paused or cut off.
    fn pause(&mut self, index: usize, ms: u64, is_paused: bool) {
        let Some(seat) = &mut self.seats[index] else { return };
        if seat.until.is_some() {
            return;
        }
        let (number, until) = (seat.server.number, self.exec.now() + Duration::from_millis(ms));
        seat.until = Some(until);
        self.rados.pause(number);
        if is_paused {
            self.exec.pause_process(number);
        }
        let what = if is_paused { "is paused" } else { "is cut off" };
        note!("{:?} server {number} {what} until {until:?}", self.exec.now());
    }

    /// The owner hands the pool over to a server that waits, and that may fail.
    fn hand_over(&mut self, owner: usize) {
        let waits =
            |seat: &Seat| seat.server.stage.get() == Stage::Waiting && seat.server.claim == Claim::Wait;
        let heir = self.seats.iter().flatten().find(|seat| waits(seat)).map(|seat| seat.server.clone());
        let (Some(heir), Some(seat)) = (heir, &self.seats[owner]) else { return };
        let server = seat.server.clone();
        note!("{:?} server {} is to hand the pool over to {}", self.exec.now(), server.number, heir.name);
        self.exec.spawn_in(server.number, "hand over", server.hand_over(heir.name.clone()));
        self.choose_doom(heir);
        // Usually no other event follows before that time.
        if self.rng.percent(70) {
            let time = self.rng.range(2_000, 9_000);
            self.pass(time);
        }
    }

    /// Decides whether and when an heir fails.
    fn choose_doom(&mut self, heir: Rc<Server>) {
        let when = match self.rng.below(9) {
            0 => When::At(self.exec.now() + Duration::from_millis(self.rng.range(1, 3_000))),
            // It is often too late: the heir takes a pool as soon as it is released.
            1 | 2 => When::Released,
            3 | 4 => When::Taken,
            5 => When::Opening,
            6 => When::Ready,
            _ => return,
        };
        let until = self.exec.now() + Duration::from_secs(30);
        self.doomed = Some(Doom { heir, when, until });
    }

    /// The process ends.
    fn kill(&mut self, index: usize, fate: MemoryFate) {
        let Some(Seat { server, running, .. }) = self.seats[index].take() else { return };
        let number = server.number;
        note!("{:?} server {number} ends, memory {fate:?}", self.exec.now());
        self.seen.taken_back += u64::from(server.has_taken_back.get());
        server.machine.end_process(fate);
        // The store is dropped here, or with the tasks of the process.
        let (store, ctx) = (server.store.take(), server.ctx.take());
        drop((server, running, store, ctx));
        self.exec.kill_process(number);
        self.rados.resume(number);
        let mut chain = self.chain.borrow_mut();
        if chain.machine() == Some(index) {
            chain.fate = chain.fate.max(fate);
        }
    }

    fn fate(&mut self) -> MemoryFate {
        match self.rng.below(100) {
            0..70 => MemoryFate::Kept,
            70..85 => MemoryFate::Wiped,
            _ => MemoryFate::Restarted,
        }
    }

    /// Something happens to a server or to the cluster.
    fn event(&mut self) {
        let any = self.rng.below(self.seats.len() as u64) as usize;
        let owner = self.seats.iter().position(|seat| seat.as_ref().is_some_and(Seat::is_owner));
        let index = owner.filter(|_| self.rng.percent(70)).unwrap_or(any);
        let shortages = if self.is_scarce { 100 } else { 10 };
        let kind = self.rng.weighted(&[25, 25, 20, 15, shortages, self.handovers, 15, self.hangs]);
        match kind {
            4 => return self.shrink(),
            7 => return self.hang(),
            _ => {}
        }
        let Some(seat) = &mut self.seats[index] else { return };
        let (number, stage) = (seat.server.number, seat.server.stage.get());
        let ms = self.rng.range(100, 15_000);
        match kind {
            0 => {
                let fate = self.fate();
                self.kill(index, fate);
            }
            1 | 2 => self.pause(index, ms, kind == 1),
            3 if stage == Stage::Ready => {
                note!("{:?} server {number} closes", self.exec.now());
                self.seen.closed += 1;
                seat.server.stage.set(Stage::Closing);
                let server = seat.server.clone();
                self.exec.spawn_in(number, "close", server.close());
            }
            5 if stage == Stage::Ready => self.hand_over(index),
            _ => {}
        }
    }

    /// Lets an OSD hang: some placement groups do not answer. Usually the group of the header does.
    fn hang(&mut self) {
        let mut groups: Vec<u64> = (0..GROUPS).filter(|_| self.rng.percent(40)).collect();
        if self.rng.percent(80) {
            groups.retain(|group| *group != SimulatedRados::group_of_header());
        }
        let until = self.exec.now() + Duration::from_millis(self.rng.range(300, 20_000));
        note!("{:?} groups {groups:?} hang until {until:?}", self.exec.now());
        self.rados.set_hung(groups);
        self.hung_until = Some(until);
        self.seen.hangs += 1;
    }

    /// The pool is nearly full, or has room again.
    fn shrink(&mut self) {
        let is_idle = self.seats.iter().flatten().all(|seat| seat.server.stage.get() != Stage::Opening);
        if self.may_be_full && is_idle {
            let room =
                if self.is_scarce { self.rng.below(64 << 10) } else { self.rng.below(4) * (128 << 10) };
            let capacity = if self.rng.percent(50) { self.rados.used() + room } else { 1 << 40 };
            note!("{:?} capacity {capacity}", self.exec.now());
            self.rados.set_capacity(capacity);
        }
    }

    /// Ends all servers. A last server finds the contents; later, when no request can arrive any more, it
    /// must find the same contents again.
    fn finale(&mut self) {
        note!("{:?} the end", self.exec.now());
        self.rados.set_capacity(1 << 40);
        self.rados.set_hung([]);
        self.hung_until = None;
        for _ in 0..2 {
            for index in 0..self.seats.len() {
                let fate = self.fate();
                self.kill(index, fate);
            }
            let index = self.rng.below(self.seats.len() as u64) as usize;
            self.open_last(index);
            self.pass(ALL_ARRIVED);
        }
        let settled = self.chain.borrow_mut().settle();
        if let Err(why) = settled {
            panic!("{why}");
        }
    }

    /// Starts a server, and waits until its clients can work.
    fn open_last(&mut self, index: usize) {
        self.start(index);
        let begun = self.exec.now();
        loop {
            let Some(seat) = &self.seats[index] else {
                // The claim was refused.
                self.start(index);
                continue;
            };
            if seat.server.stage.get() == Stage::Ready {
                return;
            }
            let waited = self.exec.now() - begun;
            assert!(waited < Duration::from_millis(TAKEOVER), "no server takes the pool over");
            self.pass(500);
        }
    }
}

impl Seat {
    fn is_owner(&self) -> bool {
        self.server.stage.get() == Stage::Ready && !self.server.is_superseded()
    }

    /// An operation found that the pool has stopped, although the server owns it.
    fn has_latched(&self) -> bool {
        let latched = self.server.ctx.borrow().as_ref().is_some_and(|ctx| ctx.latched.get());
        latched && !self.server.is_superseded()
    }

    /// An owner that is certain of its ownership has it.
    fn check_lease(&self) {
        let store = self.server.store.borrow();
        let is_certain = store.as_ref().is_some_and(|store| store.ownership()());
        let superseded = self.server.is_superseded();
        assert!(!(is_certain && superseded), "server {} has a lease, and a successor", self.server.number);
    }

    /// Clients work while there is something to do.
    fn work(&mut self, exec: &mut Executor, rng: &mut Rng) {
        let ctx: Rc<Ctx> = self.server.ctx.borrow().clone().expect("it is ready");
        let is_idle = self.running.as_ref().is_none_or(|running| running.get() == 0);
        if is_idle && !ctx.latched.get() && (self.running.is_none() || rng.percent(30)) {
            ctx.left.set(ctx.plan.ops);
            self.running = Some(start_clients(exec, self.server.number, &ctx, rng));
        }
    }
}
