//! iSCSI targets: their representation in the API, and the actions on them. No response contains a secret.

use forebay_api::{AllowInitiator, CreateTarget, InitiatorView, LunView, MapLun, SessionView, TargetView};
use forebay_frontend::targets::{Chap, Initiator, IqnName, Lun, SessionInfo, Target, TargetError};

use super::{Control, Reply, Result};
use crate::view::View;

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

fn user(chap: Option<&Chap>) -> Option<String> {
    chap.map(|chap| chap.user.clone())
}

/// The credentials of a request as a target keeps them.
fn credentials(chap: forebay_api::Chap) -> Chap {
    Chap { user: chap.user, secret: chap.secret }
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
            sessions: sessions.into_iter().map(View::view).collect(),
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
            chap: new.chap.clone().map(credentials),
            mutual: new.mutual.clone().map(credentials),
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
        let entry = Initiator { name: iqn(initiator)?, chap: chap.map(credentials), luns };
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
