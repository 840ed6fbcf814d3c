//! The replies to requests that are not idempotent, so that a repeated request is not performed again.
//!
//! A client that loses its connection repeats the requests that were not answered. The first request may have
//! been performed: then a repeated CREATE or REMOVE would fail, although it has succeeded. So the reply to a
//! request is stored in the same change as the effect of the request, and survives a restart. Only the
//! replies to requests that changed something are kept: a request that failed is performed again.
//!
//! **Limits.** The last [`REPLIES_MAX`] replies are kept, for [`KEPT`]. The attributes in a repeated reply
//! are the present ones.

use std::collections::HashMap;
use std::time::Duration;

use tokio::sync::watch;

use crate::layout::{REPLIES_PER_BLOCK, REPLY_BLOCKS, put, u32_at, u64_at};
use crate::types::{FileId, RequestKey};

/// Number of replies that are kept.
pub const REPLIES_MAX: usize = REPLIES_PER_BLOCK * REPLY_BLOCKS;
/// Time for which replies are kept.
pub const KEPT: Duration = Duration::from_secs(15 * 60);
/// Bytes of a stored reply.
pub(crate) const REPLY: usize = 64;

/// A stored reply: the request has succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stored {
    pub key: RequestKey,
    /// The object that the reply names; number 0 if the reply names no object.
    pub object: FileId,
    /// Number of the reply.
    pub sequence: u64,
    /// When the request was performed, in seconds since 1970.
    pub seconds: u32,
}

/// A request that is performed or was performed.
#[derive(Debug)]
enum Known {
    /// The request is being performed. The sender is dropped when it ends.
    Running(watch::Receiver<()>),
    /// The reply is in this slot.
    Done(usize),
}

/// What is known about a request that arrives.
#[derive(Debug)]
pub(crate) enum Admission {
    /// The request is new, and to be performed.
    New(watch::Sender<()>),
    /// The request is being performed; the receiver ends when it has ended.
    Running(watch::Receiver<()>),
    /// The request was performed, with this object in its reply.
    Done(FileId),
}

/// The replies.
#[derive(Debug, Default)]
pub(crate) struct Replies {
    known: HashMap<RequestKey, Known>,
    ring: Vec<Option<Stored>>,
    /// Number of the next reply.
    next: u64,
}

impl Replies {
    /// Registers a request that arrives at a time.
    pub fn begin(&mut self, key: RequestKey, now: u64) -> Admission {
        let seconds = (now / 1_000_000_000) as u32;
        let found = match self.known.get(&key) {
            Some(Known::Running(running)) => Some(Admission::Running(running.clone())),
            Some(Known::Done(slot)) => self.ring.get(*slot).copied().flatten().and_then(|stored| {
                let is_kept = seconds.saturating_sub(stored.seconds) <= KEPT.as_secs() as u32;
                is_kept.then_some(Admission::Done(stored.object))
            }),
            None => None,
        };
        found.unwrap_or_else(|| {
            let (sender, receiver) = watch::channel(());
            self.known.insert(key, Known::Running(receiver));
            Admission::New(sender)
        })
    }

    /// Forgets a request that has ended without a reply to keep.
    pub fn end(&mut self, key: &RequestKey) {
        if matches!(self.known.get(key), Some(Known::Running(_))) {
            self.known.remove(key);
        }
    }

    /// Stores the reply to a request that is performed at a time. Returns its slot.
    pub fn store(&mut self, key: RequestKey, object: Option<FileId>, now: u64) -> usize {
        let object = object.unwrap_or(FileId { number: 0, generation: 0 });
        let stored = Stored { key, object, sequence: self.next, seconds: (now / 1_000_000_000) as u32 };
        self.next += 1;
        let slot = (stored.sequence % REPLIES_MAX as u64) as usize;
        self.insert(slot, stored);
        slot
    }

    /// Puts a stored reply into its slot.
    fn insert(&mut self, slot: usize, stored: Stored) {
        if self.ring.len() <= slot {
            self.ring.resize(slot + 1, None);
        }
        if let Some(before) = self.ring[slot].replace(stored)
            && matches!(self.known.get(&before.key), Some(Known::Done(of)) if *of == slot)
        {
            self.known.remove(&before.key);
        }
        self.known.insert(stored.key, Known::Done(slot));
    }

    /// Takes the replies that were read from the disk.
    pub fn load(&mut self, mut stored: Vec<Stored>) {
        stored.sort_unstable_by_key(|stored| stored.sequence);
        for stored in stored {
            self.next = stored.sequence + 1;
            self.insert((stored.sequence % REPLIES_MAX as u64) as usize, stored);
        }
    }

    pub fn encode(&self, slot: usize) -> [u8; REPLY] {
        let mut out = [0; REPLY];
        let Some(stored) = self.ring.get(slot).copied().flatten() else { return out };
        put(&mut out, 0, &(stored.sequence + 1).to_le_bytes());
        put(&mut out, 8, &stored.key.digest.to_le_bytes());
        put(&mut out, 16, &stored.key.client);
        put(&mut out, 32, &stored.key.number.to_le_bytes());
        put(&mut out, 36, &stored.key.procedure.to_le_bytes());
        put(&mut out, 40, &stored.object.number.to_le_bytes());
        put(&mut out, 44, &stored.object.generation.to_le_bytes());
        put(&mut out, 48, &stored.seconds.to_le_bytes());
        out
    }

    /// Decodes a reply; `None` is a slot that was never used.
    pub fn decode(bytes: &[u8]) -> Option<Stored> {
        let sequence = u64_at(bytes, 0).checked_sub(1)?;
        let mut client = [0; 16];
        client.copy_from_slice(&bytes[16..32]);
        let key = RequestKey {
            client,
            number: u32_at(bytes, 32),
            procedure: u32_at(bytes, 36),
            digest: u64_at(bytes, 8),
        };
        let object = FileId { number: u32_at(bytes, 40), generation: u32_at(bytes, 44) };
        Some(Stored { key, object, sequence, seconds: u32_at(bytes, 48) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn key(number: u32) -> RequestKey {
        RequestKey { client: [1; 16], number, procedure: 8, digest: 5 }
    }

    #[test]
    fn a_repeated_request_is_recognized_until_its_reply_is_replaced_or_old() {
        let mut replies = Replies::default();
        let id = FileId { number: 7, generation: 2 };
        let Admission::New(_running) = replies.begin(key(0), SECOND) else { panic!("new") };
        assert!(matches!(replies.begin(key(0), SECOND), Admission::Running(_)));
        replies.store(key(0), Some(id), SECOND);
        replies.end(&key(0));
        assert!(matches!(replies.begin(key(0), SECOND), Admission::Done(found) if found == id));
        let other = RequestKey { digest: 6, ..key(0) };
        assert!(matches!(replies.begin(other, SECOND), Admission::New(_)));
        replies.end(&other);
        let late = SECOND + (KEPT.as_secs() + 1) * SECOND;
        assert!(matches!(replies.begin(key(0), late), Admission::New(_)));
        replies.end(&key(0));
        for number in 1..=REPLIES_MAX as u32 + 5 {
            replies.store(key(number), None, SECOND);
        }
        assert!(matches!(replies.begin(key(5), SECOND), Admission::New(_)), "it was replaced");
        assert!(matches!(replies.begin(key(6), SECOND), Admission::Done(_)));
        // One request is running, and the ring is full.
        assert_eq!(replies.known.len(), REPLIES_MAX + 1);
        let stored = (0..REPLIES_MAX).filter_map(|slot| Replies::decode(&replies.encode(slot))).collect();
        let mut loaded = Replies::default();
        loaded.load(stored);
        assert_eq!((loaded.next, &loaded.ring), (replies.next, &replies.ring));
    }
}
