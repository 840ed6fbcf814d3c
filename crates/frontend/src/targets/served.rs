//! The targets that the front end serves at present, and their sessions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use super::session::{SessionGuard, SessionInfo, Sessions};
use super::{IqnName, Target, TargetMap};

/// Maximum time for which an administrator waits for sessions. Commands in progress end only when the store
/// does their work, and the store can hang.
const APPLY_TIME: Duration = Duration::from_secs(5);
/// Maximum time for which an administrator waits until a change is published for other servers.
const PUBLISH_TIME: Duration = Duration::from_secs(3);

/// The targets that are visible to the front end, and their sessions.
#[derive(Default)]
pub struct ServedTargets {
    targets: RwLock<Arc<TargetMap>>,
    changes: watch::Sender<u64>,
    /// The number of the last change of each target that has sessions.
    changes_at: Mutex<BTreeMap<IqnName, watch::Sender<u64>>>,
    sessions: Sessions,
    /// For each target, the number of the last change that took something away from its initiators.
    revoked: Mutex<BTreeMap<IqnName, u64>>,
    /// The number of the last change that was published for other servers; `None` if administrators need not
    /// wait for that.
    published: watch::Sender<Option<u64>>,
}

impl ServedTargets {
    /// Makes the table of these targets, without sessions.
    pub fn new(targets: TargetMap) -> ServedTargets {
        ServedTargets {
            targets: RwLock::new(Arc::new(targets)),
            changes: watch::Sender::new(0),
            changes_at: Mutex::default(),
            sessions: Sessions::default(),
            revoked: Mutex::default(),
            published: watch::Sender::new(None),
        }
    }

    /// Returns all targets, as they are now.
    pub fn snapshot(&self) -> Arc<TargetMap> {
        self.targets.read().clone()
    }

    /// Returns one target, as it is now.
    pub fn get(&self, name: &IqnName) -> Option<Arc<Target>> {
        self.targets.read().get(name).cloned()
    }

    /// A channel that reports each change; its value is the number of changes.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// A channel that reports each change of one target, so that the sessions of other targets are not woken.
    /// It reports the number of the change.
    pub fn changed_at(&self, target: &IqnName) -> watch::Receiver<u64> {
        let mut changes = self.changes_at.lock();
        changes.retain(|_, sender| sender.receiver_count() > 0);
        changes.entry(target.clone()).or_default().subscribe()
    }

    /// The number of the last change.
    pub fn last_change(&self) -> u64 {
        *self.changes.borrow()
    }

    /// Replaces all targets, and wakes the sessions of targets that have changed. One change is made at a
    /// time.
    pub fn replace(&self, targets: TargetMap) {
        self.install(targets, |before, now| match (before, now) {
            (Some(before), Some(now)) => Arc::ptr_eq(before, now) || before == now,
            (before, now) => before.is_none() && now.is_none(),
        });
    }

    /// Replaces all targets, and wakes all sessions: their disks can have changed as well.
    pub fn replace_with_disks(&self, targets: TargetMap) {
        self.install(targets, |_, _| false);
    }

    fn install(
        &self,
        targets: TargetMap,
        is_unchanged: impl Fn(Option<&Arc<Target>>, Option<&Arc<Target>>) -> bool,
    ) {
        let targets = Arc::new(targets);
        let before = std::mem::replace(&mut *self.targets.write(), targets.clone());
        self.changes.send_modify(|count| *count += 1);
        let change = self.last_change();
        for (name, changed) in &*self.changes_at.lock() {
            if !is_unchanged(before.get(name), targets.get(name)) {
                changed.send_replace(change);
            }
        }
        let takes_away = |(name, before): &(&IqnName, &Arc<Target>)| {
            !targets.get(*name).is_some_and(|now| Arc::ptr_eq(now, before) || now.permits_all_of(before))
        };
        let revoked = before.iter().filter(takes_away).map(|(name, _)| (name.clone(), change));
        self.revoked.lock().extend(revoked);
    }

    /// Waits until no session uses what was taken away from it at these targets: its commands that change
    /// blocks or reservations of these disks have ended. Waits at most [`APPLY_TIME`].
    pub async fn revoked(&self, is_meant: impl Fn(&IqnName) -> bool) {
        let mut revoked = self.revoked.lock().clone();
        revoked.retain(|target, _| is_meant(target));
        // This is the usual case: all actions ask, and there can be many sessions.
        if revoked.is_empty() {
            return;
        }
        let last = |session: &SessionInfo| revoked.get(&session.target).copied().unwrap_or(0);
        let is_behind = |session: &SessionInfo| *session.applied.borrow() < last(session);
        let mut behind = self.sessions.list(is_behind);
        let all = async {
            for session in &mut behind {
                let last = last(session);
                // The channel is closed when the session has ended.
                let _ = session.applied.wait_for(|applied| *applied >= last).await;
            }
        };
        if tokio::time::timeout(APPLY_TIME, all).await.is_err() {
            let mut sessions = BTreeMap::<_, usize>::new();
            let has_ended = |session: &SessionInfo| session.applied.has_changed().is_err();
            for session in behind.into_iter().filter(|session| is_behind(session) && !has_ended(session)) {
                *sessions.entry(session.target).or_default() += 1;
            }
            for (target, sessions) in sessions {
                tracing::warn!(%target, sessions, "commands that began before a change of the target still run");
            }
            return;
        }
        // Sessions that began in the meantime have read the table with these changes.
        self.revoked.lock().retain(|target, change| revoked.get(target) != Some(change));
    }

    /// Records that all changes up to this one were published for other servers.
    pub fn set_published(&self, change: u64) {
        self.published.send_replace(Some(change));
    }

    /// Waits until the last change is published, if something publishes changes. Waits at most
    /// [`PUBLISH_TIME`].
    pub async fn published(&self) {
        let (last, mut published) = (self.last_change(), self.published.subscribe());
        let is_published = published.wait_for(|published| published.is_none_or(|change| change >= last));
        if tokio::time::timeout(PUBLISH_TIME, is_published).await.is_err() {
            tracing::warn!("other servers do not learn of a change of the targets yet");
        }
    }

    /// Registers a session until the guard is dropped.
    pub fn session_began(&self, info: SessionInfo) -> SessionGuard {
        self.sessions.begin(info)
    }

    /// The number of iSCSI sessions, and of NVMe controllers, at all targets.
    pub fn session_counts(&self) -> (usize, usize) {
        let controllers = self.sessions.list(|session| session.initiator.is_nqn()).len();
        (self.sessions.count().saturating_sub(controllers), controllers)
    }

    /// The sessions of a target, in the order of their login, also after an upgrade.
    pub fn sessions(&self, target: &IqnName) -> Vec<SessionInfo> {
        self.in_order(|session| session.target == *target)
    }

    /// The sessions of all targets, each as [`ServedTargets::sessions`] lists them. Made in one pass, since
    /// there can be as many targets as sessions.
    pub fn sessions_by_target(&self) -> BTreeMap<IqnName, Vec<SessionInfo>> {
        let mut by_target = BTreeMap::<_, Vec<_>>::new();
        for session in self.in_order(|_| true) {
            by_target.entry(session.target.clone()).or_default().push(session);
        }
        by_target
    }

    fn in_order(&self, wanted: impl Fn(&SessionInfo) -> bool) -> Vec<SessionInfo> {
        let mut sessions = self.sessions.list(wanted);
        sessions.sort_by_key(|session| (session.since_ms, session.id));
        sessions
    }
}
