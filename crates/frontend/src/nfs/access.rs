//! Which clients may use the export, by their addresses.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// The user and the group of callers without an identity, and of squashed ones.
pub(super) const NOBODY: u32 = 65534;

/// A network: an address with the number of its leading bits that count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

/// A text that is not a network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not an address or a network, such as 10.0.0.0/24 or fd00::/64")]
pub struct BadNetwork(String);

impl FromStr for Network {
    type Err = BadNetwork;

    fn from_str(text: &str) -> Result<Network, BadNetwork> {
        let bad = || BadNetwork(text.to_owned());
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| bad())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(most), |bits| bits.parse().map_err(|_| bad()))?;
        if bits > most { Err(bad()) } else { Ok(Network { address, bits }) }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl Network {
    fn contains(&self, address: IpAddr) -> bool {
        let (own, other, len) = match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => (u32::from(own).into(), u32::from(other).into(), 32),
            (IpAddr::V6(own), IpAddr::V6(other)) => (u128::from(own), u128::from(other), 128),
            _ => return false,
        };
        let ignored = len - u32::from(self.bits);
        own.checked_shr(ignored).unwrap_or(0) == other.checked_shr(ignored).unwrap_or(0)
    }
}

/// What the clients of a network may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccessRule {
    /// The network.
    pub network: Network,
    /// Whether changes are refused.
    pub read_only: bool,
    /// Whether root of a client is an unprivileged user here (65534).
    pub root_squash: bool,
}

/// What a client may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Permitted {
    pub read_only: bool,
    pub root_squash: bool,
}

/// What the client of an address may do, by the first rule for it; `None` if it may do nothing. Without
/// rules, every client may do everything.
pub(super) fn permitted(rules: &[AccessRule], client: IpAddr) -> Option<Permitted> {
    if rules.is_empty() {
        return Some(Permitted { read_only: false, root_squash: false });
    }
    let rule = rules.iter().find(|rule| rule.network.contains(client))?;
    Some(Permitted { read_only: rule.read_only, root_squash: rule.root_squash })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(network: &str, read_only: bool) -> AccessRule {
        AccessRule { network: network.parse().unwrap(), read_only, root_squash: false }
    }

    #[test]
    fn the_first_rule_of_an_address_decides() {
        let rules = [rule("10.0.0.9", true), rule("10.0.0.0/24", false), rule("fd00::/64", true)];
        let of = |client: &str| permitted(&rules, client.parse().unwrap()).map(|found| found.read_only);
        assert_eq!(of("10.0.0.9"), Some(true));
        assert_eq!(of("10.0.0.10"), Some(false));
        assert_eq!(of("10.0.1.10"), None);
        assert_eq!(of("fd00::1"), Some(true));
        assert_eq!(of("fd00:0:0:1::1"), None);
        assert!(permitted(&[], "192.0.2.1".parse().unwrap()).is_some());
        let all = [rule("0.0.0.0/0", false)];
        assert!(permitted(&all, "192.0.2.1".parse().unwrap()).is_some());
        assert!(permitted(&all, "::1".parse().unwrap()).is_none());
        for bad in ["10.0.0.0/33", "10.0.0", "host", "::/129", "10.0.0.0/", ""] {
            assert!(bad.parse::<Network>().is_err(), "{bad}");
        }
        assert_eq!("10.0.0.0/24".parse::<Network>().unwrap().to_string(), "10.0.0.0/24");
    }
}
