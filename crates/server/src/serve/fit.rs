//! Whether the configured memory fits into the host. It is compared when the server starts, and by
//! `forebay config check`. More than fits is not an error: budgets are used up only as needed, and caches
//! shrink when memory is short (`pressure.rs`).

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use forebay_engine::PoolConfig;

use super::memory::FILE_PREFIX;
use super::pressure;
use crate::config::ServeConfig;
use crate::size::Size;

/// Bytes of a block of `st_blocks` (stat(2)).
const STAT_BLOCK: u64 = 512;

/// Compares the configured memory with the host; one line for each excess.
pub(crate) fn warnings(config: &ServeConfig) -> Vec<String> {
    let budgets = pressure::total().and_then(|(total, is_host)| exceeds_ram(&config.pool, total, is_host));
    let retained = room(&config.memory_dir)
        .and_then(|room| exceeds_room(config.pool.retained_memory(), room, &config.memory_dir));
    budgets.into_iter().chain(retained).collect()
}

/// Logs the warnings.
pub(super) fn log_warnings(config: &ServeConfig) {
    for warning in warnings(config) {
        tracing::warn!("{warning}");
    }
}

/// A warning if the budgets exceed `total` bytes of RAM of the host or of a control group.
fn exceeds_ram(pool: &PoolConfig, total: u64, is_host: bool) -> Option<String> {
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
    let (limit, remedy) = match is_host {
        true => ("RAM of this host", "add RAM"),
        false => ("memory that the control group permits", "raise its limit (MemoryMax of a systemd unit)"),
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

/// Bytes for retained memory in the file system of a directory: what is free, and what files of retained
/// memory occupy there already. `None` if it has no limit, or cannot be read; the start reports why.
fn room(directory: &Path) -> Option<u64> {
    let path = CString::new(directory.as_os_str().as_bytes()).ok()?;
    // SAFETY: an all-zero statvfs is a valid value of a plain C structure.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends with a zero byte, and `stat` is valid for the call to write.
    if unsafe { libc::statvfs(path.as_ptr(), &raw mut stat) } != 0 {
        return None;
    }
    if stat.f_blocks == 0 {
        // A tmpfs without a limit.
        return None;
    }
    let files = std::fs::read_dir(directory).ok()?.flatten();
    let ours = files.filter(|file| file.file_name().as_bytes().starts_with(FILE_PREFIX.as_bytes()));
    let occupied: u64 = ours.filter_map(|file| Some(file.metadata().ok()?.blocks() * STAT_BLOCK)).sum();
    Some(stat.f_bavail.saturating_mul(stat.f_frsize).saturating_add(occupied))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn budgets_are_compared_with_the_ram() {
        let pool = PoolConfig { read_cache: 6 * GIB, desktops: 4 * GIB, ..PoolConfig::default() };
        assert_eq!(exceeds_ram(&pool, 16 * GIB, true), None);
        let warning = exceeds_ram(&pool, 8 * GIB, true).unwrap();
        assert!(
            warning.starts_with("the memory budgets add up to 10.4 GiB (read cache 6 GiB, "),
            "{warning}"
        );
        assert!(warning.contains("the RAM of this host is 8 GiB: reduce [memory] read_cache"), "{warning}");
        let warning = exceeds_ram(&pool, 8 * GIB, false).unwrap();
        assert!(warning.contains("the control group permits is 8 GiB"), "{warning}");
        let all = PoolConfig { read_cache: u64::MAX, desktops: u64::MAX, ..PoolConfig::default() };
        assert!(exceeds_ram(&all, 8 * GIB, true).is_some());
    }

    #[test]
    fn retained_memory_is_compared_with_the_room() {
        let directory = Path::new("/dev/shm");
        assert_eq!(exceeds_room(GIB, GIB, directory), None);
        let warning = exceeds_room(GIB, 64 << 20, directory).unwrap();
        assert!(warning.contains("may need 1 GiB, but /dev/shm has room for 64 MiB: "), "{warning}");
    }

    #[test]
    fn files_of_retained_memory_count_as_room() {
        let place = tempfile::tempdir_in("/dev/shm").unwrap();
        assert_eq!(room(&place.path().join("none")), None);
        std::fs::write(place.path().join(format!("{FILE_PREFIX}x")), vec![1; 1 << 20]).unwrap();
        assert!(room(place.path()).unwrap() >= 1 << 20);
    }
}
