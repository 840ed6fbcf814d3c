//! The clients of a disk, for administrators.

use std::time::{Duration, Instant};

use forebay_api::{DiskClientView, DiskClientsView, ErrorKind, Protocol};
use forebay_frontend::targets::{IqnName, TargetError};

use super::{Control, ControlError, Reply, Result};

/// Time limit for the end of a client: longer than the front ends need to cut it.
const END_TIMEOUT: Duration = Duration::from_secs(10);
const END_INTERVAL: Duration = Duration::from_millis(5);
/// Longest number of a client in an error, in characters.
const MAX_ID: usize = 20;

impl Control {
    pub(super) fn list_clients(&self, name: &str) -> Result<Reply> {
        self.pool().identity(name)?;
        let mut nbd = self.observed().nbd.list(|client| client.disk == name);
        // In the order in which they connected, also after an upgrade.
        nbd.sort_by_key(|client| (client.since_ms, client.id));
        let nbd = nbd.into_iter().map(|it| DiskClientView {
            id: it.id.to_string(),
            protocol: Protocol::Nbd,
            client: it.client,
            initiator: None,
            target: None,
            read_only: it.read_only,
            since_ms: it.since_ms,
        });
        Ok(Reply::Clients(DiskClientsView(nbd.chain(self.initiators_of(name)).collect())))
    }

    fn initiators_of(&self, disk: &str) -> Vec<DiskClientView> {
        let (mut found, mut sessions) = (Vec::new(), self.targets().sessions_by_target());
        for target in self.targets().snapshot().values() {
            let Some(lun) = target.lun_of(disk) else { continue };
            for session in sessions.remove(&target.name).unwrap_or_default() {
                if target.admission(&session.initiator).is_some_and(|admission| admission.sees(lun)) {
                    found.push(DiskClientView {
                        id: session.id.to_string(),
                        protocol: Protocol::Iscsi,
                        client: session.address.to_string(),
                        initiator: Some(session.initiator.to_string()),
                        target: Some(target.name.to_string()),
                        read_only: target.luns.get(&lun).is_some_and(|lun| lun.read_only),
                        since_ms: session.since_ms,
                    });
                }
            }
        }
        found
    }

    /// Ends an NBD connection to a disk, and waits for that.
    ///
    /// # Errors
    /// The disk has no such client, or it is an iSCSI session, which can use other disks too.
    pub(super) async fn disconnect_client(&self, disk: &str, id: &str) -> Result<Reply> {
        self.pool().identity(disk)?;
        let clients = self.observed().nbd;
        let number: u64 = id.parse().unwrap_or(0);
        let connection = || {
            let all = clients.list(|client| client.id != 0 && client.id == number && client.disk == disk);
            all.into_iter().next()
        };
        let Some(found) = connection() else {
            return Err(match self.initiators_of(disk).into_iter().find(|client| client.id == id) {
                Some(DiskClientView { initiator: Some(initiator), target: Some(target), .. }) => {
                    ControlError::new(
                        ErrorKind::BadState,
                        format!(
                            "client {id} of '{disk}' is the session of {initiator} with all its LUNs: 'forebay target \
                             disconnect {target} {id}' ends it"
                        ),
                    )
                }
                _ => {
                    let shown: String = id.chars().take(MAX_ID).collect();
                    let message =
                        format!("'{disk}' has no client {shown}; 'forebay volume clients' lists them");
                    ControlError::new(ErrorKind::NotFound, message)
                }
            });
        };
        found.disconnect();
        ended(|| connection().is_none()).await
    }

    /// Ends a session at a target, and waits for that.
    ///
    /// # Errors
    /// There is no such target, or no such session.
    pub(super) async fn disconnect_session(&self, target: &str, id: &str) -> Result<Reply> {
        let name: IqnName = target.parse().map_err(TargetError::from)?;
        if self.targets().get(&name).is_none() {
            return Err(TargetError::NoTarget(name).into());
        }
        let number = id.parse().unwrap_or(0);
        let session =
            || self.targets().sessions(&name).into_iter().find(|found| found.id != 0 && found.id == number);
        let Some(found) = session() else {
            let shown: String = id.chars().take(MAX_ID).collect();
            let message = format!("target {name} has no session {shown}; 'forebay target show' lists them");
            return Err(ControlError::new(ErrorKind::NotFound, message));
        };
        found.end.send();
        ended(|| session().is_none()).await
    }
}

/// Waits until a client that has to end is gone.
async fn ended(is_gone: impl Fn() -> bool) -> Result<Reply> {
    let begun = Instant::now();
    while !is_gone() {
        if begun.elapsed() > END_TIMEOUT {
            let message = "its requests in progress have not ended; the connection is closed when they have";
            return Err(ControlError::new(ErrorKind::BadState, message));
        }
        tokio::time::sleep(END_INTERVAL).await;
    }
    Ok(Reply::Done {})
}
