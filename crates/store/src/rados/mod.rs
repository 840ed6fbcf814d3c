//! A store in Ceph RADOS.

mod cluster;
pub mod librados;

pub use cluster::{Answer, Cluster, Contents, Errno, Step, WhenFull};

use std::path::PathBuf;
use std::str::FromStr;

/// Where a pool is in a Ceph cluster: `rados:POOL/NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RadosAddress {
    /// The Ceph pool.
    pub pool: String,
    /// The name of our pool; its objects are in the namespace of this name.
    pub name: String,
}

/// How to reach the cluster.
#[derive(Debug, Clone, Default)]
pub struct RadosOptions {
    /// Configuration file; the library's default, `/etc/ceph/ceph.conf`, if `None`.
    pub conf: Option<PathBuf>,
    /// User without `client.`; `admin` if `None`.
    pub user: Option<String>,
}

impl FromStr for RadosAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || format!("{text:?} is not the address of a pool: expected rados:POOL/NAME");
        let (pool, name) = text.strip_prefix("rados:").and_then(|t| t.split_once('/')).ok_or_else(wrong)?;
        let valid = |s: &str| {
            !s.is_empty()
                && s.len() <= 64
                && s.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
        };
        match valid(pool) && valid(name) {
            true => Ok(RadosAddress { pool: pool.to_owned(), name: name.to_owned() }),
            false => Err(format!("{} (letters, digits, '-', '_' and '.', at most 64)", wrong())),
        }
    }
}

impl std::fmt::Display for RadosAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rados:{}/{}", self.pool, self.name)
    }
}
