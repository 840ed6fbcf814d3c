//! `forebay volume connect`: what a client needs in order to use a disk, as lines to copy.

use std::fmt::Write;

use clap::ValueEnum;
use forebay_api::client::Client;
use forebay_api::{DiskStatsView, DiskView, ServerView, TargetView};
use serde::Serialize;

use super::{CliError, output};

/// A kind of client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ClientKind {
    /// The address of the disk as an NBD URI
    Uri,
    /// Options of QEMU
    Qemu,
    /// The disk element of a libvirt domain
    Libvirt,
    /// The command that makes a block device of the host
    NbdClient,
    /// The commands that log in to the iSCSI target
    Iscsi,
}

/// The disk to use.
struct Disk<'a> {
    name: &'a str,
    is_read_only: bool,
}

/// A way in which a client can use the disk.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Way {
    #[serde(rename = "for")]
    client: ClientKind,
    /// The address of the server.
    address: String,
    text: String,
}

pub(super) async fn run(
    client: &Client,
    name: &str,
    only: Option<ClientKind>,
    json: bool,
) -> Result<(), CliError> {
    // Any disk has statistics.
    let _: DiskStatsView = client.get(&["stats", name]).await?;
    let is_image = client.get::<DiskView>(&["images", name]).await.is_ok();
    let disk = Disk { name, is_read_only: is_image || name.contains('@') };
    let server: ServerView = client.get(&["pool"]).await?;
    let targets: Vec<TargetView> = client.get(&["targets"]).await?;
    let mut ways = ways(&disk, &server, &targets);
    ways.retain(|way| only.is_none_or(|only| way.client == only));
    if ways.is_empty() {
        return Err(CliError::NoWay(name.to_owned(), missing(&server, only)));
    }
    output::print_result(&ways, json, |ways| page(ways))
}

/// What the server lacks for this kind of client.
fn missing(server: &ServerView, only: Option<ClientKind>) -> &'static str {
    match only {
        Some(ClientKind::Iscsi) if server.iscsi.is_empty() => "start the server with --iscsi HOST:PORT",
        Some(ClientKind::Iscsi) => "map it to a target: forebay lun map TARGET NAME",
        _ => "start the server with --nbd ADDRESS",
    }
}

fn ways(disk: &Disk<'_>, server: &ServerView, targets: &[TargetView]) -> Vec<Way> {
    let mut ways = Vec::new();
    for address in &server.nbd {
        let kinds = [ClientKind::Uri, ClientKind::Qemu, ClientKind::Libvirt, ClientKind::NbdClient];
        let of = |client| Way { client, address: address.clone(), text: nbd(client, disk, address) };
        ways.extend(kinds.map(of));
    }
    for address in &server.iscsi {
        let (host, port) = reachable(address);
        for (target, lun) in targets.iter().flat_map(|t| t.luns.iter().map(move |lun| (t, lun))) {
            if lun.disk == disk.name {
                let text = format!(
                    "iscsiadm -m discovery -t sendtargets -p {host}:{port}\n\
                     iscsiadm -m node -T {} -p {host}:{port} --login        # LUN {}",
                    target.name, lun.lun
                );
                ways.push(Way { client: ClientKind::Iscsi, address: address.clone(), text });
            }
        }
    }
    ways
}

fn nbd(client: ClientKind, disk: &Disk<'_>, address: &str) -> String {
    let Disk { name, is_read_only } = *disk;
    let socket = address.strip_prefix("unix:");
    let (host, port) = reachable(address);
    // Only a URI has an IPv6 address in brackets.
    let plain_host = host.trim_start_matches('[').trim_end_matches(']');
    match (client, socket) {
        (ClientKind::Uri, Some(path)) => {
            shell(&format!("nbd+unix:///{}?socket={}", uri(name, ""), uri(path, "/")))
        }
        (ClientKind::Uri, None) => shell(&format!("nbd://{host}:{port}/{}", uri(name, ""))),
        (ClientKind::Qemu, _) => {
            let server = match socket {
                Some(path) => format!("server.type=unix,server.path={}", qemu(path)),
                None => format!("server.type=inet,server.host={},server.port={port}", qemu(plain_host)),
            };
            let access = if is_read_only { "read-only=on" } else { "discard=unmap" };
            let device = format!(
                "driver=nbd,node-name=disk,{server},export={},reconnect-delay=300,cache.direct=on,{access}",
                qemu(name)
            );
            format!("-blockdev {} -device virtio-blk-pci,drive=disk", shell(&device))
        }
        (ClientKind::Libvirt, _) => {
            let host = match socket {
                Some(path) => format!("<host transport='unix' socket='{}'/>", xml(path)),
                None => format!("<host name='{}' port='{port}'/>", xml(plain_host)),
            };
            let access = if is_read_only { "\n  <readonly/>" } else { "" };
            format!(
                "<disk type='network' device='disk'>\n  \
                 <driver name='qemu' type='raw' cache='none' discard='unmap'/>\n  \
                 <source protocol='nbd' name='{}'>\n    {host}\n    <reconnect delay='300'/>\n  \
                 </source>\n  <target dev='vda' bus='virtio'/>{access}\n</disk>",
                xml(name)
            )
        }
        (_, Some(path)) => {
            format!("nbd-client -unix {} /dev/nbd0 -name {} -persist", shell(path), shell(name))
        }
        (_, None) => format!("nbd-client {plain_host} {port} /dev/nbd0 -name {} -persist", shell(name)),
    }
}

/// Host and port for a client. A client cannot use an address that stands for all addresses of the server.
fn reachable(address: &str) -> (&str, &str) {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    (if matches!(host, "0.0.0.0" | "[::]" | "*") { "SERVER" } else { host }, port)
}

/// Percent-encodes everything except the unreserved characters of a URI (RFC 3986, section 2.3) and `also`.
fn uri(text: &str, also: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || also.as_bytes().contains(&byte) {
            true => encoded.push(byte.into()),
            // Writing to a string cannot fail.
            false => drop(write!(encoded, "%{byte:02X}")),
        }
    }
    encoded
}

/// A value of an option of QEMU, in which a comma is doubled.
fn qemu(value: &str) -> String {
    value.replace(',', ",,")
}

/// The value of an attribute in XML.
fn xml(value: &str) -> String {
    let escape = [('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('\'', "&apos;"), ('"', "&quot;")];
    escape.into_iter().fold(value.to_owned(), |text, (c, escaped)| text.replace(c, escaped))
}

/// A word of a POSIX shell. A word that looks like an option is quoted too, so that it is noticed.
fn shell(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._~/:=,@%+".contains(c);
    match !word.is_empty() && !word.starts_with('-') && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

fn page(ways: &[Way]) -> String {
    let mut page = String::new();
    for Way { client, text, .. } in ways {
        let title = match client {
            ClientKind::Uri => "NBD URI",
            ClientKind::Qemu => "QEMU",
            ClientKind::Libvirt => "libvirt",
            ClientKind::NbdClient => "nbd-client",
            ClientKind::Iscsi => "iSCSI",
        };
        // With one kind only, the text can be copied as a whole.
        if ways.iter().any(|other| other.client != *client) {
            let _ = writeln!(page, "# {title}");
        }
        let _ = writeln!(page, "{text}\n");
    }
    page.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_api::LunView;

    fn disk(name: &str, is_read_only: bool) -> Disk<'_> {
        Disk { name, is_read_only }
    }

    #[test]
    fn each_client_gets_its_lines() {
        let unix = |kind| nbd(kind, &disk("pc-1", false), "unix:/run/nbd.sock");
        assert_eq!(unix(ClientKind::Uri), "'nbd+unix:///pc-1?socket=/run/nbd.sock'");
        assert!(unix(ClientKind::Qemu).contains("server.path=/run/nbd.sock,export=pc-1,reconnect-delay=300"));
        assert!(unix(ClientKind::Libvirt).contains("<host transport='unix' socket='/run/nbd.sock'/>"));
        assert_eq!(
            unix(ClientKind::NbdClient),
            "nbd-client -unix /run/nbd.sock /dev/nbd0 -name pc-1 -persist"
        );
        let tcp = |kind| nbd(kind, &disk("pc@s", true), "0.0.0.0:10809");
        assert_eq!(tcp(ClientKind::Uri), "nbd://SERVER:10809/pc%40s");
        assert!(tcp(ClientKind::Qemu).contains("server.host=SERVER,server.port=10809,export=pc@s"));
        assert!(tcp(ClientKind::Qemu).contains("read-only=on"));
        assert_eq!(tcp(ClientKind::NbdClient), "nbd-client SERVER 10809 /dev/nbd0 -name pc@s -persist");
        let six = |kind| nbd(kind, &disk("v", false), "[::1]:10809");
        assert_eq!(six(ClientKind::Uri), "'nbd://[::1]:10809/v'");
        assert!(six(ClientKind::Qemu).contains("server.host=::1,server.port=10809"));
    }

    /// An administrator copies the lines, and a user with fewer rights may have chosen the name.
    #[test]
    fn names_and_paths_cannot_leave_their_place() {
        let of = |kind, name| nbd(kind, &disk(name, false), "unix:/tmp/so ck,&");
        let hostile = "a%41;$(id)'x,read-only=off<b>\"";
        assert_eq!(
            of(ClientKind::Uri, hostile),
            "'nbd+unix:///a%2541%3B%24%28id%29%27x%2Cread-only%3Doff%3Cb%3E%22?socket=/tmp/so%20ck%2C%26'"
        );
        assert_eq!(
            of(ClientKind::NbdClient, hostile),
            "nbd-client -unix '/tmp/so ck,&' /dev/nbd0 -name 'a%41;$(id)'\\''x,read-only=off<b>\"' -persist"
        );
        let qemu = of(ClientKind::Qemu, hostile);
        assert!(qemu.starts_with("-blockdev 'driver=nbd,"), "{qemu}");
        assert!(
            qemu.contains("server.path=/tmp/so ck,,&,export=a%41;$(id)'\\''x,,read-only=off<b>\","),
            "{qemu}"
        );
        let libvirt = of(ClientKind::Libvirt, hostile);
        assert!(libvirt.contains("name='a%41;$(id)&apos;x,read-only=off&lt;b&gt;&quot;'>"), "{libvirt}");
        assert!(libvirt.contains("socket='/tmp/so ck,&amp;'/>"), "{libvirt}");
        assert!(of(ClientKind::NbdClient, "--flag").contains("-name '--flag' -persist"));
    }

    #[test]
    fn only_targets_with_the_disk_are_named() {
        let lun = |disk: &str| LunView {
            lun: 3,
            disk: disk.into(),
            size_bytes: None,
            read_only: false,
            write_back: false,
        };
        let target = |name: &str, disk: &str| TargetView {
            name: name.into(),
            number: 1,
            open: true,
            chap_user: None,
            mutual_user: None,
            luns: vec![lun(disk)],
            initiators: Vec::new(),
            sessions: Vec::new(),
        };
        let server = ServerView {
            version: String::new(),
            data: String::new(),
            pool: String::new(),
            pid: 1,
            uptime_s: 0,
            nbd: Vec::new(),
            iscsi: vec!["10.0.0.1:3260".into()],
            http: None,
            owner: None,
        };
        let targets = [target("iqn.2026-01.a:x", "db"), target("iqn.2026-01.a:y", "other")];
        let ways = ways(&disk("db", false), &server, &targets);
        assert_eq!(ways.len(), 1);
        assert!(ways[0].text.contains("-T iqn.2026-01.a:x -p 10.0.0.1:3260 --login"), "{}", ways[0].text);
        assert!(page(&ways).starts_with("iscsiadm -m discovery"), "one way has no title");
    }
}
