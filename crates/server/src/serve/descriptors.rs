//! How the file descriptors of the process are divided.
//!
//! The store needs some to go on: it creates segments, and opens those that it reads. Clients get what is left, so
//! that no number of connections can keep the store from working. This is the one place that divides.

use std::io;

use crate::plane::MAX_LEAVING;

/// More is not asked for: the kernel's tables would be the limit.
const ENOUGH: u64 = 1 << 20;
/// What the process has beside what is divided: standard streams, listeners, event loops, the ring, the store's
/// directory, lock and superblock, libraries.
const BASE: usize = 64;
/// Of each data-plane thread: its event loop and what wakes it.
const PER_CORE: usize = 4;
/// Segment files that the store keeps open, at most.
const OPEN_FILES: usize = 512;
/// Connections of each listener of the API.
const CONTROL: usize = 64;
/// Files and connections of imports.
const IMPORTS: usize = 64;
/// The fewest clients that a server has to be able to serve.
const MIN_CLIENTS: usize = 8;

/// The descriptors of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Descriptors {
    /// How many the process may have.
    pub limit: usize,
    /// Segment files that the store may keep open beside those in use.
    pub open_files: usize,
    /// Connections of each listener of the API.
    pub control: usize,
    /// Clients, at most.
    pub clients: usize,
}

impl Descriptors {
    /// Raises the limit as far as the system allows, and divides it.
    pub fn raise(cores: usize) -> io::Result<Descriptors> {
        let limit = raise()?;
        Descriptors::divide(limit, cores).ok_or_else(|| {
            io::Error::other(format!(
                "the limit of {limit} open files is too low; raise it (ulimit -n, LimitNOFILE=) to 1024 or more"
            ))
        })
    }

    /// `None` where there are too few.
    fn divide(limit: usize, cores: usize) -> Option<Descriptors> {
        let open_files = OPEN_FILES.min(limit / 8);
        let control = CONTROL.min(limit / 32);
        let leaving = MAX_LEAVING.min(limit / 16);
        // Files in use stay open beyond the cache; there are seldom more than that again.
        let store = 2 * open_files;
        let reserved = BASE + PER_CORE * cores + store + 2 * control + IMPORTS.min(limit / 16) + leaving;
        let clients = limit.checked_sub(reserved).filter(|clients| *clients >= MIN_CLIENTS)?;
        Some(Descriptors { limit, open_files, control, clients })
    }
}

/// Raises the soft limit to the hard one; returns what it is then.
fn raise() -> io::Result<usize> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a plain system call on a structure of ours.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let wanted = libc::rlimit { rlim_cur: limit.rlim_max.min(ENOUGH).max(limit.rlim_cur), ..limit };
    // SAFETY: as above.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const wanted) } == 0 {
        limit = wanted;
    } else {
        let error = io::Error::last_os_error();
        tracing::warn!(%error, limit = limit.rlim_cur, "cannot raise the limit of open files");
    }
    Ok(usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX).min(ENOUGH as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_are_less_than_the_whole() {
        for limit in [256, 300, 1024, 4096, 65536, 1 << 20] {
            let d = Descriptors::divide(limit, 2).unwrap_or_else(|| panic!("{limit} are too few"));
            assert!(d.clients + 2 * d.open_files + 2 * d.control + BASE < limit, "{d:?}");
            assert!(d.open_files >= 32 && d.control >= 8, "{d:?}");
        }
        assert!(Descriptors::divide(1 << 20, 256).unwrap().clients > 1_000_000);
        assert_eq!(Descriptors::divide(64, 2), None);
    }
}
