//! `[cluster]`: this server is a node of a cluster.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_frontend::iscsi::{Algorithm, SessionLimits, WhileStandby};
use forebay_frontend::nbd::{Access, TlsMode};
use forebay_frontend::plane::{ConnectionLimits, ListenAddr, MemoryLimits};
use forebay_store::rados::{RadosAddress, RadosOptions};
use serde::Deserialize;

use super::{
    ConfigError, ConfigFile, HttpConfig, Overrides, ServeConfig, StoreFlags, StoreSection, TlsSection,
    rados_options,
};
use crate::log::LogConfig;

/// Time without a change of the membership before shards move, if none is configured.
const SETTLE: Duration = Duration::from_secs(60);

/// `[cluster]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClusterSection {
    /// The cluster that the node joins.
    #[serde(default, deserialize_with = "super::store::rados_address")]
    pub join: Option<RadosAddress>,
    /// Name of the node; the host's name without it.
    pub name: Option<String>,
    /// Address at which the shards of the node serve NBD and iSCSI to other hosts; none without it.
    pub address: Option<IpAddr>,
    /// Seconds without a change of the membership before shards move.
    pub settle_s: Option<u64>,
}

/// The configuration of a node.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// The cluster, as `rados:POOL/NAME`.
    pub cluster: RadosAddress,
    /// How to reach Ceph.
    pub ceph: RadosOptions,
    /// The configuration file, whose other sections apply to each shard.
    pub file: Option<PathBuf>,
    /// The directory of the node's files.
    pub data: PathBuf,
    /// The control socket of the node.
    pub socket: PathBuf,
    /// Where the node serves NBD.
    pub nbd: Vec<ListenAddr>,
    /// The API of the cluster over TCP.
    pub http: HttpConfig,
    /// The audit log of the API.
    pub audit: Option<PathBuf>,
    /// The name of the node; the host's name if `None`.
    pub name: Option<String>,
    /// The address at which the shards of this node serve NBD and iSCSI to other hosts; none if `None`.
    pub address: Option<IpAddr>,
    /// The iSCSI portals of the node.
    pub iscsi: IscsiPortals,
    /// The read cache of all shards of this node together, in bytes.
    pub cache: u64,
    /// Data-plane threads of each shard.
    pub cores: usize,
    /// Directory of the retained memory; the default if `None`.
    pub memory_dir: Option<PathBuf>,
    /// The program that serves a shard: this one.
    pub program: PathBuf,
    /// Time without a change of the membership before shards are handed over.
    pub settle: Duration,
    /// The log.
    pub log: LogConfig,
}

/// The iSCSI portals of a node, which redirect initiators to the owners of shards.
#[derive(Debug, Clone)]
pub struct IscsiPortals {
    /// Addresses to listen on.
    pub listen: Vec<ListenAddr>,
    /// Portals that initiators discover; those of `listen` if `None`.
    pub announced: Option<Vec<SocketAddr>>,
    /// Limits on sessions.
    pub limits: SessionLimits,
    /// Hash functions that CHAP may use.
    pub chap_algorithms: Vec<Algorithm>,
    /// Limits on connections.
    pub connections: ConnectionLimits,
    /// The memory that is held for initiators.
    pub memory: MemoryLimits,
}

/// The options of the command line for a node.
#[derive(Debug, Clone, Default)]
#[allow(missing_docs)] // as in `ClusterSection`
pub struct ClusterFlags {
    pub join: Option<RadosAddress>,
    pub name: Option<String>,
    pub address: Option<IpAddr>,
    pub settle_s: Option<u64>,
}

impl ConfigFile {
    /// The configuration of a node; `None` if this server is not one, such as the process of a shard, which a
    /// node starts with the same file and the pool of the shard. `path` is the path of the file. `serve` are
    /// the options of the command line for a server, of which a node uses those for Ceph, the data directory,
    /// the memory, the threads and the log.
    pub fn node(
        &self,
        path: Option<&Path>,
        flags: ClusterFlags,
        serve: Overrides,
    ) -> Result<Option<NodeConfig>, ConfigError> {
        let section = &self.cluster;
        let joins = flags.join.or_else(|| section.join.clone()).filter(|_| serve.store.pool.is_none());
        let Some(cluster) = joins else { return Ok(None) };
        self.refuse_for_node(&serve)?;
        let name = flags.name.or_else(|| section.name.clone());
        let is_name = |name: &String| {
            (1..=64).contains(&name.len())
                && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
        };
        if let Some(wrong) = name.as_ref().filter(|name| !is_name(name)) {
            let why = "use at most 64 letters, digits, '-', '_' and '.'";
            return Err(ConfigError::Value {
                option: "cluster.name (--node-name)",
                value: wrong.clone(),
                why,
            });
        }
        let (conf, user) = (serve.store.ceph_conf.clone(), serve.store.ceph_user.clone());
        let conf = conf.or_else(|| self.store.ceph_conf.clone());
        let user = user.or_else(|| self.store.ceph_user.clone());
        // As a server with a pool in its data directory, except for the options for reaching Ceph.
        let plain = ConfigFile { store: StoreSection::default(), ..self.clone() };
        let serve = ServeConfig::resolve(plain, Overrides { store: StoreFlags::default(), ..serve })?;
        let nbd = nbd_addresses(&serve)?;
        let address = flags.address.or(section.address);
        Ok(Some(NodeConfig {
            cluster,
            nbd,
            ceph: rados_options(conf, user)?,
            file: path.map(std::path::absolute).transpose().map_err(|e| ConfigError::Read {
                path: path.unwrap_or(Path::new("")).display().to_string(),
                reason: e.to_string(),
            })?,
            data: serve.data.clone(),
            socket: serve.socket.clone(),
            http: serve.http.clone(),
            audit: serve.audit.clone(),
            name,
            address,
            iscsi: portals(&serve, address)?,
            cache: serve.pool.read_cache,
            cores: serve.cores,
            memory_dir: Some(serve.memory_dir.clone()),
            program: std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/proc/self/exe")),
            settle: flags.settle_s.or(section.settle_s).map_or(SETTLE, Duration::from_secs),
            log: serve.log.clone(),
        }))
    }

    /// Refuses options that a node does not support.
    fn refuse_for_node(&self, serve: &Overrides) -> Result<(), ConfigError> {
        let refused = [
            ("store.pool (--pool)", self.store.pool.is_some()),
            ("store.standby (--standby)", self.store.standby),
            ("iscsi.while_standby", self.iscsi.while_standby != WhileStandby::Closed),
            ("iscsi.port_group", self.iscsi.port_group.is_some()),
            ("nfs.listen (--nfs)", !(self.nfs.listen.is_empty() && serve.nfs.listen.is_empty())),
            ("nvme.listen (--nvme)", !(self.nvme.listen.is_empty() && serve.nvme.listen.is_empty())),
        ];
        let in_file = [
            ("--tls", serve.nbd.tls != TlsSection::default()),
            ("--remote-answers", serve.remote_answers.is_some()),
            ("--on-memory-loss", serve.on_memory_loss.is_some()),
            ("--import-max-size", serve.import_max_size.is_some()),
            ("--import-allow-private", serve.import_allow_private),
        ];
        if let Some((option, _)) = in_file.into_iter().find(|(_, is_given)| *is_given) {
            let why = "set it in the configuration file, whose sections apply to each shard, or leave it out";
            return Err(ConfigError::Value { option: "cluster.join", value: option.to_owned(), why });
        }
        if let Some((option, _)) = refused.into_iter().find(|(_, is_given)| *is_given) {
            let why = "leave it out: a node of a cluster does not support it";
            return Err(ConfigError::Value { option: "cluster.join", value: option.to_owned(), why });
        }
        if !self.iscsi.target.is_empty() {
            let why = "leave it out: create targets with 'forebay target create', at any node of the cluster";
            return Err(ConfigError::Value { option: "cluster.join", value: "iscsi.target".to_owned(), why });
        }
        Ok(())
    }
}

/// The iSCSI portals of a node with this address.
fn portals(serve: &ServeConfig, address: Option<IpAddr>) -> Result<IscsiPortals, ConfigError> {
    if let Some(portal) = serve.iscsi.first().filter(|_| address.is_none()) {
        let why = "it needs the address at which initiators reach the shards of this node: set cluster.address \
                   (--node-address)";
        return Err(ConfigError::Value { option: "iscsi.listen (--iscsi)", value: portal.to_string(), why });
    }
    Ok(IscsiPortals {
        listen: serve.iscsi.clone(),
        announced: serve.iscsi_paths.portals.clone(),
        limits: serve.iscsi_limits,
        chap_algorithms: serve.chap_algorithms.clone(),
        connections: serve.connections,
        memory: serve.client_memory,
    })
}

/// The addresses at which the node serves NBD.
fn nbd_addresses(serve: &ServeConfig) -> Result<Vec<ListenAddr>, ConfigError> {
    let refused = |value: String, why| Err(ConfigError::Value { option: "nbd", value, why });
    let mut all = Vec::new();
    for listener in &serve.nbd.listeners {
        if listener.listen.is_empty() {
            continue;
        }
        if listener.tls != TlsMode::Off || listener.access != Access::default() {
            let why =
                "a node of a cluster serves NBD without TLS, and all disks to each client: leave it out";
            return refused("tls, exports, clients or read_only".to_owned(), why);
        }
        for address in &listener.listen {
            if !listener.allow_remote && address.beyond_loopback().ok().flatten().is_some() {
                let why = "it has no authentication: use a loopback address, or add --nbd-allow-remote";
                return refused(address.to_string(), why);
            }
            all.push(address.clone());
        }
    }
    if all.is_empty() {
        all.push(ListenAddr::Unix(serve.data.join("nbd.sock")));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(text: &str, flags: ClusterFlags, serve: Overrides) -> Result<Option<NodeConfig>, ConfigError> {
        let data = Some(PathBuf::from("/d"));
        ConfigFile::parse("f.toml", text).unwrap().node(
            Some(Path::new("f.toml")),
            flags,
            Overrides { data, ..serve },
        )
    }

    #[test]
    fn a_file_or_an_option_makes_a_node() {
        let none = node("", ClusterFlags::default(), Overrides::default()).unwrap();
        assert!(none.is_none());
        let text = "[cluster]\njoin = \"rados:vms/vdi\"\nname = \"n1\"\nsettle_s = 5\n[store]\nceph_user = \"f\"\n[memory]\nread_cache = \"2G\"";
        let config = node(text, ClusterFlags::default(), Overrides::default()).unwrap().unwrap();
        assert_eq!((config.cluster.name.as_str(), config.name.as_deref()), ("vdi", Some("n1")));
        assert_eq!((config.settle, config.ceph.user.as_deref()), (Duration::from_secs(5), Some("f")));
        assert!(config.cache == 2 << 30 && config.file.is_some_and(|file| file.is_absolute()));
        let flags = ClusterFlags { join: Some("rados:a/b".parse().unwrap()), ..ClusterFlags::default() };
        let config = node(text, flags, Overrides::default()).unwrap().unwrap();
        assert_eq!(config.cluster.name, "b", "an option overrides the file");
        assert_eq!(config.settle, Duration::from_secs(5));
        let portals = format!("{text}\n[iscsi]\nlisten = [\"10.0.0.1:3260\"]\nmax_sessions = 9");
        let flags = ClusterFlags { address: Some("10.0.0.1".parse().unwrap()), ..ClusterFlags::default() };
        let config = node(&portals, flags, Overrides::default()).unwrap().unwrap();
        assert_eq!((config.iscsi.listen.len(), config.iscsi.limits.all), (1, 9));
        // The process of a shard has the same file.
        let pool = Some("rados:vms/vdi.00001".parse().unwrap());
        let store = StoreFlags { pool, ..StoreFlags::default() };
        let shard = Overrides { store, ..Overrides::default() };
        assert!(node(text, ClusterFlags::default(), shard).unwrap().is_none());
    }

    #[test]
    fn what_a_node_does_not_support_is_refused() {
        let refusal = |text: &str, serve| {
            let text = format!("[cluster]\njoin = \"rados:vms/vdi\"\n{text}");
            node(&text, ClusterFlags::default(), serve).unwrap_err().to_string()
        };
        let error = refusal("[store]\npool = \"rados:vms/a\"", Overrides::default());
        assert!(
            error.contains("store.pool") && error.contains("a node of a cluster does not support it"),
            "{error}"
        );
        for (text, what) in [
            ("[iscsi]\nlisten = [\"127.0.0.1:3260\"]", "cluster.address"),
            ("[iscsi]\nport_group = 2", "iscsi.port_group"),
            ("[[iscsi.target]]\nname = \"iqn.2026-01.org.example:a\"", "forebay target create"),
        ] {
            let error = refusal(text, Overrides::default());
            assert!(error.contains(what), "{error}");
        }
        let imports = Overrides { import_allow_private: true, ..Overrides::default() };
        assert!(refusal("", imports).contains("set it in the configuration file"));
        let open = "[nbd]\nlisten = [\"10.0.0.1:10809\"]";
        assert!(refusal(open, Overrides::default()).contains("--nbd-allow-remote"));
        let tls = "[nbd]\nlisten = [\"127.0.0.1:10809\"]\ntls.mode = \"require\"\ntls.certificates = \"/c\"";
        assert!(refusal(tls, Overrides::default()).contains("without TLS"));
        assert!(refusal("name = \"a b\"", Overrides::default()).contains("cluster.name"));
    }
}
