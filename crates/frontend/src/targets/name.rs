//! Names of targets, of iSCSI initiators, and of NVMe hosts.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Maximum length of a name in bytes (RFC 7143, section 4.2.7.1).
const MAX_LEN: usize = 223;
const IQN: &str = "iqn.";
const NQN: &str = "nqn.";

/// The name of a target, of an iSCSI initiator, or of an NVMe host: in any of the formats of RFC 7143,
/// section 4.2.7 (`iqn.`, `eui.`, `naa.`), or an NVMe Qualified Name (`nqn.`; NVMe Base 2.0, section 4.5).
///
/// A qualified name of NVMe keeps its case, since such names are compared as bytes. Any other name is stored
/// in lower case, so that equal names are the same bytes (stringprep's case folding, RFC 3722).
/// Characters beyond ASCII, which the RFC permits but which are not in use, are refused; `_`, which the RFC
/// forbids, is accepted, because some initiators derive their names from host names.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct IqnName(String);

/// A text that is not a valid name, and the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{name}' is not an iSCSI or NVMe name: {why}")]
pub struct BadIqn {
    /// The invalid name, shortened.
    name: String,
    why: &'static str,
}

impl IqnName {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the name is an NVMe Qualified Name, which no target or initiator of iSCSI can have.
    pub fn is_nqn(&self) -> bool {
        self.0.starts_with(NQN)
    }

    /// The NVMe Qualified Name of a target with this name: the same name, with `nqn.` in place of `iqn.`.
    /// `None` for the formats `eui.` and `naa.`, which NVMe does not have.
    pub fn subsystem(&self) -> Option<String> {
        match self.0.strip_prefix(IQN) {
            Some(rest) => Some(format!("{NQN}{rest}")),
            None => self.is_nqn().then(|| self.0.clone()),
        }
    }

    /// The names that a target with this NVMe Qualified Name can have.
    pub fn of_subsystem(nqn: &str) -> Option<[IqnName; 2]> {
        let rest = nqn.strip_prefix(NQN)?;
        let derived =
            format!("{IQN}{rest}").parse::<IqnName>().ok().filter(|name| name.as_str().ends_with(rest));
        let stated: IqnName = nqn.parse().ok()?;
        Some([stated.clone(), derived.unwrap_or(stated)])
    }
}

impl FromStr for IqnName {
    type Err = BadIqn;

    fn from_str(text: &str) -> Result<IqnName, BadIqn> {
        match mistake(text) {
            None if text.starts_with(NQN) => Ok(IqnName(text.to_owned())),
            None => Ok(IqnName(text.to_ascii_lowercase())),
            Some(why) => {
                let shown = text.chars().map(|c| if c.is_control() { '?' } else { c }).take(64).collect();
                Err(BadIqn { name: shown, why })
            }
        }
    }
}

/// The defect of a name; `None` if it is valid.
fn mistake(text: &str) -> Option<&'static str> {
    if text.len() > MAX_LEN {
        return Some("it is longer than 223 bytes");
    }
    if !text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.:_".contains(&b)) {
        return Some("it may contain only letters, digits, '-', '.', ':' and '_'");
    }
    let lower = text.to_ascii_lowercase();
    let is_hex = |digits: &str| digits.bytes().all(|b| b.is_ascii_hexdigit());
    if let Some(rest) = lower.strip_prefix(IQN) {
        iqn_mistake(rest)
    } else if let Some(rest) = text.strip_prefix(NQN) {
        iqn_mistake(rest)
    } else if let Some(digits) = lower.strip_prefix("eui.") {
        (digits.len() != 16 || !is_hex(digits)).then_some("'eui.' is followed by 16 hexadecimal digits")
    } else if let Some(digits) = lower.strip_prefix("naa.") {
        let good = matches!(digits.len(), 16 | 32) && is_hex(digits);
        (!good).then_some("'naa.' is followed by 16 or 32 hexadecimal digits")
    } else {
        Some(
            "it begins with none of 'iqn.', 'eui.', 'naa.' and 'nqn.'; use a name such as iqn.2026-01.org.example:disks",
        )
    }
}

/// The defect of the part after `iqn.`; `None` if it is valid. The part consists of a month, a domain name in
/// reverse, and optionally `:` with any text.
fn iqn_mistake(rest: &str) -> Option<&'static str> {
    let (date, authority) = match rest.split_once('.') {
        Some((date, authority)) => (date, authority),
        None => (rest, ""),
    };
    let month = date.split_once('-').and_then(|(year, month)| {
        let digits = |text: &str, count| text.len() == count && text.bytes().all(|b| b.is_ascii_digit());
        (digits(year, 4) && digits(month, 2)).then_some(month)
    });
    if !month.is_some_and(|month| ("01"..="12").contains(&month)) {
        return Some(
            "'iqn.' or 'nqn.' is followed by a year and a month, as in iqn.2026-01.org.example:disks",
        );
    }
    let (domain, own) = match authority.split_once(':') {
        Some((domain, own)) => (domain, Some(own)),
        None => (authority, None),
    };
    let is_label = |label: &str| label.starts_with(|c: char| c.is_ascii_alphanumeric());
    if !domain.split('.').all(is_label) {
        return Some(
            "the month is followed by a domain name in reverse, as in iqn.2026-01.org.example:disks",
        );
    }
    (own == Some("")).then_some("nothing follows ':'")
}

impl fmt::Display for IqnName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Borrow<str> for IqnName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl From<IqnName> for String {
    fn from(name: IqnName) -> String {
        name.0
    }
}

impl TryFrom<String> for IqnName {
    type Error = BadIqn;

    fn try_from(text: String) -> Result<IqnName, BadIqn> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_real_initiators_are_valid() {
        for name in [
            "iqn.1993-08.org.debian:01:8f5a1b2c3d4e",
            "iqn.1991-05.com.microsoft:host.example.com",
            "iqn.1998-01.com.vmware:esx-0a1b2c3d",
            "iqn.2008-11.org.linux-kvm:my_guest",
            "iqn.2007-10.com.github:sahlberg:libiscsi:iscsi-test",
            "iqn.2026-12.org.example",
            "eui.02004567A425678D",
            "naa.52004567BA64678D",
            "naa.62004567BA64678D0123456789ABCDEF",
        ] {
            assert_eq!(name.parse::<IqnName>().unwrap().as_str(), name.to_ascii_lowercase());
        }
        let (a, b) = ("IQN.2026-01.Org.Example:A".parse::<IqnName>(), "iqn.2026-01.org.example:a".parse());
        assert_eq!(a, b);
    }

    #[test]
    fn names_of_nvme_keep_their_case_and_belong_to_targets() {
        let host = "nqn.2014-08.org.nvmexpress:uuid:0A1b2c3d-0000-0000-0000-000000000000";
        let name = host.parse::<IqnName>().unwrap();
        assert!(name.is_nqn() && name.as_str() == host);
        assert_eq!(name.subsystem().as_deref(), Some(host));
        let target = "iqn.2026-01.org.example:a".parse::<IqnName>().unwrap();
        let subsystem = target.subsystem().unwrap();
        assert_eq!(subsystem, "nqn.2026-01.org.example:a");
        assert!(IqnName::of_subsystem(&subsystem).unwrap().contains(&target));
        // The names are compared as bytes.
        assert!(!IqnName::of_subsystem("nqn.2026-01.org.example:A").unwrap().contains(&target));
        assert_eq!("eui.02004567a425678d".parse::<IqnName>().unwrap().subsystem(), None);
        assert!("NQN.2026-01.org.example:a".parse::<IqnName>().is_err());
    }

    #[test]
    fn invalid_names_are_refused_with_the_defect() {
        let long = format!("iqn.2026-01.org.example:{}", "x".repeat(200));
        for (name, why) in [
            ("", "none of 'iqn.'"),
            ("disk", "none of 'iqn.'"),
            ("iqn", "none of 'iqn.'"),
            ("iqn.", "a year and a month"),
            ("iqn.2026", "a year and a month"),
            ("iqn.2026-13.org.example", "a year and a month"),
            ("iqn.2026-00.org.example", "a year and a month"),
            ("iqn.26-01.org.example", "a year and a month"),
            ("iqn.2026-01", "a domain name"),
            ("iqn.2026-01.", "a domain name"),
            ("iqn.2026-01.:x", "a domain name"),
            ("iqn.2026-01.org..example:x", "a domain name"),
            ("iqn.2026-01.org.example:", "nothing follows"),
            ("iqn.2026-01.org.example:a b", "only letters"),
            ("iqn.2026-01.org.example:a/b", "only letters"),
            ("iqn.2026-01.org.example:é", "only letters"),
            ("iqn.2026-01.org.example:a\n", "only letters"),
            ("eui.02004567a425678", "16 hexadecimal"),
            ("eui.02004567a425678g", "16 hexadecimal"),
            ("naa.52004567ba64678d00", "16 or 32"),
            (&long, "223 bytes"),
        ] {
            let error = name.parse::<IqnName>().unwrap_err().to_string();
            assert!(error.contains(why) && !error.contains('\n'), "{name}: {error}");
        }
        let most = format!("iqn.2026-01.org.example:{}", "x".repeat(199));
        assert_eq!(most.len(), MAX_LEN);
        assert!(most.parse::<IqnName>().is_ok());
    }
}
