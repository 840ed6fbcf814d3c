//! Resource limits of the process (setrlimit(2)).

use std::io;

use forebay_engine::PoolConfig;
use forebay_text::Size;

/// Raises a soft limit to the hard limit, but not beyond `enough`; returns the soft limit then.
pub(in crate::serve) fn raise(
    resource: libc::__rlimit_resource_t,
    enough: u64,
    what: &str,
) -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid structure for the call to fill.
    if unsafe { libc::getrlimit(resource, &raw mut limit) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let wanted = libc::rlimit { rlim_cur: limit.rlim_max.min(enough).max(limit.rlim_cur), ..limit };
    // SAFETY: `wanted` is a valid structure for the call to read.
    if unsafe { libc::setrlimit(resource, &raw const wanted) } == 0 {
        limit = wanted;
    } else {
        let error = io::Error::last_os_error();
        tracing::warn!(%error, limit = limit.rlim_cur, "cannot raise the limit of {what}");
    }
    Ok(limit.rlim_cur)
}

/// Raises the limit of the size of files as far as the system allows.
///
/// # Errors
/// It is below the size of a file that the server makes.
pub(in crate::serve) fn raise_file_size(pool: &PoolConfig) -> io::Result<()> {
    let limit = raise(libc::RLIMIT_FSIZE, libc::RLIM_INFINITY, "the size of files")?;
    let needed = pool.retained_memory().max(u64::from(pool.segment_bytes));
    if limit < needed {
        let (limit, needed) = (Size(limit), Size(needed));
        return Err(io::Error::other(format!(
            "files may have at most {limit}, and the server makes files of {needed}: raise that limit (ulimit -f, LimitFSIZE=)"
        )));
    }
    Ok(())
}
