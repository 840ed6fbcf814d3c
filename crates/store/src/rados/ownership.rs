//! Ownership of a pool: taking it, keeping it, and giving it back.
//!
//! **The fence.** Each ownership has a *term*. A takeover first changes the term in the header, then the term
//! of each segment to which the previous owner could still append, and then reads the pool. Every operation
//! of an owner compares the owner's term within the operation. Therefore, whatever a paused server or a slow
//! network delays, an operation of the old term that arrives later has no effect:
//!
//! | late operation of an old owner | why it has no effect |
//! |---|---|
//! | append to a segment | the segment is listed as open in the header, because it was listed before its first append; so its term was changed before the pool was read |
//! | creation of a segment | the object remains empty: an append needs the entry in the header, which requires the old term there. A successor that needs the number removes the object |
//! | superblock, entry in the header | requires the old term in the header |
//! | removal of a segment | was entered in the header before; the successor completes the removals that it finds there before it reads the pool, so no later reference to the segment is possible. An object that was created under this number since has a higher term, with which the removal does not take place |
//! | heartbeat | requires the old term in the header |
//!
//! Data that is read after the fence is durable: RADOS orders the change of an object's term after all
//! earlier writes to the object, and the change was acknowledged.
//!
//! **Time** never decides whether a write takes effect. It decides only when a server takes over a pool that
//! another server owns, or that is reserved for another server. An owner changes its heartbeat each second,
//! from the moment at which it took the pool. A server that sees no change for [`DEAD_AFTER`], in reads that
//! all succeeded, takes the pool over ([`super::watch`] states how this time is measured).
//!
//! **Handover.** An owner releases its pool with the name of an heir. From then on the pool has no owner, and
//! until a server takes it, only keys of the header change. The heir takes the pool at once. Every other
//! server waits for [`DEAD_AFTER`], as for the heartbeat of an owner; only the server that released the pool
//! may take it back earlier. A server that releases the pool only to open it again names itself as the heir.
//! Like a heartbeat, a reservation does not protect data: a server that ignores the reservation takes the
//! pool with a higher term, and fences as always. The operation that takes the pool compares everything that
//! the server has read from the header. So a server that has waited for a dead owner does not take a pool
//! that was reserved in between.

use std::time::Duration;

use forebay_format::SegmentId;

use super::cluster::{Answer, Cluster, Errno, Operation, Step, WhenFull};
use super::header::{
    BEAT, HEADER, HEIR, Header, OWNER, SERVING, SHARD_OF, SWAPS, TERM, digits, gone_key, open_key,
    segment_object,
};
use super::membership::Membership;
use super::owner::Owner;
use super::standby::{Announcement, Survey};
use super::watch::Watch;
use super::{Claim, Ownership, Waiting, store_error};
use crate::{Result, StoreError};

/// Interval between two beats of an owner.
pub(super) const BEAT_EVERY: Duration = Duration::from_secs(1);
/// An owner whose heartbeat does not change for this long is regarded as dead.
pub const DEAD_AFTER: Duration = Duration::from_secs(4);
/// Interval between two reads of a heartbeat.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Interval between two reads while a pool is being handed over, and the time for which an heir uses it.
pub(super) const LOOK_FOR_HEIR: Duration = Duration::from_millis(20);
const HEIR_LOOKS: Duration = Duration::from_secs(30);

/// A server that claims a pool.
#[derive(Debug, Clone)]
pub(super) struct Claimant {
    pub owner: Owner,
    pub membership: Membership,
}

/// An ownership that has begun.
pub(super) struct Taken {
    pub term: u64,
    /// What the header named as the previous owner, or as its heir; empty if any server could take the pool.
    pub before: String,
    /// The namespace of the cluster of which the pool is a shard; empty if it is that of a single server.
    pub shard_of: String,
}

/// Takes a pool, or creates it. This server is then the owner, and has to [`fence`] earlier owners.
///
/// # Errors
/// [`StoreError::Busy`] if another server has it, and the claim does not wait; as [`StoreError::Io`],
/// `ECANCELED` if cancelled, and `EPERM` if the pool belongs to a cluster and the claimant does not.
pub(super) async fn take(
    cluster: &dyn Cluster,
    here: &Claimant,
    claim: Claim,
    waiting: &Waiting<'_>,
) -> Result<Taken> {
    let mut announcement = Announcement::new(&here.owner);
    loop {
        let taken = match Header::read(cluster).await {
            Ok(header) => match observe(cluster, header, here, claim, waiting, &mut announcement).await? {
                Some(free) => swap_owner(cluster, &free, here, announcement.keys()).await,
                None => continue,
            },
            Err(Errno(libc::ENOENT)) => create_header(cluster, here).await,
            Err(e) => Err(e),
        };
        match taken {
            Ok(taken) => return Ok(taken),
            // Another server was faster.
            Err(Errno(libc::ECANCELED | libc::EEXIST)) => {}
            Err(e) => return Err(taking_failed(e)),
        }
    }
}

pub(super) fn taking_failed(e: Errno) -> StoreError {
    let reason = match e {
        Errno(libc::EUCLEAN) => "the object \"pool\" of this namespace is not the header of a Forebay pool",
        Errno(libc::EPROTONOSUPPORT) => {
            "this release does not support the format of the pool; install the release that wrote it"
        }
        Errno(libc::EOPNOTSUPP) => "the Ceph pool is erasure-coded and has no omap; use a replicated pool",
        e => return store_error("taking over the pool", e),
    };
    StoreError::Io { what: "opening the pool".into(), reason: reason.into(), errno: e.0 }
}

async fn create_header(cluster: &dyn Cluster, here: &Claimant) -> Answer<Taken> {
    let Claimant { owner, membership } = here;
    let term = owner.first_term();
    let attributes = [(TERM, digits(term)), (OWNER, owner.text()), (SWAPS, digits(0)), (BEAT, digits(0))];
    let set = attributes.into_iter().map(|(name, value)| Step::Set(name, value));
    // The operation removes nothing, but fails in a Ceph pool whose objects cannot have keys.
    let needs_keys = Step::RemoveKeys(vec![open_key(SegmentId(0))]);
    let steps = [Step::Create].into_iter().chain(set).chain(membership.enter()).chain([needs_keys]).collect();
    let (before, shard_of) = (String::new(), membership.cluster().unwrap_or_default().to_owned());
    let taken = Taken { term, before, shard_of };
    cluster.operate(HEADER, steps, WhenFull::Proceed).await.map(|()| taken)
}

/// Requires that the ownership is as it was seen, with the pool's format and its cluster.
fn unchanged(seen: &Header) -> Vec<Step> {
    vec![
        Step::Require(TERM, digits(seen.term)),
        Step::Require(BEAT, seen.beat.clone()),
        Step::Require(OWNER, seen.owner.clone()),
        Step::Require(HEIR, seen.heir.clone()),
        Step::Require(SWAPS, digits(seen.swaps)),
        Step::Require(SHARD_OF, seen.shard_of.clone()),
    ]
}

/// Enters the cluster `name` into the header of a pool that no server has, so that no single server opens the
/// pool from now on.
///
/// # Errors
/// [`StoreError::Busy`] if a server has the pool, or has taken it by then; as [`take`].
pub(super) async fn enter_cluster(cluster: &dyn Cluster, here: &Owner, name: &str) -> Result<()> {
    let membership = Membership::ShardOf(name.to_owned());
    let seen = Header::read(cluster).await.map_err(taking_failed)?;
    membership.check(&seen)?;
    let mut watch = Watch::new(seen);
    while !is_free(&watch.seen, here, Claim::IfFree) && !watch.is_silent() {
        match watch.look(cluster, LOOK_EVERY).await {
            Ok(true) if !watch.seen.owner.is_empty() => {
                return Err(StoreError::Busy(format!(" ({})", self::name(&watch.seen.owner))));
            }
            Ok(_) => {}
            Err(e) => return Err(taking_failed(e)),
        }
    }
    let steps = unchanged(&watch.seen).into_iter().chain(membership.enter()).collect();
    match cluster.operate(HEADER, steps, WhenFull::Proceed).await {
        Err(Errno(libc::ECANCELED)) => Err(StoreError::Busy(" (a server that began just now)".into())),
        other => other.map_err(taking_failed),
    }
}

/// Replaces the owner if nothing in the header has changed since it was read: so an owner that is alive again
/// keeps the pool, and so does an heir. The number of superblock writes must be unchanged too, so that the
/// pool still has the format that was checked.
pub(super) async fn swap_owner(
    cluster: &dyn Cluster,
    seen: &Header,
    here: &Claimant,
    obsolete_keys: Vec<String>,
) -> Answer<Taken> {
    seen.check_format().map_err(|_| Errno(libc::EPROTONOSUPPORT))?;
    let term = seen.term.checked_add(1).ok_or(Errno(libc::EOVERFLOW))?;
    let mut steps = unchanged(seen);
    steps.extend([
        Step::Set(TERM, digits(term)),
        Step::Set(OWNER, here.owner.text()),
        Step::Set(HEIR, String::new()),
        // The first heartbeat must differ from the last heartbeat of the previous owner.
        Step::Set(BEAT, digits(0)),
        Step::RemoveKeys(obsolete_keys),
    ]);
    steps.extend(here.membership.enter());
    let before = if seen.owner.is_empty() { &seen.heir } else { &seen.owner };
    let shard_of = here.membership.cluster().unwrap_or(&seen.shard_of).to_owned();
    let taken = Taken { term, before: before.clone(), shard_of };
    cluster.operate(HEADER, steps, WhenFull::Proceed).await.map(|()| taken)
}

/// Whether a pool can be taken without waiting for a sign of life.
pub(super) fn is_free(seen: &Header, here: &Owner, claim: Claim) -> bool {
    let is_gone = |text: &str| Owner::parse(text).is_some_and(|o| o == *here || o.has_ended(here));
    match (seen.owner.is_empty(), seen.heir.is_empty()) {
        (true, true) => true,
        (true, false) => claim == Claim::Back { term: seen.term } || is_gone(&seen.heir),
        (false, _) => claim == Claim::Silent(seen.sign_of_life()) || is_gone(&seen.owner),
    }
}

/// Returns the header if the pool can be taken over now, and `None` if its term has changed. Waits until then
/// if the claim does.
///
/// # Errors
/// As [`take`].
async fn observe(
    cluster: &dyn Cluster,
    seen: Header,
    here: &Claimant,
    claim: Claim,
    waiting: &Waiting<'_>,
    announcement: &mut Announcement,
) -> Result<Option<Header>> {
    let Claimant { owner: here, membership } = here;
    let (mut watch, mut has_begun) = (Watch::new(seen), false);
    let mut as_heir = Duration::ZERO;
    loop {
        // This is also checked while another server has the pool: a standby that could not open the pool must
        // not be chosen as heir.
        if let Err(e) = membership.check(&watch.seen) {
            announcement.withdraw(cluster);
            return Err(e);
        }
        if is_free(&watch.seen, here, claim) || watch.is_silent() {
            return Ok(Some(watch.seen));
        }
        if (waiting.is_cancelled)() {
            announcement.withdraw(cluster);
            let (what, reason) = ("waiting for the pool".into(), "cancelled".into());
            return Err(StoreError::Io { what, reason, errno: libc::ECANCELED });
        }
        // The owner is about to release the pool to this server.
        let is_heir = watch.seen.heir == here.text() && as_heir < HEIR_LOOKS;
        let interval = if is_heir { LOOK_FOR_HEIR } else { LOOK_EVERY };
        as_heir = if is_heir { as_heir + interval } else { as_heir };
        let term = watch.seen.term;
        match watch.look(cluster, interval).await {
            Ok(_) if watch.seen.term != term => return Ok(None),
            Ok(has_changed) => {
                if has_changed && claim != Claim::Wait && !watch.seen.owner.is_empty() {
                    return Err(StoreError::Busy(format!(" ({})", name(&watch.seen.owner))));
                }
                if has_changed && !std::mem::replace(&mut has_begun, true) {
                    (waiting.began)(&name(&watch.seen.owner));
                }
                if claim == Claim::Wait {
                    announcement.renew(cluster, here, &watch.seen, watch.passed).await;
                }
            }
            Err(Errno(libc::ENOENT)) => return Ok(None),
            Err(_) => {}
        }
    }
}

/// The name of a server for messages.
pub(super) fn name(text: &str) -> String {
    Owner::parse(text).map_or(text.to_owned(), |owner| owner.to_string())
}

/// Ends all operations that owners of earlier terms may have begun. Returns keys of the header that are not
/// needed any more.
pub(super) async fn fence(cluster: &dyn Cluster, term: u64) -> Answer<Vec<String>> {
    // From now on only the owner of this term changes the header.
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
    Ok(obsolete.collect())
}

/// Removes the object of a segment, unless an owner of a later term created it.
pub(super) fn remove_segment(cluster: &dyn Cluster, id: SegmentId, term: &str) -> Operation<()> {
    let steps = vec![Step::RequireAtMost(TERM, term.to_owned()), Step::Remove];
    cluster.operate(&segment_object(id), steps, WhenFull::Proceed)
}

/// Reads the owner of the pool and the servers that wait for it, without changing the pool.
pub(super) async fn look(cluster: &dyn Cluster, here: &Owner) -> Result<Ownership> {
    let failed = |e| store_error("reading the header of the pool", e);
    let mut watch = Watch::new(Header::read(cluster).await.map_err(failed)?);
    let mut survey = Survey::new(&watch.seen);
    let Header { term, ref owner, ref beat, .. } = watch.seen;
    let (owner, beat) = (owner.clone(), beat.clone());
    let mut alive = match Owner::parse(&owner) {
        _ if owner.is_empty() => None,
        Some(owner) if owner.has_ended(here) => Some(false),
        _ => Some(true),
    };
    let is_unsure = |seen: &Header| alive == Some(true) && seen.term == term && seen.beat == beat;
    while (is_unsure(&watch.seen) && !watch.is_silent()) || !survey.is_complete() {
        watch.look(cluster, LOOK_EVERY).await.map_err(failed)?;
        survey.note(&watch.seen, watch.passed);
    }
    if is_unsure(&watch.seen) {
        alive = Some(false);
    }
    let seen = watch.seen;
    let text = |owner: &str| (!owner.is_empty()).then(|| name(owner));
    if seen.term != term || seen.owner != owner {
        // The pool has a new owner in the meantime.
        alive = (!seen.owner.is_empty()).then_some(true);
    }
    Ok(Ownership {
        owner: text(&seen.owner),
        reserved_for: text(&seen.heir).filter(|_| seen.owner.is_empty()),
        term: seen.term,
        alive,
        is_serving: seen.is_serving && !seen.owner.is_empty(),
        open_segments: seen.open.len(),
        standbys: survey.standbys(),
    })
}

/// Changes the header as the owner of a term.
async fn change(cluster: &dyn Cluster, term: &str, steps: impl IntoIterator<Item = Step>) -> Answer<()> {
    let own = Step::Require(TERM, term.to_owned());
    cluster.operate(HEADER, [own].into_iter().chain(steps).collect(), WhenFull::Proceed).await
}

/// Changes the heartbeat.
pub(super) async fn beat(cluster: &dyn Cluster, term: &str, count: u64) -> Answer<()> {
    change(cluster, term, [Step::Set(BEAT, digits(count))]).await
}

/// Gives the pool back, so that another server can take it over at once: any server, or only the heir.
pub(super) async fn release(cluster: &dyn Cluster, term: &str, heir: Option<&Owner>) -> Answer<()> {
    let heir = heir.map(Owner::text).unwrap_or_default();
    change(cluster, term, [Step::Set(OWNER, String::new()), Step::Set(HEIR, heir)]).await
}

/// Announces that the pool will be released to this server; `None` withdraws the announcement.
pub(super) async fn invite(cluster: &dyn Cluster, term: &str, heir: Option<&Owner>) -> Answer<()> {
    change(cluster, term, [Step::Set(HEIR, heir.map(Owner::text).unwrap_or_default())]).await
}

/// Announces that the owner serves clients.
pub(super) async fn announce_serving(cluster: &dyn Cluster, term: &str) -> Answer<()> {
    change(cluster, term, [Step::Set(SERVING, term.to_owned())]).await
}
