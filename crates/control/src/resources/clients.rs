//! `/volumes/{name}/clients`: the clients of a disk, for administrators.

use std::time::{Duration, Instant};

use forebay_api::{DiskClientView, DiskClientsView, ErrorKind, Protocol};
use forebay_text::quoted;

use super::run;
use crate::access::Right;
use crate::http::auth::Caller;
use crate::http::extract::Param;
use crate::http::route::Route;
use crate::operations::{Change, Changes, Control, ControlError, Disks, Done, Operation, Reply, Result};

/// Time limit for the end of a client: longer than the front ends need to cut it.
const END_TIMEOUT: Duration = Duration::from_secs(10);
const END_INTERVAL: Duration = Duration::from_millis(5);
/// Maximum number of clients that an error names.
const MAX_NAMES: usize = 3;
/// Maximum length of the number of a client in an error, in characters.
pub(super) const MAX_ID: usize = 20;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get(
            "/volumes/{name}/clients",
            "List the clients of a volume, image or VOLUME@SNAPSHOT: NBD connections, and iSCSI sessions",
            Right::Read,
            |c: Caller, Param(name)| run(c, ListClients { name }),
        )
        .returns::<DiskClientsView>(),
        Route::delete(
            "/volumes/{name}/clients/{client}",
            "Disconnect an NBD client of a volume, image or VOLUME@SNAPSHOT",
            Right::Operate,
            |c: Caller, Param((name, client))| run(c, DisconnectClient { name, client }),
        ),
    ]
}

impl Reply for DiskClientsView {}

struct ListClients {
    name: String,
}

impl Operation for ListClients {
    type Reply = DiskClientsView;
    const CHANGE: Changes<Self> = None;
    const DISKS: Disks<Self> = |op| vec![op.name.clone()];

    async fn execute(&self, control: &Control, _: &str) -> Result<DiskClientsView> {
        control.pool().identity(&self.name)?;
        Ok(DiskClientsView(clients_of(control, &self.name)))
    }
}

/// The clients of a disk: NBD connections and iSCSI sessions that have it open.
fn clients_of(control: &Control, disk: &str) -> Vec<DiskClientView> {
    let mut nbd = control.observed().nbd.list(|client| client.disk == disk);
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
    nbd.chain(initiators_of(control, disk)).collect()
}

impl Control {
    /// Names the clients in the error of an operation that failed because clients have the disk open.
    pub(crate) fn with_clients(&self, error: ControlError) -> ControlError {
        let Some(disk) = &error.used_disk else { return error };
        let clients = clients_of(self, disk);
        if clients.is_empty() {
            return error;
        }
        let name =
            |client: &DiskClientView| client.initiator.clone().unwrap_or_else(|| client.client.clone());
        let names: Vec<_> = clients.iter().take(MAX_NAMES).map(name).collect();
        let more = if clients.len() > MAX_NAMES { ", …" } else { "" };
        ControlError { message: format!("{}: {}{more}", error.message, names.join(", ")), ..error }
    }
}

/// Ends an NBD connection to a disk, and waits for that. An iSCSI session is refused: it can use other disks
/// too.
struct DisconnectClient {
    name: String,
    client: String,
}

impl Operation for DisconnectClient {
    type Reply = Done;
    const CHANGE: Changes<Self> = Some(|op| {
        let object = format_args!("client {} of {}", quoted(&op.client), quoted(&op.name));
        Change::new("disconnect", "disconnected", object)
    });
    const EVENT: Option<&str> = Some("client_disconnected");
    const DISKS: Disks<Self> = |op| vec![op.name.clone()];

    fn event_disk(&self) -> Option<String> {
        Some(self.name.clone())
    }

    async fn execute(&self, control: &Control, _: &str) -> Result<Done> {
        let (disk, id) = (self.name.as_str(), self.client.as_str());
        control.pool().identity(disk)?;
        let clients = control.observed().nbd;
        let number: u64 = id.parse().unwrap_or(0);
        let connection = || {
            let all = clients.list(|client| client.id != 0 && client.id == number && client.disk == disk);
            all.into_iter().next()
        };
        let Some(found) = connection() else {
            return Err(match initiators_of(control, disk).into_iter().find(|client| client.id == id) {
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
}

/// The iSCSI sessions and NVMe controllers that have a disk open.
fn initiators_of(control: &Control, disk: &str) -> Vec<DiskClientView> {
    let (mut found, mut sessions) = (Vec::new(), control.targets().sessions_by_target());
    for target in control.targets().snapshot().values() {
        let Some(lun) = target.lun_of(disk) else { continue };
        for session in sessions.remove(&target.name).unwrap_or_default() {
            if session.luns.upgrade().is_some_and(|luns| luns.has_open(lun)) {
                found.push(DiskClientView {
                    id: session.id.to_string(),
                    protocol: if session.initiator.is_nqn() { Protocol::Nvme } else { Protocol::Iscsi },
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

/// Waits until a client that has to end is gone.
pub(super) async fn ended(is_gone: impl Fn() -> bool) -> Result<Done> {
    let begun = Instant::now();
    while !is_gone() {
        if begun.elapsed() > END_TIMEOUT {
            let message = "its requests in progress have not ended; the connection is closed when they have";
            return Err(ControlError::new(ErrorKind::BadState, message));
        }
        tokio::time::sleep(END_INTERVAL).await;
    }
    Ok(Done {})
}
