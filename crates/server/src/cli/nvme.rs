//! The options of `serve` for NVMe over TCP.

use forebay_frontend::plane::ListenAddr;

use crate::config::{NvmeFlags, parse_nvme};

/// The options of NVMe over TCP.
#[derive(Debug, clap::Args)]
pub struct NvmeArgs {
    /// NVMe/TCP listen address: HOST:PORT (repeatable)
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_nvme)]
    pub nvme: Vec<ListenAddr>,
    /// NVMe/TCP listen address for discovery only: HOST:PORT; hosts expect port 8009 (repeatable)
    #[arg(long, value_name = "HOST:PORT", value_parser = parse_nvme)]
    pub nvme_discovery: Vec<ListenAddr>,
    /// Allow NVMe, which is not encrypted, on --nvme addresses that other machines can reach
    #[arg(long)]
    pub nvme_allow_remote: bool,
}

impl NvmeArgs {
    /// The options for the configuration.
    pub fn flags(self) -> NvmeFlags {
        NvmeFlags { listen: self.nvme, discovery: self.nvme_discovery, allow_remote: self.nvme_allow_remote }
    }
}
