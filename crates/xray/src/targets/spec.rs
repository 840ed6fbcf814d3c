//! The target of a command: a word of the command line, a URI, or a description in a file.

use std::str::FromStr;

use serde::Deserialize;

use crate::device::Endpoint;
use crate::iscsi::Address;
use crate::nbd::Uri;
use crate::nvme::Namespace;
use crate::scenario::Size;

/// How clients reach Forebay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// NBD over a UNIX socket.
    #[default]
    Unix,
    /// NBD over TCP.
    Tcp,
    /// Clients use iSCSI.
    Iscsi,
    /// Clients use NVMe/TCP.
    Nvme,
}

impl Transport {
    /// Whether disks are mapped to a target.
    pub fn has_targets(self) -> bool {
        matches!(self, Transport::Iscsi | Transport::Nvme)
    }
}

/// How a Forebay server is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForebayKind {
    /// How clients reach Forebay.
    pub transport: Transport,
    /// The pool is in a Ceph cluster for tests.
    pub rados: bool,
    /// Number of servers of the pool: 1, or 2 of which one stands by.
    pub nodes: u32,
    /// Size of the read cache.
    pub cache: Size,
    /// Additional text of the configuration.
    pub settings: String,
}

/// The kinds of targets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A Forebay server.
    Forebay(ForebayKind),
    /// `qemu-nbd` on qcow2 files, one server for each disk.
    QemuNbd,
    /// `qemu-nbd` on images of RBD, in a Ceph cluster for tests.
    Librbd,
    /// `nbdkit` on raw files.
    Nbdkit,
    /// `tgtd` on raw files.
    Tgtd,
    /// A disk that exists.
    Given(Endpoint),
}

/// A target, with its name in reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TargetSpec {
    /// Name of the target in reports.
    pub name: String,
    /// Kind of the target.
    pub kind: Kind,
}

/// A description that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// The word names no known target.
    #[error(
        "unknown target \"{0}\": use forebay, forebay-tcp, forebay-iscsi, forebay-nvme, forebay-rados, forebay-rados-2, qemu-nbd, \
         nbdkit, tgtd, librbd, nbd://HOST:PORT/EXPORT, nbd+unix:///EXPORT?socket=PATH, iscsi://HOST:PORT/TARGET/LUN, \
         nvme://HOST:PORT/SUBSYSTEM/NAMESPACE or file:PATH"
    )]
    Unknown(String),
    /// A file of targets is wrong.
    #[error("{file}: {what}")]
    File {
        /// Name of the file.
        file: String,
        /// What is wrong in the file.
        what: String,
    },
}

const DEFAULT_CACHE: Size = Size(1 << 30);

impl FromStr for TargetSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<TargetSpec, SpecError> {
        let forebay = |transport, nodes: u32| {
            let (rados, cache, settings) = (nodes > 0, DEFAULT_CACHE, String::new());
            Kind::Forebay(ForebayKind { transport, rados, nodes: nodes.max(1), cache, settings })
        };
        let kind = match text {
            "forebay" => forebay(Transport::Unix, 0),
            "forebay-tcp" => forebay(Transport::Tcp, 0),
            "forebay-iscsi" => forebay(Transport::Iscsi, 0),
            "forebay-nvme" => forebay(Transport::Nvme, 0),
            "forebay-rados" => forebay(Transport::Unix, 1),
            // Clients on a UNIX socket belong to one host.
            "forebay-rados-2" => forebay(Transport::Tcp, 2),
            "qemu-nbd" => Kind::QemuNbd,
            "librbd" => Kind::Librbd,
            "nbdkit" => Kind::Nbdkit,
            "tgtd" => Kind::Tgtd,
            uri => Kind::Given(endpoint(uri).ok_or_else(|| SpecError::Unknown(uri.to_owned()))?),
        };
        Ok(TargetSpec { name: text.to_owned(), kind })
    }
}

fn endpoint(uri: &str) -> Option<Endpoint> {
    if let Some(path) = uri.strip_prefix("file:").filter(|p| !p.is_empty()) {
        return Some(Endpoint::File(path.into()));
    }
    if uri.starts_with("nbd") {
        let Uri { target, export } = uri.parse().ok()?;
        return Some(Endpoint::Nbd(target, export?));
    }
    let (is_nvme, rest) = match uri.strip_prefix("nvme://") {
        Some(rest) => (true, rest),
        None => (false, uri.strip_prefix("iscsi://")?),
    };
    let mut parts = rest.split('/');
    let (portal, target, number) = (parts.next()?, parts.next()?.to_owned(), parts.next()?);
    if parts.next().is_some() || target.is_empty() {
        return None;
    }
    let port = if is_nvme { 4420 } else { 3260 };
    let portal = if has_port(portal) { portal.to_owned() } else { format!("{portal}:{port}") };
    Some(if is_nvme {
        let number = number.parse().ok().filter(|number| *number > 0)?;
        Endpoint::Nvme(Namespace { portal, subsystem: target, number })
    } else {
        Endpoint::Iscsi(Address { portal, target, lun: number.parse().ok()? })
    })
}

fn has_port(address: &str) -> bool {
    address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok())
}

/// A file of targets.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    target: Vec<Described>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Described {
    name: String,
    /// A word or URI of the command line.
    target: String,
    cache: Option<Size>,
    transport: Option<Transport>,
    #[serde(default)]
    settings: String,
}

/// Reads the targets of a description in TOML.
pub fn parse_file(file: &str, text: &str) -> Result<Vec<TargetSpec>, SpecError> {
    let wrong = |what: String| SpecError::File { file: file.to_owned(), what };
    let parsed: File = toml::from_str(text).map_err(|e| {
        let at = e.span().map_or(0, |s| s.start);
        let line = text.as_bytes().iter().take(at).filter(|b| **b == b'\n').count() + 1;
        wrong(format!("line {line}: {}", e.message().replace('\n', " ")))
    })?;
    let described = |d: Described| {
        let mut spec: TargetSpec = d.target.parse().map_err(|e: SpecError| wrong(e.to_string()))?;
        match &mut spec.kind {
            Kind::Forebay(kind) => {
                kind.transport = d.transport.unwrap_or(kind.transport);
                kind.cache = d.cache.unwrap_or(kind.cache);
                kind.settings = d.settings;
                if kind.nodes > 1 && kind.transport == Transport::Unix {
                    let what = "clients of two nodes need transport = \"tcp\" or \"iscsi\"";
                    return Err(wrong(format!("'{}': {what}", d.name)));
                }
            }
            _ if d.cache.is_some() || d.transport.is_some() || !d.settings.is_empty() => {
                return Err(wrong(format!("'{}': cache, transport and settings belong to forebay", d.name)));
            }
            _ => {}
        }
        Ok(TargetSpec { name: d.name, ..spec })
    };
    parsed.target.into_iter().map(described).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_uris_are_parsed_and_others_rejected() {
        let given = |uri: &str| match uri.parse::<TargetSpec>().map(|s| s.kind) {
            Ok(Kind::Given(endpoint)) => endpoint.to_string(),
            other => panic!("{other:?}"),
        };
        for uri in [
            "nbd://localhost:10/a",
            "nbd+unix:///a?socket=/s",
            "iscsi://h:1/iqn.x:y/3",
            "nvme://h:1/nqn.x:y/3",
            "file:/dev/sdX",
        ] {
            assert_eq!(given(uri), uri);
        }
        assert_eq!(given("nbd://host/"), "nbd://host:10809/");
        for word in [
            "forebay",
            "forebay-iscsi",
            "forebay-nvme",
            "forebay-rados-2",
            "qemu-nbd",
            "nbdkit",
            "tgtd",
            "librbd",
        ] {
            assert_eq!(word.parse::<TargetSpec>().expect(word).name, word);
        }
        for bad in
            ["", "fore", "file:", "nbd+unix:///a", "iscsi://h/t", "iscsi://h/t/x", "nvme://h/t/0", "http://a"]
        {
            assert!(bad.parse::<TargetSpec>().is_err(), "{bad}");
        }
    }

    #[test]
    fn descriptions_are_parsed_and_mistakes_have_their_line() {
        let text =
            "[[target]]\nname = \"big\"\ntarget = \"forebay\"\ncache = \"4GiB\"\ntransport = \"tcp\"\n";
        let specs = parse_file("t", text).expect("is valid");
        assert!(
            matches!(&specs[0].kind, Kind::Forebay(f) if f.transport == Transport::Tcp && f.cache.0 == 4 << 30)
        );
        for (bad, part) in [
            (text.replace("cache", "cash"), "line 4"),
            (text.replace("\"forebay\"", "\"nbdkit\""), "belong to forebay"),
            (text.replace("\"forebay\"", "\"x\""), "unknown target"),
            (text.replace("forebay", "forebay-rados-2").replace("tcp", "unix"), "need transport"),
        ] {
            let error = parse_file("t", &bad).expect_err(&bad).to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
