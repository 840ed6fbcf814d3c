//! `[nvme]`: addresses and limits of NVMe/TCP. Its subsystems are the targets of `[[iscsi.target]]`.

use forebay_frontend::nvme::ControllerLimits;
use forebay_frontend::plane::ListenAddr;
use serde::Deserialize;

use super::ConfigError;

/// Parses a listen address of NVMe/TCP: `HOST:PORT`.
pub fn parse_nvme(text: &str) -> Result<ListenAddr, String> {
    match text.parse() {
        Ok(addr @ ListenAddr::Tcp(_)) => Ok(addr),
        _ => Err(format!("invalid NVMe address '{text}'; use HOST:PORT, such as 127.0.0.1:4420")),
    }
}

fn addresses<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<ListenAddr>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    texts.iter().map(|text| parse_nvme(text)).collect::<Result<_, _>>().map_err(serde::de::Error::custom)
}

/// The section `[nvme]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NvmeSection {
    /// Listen addresses.
    #[serde(default, deserialize_with = "addresses")]
    pub listen: Vec<ListenAddr>,
    /// Listen addresses at which hosts discover subsystems only.
    #[serde(default, deserialize_with = "addresses")]
    pub discovery: Vec<ListenAddr>,
    /// Other machines may use the addresses, although NVMe is not encrypted.
    pub allow_remote: Option<bool>,
    /// Maximum number of controllers.
    pub max_controllers: Option<usize>,
    /// Maximum number of controllers of one address.
    pub max_controllers_per_address: Option<usize>,
}

/// The options of the command line.
#[derive(Debug, Clone, Default)]
#[allow(missing_docs)] // as in `NvmeSection`
pub struct NvmeFlags {
    pub listen: Vec<ListenAddr>,
    pub discovery: Vec<ListenAddr>,
    pub allow_remote: bool,
}

/// The configuration of NVMe/TCP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NvmeConfig {
    /// Listen addresses.
    pub listen: Vec<ListenAddr>,
    /// Listen addresses at which hosts discover subsystems only.
    pub discovery: Vec<ListenAddr>,
    /// Other machines may use the addresses.
    pub allow_remote: bool,
    /// Limits on controllers.
    pub limits: ControllerLimits,
}

impl NvmeConfig {
    /// The settings of the front end.
    pub fn settings(&self) -> forebay_frontend::nvme::Settings<'_> {
        forebay_frontend::nvme::Settings {
            addresses: &self.listen,
            discovery: &self.discovery,
            allow_remote: self.allow_remote,
            limits: self.limits,
        }
    }
}

impl NvmeSection {
    pub(super) fn config(&self, flags: NvmeFlags) -> Result<NvmeConfig, ConfigError> {
        let all = self.max_controllers.unwrap_or(2048);
        let per_address = self.max_controllers_per_address.unwrap_or((all / 4).max(1));
        for (option, value) in
            [("nvme.max_controllers", all), ("nvme.max_controllers_per_address", per_address)]
        {
            if value == 0 {
                let why = "use at least 1; to disable NVMe, remove 'listen'";
                return Err(ConfigError::Value { option, value: value.to_string(), why });
            }
        }
        let or = |flags: Vec<ListenAddr>, file: &[ListenAddr]| match flags.is_empty() {
            true => file.to_vec(),
            false => flags,
        };
        let (listen, discovery) = (or(flags.listen, &self.listen), or(flags.discovery, &self.discovery));
        if let (Some(address), true) = (discovery.first(), listen.is_empty()) {
            let why = "there is nothing to discover: add 'listen', the addresses of the subsystems";
            return Err(ConfigError::Value { option: "nvme.discovery", value: address.to_string(), why });
        }
        Ok(NvmeConfig {
            listen,
            discovery,
            allow_remote: flags.allow_remote || self.allow_remote.unwrap_or(false),
            limits: ControllerLimits { all, per_address },
        })
    }
}
