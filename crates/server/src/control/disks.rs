//! Actions on disks: images, volumes and snapshots.

use std::collections::HashMap;

use forebay_engine::{CloneRequest, DiskInfo, Error as EngineError, Role};

use super::{
    CloneVolumes, Control, ControlError, DiskSpaceView, DiskStatsView, DiskView, LimitedView, Reply, Reset,
    Result,
};

/// Most clones that one request creates.
pub const MAX_CLONES: u32 = 100_000;
/// Smallest write cache of a desktop: one block.
const MIN_WRITE_CACHE: u64 = 4096;

impl Control {
    pub(super) fn list_disks(&self, role: Role) -> Reply {
        self.list(|d| d.role == role)
    }

    pub(super) fn list_snapshots(&self, volume: &str) -> Result<Reply> {
        self.expect(volume, Role::Volume)?;
        let prefix = format!("{volume}@");
        Ok(self.list(|d| d.role == Role::Snapshot && d.name.starts_with(&prefix)))
    }

    fn list(&self, filter: impl Fn(&DiskInfo) -> bool) -> Reply {
        let disks = self.pool().disks();
        Reply::Disks(disks.iter().filter(|d| filter(d)).filter_map(DiskView::new).collect())
    }

    pub(super) fn show_disk(&self, name: &str, role: Role) -> Result<Reply> {
        disk_reply(&self.expect(name, role)?)
    }

    pub(super) async fn clone_volumes(&self, c: &CloneVolumes) -> Result<Reply> {
        let names = clone_names(&c.name, c.count)?;
        let write_cache = c.write_cache_bytes.map_or(0, |bytes| bytes.max(MIN_WRITE_CACHE));
        let reset_at_disconnect = write_cache > 0 && c.reset == Reset::Disconnect;
        let request = |name| CloneRequest { name, sync: c.sync.into(), write_cache, reset_at_disconnect };
        let requests: Vec<_> = names.into_iter().map(request).collect();
        let clones = self.pool().clone_disk(&c.source, &requests).await?;
        let clones = self.inherit_tenant(&c.source, clones).await?;
        Ok(Reply::Disks(clones.iter().filter_map(DiskView::new).collect()))
    }

    pub(super) async fn create_image(&self, name: &str, source: &str) -> Result<Reply> {
        let image = self.pool().create_image(name, source).await?;
        let images = self.inherit_tenant(source, vec![image]).await?;
        images.first().map_or_else(|| Err(EngineError::NotFound(name.to_owned()).into()), disk_reply)
    }

    pub(super) async fn resize_volume(&self, name: &str, size_bytes: u64) -> Result<Reply> {
        self.pool().resize(name, size_bytes).await?;
        self.show_disk(name, Role::Volume)
    }

    pub(super) async fn reset_volume(&self, name: &str) -> Result<Reply> {
        self.pool().reset(name).await?;
        self.show_disk(name, Role::Volume)
    }

    pub(super) async fn resume_volume(&self, name: &str) -> Result<Reply> {
        self.pool().resume(name).await?;
        self.show_disk(name, Role::Volume)
    }

    pub(super) async fn reset_volumes(&self, volumes: &[String]) -> Result<Reply> {
        let names: Vec<&str> = volumes.iter().map(String::as_str).collect();
        self.pool().reset_all(&names).await?;
        let reset = self.find_all(&names);
        Ok(Reply::Disks(reset.iter().filter_map(|disk| DiskView::new(disk.as_ref()?)).collect()))
    }

    pub(super) async fn roll_back_volume(&self, name: &str, snapshot: &str) -> Result<Reply> {
        self.pool().rollback(name, snapshot).await?;
        self.show_disk(name, Role::Volume)
    }

    /// Removes a disk of this kind, unless it is mapped to a target.
    pub(super) async fn remove_disk(&self, name: &str, role: Role) -> Result<Reply> {
        self.expect(name, role)?;
        let _unmapped = self.targets().unmapped(name).await?;
        self.pool().delete(name).await?;
        Ok(Reply::Done {})
    }

    pub(super) async fn disk_stats(&self, name: &str) -> Result<Reply> {
        let pool = self.pool();
        let stats = pool.disk_stats(name)?;
        let space = match stats.space {
            None => None,
            Some(space) => pool.stats().await.space.map(|s| DiskSpaceView::new(space, s.as_of_ms)),
        };
        let cached_bytes = stats.cached_bytes;
        let limited = LimitedView { requests: stats.limited.ops, waited_us: stats.limited.bytes };
        Ok(Reply::DiskStats(DiskStatsView { guest: stats.guest.into(), space, cached_bytes, limited }))
    }

    /// Looks up many disks. One look-up passes all disks, to count snapshots and clones, so they share it.
    pub(super) fn find_all(&self, names: &[&str]) -> Vec<Option<DiskInfo>> {
        let mut disks: HashMap<_, _> = self.pool().disks().into_iter().map(|d| (d.name.clone(), d)).collect();
        names.iter().map(|name| disks.remove(*name)).collect()
    }

    /// Returns the disk of this name. It must be of this kind: `volume rm` must not remove an image.
    fn expect(&self, name: &str, role: Role) -> Result<DiskInfo> {
        let info = self.pool().disk(name)?;
        if info.role == role {
            return Ok(info);
        }
        let (is, needs) = (with_article(info.role), with_article(role));
        Err(EngineError::WrongKind { name: info.name, is, needs }.into())
    }
}

/// Replies with a disk, unless it is internal.
pub(super) fn disk_reply(info: &DiskInfo) -> Result<Reply> {
    DiskView::new(info).map(Reply::Disk).ok_or_else(|| EngineError::NotFound(info.name.clone()).into())
}

fn with_article(role: Role) -> &'static str {
    match role {
        Role::Volume => "a volume",
        Role::Snapshot => "a snapshot",
        Role::Image => "an image",
        Role::Import | Role::Metadata => "an internal disk",
    }
}

/// `NAME`, or `NAME-001` to `NAME-count` with three digits, or more if the count has more.
fn clone_names(name: &str, count: Option<u32>) -> Result<Vec<String>> {
    let Some(count) = count else { return Ok(vec![name.to_owned()]) };
    if count == 0 || count > MAX_CLONES {
        return Err(ControlError::bad_request(format!(
            "cannot create {count} clones at once; use a count from 1 to {MAX_CLONES}"
        )));
    }
    let width = count.to_string().len().max(3);
    Ok((1..=count).map(|i| format!("{name}-{i:0width$}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_are_numbered_with_three_digits_or_more() {
        assert_eq!(clone_names("w", None).unwrap(), ["w"]);
        assert_eq!(clone_names("w", Some(2)).unwrap(), ["w-001", "w-002"]);
        let many = clone_names("w", Some(1000)).unwrap();
        assert_eq!((many[0].as_str(), many[999].as_str()), ("w-0001", "w-1000"));
        assert!(clone_names("w", Some(0)).is_err());
        assert!(clone_names("w", Some(MAX_CLONES + 1)).is_err());
    }
}
