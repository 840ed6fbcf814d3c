//! Whether the configured memory fits into the host. It is compared when the server starts, and by
//! `forebay config check`. More than fits is not an error: budgets are used up only as needed, and caches
//! shrink when memory is short (`pressure.rs`).

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use forebay_engine::PoolConfig;
use forebay_text::Size;

use super::memory_files::{own_bytes, unused_bytes_of_ceph};
use super::pressure;
use crate::config::{PoolLocation, ServeConfig};
use crate::serve::shard_process::sharing_memory;

/// Who compares, which decides whose control group is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Measured {
    /// The server is starting.
    AtStart,
    /// The server has its pool open, and reloads its configuration.
    AtReload,
    /// A command measures, whose control group is not that of the service.
    ByCommand,
}

/// The memory with which the budgets are compared.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub(crate) struct MemoryLimit {
    /// The limit in bytes.
    pub bytes: u64,
    /// Whether it is the RAM of the host, rather than the limit of a unit or of the control group of this
    /// process.
    pub is_host: bool,
    /// The systemd unit that has the limit; `None` if no unit has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
}

/// The RAM of the host, or the limit of the control group of this process if that is lower.
pub(crate) fn memory_limit() -> Option<MemoryLimit> {
    let limit = |(bytes, is_host)| MemoryLimit { bytes: bytes / sharing_memory(), is_host, unit: None };
    pressure::total().map(limit)
}

/// The RAM of the host, or the limit of a systemd unit if that is lower.
pub(crate) fn memory_limit_of_unit(unit: String, limit: Option<u64>) -> Option<MemoryLimit> {
    let ram = pressure::ram()?;
    Some(match limit.filter(|limit| *limit < ram) {
        Some(bytes) => MemoryLimit { bytes, is_host: false, unit: Some(unit) },
        None => MemoryLimit { bytes: ram, is_host: true, unit: None },
    })
}

/// Compares the configured memory with a limit and with the host; one line for each excess.
pub(crate) fn warnings(config: &ServeConfig, limit: Option<&MemoryLimit>, by: Measured) -> Vec<String> {
    let budgets = limit.and_then(|limit| exceeds_ram(&config.pool, limit, by));
    let retained = room(config, by)
        .and_then(|room| exceeds_room(config.pool.retained_memory(), room, &config.memory_dir));
    budgets.into_iter().chain(retained).collect()
}

/// Logs the warnings.
pub(in crate::serve) fn log_warnings(config: &ServeConfig, by: Measured) {
    for warning in warnings(config, memory_limit().as_ref(), by) {
        tracing::warn!("{warning}");
    }
}

/// A warning if the budgets exceed the RAM of the host or of a control group.
fn exceeds_ram(pool: &PoolConfig, limit: &MemoryLimit, by: Measured) -> Option<String> {
    let total = limit.bytes;
    let budgets = [
        ("read cache", pool.read_cache),
        ("map cache", pool.map_cache),
        ("deduplication index", pool.dedup_index),
        ("write buffers", pool.write_buffer),
        ("desktops", pool.desktops),
    ];
    let sum = budgets.iter().fold(0u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
    if sum <= total {
        return None;
    }
    let parts: Vec<_> = budgets.iter().map(|(name, bytes)| format!("{name} {}", Size(*bytes))).collect();
    let (limit, remedy) = match (&limit.unit, limit.is_host, by) {
        (Some(unit), ..) => (&*format!("MemoryMax of {unit}"), "raise it"),
        (None, true, _) => ("RAM of this host", "add RAM"),
        (None, false, Measured::ByCommand) => (
            "limit of the control group of this command",
            "run it in that of the service, whose limit may differ (systemctl show -p MemoryMax forebay)",
        ),
        (None, false, _) => {
            ("memory that the control group permits", "raise its limit (MemoryMax of a systemd unit)")
        }
    };
    Some(format!(
        "the memory budgets add up to {} ({}), but the {limit} is {}: reduce [memory] read_cache or desktops, or {remedy}",
        Size(sum),
        parts.join(", "),
        Size(total)
    ))
}

/// A warning if the memory for retained writes exceeds the room in its file system.
fn exceeds_room(retained: u64, room: u64, directory: &Path) -> Option<String> {
    (retained > room).then(|| {
        format!(
            "the retained memory (write buffers and desktops) may need {}, but {} has room for {}: enlarge that file system \
             (mount -o remount,size=SIZE), set another one with --memory-dir, or reduce [memory] desktops",
            Size(retained),
            directory.display(),
            Size(room)
        )
    })
}

/// Bytes for the retained memory of a pool in its file system: what is available, and what the pool's file
/// occupies there already. Files of other pools are not room. `None` if it has no limit or cannot be read, in
/// which case the start reports why; or for a pool in Ceph that is open, since its file is not known.
fn room(config: &ServeConfig, by: Measured) -> Option<u64> {
    let directory = &config.memory_dir;
    let available = available(directory)?;
    let own = match &config.location {
        PoolLocation::Directory(data) => own_bytes(directory, data),
        PoolLocation::Rados(_) if by == Measured::AtReload => return None,
        PoolLocation::Rados(_) => unused_bytes_of_ceph(directory),
    };
    Some(available.saturating_add(own))
}

/// Available bytes of a file system; `None` without a limit.
fn available(directory: &Path) -> Option<u64> {
    let path = CString::new(directory.as_os_str().as_bytes()).ok()?;
    // SAFETY: an all-zero statvfs is a valid value of a plain C structure.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends with a zero byte, and `stat` is valid for the call to write.
    if unsafe { libc::statvfs(path.as_ptr(), &raw mut stat) } != 0 {
        return None;
    }
    // A tmpfs without a limit has no blocks.
    (stat.f_blocks != 0).then(|| stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ConfigFile, Overrides};

    const GIB: u64 = 1 << 30;

    #[test]
    fn budgets_are_compared_with_the_ram() {
        let of = |pool: &PoolConfig, bytes, is_host| {
            exceeds_ram(pool, &MemoryLimit { bytes, is_host, unit: None }, Measured::AtStart)
        };
        let pool = PoolConfig { read_cache: 6 * GIB, desktops: 4 * GIB, ..PoolConfig::default() };
        assert_eq!(of(&pool, 16 * GIB, true), None);
        let warning = of(&pool, 8 * GIB, true).unwrap();
        assert!(
            warning.starts_with("the memory budgets add up to 10.5 GiB (read cache 6 GiB, "),
            "{warning}"
        );
        assert!(warning.contains("the RAM of this host is 8 GiB: reduce [memory] read_cache"), "{warning}");
        let warning = of(&pool, 8 * GIB, false).unwrap();
        assert!(warning.contains("the control group permits is 8 GiB"), "{warning}");
        let limit = MemoryLimit { bytes: 8 * GIB, is_host: false, unit: None };
        let warning = exceeds_ram(&pool, &limit, Measured::ByCommand).unwrap();
        assert!(warning.contains("the limit of the control group of this command is 8 GiB"), "{warning}");
        assert!(warning.contains("systemctl show -p MemoryMax"), "{warning}");
        let limit = memory_limit_of_unit("forebay@a.service".into(), Some(1 << 20)).unwrap();
        let warning = exceeds_ram(&pool, &limit, Measured::ByCommand).unwrap();
        let end = "the MemoryMax of forebay@a.service is 1 MiB: reduce [memory] read_cache or desktops, or raise it";
        assert!(warning.ends_with(end), "{warning}");
        assert!(memory_limit_of_unit("u".into(), None).unwrap().is_host);
        let all = PoolConfig { read_cache: u64::MAX, desktops: u64::MAX, ..PoolConfig::default() };
        assert!(of(&all, 8 * GIB, true).is_some());
    }

    #[test]
    fn retained_memory_is_compared_with_the_room() {
        let directory = Path::new("/dev/shm");
        assert_eq!(exceeds_room(GIB, GIB, directory), None);
        let warning = exceeds_room(GIB, 64 << 20, directory).unwrap();
        assert!(warning.contains("may need 1 GiB, but /dev/shm has room for 64 MiB: "), "{warning}");
    }

    #[test]
    fn files_of_other_pools_are_not_room() {
        let place = tempfile::tempdir_in("/dev/shm").unwrap();
        assert_eq!(available(&place.path().join("none")), None);
        let flags = Overrides {
            data: Some(place.path().join("pool")),
            memory_dir: Some(place.path().to_owned()),
            ..Overrides::default()
        };
        let config = ServeConfig::resolve(ConfigFile::default(), flags).unwrap();
        let other = format!("forebay-{}-fd02-77-00001234", "ab".repeat(16));
        std::fs::write(place.path().join(other), vec![1; 32 << 20]).unwrap();
        // Other tests write to this file system at the same time.
        let (room, available) = (room(&config, Measured::AtStart).unwrap(), available(place.path()).unwrap());
        assert!(room < available + (16 << 20), "{room} of {available}");
    }
}
