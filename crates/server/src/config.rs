//! The configuration of `serve`: a TOML file, overridden by flags.
//!
//! A key that is not known is an error, with its line: a misspelt durability option must not be ignored.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_engine::{BootProfile, Coalesce, PoolConfig};
use forebay_guest::{Change, Class, Policy};
use forebay_store::DiskArray;
use serde::Deserialize;

mod iscsi;
mod limits;
mod nbd;

use crate::import::FetchPolicy;
use crate::iscsi::Algorithm;
use crate::nbd::Config as NbdConfig;
use crate::plane::{ConnectionLimits, ListenAddr, MemoryLimits};
use crate::size::Size;
use crate::targets::{IqnName, Target};
pub use iscsi::{InitiatorSection, IscsiSection, LunSection, SessionLimits, TargetSection, parse_portal};
pub use limits::LimitsSection;
pub use nbd::{NbdFlags, NbdListenerSection, NbdSection, TlsSection};

/// Default data directory of the commands that talk to a running server.
pub const DEFAULT_DATA: &str = "/var/lib/forebay";
/// Name of the control socket in the data directory.
pub const SOCKET_NAME: &str = "forebay.sock";
/// Longest delay of a commit. With the age at which data is committed it stays below the second that is promised.
const MAX_COMMIT_DELAY: Duration = Duration::from_millis(500);
/// The least that a pool may be limited to.
const MIN_STORE: u64 = 64 << 20;
/// Most data-plane threads.
const MAX_CORES: usize = 256;

/// Why a configuration cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {path}: {reason}")]
    Read {
        /// The file.
        path: String,
        /// What the system said.
        reason: String,
    },
    /// The file is not what it should be.
    #[error("{path}, line {line}: {reason}")]
    Syntax {
        /// The file.
        path: String,
        /// Where, from 1 on.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// A target that the file asks for cannot be.
    #[error("iscsi.target {name}: {reason}")]
    Target {
        /// The target.
        name: IqnName,
        /// What is wrong.
        reason: String,
    },
    /// No data directory was named.
    #[error("no data directory: give --data DIR, or 'data' in the configuration file")]
    NoData,
    /// A value that cannot be.
    #[error("{option} cannot be {value}: {why}")]
    Value {
        /// The option.
        option: &'static str,
        /// Its value.
        value: String,
        /// What is wrong with it.
        why: &'static str,
    },
}

/// Where the API is served over TCP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpAddr {
    /// The address.
    pub addr: SocketAddr,
    /// The host as it was written: a name by which clients may address the API, or an address.
    pub host: String,
}

/// A TCP address of the API: `HOST:PORT`, where the host may be a name.
pub fn parse_http_addr(text: &str) -> Result<HttpAddr, String> {
    let wrong = |why: String| format!("'{text}' is not an address ({why}); write HOST:PORT");
    let mut found = text.to_socket_addrs().map_err(|e| wrong(e.to_string()))?;
    let addr = found.next().ok_or_else(|| wrong("the name has no address".into()))?;
    let host = text.rsplit_once(':').map_or(text, |(host, _)| host).to_owned();
    Ok(HttpAddr { addr, host })
}

fn http_addr<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<HttpAddr>, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_http_addr(&text).map(Some).map_err(serde::de::Error::custom)
}

/// The file. Every key may be left out.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigFile {
    /// The data directory.
    pub data: Option<PathBuf>,
    /// The control socket.
    pub socket: Option<PathBuf>,
    /// Data-plane threads.
    pub cores: Option<usize>,
    /// Memory.
    #[serde(default)]
    pub memory: MemorySection,
    /// The store.
    #[serde(default)]
    pub store: StoreSection,
    /// The log.
    #[serde(default)]
    pub log: LogSection,
    /// Commits.
    #[serde(default)]
    pub commit: CommitSection,
    /// Compression.
    #[serde(default)]
    pub reduce: ReduceSection,
    /// Deduplication.
    #[serde(default)]
    pub dedup: DedupSection,
    /// NBD.
    #[serde(default)]
    pub nbd: NbdSection,
    /// iSCSI.
    #[serde(default)]
    pub iscsi: IscsiSection,
    /// What clients may take of the server.
    #[serde(default)]
    pub limits: LimitsSection,
    /// The API over TCP.
    #[serde(default)]
    pub http: HttpSection,
    /// Images from URLs.
    #[serde(default)]
    pub import: ImportSection,
    /// Booting clones.
    #[serde(default)]
    pub boot: BootSection,
    /// What guests' file systems say of blocks.
    #[serde(default)]
    pub classes: ClassesSection,
}

/// `[classes]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClassesSection {
    /// Whether disks are scanned by themselves.
    pub learn: Option<bool>,
    /// `[classes.other]`: what is not known to be something else.
    pub other: Change,
    /// `[classes.page]`
    pub page: Change,
    /// `[classes.temporary]`
    pub temporary: Change,
    /// `[classes.code]`
    pub code: Change,
    /// `[classes.metadata]`
    pub metadata: Change,
    /// `[classes.free]`
    pub free: Change,
}

impl ClassesSection {
    fn policy(&self) -> Policy {
        Class::ALL.into_iter().fold(Policy::default(), |policy, class| {
            let change = match class {
                Class::Other => self.other,
                Class::Page => self.page,
                Class::Temporary => self.temporary,
                Class::Code => self.code,
                Class::Metadata => self.metadata,
                Class::Free => self.free,
            };
            policy.with(class, change)
        })
    }
}

/// `[import]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportSection {
    /// Most bytes of a file that is fetched.
    pub max_size: Option<Size>,
    /// Whether redirects may lead to private addresses.
    #[serde(default)]
    pub allow_private: bool,
}

/// `[boot]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BootSection {
    /// When boot profiles are used.
    pub profile: Option<ProfileMode>,
}

/// `[boot] profile`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProfileMode {
    /// Only when somebody asks.
    Off,
    /// Recorded at the first boot, prefetched when a clone starts.
    Auto,
    /// As `auto`; prefetched also when the server starts, and when clones are made or reset.
    On,
}

/// `[memory]`: budgets.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemorySection {
    /// Read cache.
    pub read_cache: Option<Size>,
    /// Map cache.
    pub map_cache: Option<Size>,
    /// Dirty data before writers wait.
    pub write_buffer: Option<Size>,
    /// Writes of desktops, of all together.
    pub desktops: Option<Size>,
}

/// `[store]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoreSection {
    /// What the pool may take of the file system, where that is to be less than all of it.
    pub limit: Option<Size>,
    /// Disks that the store is to be as slow as.
    pub slow: Option<SlowSection>,
}

/// `[store.slow]`: for experiments.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SlowSection {
    /// How many there are.
    pub spindles: u32,
    /// A mean seek, in milliseconds.
    pub seek_ms: u32,
    /// Turns in a minute.
    pub rpm: u32,
    /// Bytes that one reads or writes in a second.
    pub rate: Size,
}

/// `[commit]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommitSection {
    /// Whether small writes are gathered into large ones.
    pub coalesce: Option<CoalesceMode>,
    /// How long a commit that somebody waits for may wait for others, in milliseconds.
    pub max_delay_ms: Option<u64>,
}

/// `[commit] coalesce`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CoalesceMode {
    /// As the store and the guests make it worth it.
    Adaptive,
    /// Every commit waits as long as is allowed.
    Always,
    /// Not at all: a write is answered when it is durable.
    Off,
}

/// `[reduce]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReduceSection {
    /// Whether what is stored is compressed.
    pub compress: Option<bool>,
}

/// `[dedup]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DedupSection {
    /// Memory for the index of what is stored.
    pub index: Option<Size>,
}

/// `[log]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogSection {
    /// Size at which segments are sealed.
    pub segment: Option<Size>,
    /// Log bytes between checkpoints.
    pub checkpoint: Option<Size>,
}

/// `[http]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpSection {
    /// Address.
    #[serde(default, deserialize_with = "http_addr")]
    pub listen: Option<HttpAddr>,
    /// Whether the address may be reachable from other machines.
    #[serde(default)]
    pub allow_remote: bool,
    /// Names by which clients address the server, beside `localhost` and that of `listen`.
    #[serde(default)]
    pub hosts: Vec<String>,
}

impl ConfigFile {
    /// Reads a file.
    pub fn load(path: &Path) -> Result<ConfigFile, ConfigError> {
        let shown = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|e| ConfigError::Read { path: shown.clone(), reason: e.to_string() })?;
        Self::parse(&shown, &text)
    }

    /// Parses the text of the file at `path`.
    pub fn parse(path: &str, text: &str) -> Result<ConfigFile, ConfigError> {
        toml::from_str(text).map_err(|e| {
            let start = e.span().map_or(0, |span| span.start).min(text.len());
            let line = text.as_bytes()[..start].iter().filter(|b| **b == b'\n').count() + 1;
            let reason = e.message().replace('\n', "; ");
            ConfigError::Syntax { path: path.to_owned(), line, reason }
        })
    }
}

/// What `serve` runs with.
#[derive(Debug, Clone)]
pub struct ServeConfig {
    /// The data directory.
    pub data: PathBuf,
    /// The control socket.
    pub socket: PathBuf,
    /// Where NBD clients are served, and what.
    pub nbd: NbdConfig,
    /// Where iSCSI initiators are served.
    pub iscsi: Vec<ListenAddr>,
    /// How many of them.
    pub iscsi_limits: SessionLimits,
    /// Hash functions that CHAP may use.
    pub chap_algorithms: Vec<Algorithm>,
    /// Targets that are made, or brought in line, at the start; their numbers are chosen then.
    pub iscsi_targets: Vec<Target>,
    /// How many clients there may be, as far as there are descriptors.
    pub connections: ConnectionLimits,
    /// What clients may have the server hold.
    pub client_memory: MemoryLimits,
    /// The API over TCP.
    pub http: Option<SocketAddr>,
    /// Names by which clients may address it there.
    pub http_hosts: Vec<String>,
    /// How images are fetched from URLs.
    pub imports: FetchPolicy,
    /// Data-plane threads.
    pub cores: usize,
    /// What the pool may take of the file system, where that is to be less than all of it.
    pub store_limit: Option<u64>,
    /// Disks that the store is to be as slow as.
    pub store_slow: Option<DiskArray>,
    /// How the pool is run.
    pub pool: PoolConfig,
}

/// What flags say; each wins over the file.
#[derive(Debug, Clone, Default)]
#[allow(missing_docs)] // as in `ConfigFile`
pub struct Overrides {
    pub data: Option<PathBuf>,
    pub socket: Option<PathBuf>,
    pub nbd: NbdFlags,
    pub iscsi: Vec<ListenAddr>,
    pub http: Option<HttpAddr>,
    pub http_allow_remote: bool,
    pub http_hosts: Vec<String>,
    pub import_max_size: Option<Size>,
    pub import_allow_private: bool,
    pub cache: Option<Size>,
    pub cores: Option<usize>,
}

impl ServeConfig {
    /// Joins a file (or none) and flags, and checks the result.
    pub fn resolve(file: ConfigFile, flags: Overrides) -> Result<ServeConfig, ConfigError> {
        let pool = pool_config(flags.cache, &file)?;
        let data = flags.data.or(file.data).ok_or(ConfigError::NoData)?;
        let socket = flags.socket.or(file.socket).unwrap_or_else(|| data.join(SOCKET_NAME));
        let cores = flags.cores.or(file.cores).unwrap_or(2);
        if cores == 0 || cores > MAX_CORES {
            let why = "use a number from 1 to 256";
            return Err(ConfigError::Value { option: "cores", value: cores.to_string(), why });
        }
        let http = flags.http.or(file.http.listen);
        let http_hosts =
            [http.iter().map(|http| http.host.clone()).collect(), file.http.hosts, flags.http_hosts].concat();
        let http = http.map(|http| http.addr);
        if let Some(addr) = http
            && !addr.ip().is_loopback()
            && !(flags.http_allow_remote || file.http.allow_remote)
        {
            let why = "the API has no authentication yet; use a loopback address, or add --http-allow-remote";
            return Err(ConfigError::Value { option: "http", value: addr.to_string(), why });
        }
        let store_limit = file.store.limit.map(|limit| limit.0);
        let store_slow = file.store.slow.as_ref().map(|slow| DiskArray {
            spindles: slow.spindles.max(1) as usize,
            seek: Duration::from_millis(slow.seek_ms.into()),
            rpm: slow.rpm,
            bytes_per_second: slow.rate.0,
        });
        if let Some(limit) = store_limit.filter(|limit| *limit < MIN_STORE) {
            let why = "a pool needs at least 64M";
            return Err(ConfigError::Value { option: "store.limit", value: Size(limit).to_string(), why });
        }
        let (iscsi_limits, listen) = (file.iscsi.limits()?, file.iscsi.listen.clone());
        let chap_algorithms = file.iscsi.chap_algorithms()?;
        Ok(ServeConfig {
            data,
            socket,
            nbd: file.nbd.config(flags.nbd)?,
            iscsi: if flags.iscsi.is_empty() { listen } else { flags.iscsi },
            iscsi_limits,
            chap_algorithms,
            iscsi_targets: file.iscsi.targets()?,
            connections: file.limits.connections()?,
            client_memory: file.limits.memory()?,
            http,
            http_hosts,
            imports: FetchPolicy {
                max_bytes: flags
                    .import_max_size
                    .or(file.import.max_size)
                    .map_or(FetchPolicy::default().max_bytes, |size| size.0),
                allow_private: flags.import_allow_private || file.import.allow_private,
            },
            cores,
            store_limit,
            store_slow,
            pool,
        })
    }
}

fn pool_config(cache: Option<Size>, file: &ConfigFile) -> Result<PoolConfig, ConfigError> {
    let (memory, log) = (&file.memory, &file.log);
    let default = PoolConfig::default();
    let bytes = |size: Option<Size>, default: u64| size.map_or(default, |s| s.0);
    let segment = bytes(log.segment, default.segment_bytes.into());
    let segment_bytes = match u32::try_from(segment) {
        Ok(n) if (4 << 20..=1 << 30).contains(&n) && n % 4096 == 0 => n,
        _ => {
            let why = "use 4M to 1G, in whole blocks of 4096 bytes";
            return Err(ConfigError::Value { option: "log.segment", value: segment.to_string(), why });
        }
    };
    let config = PoolConfig {
        read_cache: bytes(cache.or(memory.read_cache), default.read_cache),
        map_cache: bytes(memory.map_cache, default.map_cache),
        write_buffer: bytes(memory.write_buffer, default.write_buffer),
        desktops: bytes(memory.desktops, default.desktops),
        segment_bytes,
        checkpoint_bytes: bytes(log.checkpoint, default.checkpoint_bytes),
        coalesce: match file.commit.coalesce {
            None => default.coalesce,
            Some(CoalesceMode::Adaptive) => Coalesce::Adaptive,
            Some(CoalesceMode::Always) => Coalesce::Always,
            Some(CoalesceMode::Off) => Coalesce::Off,
        },
        commit_delay: file.commit.max_delay_ms.map_or(default.commit_delay, Duration::from_millis),
        boot_profile: match file.boot.profile {
            None => default.boot_profile,
            Some(ProfileMode::Off) => BootProfile::Off,
            Some(ProfileMode::Auto) => BootProfile::Auto,
            Some(ProfileMode::On) => BootProfile::On,
        },
        classes: file.classes.policy(),
        learn_classes: file.classes.learn.unwrap_or(default.learn_classes),
        dedup_index: bytes(file.dedup.index, default.dedup_index),
        compress: file.reduce.compress.unwrap_or(default.compress),
        ..default
    };
    let least = |option, value: u64, least: u64, why| {
        if value < least {
            return Err(ConfigError::Value { option, value: Size(value).to_string(), why });
        }
        Ok(())
    };
    least("the read cache", config.read_cache, 1 << 20, "it needs at least 1M")?;
    least("memory.map_cache", config.map_cache, 1 << 20, "it needs at least 1M")?;
    least("memory.write_buffer", config.write_buffer, 1 << 20, "it needs at least 1M")?;
    if config.commit_delay > MAX_COMMIT_DELAY {
        let (option, value) = ("commit.max_delay_ms", config.commit_delay.as_millis().to_string());
        return Err(ConfigError::Value { option, value, why: "use at most 500" });
    }
    least("log.checkpoint", config.checkpoint_bytes, 1 << 20, "it needs at least 1M")?;
    Ok(config)
}

#[cfg(test)]
mod tests;
