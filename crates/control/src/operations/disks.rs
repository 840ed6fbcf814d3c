//! Actions on disks: images, volumes and snapshots.

use std::collections::HashMap;

use forebay_api::{CloneVolumes, DiskStatsView, ErrorKind, LimitedView, Reset};
use forebay_engine::{CloneRequest, DiskInfo, Error as EngineError, Pool, Role, check_name};

use super::{Control, ControlError, Reply, Result, STRETCH};
use crate::view::{View, disk_space_view, disk_view, sync_mode};

/// Most clones that one request creates.
pub const MAX_CLONES: u32 = 10_000;
/// Smallest write cache of a desktop: one block.
const MIN_WRITE_CACHE: u64 = 4096;

/// The names of the disks of a pool, in order and in stretches: other requests are served in between.
struct Names<'a> {
    pool: &'a Pool,
    last: String,
}

impl Names<'_> {
    /// The names that follow this one.
    fn after<'a>(pool: &'a Pool, name: &str) -> Names<'a> {
        Names { pool, last: name.to_owned() }
    }

    /// The next names; `None` after the last one.
    async fn next(&mut self) -> Option<Vec<String>> {
        tokio::task::yield_now().await;
        let names = self.pool.names_after(&self.last, STRETCH);
        self.last.clone_from(names.last()?);
        Some(names)
    }
}

impl Control {
    pub(super) fn show_disk(&self, name: &str, role: Role) -> Result<Reply> {
        disk_reply(&self.expect(name, role)?)
    }

    pub(super) async fn clone_volumes(&self, c: &CloneVolumes) -> Result<Reply> {
        let after = if c.more { self.last_number(&c.name).await } else { LastNumber::default() };
        let names = match c.count {
            None if c.more => {
                return Err(ControlError::bad_request("more needs a count: the number of further clones"));
            }
            None => vec![c.name.clone()],
            Some(count) => clone_names(&c.name, count, after)?,
        };
        let write_cache = c.write_cache_bytes.map_or(0, |bytes| bytes.max(MIN_WRITE_CACHE));
        let reset_at_disconnect = write_cache > 0 && c.reset == Reset::Disconnect;
        let request = |name| CloneRequest { name, sync: sync_mode(c.sync), write_cache, reset_at_disconnect };
        let requests: Vec<_> = names.into_iter().map(request).collect();
        let clones = self.pool().clone_disk(&c.source, &requests).await;
        let clones = clones.map_err(|e| exists_in_fleet(e, c))?;
        let clones = self.inherit_tenant(&c.source, clones).await?;
        Ok(Reply::Disks(clones.iter().filter_map(disk_view).collect()))
    }

    /// The highest number among the names `PREFIX-NUMBER` of volumes and images.
    async fn last_number(&self, prefix: &str) -> LastNumber {
        let (beginning, mut last) = (format!("{prefix}-"), LastNumber::default());
        let mut names = Names::after(self.pool(), &beginning);
        while let Some(stretch) = names.next().await {
            let numbers = stretch.iter().filter_map(|name| LastNumber::of(name, prefix));
            last = numbers.fold(last, LastNumber::max);
            // The names are in order.
            if !stretch.last().is_some_and(|name| name.starts_with(&beginning)) {
                break;
            }
        }
        last
    }

    /// The number of disks, snapshots and images included, for whose names `is_meant` is true.
    pub(crate) async fn count_disks(&self, is_meant: impl Fn(&str) -> bool) -> usize {
        let (mut names, mut count) = (Names::after(self.pool(), ""), 0);
        while let Some(stretch) = names.next().await {
            count += stretch.iter().filter(|name| is_meant(name)).count();
        }
        count
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
        Ok(Reply::Disks(reset.iter().filter_map(|disk| disk_view(disk.as_ref()?)).collect()))
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
            Some(space) => pool.stats().await.space.map(|s| disk_space_view(space, s.as_of_ms)),
        };
        let is_desktop = stats.write_cache > 0;
        Ok(Reply::DiskStats(DiskStatsView {
            guest: stats.guest.view(),
            space,
            cached_bytes: stats.cached_bytes,
            write_cache_bytes: is_desktop.then_some(stats.write_cache),
            overflow: is_desktop.then_some(stats.overflow.view()),
            limited: LimitedView { requests: stats.limited.ops, waited_us: stats.limited.bytes },
        }))
    }

    /// Looks up many disks. One look-up passes all disks, to count snapshots and clones, so they share it.
    pub(super) fn find_all(&self, names: &[&str]) -> Vec<Option<DiskInfo>> {
        let mut disks: HashMap<_, _> = self.pool().disks().into_iter().map(|d| (d.name.clone(), d)).collect();
        names.iter().map(|name| disks.remove(*name)).collect()
    }

    /// Returns the disk of this name. It must be of this kind: `volume rm` must not remove an image.
    pub(super) fn expect(&self, name: &str, role: Role) -> Result<DiskInfo> {
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
    disk_view(info).map(Reply::Disk).ok_or_else(|| EngineError::NotFound(info.name.clone()).into())
}

fn with_article(role: Role) -> &'static str {
    match role {
        Role::Volume => "a volume",
        Role::Snapshot => "a snapshot",
        Role::Image => "an image",
        Role::Import | Role::Metadata => "an internal disk",
    }
}

/// The number at the end of a name, and its digits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
struct LastNumber {
    number: u32,
    width: usize,
}

impl LastNumber {
    /// The number of `PREFIX-NUMBER`; `None` for any other name.
    fn of(name: &str, prefix: &str) -> Option<LastNumber> {
        let digits = name.strip_prefix(prefix)?.strip_prefix('-')?;
        let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        let number = is_number.then(|| digits.parse().ok()).flatten()?;
        Some(LastNumber { number, width: digits.len() })
    }
}

/// `NAME-001` and so on, with the `count` numbers after `after`. They have three digits, or as many as those
/// of the existing clones, or of the count of the first ones.
fn clone_names(name: &str, count: u32, after: LastNumber) -> Result<Vec<String>> {
    if count == 0 || count > MAX_CLONES {
        return Err(ControlError::bad_request(format!(
            "cannot create {count} clones at once; use a count from 1 to {MAX_CLONES}"
        )));
    }
    let Some(last) = after.number.checked_add(count) else {
        return Err(ControlError::bad_request(format!(
            "no {count} numbers are left after '{name}-{}'; use another name",
            after.number
        )));
    };
    let width = if after.width == 0 { count.to_string().len() } else { after.width }.max(3);
    let numbered = |i: u32| format!("{name}-{i:0width$}");
    // The last name is the longest one. A name as long as a request must not be repeated for each clone.
    check_name(&numbered(last))?;
    Ok((after.number + 1..=last).map(numbered).collect())
}

/// States the remedy if numbered clones exist already.
fn exists_in_fleet(e: EngineError, c: &CloneVolumes) -> ControlError {
    let error = ControlError::from(e);
    if error.kind != ErrorKind::Exists || c.count.is_none() || c.more {
        return error;
    }
    let hint = "to number the clones after the existing ones, use --more (in the API: \"more\": true)";
    ControlError::new(error.kind, format!("{}; {hint}", error.message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_are_numbered_with_three_digits_or_more() {
        let first = LastNumber::default();
        assert_eq!(clone_names("w", 2, first).unwrap(), ["w-001", "w-002"]);
        let many = clone_names("w", 1000, first).unwrap();
        assert_eq!((many[0].as_str(), many[999].as_str()), ("w-0001", "w-1000"));
        assert!(clone_names("w", 0, first).is_err());
        assert!(clone_names("w", MAX_CLONES + 1, first).is_err());
    }

    #[test]
    fn names_are_checked_with_their_digits_before_all_are_made() {
        let (fits, long) = ("w".repeat(251), "w".repeat(252));
        assert_eq!(clone_names(&fits, 1, LastNumber::default()).unwrap()[0].len(), 255);
        for (name, count) in [(&long, 1), (&fits, 1000), (&"w".repeat(900_000), MAX_CLONES)] {
            let e = clone_names(name, count, LastNumber::default()).unwrap_err();
            assert!(e.kind == ErrorKind::BadName && e.message.len() < 512, "{e}");
        }
    }

    #[test]
    fn more_clones_continue_the_numbers() {
        let after = |name| LastNumber::of(name, "w").unwrap();
        assert_eq!(clone_names("w", 2, after("w-100")).unwrap(), ["w-101", "w-102"]);
        assert_eq!(clone_names("w", 2, after("w-7")).unwrap(), ["w-008", "w-009"]);
        assert_eq!(clone_names("w", 2, after("w-0999")).unwrap(), ["w-1000", "w-1001"]);
        assert_eq!(clone_names("w", 2, after("w-998")).unwrap(), ["w-999", "w-1000"]);
        assert!(clone_names("w", 2, after("w-4294967294")).is_err());
        for other in ["w", "w-", "w-1a", "w-+1", "v-1", "w-x-1", "w-001@s", "w-99999999999"] {
            assert_eq!(LastNumber::of(other, "w"), None, "{other}");
        }
        assert!(after("w-100") > after("w-0099"));
    }
}
