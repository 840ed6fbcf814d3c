//! `[cluster]`: this server is a node of a cluster.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use forebay_store::rados::RadosAddress;
use serde::Deserialize;

use super::{ConfigError, ConfigFile, ServeConfig, rados_options};
use crate::node::NodeConfig;

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
    /// Address at which the shards of the node serve NBD to other hosts; none without it.
    pub address: Option<IpAddr>,
    /// Seconds without a change of the membership before shards move.
    pub settle_s: Option<u64>,
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
    /// The configuration of a node; `None` if this server is not one. `serve` is the configuration of a
    /// server with the same file and options, of which a node uses the data directory, the memory, the threads
    /// and the log.
    pub fn node(
        &self,
        flags: ClusterFlags,
        ceph: (Option<PathBuf>, Option<String>),
        serve: &ServeConfig,
    ) -> Result<Option<NodeConfig>, ConfigError> {
        let section = &self.cluster;
        let Some(cluster) = flags.join.or_else(|| section.join.clone()) else { return Ok(None) };
        let refused = [
            ("store.pool (--pool)", self.store.pool.is_some()),
            ("store.standby (--standby)", self.store.standby),
            ("nbd", self.nbd != Default::default()),
            ("iscsi", self.iscsi != Default::default()),
            ("http", self.http != Default::default()),
        ];
        if let Some((option, _)) = refused.into_iter().find(|(_, is_given)| *is_given) {
            let why = "leave it out: a node of a cluster does not support it";
            return Err(ConfigError::Value { option: "cluster.join", value: option.to_owned(), why });
        }
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
        let (conf, user) = ceph;
        let conf = conf.or_else(|| self.store.ceph_conf.clone());
        let user = user.or_else(|| self.store.ceph_user.clone());
        Ok(Some(NodeConfig {
            cluster,
            ceph: rados_options(conf, user)?,
            data: serve.data.clone(),
            name,
            address: flags.address.or(section.address),
            cache: serve.pool.read_cache,
            cores: serve.cores,
            memory_dir: Some(serve.memory_dir.clone()),
            program: std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/proc/self/exe")),
            settle: flags.settle_s.or(section.settle_s).map_or(SETTLE, Duration::from_secs),
            log: serve.log.clone(),
        }))
    }
}
