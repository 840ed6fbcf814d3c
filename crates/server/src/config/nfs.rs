//! `[nfs]`: addresses of NFS, and what clients may do.

use std::str::FromStr;

use forebay_frontend::nfs::{AccessRule, Settings};
use forebay_frontend::plane::ListenAddr;
use serde::Deserialize;

/// Parses a listen address of NFS: `HOST:PORT`.
pub fn parse_nfs(text: &str) -> Result<ListenAddr, String> {
    match text.parse() {
        Ok(addr @ ListenAddr::Tcp(_)) => Ok(addr),
        _ => Err(format!("invalid NFS address '{text}'; use HOST:PORT, such as 127.0.0.1:2049")),
    }
}

/// Parses what the clients of a network may do: `NETWORK[,ro][,root-squash]`.
pub fn parse_access(text: &str) -> Result<AccessRule, String> {
    let mut parts = text.split(',');
    let network = parts.next().unwrap_or_default();
    let network = FromStr::from_str(network).map_err(|error| format!("{error}"))?;
    let mut rule = AccessRule { network, read_only: false, root_squash: false };
    for option in parts {
        match option {
            "ro" => rule.read_only = true,
            "rw" => rule.read_only = false,
            "root-squash" => rule.root_squash = true,
            _ => return Err(format!("'{option}' is not 'ro', 'rw' or 'root-squash'")),
        }
    }
    Ok(rule)
}

fn addresses<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<ListenAddr>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    texts.iter().map(|text| parse_nfs(text)).collect::<Result<_, _>>().map_err(serde::de::Error::custom)
}

fn rules<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<AccessRule>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    texts.iter().map(|text| parse_access(text)).collect::<Result<_, _>>().map_err(serde::de::Error::custom)
}

/// The section `[nfs]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NfsSection {
    /// Listen addresses of NFS and MOUNT.
    #[serde(default, deserialize_with = "addresses")]
    pub listen: Vec<ListenAddr>,
    /// Listen addresses of the port mapper.
    #[serde(default, deserialize_with = "addresses")]
    pub portmap: Vec<ListenAddr>,
    /// Other machines may use the addresses, although clients do not authenticate themselves.
    pub allow_remote: Option<bool>,
    /// What the clients of networks may do: `NETWORK[,ro][,root-squash]`. The first rule for a client
    /// decides.
    #[serde(default, deserialize_with = "rules")]
    pub access: Vec<AccessRule>,
}

/// The options of the command line.
#[derive(Debug, Clone, Default)]
#[allow(missing_docs)] // as in `NfsSection`
pub struct NfsFlags {
    pub listen: Vec<ListenAddr>,
    pub portmap: Vec<ListenAddr>,
    pub allow_remote: bool,
    pub access: Vec<AccessRule>,
}

/// The configuration of NFS.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)] // as in `NfsSection`
pub struct NfsConfig {
    pub listen: Vec<ListenAddr>,
    pub portmap: Vec<ListenAddr>,
    pub allow_remote: bool,
    pub access: Vec<AccessRule>,
}

impl NfsConfig {
    /// The settings of the front end.
    pub fn settings(&self) -> Settings<'_> {
        Settings {
            addresses: &self.listen,
            portmap: &self.portmap,
            allow_remote: self.allow_remote,
            access: &self.access,
        }
    }
}

impl NfsSection {
    pub(super) fn config(&self, flags: NfsFlags) -> NfsConfig {
        fn or<T: Clone>(flags: Vec<T>, file: &[T]) -> Vec<T> {
            if flags.is_empty() { file.to_vec() } else { flags }
        }
        NfsConfig {
            listen: or(flags.listen, &self.listen),
            portmap: or(flags.portmap, &self.portmap),
            allow_remote: flags.allow_remote || self.allow_remote.unwrap_or(false),
            access: or(flags.access, &self.access),
        }
    }
}

/// The text of a rule, as it is configured.
pub(super) fn rule_text(rule: &AccessRule) -> String {
    let read_only = if rule.read_only { ",ro" } else { "" };
    let squash = if rule.root_squash { ",root-squash" } else { "" };
    format!("{}{read_only}{squash}", rule.network)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_networks_with_options() {
        for (text, expected) in [
            ("10.0.0.0/24", Some("10.0.0.0/24")),
            ("10.0.0.1,root-squash,ro", Some("10.0.0.1/32,ro,root-squash")),
            ("fd00::/64,ro,rw", Some("fd00::/64")),
            ("10.0.0.0/40", None),
            ("10.0.0.0/24,readonly", None),
            ("", None),
        ] {
            let found = parse_access(text).ok().map(|rule| rule_text(&rule));
            assert_eq!(found.as_deref(), expected, "{text}");
        }
        assert!(parse_nfs("127.0.0.1:2049").is_ok());
        assert!(parse_nfs("unix:/run/nfs").is_err());
    }
}
