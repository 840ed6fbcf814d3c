//! `[store]`: where the pool is, and limits of its store.

use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_store::DiskArray;
use forebay_store::rados::{RadosAddress, RadosOptions};
use forebay_text::Size;
use serde::Deserialize;

use super::ConfigError;

/// Minimum size limit of a pool.
const MIN_STORE: u64 = 64 << 20;
/// Maximum length of the name of a network interface (`IFNAMSIZ`).
const MAX_INTERFACE: usize = 15;

/// The section `[store]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreSection {
    /// Address of a pool in Ceph; without it, the pool is in the data directory.
    #[serde(default, deserialize_with = "rados_address")]
    pub pool: Option<RadosAddress>,
    /// Path of the configuration file of Ceph.
    pub ceph_conf: Option<PathBuf>,
    /// Name of the Ceph user.
    pub ceph_user: Option<String>,
    /// Whether the addresses are bound only when no other server holds the pool.
    #[serde(default)]
    pub standby: bool,
    /// Network interfaces to the clients: when all of them lack a link, the pool is handed over to a standby.
    #[serde(default)]
    pub client_interfaces: Vec<String>,
    /// Maximum size of the pool; without it, the whole file system.
    pub limit: Option<Size>,
    /// Hard disks whose speed the store emulates.
    pub slow: Option<SlowSection>,
}

/// `[store.slow]`: emulates slow disks, for experiments.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlowSection {
    /// Number of slow disks.
    pub spindles: u32,
    /// Mean seek time in milliseconds.
    pub seek_ms: u32,
    /// Rotational speed in revolutions per minute.
    pub rpm: u32,
    /// Transfer rate of one disk in bytes per second.
    pub rate: Size,
}

/// The options of the command line for the place of a pool.
#[derive(Debug, Clone, Default)]
#[allow(missing_docs)] // as in `StoreSection`
pub struct StoreFlags {
    pub pool: Option<RadosAddress>,
    pub ceph_conf: Option<PathBuf>,
    pub ceph_user: Option<String>,
    pub standby: bool,
}

/// A pool in Ceph.
#[derive(Debug, Clone)]
pub struct RadosPool {
    /// Address of the pool.
    pub address: RadosAddress,
    /// How to reach the Ceph cluster.
    pub options: RadosOptions,
}

/// Where a pool is.
#[derive(Debug, Clone)]
pub enum PoolLocation {
    /// The pool is in a directory.
    Directory(PathBuf),
    /// The pool is in Ceph.
    Rados(RadosPool),
}

impl std::fmt::Display for PoolLocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            PoolLocation::Directory(path) => write!(f, "{}", path.display()),
            PoolLocation::Rados(pool) => write!(f, "{}", pool.address),
        }
    }
}

impl StoreSection {
    /// The location of the pool, and whether the server is a standby.
    pub(super) fn location(
        &self,
        data: &Path,
        flags: StoreFlags,
    ) -> Result<(PoolLocation, bool), ConfigError> {
        let flags = StoreFlags {
            pool: flags.pool.or_else(|| self.pool.clone()),
            ceph_conf: flags.ceph_conf.or_else(|| self.ceph_conf.clone()),
            ceph_user: flags.ceph_user.or_else(|| self.ceph_user.clone()),
            standby: flags.standby || self.standby,
        };
        let standby = flags.standby;
        Ok((PoolLocation::new(data, flags)?, standby))
    }

    /// The network interfaces of the clients.
    pub(super) fn client_interfaces(&self, location: &PoolLocation) -> Result<Vec<String>, ConfigError> {
        let option = "store.client_interfaces";
        let names = &self.client_interfaces;
        if matches!(location, PoolLocation::Directory(_)) && !names.is_empty() {
            return Err(ConfigError::NotInCeph(option));
        }
        let is_name = |name: &&String| {
            (1..=MAX_INTERFACE).contains(&name.len()) && !name.contains(['/', ' ']) && !name.starts_with('.')
        };
        match names.iter().find(|name| !is_name(name)) {
            Some(wrong) => {
                let why = "use names of interfaces, as 'ip link' prints them";
                Err(ConfigError::Value { option, value: wrong.clone(), why })
            }
            None => Ok(names.clone()),
        }
    }

    pub(super) fn limit(&self) -> Result<Option<u64>, ConfigError> {
        let limit = self.limit.map(|limit| limit.0);
        if let Some(limit) = limit.filter(|limit| *limit < MIN_STORE) {
            let why = "use at least 64M";
            return Err(ConfigError::Value { option: "store.limit", value: Size(limit).to_string(), why });
        }
        Ok(limit)
    }

    pub(super) fn slow(&self) -> Option<DiskArray> {
        self.slow.as_ref().map(|slow| DiskArray {
            spindles: slow.spindles.max(1) as usize,
            seek: Duration::from_millis(slow.seek_ms.into()),
            rpm: slow.rpm,
            bytes_per_second: slow.rate.0,
        })
    }
}

impl PoolLocation {
    /// Returns the pool that the options name; if they name no pool, the pool in the directory `data`.
    pub fn new(data: &Path, flags: StoreFlags) -> Result<PoolLocation, ConfigError> {
        let StoreFlags { pool, ceph_conf, ceph_user, standby } = flags;
        let Some(address) = pool else {
            let given = [
                ("store.standby (--standby)", standby),
                ("store.ceph_conf (--ceph-conf)", ceph_conf.is_some()),
                ("store.ceph_user (--ceph-user)", ceph_user.is_some()),
            ];
            return match given.into_iter().find(|(_, is_given)| *is_given) {
                Some((option, _)) => Err(ConfigError::NotInCeph(option)),
                None => Ok(PoolLocation::Directory(data.to_owned())),
            };
        };
        let options = rados_options(ceph_conf, ceph_user)?;
        Ok(PoolLocation::Rados(RadosPool { address, options }))
    }
}

/// How to reach a Ceph cluster.
pub fn rados_options(conf: Option<PathBuf>, user: Option<String>) -> Result<RadosOptions, ConfigError> {
    let is_plain =
        |user: &str| !user.is_empty() && !user.chars().any(|c| c.is_whitespace() || c.is_control());
    if let Some(user) = &user
        && (!is_plain(user) || user.starts_with("client."))
    {
        let why = "use the name without 'client.', such as forebay for the key of client.forebay";
        return Err(ConfigError::Value { option: "store.ceph_user (--ceph-user)", value: user.clone(), why });
    }
    Ok(RadosOptions { conf, user })
}

pub(super) fn rados_address<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<RadosAddress>, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map(Some).map_err(serde::de::Error::custom)
}
