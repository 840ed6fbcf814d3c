//! The notice of a pool: what its owner publishes for servers that do not own it.
//!
//! ```text
//! object notice      attribute term      of the owner that wrote the bytes
//!                    attribute edition   term, number of the edition and length of the bytes
//!                    attribute group.N   what server N announces, for N from 1 to 16
//!                    bytes               the notice, which this crate does not interpret
//! ```
//!
//! **A notice can be out of date.** A notice is older than the state that it describes, and a server that
//! lost the pool can replace the notice until the next owner has published a notice. So no server uses a
//! notice to decide what a client may do with the contents of a disk; the owner decides this from the pool
//! itself. From the next owner's first edition on, writes of earlier terms have no effect.

use std::sync::Arc;

use super::cluster::{Answer, Cluster, Contents, Errno, Step, WhenFull};
use super::header::{Header, TERM, digits};
use super::librados::LibradosCluster;
use super::{RadosAddress, RadosOptions, RadosStore, store_error};
use crate::{BoxFuture, IoBuf, Result, StoreError};

const NOTICE: &str = "notice";
const EDITION: &str = "edition";
/// Attributes of the servers, indexed by the number of the server.
const GROUPS: [&str; MAX_GROUPS] = [
    "group.1", "group.2", "group.3", "group.4", "group.5", "group.6", "group.7", "group.8", "group.9",
    "group.10", "group.11", "group.12", "group.13", "group.14", "group.15", "group.16",
];
/// Number of servers that can announce; their numbers are below it.
pub const MAX_GROUPS: usize = 16;
/// Attempts to read a notice that is replaced at the same moment.
const ATTEMPTS: u32 = 5;
/// Maximum bytes of a notice.
pub const MAX_NOTICE: usize = 16 << 20;

/// The state of a pool, as servers see it that do not own the pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PoolView {
    /// The term of the owner, together with a value that changes while the owner is alive. Empty if the pool
    /// has no owner.
    pub sign_of_life: String,
    /// The bytes of the notice, if the present owner wrote it.
    pub notice: Option<Arc<Vec<u8>>>,
    /// What servers announce, each with the number of the server.
    pub groups: Vec<(u16, String)>,
}

/// A connection to the notice of a pool.
pub struct NoticeBoard {
    cluster: Arc<dyn Cluster>,
    /// The edition that was read last, with its bytes.
    last: Option<(String, Arc<Vec<u8>>)>,
}

impl NoticeBoard {
    /// Connects to the cluster. Blocks, for about 10 s if no monitor answers.
    ///
    /// # Errors
    /// As [`RadosStore::open`].
    pub fn connect(address: &RadosAddress, options: &RadosOptions) -> Result<NoticeBoard> {
        Ok(NoticeBoard { cluster: LibradosCluster::connect(address, options)?, last: None })
    }

    /// Connects to a simulated cluster.
    #[cfg(feature = "test-util")]
    pub fn simulated(cluster: Arc<super::SimulatedClient>) -> NoticeBoard {
        NoticeBoard { cluster, last: None }
    }

    /// Reads the state of the pool.
    ///
    /// # Errors
    /// The errors of the cluster; not if the pool or its notice is missing.
    pub async fn read(&mut self) -> Result<PoolView> {
        self.view().await.map_err(|e| store_error("reading the notice of the pool", e))
    }

    async fn view(&mut self) -> Answer<PoolView> {
        let header = match Header::read(&*self.cluster).await {
            Ok(header) => header,
            Err(Errno(libc::ENOENT)) => return Ok(PoolView::default()),
            Err(e) => return Err(e),
        };
        let term = digits(header.term);
        let mut view = PoolView::default();
        if !header.owner.is_empty() {
            view.sign_of_life = format!("{term} {}", header.beat);
        }
        let seen = match self.cluster.contents(NOTICE, 0).await {
            Ok(seen) => seen,
            Err(Errno(libc::ENOENT)) => return Ok(view),
            Err(e) => return Err(e),
        };
        view.groups = groups_in(&seen);
        let edition = seen.attribute(EDITION);
        if edition.split(' ').next() == Some(&term) {
            view.notice = self.edition(edition).await?;
        }
        Ok(view)
    }

    /// A board of the pool in this namespace.
    pub fn of(cluster: Arc<dyn Cluster>) -> NoticeBoard {
        NoticeBoard { cluster, last: None }
    }

    /// Reads the notice that an owner of the pool has published last, whether or not it is still the owner;
    /// `None` if none was published. One small read if the notice has not changed since the last call.
    ///
    /// # Errors
    /// As [`NoticeBoard::read`].
    pub async fn read_last(&mut self) -> Result<Option<Arc<Vec<u8>>>> {
        let read = async {
            for _ in 0..ATTEMPTS {
                let seen = match self.cluster.contents(NOTICE, 0).await {
                    Ok(seen) => seen,
                    Err(Errno(libc::ENOENT)) => return Ok(None),
                    Err(e) => return Err(e),
                };
                let edition = seen.attribute(EDITION);
                if edition.is_empty() {
                    return Ok(None);
                }
                if let Some(bytes) = self.edition(edition).await? {
                    return Ok(Some(bytes));
                }
            }
            Err(Errno(libc::EBUSY))
        };
        read.await.map_err(|e| store_error("reading the notice of the pool", e))
    }

    /// Reads what servers announce only.
    ///
    /// # Errors
    /// As [`NoticeBoard::read`].
    pub async fn read_groups(&self) -> Result<Vec<(u16, String)>> {
        match self.cluster.contents(NOTICE, 0).await {
            Ok(seen) => Ok(groups_in(&seen)),
            Err(Errno(libc::ENOENT)) => Ok(Vec::new()),
            Err(e) => Err(store_error("reading the notice of the pool", e)),
        }
    }

    /// The bytes of an edition; `None` if a newer edition has replaced it.
    async fn edition(&mut self, edition: String) -> Answer<Option<Arc<Vec<u8>>>> {
        if let Some((last, bytes)) = &self.last
            && *last == edition
        {
            return Ok(Some(bytes.clone()));
        }
        let len = edition.rsplit(' ').next().and_then(|len| len.parse().ok()).ok_or(Errno(libc::EUCLEAN))?;
        if len > MAX_NOTICE {
            return Err(Errno(libc::EFBIG));
        }
        let contents = self.cluster.contents(NOTICE, len).await?;
        if contents.attribute(EDITION) != edition || contents.bytes.len() != len {
            return Ok(None);
        }
        let bytes = Arc::new(contents.bytes);
        self.last = Some((edition, bytes.clone()));
        Ok(Some(bytes))
    }

    /// Announces to other servers `number`, from 1 to [`MAX_GROUPS`]. It stays when the
    /// server ends.
    ///
    /// # Errors
    /// The errors of the cluster.
    pub async fn announce(&self, number: u16, text: &str) -> Result<()> {
        announce(&*self.cluster, number, text).await
    }
}

fn groups_in(seen: &Contents) -> Vec<(u16, String)> {
    let groups = (1..).zip(GROUPS).map(|(number, name)| (number, seen.attribute(name)));
    groups.filter(|(_, text)| !text.is_empty()).collect()
}

async fn announce(cluster: &dyn Cluster, number: u16, text: &str) -> Result<()> {
    let name = number.checked_sub(1).and_then(|index| GROUPS.get(usize::from(index)));
    let name = name.ok_or_else(|| failed(Errno(libc::EINVAL)))?;
    let steps = vec![Step::Set(name, text.to_owned())];
    cluster.operate(NOTICE, steps, WhenFull::Proceed).await.map_err(failed)
}

fn failed(e: Errno) -> StoreError {
    store_error("writing the notice of the pool", e)
}

impl RadosStore {
    /// Publishes an edition of the notice. `edition` is higher than the number of this owner's last edition.
    ///
    /// # Errors
    /// [`StoreError::Fenced`] if a later owner has published an edition; `EFBIG` as [`StoreError::Io`]; the
    /// errors of the cluster.
    pub fn publish(&self, edition: u64, bytes: &[u8]) -> BoxFuture<'static, Result<()>> {
        let (cluster, term) = (self.shared.cluster.clone(), self.shared.term.clone());
        let (len, mut data) = (bytes.len(), IoBuf::from(bytes));
        Box::pin(async move {
            if len > MAX_NOTICE {
                return Err(failed(Errno(libc::EFBIG)));
            }
            // A comparison of attributes requires that the object exists.
            match cluster.operate(NOTICE, vec![Step::Create], WhenFull::Proceed).await {
                Ok(()) | Err(Errno(libc::EEXIST)) => {}
                Err(e) => return Err(failed(e)),
            }
            // Zeroes overwrite the end of a longer previous edition, which may contain secrets that were
            // removed.
            let before = cluster.len_of(NOTICE).await.map_err(failed)?.min(MAX_NOTICE as u64) as usize;
            data.resize(len.max(before));
            let steps = vec![
                Step::RequireAtMost(TERM, term.clone()),
                Step::Set(TERM, term.clone()),
                Step::Set(EDITION, format!("{term} {} {len}", digits(edition))),
                Step::Write(0, Arc::new(data)),
            ];
            cluster.operate(NOTICE, steps, WhenFull::Proceed).await.map_err(failed)
        })
    }

    /// The notice board, for the owner. It keeps the connection open, but not the ownership.
    pub fn notice_board(&self) -> NoticeBoard {
        NoticeBoard { cluster: self.shared.cluster.clone(), last: None }
    }
}
