//! The iSCSI portals of a server while another server has the pool.
//!
//! They redirect logins, or serve sessions in the state standby, by the notice that the owner published. When
//! this server has opened the pool, its services take over the listeners and the sessions.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_frontend::iscsi::{
    self, Notice, PortGroups, Record, Settings, Standby, WhileStandby, portals_of,
};
use forebay_frontend::plane::{Bound, Handle, Plane};
use forebay_store::StoreError;
use forebay_store::rados::{NoticeBoard, PoolView};

use super::claim;
use crate::config::{IscsiPaths, RadosPool, ServeConfig};
use crate::serve::ServeError;
use crate::serve::host::abort_on_drop::AbortOnDrop;
use crate::serve::listen::sockets::specific;
use crate::serve::services::connection_limits;
use crate::serve::{Descriptors, HandedOver};

/// Interval between two looks at the pool.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Time after which an owner without a sign of life is regarded as dead. An owner gives a sign each second.
/// Logins then wait until there is an owner.
const SILENT_AFTER: Duration = Duration::from_millis(2500);
/// Time for commands in progress; all are answered at once.
const QUIESCE: Duration = Duration::from_millis(500);

/// The portals of a server that waits.
pub(in crate::serve) struct StandbyPortals {
    plane: Handle,
    follower: AbortOnDrop,
}

impl StandbyPortals {
    /// Begins to serve clients of these portals.
    pub fn start(
        config: &ServeConfig,
        descriptors: &Descriptors,
        pool: &RadosPool,
        groups: &Arc<PortGroups>,
        bound: Bound,
    ) -> Result<StandbyPortals, ServeError> {
        let paths = config.iscsi_paths.clone();
        let standby = Standby::new(paths.while_standby);
        let limits = connection_limits(config, descriptors);
        let mut plane = Plane::with_bound(limits, config.client_memory, bound);
        let settings = Settings {
            limits: config.iscsi_limits,
            chap_algorithms: &config.chap_algorithms,
            groups: groups.clone(),
            known: Arc::default(),
            addresses: &config.iscsi,
            portals: config.iscsi_paths.portals.as_deref(),
            is_shard: false,
        };
        let portals = specific(&iscsi::listen_as_standby(&mut plane, standby.clone(), &settings)?);
        let follower = Follower {
            standby,
            groups: groups.clone(),
            record: own_record(&paths, portals).encode(),
            paths,
            sign_of_life: None,
            notice: None,
            announced: false,
            in_conflict: false,
        };
        let follower = AbortOnDrop(tokio::spawn(follower.run(pool.clone())));
        Ok(StandbyPortals { plane: plane.run(1)?, follower })
    }

    /// Ends the standby, and returns its sessions.
    pub async fn hand_over(self) -> HandedOver {
        let StandbyPortals { plane, follower } = self;
        drop(follower);
        if let Err(busy) = plane.quiesce(QUIESCE).await {
            tracing::warn!(busy, "some initiators lose their connections: their commands are not finished");
        }
        let (connections, _) = plane.hand_over().await;
        HandedOver { connections, ..HandedOver::default() }
    }

    /// Ends all sessions with the standby.
    pub async fn shutdown(self) {
        self.plane.shutdown().await;
    }
}

/// What this server announces.
pub(in crate::serve) fn own_record(paths: &IscsiPaths, bound: Vec<SocketAddr>) -> Record {
    let portals = paths.portals.clone().unwrap_or(bound);
    Record { server: format!("{} {}", forebay_host::name::host_name(), std::process::id()), portals }
}

/// Follows the state of the pool.
struct Follower {
    standby: Arc<Standby>,
    groups: Arc<PortGroups>,
    paths: IscsiPaths,
    /// What this server announces in the state standby.
    record: String,
    /// The last sign of life of the owner, and when it was first seen; `None` if it was there at the
    /// beginning, and so may be old.
    sign_of_life: Option<(String, Option<Instant>)>,
    /// The last notice, and the portals in it.
    notice: Option<(Arc<Vec<u8>>, Vec<SocketAddr>)>,
    /// The announcement was written.
    announced: bool,
    /// Another server has the same target port group.
    in_conflict: bool,
}

impl Follower {
    async fn run(mut self, pool: RadosPool) {
        let (mut failure, mut board) = (None, None);
        loop {
            let failed = self.look(&pool, &mut board).await.err().map(|e| e.to_string());
            if failed.is_some() {
                self.standby.owner_is_unknown();
            }
            if let Some(error) = failed.as_ref().filter(|_| failed != failure) {
                tracing::warn!(error, "cannot read what the owner of the pool published");
            }
            failure = failed;
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    async fn look(&mut self, pool: &RadosPool, board: &mut Option<NoticeBoard>) -> Result<(), StoreError> {
        let board = match board {
            Some(board) => board,
            none => {
                let RadosPool { address, options } = pool.clone();
                none.insert(claim::blocking(move || NoticeBoard::connect(&address, &options)).await?)
            }
        };
        let view = board.read().await?;
        let is_alive = self.is_alive(&view.sign_of_life, Instant::now());
        self.learn(view.notice.as_ref());
        match &self.notice {
            Some((_, portals)) if is_alive && view.notice.is_some() => self.standby.owner_is(portals),
            _ => self.standby.owner_is_unknown(),
        }
        if self.paths.while_standby == WhileStandby::Alua {
            self.groups.set_others(portals_of(&view.groups));
            self.announce(board, &view).await?;
        }
        Ok(())
    }

    /// Applies a notice if it is new. Without a notice, the last notice stays in effect: the owner changes.
    fn learn(&mut self, bytes: Option<&Arc<Vec<u8>>>) {
        let Some(bytes) = bytes else { return };
        if self.notice.as_ref().is_some_and(|(last, _)| last == bytes) {
            return;
        }
        let portals = match Notice::decode(bytes) {
            Ok(notice) => {
                let portals = notice.portals.clone();
                if notice.group == self.paths.group && self.paths.while_standby == WhileStandby::Alua {
                    self.refuse_sessions();
                } else {
                    self.groups.activate(notice.group);
                    self.in_conflict = false;
                    self.standby.learn(notice);
                }
                portals
            }
            Err(why) => {
                tracing::error!("cannot use what the owner of the pool published: {why}");
                self.standby.stop_serving();
                Vec::new()
            }
        };
        self.notice = Some((bytes.clone(), portals));
    }

    /// Announces this server to other servers.
    async fn announce(&mut self, board: &NoticeBoard, view: &PoolView) -> Result<(), StoreError> {
        let group = self.paths.group;
        let recorded = view.groups.iter().find(|(number, _)| *number == group);
        let is_own = recorded.is_some_and(|(_, text)| *text == self.record);
        if self.announced && !is_own {
            self.refuse_sessions();
        } else if !self.announced && !self.in_conflict {
            board.announce(group, &self.record).await?;
            self.announced = true;
        }
        Ok(())
    }

    /// Serves no sessions: initiators would take two servers for one.
    fn refuse_sessions(&mut self) {
        self.standby.stop_serving();
        if !std::mem::replace(&mut self.in_conflict, true) {
            let group = self.paths.group;
            tracing::error!(
                group,
                "another server of the pool has the same [iscsi] port_group: no sessions are served in standby"
            );
        }
    }

    /// Whether the owner has given a sign of life recently.
    fn is_alive(&mut self, sign: &str, now: Instant) -> bool {
        if sign.is_empty() {
            self.sign_of_life = None;
            return false;
        }
        match &self.sign_of_life {
            Some((last, since)) if last == sign => {
                since.is_some_and(|since| now.duration_since(since) < SILENT_AFTER)
            }
            before => {
                let since = before.is_some().then_some(now);
                self.sign_of_life = Some((sign.to_owned(), since));
                since.is_some()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn follower() -> Follower {
        let while_standby = WhileStandby::Alua;
        Follower {
            standby: Standby::new(while_standby),
            groups: Arc::new(PortGroups::new(2)),
            paths: IscsiPaths { portals: None, while_standby, group: 2 },
            record: "own".into(),
            sign_of_life: None,
            notice: None,
            announced: false,
            in_conflict: false,
        }
    }

    #[test]
    fn an_owner_is_alive_while_it_changes_its_sign() {
        let (mut follower, begun) = (follower(), Instant::now());
        assert!(!follower.is_alive("1 a", begun), "it may be old");
        assert!(!follower.is_alive("1 a", begun + LOOK_EVERY));
        let changed = begun + 2 * LOOK_EVERY;
        assert!(follower.is_alive("1 b", changed));
        assert!(follower.is_alive("1 b", changed + SILENT_AFTER - LOOK_EVERY));
        assert!(!follower.is_alive("1 b", changed + SILENT_AFTER));
        assert!(follower.is_alive("2 a", changed + SILENT_AFTER));
        assert!(!follower.is_alive("", changed + SILENT_AFTER), "it released the pool");
        assert!(!follower.is_alive("3 a", changed + SILENT_AFTER));
    }

    #[test]
    fn a_group_of_two_servers_is_detected() {
        let mut follower = follower();
        let notice = |group: u16| {
            let text = format!(r#"{{"version":1,"group":{group},"portals":[],"targets":[],"disks":{{}}}}"#);
            Arc::new(text.into_bytes())
        };
        follower.learn(Some(&notice(1)));
        assert!(!follower.in_conflict);
        follower.learn(Some(&notice(2)));
        assert!(follower.in_conflict);
        follower.learn(None);
        assert!(follower.in_conflict);
        follower.learn(Some(&notice(3)));
        assert!(!follower.in_conflict);
        follower.learn(Some(&Arc::new(b"of a later release".to_vec())));
        assert!(follower.notice.is_some_and(|(_, portals)| portals.is_empty()));
    }
}
