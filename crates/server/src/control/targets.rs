//! Targets as the API says and takes them, and what is done with them. No answer has a secret in it.

use forebay_engine::Role;
use serde::{Deserialize, Serialize};

use super::{Control, Reply, Result};
use crate::targets::{Chap, Initiator, IqnName, Lun, SessionInfo, Target, TargetError};

/// Body of `POST /targets`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateTarget {
    /// Its name.
    pub name: String,
    /// Any initiator may come.
    #[serde(default)]
    pub open: bool,
    /// With what initiators authenticate themselves that have nothing of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chap: Option<Chap>,
    /// With what the target authenticates itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mutual: Option<Chap>,
}

/// Body of `POST /targets/{name}/luns`, where the number is chosen, and `PUT /targets/{name}/luns/{lun}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MapLun {
    /// Volume, image, or `volume@snapshot`.
    pub disk: String,
    /// Writes are refused; of an image or a snapshot they are in any case.
    #[serde(default)]
    pub read_only: bool,
    /// A write is answered before it is durable, and flushes count.
    #[serde(default)]
    pub write_back: bool,
}

/// Body of `PUT /targets/{name}/initiators/{initiator}`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllowInitiator {
    /// With what it authenticates itself, if not with what the target says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chap: Option<Chap>,
    /// The LUNs that it sees; all, where nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub luns: Option<Vec<u16>>,
}

/// A target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetView {
    /// Its name.
    pub name: String,
    /// Relative target port identifier; of no other target ever.
    pub number: u16,
    /// Any initiator may come.
    pub open: bool,
    /// User of CHAP of initiators that have none of their own; none, if they need not authenticate themselves.
    pub chap_user: Option<String>,
    /// As which user the target authenticates itself.
    pub mutual_user: Option<String>,
    /// Its disks.
    pub luns: Vec<LunView>,
    /// Who may come.
    pub initiators: Vec<InitiatorView>,
    /// Who is there.
    pub sessions: Vec<SessionView>,
}

/// A disk of a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LunView {
    /// Its number.
    pub lun: u16,
    /// Volume, image, or `volume@snapshot`.
    pub disk: String,
    /// Its size; none, where the disk is gone.
    pub size_bytes: Option<u64>,
    /// Writes are refused.
    pub read_only: bool,
    /// A write is answered before it is durable, and flushes count.
    pub write_back: bool,
}

/// Who may come to a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InitiatorView {
    /// Its name.
    pub name: String,
    /// Its user of CHAP; none, if that of the target counts.
    pub chap_user: Option<String>,
    /// The LUNs that it sees; none, if all.
    pub luns: Option<Vec<u16>>,
}

/// Who is connected to a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionView {
    /// Who it is.
    pub initiator: String,
    /// Where it comes from.
    pub address: String,
    /// When it logged in, in Unix milliseconds.
    pub since_ms: u64,
}

impl From<SessionInfo> for SessionView {
    fn from(s: SessionInfo) -> SessionView {
        SessionView {
            initiator: s.initiator.to_string(),
            address: s.address.to_string(),
            since_ms: s.since_ms,
        }
    }
}

fn user(chap: Option<&Chap>) -> Option<String> {
    chap.map(|chap| chap.user.clone())
}

fn target(name: &str) -> Result<IqnName> {
    Ok(name.parse().map_err(TargetError::from)?)
}

impl Control {
    fn target_view(&self, target: &Target) -> TargetView {
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
            sessions: self.targets().sessions(&target.name).into_iter().map(SessionView::from).collect(),
        }
    }

    fn lun_view(&self, lun: u16, mapped: &Lun) -> LunView {
        LunView {
            lun,
            disk: mapped.disk.clone(),
            size_bytes: self.pool().disk(&mapped.disk).ok().map(|disk| disk.size),
            read_only: mapped.read_only,
            write_back: mapped.write_back,
        }
    }

    pub(super) async fn list_targets(&self) -> Result<Reply> {
        self.targets().check_readable().await?;
        let all = self.targets().snapshot();
        Ok(Reply::Targets(all.values().map(|target| self.target_view(target)).collect()))
    }

    pub(super) async fn show_target(&self, name: &str) -> Result<Reply> {
        self.targets().check_readable().await?;
        let name = target(name)?;
        let found = self.targets().get(&name).ok_or(TargetError::NoTarget(name))?;
        Ok(Reply::Target(self.target_view(&found)))
    }

    pub(super) async fn create_target(&self, new: &CreateTarget) -> Result<Reply> {
        let new = Target {
            name: target(&new.name)?,
            number: 0,
            open: new.open,
            chap: new.chap.clone(),
            mutual: new.mutual.clone(),
            luns: Default::default(),
            initiators: Vec::new(),
        };
        Ok(Reply::Target(self.target_view(&*self.targets().create(new).await?)))
    }

    pub(super) async fn remove_target(&self, name: &str, force: bool) -> Result<Reply> {
        self.targets().remove(&target(name)?, force).await?;
        Ok(Reply::Done {})
    }

    pub(super) async fn allow_initiator(
        &self,
        name: &str,
        initiator: &str,
        allowed: &AllowInitiator,
    ) -> Result<Reply> {
        let AllowInitiator { chap, luns } = allowed.clone();
        let entry = Initiator { name: target(initiator)?, chap, luns };
        self.targets().allow(&target(name)?, entry).await?;
        self.show_target(name).await
    }

    pub(super) async fn deny_initiator(&self, name: &str, initiator: &str) -> Result<Reply> {
        self.targets().deny(&target(name)?, &target(initiator)?).await?;
        self.show_target(name).await
    }

    pub(super) async fn map_lun(&self, name: &str, lun: Option<u16>, map: &MapLun) -> Result<Reply> {
        let MapLun { disk, read_only, write_back } = map.clone();
        let lun_of_disk = Lun { disk, read_only, write_back };
        let (lun, mapped) = self.targets().map(&target(name)?, lun, lun_of_disk).await?;
        Ok(Reply::Lun(self.lun_view(lun, &mapped)))
    }

    pub(super) async fn unmap_lun(&self, name: &str, lun: u16) -> Result<Reply> {
        self.targets().unmap(&target(name)?, lun).await?;
        Ok(Reply::Done {})
    }

    /// Removes a disk of this kind, unless a target has it.
    pub(super) async fn remove_disk(&self, name: &str, role: Role) -> Result<Reply> {
        self.expect(name, role)?;
        let _unmapped = self.targets().unmapped(name).await?;
        self.pool().delete(name).await?;
        Ok(Reply::Done {})
    }
}
