//! `/volumes/{name}/connect`, `/targets/{name}/connect`: what a client needs in order to use them.

use forebay_api::{ConnectView, Protocol};
use forebay_engine::Role;
use forebay_frontend::targets::TargetError;

use super::run;
use super::targets::iqn;
use crate::access::{Right, may};
use crate::connect::{self, Disk};
use crate::http::auth::Caller;
use crate::http::extract::Param;
use crate::http::route::Route;
use crate::operations::{Changes, Client, Control, Disks, Operation, Reply, Result};

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get(
            "/volumes/{name}/connect",
            "Show what a client needs to use a volume, image or VOLUME@SNAPSHOT: addresses, options, commands",
            Right::Read,
            |c: Caller, Param(name)| run(c, ConnectDisk { name }),
        )
        .returns::<ConnectView>(),
        Route::get(
            "/targets/{name}/connect",
            "Show what an initiator needs to use a target: portals and commands",
            Right::ReadServer,
            |c: Caller, Param(name)| run(c, ConnectTarget { name }),
        )
        .returns::<ConnectView>(),
    ]
}

impl Reply for ConnectView {
    /// Targets and their initiators concern the whole server.
    async fn visible_to(mut self, client: &Client<'_>) -> Self {
        if !may(client.principal, Right::ReadServer, None) {
            self.ways.retain(|way| way.client.protocol() != Protocol::Iscsi);
            self.missing.retain(|missing| missing.protocol != Protocol::Iscsi);
        }
        self
    }
}

struct ConnectDisk {
    name: String,
}

impl Operation for ConnectDisk {
    type Reply = ConnectView;
    const CHANGE: Changes<Self> = None;
    const DISKS: Disks<Self> = |op| vec![op.name.clone()];

    async fn execute(&self, control: &Control, _: &str) -> Result<ConnectView> {
        let is_read_only = control.pool().disk(&self.name)?.role != Role::Volume;
        let disk = Disk { name: &self.name, is_read_only };
        Ok(connect::to_disk(disk, control.info(), &control.targets().snapshot()))
    }
}

struct ConnectTarget {
    name: String,
}

impl Operation for ConnectTarget {
    type Reply = ConnectView;
    const CHANGE: Changes<Self> = None;
    const DISKS: Disks<Self> = |_| Vec::new();

    async fn execute(&self, control: &Control, _: &str) -> Result<ConnectView> {
        let name = iqn(&self.name)?;
        let target = control.targets().get(&name).ok_or(TargetError::NoTarget(name))?;
        Ok(connect::to_target(control.info(), &target))
    }
}
