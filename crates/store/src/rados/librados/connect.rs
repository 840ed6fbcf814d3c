//! Connecting to a cluster, and what to do if that fails.

use std::ffi::{CStr, CString, c_int};
use std::os::unix::ffi::OsStrExt;
use std::ptr::{null, null_mut};

use parking_lot::Mutex;

use super::api::{Api, Raw};
use crate::StoreError;
use crate::rados::{RadosAddress, RadosOptions};

/// How long monitors may take to answer, in seconds.
const MONITOR_TIMEOUT: &CStr = c"10";

/// Options that are set after the configuration file was read, so that they override it.
const OPTIONS: [(&CStr, &CStr); 7] = [
    (c"client_mount_timeout", MONITOR_TIMEOUT),
    // The option limits commands to monitors, of which only queries of free space are used; it does not limit
    // operations on objects.
    (c"rados_mon_op_timeout", MONITOR_TIMEOUT),
    // After this time an operation would fail although it may still take effect, so it must wait without
    // limit.
    (c"rados_osd_op_timeout", c"0"),
    // The library checks every second. It requests a newer map if an OSD has not answered a request for 2 s,
    // so a failed OSD delays requests for half as long as with the defaults.
    (c"objecter_timeout", c"2"),
    (c"objecter_tick_interval", c"1"),
    // Above these limits, submitting an operation blocks; `LIMITS` in operations.rs are lower.
    (c"objecter_inflight_ops", c"8192"),
    (c"objecter_inflight_op_bytes", c"1073741824"),
];

/// The handle of a cluster. Dropping it shuts the connection down.
struct Cluster {
    api: &'static Api,
    raw: Raw,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // SAFETY: created by `rados_create2`, and not used any more.
        unsafe { (self.api.shutdown)(self.raw) };
    }
}

/// Connects; returns the handles of the cluster and of the pool with its namespace. Blocks for about 10 s if
/// no monitor answers.
pub(super) fn connect(
    api: &'static Api,
    address: &RadosAddress,
    options: &RadosOptions,
) -> Result<(Raw, Raw), StoreError> {
    // `rados_conf_parse_env` has a static buffer.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one_at_a_time = ONE_AT_A_TIME.lock();
    let user = options.user.as_deref().unwrap_or("admin");
    let fails = |errno: i32, reason: String| StoreError::Io {
        what: format!("{address} cannot be opened"),
        reason,
        errno,
    };
    let check = |result: c_int, reason: &dyn Fn(i32) -> String| match result {
        0.. => Ok(()),
        _ => Err(fails(-result, reason(-result))),
    };
    let text = |text: &[u8]| {
        let zero = |_| fails(libc::EINVAL, "a name contains a zero byte".to_owned());
        CString::new(text).map_err(zero)
    };

    let name = text(format!("client.{user}").as_bytes())?;
    let mut raw = null_mut();
    // SAFETY: the strings are valid during the call.
    let result = unsafe { (api.create2)(&raw mut raw, c"ceph".as_ptr(), name.as_ptr(), 0) };
    check(result, &|e| format!("the Ceph client for client.{user} cannot be created: {}", describe(e)))?;
    let cluster = Cluster { api, raw };

    let path = options.conf.as_ref().map(|p| text(p.as_os_str().as_bytes())).transpose()?;
    // SAFETY: the handle is valid; without a path the library searches.
    let result = unsafe { (api.conf_read_file)(raw, path.as_ref().map_or(null(), |p| p.as_ptr())) };
    let optional = path.is_none() && std::env::var_os("CEPH_ARGS").is_some_and(|a| !a.is_empty());
    if !(optional && result == -libc::ENOENT) {
        check(result, &|e| conf_reason(cause_of(e, options), options))?;
    }
    // SAFETY: the handle is valid; null selects CEPH_ARGS.
    let result = unsafe { (api.conf_parse_env)(raw, null()) };
    check(result, &|e| format!("the environment variable CEPH_ARGS is not valid: {}", describe(e)))?;
    for (option, value) in OPTIONS {
        // SAFETY: the handle and the strings are valid.
        let result = unsafe { (api.conf_set)(raw, option.as_ptr(), value.as_ptr()) };
        check(result, &|e| format!("Ceph's option {option:?} cannot be set: {}", describe(e)))?;
    }
    // SAFETY: the handle is valid and not connected.
    check(unsafe { (api.connect)(raw) }, &|e| connect_reason(e, user))?;
    let io = open_pool(api, raw, &address.pool, &address.name)?;
    std::mem::forget(cluster);
    Ok((raw, io))
}

/// A handle of a pool with a namespace, of a client that is connected.
pub(super) fn open_pool(
    api: &'static Api,
    cluster: Raw,
    pool: &str,
    namespace: &str,
) -> Result<Raw, StoreError> {
    let fails = |errno: i32, reason: String| StoreError::Io {
        what: format!("rados:{pool}/{namespace} cannot be opened"),
        reason,
        errno,
    };
    let text = |text: &str| {
        CString::new(text).map_err(|_| fails(libc::EINVAL, "a name contains a zero byte".to_owned()))
    };
    let name = match namespace {
        // LIBRADOS_ALL_NSPACES
        super::ALL_NAMESPACES => "\u{1}",
        name => name,
    };
    let (pool_name, name) = (text(pool)?, text(name)?);
    let mut io = null_mut();
    // SAFETY: the cluster is connected, and the name is valid.
    let result = unsafe { (api.ioctx_create)(cluster, pool_name.as_ptr(), &raw mut io) };
    if result < 0 {
        return Err(fails(-result, pool_reason(-result, pool)));
    }
    // SAFETY: the handle and the name are valid.
    unsafe { (api.ioctx_set_namespace)(io, name.as_ptr()) };
    Ok(io)
}

/// The cause of a failure to read a file. The library reports each file that it cannot open as missing; the
/// system reports the cause.
fn cause_of(errno: i32, options: &RadosOptions) -> i32 {
    match &options.conf {
        Some(path) if errno == libc::ENOENT => {
            std::fs::read(path).err().and_then(|e| e.raw_os_error()).unwrap_or(errno)
        }
        _ => errno,
    }
}

fn conf_reason(errno: i32, options: &RadosOptions) -> String {
    let file = match &options.conf {
        Some(path) => format!("Ceph's configuration {}", path.display()),
        None => "Ceph's configuration (/etc/ceph/ceph.conf, or the file that CEPH_CONF names)".to_owned(),
    };
    if options.conf.is_none() && errno == libc::ENOENT {
        return format!("{file} does not exist or cannot be read; copy it from a node of the cluster");
    }
    match errno {
        libc::ENOENT => format!("{file} does not exist; copy it from a node of the cluster"),
        libc::EACCES | libc::EPERM => format!("{file} cannot be read by this user; change its permissions"),
        _ => format!("{file} cannot be used: {}", describe(errno)),
    }
}

fn connect_reason(errno: i32, user: &str) -> String {
    match errno {
        libc::ETIMEDOUT => "Ceph's monitors do not answer; check mon_host in its configuration, and the \
                            network"
            .to_owned(),
        libc::EACCES | libc::EPERM => format!(
            "Ceph does not accept the user client.{user}; check that this process can read the user's keyring, \
             and that its key is that of 'ceph auth get client.{user}'"
        ),
        libc::ENOENT => format!(
            "no monitor or no key of client.{user} is known; check mon_host in Ceph's configuration, and the \
             keyring (by default /etc/ceph/ceph.client.{user}.keyring)"
        ),
        _ => format!("connecting to Ceph failed: {}", describe(errno)),
    }
}

fn pool_reason(errno: i32, pool: &str) -> String {
    match errno {
        libc::ENOENT => format!(
            "the Ceph pool {pool} does not exist; create it: ceph osd pool create {pool}; ceph osd pool \
             application enable {pool} forebay"
        ),
        libc::ETIMEDOUT => connect_reason(errno, ""),
        _ => format!("the Ceph pool {pool} cannot be used: {}", describe(errno)),
    }
}

fn describe(errno: i32) -> String {
    std::io::Error::from_raw_os_error(errno).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_error_says_what_to_do() {
        let timeout = connect_reason(libc::ETIMEDOUT, "admin");
        assert!(timeout.contains("monitors do not answer; check mon_host"), "{timeout}");
        assert!(connect_reason(libc::EACCES, "forebay").contains("'ceph auth get client.forebay'"));
        assert!(pool_reason(libc::ENOENT, "vms").contains("ceph osd pool create vms;"));
        assert!(conf_reason(libc::ENOENT, &RadosOptions::default()).contains("/etc/ceph/ceph.conf"));
        let conf = RadosOptions { conf: Some("/a/b.conf".into()), user: None };
        assert!(conf_reason(libc::EACCES, &conf).contains("/a/b.conf cannot be read by this user"));
        let directory = RadosOptions { conf: Some("/".into()), user: None };
        assert_eq!(cause_of(libc::ENOENT, &directory), libc::EISDIR);
        assert_eq!(cause_of(libc::ENOENT, &conf), libc::ENOENT);
    }
}
