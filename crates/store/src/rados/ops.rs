//! The operations of the contract on RADOS.
//!
//! | contract | operations |
//! |---|---|
//! | creation | create the object with the owner's term; enter it in the header |
//! | append | compare the term, write |
//! | sync | none: what RADOS acknowledged is durable |
//! | deletion | enter it in the header; remove the object; the entry is removed with a later change |
//! | superblock | read the header; compare the term and the number of swaps, write the copy |
//! | objects from a number on | read the header; query the length of each object up to the highest number |
//!
//! The objects of a namespace are listed only if the contract requires all of them. For such a list, RADOS
//! reads the names of all objects of the Ceph pool, including those of other namespaces.
//!
//! If the future of an append is dropped before the append has ended, the append counts as failed, and the
//! object accepts no further appends. The append may still take effect, until the next owner fences its
//! object. The header lists the object until it is deleted, so the next owner finds it.

use std::sync::Arc;

use forebay_format::{SegmentId, Superblock};
use tokio::sync::oneshot;

use super::cluster::{Answer, Errno, Step, WhenFull};
use super::growing::Growth;
use super::header::{HEADER, Header, SWAPS, TERM, digits, gone_key, open_key, segment_object, segment_of};
use super::ownership::remove_segment;
use super::{RadosStore, Shared, store_error};
use crate::contract::{assert_aligned, describe, refuse};
use crate::error::failed_before;
use crate::superblock::{COPY_BYTES, check_swap, copy_of};
use crate::{BoxFuture, Capacity, Completion, IoBuf, ObjectStat, Result, Selection, Store, StoreError};

/// Number of lengths that are queried concurrently.
const STATS_AT_ONCE: usize = 64;
/// Maximum number of lengths that are queried individually; for more, all objects are listed.
const MAX_STATS: usize = 1 << 16;
/// The default of `osd_max_object_size`: an OSD refuses writes beyond it with EFBIG. Clients cannot query it.
const MAX_OBJECT_BYTES: u64 = 128 << 20;

impl Shared {
    /// Translates an error, and records the loss of the pool.
    pub(super) fn failed(&self, what: &str, id: Option<SegmentId>, e: Errno) -> StoreError {
        let error = match (id, e) {
            (Some(id), Errno(libc::ENOENT)) => StoreError::NotFound(id),
            (Some(id), e) => store_error(&describe(what, id)(), e),
            (None, e) => store_error(what, e),
        };
        if error == StoreError::Fenced {
            self.lost.set();
        }
        error
    }

    /// Works like [`Shared::failed`] for the object of a segment. If it is missing, or exists although this
    /// owner has not created it, another owner may have removed or created it: then the pool is lost, and the
    /// segment is sound. A store that owns nothing cannot know.
    async fn segment_failed(&self, what: &str, id: SegmentId, e: Errno) -> StoreError {
        let mut e = e;
        if matches!(e, Errno(libc::ENOENT | libc::EEXIST)) && !self.term.is_empty() {
            let header = Header::read(&*self.cluster).await;
            let is_superseded = match &header {
                Ok(header) => digits(header.term) != self.term,
                Err(e) => *e == Errno(libc::ENOENT),
            };
            if is_superseded {
                e = Errno(libc::ECANCELED);
            }
        }
        self.failed(what, Some(id), e)
    }

    /// Creates the object of a segment, and enters it in the header.
    async fn create(self: &Arc<Self>, id: SegmentId, expected: u64) -> Answer<()> {
        let object = segment_object(id);
        let create = || {
            let term = self.term.clone();
            let steps = move || vec![Step::Create, Step::Set(TERM, term.clone()), Step::Expect(expected)];
            self.grow(object.clone(), 0, steps)
        };
        let mut created = create().await;
        // An earlier owner created the object and could not enter it in the header, so the object is empty.
        while created == Err(Errno(libc::EEXIST)) && self.cluster.len_of(&object).await == Ok(0) {
            match remove_segment(&*self.cluster, id, &self.term).await {
                Ok(()) | Err(Errno(libc::ENOENT)) => {}
                Err(e) => return Err(e),
            }
            created = create().await;
        }
        created?;
        self.keys.enter(id).await
    }

    fn write(
        self: &Arc<Self>,
        id: SegmentId,
        offset: u64,
        data: Arc<IoBuf>,
    ) -> impl Future<Output = Answer<()>> + Send + use<> {
        let (term, len) = (self.term.clone(), data.len() as u64);
        let steps = move || vec![Step::Require(TERM, term.clone()), Step::Write(offset, data.clone())];
        self.grow(segment_object(id), len, steps)
    }

    /// Executes steps that need `len` bytes of space ([`super::fullness`]). The call begins the operation.
    fn grow<S: Fn() -> Vec<Step> + Send + 'static>(
        self: &Arc<Self>,
        object: String,
        len: u64,
        steps: S,
    ) -> impl Future<Output = Answer<()>> + Send + use<S> {
        let (this, first) = (self.clone(), self.cluster.operate(&object, steps(), WhenFull::Fail));
        async move {
            let done = first.await;
            match done {
                Err(Errno(libc::ENOSPC | libc::EDQUOT))
                    if this.fullness.refused(len, this.cluster.allowance(), this.cluster.now()) =>
                {
                    return this.cluster.operate(&object, steps(), WhenFull::Proceed).await;
                }
                Ok(()) if len > 0 => this.fullness.accepted(),
                _ => {}
            }
            done
        }
    }

    async fn end_append(&self, growth: Growth, written: Answer<()>) -> Result<()> {
        let id = growth.id();
        match written {
            Ok(()) => growth.end(),
            Err(Errno(libc::ENOENT)) => growth.cancel(),
            Err(_) => drop(growth),
        }
        match written {
            Ok(()) => Ok(()),
            Err(e) => Err(self.segment_failed("append to", id, e).await),
        }
    }

    async fn delete(&self, id: SegmentId) -> Answer<()> {
        self.keys.change(vec![gone_key(id)], vec![open_key(id)]).await?;
        match remove_segment(&*self.cluster, id, &self.term).await {
            Ok(()) | Err(Errno(libc::ENOENT)) => {}
            Err(e) => return Err(e),
        }
        self.growing.forget(id);
        self.keys.remove_later([gone_key(id)]);
        Ok(())
    }

    async fn swap_superblock(&self, new: &Superblock) -> Result<()> {
        let failed = |e| self.failed("writing the superblock", None, e);
        let header = Header::read(&*self.cluster).await.map_err(failed)?;
        if digits(header.term) != self.term {
            return Err(failed(Errno(libc::ECANCELED)));
        }
        check_swap(header.copies.each_ref().map(Option::as_deref), new)?;
        let steps = vec![
            Step::Require(TERM, self.term.clone()),
            Step::Require(SWAPS, digits(header.swaps)),
            Step::Write((copy_of(new) * COPY_BYTES) as u64, Arc::new(IoBuf::from(&new.encode()[..]))),
            Step::Set(SWAPS, digits(header.swaps.wrapping_add(1))),
        ];
        self.cluster.operate(HEADER, steps, WhenFull::Proceed).await.map_err(failed)
    }
}

impl Shared {
    /// The segments of `ids` whose objects exist, with the lengths of selected segments.
    async fn stats(&self, ids: &[SegmentId], selected: &Selection) -> Answer<Vec<ObjectStat>> {
        let mut stats = Vec::with_capacity(ids.len());
        for some in ids.chunks(STATS_AT_ONCE) {
            let lengths: Vec<_> = some
                .iter()
                .map(|id| selected(*id).then(|| self.cluster.len_of(&segment_object(*id))))
                .collect();
            for (id, length) in some.iter().zip(lengths) {
                let len = match length {
                    None => u64::MAX,
                    Some(length) => match length.await {
                        Ok(len) => len,
                        // The object was removed, or never created.
                        Err(Errno(libc::ENOENT)) => continue,
                        Err(e) => return Err(e),
                    },
                };
                stats.push(ObjectStat { id: *id, len });
            }
        }
        Ok(stats)
    }

    async fn list(&self, selected: &Selection) -> Answer<Vec<ObjectStat>> {
        let names = self.cluster.list().await?;
        let mut ids: Vec<SegmentId> = names.iter().filter_map(|name| segment_of(name)).collect();
        ids.sort_unstable();
        self.stats(&ids, selected).await
    }

    /// The objects of `ids` that exist, and all objects from `from` on. If the highest number is not known,
    /// because the pool is new, the objects are listed: an older pool whose header was lost has some.
    async fn tail(&self, mut ids: Vec<SegmentId>, from: SegmentId) -> Answer<Vec<ObjectStat>> {
        ids.retain(|id| *id < from);
        match Header::read(&*self.cluster).await?.next {
            Some(next) if next.0.saturating_sub(from.0) as usize <= MAX_STATS => {
                ids.extend((from.0..next.0).map(SegmentId));
                ids.sort_unstable();
                self.stats(&ids, &(Box::new(|_| true) as Selection)).await
            }
            _ => {
                let wanted: Selection = Box::new(move |id| id >= from || ids.contains(&id));
                let mut found = self.list(&wanted).await?;
                found.retain(|object| wanted(object.id));
                Ok(found)
            }
        }
    }
}

/// Runs an operation of several steps to its end, even if the future is dropped.
fn run<T: Send + 'static>(
    shared: &Arc<Shared>,
    operation: impl Future<Output = Result<T>> + Send + 'static,
) -> Completion<T> {
    let (answer, answered) = oneshot::channel();
    shared.cluster.spawn(Box::pin(async move {
        // The caller may have dropped the future.
        let _ = answer.send(operation.await);
    }));
    Completion::awaited(answered)
}

/// Returns the buffer of a write, for reuse; an empty buffer if the cluster still holds it.
fn returned(data: Arc<IoBuf>) -> IoBuf {
    Arc::try_unwrap(data).unwrap_or_else(|_| IoBuf::with_capacity(0))
}

impl Store for RadosStore {
    fn prepare(&self, id: SegmentId, expected: u64) -> Completion<()> {
        if !self.is_writable {
            return refuse(StoreError::ReadOnly);
        }
        let shared = self.shared.clone();
        run(&self.shared, async move {
            match shared.create(id, expected).await {
                Ok(()) => shared.growing.prepare(id),
                Err(e) => return Err(shared.segment_failed("create", id, e).await),
            }
            Ok(())
        })
    }

    fn append(&self, id: SegmentId, offset: u64, data: IoBuf, expected: u64) -> Completion<IoBuf> {
        assert_aligned("append", id, offset, data.len());
        if !self.is_writable {
            return refuse(StoreError::ReadOnly);
        }
        let is_first = offset == 0 && !self.shared.growing.is_prepared(id);
        let Some(growth) = self.shared.growing.begin(id) else {
            return refuse(failed_before(describe("append to", id)));
        };
        let (shared, data) = (self.shared.clone(), Arc::new(data));
        let end = offset + data.len() as u64;
        if is_first {
            return run(&self.shared, async move {
                let appended = async {
                    shared.create(id, expected.max(end)).await?;
                    shared.write(id, offset, data.clone()).await
                };
                shared.end_append(growth, appended.await).await?;
                Ok(returned(data))
            });
        }
        // The operation begins here, not when its future is first polled.
        let (written, begun) = (shared.write(id, offset, data.clone()), shared.cluster.now());
        Completion::of(async move {
            shared.end_append(growth, written.await).await?;
            shared.patience.ended(shared.cluster.now().saturating_sub(begun));
            // The first append to a prepared object is never the last append.
            if offset > 0 && end == expected {
                shared.keys.remove_later([open_key(id)]);
            }
            Ok(returned(data))
        })
    }

    fn overdue(&self, len: usize) -> BoxFuture<'static, ()> {
        let shared = self.shared.clone();
        Box::pin(async move {
            shared.cluster.sleep(shared.patience.time(len)).await;
            // The change has no effect on the keys, but is written to all replicas of the header.
            match shared.keys.change(Vec::new(), Vec::new()).await {
                Ok(()) => shared.patience.was_overdue(),
                Err(_) => std::future::pending().await,
            }
        })
    }

    fn sync(&self, id: SegmentId) -> Completion<()> {
        if !self.is_writable {
            return refuse(StoreError::ReadOnly);
        }
        if self.shared.growing.has_failed(id) {
            return refuse(failed_before(describe("sync of", id)));
        }
        if self.shared.growing.is_known(id) {
            return Completion::ended(Ok(()));
        }
        let (shared, length) = (self.shared.clone(), self.shared.cluster.len_of(&segment_object(id)));
        Completion::of(async move {
            match length.await {
                Ok(_) => Ok(()),
                Err(e) => Err(shared.segment_failed("sync of", id, e).await),
            }
        })
    }

    fn read(&self, id: SegmentId, offset: u64, len: usize) -> Completion<IoBuf> {
        assert_aligned("read", id, offset, len);
        let read = match id.is_of_image() {
            false => self.shared.cluster.read(&segment_object(id), offset, len),
            true => match self.shared.images() {
                Ok(Some(images)) => images.read(id, offset, len),
                Ok(None) => return refuse(StoreError::NotFound(id)),
                Err(e) => return refuse(e),
            },
        };
        let shared = self.shared.clone();
        Completion::of(async move {
            match read.await {
                Ok(bytes) => Ok(bytes),
                Err(e) => Err(shared.segment_failed("read of", id, e).await),
            }
        })
    }

    fn delete(&self, id: SegmentId) -> Completion<()> {
        if !self.is_writable {
            return refuse(StoreError::ReadOnly);
        }
        let shared = self.shared.clone();
        run(&self.shared, async move {
            match shared.delete(id).await {
                Ok(()) => Ok(()),
                Err(e) => Err(shared.segment_failed("delete", id, e).await),
            }
        })
    }

    fn list_lengths_of(&self, selected: Selection) -> Completion<Vec<ObjectStat>> {
        let shared = self.shared.clone();
        run(&self.shared, async move {
            let failed = |e| shared.failed("listing the objects", None, e);
            shared.list(&selected).await.map_err(failed)
        })
    }

    fn tail(&self, listed: Vec<SegmentId>, from: SegmentId) -> Completion<Vec<ObjectStat>> {
        let shared = self.shared.clone();
        run(&self.shared, async move {
            let failed = |e| shared.failed("finding the newest objects", None, e);
            shared.tail(listed, from).await.map_err(failed)
        })
    }

    fn read_superblock(&self) -> Completion<[Option<Vec<u8>>; 2]> {
        let shared = self.shared.clone();
        run(&self.shared, async move {
            let header = Header::read(&*shared.cluster).await;
            header.map(|h| h.copies).map_err(|e| shared.failed("reading the superblock", None, e))
        })
    }

    fn swap_superblock(&self, new: &Superblock) -> Completion<()> {
        if !self.is_writable {
            return refuse(StoreError::ReadOnly);
        }
        let (shared, new) = (self.shared.clone(), new.clone());
        run(&self.shared, async move { shared.swap_superblock(&new).await })
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn max_object_bytes(&self) -> u64 {
        MAX_OBJECT_BYTES
    }

    fn capacity(&self) -> Completion<Capacity> {
        let (shared, capacity) = (self.shared.clone(), self.shared.cluster.capacity());
        Completion::of(async move {
            let known = capacity.await.map_err(|e| shared.failed("querying free space", None, e))?;
            let is_full = shared.fullness.is_reported(shared.cluster.now());
            Ok(if is_full { Capacity { free: 0, ..known } } else { known })
        })
    }
}
