//! Ownership of a pool: taking it, keeping it, and giving it back.
//!
//! **The fence.** Each ownership has a *term*. Taking a pool over changes the term in the header; then the
//! term of each segment to which the previous owner could still append; then the pool is read. Every
//! operation of an owner compares its own term within the operation. Therefore, whatever a paused server or a
//! slow network delays, an operation of the old term that arrives later has no effect:
//!
//! | late operation of an old owner | why it has no effect |
//! |---|---|
//! | append to a segment | the segment is listed as open in the header, because it was listed before its first append; so its term was changed before the pool was read |
//! | creation of a segment | the object remains empty: an append needs the entry in the header, which requires the old term there. A successor that needs the number removes the object |
//! | superblock, entry in the header | requires the old term in the header |
//! | removal of a segment | was entered in the header before; the successor completes the removals that it finds there before it reads the pool, so no later reference to the segment is possible. An object that was created under this number since has a higher term, with which the removal does not take place |
//! | heartbeat | requires the old term in the header |
//!
//! What is read after the fence is durable: the change of the term is ordered after all earlier writes to
//! that object, and it was acknowledged.
//!
//! **Time** decides only when a server takes a pool over that another one owns, never whether a write takes
//! effect. An owner changes its heartbeat each second. A server that sees no change for [`DEAD_AFTER`], in
//! reads that all succeeded, takes the pool over.

use std::time::Duration;

use forebay_format::SegmentId;

use super::cluster::{Answer, Cluster, Errno, Step, WhenFull};
use super::header::{BEAT, HEADER, Header, OWNER, SWAPS, TERM, digits, gone_key, open_key, segment_object};
use super::owner::Owner;
use super::{Claim, Ownership, Waiting, store_error};
use crate::{BoxFuture, Result, StoreError};

/// Interval between two beats of an owner.
pub(super) const BEAT_EVERY: Duration = Duration::from_secs(1);
/// An owner whose heartbeat does not change for this long is regarded as dead.
const DEAD_AFTER: Duration = Duration::from_secs(4);
/// Interval between two looks at a heartbeat.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// A pool that was taken over: its term, and keys of the header that are not needed any more.
pub(super) struct Taken {
    pub term: u64,
    pub obsolete_keys: Vec<String>,
}

/// Takes a pool over, or creates it.
///
/// # Errors
/// [`StoreError::Busy`] if another server has it, and the claim does not wait; `ECANCELED` as
/// [`StoreError::Io`] if cancelled.
pub(super) async fn take_over(
    cluster: &dyn Cluster,
    owner: &Owner,
    claim: Claim,
    waiting: &Waiting<'_>,
) -> Result<Taken> {
    loop {
        let taken = match Header::read(cluster).await {
            Ok(header) => match observe(cluster, header, owner, claim, waiting).await? {
                Some(free) => swap_owner(cluster, &free, owner).await,
                None => continue,
            },
            Err(Errno(libc::ENOENT)) => create_header(cluster, owner).await,
            Err(e) => Err(e),
        };
        let fenced = match taken {
            Ok(term) => fence(cluster, term).await,
            Err(e) => Err(e),
        };
        match fenced {
            Ok(taken) => return Ok(taken),
            // Another server was faster.
            Err(Errno(libc::ECANCELED | libc::EEXIST)) => {}
            Err(Errno(libc::EUCLEAN)) => return Err(not_a_pool()),
            Err(e) => return Err(store_error("taking over the pool", e)),
        }
    }
}

fn not_a_pool() -> StoreError {
    StoreError::Io {
        what: "opening the pool".into(),
        reason: "the object \"pool\" of this namespace is not the header of a Forebay pool".into(),
        errno: libc::EUCLEAN,
    }
}

async fn create_header(cluster: &dyn Cluster, owner: &Owner) -> Answer<u64> {
    let term = owner.first_term();
    let attributes = [(TERM, digits(term)), (OWNER, owner.text()), (SWAPS, digits(0)), (BEAT, digits(0))];
    let set = attributes.into_iter().map(|(name, value)| Step::Set(name, value));
    let steps = [Step::Create].into_iter().chain(set).collect();
    cluster.operate(HEADER, steps, WhenFull::Proceed).await.map(|()| term)
}

/// Also requires the heartbeat that was seen last: an owner that is alive again keeps the pool.
async fn swap_owner(cluster: &dyn Cluster, seen: &Header, owner: &Owner) -> Answer<u64> {
    let term = seen.term.checked_add(1).ok_or(Errno(libc::EOVERFLOW))?;
    let steps = vec![
        Step::Require(TERM, digits(seen.term)),
        Step::Require(BEAT, seen.beat.clone()),
        Step::Set(TERM, digits(term)),
        Step::Set(OWNER, owner.text()),
        // The first heartbeat must be another one, also if it equals the last one of the owner before.
        Step::Set(BEAT, digits(0)),
    ];
    cluster.operate(HEADER, steps, WhenFull::Proceed).await.map(|()| term)
}

/// Returns the header if the pool can be taken over now, and `None` if its term has changed. Waits until then
/// if the claim does.
///
/// # Errors
/// As [`take_over`].
async fn observe(
    cluster: &dyn Cluster,
    mut seen: Header,
    here: &Owner,
    claim: Claim,
    waiting: &Waiting<'_>,
) -> Result<Option<Header>> {
    let (mut unchanged, mut has_begun) = (Duration::ZERO, false);
    loop {
        let owner = Owner::parse(&seen.owner);
        let is_free = seen.owner.is_empty() || owner.as_ref().is_some_and(|o| o == here || o.has_ended(here));
        if is_free || unchanged >= DEAD_AFTER {
            return Ok(Some(seen));
        }
        if (waiting.is_cancelled)() {
            let (what, reason) = ("waiting for the pool".into(), "cancelled".into());
            return Err(StoreError::Io { what, reason, errno: libc::ECANCELED });
        }
        cluster.sleep(LOOK_EVERY).await;
        match Header::read(cluster).await {
            Ok(now) if now.term != seen.term => return Ok(None),
            Ok(now) if now.beat == seen.beat => {
                unchanged += LOOK_EVERY;
                seen = now;
            }
            Ok(now) => {
                let owner = owner.map_or(now.owner.clone(), |owner| owner.to_string());
                if claim == Claim::IfFree {
                    return Err(StoreError::Busy(format!(" ({owner})")));
                }
                if !std::mem::replace(&mut has_begun, true) {
                    (waiting.began)(&owner);
                }
                unchanged = Duration::ZERO;
                seen = now;
            }
            Err(Errno(libc::ENOENT)) => return Ok(None),
            // It is no sign of the owner's state.
            Err(_) => unchanged = Duration::ZERO,
        }
    }
}

/// Ends all that owners of earlier terms may have begun.
async fn fence(cluster: &dyn Cluster, term: u64) -> Answer<Taken> {
    // Only the owner of this term changes it from now on.
    let header = Header::read(cluster).await?;
    if header.term != term {
        return Err(Errno(libc::ECANCELED));
    }
    let own = digits(term);
    let mut under_way = Vec::new();
    for id in &header.open {
        let steps =
            vec![Step::AssertExists, Step::RequireAtMost(TERM, own.clone()), Step::Set(TERM, own.clone())];
        under_way.push(cluster.operate(&segment_object(*id), steps, WhenFull::Proceed));
    }
    for id in &header.gone {
        under_way.push(remove_segment(cluster, *id, &own));
    }
    for done in under_way {
        match done.await {
            Ok(()) | Err(Errno(libc::ENOENT)) => {}
            Err(e) => return Err(e),
        }
    }
    let obsolete = header.open.into_iter().map(open_key).chain(header.gone.into_iter().map(gone_key));
    Ok(Taken { term, obsolete_keys: obsolete.collect() })
}

/// Removes the object of a segment, unless an owner of a later term created it.
pub(super) fn remove_segment(
    cluster: &dyn Cluster,
    id: SegmentId,
    term: &str,
) -> BoxFuture<'static, Answer<()>> {
    let steps = vec![Step::RequireAtMost(TERM, term.to_owned()), Step::Remove];
    cluster.operate(&segment_object(id), steps, WhenFull::Proceed)
}

/// Who owns the pool, without changing it.
pub(super) async fn look(cluster: &dyn Cluster, here: &Owner) -> Result<Ownership> {
    let failed = |e| store_error("reading the header of the pool", e);
    let header = Header::read(cluster).await.map_err(failed)?;
    let owner = Owner::parse(&header.owner);
    let alive = match &owner {
        _ if header.owner.is_empty() => None,
        Some(owner) if owner.has_ended(here) => Some(false),
        _ => {
            let mut beat = header.beat.clone();
            let mut waited = Duration::ZERO;
            while beat == header.beat && waited < DEAD_AFTER {
                cluster.sleep(LOOK_EVERY).await;
                waited += LOOK_EVERY;
                beat = Header::read(cluster).await.map_err(failed)?.beat;
            }
            Some(beat != header.beat)
        }
    };
    let name = owner.map_or(header.owner.clone(), |owner| owner.to_string());
    let owner = (!header.owner.is_empty()).then_some(name);
    Ok(Ownership { owner, term: header.term, alive, open_segments: header.open.len() })
}

/// Changes the heartbeat.
pub(super) async fn beat(cluster: &dyn Cluster, term: &str, count: u64) -> Answer<()> {
    let steps = vec![Step::Require(TERM, term.to_owned()), Step::Set(BEAT, digits(count))];
    cluster.operate(HEADER, steps, WhenFull::Proceed).await
}

/// Gives the pool back, so that another server can take it over at once.
pub(super) async fn release(cluster: &dyn Cluster, term: &str) -> Answer<()> {
    let steps = vec![Step::Require(TERM, term.to_owned()), Step::Set(OWNER, String::new())];
    cluster.operate(HEADER, steps, WhenFull::Proceed).await
}
