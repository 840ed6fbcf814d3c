//! Division of the process's file descriptors.
//!
//! The store needs descriptors to create segments and to open those that it reads. Clients get the rest, so
//! that no number of connections can block the store. All descriptors are divided here.

use std::io;

use forebay_frontend::plane::MAX_LEAVING;

use super::rlimit::raise;

/// Highest limit that is requested: the size of the kernel's tables bounds it.
const ENOUGH: u64 = 1 << 20;
/// Descriptors that are not divided: standard streams, listeners, event loops, the ring, the store's
/// directory, lock and superblock, libraries.
const BASE: usize = 64;
/// Descriptors of each data-plane thread: its event loop and the waker of the loop.
const PER_CORE: usize = 4;
/// Maximum number of segment files that the store keeps open.
const OPEN_FILES: usize = 512;
/// Maximum number of connections of each API listener.
const CONTROL: usize = 64;
/// Descriptors for the files and connections of imports.
const IMPORTS: usize = 64;
/// Minimum number of clients that a server must be able to serve.
const MIN_CLIENTS: usize = 8;

/// How the file descriptors of the process are divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Descriptors {
    /// Limit of open descriptors of the process.
    pub limit: usize,
    /// Maximum number of segment files that the store keeps open in addition to the files in use.
    pub open_files: usize,
    /// Maximum number of connections of each API listener.
    pub control: usize,
    /// Maximum number of clients.
    pub clients: usize,
}

impl Descriptors {
    /// Raises the limit as far as the system allows, and divides the descriptors.
    pub fn raise(cores: usize) -> io::Result<Descriptors> {
        let limit = raise(libc::RLIMIT_NOFILE, ENOUGH, "open files")?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX).min(ENOUGH as usize);
        Descriptors::divide(limit, cores).ok_or_else(|| {
            io::Error::other(format!(
                "the limit of {limit} open files is too low; raise it (ulimit -n, LimitNOFILE=) to 1024 or more"
            ))
        })
    }

    /// Divides `limit` descriptors; `None` if they are too few.
    fn divide(limit: usize, cores: usize) -> Option<Descriptors> {
        let open_files = OPEN_FILES.min(limit / 8);
        let control = CONTROL.min(limit / 32);
        let leaving = MAX_LEAVING.min(limit / 16);
        // Files in use stay open beyond the cache; they are seldom more than the cache holds.
        let store = 2 * open_files;
        let reserved = BASE + PER_CORE * cores + store + 2 * control + IMPORTS.min(limit / 16) + leaving;
        let clients = limit.checked_sub(reserved).filter(|clients| *clients >= MIN_CLIENTS)?;
        Some(Descriptors { limit, open_files, control, clients })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_fit_into_the_limit() {
        for limit in [256, 300, 1024, 4096, 65536, 1 << 20] {
            let d = Descriptors::divide(limit, 2).unwrap_or_else(|| panic!("{limit} are too few"));
            assert!(d.clients + 2 * d.open_files + 2 * d.control + BASE < limit, "{d:?}");
            assert!(d.open_files >= 32 && d.control >= 8, "{d:?}");
        }
        assert!(Descriptors::divide(1 << 20, 256).unwrap().clients > 1_000_000);
        assert_eq!(Descriptors::divide(64, 2), None);
    }
}
