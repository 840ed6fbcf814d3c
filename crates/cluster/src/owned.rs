//! The names of one shard, for the process that owns the shard.
//!
//! The module adds to [`crate::names`] the tasks of an owner. It ends operations by what the shard has, it
//! settles operations that were interrupted, and it enters disks and targets that have no name in the cluster
//! yet.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use forebay_store::BoxFuture;
use forebay_store::rados::Cluster;

use crate::error::{ClusterError, Result};
use crate::names::{Kind, Names, Pending};

/// Interval at which an owner settles operations that earlier owners have begun late.
const SELDOM: Duration = Duration::from_secs(600);
/// Interval at which an owner settles operations that did not end.
const OFTEN: Duration = Duration::from_secs(5);

/// The disks and targets that a shard has.
pub trait Disks: Send + Sync {
    /// What has this name of the directory; `None` if nothing in the shard has the name.
    ///
    /// # Errors
    /// [`ClusterError::Lost`] if it cannot be known: the pool has stopped, and a commit may have taken
    /// effect. [`ClusterError::Unknown`] if the table of targets cannot be read.
    fn find(&self, name: &str) -> Result<Option<Kind>>;

    /// Waits until it is certain that no other server has taken the shard, or until the pool has stopped. An
    /// owner that was paused may otherwise state what another owner has changed since.
    fn certain(&self) -> BoxFuture<'_, ()>;

    /// The names that follow `after`, in an order that stays the same: some of them; none after the last one.
    fn after(&self, after: &str) -> Vec<(String, Kind)>;
}

/// The names of the shard that this process owns.
pub struct OwnedNames {
    names: Names,
    shard: u32,
    term: u64,
    disks: Arc<dyn Disks>,
    /// An operation of this process did not end.
    is_due: AtomicBool,
}

impl OwnedNames {
    /// The names of `shard`, in the namespace of the cluster, for its owner in this term.
    pub fn new(cluster: Arc<dyn Cluster>, shard: u32, term: u64, disks: Arc<dyn Disks>) -> OwnedNames {
        OwnedNames { names: Names::new(cluster), shard, term, disks, is_due: AtomicBool::new(false) }
    }

    /// The names of the cluster that begin with `prefix`.
    ///
    /// # Errors
    /// Those of [`Names::list`].
    pub async fn beginning_with(&self, prefix: &str) -> Result<Vec<String>> {
        let all = self.names.list().await?.into_iter();
        Ok(all.map(|name| name.name).filter(|name| name.starts_with(prefix)).collect())
    }

    /// Runs `work`, which creates disks of these names in the shard: all of them, or none.
    ///
    /// # Errors
    /// Those of [`Names::reserve`], and then `work` has not begun; those of `work`.
    pub async fn create<T, E: From<ClusterError>>(
        &self,
        names: &[&str],
        kind: Kind,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let begin = || self.names.reserve(names, kind, self.shard, self.term);
        self.finish(self.begin(begin).await?, work).await
    }

    /// Begins an operation. An operation of an earlier owner on the same name is settled before; one that is
    /// in progress keeps its entry.
    async fn begin<F>(&self, begin: impl Fn() -> F) -> Result<Vec<Pending>>
    where
        F: Future<Output = Result<Vec<Pending>>>,
    {
        use ClusterError as E;
        let begun = match begin().await {
            Err(E::Unsettled(name)) => {
                self.settle(&name).await?;
                begin().await
            }
            begun => begun,
        };
        let is_answer =
            |e: &E| matches!(e, E::Exists(_) | E::Missing(_) | E::Elsewhere { .. } | E::Unsettled(_));
        if begun.as_ref().is_err_and(|e| !is_answer(e)) {
            // Some entries may have been written.
            self.is_due.store(true, Relaxed);
        }
        begun
    }

    /// Runs `work`, and ends the operations.
    async fn finish<T, E>(
        &self,
        pending: Vec<Pending>,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let done = work.await;
        self.end(pending).await;
        done
    }

    /// Runs `work`, which removes the disk of this name from the shard.
    ///
    /// # Errors
    /// Those of [`Names::mark`], and then `work` has not begun; those of `work`.
    pub async fn remove<T, E: From<ClusterError>>(
        &self,
        name: &str,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        self.finish(self.begin(|| self.begin_removal(name)).await?, work).await
    }

    /// Runs `work`, which gives the disk `from` of the shard the name `to`. The new name is reserved before
    /// the old one is marked. After a crash, each of the two names is settled by what the shard has, so that
    /// the disk has exactly one name: the old one before the commit, the new one after it.
    ///
    /// # Errors
    /// Those of [`Names::reserve`] and [`Names::mark`], and then `work` has not begun; those of `work`.
    pub async fn rename<T, E: From<ClusterError>>(
        &self,
        from: &str,
        to: &str,
        kind: Kind,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let reserve = || self.names.reserve(std::slice::from_ref(&to), kind, self.shard, self.term);
        let mut pending = self.begin(reserve).await?;
        match self.begin(|| self.begin_removal(from)).await {
            Ok(old) => pending.extend(old),
            Err(e) => {
                self.end(pending).await;
                return Err(e.into());
            }
        }
        self.finish(pending, work).await
    }

    /// Runs `work`, which removes everything of this kind from the shard. The names are those in the
    /// directory, so that they are removed also if the shard cannot read its own.
    ///
    /// # Errors
    /// Those of [`Names::mark`], and then `work` has not begun; those of `work`.
    pub async fn remove_all<T, E: From<ClusterError>>(
        &self,
        kind: Kind,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let mut pending = Vec::new();
        for name in self.names.list().await?.into_iter().filter(|n| n.shard == self.shard && n.kind == kind) {
            match self.begin_removal(&name.name).await {
                Ok(begun) => pending.extend(begun),
                // An interrupted operation, which is settled by what the shard has after this.
                Err(ClusterError::Unsettled(_)) => self.is_due.store(true, Relaxed),
                Err(e) => {
                    self.end(pending).await;
                    return Err(e.into());
                }
            }
        }
        self.finish(pending, work).await
    }

    async fn begin_removal(&self, name: &str) -> Result<Vec<Pending>> {
        match self.names.mark(name, self.shard, self.term).await {
            Ok(marked) => Ok(vec![marked]),
            // The disk was not entered yet, or does not exist. An entry keeps it from being entered now.
            Err(ClusterError::Missing(_)) => {
                // If the removal fails, the entry stays.
                let kind = self.disks.find(name)?.unwrap_or(Kind::Volume);
                self.names.reserve(&[name], kind, self.shard, self.term).await
            }
            // Another shard had a disk of the name when this shard joined the cluster.
            Err(ClusterError::Elsewhere { .. }) => Ok(Vec::new()),
            Err(e) => Err(e),
        }
    }

    /// Ends operations by what the shard has. If that fails, the work was done nevertheless: the entries are
    /// settled later.
    async fn end(&self, pending: Vec<Pending>) {
        let mut groups: BTreeMap<bool, Vec<Pending>> = BTreeMap::new();
        self.disks.certain().await;
        for one in pending {
            match self.disks.find(one.name()) {
                Ok(found) => groups.entry(found.is_some()).or_default().push(one),
                // The entry is settled when the table can be read again.
                Err(ClusterError::Unknown { .. }) => drop(one),
                // The place in the list of operations in progress is kept: whether the commit takes effect is
                // not known. The pool has stopped, and the next owner of the shard settles the entry.
                Err(_) => std::mem::forget(one),
            }
        }
        for (exists, pending) in groups {
            if let Err(e) = self.names.end(pending, exists).await {
                tracing::warn!("names of shard {} are settled later: {e}", self.shard);
                self.is_due.store(true, Relaxed);
            }
        }
    }

    /// Settles the entry of one name, if an operation on it was interrupted.
    async fn settle(&self, name: &str) -> Result<Option<bool>> {
        self.names
            .settle(name, self.shard, self.term, async |name| {
                self.disks.certain().await;
                Ok(self.disks.find(name)?.is_some())
            })
            .await
    }

    /// Settles all operations that were interrupted. Returns the number.
    ///
    /// # Errors
    /// Those of [`Names::settle`].
    pub async fn settle_all(&self) -> Result<u64> {
        self.is_due.store(false, Relaxed);
        let mut settled = 0;
        for pending in self.names.pending(self.shard).await? {
            match self.settle(&pending.name).await {
                Ok(found) => settled += u64::from(found.is_some()),
                // An administrator repairs the table; other names do not wait for that.
                Err(e @ ClusterError::Unknown { .. }) => tracing::warn!("{e}"),
                Err(e) => return Err(e),
            }
        }
        Ok(settled)
    }

    /// Enters the disks and targets of the shard that have no entry: those of a pool that became a shard.
    /// Returns the number of names that were entered, and the names that other shards have.
    ///
    /// # Errors
    /// Those of [`Names::reserve`].
    pub async fn enter_all(&self) -> Result<(u64, Vec<ClusterError>)> {
        let (mut entered, mut refused, mut last) = (0, Vec::new(), String::new());
        loop {
            let disks = self.disks.after(&last);
            let Some((name, _)) = disks.last() else { return Ok((entered, refused)) };
            last.clone_from(name);
            let names: Vec<_> = disks.iter().map(|(name, _)| name.as_str()).collect();
            let mut found = self.names.look_up_all(&names).await?;
            for (name, kind) in &disks {
                match found.remove(name) {
                    Some(entry) if entry.shard == self.shard => {}
                    Some(entry) => {
                        refused.push(ClusterError::Elsewhere { name: name.clone(), shard: entry.shard });
                    }
                    // What the shard has then is found under the reservation: the disk may be removed now.
                    None => match self.names.reserve(&[name], *kind, self.shard, self.term).await {
                        Ok(pending) => {
                            self.end(pending).await;
                            entered += 1;
                        }
                        Err(e @ ClusterError::Exists(_)) => refused.push(e),
                        // An operation in progress ends without help.
                        Err(ClusterError::Unsettled(_)) => {}
                        Err(e) => return Err(e),
                    },
                }
            }
        }
    }

    /// Keeps the directory in accord with the shard, until another process owns the shard.
    pub async fn maintain(&self, sleep: impl AsyncFn(Duration)) {
        let mut is_entered = false;
        loop {
            let done = async {
                let settled = self.settle_all().await?;
                if settled > 0 {
                    tracing::info!(
                        "settled {settled} interrupted operations on names of shard {}",
                        self.shard
                    );
                }
                if is_entered {
                    return Ok(());
                }
                let (entered, refused) = self.enter_all().await?;
                if entered > 0 {
                    tracing::info!(
                        "entered {entered} disks and targets of shard {} into the names of the cluster",
                        self.shard
                    );
                }
                for why in refused {
                    tracing::warn!(
                        "a disk or target of shard {} has no name in the cluster and is found at the socket of the shard only: {why}",
                        self.shard
                    );
                }
                is_entered = true;
                Ok(())
            };
            let mut pause = SELDOM;
            match done.await {
                Ok(()) => {}
                Err(ClusterError::Lost(_)) => return,
                Err(e) => {
                    tracing::warn!("the names of shard {} cannot be settled yet: {e}", self.shard);
                    pause = OFTEN;
                }
            }
            while pause > Duration::ZERO && !self.is_due.load(Relaxed) {
                sleep(OFTEN).await;
                pause = pause.saturating_sub(OFTEN);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use forebay_store::rados::{Operation, SimulatedClient, SimulatedRados, WhenFull};
    use parking_lot::Mutex;

    use super::*;
    use crate::names::{of_target, target_of};
    use crate::testing::{Intercepted, run};

    /// What a shard has. Its targets may be unreadable.
    #[derive(Default)]
    struct Shard {
        names: Mutex<BTreeMap<String, Kind>>,
        is_unreadable: AtomicBool,
    }

    impl Shard {
        fn add(&self, name: &str, kind: Kind) -> Result<()> {
            self.names.lock().insert(name.to_owned(), kind);
            Ok(())
        }
    }

    impl Disks for Shard {
        fn certain(&self) -> BoxFuture<'_, ()> {
            Box::pin(std::future::ready(()))
        }

        fn find(&self, name: &str) -> Result<Option<Kind>> {
            if target_of(name).is_some() && self.is_unreadable.load(Relaxed) {
                return Err(ClusterError::Unknown { name: name.to_owned(), reason: "damaged".to_owned() });
            }
            Ok(self.names.lock().get(name).copied())
        }

        fn after(&self, after: &str) -> Vec<(String, Kind)> {
            let names = self.names.lock();
            names
                .range(after.to_owned()..)
                .filter(|(n, _)| *n != after)
                .map(|(n, k)| (n.clone(), *k))
                .collect()
        }
    }

    fn owned(cluster: &Arc<SimulatedClient>, shard: u32, term: u64) -> (Arc<Shard>, OwnedNames) {
        let has = Arc::new(Shard::default());
        (has.clone(), OwnedNames::new(cluster.clone(), shard, term, has))
    }

    fn present(cluster: &Arc<SimulatedClient>) -> Vec<(String, u32, Kind)> {
        let all = run(Names::new(cluster.clone()).list()).unwrap();
        assert!(all.iter().all(|name| !name.is_pending), "{all:?}");
        let mut all: Vec<_> = all.into_iter().map(|name| (name.name, name.shard, name.kind)).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }

    #[test]
    fn targets_and_disks_have_names_apart() {
        let cluster = SimulatedRados::immediate().client();
        let ((one, first), (_, second)) = (owned(&cluster, 1, 1), owned(&cluster, 2, 1));
        let target = of_target("iqn.2026-01.org.example:a");
        let names = [target.as_str()];
        let made = first.create(&names, Kind::Target, async { one.add(&target, Kind::Target) });
        assert_eq!(run(made), Ok(()));
        let taken: Result<()> = run(second.create(&names, Kind::Target, async { panic!("it is taken") }));
        let taken = taken.unwrap_err().to_string();
        assert_eq!(taken, "target iqn.2026-01.org.example:a exists", "as an administrator knows it");
        // A disk may have the name.
        let disk = "iqn.2026-01.org.example:a";
        assert_eq!(run(second.create(&[disk], Kind::Volume, async { Ok::<_, ClusterError>(()) })), Ok(()));
        assert_eq!(present(&cluster), [(target, 1, Kind::Target)], "the disk was not created in the end");
    }

    /// What becomes of the operation at which an owner dies.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Last {
        /// It is lost on its way.
        Lost,
        /// It takes effect, and the owner does not see the answer.
        Done,
        /// It takes effect after the next owner has settled.
        Late,
    }

    /// Renames `a` to `b` by an owner that dies at its operation `step`; then the next owner settles. Returns
    /// the name that the disk has, or `None` if the owner did not die.
    fn renamed_until(step: u32, last: Last, is_entered: bool) -> Option<String> {
        let cluster = SimulatedRados::immediate().client();
        let has = Arc::new(Shard::default());
        has.add("a", Kind::Volume).unwrap();
        let owner = |client: Arc<dyn Cluster>, term| OwnedNames::new(client, 1, term, has.clone());
        if is_entered {
            run(owner(cluster.clone(), 1).enter_all()).unwrap();
        }
        // The owner dies at its operation number `step`.
        let (left, late) = (Mutex::new(step), Arc::new(Mutex::default()));
        let arrives_late = late.clone();
        let operate = move |client: &SimulatedClient, object: &str, steps, full| {
            let is_last = {
                let mut left = left.lock();
                *left = left.saturating_sub(1);
                *left == 0
            };
            match last {
                _ if !is_last => return client.operate(object, steps, full),
                Last::Lost => {}
                Last::Done => drop(run(client.operate(object, steps, full)).is_ok()),
                Last::Late => *arrives_late.lock() = Some((object.to_owned(), steps)),
            }
            Operation::of(std::future::pending())
        };
        let mut first = owner(Arc::new(Intercepted { client: cluster.clone(), operate }), 2);
        let is_done = {
            let mut rename = Box::pin(first.rename("a", "b", Kind::Volume, async {
                has.names.lock().remove("a");
                has.add("b", Kind::Volume)
            }));
            // Without time, a future that is not ready never is.
            let polled = rename.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            polled.is_ready()
        };
        // The process ends, with its list of operations in progress.
        first = owner(cluster.clone(), 3);
        run(first.settle_all()).unwrap();
        let is_late: Option<(String, _)> = late.lock().take();
        if let Some((object, steps)) = is_late {
            let _ = run(cluster.operate(&object, steps, WhenFull::Proceed));
            run(first.settle_all()).unwrap();
        }
        run(first.enter_all()).unwrap();
        let names: Vec<String> = has.names.lock().keys().cloned().collect();
        let [name] = names.as_slice() else { panic!("the disk has the names {names:?}") };
        assert_eq!(present(&cluster), [(name.clone(), 1, Kind::Volume)], "at step {step}, {last:?}");
        // The other name is free, for another shard.
        let other = if name == "a" { "b" } else { "a" };
        let (_, second) = owned(&cluster, 2, 1);
        assert_eq!(run(second.create(&[other], Kind::Volume, async { Ok::<_, ClusterError>(()) })), Ok(()));
        (!is_done).then(|| name.clone())
    }

    #[test]
    fn a_rename_has_happened_or_not_wherever_the_owner_dies() {
        for (last, is_entered) in
            [Last::Lost, Last::Done, Last::Late].map(|l| [(l, true), (l, false)]).concat()
        {
            let names: Vec<String> =
                (1..100).map_while(|step| renamed_until(step, last, is_entered)).collect();
            // It died before the commit, and after the commit.
            assert!(
                names.contains(&"a".to_owned()) && names.contains(&"b".to_owned()),
                "{last:?}: {names:?}"
            );
            assert!(names.is_sorted() && names.len() >= 4, "{last:?}: {names:?}");
        }
    }

    #[test]
    fn a_rename_to_a_name_in_use_changes_nothing() {
        let cluster = SimulatedRados::immediate().client();
        let ((one, first), (two, second)) = (owned(&cluster, 1, 1), owned(&cluster, 2, 1));
        for (has, names, disk) in [(&one, &first, "a"), (&two, &second, "b")] {
            has.add(disk, Kind::Volume).unwrap();
            run(names.enter_all()).unwrap();
        }
        let never = async || -> Result<()> { panic!("the work begins") };
        let taken = run(first.rename("a", "b", Kind::Volume, never())).unwrap_err();
        assert_eq!(taken, ClusterError::Exists("b".to_owned()));
        let missing = run(first.rename("b", "c", Kind::Volume, async { Ok::<_, ClusterError>(()) }));
        assert_eq!(missing, Ok(()), "the shard itself says that it has no such disk");
        // The work fails, so nothing has changed.
        let refused = async { Err::<(), _>(ClusterError::Refused("it has clients".to_owned())) };
        assert!(run(first.rename("a", "c", Kind::Volume, refused)).is_err());
        let both = [("a".to_owned(), 1, Kind::Volume), ("b".to_owned(), 2, Kind::Volume)];
        assert_eq!(present(&cluster), both);
        // Then the new name is free.
        let work = async {
            one.names.lock().remove("a");
            one.add("c", Kind::Volume)
        };
        assert_eq!(run(first.rename("a", "c", Kind::Volume, work)), Ok(()));
        let both = [("b".to_owned(), 2, Kind::Volume), ("c".to_owned(), 1, Kind::Volume)];
        assert_eq!(present(&cluster), both);
        // A disk of a pool that became a shard, whose name another shard had already.
        two.add("c", Kind::Volume).unwrap();
        assert_eq!(run(second.enter_all()).unwrap().1.len(), 1);
        let work = async {
            two.names.lock().remove("c");
            two.add("d", Kind::Volume)
        };
        assert_eq!(run(second.rename("c", "d", Kind::Volume, work)), Ok(()));
        let three =
            [("b", 2), ("c", 1), ("d", 2)].map(|(name, shard)| (name.to_owned(), shard, Kind::Volume));
        assert_eq!(present(&cluster), three);
    }

    #[test]
    fn a_removal_that_fails_keeps_the_kind_of_an_entry() {
        let cluster = SimulatedRados::immediate().client();
        let (has, names) = owned(&cluster, 1, 1);
        let target = of_target("iqn.2026-01.org.example:a");
        // Of a pool that became a shard, before its names are entered.
        has.add(&target, Kind::Target).unwrap();
        let refused = async { Err::<(), _>(ClusterError::Refused("it has sessions".to_owned())) };
        assert!(run(names.remove(&target, refused)).is_err());
        assert_eq!(present(&cluster), [(target, 1, Kind::Target)]);
    }

    #[test]
    fn all_targets_are_removed_also_if_they_cannot_be_read() {
        let cluster = SimulatedRados::immediate().client();
        let ((one, first), (two, second)) = (owned(&cluster, 1, 1), owned(&cluster, 2, 1));
        let target = |n: u32| of_target(&format!("iqn.2026-01.org.example:{n}"));
        one.add("disk", Kind::Volume).unwrap();
        one.add(&target(1), Kind::Target).unwrap();
        two.add(&target(2), Kind::Target).unwrap();
        for names in [&first, &second] {
            assert!(run(names.enter_all()).unwrap().1.is_empty());
        }
        one.is_unreadable.store(true, Relaxed);
        // A removal that was interrupted is not settled by a guess.
        drop(run(first.begin_removal(&target(1))).unwrap());
        assert_eq!(run(first.settle_all()), Ok(0));
        assert_eq!(run(Names::new(cluster.clone()).pending(1)).unwrap().len(), 1);
        let removed = run(first.remove_all(Kind::Target, async {
            one.is_unreadable.store(false, Relaxed);
            one.names.lock().retain(|_, kind| *kind != Kind::Target);
            Ok::<_, ClusterError>(())
        }));
        assert_eq!(removed, Ok(()));
        assert_eq!(run(first.settle_all()), Ok(1), "the interrupted removal");
        assert_eq!(present(&cluster), [(target(2), 2, Kind::Target), ("disk".to_owned(), 1, Kind::Volume)]);
    }
}
