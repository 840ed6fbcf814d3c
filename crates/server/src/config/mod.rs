//! The configuration of `serve`: a TOML file, overridden by command-line options.
//!
//! An unknown key is an error with its line: a misspelt durability option must not be ignored.

use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_control::import::FetchPolicy;
use forebay_control::operations::VolumeSeries;
use forebay_engine::{BootProfile, Coalesce, OnMemoryLoss, PoolConfig, RemoteAnswers};
use forebay_frontend::iscsi::{Algorithm, SessionLimits};
use forebay_frontend::nbd::Config as NbdConfig;
use forebay_frontend::plane::{ConnectionLimits, ListenAddr, MIN_BUDGET, MemoryLimits};
use forebay_frontend::targets::{IqnName, Target};
use forebay_guest::{Change, Class, Policy};
use forebay_store::DiskArray;
use forebay_text::Size;
use serde::Deserialize;

mod budgets;
mod cluster;
mod effective;
mod explain;
mod http;
mod iscsi;
mod limits;
mod locate;
mod logging;
mod metrics;
mod nbd;
pub(crate) mod nearest;
mod nfs;
mod nvme;
mod store;

use crate::log::{LogConfig, LogFormat};
use budgets::Budget;
pub use cluster::{ClusterFlags, ClusterSection, IscsiPortals, NodeConfig};
pub use effective::{AppliedBy, Setting, lines_of_keys, settings};
pub use http::{
    AuditSection, HttpAddr, HttpConfig, HttpFlags, HttpSection, HttpsFiles, TokenMode, parse_http_addr,
};
pub use iscsi::{InitiatorSection, IscsiPaths, IscsiSection, LunSection, TargetSection, parse_portal};
pub use limits::LimitsSection;
pub use locate::Source;
pub use logging::LoggingSection;
pub use metrics::MetricsSection;
pub use nbd::{NbdFlags, NbdListenerSection, NbdSection, TlsSection};
pub use nfs::{NfsConfig, NfsFlags, NfsSection, parse_access, parse_nfs};
pub use nvme::{NvmeConfig, NvmeFlags, NvmeSection, parse_nvme};
pub use store::{PoolLocation, RadosPool, SlowSection, StoreFlags, StoreSection, rados_options};

/// Default data directory of all commands other than `serve`.
pub const DEFAULT_DATA: &str = "/var/lib/forebay";
/// Default configuration file of `forebay config`.
pub const DEFAULT_CONFIG: &str = "/etc/forebay/forebay.toml";
/// Default directory of the retained memory.
pub const DEFAULT_MEMORY_DIR: &str = "/dev/shm";
/// Name of the control socket in the data directory.
pub const SOCKET_NAME: &str = "forebay.sock";
/// The control socket of the service: in `forebay-control.socket` and `forebay.toml` of `packaging`.
pub const SERVICE_SOCKET: &str = "/run/forebay/control.sock";
/// Maximum delay of a commit. Together with the age at which dirty data is committed, it stays below the
/// promised second.
const MAX_COMMIT_DELAY: Duration = Duration::from_millis(500);
/// Minimum size of a budget of the pool that is reduced to fit the memory limit.
const LEAST_DEFAULT_BUDGET: u64 = 12 << 20;
/// Maximum number of data-plane threads.
const MAX_CORES: usize = 256;

/// Why a configuration is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration file {path}: {reason}")]
    Read {
        /// Path of the file.
        path: String,
        /// The error that the operating system reported.
        reason: String,
    },
    /// The file has a syntax error, an unknown key or a value of the wrong type.
    #[error("{path}, line {line}: {reason}")]
    Syntax {
        /// Path of the file.
        path: String,
        /// The line, counted from 1.
        line: usize,
        /// The error of the parser.
        reason: String,
    },
    /// A value of the file is invalid.
    #[error("{path}, line {line}: {error}")]
    At {
        /// Path of the file.
        path: String,
        /// The line, counted from 1.
        line: usize,
        /// The error of the value in this line.
        error: Box<ConfigError>,
    },
    /// A section `[[nbd.listener]]` is invalid.
    #[error(
        "invalid value \"{tls}\" for nbd.listener.tls: use \"require\", because 'clients' identifies clients by their certificates"
    )]
    Listener {
        /// The number of the section in the file, counted from 0.
        index: usize,
        /// TLS mode of the section.
        tls: &'static str,
    },
    /// A target in the file is invalid.
    #[error("iscsi.target {name}: {reason}")]
    Target {
        /// Name of the target.
        name: IqnName,
        /// Why the target is invalid.
        reason: String,
    },
    /// No data directory is configured.
    #[error("no data directory: give --data DIR, or set 'data' in the configuration file")]
    NoData,
    /// An option makes sense only for a pool in Ceph.
    #[error(
        "{0} needs a pool in Ceph: give --pool rados:POOL/NAME, or set 'pool' in [store] of the configuration file"
    )]
    NotInCeph(&'static str),
    /// A value is out of range, or not allowed in combination with others.
    #[error("invalid value {value} for {option}: {why}")]
    Value {
        /// Name of the option.
        option: &'static str,
        /// The value of the option.
        value: String,
        /// The values that are valid.
        why: &'static str,
    },
}

/// The configuration file. All keys are optional.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConfigFile {
    /// Path of the data directory.
    pub data: Option<PathBuf>,
    /// Path of the control socket.
    pub socket: Option<PathBuf>,
    /// Number of data-plane threads.
    pub cores: Option<usize>,
    /// Memory budgets.
    #[serde(default)]
    pub memory: MemorySection,
    /// Settings of the store.
    #[serde(default)]
    pub store: StoreSection,
    /// The cluster that this server joins as a node.
    #[serde(default)]
    pub cluster: ClusterSection,
    /// The log.
    #[serde(default)]
    pub log: LogSection,
    /// Settings of commits.
    #[serde(default)]
    pub commit: CommitSection,
    /// When writes are acknowledged.
    #[serde(default)]
    pub durability: DurabilitySection,
    /// Settings of compression.
    #[serde(default)]
    pub reduce: ReduceSection,
    /// Settings of deduplication.
    #[serde(default)]
    pub dedup: DedupSection,
    /// Settings of NBD.
    #[serde(default)]
    pub nbd: NbdSection,
    /// Settings of NFS.
    #[serde(default)]
    pub nfs: NfsSection,
    /// Settings of NVMe/TCP.
    #[serde(default)]
    pub nvme: NvmeSection,
    /// Settings of iSCSI.
    #[serde(default)]
    pub iscsi: IscsiSection,
    /// Limits on clients.
    #[serde(default)]
    pub limits: LimitsSection,
    /// Settings of the API over TCP.
    #[serde(default)]
    pub http: HttpSection,
    /// Settings of the audit log.
    #[serde(default)]
    pub audit: AuditSection,
    /// Settings of imports from URLs.
    #[serde(default)]
    pub import: ImportSection,
    /// Settings of boot profiles.
    #[serde(default)]
    pub boot: BootSection,
    /// Settings of block classes.
    #[serde(default)]
    pub classes: ClassesSection,
    /// Settings of metrics.
    #[serde(default)]
    pub metrics: MetricsSection,
    /// Settings of the server's log messages.
    #[serde(default)]
    pub logging: LoggingSection,
    /// The file from which the values were read.
    #[serde(skip)]
    pub source: Option<Source>,
}

/// The section `[classes]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClassesSection {
    /// Whether disks are scanned automatically.
    pub learn: Option<bool>,
    /// The section `[classes.other]`: blocks that belong to no other class.
    pub other: Change,
    /// The section `[classes.page]`.
    pub page: Change,
    /// The section `[classes.temporary]`.
    pub temporary: Change,
    /// The section `[classes.code]`.
    pub code: Change,
    /// The section `[classes.metadata]`.
    pub metadata: Change,
    /// The section `[classes.free]`.
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

/// The section `[import]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportSection {
    /// Maximum size of a downloaded file.
    pub max_size: Option<Size>,
    /// Maximum time from a request to the first byte of its response, in seconds.
    pub first_byte_timeout_s: Option<u64>,
    /// Maximum time of a whole download, in seconds.
    pub timeout_s: Option<u64>,
    /// Whether redirects to private addresses are followed.
    #[serde(default)]
    pub allow_private: bool,
}

impl ImportSection {
    /// The policy with the options that precede the file.
    fn policy(self, max_size: Option<Size>, allow_private: bool) -> Result<FetchPolicy, ConfigError> {
        let defaults = FetchPolicy::default();
        let seconds = |option, given: Option<u64>, default| match given {
            Some(s @ (0 | 604_801..)) => {
                let why = "use 1 to 604800 seconds";
                Err(ConfigError::Value { option, value: s.to_string(), why })
            }
            Some(s) => Ok(Duration::from_secs(s)),
            None => Ok(default),
        };
        Ok(FetchPolicy {
            max_bytes: max_size.or(self.max_size).map_or(defaults.max_bytes, |size| size.0),
            allow_private: allow_private || self.allow_private,
            first_byte: seconds(
                "import.first_byte_timeout_s",
                self.first_byte_timeout_s,
                defaults.first_byte,
            )?,
            timeout: seconds("import.timeout_s", self.timeout_s, defaults.timeout)?,
        })
    }
}

/// The section `[boot]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BootSection {
    /// When boot profiles are recorded and prefetched.
    pub profile: Option<ProfileMode>,
}

/// `[boot] profile`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProfileMode {
    /// Boot profiles are used only on request.
    Off,
    /// Recorded at the first boot, prefetched when a clone starts.
    Auto,
    /// As `auto`; also prefetched when the server starts and when clones are created or reset.
    On,
}

/// The section `[memory]`: memory budgets.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemorySection {
    /// Budget of the read cache.
    pub read_cache: Option<Size>,
    /// Budget of the map cache.
    pub map_cache: Option<Size>,
    /// Maximum of dirty data; above it, writers wait.
    pub write_buffer: Option<Size>,
    /// Budget for the writes of all desktops together.
    pub desktops: Option<Size>,
    /// Budget for counts of references, for reclaiming space.
    pub mark: Option<Size>,
    /// Directory on tmpfs for writes that are not in the log yet.
    pub directory: Option<PathBuf>,
}

/// The section `[commit]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommitSection {
    /// Whether commits are delayed so that more writes share them.
    pub coalesce: Option<CoalesceMode>,
    /// Maximum delay, in milliseconds, of a commit for which a guest waits.
    pub max_delay_ms: Option<u64>,
}

/// `[commit] coalesce`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CoalesceMode {
    /// Commits are delayed if the speed of the store and the load make it worthwhile.
    Adaptive,
    /// Every commit is delayed by the maximum.
    Always,
    /// Commits are not delayed: a write is acknowledged when it is durable.
    Off,
}

/// The section `[durability]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DurabilitySection {
    /// When writes of remote clients are acknowledged.
    pub remote_answers: Option<AnswerMode>,
    /// What happens if the memory of acknowledged writes is lost.
    pub on_memory_loss: Option<LossMode>,
}

/// `[durability] remote_answers`, `--remote-answers`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum AnswerMode {
    /// When they are durable
    Durable,
    /// When they are in memory, unless the client requests more
    Memory,
}

/// `[durability] on_memory_loss`, `--on-memory-loss`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LossMode {
    /// Refuse the clients that may have had them acknowledged, until 'forebay volume resume'
    Refuse,
    /// Serve them without these writes, and log a warning
    Accept,
}

/// The section `[reduce]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReduceSection {
    /// Whether stored blocks are compressed.
    pub compress: Option<bool>,
}

/// The section `[dedup]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DedupSection {
    /// Memory for the deduplication index.
    pub index: Option<Size>,
}

/// The section `[log]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogSection {
    /// Size at which segments are sealed.
    pub segment: Option<Size>,
    /// Bytes of log between checkpoints.
    pub checkpoint: Option<Size>,
}

impl ConfigFile {
    /// Reads a configuration file.
    pub fn load(path: &Path) -> Result<ConfigFile, ConfigError> {
        Self::load_with_text(path).map(|(file, _)| file)
    }

    /// Reads a configuration file, and also returns its text.
    pub fn load_with_text(path: &Path) -> Result<(ConfigFile, String), ConfigError> {
        let shown = path.display().to_string();
        let bytes = std::fs::read(path)
            .map_err(|e| ConfigError::Read { path: shown.clone(), reason: e.to_string() })?;
        let text = String::from_utf8(bytes).map_err(|e| {
            let valid = &e.as_bytes()[..e.utf8_error().valid_up_to()];
            let line = valid.iter().filter(|b| **b == b'\n').count() + 1;
            let reason = "not a text in UTF-8".to_owned();
            ConfigError::Syntax { path: shown.clone(), line, reason }
        })?;
        Ok((Self::parse(&shown, &text)?, text))
    }

    /// Parses the text of the file at `path`.
    pub fn parse(path: &str, text: &str) -> Result<ConfigFile, ConfigError> {
        let file: ConfigFile = toml::from_str(text).map_err(|e| {
            let line = line_of(text, e.span().map_or(0, |span| span.start));
            ConfigError::Syntax { path: path.to_owned(), line, reason: explain::explain(text, &e) }
        })?;
        Ok(ConfigFile { source: Some(Source::new(path, text)), ..file })
    }
}

/// The line of a position in a text, counted from 1.
fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())].iter().filter(|b| **b == b'\n').count() + 1
}

/// The resolved configuration of `serve`.
#[derive(Debug, Clone)]
pub struct ServeConfig {
    /// Path of the data directory.
    pub data: PathBuf,
    /// Location of the pool: the data directory, or an address in Ceph.
    pub location: PoolLocation,
    /// Whether the addresses are bound only when no other server holds the pool.
    pub standby: bool,
    /// Network interfaces to the clients: when all of them lack a link, the pool is handed over to a standby.
    pub client_interfaces: Vec<String>,
    /// Path of the control socket.
    pub socket: PathBuf,
    /// Directory of the files of retained memory.
    pub memory_dir: PathBuf,
    /// NBD listeners and exports.
    pub nbd: NbdConfig,
    /// NFS.
    pub nfs: NfsConfig,
    /// NVMe/TCP.
    pub nvme: NvmeConfig,
    /// Addresses of iSCSI portals.
    pub iscsi: Vec<ListenAddr>,
    /// The iSCSI paths of this server, among the paths of other servers of the pool.
    pub iscsi_paths: IscsiPaths,
    /// Limits on iSCSI sessions.
    pub iscsi_limits: SessionLimits,
    /// Hash functions that CHAP may use.
    pub chap_algorithms: Vec<Algorithm>,
    /// Targets that are created or updated when the server starts; their numbers are assigned then.
    pub iscsi_targets: Vec<Target>,
    /// Limits on connections; the process's limit of file descriptors can reduce them.
    pub connections: ConnectionLimits,
    /// Limits on memory for clients.
    pub client_memory: MemoryLimits,
    /// Configuration of the API over TCP.
    pub http: HttpConfig,
    /// File of the audit log; `None` for no file.
    pub audit: Option<PathBuf>,
    /// Policy for imports from URLs.
    pub imports: FetchPolicy,
    /// Number of data-plane threads.
    pub cores: usize,
    /// Maximum size of the pool; without it, the whole file system.
    pub store_limit: Option<u64>,
    /// Hard disks whose speed the store emulates.
    pub store_slow: Option<DiskArray>,
    /// Configuration of the server's log messages.
    pub log: LogConfig,
    /// Volumes with separate metrics.
    pub metrics: VolumeSeries,
    /// Configuration of the pool.
    pub pool: PoolConfig,
    /// The file from which values were read.
    pub source: Option<Source>,
}

/// Command-line options; each overrides the file.
#[derive(Debug, Clone, Default)]
#[allow(missing_docs)] // as in `ConfigFile`
pub struct Overrides {
    pub data: Option<PathBuf>,
    pub socket: Option<PathBuf>,
    pub store: StoreFlags,
    pub nbd: NbdFlags,
    pub nfs: NfsFlags,
    pub nvme: NvmeFlags,
    pub iscsi: Vec<ListenAddr>,
    pub http: HttpFlags,
    pub audit: Option<PathBuf>,
    pub import_max_size: Option<Size>,
    pub import_allow_private: bool,
    pub cache: Option<Size>,
    pub memory_dir: Option<PathBuf>,
    /// Bytes of memory that the server may use: default budgets fit into it.
    pub memory_limit: Option<u64>,
    pub cores: Option<usize>,
    pub remote_answers: Option<AnswerMode>,
    pub on_memory_loss: Option<LossMode>,
    pub log_format: Option<LogFormat>,
}

impl ServeConfig {
    /// Merges the file with the command-line options and validates the result. An error of the file names
    /// the line.
    pub fn resolve(file: ConfigFile, flags: Overrides) -> Result<ServeConfig, ConfigError> {
        let (data, memory_limit) = (flags.data.clone(), flags.memory_limit);
        let alone = Overrides { data, memory_limit, ..Overrides::default() };
        Self::merge(file.clone(), flags).map_err(|error| match file.source.clone() {
            Some(source) if file.causes(&error, alone) => source.located(error),
            _ => error,
        })
    }

    fn merge(file: ConfigFile, flags: Overrides) -> Result<ServeConfig, ConfigError> {
        let budgets = Budgets::fitted(flags.cache, &file, flags.memory_limit);
        let pool = with_durability(pool_config(&budgets, &file)?, &file.durability, &flags);
        let data = flags.data.or(file.data).ok_or(ConfigError::NoData)?;
        let socket = flags.socket.or(file.socket).unwrap_or_else(|| data.join(SOCKET_NAME));
        let cores = flags.cores.or(file.cores).unwrap_or(2);
        if cores == 0 || cores > MAX_CORES {
            let why = "use 1 to 256";
            return Err(ConfigError::Value { option: "cores", value: cores.to_string(), why });
        }
        let (store_limit, store_slow) = (file.store.limit()?, file.store.slow());
        let (location, standby) = file.store.location(&data, flags.store)?;
        let client_interfaces = file.store.client_interfaces(&location)?;
        let (iscsi_limits, listen) = (file.iscsi.limits()?, file.iscsi.listen.clone());
        let (chap_algorithms, iscsi_paths) = (file.iscsi.chap_algorithms()?, file.iscsi.paths(&location)?);
        Ok(ServeConfig {
            data,
            location,
            standby,
            client_interfaces,
            socket,
            memory_dir: flags.memory_dir.or(file.memory.directory).unwrap_or(DEFAULT_MEMORY_DIR.into()),
            nbd: file.nbd.config(flags.nbd)?,
            nfs: file.nfs.config(flags.nfs),
            nvme: file.nvme.config(flags.nvme)?,
            iscsi: if flags.iscsi.is_empty() { listen } else { flags.iscsi },
            iscsi_paths,
            iscsi_limits,
            chap_algorithms,
            iscsi_targets: file.iscsi.targets()?,
            connections: file.limits.connections()?,
            client_memory: file.limits.memory(budgets.clients)?,
            http: file.http.config(flags.http)?,
            audit: flags.audit.or(file.audit.file),
            imports: file.import.policy(flags.import_max_size, flags.import_allow_private)?,
            cores,
            log: file.logging.config(flags.log_format)?,
            metrics: file.metrics.series()?,
            store_limit,
            store_slow,
            pool,
            source: file.source,
        })
    }
}

/// The pool's configuration with the answers and the reaction that the options or the file name.
fn with_durability(pool: PoolConfig, file: &DurabilitySection, flags: &Overrides) -> PoolConfig {
    let remote_answers =
        flags.remote_answers.or(file.remote_answers).map_or(pool.remote_answers, |answers| match answers {
            AnswerMode::Durable => RemoteAnswers::Durable,
            AnswerMode::Memory => RemoteAnswers::Memory,
        });
    let on_memory_loss =
        flags.on_memory_loss.or(file.on_memory_loss).map_or(pool.on_memory_loss, |reaction| match reaction {
            LossMode::Refuse => OnMemoryLoss::Refuse,
            LossMode::Accept => OnMemoryLoss::Accept,
        });
    PoolConfig { remote_answers, on_memory_loss, ..pool }
}

/// The memory budgets, in bytes.
struct Budgets {
    read_cache: u64,
    map_cache: u64,
    write_buffer: u64,
    desktops: u64,
    mark: u64,
    dedup_index: u64,
    clients: u64,
}

impl Budgets {
    /// The configured budgets; for all other budgets, defaults that fit the memory limit.
    fn fitted(cache: Option<Size>, file: &ConfigFile, limit: Option<u64>) -> Budgets {
        let (memory, default) = (&file.memory, PoolConfig::default());
        let budget = |configured: Option<Size>, usual, least| Budget {
            configured: configured.map(|size| size.0),
            usual,
            least,
        };
        let least = LEAST_DEFAULT_BUDGET;
        let budgets = [
            budget(cache.or(memory.read_cache), default.read_cache, least),
            budget(memory.map_cache, default.map_cache, least),
            budget(memory.write_buffer, default.write_buffer, least),
            budget(memory.desktops, default.desktops, least),
            budget(memory.mark, default.mark_memory, least),
            budget(file.dedup.index, default.dedup_index, least),
            budget(file.limits.client_memory, MemoryLimits::default().budget, MIN_BUDGET),
        ];
        let [read_cache, map_cache, write_buffer, desktops, mark, dedup_index, clients] =
            budgets::fitted(budgets, limit);
        Budgets { read_cache, map_cache, write_buffer, desktops, mark, dedup_index, clients }
    }
}

fn pool_config(budgets: &Budgets, file: &ConfigFile) -> Result<PoolConfig, ConfigError> {
    let log = &file.log;
    let default = PoolConfig::default();
    let bytes = |size: Option<Size>, default: u64| size.map_or(default, |s| s.0);
    let segment = bytes(log.segment, default.segment_bytes.into());
    let segment_bytes = match u32::try_from(segment) {
        Ok(n) if (4 << 20..=1 << 30).contains(&n) && n % 4096 == 0 => n,
        _ => {
            let why = "use 4M to 1G, a multiple of 4096 bytes";
            return Err(ConfigError::Value { option: "log.segment", value: segment.to_string(), why });
        }
    };
    let config = PoolConfig {
        read_cache: budgets.read_cache,
        map_cache: budgets.map_cache,
        write_buffer: budgets.write_buffer,
        desktops: budgets.desktops,
        mark_memory: budgets.mark,
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
        dedup_index: budgets.dedup_index,
        compress: file.reduce.compress.unwrap_or(default.compress),
        ..default
    };
    let at_least_1m = |option, value: u64| {
        if value < 1 << 20 {
            let why = "use at least 1M";
            return Err(ConfigError::Value { option, value: Size(value).to_string(), why });
        }
        Ok(())
    };
    at_least_1m("memory.read_cache (--cache)", config.read_cache)?;
    at_least_1m("memory.map_cache", config.map_cache)?;
    at_least_1m("memory.write_buffer", config.write_buffer)?;
    at_least_1m("memory.mark", config.mark_memory)?;
    if config.commit_delay > MAX_COMMIT_DELAY {
        let (option, value) = ("commit.max_delay_ms", config.commit_delay.as_millis().to_string());
        return Err(ConfigError::Value { option, value, why: "use at most 500" });
    }
    at_least_1m("log.checkpoint", config.checkpoint_bytes)?;
    Ok(config)
}

#[cfg(test)]
mod tests;
