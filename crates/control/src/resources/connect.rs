//! `/volumes/{name}/connect`, `/targets/{name}/connect`: what a client needs in order to use them.

use forebay_api::{ConnectView, PortalsView, Protocol};
use forebay_engine::Role;
use forebay_frontend::targets::TargetError;
use serde::Serialize;

use super::run;
use super::targets::iqn;
use crate::access::{Right, may};
use crate::connect::{self, Disk, Places};
use crate::http::auth::Caller;
use crate::http::extract::{OfCluster, Param};
use crate::http::route::Route;
use crate::operations::{Changes, Client, Control, Disks, Operation, Reply, Result};

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get(
            "/volumes/{name}/connect",
            "Show what a client needs to use a volume, image or VOLUME@SNAPSHOT: addresses, options, commands",
            Right::Read,
            |c: Caller, Param(name), OfCluster(nodes)| run(c, ConnectDisk { name, nodes }),
        )
        .returns::<ConnectView>(),
        Route::get(
            "/targets/{name}/connect",
            "Show what an initiator needs to use a target: portals and commands",
            Right::ReadServer,
            |c: Caller, Param(name), OfCluster(nodes)| run(c, ConnectTarget { name, nodes }),
        )
        .returns::<ConnectView>(),
    ]
}

impl Reply for ConnectView {}

/// What a client needs to use a disk.
#[derive(Serialize)]
#[serde(transparent)]
struct Connected {
    view: ConnectView,
    /// The part for a client with a scope: targets, their initiators and the names of certificates concern
    /// the whole server.
    #[serde(skip)]
    of_scope: ConnectView,
}

impl Reply for Connected {
    async fn visible_to(self, client: &Client<'_>) -> Self {
        match may(client.principal, Right::ReadServer, None) {
            true => self,
            false => Connected { view: self.of_scope, of_scope: ConnectView::default() },
        }
    }
}

/// Where clients connect: as the node of the cluster states, or to this server.
fn places(nodes: Option<&Vec<PortalsView>>, control: &Control) -> Places {
    nodes.map_or_else(|| Places::of_server(control.info()), |nodes| Places::of_cluster(nodes))
}

struct ConnectDisk {
    name: String,
    nodes: Option<Vec<PortalsView>>,
}

impl Operation for ConnectDisk {
    type Reply = Connected;
    const CHANGE: Changes<Self> = None;
    const DISKS: Disks<Self> = |op| vec![op.name.clone()];

    async fn execute(&self, control: &Control, _: &str) -> Result<Connected> {
        let is_read_only = control.pool().disk(&self.name)?.role != Role::Volume;
        let (server, targets) = (places(self.nodes.as_ref(), control), control.targets().snapshot());
        let disk = Disk { name: &self.name, is_read_only, shows_certificates: true };
        let view = connect::to_disk(disk, &server, &targets);
        let mut of_scope = connect::to_disk(Disk { shows_certificates: false, ..disk }, &server, &targets);
        of_scope.ways.retain(|way| way.client.protocol() == Protocol::Nbd);
        of_scope.missing.retain(|missing| missing.protocol == Protocol::Nbd);
        Ok(Connected { view, of_scope })
    }
}

struct ConnectTarget {
    name: String,
    nodes: Option<Vec<PortalsView>>,
}

impl Operation for ConnectTarget {
    type Reply = ConnectView;
    const CHANGE: Changes<Self> = None;
    const DISKS: Disks<Self> = |_| Vec::new();

    async fn execute(&self, control: &Control, _: &str) -> Result<ConnectView> {
        let name = iqn(&self.name)?;
        let target = control.targets().get(&name).ok_or(TargetError::NoTarget(name))?;
        Ok(connect::to_target(&places(self.nodes.as_ref(), control), &target))
    }
}
