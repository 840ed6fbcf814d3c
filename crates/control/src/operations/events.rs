//! Events for clients that watch the server: a ring of the newest, and subscriptions that read it.
//!
//! **Nothing waits for a reader.** Publishing adds to the ring and wakes the readers. A subscription is a
//! position in the ring: a subscription that falls behind learns how many events it has missed.
//!
//! **When the ring is full**, the oldest event of the client that caused the most events makes room. So the
//! ids in the ring increase, with gaps, and a client that causes many events does not remove the events of
//! another.

use std::collections::VecDeque;
use std::sync::Arc;

use forebay_frontend::shares::Shares;
use forebay_host::clock::unix_ms;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use tokio::sync::watch;
use utoipa::ToSchema;

/// Number of events in the ring.
pub const RING: usize = 4096;

/// What an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Topic {
    /// A volume, snapshot or image was created, changed or removed.
    Volume,
    /// A job began, made progress or ended.
    Job,
    /// The state of the free space changed.
    Capacity,
    /// Data is damaged, or the pool stopped.
    Error,
    /// An invalid token, a denied request, a login, or a change of tokens.
    Security,
}

impl Topic {
    /// All topics.
    pub const ALL: [Topic; 5] = [Topic::Volume, Topic::Job, Topic::Capacity, Topic::Error, Topic::Security];

    /// The name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Topic::Volume => "volume",
            Topic::Job => "job",
            Topic::Capacity => "capacity",
            Topic::Error => "error",
            Topic::Security => "security",
        }
    }
}

/// A disk that an event concerns, with its tenant at that time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventDisk {
    /// Name.
    pub name: String,
    /// Tenant; of its volume for a snapshot.
    pub tenant: Option<String>,
}

/// An event.
#[derive(Debug, Clone, Serialize, ToSchema)]
#[schema(as = Event, example = json!({"id": 1767225600000000u64, "time_ms": 1767225600123u64, "topic": "volume",
    "what": "reset", "disks": ["web-001"], "data": null}))]
pub struct Event {
    /// Identifier, increasing, also over restarts of the server.
    pub id: u64,
    /// Time in Unix milliseconds.
    pub time_ms: u64,
    /// What it is about.
    pub topic: Topic,
    /// What happened, such as `reset`.
    pub what: String,
    /// The disks that it concerns.
    #[serde(serialize_with = "names")]
    #[schema(value_type = Vec<String>)]
    pub disks: Vec<EventDisk>,
    /// Details, depending on the topic: a job, for example.
    #[schema(value_type = Object)]
    pub data: Value,
    /// The client that caused it; empty for the server itself.
    #[serde(skip)]
    pub by: Arc<str>,
}

/// Disks of events by their names.
fn names<S: Serializer>(disks: &[EventDisk], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(disks.iter().map(|disk| &disk.name))
}

#[derive(Default)]
struct Ring {
    /// Events, by increasing id.
    events: VecDeque<Arc<Event>>,
    /// The number of events of each client.
    shares: Shares<Arc<str>>,
}

impl Ring {
    fn push(&mut self, event: Event) {
        if self.events.len() >= RING {
            let largest = self.shares.largest();
            let oldest = self.events.iter().position(|event| self.shares.of(&event.by) == largest);
            if let Some(removed) = oldest.and_then(|oldest| self.events.remove(oldest)) {
                self.shares.remove(&removed.by, 1);
            }
        }
        self.shares.add(event.by.clone(), 1);
        self.events.push_back(Arc::new(event));
    }
}

struct Shared {
    ring: Mutex<Ring>,
    /// Id of the next event.
    next: watch::Sender<u64>,
    /// Id of the first event of this process.
    first: u64,
}

/// The events of a server. Clones share them.
#[derive(Clone)]
pub struct Events(Arc<Shared>);

impl Default for Events {
    fn default() -> Events {
        // Later than all ids of an earlier process, which made fewer than a million events a second.
        let first = unix_ms().saturating_mul(1000);
        Events(Arc::new(Shared { ring: Mutex::default(), next: watch::Sender::new(first), first }))
    }
}

/// What a subscription delivers.
#[derive(Debug, Clone)]
pub enum Delivery {
    /// An event.
    Event(Arc<Event>),
    /// Events that are not available any more: how many, if that is known; and the id of the last one.
    Missed(Option<u64>, u64),
}

impl Events {
    /// Publishes an event. `by` is the client that caused it; empty for the server itself.
    pub fn publish(&self, by: &str, topic: Topic, what: &str, disks: Vec<EventDisk>, data: Value) {
        let mut ring = self.0.ring.lock();
        let id = *self.0.next.borrow();
        let (time_ms, what, by) = (unix_ms(), what.to_owned(), by.into());
        ring.push(Event { id, time_ms, topic, what, disks, data, by });
        self.0.next.send_replace(id + 1);
    }

    /// Whether a client is subscribed.
    pub fn has_readers(&self) -> bool {
        self.0.next.receiver_count() > 0
    }

    /// Subscribes to the events after the event with the id `after`; without `after`, to all events from now
    /// on.
    pub fn subscribe(&self, after: Option<u64>) -> Subscription {
        let receiver = self.0.next.subscribe();
        let now = *receiver.borrow();
        let (next, unknown) = match after {
            None => (now, false),
            Some(after) if (self.0.first..=now).contains(&after.saturating_add(1)) => (after + 1, false),
            // The id belongs to an event of another process: at least the last events of that process were
            // missed.
            Some(_) => (self.0.first, true),
        };
        Subscription { events: self.clone(), receiver, next, unknown }
    }
}

/// A position in the events.
pub struct Subscription {
    events: Events,
    receiver: watch::Receiver<u64>,
    /// Id of the next event that is delivered.
    next: u64,
    /// An unknown number of events before `next` was missed.
    unknown: bool,
}

impl Subscription {
    /// Waits for the next event.
    pub async fn next(&mut self) -> Delivery {
        loop {
            if let Some(delivery) = self.try_next() {
                return delivery;
            }
            // The sender is in `self.events`.
            let _ = self.receiver.changed().await;
        }
    }

    /// The next event, without waiting.
    pub fn try_next(&mut self) -> Option<Delivery> {
        self.receiver.mark_unchanged();
        let ring = &self.events.0.ring.lock().events;
        if std::mem::take(&mut self.unknown) {
            self.next = ring.front().map_or(*self.events.0.next.borrow(), |event| event.id);
            return Some(Delivery::Missed(None, self.next.saturating_sub(1)));
        }
        // The newest event is never removed, so without a later event in the ring none was missed.
        let event = ring.get(ring.partition_point(|event| event.id < self.next))?;
        if self.next < event.id {
            let missed = event.id - self.next;
            self.next = event.id;
            return Some(Delivery::Missed(Some(missed), event.id - 1));
        }
        self.next += 1;
        Some(Delivery::Event(event.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publish(events: &Events, count: usize) {
        for _ in 0..count {
            events.publish("a", Topic::Volume, "reset", Vec::new(), Value::Null);
        }
    }

    fn id(delivery: Option<Delivery>) -> u64 {
        match delivery {
            Some(Delivery::Event(event)) => event.id,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_subscription_resumes_after_an_id() {
        let events = Events::default();
        let mut all = events.subscribe(None);
        publish(&events, 3);
        let first = id(all.try_next());
        assert_eq!(id(all.try_next()), first + 1);
        let mut resumed = events.subscribe(Some(first));
        assert_eq!((id(resumed.try_next()), id(resumed.try_next())), (first + 1, first + 2));
        assert!(resumed.try_next().is_none());
        assert!(events.subscribe(None).try_next().is_none(), "without an id, only later events");
        let mut other_process = events.subscribe(Some(7));
        assert!(matches!(other_process.try_next(), Some(Delivery::Missed(None, _))));
        assert_eq!(id(other_process.try_next()), first);
        let mut future = events.subscribe(Some(u64::MAX));
        assert!(matches!(future.try_next(), Some(Delivery::Missed(None, _))));
    }

    #[test]
    fn a_slow_reader_learns_how_many_events_it_missed_and_memory_is_bounded() {
        let events = Events::default();
        let mut slow = events.subscribe(None);
        publish(&events, RING + 10);
        assert_eq!(events.0.ring.lock().events.len(), RING);
        let Some(Delivery::Missed(Some(10), last)) = slow.try_next() else { panic!("not missed") };
        assert_eq!(id(slow.try_next()), last + 1);
    }

    #[test]
    fn a_client_that_causes_many_events_removes_only_its_own() {
        let events = Events::default();
        let mut reader = events.subscribe(None);
        publish(&events, 1);
        for _ in 0..2 * RING {
            events.publish("flood", Topic::Security, "bad_token", Vec::new(), Value::Null);
        }
        publish(&events, 1);
        assert_eq!(events.0.ring.lock().events.len(), RING);
        let first = id(reader.try_next());
        let kept = RING as u64 - 2;
        let missed = 2 * RING as u64 - kept;
        assert!(
            matches!(reader.try_next(), Some(Delivery::Missed(Some(n), at)) if n == missed && at == first + n)
        );
        for n in 0..kept {
            assert_eq!(id(reader.try_next()), first + missed + 1 + n);
        }
        assert_eq!(id(reader.try_next()), first + 2 * RING as u64 + 1);
        assert!(reader.try_next().is_none());
    }

    #[tokio::test]
    async fn a_waiting_reader_is_woken() {
        let events = Events::default();
        let mut reader = events.subscribe(None);
        let publisher = events.clone();
        let (delivery, ()) = tokio::join!(reader.next(), async { publish(&publisher, 1) });
        assert!(matches!(delivery, Delivery::Event(_)));
        assert!(events.has_readers());
        drop(reader);
        assert!(!events.has_readers());
    }
}
