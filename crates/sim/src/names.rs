//! Nodes that share the directory of names of a cluster (`forebay_cluster::names`).
//!
//! Each shard has an owner, a process with a client of the simulated Ceph cluster. A shard is reduced to what
//! the directory depends on: an object with the term of the owner and one key for each disk, which only the
//! owner of the present term can change. Clients create, delete and rename disks of a few names, at all
//! owners at once. Owners are killed and paused at any step, and another process takes the shard over, also
//! while the former owner lives; what a paused or killed owner had begun arrives at any later time.
//!
//! **The verdict.** At no moment do two shards have a disk of the same name, and a shard that has a disk has
//! the entry of its name. An operation that was answered and that no other one overlapped is there at the
//! end. When every shard has a new owner that has settled, and nothing is in progress, names and disks are
//! the same, and no entry is pending.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_cluster::ClusterError;
use forebay_cluster::names::{Kind, Names};
use forebay_engine::Host;
use forebay_store::rados::{
    Broken, Cluster, Errno, SimulatedClient, SimulatedRados, Step, Wanted, WhenFull, digits,
};
use parking_lot::Mutex;

use crate::exec::{Executor, Ran, SimHost};
use crate::rados::Network;
use crate::rng::Rng;

const TERM: &str = "term";
const NAMES: u64 = 8;
/// Steps of the executor between two checks of the invariant.
const CHECK_EVERY: u64 = 20;
/// Time in which everything that has been begun arrives.
const ALL_ARRIVES: Duration = Duration::from_secs(60);

fn shard_object(shard: u32) -> String {
    format!("shard.{shard}")
}

/// What clients know of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Known {
    /// The shard that has it; `None` for no shard.
    In(Option<u32>),
    /// An operation was not answered, or several have overlapped.
    Unknown,
}

/// The names as clients know them from answers.
#[derive(Default)]
struct Ledger {
    known: BTreeMap<String, Known>,
    /// Operations that have begun, by number: those that were neither answered nor settled.
    under_way: BTreeMap<u64, Begun>,
    next: u64,
    seen: Seen,
}

/// An operation that has begun.
struct Begun {
    names: Vec<String>,
    shard: u32,
    term: u64,
    /// Another operation on one of the names was under way at the same time.
    overlaps: bool,
    /// It was given up: the owner of the shard settles it.
    is_given_up: bool,
}

/// What has happened in a round.
#[derive(Debug, Default, Clone, Copy)]
pub struct Seen {
    /// Operations that were answered with success.
    pub done: u64,
    /// Those that no other operation overlapped.
    pub verifiable: u64,
    /// Operations whose task was cancelled.
    pub cancelled: u64,
    /// Operations that were refused because of the state of a name.
    pub refused: u64,
    /// Operations that ended because the shard had another owner.
    pub lost: u64,
    /// Number of interrupted operations that a later owner has settled: as done, and as not done.
    pub settled: [u64; 2],
    /// Owners that were killed.
    pub killed: u64,
    /// Owners that were paused.
    pub paused: u64,
}

impl Ledger {
    fn begin(&mut self, names: &[&str], shard: u32, term: u64) -> u64 {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut overlaps = false;
        for other in self.under_way.values_mut() {
            if other.names.iter().any(|name| names.contains(name)) {
                (other.overlaps, overlaps) = (true, true);
            }
        }
        self.next += 1;
        self.under_way.insert(self.next, Begun { names, shard, term, overlaps, is_given_up: false });
        self.next
    }

    /// An operation was answered. `changed` are the names that it has changed.
    fn end(&mut self, operation: u64, changed: &[(&str, Option<u32>)]) {
        let Some(begun) = self.under_way.remove(&operation) else { return };
        for (name, shard) in changed {
            let known = if begun.overlaps { Known::Unknown } else { Known::In(*shard) };
            self.known.insert((*name).to_owned(), known);
        }
        self.seen.verifiable += u64::from(!begun.overlaps && !changed.is_empty());
    }

    /// An operation is not answered.
    fn give_up(&mut self, operation: u64) {
        let Some(begun) = self.under_way.get_mut(&operation) else { return };
        begun.is_given_up = true;
        for name in &begun.names {
            self.known.insert(name.clone(), Known::Unknown);
        }
    }

    /// The owner of a shard has begun to settle.
    fn given_up(&self, shard: u32, term: u64) -> Vec<u64> {
        let is_due = |begun: &Begun| {
            begun.shard == shard && (begun.term < term || (begun.term == term && begun.is_given_up))
        };
        self.under_way.iter().filter(|(_, begun)| is_due(begun)).map(|(number, _)| *number).collect()
    }

    /// The owner of a shard has settled these operations.
    fn settled(&mut self, operations: &[u64]) {
        for operation in operations {
            self.give_up(*operation);
            self.under_way.remove(operation);
        }
    }
}

/// A process that owns a shard.
struct Owner {
    client: Arc<SimulatedClient>,
    host: Arc<SimHost>,
    names: Names,
    shard: u32,
    rng: RefCell<Rng>,
    ledger: Rc<RefCell<Ledger>>,
}

/// Why an operation has ended without success.
enum Ended {
    Refused,
    Lost,
    Cancelled,
}

impl From<ClusterError> for Ended {
    fn from(error: ClusterError) -> Ended {
        match error {
            ClusterError::Exists(_)
            | ClusterError::Missing(_)
            | ClusterError::Elsewhere { .. }
            | ClusterError::Unsettled(_) => Ended::Refused,
            ClusterError::Lost(_) => Ended::Lost,
            other => panic!("{other}"),
        }
    }
}

impl Owner {
    /// Takes the shard over; returns the term.
    async fn take(&self) -> u64 {
        let object = shard_object(self.shard);
        loop {
            let seen = self.client.contents(&object, 0).await.expect("the shard exists").attribute(TERM);
            let term = u64::from_str_radix(&seen, 16).expect("only owners set it") + 1;
            let steps = vec![Step::Require(TERM, seen), Step::Set(TERM, digits(term))];
            match self.client.operate(&object, steps, WhenFull::Proceed).await {
                Ok(()) => return term,
                Err(Errno(libc::ECANCELED)) => {}
                Err(e) => panic!("{e:?}"),
            }
        }
    }

    async fn has(&self, name: &str) -> bool {
        let wanted = Wanted::Keys(vec![name.to_owned()]);
        let found = self.client.entries(&shard_object(self.shard), wanted).await;
        !found.expect("the shard exists").entries.is_empty()
    }

    /// Settles what earlier owners have begun, and what this one has given up.
    async fn settle(&self, term: u64) -> Result<(), Ended> {
        let due = self.ledger.borrow().given_up(self.shard, term);
        for pending in self.names.pending(self.shard).await? {
            let settled =
                self.names.settle(&pending.name, self.shard, term, async |name| Ok(self.has(name).await));
            if let Some(exists) = settled.await? {
                self.ledger.borrow_mut().seen.settled[usize::from(!exists)] += 1;
            }
        }
        self.ledger.borrow_mut().settled(&due);
        Ok(())
    }

    async fn commit(&self, term: u64, add: &[&str], remove: &[&str]) -> Result<(), Ended> {
        let keys = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let value = |name: &&str| ((*name).to_owned(), b"disk".to_vec());
        let steps = vec![
            Step::Require(TERM, digits(term)),
            Step::SetEntries(add.iter().map(value).collect()),
            Step::RemoveKeys(keys(remove)),
        ];
        match self.client.operate(&shard_object(self.shard), steps, WhenFull::Proceed).await {
            Ok(()) => Ok(()),
            Err(Errno(libc::ECANCELED)) => Err(Ended::Lost),
            Err(e) => panic!("{e:?}"),
        }
    }

    /// Awaits a step, or cancels it at some moment. A commit is never cancelled: whether it takes effect
    /// would not be known.
    async fn maybe<T>(&self, step: impl Future<Output = forebay_cluster::Result<T>>) -> Result<T, Ended> {
        let cancel = {
            let mut rng = self.rng.borrow_mut();
            rng.one_in(15).then(|| Duration::from_micros(rng.range(1, 2_000)))
        };
        let Some(time) = cancel else { return Ok(step.await?) };
        let (mut step, mut timer) = (std::pin::pin!(step), self.host.sleep(time));
        std::future::poll_fn(|cx| {
            if let std::task::Poll::Ready(done) = step.as_mut().poll(cx) {
                return std::task::Poll::Ready(done.map_err(Ended::from));
            }
            timer.as_mut().poll(cx).map(|()| Err(Ended::Cancelled))
        })
        .await
    }

    async fn create(&self, names: &[&str], term: u64) -> Result<(), Ended> {
        let pending = self.maybe(self.names.reserve(names, Kind::Volume, self.shard, term)).await?;
        self.commit(term, names, &[]).await?;
        self.maybe(self.names.end(pending, true)).await
    }

    async fn delete(&self, name: &str, term: u64) -> Result<(), Ended> {
        let pending = self.maybe(self.names.mark(name, self.shard, term)).await?;
        self.commit(term, &[], &[name]).await?;
        self.maybe(self.names.end(vec![pending], false)).await
    }

    async fn rename(&self, from: &str, to: &str, term: u64) -> Result<(), Ended> {
        let new = self.maybe(self.names.reserve(&[to], Kind::Volume, self.shard, term)).await?;
        let old = match self.maybe(self.names.mark(from, self.shard, term)).await {
            Ok(old) => old,
            Err(ended) => {
                // Nothing was committed, so it is certain that the shard has no disk of the new name.
                self.maybe(self.names.end(new, false)).await?;
                return Err(ended);
            }
        };
        self.commit(term, &[to], &[from]).await?;
        self.maybe(self.names.end(new, true)).await?;
        self.maybe(self.names.end(vec![old], false)).await
    }

    /// One client: random operations until the shard is lost.
    async fn client(self: Rc<Owner>, term: u64) {
        loop {
            let pause = self.rng.borrow_mut().range(1, 30);
            self.host.sleep(Duration::from_millis(pause)).await;
            let (kind, one, other) = {
                let mut rng = self.rng.borrow_mut();
                (rng.below(10), format!("disk-{}", rng.below(NAMES)), format!("disk-{}", rng.below(NAMES)))
            };
            let (one, other) = (one.as_str(), other.as_str());
            if kind == 9 {
                match self.settle(term).await {
                    Err(Ended::Lost) => return,
                    _ => continue,
                }
            }
            // Two disks are created in one commit, or one is renamed.
            let concerns_two = !(2..7).contains(&kind);
            if concerns_two && one == other {
                continue;
            }
            let names: &[&str] = if concerns_two { &[one, other] } else { &[one] };
            let operation = self.ledger.borrow_mut().begin(names, self.shard, term);
            let (done, changed) = match kind {
                0..4 => (
                    self.create(names, term).await,
                    names.iter().map(|name| (*name, Some(self.shard))).collect(),
                ),
                4..7 => (self.delete(one, term).await, vec![(one, None)]),
                _ => (self.rename(one, other, term).await, vec![(one, None), (other, Some(self.shard))]),
            };
            let mut ledger = self.ledger.borrow_mut();
            match done {
                Ok(()) => {
                    ledger.seen.done += 1;
                    ledger.end(operation, &changed);
                }
                Err(Ended::Refused) => {
                    ledger.seen.refused += 1;
                    ledger.end(operation, &[]);
                }
                Err(Ended::Cancelled) => {
                    ledger.seen.cancelled += 1;
                    ledger.give_up(operation);
                }
                Err(Ended::Lost) => {
                    // Not answered: another owner settles it.
                    ledger.seen.lost += 1;
                    ledger.give_up(operation);
                    return;
                }
            }
        }
    }
}

/// A round of the world.
pub struct NamesRound {
    exec: Executor,
    rng: Rng,
    rados: Arc<SimulatedRados>,
    shards: u32,
    ledger: Rc<RefCell<Ledger>>,
    /// The processes of owners, that may live, and whether each is paused.
    owners: BTreeMap<u64, bool>,
}

impl NamesRound {
    /// The round of a seed.
    pub fn new(seed: u64) -> NamesRound {
        let mut rng = Rng::new(seed);
        let exec = Executor::new(rng.next());
        let network = Network {
            host: exec.host(),
            rng: Mutex::new(rng.fork()),
            late: *rng.pick(&[30, 300]),
            late_removals: false,
        };
        let shards = rng.range(1, 3) as u32;
        NamesRound {
            rados: SimulatedRados::new(Arc::new(network)),
            exec,
            rng,
            shards,
            ledger: Rc::default(),
            owners: BTreeMap::new(),
        }
    }

    /// The same with a cluster that breaks a rule.
    #[must_use]
    pub fn with_broken(self, broken: Broken) -> NamesRound {
        self.rados.set_broken(broken);
        self
    }

    /// Runs the round; panics if the verdict is not passed.
    pub fn run(mut self) -> Seen {
        let setup = self.rados.client();
        let shards = self.shards;
        self.exec.finish(async move {
            for shard in 0..shards {
                let steps = vec![Step::Create, Step::Set(TERM, digits(0))];
                setup.operate(&shard_object(shard), steps, WhenFull::Proceed).await.expect("it is new");
            }
        });
        for shard in 0..self.shards {
            self.start_owner(shard, true);
        }
        for _ in 0..self.rng.range(5, 25) {
            self.disturb();
            let steps = self.rng.range(20, 600);
            self.run_for(steps);
        }
        self.end()
    }

    /// Starts a process that takes a shard over, settles, and has clients if `works`.
    fn start_owner(&mut self, shard: u32, works: bool) -> Rc<RefCell<bool>> {
        let client = self.rados.client();
        let number = client.number();
        let owner = Rc::new(Owner {
            host: Arc::new(self.exec.host().of_process(number)),
            names: Names::new(client.clone()),
            client,
            shard,
            rng: RefCell::new(self.rng.fork()),
            ledger: self.ledger.clone(),
        });
        let settled = Rc::new(RefCell::new(false));
        let (done, clients) = (settled.clone(), if works { self.rng.range(1, 3) } else { 0 });
        self.owners.insert(number, false);
        self.exec.spawn_in(number, "owner", async move {
            let term = owner.take().await;
            if owner.settle(term).await.is_err() {
                return;
            }
            *done.borrow_mut() = true;
            // The clients are polled by one task: each wait of one lets the others run.
            let clients: Vec<_> = (0..clients).map(|_| Box::pin(owner.clone().client(term))).collect();
            join_all(clients).await;
        });
        settled
    }

    fn disturb(&mut self) {
        let living: Vec<u64> = self.owners.iter().filter(|(_, paused)| !**paused).map(|(n, _)| *n).collect();
        let paused: Vec<u64> = self.owners.iter().filter(|(_, paused)| **paused).map(|(n, _)| *n).collect();
        match self.rng.below(4) {
            0 if !living.is_empty() => {
                let victim = *self.rng.pick(&living);
                self.exec.kill_process(victim);
                self.owners.remove(&victim);
                self.ledger.borrow_mut().seen.killed += 1;
            }
            1 if !living.is_empty() => {
                let victim = *self.rng.pick(&living);
                self.exec.pause_process(victim);
                self.rados.pause(victim);
                self.owners.insert(victim, true);
                self.ledger.borrow_mut().seen.paused += 1;
            }
            2 if !paused.is_empty() => self.resume(*self.rng.clone().pick(&paused)),
            _ => {}
        }
        let shard = self.rng.below(self.shards.into()) as u32;
        self.start_owner(shard, true);
    }

    fn resume(&mut self, owner: u64) {
        self.exec.resume_process(owner);
        self.rados.resume(owner);
        self.owners.insert(owner, false);
    }

    fn run_for(&mut self, steps: u64) {
        let end = self.exec.steps() + steps;
        while self.exec.steps() < end {
            let wait = self.exec.host().sleep(Duration::from_secs(3600));
            match self.exec.run(wait, CHECK_EVERY) {
                Ran::Done(()) => return,
                Ran::OutOfSteps => self.check(),
            }
        }
    }

    /// The disks of all shards, with the shards that have them.
    fn disks(&self) -> BTreeMap<String, Vec<u32>> {
        let mut disks: BTreeMap<String, Vec<u32>> = BTreeMap::new();
        for shard in 0..self.shards {
            for name in self.rados.entries_of(&shard_object(shard)).into_keys() {
                disks.entry(name).or_default().push(shard);
            }
        }
        disks
    }

    /// The entries of the directory: names with their values, and the pending ones.
    fn entries(&self) -> (BTreeMap<String, String>, BTreeSet<String>) {
        let (mut names, mut pending) = (BTreeMap::new(), BTreeSet::new());
        for number in 0..64 {
            for (key, value) in self.rados.entries_of(&format!("names.{number:02}")) {
                match key.strip_prefix("n.") {
                    Some(name) => {
                        names.insert(name.to_owned(), String::from_utf8(value).expect("it is JSON"));
                    }
                    None => drop(pending.insert(key)),
                }
            }
        }
        (names, pending)
    }

    fn check(&self) {
        let (names, _) = self.entries();
        for (disk, shards) in self.disks() {
            assert!(shards.len() == 1, "'{disk}' is in the shards {shards:?}");
            let entry = names.get(&disk).unwrap_or_else(|| panic!("'{disk}' of a shard has no entry"));
            let wanted = format!("\"shard\":{},", shards[0]);
            assert!(entry.contains(&wanted), "'{disk}' is in shard {}, and its entry is {entry}", shards[0]);
        }
    }

    /// Everything that has been begun arrives, new owners settle, and the verdict follows.
    fn end(mut self) -> Seen {
        self.settle_all();
        // Late operations of former owners arrive after the new ones have settled.
        let paused: Vec<u64> = self.owners.iter().filter(|(_, paused)| **paused).map(|(n, _)| *n).collect();
        paused.into_iter().for_each(|owner| self.resume(owner));
        let rest = self.exec.host().sleep(ALL_ARRIVES);
        self.exec.finish(rest);
        self.check();
        for owner in std::mem::take(&mut self.owners).into_keys() {
            self.exec.kill_process(owner);
        }
        let rest = self.exec.host().sleep(ALL_ARRIVES);
        self.exec.finish(rest);
        self.settle_all();
        self.check();
        let (names, pending) = self.entries();
        assert_eq!(pending, BTreeSet::new(), "operations that no owner settles");
        let disks = self.disks();
        assert_eq!(names.keys().collect::<Vec<_>>(), disks.keys().collect::<Vec<_>>(), "names and disks");
        assert!(names.values().all(|entry| !entry.contains("pending")), "{names:?}");
        let ledger = self.ledger.borrow();
        for (name, known) in &ledger.known {
            if let Known::In(shard) = known {
                let found = disks.get(name).map(|shards| shards[0]);
                assert_eq!(found, *shard, "the last answered operation on '{name}'");
            }
        }
        ledger.seen
    }

    /// Starts an owner of each shard that settles. Another one, which was started before, may take the shard
    /// over from it.
    fn settle_all(&mut self) {
        for shard in 0..self.shards {
            let has_settled = (0..100).any(|_| {
                let settled = self.start_owner(shard, false);
                let rest = self.exec.host().sleep(ALL_ARRIVES);
                self.exec.finish(rest);
                *settled.borrow()
            });
            assert!(has_settled, "a new owner of shard {shard} does not settle");
        }
    }
}

/// Polls all futures until each has ended.
async fn join_all(mut futures: Vec<std::pin::Pin<Box<impl Future<Output = ()>>>>) {
    std::future::poll_fn(|cx| {
        futures.retain_mut(|future| future.as_mut().poll(cx).is_pending());
        if futures.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}
