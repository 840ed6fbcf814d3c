//! The directory of names: in which shard a volume, an image or an iSCSI target is.
//!
//! ```text
//! object names.NN    entry n.NAME         the shard of the name, and whether an operation is in progress
//!                    entry p.SHARD.NAME   exists while an operation on the name is in progress
//! ```
//!
//! A name is in the object that its hash selects. The two entries of a name are changed together, by one
//! operation.
//!
//! Targets have separate names: the NAME of a target begins with `@` ([`of_target`]), as no name of a
//! disk does, so a disk and a target never compete for a name. All statements below about disks apply to
//! targets as well.
//!
//! **The directory decides uniqueness, the shard decides existence.** A shard creates, renames or deletes a
//! disk only while the entry of its name is *pending* for this shard, in the present term of its owner:
//!
//! 1. *Begin*: the entry becomes pending. For a new name this requires that the name has no entry
//!    ([`Names::reserve`]); for an existing one, that the name is in this shard ([`Names::mark`]).
//! 2. The owner commits the change in the shard.
//! 3. *End*: the entry becomes present, or is removed, according to what the shard has ([`Names::end`]).
//!
//! A rename reserves the new name, marks the old one, commits, and ends both. Several disks are created in
//! one commit: before the commit all names are reserved, with one operation for the names of each object, and
//! after the commit they are ended.
//!
//! **Invariant.** No two shards have disks of the same name: a shard has a disk of a name only if the entry
//! of the name names the shard. When no operation is in progress, the shard has a disk of the name
//! exactly if the name has an entry of the shard.
//!
//! **After a crash.** The next owner of a shard finds the pending entries of the shard by their `p.` entries,
//! and settles each by one rule ([`Names::settle`]): the name is present if the shard has a disk of this
//! name, and is removed otherwise. The owner reads what the shard has after the fence of the takeover, so no
//! change of an earlier owner can still be committed.
//!
//! **Late operations of an earlier owner** have no effect, or have an effect that the next settling removes:
//!
//! | late operation | what it does |
//! |---|---|
//! | begin, of a name without an entry | leaves a pending entry of an earlier term; the shard never has the disk, so settling removes the entry |
//! | begin, of a name that is present in the shard | leaves a pending entry of an earlier term; the shard has the disk, so settling makes the entry present |
//! | end | requires the entry that its own begin has written, which contains the term. Settling first writes the new term into the entry |
//!
//! **Operations that are given up** by the present owner, such as one whose task is cancelled, leave a
//! pending entry of the present term. The owner has a list of its operations in progress ([`Pending`] is a
//! place in it), and settles entries of its term that are not in the list. The entry contains the number of
//! the operation, so an end that was given up has no effect after that. A place in the list has to be kept
//! until it is known whether the commit has taken effect.
//!
//! So the owner of a shard settles when it takes the shard over, and again from time to time. Until then such
//! an entry delays operations on its name, and hides nothing: a pending entry names the shard as a present
//! one does, and the shard decides whether the disk exists.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use forebay_store::rados::{Cluster, Entries, Errno, Step, Wanted, WhenFull};
use futures_util::future::join_all;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::entry::{decode, encode};
use crate::error::{ClusterError, Result};
use crate::hash::hash;

/// Number of objects of the directory. Operations on one object take place one after another.
const OBJECTS: u64 = 64;
/// The version of entries that this release writes, and the highest that it reads.
const VERSION: u32 = 1;

/// What a name is the name of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A volume.
    Volume,
    /// An image.
    Image,
    /// An iSCSI target.
    Target,
}

/// The character that begins the names of targets. No disk has it in its name, except between a volume and
/// its snapshot.
const TARGET_MARK: char = '@';

/// The name of a target in the directory.
pub fn of_target(target: &str) -> String {
    format!("{TARGET_MARK}{target}")
}

/// The target that has this name in the directory; `None` for the name of a disk.
pub fn target_of(name: &str) -> Option<&str> {
    name.strip_prefix(TARGET_MARK)
}

/// A name of the directory as administrators use it.
pub(crate) fn shown(name: &str) -> String {
    target_of(name).map_or_else(|| format!("'{name}'"), |target| format!("target {target}"))
}

/// The entry of a name, as it is stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    /// A release that does not know this version must not interpret the entry.
    version: u32,
    shard: u32,
    kind: Kind,
    /// The operation on the name that is in progress.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pending: Option<Operation>,
}

/// An operation in progress, as it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Operation {
    /// The term of the owner that has begun the operation.
    term: u64,
    /// Number of the operation among those of the term.
    number: u64,
}

/// The entry of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    /// The name.
    pub name: String,
    /// The shard that has the volume, the image or the target.
    pub shard: u32,
    /// What has the name.
    pub kind: Kind,
    /// An operation on the name is in progress, or was interrupted: only the shard decides whether the disk
    /// or the target exists.
    pub is_pending: bool,
}

/// An operation on a name that has begun. It has to be ended ([`Names::end`]), or to be kept until it is
/// known whether its commit has taken effect.
#[derive(Debug)]
#[must_use]
pub struct Pending {
    record: Record,
    place: Place,
}

impl Pending {
    /// The name.
    pub fn name(&self) -> &str {
        &self.place.name
    }
}

/// The names with operations in progress.
type InProgress = Arc<Mutex<BTreeSet<String>>>;

/// A place in the list of operations in progress.
#[derive(Debug)]
struct Place {
    name: String,
    all: InProgress,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.all.lock().remove(&self.name);
    }
}

/// What settling the entries of a shard has found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Settled {
    /// Names of disks that exist.
    pub present: u64,
    /// Names that were removed, because the shard has no disk of the name.
    pub removed: u64,
}

/// A change of the entry of a name.
struct Swap {
    name: String,
    /// The entry as it is stored; empty for a name without an entry.
    seen: Vec<u8>,
    /// The entry afterwards; `None` removes it.
    new: Option<Record>,
}

/// The directory of the names of a cluster, for one process.
#[derive(Clone)]
pub struct Names {
    cluster: Arc<dyn Cluster>,
    in_progress: InProgress,
    /// Number of the next operation.
    next: Arc<AtomicU64>,
}

fn object_of(name: &str) -> String {
    object(hash(name.as_bytes()) % OBJECTS)
}

fn object(number: u64) -> String {
    format!("names.{number:02}")
}

fn key_of(name: &str) -> String {
    format!("n.{name}")
}

fn pending_prefix(shard: u32) -> String {
    format!("p.{shard:08x}.")
}

fn pending_key(shard: u32, name: &str) -> String {
    pending_prefix(shard) + name
}

impl Names {
    /// The directory in the namespace of a cluster. All that this process does with names of its shards uses
    /// this value, or a copy of it.
    pub fn new(cluster: Arc<dyn Cluster>) -> Names {
        Names { cluster, in_progress: Arc::default(), next: Arc::default() }
    }

    /// A place in the list of operations in progress.
    fn begin(&self, name: &str) -> Result<Place> {
        match self.in_progress.lock().insert(name.to_owned()) {
            true => Ok(Place { name: name.to_owned(), all: self.in_progress.clone() }),
            false => Err(ClusterError::Unsettled(name.to_owned())),
        }
    }

    /// The operation that begins in this term.
    fn operation(&self, term: u64) -> Option<Operation> {
        Some(Operation { term, number: self.next.fetch_add(1, Relaxed) })
    }

    /// The entry of a name; `None` if the name is not in use.
    ///
    /// # Errors
    /// [`ClusterError::Unsupported`], [`ClusterError::Damaged`]; those of Ceph.
    pub async fn look_up(&self, name: &str) -> Result<Option<Name>> {
        let found = self.read(name).await?;
        Ok(found.map(|(record, _)| entry(name, &record)))
    }

    /// The entries of those of these names that are in use, by name.
    ///
    /// # Errors
    /// As [`Names::look_up`].
    pub async fn look_up_all(&self, names: &[&str]) -> Result<BTreeMap<String, Name>> {
        let mut objects: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for name in names {
            objects.entry(object_of(name)).or_default().push(name);
        }
        let reads =
            objects.iter().map(async |(object, names)| self.read_in(object, names.iter().copied()).await);
        let mut found = BTreeMap::new();
        for read in join_all(reads).await {
            found.extend(read?.into_iter().map(|(name, record, _)| (name.clone(), entry(&name, &record))));
        }
        Ok(found)
    }

    /// All names, in no order. Each of the [`OBJECTS`] objects is read as of one moment.
    ///
    /// # Errors
    /// As [`Names::look_up`].
    pub async fn list(&self) -> Result<Vec<Name>> {
        let mut all = Vec::new();
        for (object, entries) in self.scan("n.").await? {
            for (key, value) in entries {
                let name = key.strip_prefix("n.").unwrap_or(&key);
                all.push(entry(name, &decode(&object, &value, VERSION)?));
            }
        }
        Ok(all)
    }

    /// Begins to create disks of these names in a shard, whose owner has this term: of all of them, or of
    /// none.
    ///
    /// # Errors
    /// [`ClusterError::Exists`]; [`ClusterError::Unsettled`]; [`ClusterError::Lost`] if a later owner of the
    /// shard has begun an operation on one of the names; as [`Names::look_up`].
    pub async fn reserve(&self, names: &[&str], kind: Kind, shard: u32, term: u64) -> Result<Vec<Pending>> {
        let mut objects: BTreeMap<String, Vec<Pending>> = BTreeMap::new();
        for name in names {
            let place = self.begin(name)?;
            let record = Record { version: VERSION, shard, kind, pending: self.operation(term) };
            objects.entry(object_of(name)).or_default().push(Pending { record, place });
        }
        let all = objects.into_iter().map(async |(object, pending)| self.reserve_in(&object, pending).await);
        let (mut reserved, mut error) = (Vec::new(), None);
        for done in join_all(all).await {
            match done {
                Ok(pending) => reserved.extend(pending),
                Err(e) => error = error.or(Some(e)),
            }
        }
        let Some(error) = error else { return Ok(reserved) };
        // Nothing was committed. What is not ended now is settled later.
        let _ = self.end(reserved, false).await;
        Err(error)
    }

    /// Reserves names of one object.
    async fn reserve_in(&self, object: &str, pending: Vec<Pending>) -> Result<Vec<Pending>> {
        let swap = |one: &Pending| Swap {
            name: one.name().to_owned(),
            seen: Vec::new(),
            new: Some(one.record.clone()),
        };
        let swaps: Vec<_> = pending.iter().map(swap).collect();
        loop {
            if self.swap(object, &swaps).await? {
                return Ok(pending);
            }
            let names = pending.iter().map(Pending::name);
            // Without an entry, the entries that prevented it were removed since.
            if let Some((name, found, _)) = self.read_in(object, names).await?.into_iter().next() {
                let Pending { record: Record { shard, pending: own, .. }, .. } = &pending[0];
                return match found.pending {
                    Some(_) if found.shard == *shard => {
                        Err(interrupted(&name, &found, own.map_or(0, |own| own.term)))
                    }
                    _ => Err(ClusterError::Exists(name)),
                };
            }
        }
    }

    /// Begins to delete, or to rename, the disk of this name in a shard, whose owner has this term.
    ///
    /// # Errors
    /// [`ClusterError::Missing`]; [`ClusterError::Elsewhere`]; as [`Names::reserve`].
    pub async fn mark(&self, name: &str, shard: u32, term: u64) -> Result<Pending> {
        let place = self.begin(name)?;
        loop {
            let Some((found, stored)) = self.read(name).await? else {
                return Err(ClusterError::Missing(name.to_owned()));
            };
            if found.shard != shard {
                return Err(ClusterError::Elsewhere { name: name.to_owned(), shard: found.shard });
            }
            if found.pending.is_some() {
                return Err(interrupted(name, &found, term));
            }
            let record = Record { pending: self.operation(term), ..found };
            let swap = Swap { name: name.to_owned(), seen: stored, new: Some(record.clone()) };
            if self.swap(&object_of(name), &[swap]).await? {
                return Ok(Pending { record, place });
            }
        }
    }

    /// Ends operations on names: the names are present, or are removed.
    ///
    /// `exists` must be what the shard has after the commit. If the caller does not know whether the commit
    /// took effect, it does not end the operations; the next owner settles them.
    ///
    /// # Errors
    /// [`ClusterError::Lost`] if a later owner of the shard has settled an operation; those of Ceph.
    pub async fn end(&self, pending: Vec<Pending>, exists: bool) -> Result<()> {
        let mut objects: BTreeMap<String, Vec<Swap>> = BTreeMap::new();
        for Pending { record, place } in &pending {
            let new = exists.then(|| Record { pending: None, ..record.clone() });
            let swap = Swap { name: place.name.clone(), seen: encode(record), new };
            objects.entry(object_of(&place.name)).or_default().push(swap);
        }
        let all = objects.iter().map(async |(object, swaps)| self.swap(object, swaps).await);
        let mut have_ended = true;
        for has_ended in join_all(all).await {
            have_ended &= has_ended?;
        }
        match pending.first() {
            Some(first) if !have_ended => Err(ClusterError::Lost(first.record.shard)),
            _ => Ok(()),
        }
    }

    /// The operations on names of a shard that are in progress, or were interrupted, with the terms of their
    /// owners.
    ///
    /// # Errors
    /// As [`Names::look_up`].
    pub async fn pending(&self, shard: u32) -> Result<Vec<Name>> {
        let prefix = pending_prefix(shard);
        let mut names = Vec::new();
        for (_, entries) in self.scan(&prefix).await? {
            let of_keys = entries.iter().filter_map(|(key, _)| key.strip_prefix(&prefix));
            for name in of_keys {
                names.extend(
                    self.look_up(name).await?.filter(|found| found.shard == shard && found.is_pending),
                );
            }
        }
        Ok(names)
    }

    /// Settles an operation that an earlier owner of the shard has begun, or that this one has given up.
    /// `exists` returns whether the shard has a disk of this name; the present owner answers it, whose term
    /// is `term`. `None` if there is no such operation any more.
    ///
    /// # Errors
    /// [`ClusterError::Lost`]; as [`Names::look_up`]; those of `exists`.
    pub async fn settle(
        &self,
        name: &str,
        shard: u32,
        term: u64,
        exists: impl AsyncFnOnce(&str) -> Result<bool>,
    ) -> Result<Option<bool>> {
        // An operation in progress ends without help.
        let Ok(place) = self.begin(name) else { return Ok(None) };
        let record = loop {
            let Some((found, stored)) = self.read(name).await? else { return Ok(None) };
            match found.pending {
                Some(begun) if found.shard == shard && begun.term <= term => {}
                Some(_) if found.shard == shard => return Err(ClusterError::Lost(shard)),
                // The operation has ended.
                _ => return Ok(None),
            }
            // From now on no end of the former operation takes effect.
            let record = Record { pending: self.operation(term), ..found };
            let swap = Swap { name: name.to_owned(), seen: stored, new: Some(record.clone()) };
            if self.swap(&object_of(name), &[swap]).await? {
                break record;
            }
        };
        let exists = exists(name).await?;
        self.end(vec![Pending { record, place }], exists).await?;
        Ok(Some(exists))
    }

    /// The record of a name, and its value as it is stored.
    async fn read(&self, name: &str) -> Result<Option<(Record, Vec<u8>)>> {
        let found = self.read_in(&object_of(name), [name].into_iter()).await?;
        Ok(found.into_iter().next().map(|(_, record, stored)| (record, stored)))
    }

    /// The records of those names of one object that have one, and their values as they are stored.
    async fn read_in<'a>(
        &self,
        object: &str,
        names: impl Iterator<Item = &'a str>,
    ) -> Result<Vec<(String, Record, Vec<u8>)>> {
        let entries = match self.cluster.entries(object, Wanted::Keys(names.map(key_of).collect())).await {
            Ok(Entries { entries, .. }) => entries,
            Err(Errno(libc::ENOENT)) => return Ok(Vec::new()),
            Err(e) => return Err(e.into()),
        };
        let decoded = entries.into_iter().map(|(key, value)| {
            let name = key.strip_prefix("n.").unwrap_or(&key).to_owned();
            Ok((name, decode(object, &value, VERSION)?, value))
        });
        decoded.collect()
    }

    /// Changes entries of one object, if all of them are as they were seen. The `p.` entry of a name exists
    /// afterwards exactly if the new record is pending. Returns false if an entry was another one.
    async fn swap(&self, object: &str, swaps: &[Swap]) -> Result<bool> {
        let (mut required, mut entries, mut obsolete) = (Vec::new(), Vec::new(), Vec::new());
        for Swap { name, seen, new } in swaps {
            required.push(Step::RequireEntry(key_of(name), seen.clone()));
            if !seen.is_empty() {
                obsolete.push(pending_key(decode::<Record>(object, seen, VERSION)?.shard, name));
            }
            match new {
                None => obsolete.push(key_of(name)),
                Some(new) => {
                    entries.push((key_of(name), encode(new)));
                    entries.extend(new.pending.map(|_| (pending_key(new.shard, name), Vec::new())));
                }
            }
        }
        let are_new = swaps.iter().all(|swap| swap.seen.is_empty());
        required.extend([Step::RemoveKeys(obsolete), Step::SetEntries(entries)]);
        loop {
            // What is changed must be possible in a full pool too: a deletion begins here.
            match self.cluster.operate(object, required.clone(), WhenFull::Proceed).await {
                Ok(()) => return Ok(true),
                Err(Errno(libc::ECANCELED)) => return Ok(false),
                // The first names of this object: a comparison needs the object.
                Err(Errno(libc::ENOENT)) if are_new => {
                    match self.cluster.operate(object, vec![Step::Create], WhenFull::Proceed).await {
                        Ok(()) | Err(Errno(libc::EEXIST)) => {}
                        Err(e) => return Err(e.into()),
                    }
                }
                Err(Errno(libc::ENOENT)) => return Ok(false),
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// The entries of all objects whose keys begin with `prefix`, with their objects.
    async fn scan(&self, prefix: &str) -> Result<Vec<(String, Vec<(String, Vec<u8>)>)>> {
        let reads: Vec<_> = (0..OBJECTS)
            .map(|number| {
                (object(number), self.cluster.entries(&object(number), Wanted::Prefix(prefix.to_owned())))
            })
            .collect();
        let mut all = Vec::new();
        for (object, read) in reads {
            match read.await {
                Ok(Entries { entries, .. }) => all.push((object, entries)),
                Err(Errno(libc::ENOENT)) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(all)
    }
}

fn entry(name: &str, record: &Record) -> Name {
    let Record { shard, kind, pending, .. } = *record;
    Name { name: name.to_owned(), shard, kind, is_pending: pending.is_some() }
}

/// The error of an operation on a name whose entry is pending.
fn interrupted(name: &str, record: &Record, term: u64) -> ClusterError {
    match record.pending {
        Some(begun) if begun.term > term => ClusterError::Lost(record.shard),
        _ => ClusterError::Unsettled(name.to_owned()),
    }
}
