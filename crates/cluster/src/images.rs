//! The images of a cluster, and the shards that use them.
//!
//! ```text
//! object images    attribute next        the next segment number to be reserved, 16 hexadecimal digits
//!                  entry i.UUID          an image
//!                  entry r.UUID.SHARD    a registration: this shard may refer to segments of the image
//! ```
//!
//! An image has a *home*: the shard that has its name, and in which it was made. The home copies the image
//! into separate segments, whose numbers it has reserved here, and then makes it *live*. The segments do
//! not change from then on. Another shard can use the image without the home: it registers, and gets the root
//! of the image's map.
//!
//! **Invariant.** A shard has a disk, or a clone, that refers to a segment of an image only while the shard
//! is registered; and the segments exist as long as a shard is registered. So there are two rules:
//!
//! 1. The owner of a shard registers the shard **before** it commits the first reference. It removes the
//!    registration **after** it has committed the end of the last use, and a mark has found no reference
//!    ([`crate::owned_images`]).
//! 2. The segments are removed while the image is *deleting* and has no registration. Then the entry of the
//!    image is removed.
//!
//! **Why rule 2 suffices.** Each operation is one RADOS operation on one object, and compares the entries on
//! which it depends with what its author has read. To register requires the entry of the image as it was
//! read, when it was live. Each change of the state writes a higher *generation* into the entry. So no shard
//! is registered between the moment at which the image became deleting and the removal of its entry, unless
//! the image became live again in between. An owner that removes segments has read the entry of the deleting
//! image first, and then the registrations. No owner makes an image live again that has no registration
//! ([`Images::restore`]), so the segments are not in use from then on.
//!
//! **Late operations** of an owner that was paused, or that has lost its shard:
//!
//! | late operation | what it does |
//! |---|---|
//! | reserve | leaves an image in the state *publishing* with an earlier term; the present owner of the home removes it |
//! | make live | requires the entry that reserved the numbers, which the present owner of the home has removed or replaced; if not, the image becomes live, and the present owner adopts it or deletes it |
//! | write a segment | the number was reserved for this copy alone, so it is a leak, which is swept ([`Catalogue::has_segment`]) |
//! | register | leaves a registration of a shard that does not use the image; the present owner of the shard finds it, and removes it |
//! | unregister | requires the registration as its author has read it. An owner that uses the image again writes another registration first, since each contains the term and a separate number |
//! | change of the state | requires the entry of the image as its author has read it, with its generation |

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use forebay_store::rados::{Cluster, Entries, Errno, Step, Wanted, WhenFull, digits};
use serde::{Deserialize, Serialize};

use crate::entry::{self, encode};
use crate::error::{ClusterError, Result};

const OBJECT: &str = "images";
const NEXT: &str = "next";
/// The version of entries that this release writes, and the highest that it reads.
const VERSION: u32 = 1;
/// The first segment number of images. Pools have the lower numbers.
const FIRST: u64 = 1 << 31;
/// The segment numbers end here.
const END: u64 = 1 << 32;
/// Attempts of an operation whose entries other servers change at the same time.
const ATTEMPTS: usize = 64;

/// Identity of an image.
pub type Uuid = [u8; 16];

/// The state of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Its home copies it.
    Publishing,
    /// Shards can use it.
    Live,
    /// No further shard can use it.
    Deleting,
}

/// An image of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    version: u32,
    /// Name of the image.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
    /// Its deduplication domain.
    pub domain: u32,
    /// Its state.
    pub state: State,
    /// Number of the last change of the state.
    pub generation: u64,
    /// The shard that has the name of the image.
    pub home: u32,
    /// The term of the home's owner that has written the entry last.
    pub term: u64,
    /// The first of its segments.
    pub first: u32,
    /// Number of its segments; while it is publishing, number of segments that are reserved.
    pub count: u32,
    /// Bytes of its segments.
    #[serde(default)]
    pub bytes: u64,
    /// Root of its map, 24 hexadecimal digits; empty while it is publishing.
    #[serde(default)]
    pub root: String,
}

impl Image {
    /// The numbers of its segments.
    pub fn segments(&self) -> Range<u32> {
        self.first..self.first.saturating_add(self.count)
    }

    /// The root of its map, as bytes of a block reference.
    pub fn root(&self) -> Option<[u8; 12]> {
        from_hex(&self.root)
    }
}

/// What a shard does with an image for which it is registered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Use {
    /// It can have clones of the image.
    Attached,
    /// It has no clones of the image, and can get none; other disks may refer to segments.
    Detached,
}

/// Why a shard does not detach an image that is to be deleted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The generation of the image for which the shard was asked.
    pub generation: u64,
    /// Number of clones that the shard has of the image.
    pub clones: u64,
    /// Name of a clone.
    pub example: String,
}

/// A registration of a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registration {
    version: u32,
    /// The term of the owner that has written it.
    pub term: u64,
    /// Number of this change among the changes that the process has written.
    number: u64,
    /// What the shard does with the image.
    pub used: Use,
    /// Why it does not detach the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Refusal>,
}

/// An entry as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen<T> {
    /// What the entry contains.
    pub value: T,
    stored: Vec<u8>,
}

/// The images and registrations.
#[derive(Debug, Clone, Default)]
pub struct Catalogue {
    /// The images.
    pub images: BTreeMap<Uuid, Seen<Image>>,
    /// The registrations by image and shard.
    pub registrations: BTreeMap<(Uuid, u32), Seen<Registration>>,
}

impl Catalogue {
    /// The shards that are registered for an image.
    pub fn users(&self, uuid: Uuid) -> impl Iterator<Item = (u32, &Seen<Registration>)> {
        let all = self.registrations.range((uuid, 0)..=(uuid, u32::MAX));
        all.map(|((_, shard), seen)| (*shard, seen))
    }

    /// Whether an image has a segment of this number. If the segment was found before the catalogue was read,
    /// and no image has it, the copy to which it belongs was given up: its number was reserved before it was
    /// written, and is not reserved again.
    pub fn has_segment(&self, segment: u32) -> bool {
        self.images.values().any(|image| image.value.segments().contains(&segment))
    }
}

/// The images of a cluster, for one process.
pub struct Images {
    cluster: Arc<dyn Cluster>,
    /// Number of the next registration that this process writes.
    next: AtomicU64,
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let byte = |i: usize| u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..N).map(byte).collect();
    bytes?.try_into().ok().filter(|_| text.len() == 2 * N)
}

fn image_key(uuid: &Uuid) -> String {
    format!("i.{}", hex(uuid))
}

fn registration_key(uuid: &Uuid, shard: u32) -> String {
    format!("r.{}.{shard:08x}", hex(uuid))
}

fn damaged(reason: impl ToString) -> ClusterError {
    ClusterError::Damaged { object: OBJECT.to_owned(), reason: reason.to_string() }
}

fn decode<T: for<'a> Deserialize<'a>>(value: &[u8]) -> Result<Seen<T>> {
    Ok(Seen { value: entry::decode(OBJECT, value, VERSION)?, stored: value.to_vec() })
}

impl Images {
    /// The images in the namespace of a cluster.
    pub fn new(cluster: Arc<dyn Cluster>) -> Images {
        Images { cluster, next: AtomicU64::new(0) }
    }

    async fn entries(&self, wanted: Wanted) -> Result<Entries> {
        match self.cluster.entries(OBJECT, wanted).await {
            Ok(entries) => Ok(entries),
            Err(Errno(libc::ENOENT)) => Ok(Entries::default()),
            Err(e) => Err(e.into()),
        }
    }

    async fn read_images(&self) -> Result<BTreeMap<Uuid, Seen<Image>>> {
        let entries = self.entries(Wanted::Prefix("i.".to_owned())).await?.entries.into_iter();
        let image = |(key, value): (String, Vec<u8>)| {
            let uuid = key.strip_prefix("i.").and_then(from_hex).ok_or_else(|| damaged(&key))?;
            Ok((uuid, decode(&value)?))
        };
        entries.map(image).collect()
    }

    /// The live image of this name.
    ///
    /// # Errors
    /// As [`Images::read`].
    pub async fn live(&self, name: &str) -> Result<Option<(Uuid, Image)>> {
        let is_live = |image: &Image| image.state == State::Live && image.name == name;
        let all = self.read_images().await?.into_iter();
        Ok(all.map(|(uuid, seen)| (uuid, seen.value)).find(|(_, image)| is_live(image)))
    }

    /// Reads all images, and then all registrations. The images are read first, as the module documentation
    /// requires for the removal of segments.
    ///
    /// # Errors
    /// [`ClusterError::Unsupported`], [`ClusterError::Damaged`]; the errors of Ceph.
    pub async fn read(&self) -> Result<Catalogue> {
        let mut all = Catalogue { images: self.read_images().await?, ..Catalogue::default() };
        for (key, value) in self.entries(Wanted::Prefix("r.".to_owned())).await?.entries {
            let parsed = key.strip_prefix("r.").and_then(|key| key.split_once('.'));
            let parsed = parsed
                .and_then(|(uuid, shard)| Some((from_hex(uuid)?, u32::from_str_radix(shard, 16).ok()?)));
            all.registrations.insert(parsed.ok_or_else(|| damaged(&key))?, decode(&value)?);
        }
        Ok(all)
    }

    /// One image, and the registration of a shard for it.
    pub(crate) async fn look_up(
        &self,
        uuid: &Uuid,
        shard: u32,
    ) -> Result<(Option<Seen<Image>>, Option<Seen<Registration>>)> {
        let (image, registration) = (image_key(uuid), registration_key(uuid, shard));
        let wanted = Wanted::Keys(vec![image.clone(), registration.clone()]);
        let found: BTreeMap<_, _> = self.entries(wanted).await?.entries.into_iter().collect();
        let image = found.get(&image).map(|value| decode(value)).transpose()?;
        let registration = found.get(&registration).map(|value| decode(value)).transpose()?;
        Ok((image, registration))
    }

    /// Executes steps that compare what was read. Returns whether all was as it was read.
    async fn operate(&self, steps: Vec<Step>) -> Result<bool> {
        match self.cluster.operate(OBJECT, steps, WhenFull::Proceed).await {
            Ok(()) => Ok(true),
            Err(Errno(libc::ECANCELED | libc::ENOENT | libc::EEXIST)) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    fn registration(&self, term: u64, used: Use, refusal: Option<Refusal>) -> Registration {
        let number = self.next.fetch_add(1, Relaxed);
        Registration { version: VERSION, term, number, used, refusal }
    }

    /// Begins to publish an image: reserves `count` segment numbers.
    ///
    /// # Errors
    /// [`ClusterError::Exists`] if the image is in the catalogue; [`ClusterError::Refused`] if no numbers are
    /// left; the errors of Ceph.
    pub async fn reserve(
        &self,
        uuid: Uuid,
        (name, size, domain): (&str, u64, u32),
        count: u32,
        (home, term): (u32, u64),
    ) -> Result<Seen<Image>> {
        for _ in 0..ATTEMPTS {
            let found = self.entries(Wanted::Keys(vec![image_key(&uuid)])).await?;
            if !found.entries.is_empty() {
                return Err(ClusterError::Exists(name.to_owned()));
            }
            let stored = found.attribute(NEXT);
            let next = match stored.as_str() {
                "" => FIRST,
                text => u64::from_str_radix(text, 16).map_err(damaged)?,
            };
            let after = next + u64::from(count);
            let first = u32::try_from(next).ok().filter(|_| after <= END);
            let first = first.ok_or_else(|| {
                ClusterError::Refused("the cluster has no segment numbers left for images".to_owned())
            })?;
            let image = Image {
                version: VERSION,
                name: name.to_owned(),
                size,
                domain,
                state: State::Publishing,
                generation: 0,
                home,
                term,
                first,
                count,
                bytes: 0,
                root: String::new(),
            };
            let entry = encode(&image);
            if stored.is_empty() {
                // The first image: a comparison needs the object.
                match self.cluster.operate(OBJECT, vec![Step::Create], WhenFull::Proceed).await {
                    Ok(()) | Err(Errno(libc::EEXIST)) => {}
                    Err(e) => return Err(e.into()),
                }
            }
            let steps = vec![
                Step::RequireEntry(image_key(&uuid), Vec::new()),
                Step::Require(NEXT, stored.clone()),
                Step::Set(NEXT, digits(after)),
                Step::SetEntries(vec![(image_key(&uuid), entry.clone())]),
            ];
            if self.operate(steps).await? {
                return Ok(Seen { value: image, stored: entry });
            }
        }
        Err(ClusterError::Unsettled(name.to_owned()))
    }

    /// Replaces an image; `None` removes it. Returns what is stored now, or `None` if the entry has changed
    /// since it was read.
    async fn swap(
        &self,
        uuid: &Uuid,
        seen: &Seen<Image>,
        new: Image,
        more: Vec<Step>,
    ) -> Result<Option<Seen<Image>>> {
        let stored = encode(&new);
        let mut steps = vec![
            Step::RequireEntry(image_key(uuid), seen.stored.clone()),
            Step::SetEntries(vec![(image_key(uuid), stored.clone())]),
        ];
        steps.extend(more);
        Ok(self.operate(steps).await?.then_some(Seen { value: new, stored }))
    }

    /// Makes an image live whose segments are stored, and registers its home in the same operation. `None` if
    /// the entry has changed since it was read: another owner of the home has removed it.
    ///
    /// # Errors
    /// The errors of Ceph.
    pub async fn publish(
        &self,
        uuid: &Uuid,
        seen: &Seen<Image>,
        (root, count, bytes): ([u8; 12], u32, u64),
        term: u64,
    ) -> Result<Option<Seen<Image>>> {
        let registration = encode(&self.registration(term, Use::Attached, None));
        let key = registration_key(uuid, seen.value.home);
        let generation = seen.value.generation + 1;
        let new = Image {
            state: State::Live,
            generation,
            term,
            count,
            bytes,
            root: hex(&root),
            ..seen.value.clone()
        };
        self.swap(uuid, seen, new, vec![Step::SetEntries(vec![(key, registration)])]).await
    }

    /// Registers a shard as a user of an image: always with a new registration, so that no late removal of an
    /// earlier one takes effect. Returns the image.
    ///
    /// # Errors
    /// [`ClusterError::Missing`] if the image is not live; [`ClusterError::Lost`] if a later owner of the
    /// shard has registered; [`ClusterError::Unsettled`] if other servers change the entries all the time;
    /// those of Ceph.
    pub async fn register(&self, uuid: &Uuid, name: &str, shard: u32, term: u64) -> Result<Image> {
        for _ in 0..ATTEMPTS {
            let (image, registered) = self.look_up(uuid, shard).await?;
            let Some(image) = image.filter(|image| image.value.state == State::Live) else {
                return Err(ClusterError::Missing(name.to_owned()));
            };
            if registered.as_ref().is_some_and(|seen| seen.value.term > term) {
                return Err(ClusterError::Lost(shard));
            }
            let key = registration_key(uuid, shard);
            let steps = vec![
                Step::RequireEntry(image_key(uuid), image.stored.clone()),
                Step::RequireEntry(key.clone(), registered.map(|seen| seen.stored).unwrap_or_default()),
                Step::SetEntries(vec![(key, encode(&self.registration(term, Use::Attached, None)))]),
            ];
            if self.operate(steps).await? {
                return Ok(image.value);
            }
        }
        Err(ClusterError::Unsettled(name.to_owned()))
    }

    /// Replaces a registration by what its shard does with the image now. Returns whether it was as it was
    /// read.
    ///
    /// # Errors
    /// The errors of Ceph.
    pub async fn state_use(
        &self,
        uuid: &Uuid,
        shard: u32,
        seen: &Seen<Registration>,
        term: u64,
        (used, refusal): (Use, Option<Refusal>),
    ) -> Result<bool> {
        let key = registration_key(uuid, shard);
        let new = encode(&self.registration(term, used, refusal));
        self.operate(vec![
            Step::RequireEntry(key.clone(), seen.stored.clone()),
            Step::SetEntries(vec![(key, new)]),
        ])
        .await
    }

    /// Removes a registration. Returns whether it was as it was read.
    ///
    /// # Errors
    /// The errors of Ceph.
    pub async fn unregister(&self, uuid: &Uuid, shard: u32, seen: &Seen<Registration>) -> Result<bool> {
        let key = registration_key(uuid, shard);
        self.operate(vec![Step::RequireEntry(key.clone(), seen.stored.clone()), Step::RemoveKeys(vec![key])])
            .await
    }

    /// Begins to delete an image: no shard can register from then on. `None` if the entry has changed.
    ///
    /// # Errors
    /// The errors of Ceph.
    pub async fn begin_deletion(
        &self,
        uuid: &Uuid,
        seen: &Seen<Image>,
        term: u64,
    ) -> Result<Option<Seen<Image>>> {
        let generation = seen.value.generation + 1;
        let new = Image { state: State::Deleting, generation, term, ..seen.value.clone() };
        self.swap(uuid, seen, new, Vec::new()).await
    }

    /// Makes an image live again that is used nevertheless. `home` is the registration of its home, which has
    /// to exist: an image without registrations may have lost its segments. Returns whether both were as they
    /// were read.
    ///
    /// # Errors
    /// The errors of Ceph.
    pub async fn restore(
        &self,
        uuid: &Uuid,
        seen: &Seen<Image>,
        home: &Seen<Registration>,
        term: u64,
    ) -> Result<bool> {
        let generation = seen.value.generation + 1;
        let new = Image { state: State::Live, generation, term, ..seen.value.clone() };
        let is_registered = Step::RequireEntry(registration_key(uuid, seen.value.home), home.stored.clone());
        Ok(self.swap(uuid, seen, new, vec![is_registered]).await?.is_some())
    }

    /// Gives an image the name that it has in its home. Returns whether the entry was as it was read.
    ///
    /// # Errors
    /// The errors of Ceph.
    pub async fn rename(&self, uuid: &Uuid, seen: &Seen<Image>, name: &str) -> Result<bool> {
        let new = Image { name: name.to_owned(), ..seen.value.clone() };
        Ok(self.swap(uuid, seen, new, Vec::new()).await?.is_some())
    }

    /// Removes the entry of an image whose segments are removed. Returns whether it was as it was read.
    ///
    /// # Errors
    /// The errors of Ceph.
    pub async fn remove(&self, uuid: &Uuid, seen: &Seen<Image>) -> Result<bool> {
        let key = image_key(uuid);
        self.operate(vec![Step::RequireEntry(key.clone(), seen.stored.clone()), Step::RemoveKeys(vec![key])])
            .await
    }
}
