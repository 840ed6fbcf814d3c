//! The header object of a pool, and the batching of changes to it.
//!
//! ```text
//! object pool        attribute term     number of the ownership, 16 hexadecimal digits
//!                    attribute owner    the server that has it; empty after it released the pool
//!                    attribute swaps    number of superblock writes, 16 hexadecimal digits
//!                    attribute beat     changes each second while the owner is alive
//!                    attribute heir     the server for which the pool is reserved while it has no owner
//!                    attribute serving  the term whose owner serves clients
//!                    attribute shard-of the namespace of the cluster to which the pool belongs; missing for
//!                                       the pool of a single server
//!                    attribute next     all segments have lower numbers, 16 hexadecimal digits; missing
//!                                       before the first segment
//!                    bytes              two superblock copies of 4096 bytes
//!                    keys  open.ID      segments to which the owner may be appending
//!                    keys  gone.ID      segments whose objects are being removed
//!                    keys  standby.BEAT.SERVER  servers that wait; each replaces its key every second
//! object segment.ID  attribute term     of the owner that may append to it
//! ```
//!
//! Numbers have a fixed width because RADOS compares attributes as text.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_format::{FormatError, SegmentId, Superblock};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::SignOfLife;
use super::cluster::{Answer, Cluster, Contents, Errno, Step, WhenFull};
use crate::BoxFuture;
use crate::superblock::{COPY_BYTES, written_copies};

/// Name of the header object of a pool.
pub const HEADER: &str = "pool";
pub(super) const TERM: &str = "term";
pub(super) const OWNER: &str = "owner";
pub(super) const SWAPS: &str = "swaps";
pub(super) const BEAT: &str = "beat";
pub(super) const HEIR: &str = "heir";
pub(super) const SERVING: &str = "serving";
pub(super) const NEXT: &str = "next";
pub(super) const SHARD_OF: &str = "shard-of";

const SEGMENT: &str = "segment.";
const OPEN: &str = "open.";
const GONE: &str = "gone.";
const STANDBY: &str = "standby.";

/// Text of a number; RADOS orders such texts like the numbers.
pub fn digits(number: u64) -> String {
    format!("{number:016x}")
}

fn number(text: &str) -> Option<u64> {
    if text.len() == 16 { u64::from_str_radix(text, 16).ok() } else { None }
}

/// Name of the object of a segment.
pub(super) fn segment_object(id: SegmentId) -> String {
    format!("{SEGMENT}{:08x}", id.0)
}

/// The segment whose object has this name; `None` if the object is not a segment.
pub(super) fn segment_of(object: &str) -> Option<SegmentId> {
    id_after(SEGMENT, object)
}

fn id_after(prefix: &str, text: &str) -> Option<SegmentId> {
    let id = text.strip_prefix(prefix).filter(|id| id.len() == 8)?;
    u32::from_str_radix(id, 16).ok().map(SegmentId)
}

pub(super) fn open_key(id: SegmentId) -> String {
    format!("{OPEN}{:08x}", id.0)
}

pub(super) fn gone_key(id: SegmentId) -> String {
    format!("{GONE}{:08x}", id.0)
}

/// The key by which a server announces that it waits for the pool. The beat is in the key: removing a key
/// that was seen before then has no effect on a server that has replaced its key.
pub(super) fn standby_key(beat: u64, server: &str) -> String {
    format!("{STANDBY}{}.{server}", digits(beat))
}

/// The server that a key of [`standby_key`] announces.
pub(super) fn standby_of(key: &str) -> Option<&str> {
    let (beat, server) = key.strip_prefix(STANDBY)?.split_once('.')?;
    number(beat).map(|_| server)
}

/// The header of the pool as of one moment.
#[derive(Debug)]
pub(super) struct Header {
    pub term: u64,
    pub owner: String,
    pub swaps: u64,
    pub beat: String,
    pub heir: String,
    /// The owner serves clients.
    pub is_serving: bool,
    /// The namespace of the cluster of which the pool is a shard; empty for the pool of a single server.
    pub shard_of: String,
    /// Keys of servers that wait for the pool.
    pub standbys: Vec<String>,
    /// A number that is higher than the numbers of all segments; `None` if the header has no such number.
    pub next: Option<SegmentId>,
    /// The superblock copies; `None` for a copy that was never written.
    pub copies: [Option<Vec<u8>>; 2],
    pub open: Vec<SegmentId>,
    pub gone: Vec<SegmentId>,
}

impl Header {
    /// Reads the header.
    ///
    /// # Errors
    /// `ENOENT` if it does not exist, `EUCLEAN` if its attributes are not those of a pool.
    pub async fn read(cluster: &dyn Cluster) -> Answer<Header> {
        Header::parse(&cluster.contents(HEADER, 2 * COPY_BYTES).await?)
    }

    fn parse(contents: &Contents) -> Answer<Header> {
        let damaged = Errno(libc::EUCLEAN);
        let term = contents.attribute(TERM);
        Ok(Header {
            term: number(&term).ok_or(damaged)?,
            owner: contents.attribute(OWNER),
            beat: contents.attribute(BEAT),
            heir: contents.attribute(HEIR),
            is_serving: contents.attribute(SERVING) == term,
            shard_of: contents.attribute(SHARD_OF),
            standbys: contents.keys.iter().filter(|key| standby_of(key).is_some()).cloned().collect(),
            next: number(&contents.attribute(NEXT)).and_then(|n| u32::try_from(n).ok()).map(SegmentId),
            swaps: number(&contents.attribute(SWAPS)).ok_or(damaged)?,
            copies: written_copies(&contents.bytes),
            open: contents.keys.iter().filter_map(|key| id_after(OPEN, key)).collect(),
            gone: contents.keys.iter().filter_map(|key| id_after(GONE, key)).collect(),
        })
    }

    /// The last sign of life of the owner.
    pub fn sign_of_life(&self) -> SignOfLife {
        SignOfLife { term: self.term, beat: number(&self.beat).unwrap_or_default() }
    }

    /// Whether this server can serve a pool of this format. A server that took another pool would fence its
    /// owner and then fail to open it.
    ///
    /// # Errors
    /// If the format is not supported. Damage is reported, and repaired, by a server that has the pool.
    pub fn check_format(&self) -> Result<(), FormatError> {
        let chosen = Superblock::choose(self.copies.each_ref().map(Option::as_deref));
        match chosen.and_then(|superblock| superblock.check_writable()) {
            Err(e) if e.is_unsupported() => Err(e),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

/// Changes of the header's keys by the owner of a term. Changes that wait while an operation is in progress
/// are written together by the next operation, since operations on one object take place one after another.
pub(super) struct HeaderKeys {
    cluster: Arc<dyn Cluster>,
    term: String,
    pending: Mutex<Pending>,
}

#[derive(Default)]
struct Pending {
    /// Whether each key is to exist; the last request for a key counts.
    keys: BTreeMap<String, bool>,
    /// The number that follows the highest segment.
    next: u32,
    waiting: Vec<oneshot::Sender<Answer<()>>>,
    is_writing: bool,
}

impl HeaderKeys {
    pub fn new(cluster: Arc<dyn Cluster>, term: String) -> Arc<HeaderKeys> {
        Arc::new(HeaderKeys { cluster, term, pending: Mutex::default() })
    }

    /// Adds and removes keys. Completes when this is durable.
    ///
    /// # Errors
    /// `ECANCELED` if the pool has another owner.
    pub fn change(self: &Arc<Self>, add: Vec<String>, remove: Vec<String>) -> BoxFuture<'static, Answer<()>> {
        self.change_all(add, remove, 0)
    }

    /// Enters a segment whose object exists, before its first append. Its number may have been used before,
    /// by an object whose removal was completed.
    ///
    /// # Errors
    /// As [`HeaderKeys::change`].
    pub fn enter(self: &Arc<Self>, id: SegmentId) -> BoxFuture<'static, Answer<()>> {
        self.change_all(vec![open_key(id)], vec![gone_key(id)], id.0.saturating_add(1))
    }

    fn change_all(
        self: &Arc<Self>,
        add: Vec<String>,
        remove: Vec<String>,
        next: u32,
    ) -> BoxFuture<'static, Answer<()>> {
        let (answer, answered) = oneshot::channel();
        let mut pending = self.pending.lock();
        pending.next = pending.next.max(next);
        pending.keys.extend(add.into_iter().map(|key| (key, true)));
        pending.keys.extend(remove.into_iter().map(|key| (key, false)));
        pending.waiting.push(answer);
        let begins = !std::mem::replace(&mut pending.is_writing, true);
        drop(pending);
        if begins {
            let keys = self.clone();
            self.cluster.spawn(Box::pin(async move { keys.write_all().await }));
        }
        Box::pin(async move { answered.await.unwrap_or(Err(Errno(libc::ESHUTDOWN))) })
    }

    /// Removes keys together with the next change. If there is no further change, the next owner removes
    /// them.
    pub fn remove_later(&self, keys: impl IntoIterator<Item = String>) {
        self.pending.lock().keys.extend(keys.into_iter().map(|key| (key, false)));
    }

    async fn write_all(&self) {
        loop {
            let (keys, waiting, next) = {
                let mut pending = self.pending.lock();
                if pending.waiting.is_empty() {
                    pending.is_writing = false;
                    return;
                }
                let pending = &mut *pending;
                (std::mem::take(&mut pending.keys), std::mem::take(&mut pending.waiting), pending.next)
            };
            let chosen = |wanted| keys.iter().filter(move |(_, exists)| **exists == wanted);
            let [add, remove] = [true, false]
                .map(|wanted| -> Vec<String> { chosen(wanted).map(|(key, _)| key.clone()).collect() });
            let kept = remove.clone();
            let mut steps = vec![Step::Require(TERM, self.term.clone())];
            steps.extend((!add.is_empty()).then_some(Step::AddKeys(add)));
            steps.extend((!remove.is_empty()).then_some(Step::RemoveKeys(remove)));
            // The number is repeated by each change once there is a segment: one more attribute costs
            // nothing.
            steps.extend((next > 0).then(|| Step::Set(NEXT, digits(next.into()))));
            let written = self.cluster.operate(HEADER, steps, WhenFull::Proceed).await;
            if written.is_err() {
                let mut pending = self.pending.lock();
                for key in kept {
                    pending.keys.entry(key).or_insert(false);
                }
            }
            for waiter in waiting {
                // The waiting caller may have been dropped.
                let _ = waiter.send(written);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_read_back() {
        let id = SegmentId(0x2a);
        assert_eq!(segment_object(id), "segment.0000002a");
        assert_eq!(segment_of("segment.0000002a"), Some(id));
        for other in ["segment.2a", "segment.0000002g", "pool", "open.0000002a"] {
            assert_eq!(segment_of(other), None, "{other}");
        }
        assert_eq!(number(&digits(u64::MAX)), Some(u64::MAX));
        assert!(digits(9) < digits(10) && digits(15) < digits(16));
        assert_eq!(number("1"), None);
    }

    #[test]
    fn foreign_contents_are_no_header() {
        let mut contents = Contents::default();
        assert_eq!(Header::parse(&contents).unwrap_err(), Errno(libc::EUCLEAN));
        let set = |name: &str, value: String| (name.to_owned(), value.into_bytes());
        contents.attributes = vec![set(TERM, digits(3)), set(SWAPS, digits(0)), set(OWNER, "h".into())];
        let waits = standby_key(7, "a 1 b.c d e");
        assert_eq!(standby_of(&waits), Some("a 1 b.c d e"));
        contents.keys = ["open.00000001", "gone.00000002", "other", &waits].map(str::to_owned).to_vec();
        let header = Header::parse(&contents).unwrap();
        assert_eq!((header.term, header.owner.as_str()), (3, "h"));
        assert_eq!((header.open, header.gone), (vec![SegmentId(1)], vec![SegmentId(2)]));
        assert_eq!((header.copies, header.standbys, header.is_serving), ([None, None], vec![waits], false));
        assert_eq!(header.next, None);
    }
}
