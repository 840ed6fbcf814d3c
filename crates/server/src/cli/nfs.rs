//! The options of `serve` for NFS.

use forebay_frontend::nfs::AccessRule;
use forebay_frontend::plane::ListenAddr;

use crate::config::{NfsFlags, parse_access, parse_nfs};

/// The options of NFS.
#[derive(Debug, clap::Args)]
pub struct NfsArgs {
    /// NFS listen address, which also serves MOUNT: HOST:PORT (repeatable)
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_nfs)]
    pub nfs: Vec<ListenAddr>,
    /// Address on which the port mapper answers with the port of NFS: HOST:PORT (repeatable)
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_nfs, requires = "nfs")]
    pub nfs_portmap: Vec<ListenAddr>,
    /// Allow NFS, whose clients do not authenticate themselves, on --nfs addresses that other machines can
    /// reach
    #[arg(long)]
    pub nfs_allow_remote: bool,
    /// What NFS clients of a network may do: NETWORK[,ro][,root-squash] (repeatable, the first match decides)
    #[arg(long, value_name = "RULE", value_parser = parse_access)]
    pub nfs_access: Vec<AccessRule>,
}

impl NfsArgs {
    /// The options for the configuration.
    pub fn flags(self) -> NfsFlags {
        NfsFlags {
            listen: self.nfs,
            portmap: self.nfs_portmap,
            allow_remote: self.nfs_allow_remote,
            access: self.nfs_access,
        }
    }
}
