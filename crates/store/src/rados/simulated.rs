//! A RADOS cluster in memory, for tests.
//!
//! Each client represents a process with a separate connection. A request arrives after some time, takes
//! effect, and its answer returns. Requests of one client to one object arrive in order. A request arrives
//! even if its client has crashed or is paused in the meantime, possibly much later. Fences have to make such
//! late requests ineffective.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::cluster::{Answer, Cluster, Contents, Entries, Errno, Operation, Step, Wanted, WhenFull};
use super::header::{HEADER, HEIR, OWNER, TERM, standby_of};
use crate::{BoxFuture, Capacity, IoBuf, StoreError};

/// Clock, tasks and random delays of a simulation.
pub trait World: Send + Sync {
    /// Time since the beginning.
    fn now(&self) -> Duration;
    /// Completes after `time`.
    fn sleep(&self, time: Duration) -> BoxFuture<'static, ()>;
    /// Runs a task. Tasks of a crashed process may be dropped; tasks of the cluster (`client` is `None`) may
    /// not.
    fn spawn(&self, client: Option<u64>, task: BoxFuture<'static, ()>);
    /// How long the next request or answer is under way.
    fn delay(&self) -> Duration;
    /// How long the next request to remove an object is under way.
    fn removal_delay(&self) -> Duration {
        self.delay()
    }
}

/// A rule that the cluster breaks, to test that a simulation notices it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Broken {
    /// The cluster breaks no rule.
    #[default]
    None,
    /// Objects that exist do not get the term of a new owner: open segments are not fenced.
    Fences,
    /// Entries need not have the required value.
    Entries,
    /// Keys are not entered in the header: segments are open and removed unnoticed.
    Keys,
    /// Attributes need not have the required value.
    Require,
    /// Attributes may be greater than required: removals ignore terms.
    RequireAtMost,
    /// The heir of a pool is not recorded: the pool is not reserved for it.
    Heirs,
}

/// Time for which only the heir takes a pool that was released to it.
const RESERVED: Duration = Duration::from_secs(2);
/// Number of placement groups.
pub const GROUPS: u64 = 8;
/// Interval at which waiting requests check whether they may arrive: requests of paused clients, or requests
/// to groups that hang.
const PAUSE: Duration = Duration::from_millis(100);

/// A world without time, for tests of one client: everything that a call causes has happened when it returns.
struct Immediate;

impl World for Immediate {
    fn now(&self) -> Duration {
        Duration::ZERO
    }
    fn sleep(&self, time: Duration) -> BoxFuture<'static, ()> {
        match time.is_zero() {
            true => Box::pin(std::future::ready(())),
            false => Box::pin(std::future::pending()),
        }
    }
    fn spawn(&self, _: Option<u64>, mut task: BoxFuture<'static, ()>) {
        // A task that still waits, waits for time to pass, which does not happen.
        let _ = task.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
    }
    fn delay(&self) -> Duration {
        Duration::ZERO
    }
}

#[derive(Default, Clone)]
struct Object {
    bytes: Vec<u8>,
    attributes: BTreeMap<String, String>,
    keys: BTreeMap<String, Vec<u8>>,
}

/// Prefix that distinguishes the queue of reads of an object.
const READ: &str = "read ";

type Effect = Box<dyn FnOnce(&mut State) + Send>;

/// Requests of one client that are on their way to one object, in order.
#[derive(Default)]
struct Queue {
    /// Requests, each with whether it has been under way long enough.
    requests: VecDeque<(bool, Effect)>,
    /// Number of requests that have arrived.
    arrived: u64,
}

struct State {
    objects: BTreeMap<String, Object>,
    /// Requests that are on their way, by client and object.
    queues: HashMap<(u64, String), Queue>,
    capacity: u64,
    allowance: u64,
    clients: u64,
    /// Clients whose requests do not arrive at present.
    paused: BTreeSet<u64>,
    /// Placement groups that do not answer at present.
    hung: BTreeSet<u64>,
    broken: Broken,
    /// Number of removals that are on their way, by client.
    removals: HashMap<u64, u64>,
    /// The server to which the pool was released, and when it was released.
    reserved: Option<(String, Duration)>,
    /// Number of pools that another server took too early.
    taken_early: u64,
    /// Number of operations that had no effect because a term was greater.
    outdated: u64,
}

/// The simulated cluster.
pub struct SimulatedRados {
    state: Mutex<State>,
    world: Arc<dyn World>,
}

/// A client of the simulated cluster.
pub struct SimulatedClient {
    rados: Arc<SimulatedRados>,
    number: u64,
    ends_in_order: AtomicBool,
}

impl SimulatedRados {
    /// Returns an empty cluster in a simulated world.
    pub fn new(world: Arc<dyn World>) -> Arc<SimulatedRados> {
        let (objects, queues) = (BTreeMap::new(), HashMap::new());
        let (paused, broken) = (BTreeSet::new(), Broken::None);
        let state = State {
            objects,
            queues,
            capacity: 1 << 40,
            allowance: 0,
            clients: 0,
            paused,
            hung: BTreeSet::new(),
            broken,
            removals: HashMap::new(),
            reserved: None,
            taken_early: 0,
            outdated: 0,
        };
        Arc::new(SimulatedRados { state: Mutex::new(state), world })
    }

    /// An empty cluster in which no time passes, for a single client at a time.
    pub fn immediate() -> Arc<SimulatedRados> {
        SimulatedRados::new(Arc::new(Immediate))
    }

    /// Connects a client.
    pub fn client(self: &Arc<Self>) -> Arc<SimulatedClient> {
        let mut state = self.state.lock();
        state.clients += 1;
        let (number, ends_in_order) = (state.clients, AtomicBool::new(false));
        Arc::new(SimulatedClient { rados: self.clone(), number, ends_in_order })
    }

    /// Pauses a client: from now on, its requests do not arrive. The first client to connect has the number
    /// 1.
    pub fn pause(&self, client: u64) {
        self.state.lock().paused.insert(client);
    }

    /// Makes these placement groups hang: from now on, requests to their objects wait.
    pub fn set_hung(&self, groups: impl IntoIterator<Item = u64>) {
        self.state.lock().hung = groups.into_iter().collect();
    }

    /// The placement group of an object.
    pub fn group_of(object: &str) -> u64 {
        object.bytes().fold(7, |hash: u64, byte| hash.wrapping_mul(31).wrapping_add(byte.into())) % GROUPS
    }

    /// The placement group of the header of each pool.
    pub fn group_of_header() -> u64 {
        SimulatedRados::group_of(HEADER)
    }

    /// Resumes a paused client: the requests that it had begun arrive.
    pub fn resume(&self, client: u64) {
        self.state.lock().paused.remove(&client);
    }

    /// Changes the capacity of the pool.
    pub fn set_capacity(&self, bytes: u64) {
        self.state.lock().capacity = bytes;
    }

    /// Changes the allowance of a full pool, which is 0.
    pub fn set_allowance(&self, bytes: u64) {
        self.state.lock().allowance = bytes;
    }

    /// The bytes of all objects together.
    pub fn used(&self) -> u64 {
        self.state.lock().used()
    }

    /// Makes the cluster break a rule from now on.
    pub fn set_broken(&self, broken: Broken) {
        self.state.lock().broken = broken;
    }

    /// The term of the pool's owner; 0 if there is no pool.
    pub fn term(&self) -> u64 {
        let state = self.state.lock();
        let term = state.objects.get(HEADER).and_then(|header| header.attributes.get(TERM));
        term.map_or(0, |term| u64::from_str_radix(term, 16).expect("only owners set it"))
    }

    /// The owner of the pool, and the server for which it is reserved or to which it will be released.
    pub fn owner_and_heir(&self) -> (String, String) {
        let state = self.state.lock();
        let value = |name| {
            let found = state.objects.get(HEADER).and_then(|header| header.attributes.get(name));
            found.cloned().unwrap_or_default()
        };
        (value(OWNER), value(HEIR))
    }

    /// Whether a removal of this client is on its way.
    pub fn removes(&self, client: u64) -> bool {
        self.state.lock().removals.get(&client).is_some_and(|count| *count > 0)
    }

    /// Number of times that a server took the pool while it was reserved for another server.
    pub fn taken_early(&self) -> u64 {
        self.state.lock().taken_early
    }

    /// How many operations had no effect because the term of their object was greater.
    pub fn outdated(&self) -> u64 {
        self.state.lock().outdated
    }

    /// The number of standbys that are announced.
    pub fn standbys(&self) -> usize {
        let state = self.state.lock();
        state
            .objects
            .get(HEADER)
            .map_or(0, |header| header.keys.keys().filter_map(|key| standby_of(key)).count())
    }

    /// The keys of an object's map, with their values; none if the object is missing.
    pub fn entries_of(&self, object: &str) -> BTreeMap<String, Vec<u8>> {
        self.state.lock().objects.get(object).map(|object| object.keys.clone()).unwrap_or_default()
    }

    /// The bytes of all objects with their names, for comparisons.
    pub fn snapshot(&self) -> BTreeMap<String, Vec<u8>> {
        self.state.lock().objects.iter().map(|(name, object)| (name.clone(), object.bytes.clone())).collect()
    }
}

impl State {
    /// Whether a request of this client to this group does not arrive at present.
    fn detains(&self, client: u64, group: u64) -> bool {
        self.paused.contains(&client) || self.hung.contains(&group)
    }

    fn used(&self) -> u64 {
        self.objects.values().map(|o| o.bytes.len() as u64).sum()
    }

    fn operate(&mut self, name: &str, steps: &[Step], full: WhenFull) -> Answer<()> {
        let mut object = self.objects.get(name).cloned();
        let before = object.as_ref().map_or(0, |o| o.bytes.len());
        let (exists, is_comparison) = (object.is_some(), |step: &Step| {
            matches!(step, Step::Require(..) | Step::RequireAtMost(..) | Step::RequireEntry(..))
        });
        if !exists && steps.iter().any(is_comparison) {
            // As in Ceph, also if an earlier step of the operation creates the object.
            return Err(Errno(libc::ENOENT));
        }
        for step in steps {
            match (self.broken, step) {
                (Broken::Fences, Step::Set(..)) if matches!(steps.first(), Some(Step::AssertExists)) => {}
                (Broken::Keys, Step::AddKeys(_)) | (Broken::Require, Step::Require(..)) => {}
                (Broken::RequireAtMost, Step::RequireAtMost(..)) => {}
                (Broken::Entries, Step::RequireEntry(..)) if object.is_some() => {}
                (Broken::Heirs, Step::Set(HEIR, _) | Step::Require(HEIR, _)) => {}
                (_, Step::RequireAtMost(..)) => {
                    let done = apply(&mut object, step);
                    self.outdated += u64::from(done == Err(Errno(libc::ECANCELED)));
                    done?;
                }
                _ => apply(&mut object, step)?,
            }
        }
        let grown = object.as_ref().map_or(0, |o| o.bytes.len()).saturating_sub(before) as u64;
        if full == WhenFull::Fail && grown > 0 && self.used() + grown > self.capacity {
            return Err(Errno(libc::EDQUOT));
        }
        match object {
            Some(object) => drop(self.objects.insert(name.to_owned(), object)),
            None => drop(self.objects.remove(name)),
        }
        Ok(())
    }
}

impl State {
    /// Records the effect of an operation on the header: the release to an heir, and which server takes the
    /// pool.
    fn note_reservation(&mut self, steps: &[Step], now: Duration) {
        let set = |wanted| {
            steps.iter().find_map(|step| match step {
                Step::Set(name, value) if *name == wanted => Some(value.as_str()),
                _ => None,
            })
        };
        match (set(OWNER), set(HEIR)) {
            (Some(""), Some("")) => self.reserved = None,
            (Some(""), Some(heir)) => self.reserved = Some((heir.to_owned(), now)),
            (Some(owner), _) => {
                let is_early = |(heir, since): (String, Duration)| heir != owner && now < since + RESERVED;
                self.taken_early += u64::from(self.reserved.take().is_some_and(is_early));
            }
            _ => {}
        }
    }
}

fn apply(object: &mut Option<Object>, step: &Step) -> Answer<()> {
    let exists = object.is_some();
    match step {
        Step::Create if exists => return Err(Errno(libc::EEXIST)),
        Step::AssertExists
        | Step::Require(..)
        | Step::RequireAtMost(..)
        | Step::RequireEntry(..)
        | Step::Remove
            if !exists =>
        {
            return Err(Errno(libc::ENOENT));
        }
        _ => {}
    }
    if let Step::Remove = step {
        *object = None;
        return Ok(());
    }
    let object = object.get_or_insert_default();
    let value = |name: &str| object.attributes.get(name).cloned().unwrap_or_default();
    match step {
        Step::Require(name, wanted) if value(name) != *wanted => return Err(Errno(libc::ECANCELED)),
        Step::RequireAtMost(name, most) if value(name) > *most => return Err(Errno(libc::ECANCELED)),
        Step::Set(name, value) => drop(object.attributes.insert((*name).to_owned(), value.clone())),
        Step::Write(offset, data) => {
            let end = *offset as usize + data.len();
            object.bytes.resize(object.bytes.len().max(end), 0);
            object.bytes[*offset as usize..end].copy_from_slice(data);
        }
        Step::AddKeys(keys) => object.keys.extend(keys.iter().map(|key| (key.clone(), Vec::new()))),
        Step::RemoveKeys(keys) => object.keys.retain(|key, _| !keys.contains(key)),
        Step::RequireEntry(key, wanted) if object.keys.get(key).map_or(&[][..], Vec::as_slice) != wanted => {
            return Err(Errno(libc::ECANCELED));
        }
        Step::SetEntries(entries) => object.keys.extend(entries.iter().cloned()),
        _ => {}
    }
    Ok(())
}

impl Queue {
    /// Records that a request has been under way long enough. Returns the requests that arrive now: all that
    /// do not wait for an earlier request.
    fn travelled(&mut self, number: u64) -> Vec<Effect> {
        self.requests[(number - self.arrived) as usize].0 = true;
        let ready = self.requests.iter().take_while(|(has_travelled, _)| *has_travelled).count();
        self.arrived += ready as u64;
        self.requests.drain(..ready).map(|(_, effect)| effect).collect()
    }
}

impl SimulatedClient {
    /// Number of the client; the first client to connect has the number 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// From now on, a store of this client that is dropped gives its pool back, even in a world with time.
    pub fn end_in_order(&self) {
        self.ends_in_order.store(true, Relaxed);
    }

    /// Begins a request. `effect` is executed when the request arrives, and returns the answer.
    fn request<T: Send + 'static>(
        &self,
        object: &str,
        effect: impl FnOnce(&mut State) -> Answer<T> + Send + 'static,
    ) -> Operation<T> {
        self.request_after(object, self.rados.world.delay(), effect)
    }

    /// Works like [`SimulatedClient::request`], for a request that is under way for this time.
    fn request_after<T: Send + 'static>(
        &self,
        object: &str,
        travels: Duration,
        effect: impl FnOnce(&mut State) -> Answer<T> + Send + 'static,
    ) -> Operation<T> {
        let (answer, answered) = oneshot::channel();
        let queue = (self.number, object.to_owned());
        let arrive: Effect = Box::new(move |state| {
            // The client may have crashed.
            let _ = answer.send(effect(state));
        });
        let number = {
            let mut state = self.rados.state.lock();
            let queue = state.queues.entry(queue.clone()).or_default();
            queue.requests.push_back((false, arrive));
            queue.arrived + queue.requests.len() as u64 - 1
        };
        let (rados, world) = (self.rados.clone(), self.rados.world.clone());
        let group = SimulatedRados::group_of(object.strip_prefix(READ).unwrap_or(object));
        let travels = world.sleep(travels);
        world.spawn(
            None,
            Box::pin(async move {
                travels.await;
                while rados.state.lock().detains(queue.0, group) {
                    rados.world.sleep(PAUSE).await;
                }
                let mut state = rados.state.lock();
                let arriving = state.queues.get_mut(&queue).map(|queue| queue.travelled(number));
                for arrive in arriving.into_iter().flatten() {
                    arrive(&mut state);
                }
            }),
        );
        let world = self.rados.world.clone();
        Operation::of(async move {
            let Ok(value) = answered.await else { std::future::pending().await };
            world.sleep(world.delay()).await;
            value
        })
    }
}

impl Cluster for SimulatedClient {
    fn beside(&self, namespace: &str) -> Result<Arc<dyn Cluster>, StoreError> {
        Err(StoreError::Io {
            what: format!("opening the namespace {namespace}"),
            reason: "a simulated pool has one namespace".to_owned(),
            errno: libc::ENOTSUP,
        })
    }

    fn operate(&self, object: &str, steps: Vec<Step>, full: WhenFull) -> Operation<()> {
        let name = object.to_owned();
        let (world, client) = (self.rados.world.clone(), self.number);
        let removes = matches!(steps.last(), Some(Step::Remove));
        let travels = if removes { world.removal_delay() } else { world.delay() };
        *self.rados.state.lock().removals.entry(client).or_default() += u64::from(removes);
        self.request_after(object, travels, move |state| {
            *state.removals.entry(client).or_default() -= u64::from(removes);
            let done = state.operate(&name, &steps, full);
            if done.is_ok() && name == HEADER {
                state.note_reservation(&steps, world.now());
            }
            done
        })
    }

    fn read(&self, object: &str, offset: u64, len: usize) -> Operation<IoBuf> {
        let name = object.to_owned();
        // A read may overtake other requests, so it is in a separate queue.
        self.request(&format!("{READ}{object}"), move |state| {
            let object = state.objects.get(&name).ok_or(Errno(libc::ENOENT))?;
            Ok(IoBuf::from(crate::memory::slice_at(&object.bytes, offset, len)))
        })
    }

    fn contents(&self, object: &str, len: usize) -> Operation<Contents> {
        let name = object.to_owned();
        self.request(object, move |state| {
            let object = state.objects.get(&name).ok_or(Errno(libc::ENOENT))?;
            let attributes = object.attributes.iter().map(|(n, v)| (n.clone(), v.clone().into_bytes()));
            Ok(Contents {
                attributes: attributes.collect(),
                keys: object.keys.keys().cloned().collect(),
                bytes: object.bytes[..len.min(object.bytes.len())].to_vec(),
            })
        })
    }

    fn entries(&self, object: &str, wanted: Wanted) -> Operation<Entries> {
        let name = object.to_owned();
        self.request(object, move |state| {
            let object = state.objects.get(&name).ok_or(Errno(libc::ENOENT))?;
            let attributes = object.attributes.iter().map(|(n, v)| (n.clone(), v.clone().into_bytes()));
            let is_wanted = |key: &String| match &wanted {
                Wanted::Prefix(prefix) => key.starts_with(prefix),
                Wanted::Keys(keys) => keys.contains(key),
            };
            let entries = object.keys.iter().filter(|(key, _)| is_wanted(key));
            Ok(Entries {
                attributes: attributes.collect(),
                entries: entries.map(|(key, value)| (key.clone(), value.clone())).collect(),
            })
        })
    }

    fn len_of(&self, object: &str) -> Operation<u64> {
        let name = object.to_owned();
        self.request(object, move |state| {
            let object = state.objects.get(&name).ok_or(Errno(libc::ENOENT))?;
            Ok(object.bytes.len() as u64)
        })
    }

    fn list(&self) -> Operation<Vec<String>> {
        self.request("", |state| Ok(state.objects.keys().cloned().collect()))
    }

    fn capacity(&self) -> Operation<Capacity> {
        self.request("", |state| {
            Ok(Capacity::new(state.capacity, state.capacity.saturating_sub(state.used())))
        })
    }

    fn allowance(&self) -> u64 {
        self.rados.state.lock().allowance
    }

    fn now(&self) -> Duration {
        self.rados.world.now()
    }

    fn sleep(&self, time: Duration) -> BoxFuture<'static, ()> {
        self.rados.world.sleep(time)
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.rados.world.spawn(Some(self.number), task);
    }

    /// A server that is dropped has crashed and gives nothing back, unless it was to end in order. In a world
    /// without time, it has ended in order.
    fn finish(&self, task: BoxFuture<'static, ()>, _: Duration) {
        if self.rados.world.now().is_zero() {
            self.spawn(task);
        } else if self.ends_in_order.load(Relaxed) {
            self.rados.world.spawn(None, task);
        }
    }
}
