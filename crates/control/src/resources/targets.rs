//! `/targets`: iSCSI targets, their initiator ACLs and sessions. No response contains a secret.

use forebay_api::{self as api, CreateTarget, ErrorKind, InitiatorView, SessionView, TargetView};
use forebay_frontend::targets::{Chap, DhChapKey, Initiator, IqnName, SessionInfo, Target, TargetError};
use forebay_text::{Secret, quoted};

use super::clients::{MAX_ID, ended};
use super::luns::lun_view;
use super::{create, list, run};
use crate::access::Right;
use crate::http::auth::Caller;
use crate::http::extract::{Body, Force, Param};
use crate::http::list::{ListQuery, PAGE};
use crate::http::route::{QueryParameter, Route};
use crate::operations::{Change, Changes, Control, ControlError, Disks, Done, Operation, Reply, Result};
use crate::view::View;

/// The query of removals.
const FORCE: &[QueryParameter] = &[QueryParameter {
    name: "force",
    about: "Also if initiators are connected",
    schema: r#"{"type": "boolean", "default": false}"#,
}];

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::get("/targets", "List all targets", Right::ReadServer, |c: Caller, q: ListQuery| {
            list(c, q, ListTargets, |target| &target.name)
        })
        .lists::<TargetView>()
        .with_query(PAGE),
        Route::post(
            "/targets",
            "Create a target; unless it is open, it admits only initiators with an ACL entry",
            Right::Administer,
            |c: Caller, Body(b): Body<CreateTarget>| create(c, b),
        )
        .takes::<CreateTarget>()
        .returns::<TargetView>()
        .creates(),
        Route::delete(
            "/targets",
            "Remove all targets, even if the target table cannot be read",
            Right::Administer,
            |c: Caller, Force(force)| run(c, RemoveTargets { force }),
        )
        .with_query(FORCE),
        Route::get(
            "/targets/{name}",
            "Show a target: LUNs, initiator ACL, sessions",
            Right::ReadServer,
            |c: Caller, Param(name)| run(c, ShowTarget { name }),
        )
        .returns::<TargetView>(),
        Route::delete(
            "/targets/{name}",
            "Remove a target; with `?force=true` even if it has sessions",
            Right::Administer,
            |c: Caller, Param(name), Force(force)| run(c, RemoveTarget { name, force }),
        )
        .with_query(FORCE),
        Route::delete(
            "/targets/{name}/sessions/{session}",
            "Disconnect an initiator: end one of its sessions",
            Right::Administer,
            |c: Caller, Param((target, session))| run(c, DisconnectSession { target, session }),
        ),
    ]
}

pub(super) fn initiator_routes() -> Vec<Route> {
    vec![
        Route::put(
            "/targets/{name}/initiators/{initiator}",
            "Add or update an initiator's ACL entry",
            Right::Administer,
            |c: Caller, Param((target, initiator)), Body(allowed): Body<api::AllowInitiator>| {
                run(c, AllowInitiator { target, initiator, allowed })
            },
        )
        .takes::<api::AllowInitiator>()
        .returns::<TargetView>(),
        Route::delete(
            "/targets/{name}/initiators/{initiator}",
            "Remove an initiator's ACL entry",
            Right::Administer,
            |c: Caller, Param((target, initiator))| run(c, DenyInitiator { target, initiator }),
        )
        .returns::<TargetView>(),
    ]
}

impl Reply for TargetView {}

impl Reply for Vec<TargetView> {}

struct ListTargets;

impl Operation for ListTargets {
    type Reply = Vec<TargetView>;
    const CHANGE: Changes<Self> = None;
    const DISKS: Disks<Self> = |_| Vec::new();

    async fn execute(&self, control: &Control, _: &str) -> Result<Vec<TargetView>> {
        control.targets().check_readable().await?;
        let all = control.targets().snapshot();
        let mut sessions = control.targets().sessions_by_target();
        let views = all.values().map(|target| {
            let own = sessions.remove(&target.name).unwrap_or_default();
            target_view(control, target, own)
        });
        Ok(views.collect())
    }
}

struct ShowTarget {
    name: String,
}

impl Operation for ShowTarget {
    type Reply = TargetView;
    const CHANGE: Changes<Self> = None;
    const DISKS: Disks<Self> = |_| Vec::new();

    async fn execute(&self, control: &Control, _: &str) -> Result<TargetView> {
        target(control, &self.name).await
    }
}

impl Operation for CreateTarget {
    type Reply = TargetView;
    const CHANGE: Changes<Self> = Some(|op| {
        let open = if op.open { ", open to every initiator" } else { "" };
        let users = [users_text("CHAP user", &op.chap), users_text("mutual CHAP user", &op.mutual)].concat();
        let users = users + key_text(&op.dhchap_key);
        Change::create(format_args!("target {}{open}{users}", quoted(&op.name)))
    });
    const DISKS: Disks<Self> = |op| op.disk.iter().cloned().collect();

    async fn execute(&self, control: &Control, _: &str) -> Result<TargetView> {
        let name = iqn(&self.name)?;
        if let Some(disk) = &self.disk {
            // A cluster has put the target into the shard of the disk.
            control.pool().identity(disk)?;
        }
        let new = Target {
            name: name.clone(),
            number: 0,
            open: self.open,
            chap: self.chap.clone().map(credentials),
            mutual: self.mutual.clone().map(credentials),
            dhchap: self.dhchap_key.clone().map(DhChapKey::new),
            luns: Default::default(),
            initiators: Vec::new(),
        };
        let created = async { Ok(control.targets().create(new).await?) };
        let created = control.create_named_target(&name, created).await?;
        Ok(target_view(control, &created, Vec::new()))
    }
}

struct RemoveTarget {
    name: String,
    force: bool,
}

impl Operation for RemoveTarget {
    type Reply = Done;
    const CHANGE: Changes<Self> =
        Some(|op| Change::remove(format_args!("target {}{}", quoted(&op.name), forced(op.force))));
    const DISKS: Disks<Self> = |_| Vec::new();

    fn revokes_at(&self, target: &IqnName) -> bool {
        is_name_of(&self.name, target)
    }

    async fn execute(&self, control: &Control, _: &str) -> Result<Done> {
        let name = iqn(&self.name)?;
        let removed = async { Ok(control.targets().remove(&name, self.force).await?) };
        control.remove_named_target(Some(&name), removed).await?;
        Ok(Done {})
    }
}

struct RemoveTargets {
    force: bool,
}

impl Operation for RemoveTargets {
    type Reply = Done;
    const CHANGE: Changes<Self> = Some(|op| Change::remove(format_args!("all targets{}", forced(op.force))));
    const DISKS: Disks<Self> = |_| Vec::new();

    fn revokes_at(&self, _: &IqnName) -> bool {
        true
    }

    async fn execute(&self, control: &Control, _: &str) -> Result<Done> {
        let removed = async { Ok(control.targets().remove_all(self.force).await?) };
        control.remove_named_target(None, removed).await?;
        Ok(Done {})
    }
}

/// Ends a session, and waits until it has ended.
struct DisconnectSession {
    target: String,
    session: String,
}

impl Operation for DisconnectSession {
    type Reply = Done;
    const CHANGE: Changes<Self> = Some(|op| {
        let object = format_args!("session {} of target {}", quoted(&op.session), quoted(&op.target));
        Change::new("end", "ended", object)
    });
    const DISKS: Disks<Self> = |_| Vec::new();

    async fn execute(&self, control: &Control, _: &str) -> Result<Done> {
        let name = iqn(&self.target)?;
        if control.targets().get(&name).is_none() {
            return Err(TargetError::NoTarget(name).into());
        }
        let number = self.session.parse().unwrap_or(0);
        let session = || {
            control.targets().sessions(&name).into_iter().find(|found| found.id != 0 && found.id == number)
        };
        let Some(found) = session() else {
            let shown: String = self.session.chars().take(MAX_ID).collect();
            let message = format!("target {name} has no session {shown}; 'forebay target show' lists them");
            return Err(ControlError::new(ErrorKind::NotFound, message));
        };
        found.end.send();
        ended(|| session().is_none()).await
    }
}

struct AllowInitiator {
    target: String,
    initiator: String,
    allowed: api::AllowInitiator,
}

impl Operation for AllowInitiator {
    type Reply = TargetView;
    const CHANGE: Changes<Self> = Some(|op| {
        let api::AllowInitiator { chap, dhchap_key, luns } = &op.allowed;
        let luns = luns.as_ref().map(|luns| format!(", LUNs {luns:?}")).unwrap_or_default();
        let (initiator, target) = (quoted(&op.initiator), quoted(&op.target));
        let (user, key) = (users_text("CHAP user", chap), key_text(dhchap_key));
        let object = format_args!("initiator {initiator} at target {target}{luns}{user}{key}");
        Change::new("allow", "allowed", object)
    });
    const DISKS: Disks<Self> = |_| Vec::new();

    fn revokes_at(&self, target: &IqnName) -> bool {
        is_name_of(&self.target, target)
    }

    async fn execute(&self, control: &Control, _: &str) -> Result<TargetView> {
        let api::AllowInitiator { chap, dhchap_key, luns } = self.allowed.clone();
        let (name, chap) = (iqn(&self.initiator)?, chap.map(credentials));
        let entry = Initiator { name, chap, dhchap: dhchap_key.map(DhChapKey::new), luns };
        control.targets().allow(&iqn(&self.target)?, entry).await?;
        target(control, &self.target).await
    }
}

struct DenyInitiator {
    target: String,
    initiator: String,
}

impl Operation for DenyInitiator {
    type Reply = TargetView;
    const CHANGE: Changes<Self> = Some(|op| {
        let object = format_args!("initiator {} at target {}", quoted(&op.initiator), quoted(&op.target));
        Change::new("deny", "denied", object)
    });
    const DISKS: Disks<Self> = |_| Vec::new();

    fn revokes_at(&self, target: &IqnName) -> bool {
        is_name_of(&self.target, target)
    }

    async fn execute(&self, control: &Control, _: &str) -> Result<TargetView> {
        control.targets().deny(&iqn(&self.target)?, &iqn(&self.initiator)?).await?;
        target(control, &self.target).await
    }
}

/// The user of credentials, for the log; never their secret.
fn users_text(what: &str, chap: &Option<api::Chap>) -> String {
    chap.as_ref().map(|chap| format!(", {what} {}", quoted(&chap.user))).unwrap_or_default()
}

/// For the log: that there is a key; never the key.
fn key_text(key: &Option<Secret>) -> &'static str {
    if key.is_some() { ", with a DH-HMAC-CHAP key" } else { "" }
}

/// For the log: whether sessions were ended, too.
fn forced(force: bool) -> &'static str {
    if force { ", also with sessions" } else { "" }
}

/// Parses the name of a target or an initiator.
pub(super) fn iqn(name: &str) -> Result<IqnName> {
    Ok(name.parse().map_err(TargetError::from)?)
}

/// Whether this name in a request is the name of the target.
pub(super) fn is_name_of(name: &str, target: &IqnName) -> bool {
    name.parse().is_ok_and(|name: IqnName| name == *target)
}

/// The credentials of a request as a target keeps them.
fn credentials(chap: api::Chap) -> Chap {
    Chap { user: chap.user, secret: chap.secret }
}

fn user(chap: Option<&Chap>) -> Option<String> {
    chap.map(|chap| chap.user.clone())
}

/// A target with its sessions.
async fn target(control: &Control, name: &str) -> Result<TargetView> {
    control.targets().check_readable().await?;
    let name = iqn(name)?;
    let found = control.targets().get(&name).ok_or(TargetError::NoTarget(name))?;
    Ok(target_view(control, &found, control.targets().sessions(&found.name)))
}

fn target_view(control: &Control, target: &Target, sessions: Vec<SessionInfo>) -> TargetView {
    TargetView {
        name: target.name.to_string(),
        number: target.number,
        open: target.open,
        chap_user: user(target.chap.as_ref()),
        mutual_user: user(target.mutual.as_ref()),
        has_dhchap_key: target.dhchap.is_some(),
        luns: target.luns.iter().map(|(number, lun)| lun_view(control, *number, lun)).collect(),
        initiators: target
            .initiators
            .iter()
            .map(|i| InitiatorView {
                name: i.name.to_string(),
                chap_user: user(i.chap.as_ref()),
                has_dhchap_key: i.dhchap.is_some(),
                luns: i.luns.clone(),
            })
            .collect(),
        sessions: sessions.into_iter().map(View::view).collect(),
        shard: None,
    }
}

impl View for SessionInfo {
    type View = SessionView;

    fn view(self) -> SessionView {
        SessionView {
            id: self.id.to_string(),
            initiator: self.initiator.to_string(),
            address: self.address.to_string(),
            since_ms: self.since_ms,
        }
    }
}
