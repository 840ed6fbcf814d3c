//! Servers that wait for a pool: how they announce themselves, and which of them are alive.
//!
//! A standby has one key in the header, which it replaces by another key each second. A key that stays the
//! same for [`DEAD_AFTER`] belongs to a server that no longer waits; other standbys, and an owner that
//! selects an heir, remove such a key. The number of keys is bounded: if [`MOST_STANDBYS`] standbys are
//! announced, further standbys wait without a key. Keys inform administrators and owners, and decide nothing
//! about writes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::cluster::{Answer, Cluster, Step, WhenFull};
use super::header::{HEADER, Header, standby_key, standby_of};
use super::owner::Owner;
use super::ownership::{BEAT_EVERY, DEAD_AFTER, LOOK_EVERY};
use super::watch::{Errors, Watch};
use super::{Standby, store_error};
use crate::Result;

/// Maximum number of servers that are announced.
const MOST_STANDBYS: usize = 32;

/// The announcement of this server.
pub(super) struct Announcement {
    server: String,
    count: u64,
    key: Option<String>,
    /// Time since the last renewal.
    passed: Duration,
    /// Keys of other servers, and for how long each key has been unchanged.
    others: BTreeMap<String, Duration>,
    errors: Errors,
}

impl Announcement {
    pub fn new(here: &Owner) -> Announcement {
        Announcement {
            server: here.text(),
            // The count differs from the last counts of an earlier process of the same name.
            count: here.first_term(),
            key: None,
            passed: BEAT_EVERY,
            others: BTreeMap::new(),
            errors: Errors::new(
                "this standby cannot announce itself, so the pool cannot be handed over to it",
            ),
        }
    }

    /// Called after each read of the header: renews the key each second, and removes the keys of servers that
    /// no longer wait.
    pub async fn renew(&mut self, cluster: &dyn Cluster, here: &Owner, seen: &Header, passed: Duration) {
        let others = seen.standbys.iter().filter(|key| standby_of(key) != Some(&self.server));
        let before = std::mem::take(&mut self.others);
        let age = |key: &String| before.get(key).map_or(Duration::ZERO, |age| *age + passed);
        self.others = others.map(|key| (key.clone(), age(key))).collect();
        self.passed += passed;
        if self.passed < BEAT_EVERY {
            return;
        }
        self.passed = Duration::ZERO;
        let is_dead = |(key, age): &(&String, &Duration)| **age >= DEAD_AFTER || has_ended(key, here);
        let mut obsolete: Vec<_> = self.others.iter().filter(is_dead).map(|(key, _)| key.clone()).collect();
        // Keys of an earlier process of this name are removed as well.
        obsolete.extend(seen.standbys.iter().filter(|key| standby_of(key) == Some(&self.server)).cloned());
        obsolete.extend(self.key.take());
        let mut steps = vec![Step::AssertExists, Step::RemoveKeys(obsolete)];
        if self.others.len() < MOST_STANDBYS {
            self.count += 1;
            let key = standby_key(self.count, &self.server);
            steps.push(Step::AddKeys(vec![key.clone()]));
            self.key = Some(key);
        }
        match cluster.operate(HEADER, steps, WhenFull::Proceed).await {
            Ok(()) => self.errors.end(),
            Err(e) => self.errors.report(cluster.now(), e),
        }
    }

    /// The keys to be removed when this server no longer waits.
    pub fn keys(&self) -> Vec<String> {
        self.key.iter().cloned().collect()
    }

    /// Begins to remove the key, without waiting for the result.
    pub fn withdraw(&self, cluster: &dyn Cluster) {
        if self.key.is_some() {
            let steps = vec![Step::AssertExists, Step::RemoveKeys(self.keys())];
            drop(cluster.operate(HEADER, steps, WhenFull::Proceed));
        }
    }
}

fn has_ended(key: &str, here: &Owner) -> bool {
    standby_of(key).and_then(Owner::parse).is_some_and(|owner| owner.has_ended(here))
}

/// The announced servers of a header, each observed until it is known whether it is alive.
pub(super) struct Survey {
    /// Keys that were in the first header and have been unchanged since.
    unknown: Vec<String>,
    /// Servers that have replaced their key.
    alive: Vec<Owner>,
    passed: Duration,
}

impl Survey {
    pub fn new(header: &Header) -> Survey {
        Survey::since(header.standbys.clone())
    }

    /// A survey that begins with these keys.
    fn since(keys: Vec<String>) -> Survey {
        Survey { unknown: keys, alive: Vec::new(), passed: Duration::ZERO }
    }

    /// Records what a read of the header has returned.
    pub fn note(&mut self, header: &Header, passed: Duration) {
        self.passed += passed;
        let renewed = header.standbys.iter().filter(|key| !self.unknown.contains(key));
        for owner in renewed.filter_map(|key| Owner::parse(standby_of(key)?)) {
            if !self.alive.contains(&owner) {
                self.alive.push(owner);
            }
        }
        self.unknown.retain(|key| header.standbys.contains(key));
    }

    /// Whether it is known of each server whether it is alive.
    pub fn is_complete(&self) -> bool {
        self.unknown.is_empty() || self.passed >= DEAD_AFTER
    }

    /// A server that is alive. `to` names a host, or a host and a process; `None` stands for any server.
    pub fn find(&self, to: Option<&str>) -> Option<&Owner> {
        self.alive.iter().find(|owner| to.is_none_or(|to| owner.is_called(to)))
    }

    pub fn standbys(&self) -> Vec<Standby> {
        let dead = self.unknown.iter().filter_map(|key| Owner::parse(standby_of(key)?));
        let dead = dead.filter(|owner| !self.alive.contains(owner)).map(|owner| (owner, false));
        let all = self.alive.iter().cloned().map(|owner| (owner, true)).chain(dead);
        all.map(|(owner, alive)| Standby { server: owner.to_string(), alive }).collect()
    }
}

/// The servers that wait for a pool, for its owner. Keeps the connection to the cluster open, but not the
/// ownership.
pub struct StandbyWatch {
    cluster: Arc<dyn Cluster>,
    /// The keys at the last read of the header.
    before: Option<Vec<String>>,
}

impl StandbyWatch {
    pub(super) fn new(cluster: Arc<dyn Cluster>) -> StandbyWatch {
        StandbyWatch { cluster, before: None }
    }

    /// The servers that wait. One that was announced at the last look, and has not renewed that, is not
    /// alive; so looks have to be at least [`DEAD_AFTER`] apart. `None` from the first one, which cannot
    /// distinguish them.
    ///
    /// # Errors
    /// The errors of the cluster.
    pub async fn look(&mut self) -> Result<Option<Vec<Standby>>> {
        let header = Header::read(&*self.cluster).await;
        let header = header.map_err(|e| store_error("reading the header of the pool", e))?;
        let found = self.before.take().map(|before| {
            let mut survey = Survey::since(before);
            survey.note(&header, DEAD_AFTER);
            survey.standbys()
        });
        self.before = Some(header.standbys);
        Ok(found)
    }
}

/// Searches for a living standby; `None` if none has this name. Removes the keys of dead servers.
pub(super) async fn find_heir(cluster: &dyn Cluster, to: Option<&str>) -> Answer<Option<Owner>> {
    let mut watch = Watch::new(Header::read(cluster).await?);
    let mut survey = Survey::new(&watch.seen);
    loop {
        if let Some(owner) = survey.find(to) {
            return Ok(Some(owner.clone()));
        }
        // A standby that has just begun to wait announces itself within a second.
        if survey.is_complete() && survey.passed > BEAT_EVERY + LOOK_EVERY {
            break;
        }
        watch.look(cluster, LOOK_EVERY).await?;
        survey.note(&watch.seen, watch.passed);
    }
    if !survey.unknown.is_empty() {
        let steps = vec![Step::AssertExists, Step::RemoveKeys(survey.unknown)];
        cluster.operate(HEADER, steps, WhenFull::Proceed).await?;
    }
    Ok(None)
}
