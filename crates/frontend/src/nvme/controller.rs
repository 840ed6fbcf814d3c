//! The state of a controller, which its queues on all threads share.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use forebay_wire::nvme::log::ErrorEntry;
use forebay_wire::nvme::{AsyncEvent, Feature, Sqe, Status, identify};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::namespaces::Namespaces;
use crate::plane::has_hung_up;
use crate::targets::IqnName;

/// Bits of the controller configuration (Base 3.1.3.5).
const ENABLE: u32 = 1;
const SHUTDOWN: u32 = 3 << 14;
/// Page size, command set and arbitration, which have to be 0.
const SELECTIONS: u32 = 0x3ff0;
/// Bits of the controller status (Base 3.1.3.6).
const READY: u32 = 1;
const FATAL: u32 = 1 << 1;
const SHUTDOWN_BEGUN: u32 = 1 << 2;
const SHUTDOWN_DONE: u32 = 2 << 2;
/// Minimum of the keep alive timeout: its unit.
const KEEP_ALIVE_MIN: Duration = Duration::from_millis(identify::KEEP_ALIVE_UNIT_MS as u64);

/// A controller.
pub(super) struct Controller {
    pub id: u16,
    pub host: IqnName,
    pub host_id: [u8; 16],
    /// The NVMe name of the subsystem.
    pub subsystem: String,
    /// The namespaces; `None` for a discovery controller.
    pub namespaces: Option<Arc<Namespaces>>,
    state: Mutex<State>,
    begun: Instant,
    keep_alive_ms: AtomicU32,
    /// Signalled when the keep alive timeout changes.
    pub keep_alive_changed: Notify,
    /// When a queue last received something, in milliseconds since `begun`.
    last_ms: AtomicU64,
    /// The host was informed of a volatile write cache, and has not disabled the cache.
    told_volatile: AtomicBool,
    cache_enabled: AtomicBool,
    ended: watch::Sender<Option<&'static str>>,
    /// The connected queues, with their sockets.
    queues: watch::Sender<BTreeMap<u16, RawFd>>,
}

#[derive(Default)]
struct State {
    configuration: u32,
    status: u32,
    /// The features whose value is stored.
    stored: [u32; Feature::STORED],
    /// The events that the host has enabled.
    enabled_events: u32,
    pending: Vec<AsyncEvent>,
    /// Events that were sent, and whose log page was not read since.
    masked: Vec<AsyncEvent>,
    changed: BTreeSet<u32>,
    errors: VecDeque<ErrorEntry>,
    error_count: u64,
}

/// What a change of the configuration requires.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Configured {
    Nothing,
    /// The volatile caches have to be flushed; then [`Controller::has_shut_down`] is called.
    Flush,
}

/// A connected queue. Dropped when no command of the queue is in progress any more, before its socket is
/// closed.
pub(super) struct QueueGuard {
    controller: Arc<Controller>,
    queue: u16,
}

impl Drop for QueueGuard {
    fn drop(&mut self) {
        self.controller.queues.send_modify(|queues| {
            queues.remove(&self.queue);
        });
    }
}

impl Controller {
    pub fn new(
        id: u16,
        (host, host_id): (IqnName, [u8; 16]),
        subsystem: String,
        namespaces: Option<Arc<Namespaces>>,
        keep_alive_ms: u32,
    ) -> Controller {
        Controller {
            id,
            host,
            host_id,
            subsystem,
            namespaces,
            state: Mutex::default(),
            begun: Instant::now(),
            keep_alive_ms: AtomicU32::new(keep_alive_ms),
            keep_alive_changed: Notify::new(),
            last_ms: AtomicU64::new(0),
            told_volatile: AtomicBool::new(false),
            cache_enabled: AtomicBool::new(true),
            ended: watch::Sender::new(None),
            queues: watch::Sender::default(),
        }
    }

    pub fn is_of(&self, host: &IqnName, host_id: [u8; 16], subsystem: &str) -> bool {
        self.host == *host && self.host_id == host_id && self.subsystem == subsystem
    }

    /// Connects a queue; `None` if it is connected already, or the controller has ended.
    pub fn connect(self: &Arc<Self>, queue: u16, socket: RawFd) -> Option<QueueGuard> {
        let is_new = self.queues.send_if_modified(|queues| {
            let is_free = self.ended.borrow().is_none() && !queues.contains_key(&queue);
            if is_free {
                queues.insert(queue, socket);
            }
            is_free
        });
        is_new.then(|| QueueGuard { controller: self.clone(), queue })
    }

    /// Whether the host has closed a connection of the controller, or has lost it.
    pub fn has_hung_up(&self) -> bool {
        // The sockets are open while the queues are in the table.
        self.queues.borrow().values().any(|socket| has_hung_up(*socket))
    }

    /// Ends the controller and its queues. The first reason stays.
    pub fn end(&self, why: &'static str) {
        self.ended.send_if_modified(|ended| {
            let is_first = ended.is_none();
            ended.get_or_insert(why);
            is_first
        });
    }

    /// A channel with the reason for the end of the controller.
    pub fn ended(&self) -> watch::Receiver<Option<&'static str>> {
        self.ended.subscribe()
    }

    /// Waits until no queue is connected.
    pub async fn gone(&self) {
        let _ = self.queues.subscribe().wait_for(BTreeMap::is_empty).await;
    }

    /// Waits until only the admin queue is connected.
    pub async fn is_alone(&self) {
        let _ = self.queues.subscribe().wait_for(|queues| queues.keys().all(|queue| *queue == 0)).await;
    }

    /// Records that a queue has received something.
    pub fn touch(&self) {
        let ms = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.store(ms, Relaxed);
    }

    /// When the last queue received something.
    pub fn last(&self) -> Instant {
        self.begun + Duration::from_millis(self.last_ms.load(Relaxed))
    }

    /// The keep alive timeout; `None` if the controller has none.
    pub fn keep_alive(&self) -> Option<Duration> {
        match self.keep_alive_ms.load(Relaxed) {
            0 => None,
            ms => Some(Duration::from_millis(ms.into()).max(KEEP_ALIVE_MIN)),
        }
    }

    pub fn keep_alive_ms(&self) -> u32 {
        self.keep_alive_ms.load(Relaxed)
    }

    pub fn set_keep_alive(&self, ms: u32) {
        self.keep_alive_ms.store(ms, Relaxed);
        self.keep_alive_changed.notify_one();
    }

    /// Whether writes have to be durable when they are answered: the host does not know of a volatile cache,
    /// or has disabled it, so it does not flush.
    pub fn is_durable(&self) -> bool {
        !(self.told_volatile.load(Relaxed) && self.cache_enabled.load(Relaxed))
    }

    /// Whether a namespace has a volatile write cache. The host learns of this.
    pub fn tell_volatile(&self) -> bool {
        let is_volatile = self.namespaces.as_ref().is_some_and(|namespaces| namespaces.has_volatile_cache());
        self.told_volatile.store(is_volatile, Relaxed);
        is_volatile
    }

    pub fn is_cache_enabled(&self) -> bool {
        self.cache_enabled.load(Relaxed)
    }

    pub fn enable_cache(&self, on: bool) {
        self.cache_enabled.store(on, Relaxed);
    }

    pub fn configuration(&self) -> u32 {
        self.state.lock().configuration
    }

    pub fn status(&self) -> u32 {
        self.state.lock().status
    }

    /// Whether commands of I/O queues are served.
    pub fn is_ready(&self) -> bool {
        self.status() & (READY | FATAL) == READY
    }

    /// Changes the configuration (Base 3.1.3.5 and 3.6).
    pub fn configure(&self, value: u32) -> Configured {
        let mut state = self.state.lock();
        let before = std::mem::replace(&mut state.configuration, value);
        if value & ENABLE == 0 {
            if before & ENABLE != 0 {
                // A controller reset: features have their default values again.
                let errors = (std::mem::take(&mut state.errors), state.error_count);
                *state = State { configuration: value, ..State::default() };
                (state.errors, state.error_count) = errors;
                self.cache_enabled.store(true, Relaxed);
                if let Some(namespaces) = &self.namespaces {
                    namespaces.notices.reset();
                }
            }
        } else if before & ENABLE == 0 {
            state.status = if value & SELECTIONS == 0 { READY } else { FATAL };
        }
        if value & SHUTDOWN != 0 && before & SHUTDOWN == 0 {
            state.status = state.status & !SHUTDOWN_DONE | SHUTDOWN_BEGUN;
            return Configured::Flush;
        }
        Configured::Nothing
    }

    /// Records that a shutdown is complete.
    pub fn has_shut_down(&self) {
        let mut state = self.state.lock();
        state.status = state.status & !SHUTDOWN_BEGUN | SHUTDOWN_DONE;
    }

    pub fn stored(&self, feature: usize) -> u32 {
        self.state.lock().stored.get(feature).copied().unwrap_or(0)
    }

    pub fn store(&self, feature: usize, value: u32) {
        if let Some(stored) = self.state.lock().stored.get_mut(feature) {
            *stored = value;
        }
    }

    pub fn enabled_events(&self) -> u32 {
        self.state.lock().enabled_events
    }

    pub fn enable_events(&self, events: u32) {
        self.state.lock().enabled_events = events;
    }

    /// Notes changed namespaces, and the event that reports them.
    pub fn note_changed(&self, namespaces: &[u32]) {
        if !namespaces.is_empty() {
            self.state.lock().changed.extend(namespaces);
            self.note(AsyncEvent::NamespaceChanged);
        }
    }

    /// Notes an event, once.
    pub fn note(&self, event: AsyncEvent) {
        let mut state = self.state.lock();
        let is_enabled = event.bit() == 0 || state.enabled_events & event.bit() != 0;
        if is_enabled && !state.pending.contains(&event) {
            state.pending.push(event);
        }
    }

    /// Takes an event that can be sent: the host has read the log page of the last event of its type.
    pub fn take_event(&self) -> Option<AsyncEvent> {
        let mut state = self.state.lock();
        let at = state.pending.iter().position(|event| !state.masked.contains(event))?;
        let event = state.pending.remove(at);
        state.masked.push(event);
        Some(event)
    }

    /// Records that the host has read a log page.
    pub fn unmask(&self, page: u8) {
        self.state.lock().masked.retain(|event| event.page() != page);
    }

    /// Takes the list of changed namespaces.
    pub fn take_changed(&self) -> BTreeSet<u32> {
        std::mem::take(&mut self.state.lock().changed)
    }

    /// Records a command that failed.
    pub fn failed(&self, queue: u16, sqe: &Sqe, status: Status) {
        let mut state = self.state.lock();
        state.error_count += 1;
        let (command, namespace, block) = (sqe.id(), sqe.namespace(), sqe.long(40));
        let entry = ErrorEntry { count: state.error_count, queue, command, status, namespace, block };
        state.errors.truncate(usize::from(identify::ERRORS_MAX) - 1);
        state.errors.push_front(entry);
    }

    /// The failed commands, newest first, and the number of all.
    pub fn errors(&self) -> (Vec<ErrorEntry>, u64) {
        let state = self.state.lock();
        (state.errors.iter().copied().collect(), state.error_count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn controller() -> Arc<Controller> {
        let host = "nqn.2026-01.org.example:host".parse().unwrap();
        Arc::new(Controller::new(1, (host, [1; 16]), "nqn.2026-01.org.example:a".into(), None, 0))
    }

    #[test]
    fn a_controller_is_ready_while_it_is_enabled() {
        let c = controller();
        assert_eq!(c.configure(0x0046_0001), Configured::Nothing);
        assert!(c.is_ready());
        assert_eq!(c.configure(0x0046_4001), Configured::Flush);
        assert_eq!(c.status() & 0xc, SHUTDOWN_BEGUN);
        c.has_shut_down();
        assert_eq!(c.status() & 0xc, SHUTDOWN_DONE);
        c.configure(0);
        assert_eq!(c.status(), 0);
        c.configure(0x0046_0081);
        assert_eq!((c.status(), c.is_ready()), (FATAL, false), "a page size that is not supported");
    }

    #[test]
    fn events_are_sent_once_until_their_page_is_read() {
        let c = controller();
        c.note_changed(&[1]);
        assert_eq!(c.take_event(), None, "not enabled");
        c.enable_events(AsyncEvent::NamespaceChanged.bit());
        c.note_changed(&[2]);
        assert_eq!(c.take_event(), Some(AsyncEvent::NamespaceChanged));
        c.note_changed(&[3]);
        assert_eq!(c.take_event(), None, "masked");
        c.unmask(4);
        assert_eq!(c.take_event(), Some(AsyncEvent::NamespaceChanged));
        assert_eq!(c.take_changed().into_iter().collect::<Vec<_>>(), [1, 2, 3]);
    }

    #[tokio::test]
    async fn a_queue_is_connected_once_and_none_after_the_end() {
        let c = controller();
        let admin = c.connect(0, -1).unwrap();
        assert!(c.connect(0, -1).is_none());
        let io = c.connect(1, -1).unwrap();
        c.end("first");
        c.end("second");
        assert_eq!(*c.ended().borrow(), Some("first"));
        assert!(c.connect(2, -1).is_none());
        drop(io);
        c.is_alone().await;
        drop(admin);
        c.gone().await;
    }
}
