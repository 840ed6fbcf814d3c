//! Code that the operations on images, volumes and snapshots share.

use forebay_api::DiskView;
use forebay_engine::{DiskInfo, Error as EngineError, Role};

use super::{Control, Done, Result};
use crate::view::disk_view;

impl Control {
    /// The disk of this name, which must be of this kind: `volume rm` must not remove an image.
    pub(super) fn expect(&self, name: &str, role: Role) -> Result<DiskInfo> {
        let info = self.pool().disk(name)?;
        if info.role == role {
            return Ok(info);
        }
        let (is, needs) = (with_article(info.role), with_article(role));
        Err(EngineError::WrongKind { name: info.name, is, needs }.into())
    }

    /// Shows a disk of this kind.
    pub(crate) fn show_disk(&self, name: &str, role: Role) -> Result<DiskView> {
        shown(&self.expect(name, role)?)
    }

    /// Removes a disk of this kind, unless it is mapped to a target.
    pub(crate) async fn remove_disk(&self, name: &str, role: Role) -> Result<Done> {
        self.expect(name, role)?;
        let _unmapped = self.targets().unmapped(name).await?;
        let delete = async {
            match role {
                Role::Image => self.delete_image(name).await,
                _ => Ok(self.pool().delete(name).await?),
            }
        };
        self.remove_named(name, delete).await?;
        Ok(Done {})
    }

    /// Removes a volume and its snapshots, unless one of them is mapped to a target.
    pub(crate) async fn remove_with_snapshots(&self, volume: &str) -> Result<Done> {
        self.expect(volume, Role::Volume)?;
        let _unmapped = self.targets().unmapped_with_snapshots(volume).await?;
        self.remove_named(volume, async { Ok(self.pool().delete_with_snapshots(volume).await?) }).await?;
        Ok(Done {})
    }

    /// Renames a volume, unless the volume or one of its snapshots is mapped to a target: a mapping has the
    /// name of its disk.
    pub(crate) async fn rename_volume(&self, name: &str, new: &str) -> Result<DiskView> {
        self.expect(name, Role::Volume)?;
        let _unmapped = self.targets().unmapped_with_snapshots(name).await?;
        let rename = async { shown(&self.pool().rename(name, new).await?) };
        self.rename_named(name, new, rename).await
    }

    /// Gives new disks the tenant of their source, also in `made`.
    pub(crate) async fn inherit_tenant(&self, source: &str, made: &mut [DiskInfo]) -> Result<()> {
        let uuids: Vec<_> = made.iter().map(|disk| disk.uuid).collect();
        let tenant = self.limits().inherit(source, &uuids).await?;
        for disk in made {
            disk.limits.tenant.clone_from(&tenant);
        }
        Ok(())
    }
}

/// A disk as the API shows the disk.
///
/// # Errors
/// [`EngineError::NotFound`] for an internal disk.
pub(crate) fn shown(info: &DiskInfo) -> Result<DiskView> {
    disk_view(info).ok_or_else(|| EngineError::NotFound(info.name.clone()).into())
}

fn with_article(role: Role) -> &'static str {
    match role {
        Role::Volume => "a volume",
        Role::Snapshot => "a snapshot",
        Role::Image => "an image",
        Role::Import | Role::Metadata | Role::ClusterImage => "an internal disk",
    }
}
