//! The [`Notice`] that the owner of a pool in Ceph publishes for servers that wait for it.
//!
//! An edition is published when the targets change, and when a look at each interval finds another change,
//! such as of the size of a disk. A failure is repaired by the next look.
//!
//! The nodes of a cluster read the notices of its shards for their iSCSI portals. They do not announce
//! anything.

use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use forebay_engine::Pool;
use forebay_frontend::iscsi::{Notice, PortGroups, WhileStandby, portals_of};
use forebay_frontend::targets::ServedTargets;
use forebay_store::StoreError;
use forebay_store::rados::NoticeBoard;

use super::contract::Ownership;
use super::standby::own_record;
use crate::config::IscsiPaths;
use crate::serve::shard_process::own_shard;

/// Interval of looks for changes, and at what other servers announced.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Publishes for the owner of a pool.
pub(in crate::serve) struct Publisher {
    ownership: Weak<dyn Ownership>,
    pool: Weak<Pool>,
    targets: Arc<ServedTargets>,
    groups: Arc<PortGroups>,
    paths: IscsiPaths,
    portals: Vec<SocketAddr>,
    /// What this server announces for the time when it is in the state standby.
    record: String,
    /// The number of the last edition, and the edition that was published.
    edition: u64,
    published: Vec<u8>,
    announced: bool,
    /// The pool is a shard of a cluster.
    is_shard: bool,
}

impl Publisher {
    /// A publisher of this pool. `bound` are the specific addresses of the portals.
    pub fn new(
        ownership: Weak<dyn Ownership>,
        pool: &Arc<Pool>,
        targets: &Arc<ServedTargets>,
        groups: &Arc<PortGroups>,
        paths: &IscsiPaths,
        bound: Vec<SocketAddr>,
    ) -> Publisher {
        let is_shard = own_shard().is_some();
        // A node announces its own portals; those of the shard are where logins are redirected to.
        let record = match is_shard {
            true => own_record(&IscsiPaths { portals: None, ..paths.clone() }, bound),
            false => own_record(paths, bound),
        };
        if !is_shard && record.portals.is_empty() {
            tracing::info!("no portal is published for servers that wait for the pool: see [iscsi] portals");
        }
        Publisher {
            ownership,
            pool: Arc::downgrade(pool),
            targets: targets.clone(),
            groups: groups.clone(),
            paths: paths.clone(),
            portals: record.portals.clone(),
            record: record.encode(),
            edition: 0,
            published: Vec::new(),
            announced: false,
            is_shard,
        }
    }

    /// Publishes until the pool is closed or lost.
    pub async fn run(mut self) {
        let mut changed = self.targets.changed();
        let mut failure = None;
        loop {
            let change = *changed.borrow_and_update();
            match self.publish().await {
                Ok(true) => {
                    failure = None;
                    if self.is_shard {
                        self.targets.set_published(change);
                    }
                }
                Ok(false) | Err(StoreError::Fenced) => return,
                Err(e) => {
                    let error = Some(e.to_string());
                    if error != failure {
                        tracing::warn!(%e, "cannot publish the targets for servers that wait for the pool");
                    }
                    failure = error;
                }
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                // The sender is in `self`.
                _ = changed.changed() => {}
            }
        }
    }

    /// Publishes a new edition if anything has changed. False if the pool is closed.
    async fn publish(&mut self) -> Result<bool, StoreError> {
        let (published, board) = {
            let (Some(ownership), Some(pool)) = (self.ownership.upgrade(), self.pool.upgrade()) else {
                return Ok(false);
            };
            let Some(board) = ownership.notice_board() else { return Ok(false) };
            let notice = Notice::encode(self.paths.group, &self.portals, &self.targets, &pool);
            let published = (notice != self.published).then(|| {
                self.edition += 1;
                (ownership.publish(self.edition, &notice), notice)
            });
            // The store must not be kept open while the cluster does not answer.
            (published, board)
        };
        if let Some((done, notice)) = published {
            done.await?;
            self.published = notice;
        }
        if !self.is_shard {
            self.exchange(board).await?;
        }
        Ok(true)
    }

    /// Learns of other servers, and announces this server for the time when it does not have the pool.
    async fn exchange(&mut self, board: NoticeBoard) -> Result<(), StoreError> {
        let groups = board.read_groups().await?;
        self.groups.set_others(portals_of(&groups));
        if self.paths.while_standby != WhileStandby::Alua {
            return Ok(());
        }
        let group = self.paths.group;
        let recorded = groups.iter().find(|(number, _)| *number == group);
        if recorded.is_none_or(|(_, text)| *text != self.record) {
            if self.announced {
                tracing::error!(group, "another server of the pool has the same [iscsi] port_group");
            }
            board.announce(group, &self.record).await?;
            self.announced = true;
        }
        Ok(())
    }
}
