//! `[iscsi]`: portals, session limits and targets.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use forebay_frontend::iscsi::{Algorithm, SessionLimits, WhileStandby};
use forebay_frontend::plane::ListenAddr;
use forebay_frontend::targets::{Chap, DhChapKey, Initiator, IqnName, Lun, Target, TargetError};
use forebay_host::modes;
use forebay_store::rados::MAX_GROUPS;
use forebay_text::Secret;
use serde::Deserialize;

use super::{ConfigError, PoolLocation};

/// Maximum number of portals that initiators discover.
const MAX_PORTALS: usize = 16;

/// Parses the address of a portal: `HOST:PORT`.
pub fn parse_portal(text: &str) -> Result<ListenAddr, String> {
    match text.parse() {
        Ok(addr @ ListenAddr::Tcp(_)) => Ok(addr),
        _ => Err(format!("invalid iSCSI address '{text}'; use HOST:PORT, such as 0.0.0.0:3260")),
    }
}

fn portals<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<ListenAddr>, D::Error> {
    let texts = Vec::<String>::deserialize(deserializer)?;
    let portals = texts.iter().map(|text| parse_portal(text));
    portals.collect::<Result<_, _>>().map_err(serde::de::Error::custom)
}

/// The section `[iscsi]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IscsiSection {
    /// Addresses of the portals.
    #[serde(default, deserialize_with = "portals")]
    pub listen: Vec<ListenAddr>,
    /// Portals that initiators discover, and to which other servers redirect them. The default is `listen`;
    /// for redirections, its addresses without wildcards.
    pub portals: Option<Vec<SocketAddr>>,
    /// What portals do while another server has the pool.
    #[serde(default)]
    pub while_standby: WhileStandby,
    /// Target port group and portal group tag of this server.
    pub port_group: Option<u16>,
    /// Maximum number of sessions.
    pub max_sessions: Option<usize>,
    /// Maximum number of sessions of one initiator at one target.
    pub max_sessions_per_initiator: Option<usize>,
    /// Maximum number of sessions from one address.
    pub max_sessions_per_address: Option<usize>,
    /// Hash functions that CHAP may use; if absent, all supported functions.
    pub chap_algorithms: Option<Vec<Algorithm>>,
    /// The sections `[[iscsi.target]]`.
    #[serde(default)]
    pub target: Vec<TargetSection>,
}

/// A section `[[iscsi.target]]`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetSection {
    /// Name of the target (IQN).
    pub name: IqnName,
    /// The target admits any initiator.
    #[serde(default)]
    pub open: bool,
    /// CHAP user of initiators whose entry has no CHAP user.
    pub chap_user: Option<String>,
    /// File with the CHAP secret of the initiators without a separate secret.
    pub chap_secret_file: Option<PathBuf>,
    /// CHAP user of the target, for mutual CHAP.
    pub mutual_user: Option<String>,
    /// File with the CHAP secret of the target.
    pub mutual_secret_file: Option<PathBuf>,
    /// File with the DH-HMAC-CHAP key of the target, for NVMe hosts.
    pub dhchap_key_file: Option<PathBuf>,
    /// Disks that the target maps.
    #[serde(default)]
    pub luns: Vec<LunSection>,
    /// Entries of the access control list.
    #[serde(default)]
    pub initiators: Vec<InitiatorSection>,
}

/// An element of `luns`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LunSection {
    /// The logical unit number (LUN).
    pub lun: u16,
    /// Name of the disk: volume, image, or `VOLUME@SNAPSHOT`.
    pub disk: String,
    /// Writes to the disk are refused.
    #[serde(default)]
    pub read_only: bool,
    /// Writes to the disk are acknowledged before they are durable.
    #[serde(default)]
    pub write_back: bool,
}

/// An element of `initiators`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InitiatorSection {
    /// Name of the initiator.
    pub name: IqnName,
    /// CHAP user of the initiator.
    pub chap_user: Option<String>,
    /// File with the CHAP secret of the initiator.
    pub chap_secret_file: Option<PathBuf>,
    /// File with the DH-HMAC-CHAP key of the initiator, an NVMe host.
    pub dhchap_key_file: Option<PathBuf>,
    /// LUNs that the initiator can use; all LUNs if absent.
    pub luns: Option<Vec<u16>>,
}

/// The paths of this server to its pool, among the paths of other servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IscsiPaths {
    /// Portals that initiators discover, and to which other servers redirect them. If `None`, the bound
    /// portals; for redirections, only portals with a specific address.
    pub portals: Option<Vec<SocketAddr>>,
    /// What the portals of this server do while another server has the pool.
    pub while_standby: WhileStandby,
    /// Target port group of this server.
    pub group: u16,
}

impl IscsiSection {
    pub(super) fn limits(&self) -> Result<SessionLimits, ConfigError> {
        let all = self.max_sessions.unwrap_or(2048);
        let per_initiator = self.max_sessions_per_initiator.unwrap_or(64);
        let per_address = self.max_sessions_per_address.unwrap_or((all / 4).max(per_initiator));
        let limits = SessionLimits { all, per_initiator, per_address };
        for (option, value) in [
            ("iscsi.max_sessions", all),
            ("iscsi.max_sessions_per_initiator", per_initiator),
            ("iscsi.max_sessions_per_address", per_address),
        ] {
            if value == 0 {
                let why = "use at least 1; to disable iSCSI, remove 'listen'";
                return Err(ConfigError::Value { option, value: value.to_string(), why });
            }
        }
        Ok(limits)
    }

    /// The paths of a server whose pool is in this location.
    pub(super) fn paths(&self, location: &PoolLocation) -> Result<IscsiPaths, ConfigError> {
        let bad = |option, value: String, why| Err(ConfigError::Value { option, value, why });
        for (option, is_given) in [
            ("iscsi.while_standby", self.while_standby != WhileStandby::Closed),
            ("iscsi.port_group", self.port_group.is_some()),
        ] {
            if is_given && !matches!(location, PoolLocation::Rados(_)) {
                return Err(ConfigError::NotInCeph(option));
            }
        }
        let unusable = |portal: &&SocketAddr| portal.ip().is_unspecified() || portal.port() == 0;
        if let Some(portal) = self.portals.iter().flatten().find(unusable) {
            let why = "use addresses of this server alone, with their ports, such as 10.0.0.11:3260";
            return bad("iscsi.portals", portal.to_string(), why);
        }
        if let Some(portals) = self.portals.as_ref().filter(|portals| portals.len() > MAX_PORTALS) {
            return bad("iscsi.portals", format!("of {} addresses", portals.len()), "use at most 16");
        }
        let group = match self.port_group {
            Some(group) if group == 0 || usize::from(group) > MAX_GROUPS => {
                return bad("iscsi.port_group", group.to_string(), "use 1 to 16");
            }
            None if self.while_standby == WhileStandby::Alua => {
                let why = "it needs 'port_group', a number from 1 to 16 that no other server of the pool has";
                return bad("iscsi.while_standby", "alua".into(), why);
            }
            group => group.unwrap_or(1),
        };
        Ok(IscsiPaths { portals: self.portals.clone(), while_standby: self.while_standby, group })
    }

    pub(super) fn chap_algorithms(&self) -> Result<Vec<Algorithm>, ConfigError> {
        match &self.chap_algorithms {
            None => Ok(Algorithm::ALL.to_vec()),
            Some(named) if named.is_empty() => Err(ConfigError::Value {
                option: "iscsi.chap_algorithms",
                value: "[]".into(),
                why: "list at least one of \"md5\", \"sha1\", \"sha256\", \"sha3-256\"",
            }),
            Some(named) => Ok(named.clone()),
        }
    }

    /// Reads the secrets and returns the targets. Returns an error for every mistake that is visible without
    /// the pool.
    pub(super) fn targets(self) -> Result<Vec<Target>, ConfigError> {
        let mut targets: Vec<Target> = Vec::new();
        for section in self.target {
            let name = section.name.clone();
            let bad = |e: TargetError| ConfigError::Target { name: name.clone(), reason: e.to_string() };
            if targets.iter().any(|other| other.name == name) {
                return Err(bad(TargetError::Exists(name.clone())));
            }
            let target = section.target()?;
            target.check().map_err(bad)?;
            targets.push(target);
        }
        Ok(targets)
    }
}

impl TargetSection {
    fn target(self) -> Result<Target, ConfigError> {
        let name = self.name;
        let mut initiators = Vec::new();
        for i in self.initiators {
            let chap = chap(&name, i.chap_user, i.chap_secret_file)?;
            let dhchap = key(&name, i.dhchap_key_file)?;
            initiators.push(Initiator { name: i.name, chap, dhchap, luns: i.luns });
        }
        let mut target = Target {
            number: 0,
            open: self.open,
            chap: chap(&name, self.chap_user, self.chap_secret_file)?,
            mutual: chap(&name, self.mutual_user, self.mutual_secret_file)?,
            dhchap: key(&name, self.dhchap_key_file)?,
            luns: Default::default(),
            initiators,
            name,
        };
        for LunSection { lun, disk, read_only, write_back } in self.luns {
            if let Some(previous) = target.luns.insert(lun, Lun { disk, read_only, write_back }) {
                let (target, disk) = (target.name, previous.disk);
                let taken = TargetError::LunTaken { target: target.clone(), lun, disk };
                return Err(ConfigError::Target { name: target, reason: taken.to_string() });
            }
        }
        Ok(target)
    }
}

/// Reads the secret of a user; user and file must be given together or not at all.
fn chap(
    target: &IqnName,
    user: Option<String>,
    secret_file: Option<PathBuf>,
) -> Result<Option<Chap>, ConfigError> {
    let bad = |reason| ConfigError::Target { name: target.clone(), reason };
    let (user, path) = match (user, secret_file) {
        (None, None) => return Ok(None),
        (Some(user), Some(path)) => (user, path),
        _ => return Err(bad("a CHAP user and the file with its secret must be given together".into())),
    };
    Ok(Some(Chap { user, secret: secret(target, &path)? }))
}

/// Reads a DH-HMAC-CHAP key.
fn key(target: &IqnName, file: Option<PathBuf>) -> Result<Option<DhChapKey>, ConfigError> {
    file.map(|path| secret(target, &path).map(DhChapKey::new)).transpose()
}

fn secret(target: &IqnName, path: &Path) -> Result<Secret, ConfigError> {
    if let Some(warning) = modes::secret_warning(path) {
        // Logging has not started yet.
        eprintln!("forebay: {}", forebay_text::one_line(&warning));
    }
    File::open(path).and_then(Secret::read).map_err(|e| ConfigError::Target {
        name: target.clone(),
        reason: format!("cannot read the secret in {}: {e}", path.display()),
    })
}
