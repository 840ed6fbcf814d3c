//! iSCSI targets: their representation in the API, and the actions on them. No response contains a secret.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Control, Reply, Result};
use crate::targets::{Chap, Initiator, IqnName, Lun, SessionInfo, Target, TargetError};

/// Body of `POST /targets`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"name": "iqn.2026-01.org.example:disks"}))]
pub struct CreateTarget {
    /// Name (IQN).
    pub name: String,
    /// Any initiator is admitted.
    #[serde(default)]
    pub open: bool,
    /// CHAP credentials of initiators whose ACL entry has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chap: Option<Chap>,
    /// CHAP credentials of the target, for mutual CHAP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mutual: Option<Chap>,
}

/// Body of `POST /targets/{name}/luns`, which chooses the LUN, and of `PUT /targets/{name}/luns/{lun}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"disk": "db"}))]
pub struct MapLun {
    /// Volume, image, or `volume@snapshot`.
    pub disk: String,
    /// Writes are refused; always the case for images and snapshots.
    #[serde(default)]
    pub read_only: bool,
    /// Writes are acknowledged before they are durable; a flush makes them durable.
    #[serde(default)]
    pub write_back: bool,
}

/// Body of `PUT /targets/{name}/initiators/{initiator}`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"luns": [0]}))]
pub struct AllowInitiator {
    /// CHAP credentials of the initiator; those of the target if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chap: Option<Chap>,
    /// LUNs exposed to the initiator; all if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub luns: Option<Vec<u16>>,
}

/// A target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TargetView {
    /// Name (IQN).
    pub name: String,
    /// Relative target port identifier; never reused for another target.
    pub number: u16,
    /// Any initiator is admitted.
    pub open: bool,
    /// CHAP user of initiators whose ACL entry has none; `None` if they need not authenticate.
    pub chap_user: Option<String>,
    /// CHAP user of the target, for mutual CHAP.
    pub mutual_user: Option<String>,
    /// Mapped disks.
    pub luns: Vec<LunView>,
    /// Initiator ACL.
    pub initiators: Vec<InitiatorView>,
    /// Sessions.
    pub sessions: Vec<SessionView>,
}

/// A LUN of a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LunView {
    /// The LUN.
    pub lun: u16,
    /// Volume, image, or `volume@snapshot`.
    pub disk: String,
    /// Size of the disk; `None` if the disk does not exist any more.
    pub size_bytes: Option<u64>,
    /// Writes are refused.
    pub read_only: bool,
    /// Writes are acknowledged before they are durable; a flush makes them durable.
    pub write_back: bool,
}

/// An entry of a target's initiator ACL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InitiatorView {
    /// Name of the initiator.
    pub name: String,
    /// CHAP user of the initiator; `None` if that of the target applies.
    pub chap_user: Option<String>,
    /// LUNs exposed to the initiator; `None` for all.
    pub luns: Option<Vec<u16>>,
}

/// A session of a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SessionView {
    /// Number of the session, by which it can be disconnected.
    #[serde(default)]
    pub id: String,
    /// Name of the initiator.
    pub initiator: String,
    /// Address of the initiator.
    pub address: String,
    /// Time of the login in Unix milliseconds.
    pub since_ms: u64,
}

impl From<SessionInfo> for SessionView {
    fn from(s: SessionInfo) -> SessionView {
        SessionView {
            id: s.id.to_string(),
            initiator: s.initiator.to_string(),
            address: s.address.to_string(),
            since_ms: s.since_ms,
        }
    }
}

fn user(chap: Option<&Chap>) -> Option<String> {
    chap.map(|chap| chap.user.clone())
}

/// Parses the name of a target or an initiator.
fn iqn(name: &str) -> Result<IqnName> {
    Ok(name.parse().map_err(TargetError::from)?)
}

impl Control {
    /// A target; `sessions` has those of the target.
    fn target_view(&self, target: &Target, sessions: Vec<SessionInfo>) -> TargetView {
        TargetView {
            name: target.name.to_string(),
            number: target.number,
            open: target.open,
            chap_user: user(target.chap.as_ref()),
            mutual_user: user(target.mutual.as_ref()),
            luns: target.luns.iter().map(|(number, lun)| self.lun_view(*number, lun)).collect(),
            initiators: target
                .initiators
                .iter()
                .map(|i| InitiatorView {
                    name: i.name.to_string(),
                    chap_user: user(i.chap.as_ref()),
                    luns: i.luns.clone(),
                })
                .collect(),
            sessions: sessions.into_iter().map(SessionView::from).collect(),
        }
    }

    fn lun_view(&self, lun: u16, mapped: &Lun) -> LunView {
        LunView {
            lun,
            disk: mapped.disk.clone(),
            size_bytes: self.pool().identity(&mapped.disk).ok().map(|(_, size)| size),
            read_only: mapped.read_only,
            write_back: mapped.write_back,
        }
    }

    pub(super) async fn list_targets(&self) -> Result<Reply> {
        self.targets().check_readable().await?;
        let all = self.targets().snapshot();
        let mut sessions = self.targets().sessions_by_target();
        let views = all.values().map(|target| {
            let own = sessions.remove(&target.name).unwrap_or_default();
            self.target_view(target, own)
        });
        Ok(Reply::Targets(views.collect()))
    }

    pub(super) async fn show_target(&self, name: &str) -> Result<Reply> {
        self.targets().check_readable().await?;
        let name = iqn(name)?;
        let found = self.targets().get(&name).ok_or(TargetError::NoTarget(name))?;
        Ok(Reply::Target(self.target_view(&found, self.targets().sessions(&found.name))))
    }

    pub(super) async fn create_target(&self, new: &CreateTarget) -> Result<Reply> {
        let new = Target {
            name: iqn(&new.name)?,
            number: 0,
            open: new.open,
            chap: new.chap.clone(),
            mutual: new.mutual.clone(),
            luns: Default::default(),
            initiators: Vec::new(),
        };
        Ok(Reply::Target(self.target_view(&*self.targets().create(new).await?, Vec::new())))
    }

    pub(super) async fn remove_target(&self, name: &str, force: bool) -> Result<Reply> {
        self.targets().remove(&iqn(name)?, force).await?;
        Ok(Reply::Done {})
    }

    pub(super) async fn remove_targets(&self, force: bool) -> Result<Reply> {
        self.targets().remove_all(force).await?;
        Ok(Reply::Done {})
    }

    pub(super) async fn allow_initiator(
        &self,
        name: &str,
        initiator: &str,
        allowed: &AllowInitiator,
    ) -> Result<Reply> {
        let AllowInitiator { chap, luns } = allowed.clone();
        let entry = Initiator { name: iqn(initiator)?, chap, luns };
        self.targets().allow(&iqn(name)?, entry).await?;
        self.show_target(name).await
    }

    pub(super) async fn deny_initiator(&self, name: &str, initiator: &str) -> Result<Reply> {
        self.targets().deny(&iqn(name)?, &iqn(initiator)?).await?;
        self.show_target(name).await
    }

    pub(super) async fn map_lun(&self, name: &str, lun: Option<u16>, map: &MapLun) -> Result<Reply> {
        let MapLun { disk, read_only, write_back } = map.clone();
        let entry = Lun { disk, read_only, write_back };
        let (lun, mapped) = self.targets().map(&iqn(name)?, lun, entry).await?;
        Ok(Reply::Lun(self.lun_view(lun, &mapped)))
    }

    pub(super) async fn unmap_lun(&self, name: &str, lun: u16) -> Result<Reply> {
        self.targets().unmap(&iqn(name)?, lun).await?;
        Ok(Reply::Done {})
    }
}
