//! The ways to a disk over NBD.

use forebay_api::{ClientKind, WayView};
use forebay_frontend::nbd::{ServedListener, TlsMode};

use super::quote::{qemu, shell, uri, uri_path, xml};
use super::{Disk, SERVER, note_on_server, reachable};

/// The directory in which QEMU and libvirt look for the certificates of clients.
const CERTIFICATES: &str = "/etc/pki/qemu";

/// What the texts are made of.
struct Place<'a> {
    disk: Disk<'a>,
    /// The path of a UNIX socket.
    socket: Option<&'a str>,
    host: &'a str,
    port: &'a str,
    with_tls: bool,
}

pub(super) fn ways(disk: Disk<'_>, listener: &ServedListener) -> Vec<WayView> {
    let address = listener.address.to_string();
    let socket = address.strip_prefix("unix:");
    let (host, port) = if socket.is_some() { (SERVER, "") } else { reachable(&address) };
    let is_read_only = disk.is_read_only || listener.access.read_only;
    let with_tls = match listener.tls {
        TlsMode::Off => false,
        // A client of the same host does not need it.
        TlsMode::On => socket.is_none(),
        TlsMode::Require => true,
    };
    let place = Place { disk: Disk { is_read_only, ..disk }, socket, host, port, with_tls };
    let notes = notes(&place, listener);
    let way = |(client, text): (ClientKind, String)| WayView {
        client,
        title: client.title().to_owned(),
        address: address.clone(),
        target: None,
        lun: None,
        text,
        notes: notes.clone(),
    };
    let texts = [
        (ClientKind::Uri, place.uri()),
        (ClientKind::Qemu, place.qemu()),
        (ClientKind::Libvirt, place.libvirt()),
        (ClientKind::NbdClient, place.nbd_client()),
    ];
    texts.map(way).into()
}

fn notes(place: &Place<'_>, listener: &ServedListener) -> Vec<String> {
    let is_named = place.socket.is_none() || place.with_tls;
    let mut notes: Vec<String> = note_on_server(place.host).filter(|_| is_named).into_iter().collect();
    if place.with_tls {
        let own = if listener.needs_certificate { ", client-cert.pem and client-key.pem" } else { "" };
        notes.push(format!(
            "The client uses TLS: {CERTIFICATES} stands for its directory with ca-cert.pem{own}."
        ));
    }
    let subjects = listener.access.subjects_for(place.disk.name);
    if listener.access.needs_certificates() {
        notes.push(match subjects.as_slice() {
            [] => "No client certificate may use this disk here.".to_owned(),
            _ if !place.disk.shows_certificates => {
                "Only some certificates may use the disk; an administrator sees their names.".to_owned()
            }
            subjects => {
                format!("Only certificates with these names may use the disk: {}.", subjects.join(", "))
            }
        });
    }
    if listener.access.read_only {
        notes.push("This address refuses writes.".to_owned());
    }
    notes
}

impl Place<'_> {
    fn uri(&self) -> String {
        let scheme = if self.with_tls { "nbds" } else { "nbd" };
        let name = uri(self.disk.name);
        let (start, mut query) = match self.socket {
            Some(path) => (format!("{scheme}+unix:///{name}"), vec![format!("socket={}", uri_path(path))]),
            None => (format!("{scheme}://{}:{}/{name}", self.host, self.port), Vec::new()),
        };
        if self.with_tls {
            query.push(format!("tls-certificates={CERTIFICATES}"));
        }
        let mark = if query.is_empty() { "" } else { "?" };
        format!("{start}{mark}{}", query.join("&"))
    }

    fn qemu(&self) -> String {
        let server = match self.socket {
            Some(path) => format!("server.type=unix,server.path={}", qemu(path)),
            None => {
                format!("server.type=inet,server.host={},server.port={}", qemu(self.plain_host()), self.port)
            }
        };
        let access = if self.disk.is_read_only { "read-only=on" } else { "discard=unmap" };
        let (object, tls) = match (self.with_tls, self.socket) {
            (false, _) => (String::new(), ""),
            (true, socket) => (
                format!("-object tls-creds-x509,id=tls0,endpoint=client,dir={CERTIFICATES},verify-peer=yes "),
                if socket.is_some() { ",tls-creds=tls0,tls-hostname=SERVER" } else { ",tls-creds=tls0" },
            ),
        };
        let device = format!(
            "driver=nbd,node-name=disk,{server},export={}{tls},reconnect-delay=300,cache.direct=on,{access}",
            qemu(self.disk.name)
        );
        format!("{object}-blockdev {} -device virtio-blk-pci,drive=disk", shell(&device))
    }

    fn libvirt(&self) -> String {
        let host = match self.socket {
            Some(path) => format!("<host transport='unix' socket='{}'/>", xml(path)),
            None => format!("<host name='{}' port='{}'/>", xml(self.plain_host()), self.port),
        };
        let access = if self.disk.is_read_only { "\n  <readonly/>" } else { "" };
        let tls = match (self.with_tls, self.socket) {
            (false, _) => "",
            (true, None) => " tls='yes'",
            (true, Some(_)) => " tls='yes' tlsHostname='SERVER'",
        };
        format!(
            "<disk type='network' device='disk'>\n  \
             <driver name='qemu' type='raw' cache='none' discard='unmap'/>\n  \
             <source protocol='nbd' name='{}'{tls}>\n    {host}\n    <reconnect delay='300'/>\n  \
             </source>\n  <target dev='vda' bus='virtio'/>{access}\n</disk>",
            xml(self.disk.name)
        )
    }

    fn nbd_client(&self) -> String {
        let server = match self.socket {
            Some(path) => format!("-unix {}", shell(path)),
            None => format!("{} {}", self.plain_host(), self.port),
        };
        let tls = match (self.with_tls, self.socket) {
            (false, _) => String::new(),
            (true, socket) => {
                let host = if socket.is_some() { " -tlshostname SERVER" } else { "" };
                format!(
                    " -cacertfile {CERTIFICATES}/ca-cert.pem -certfile {CERTIFICATES}/client-cert.pem -keyfile \
                     {CERTIFICATES}/client-key.pem{host}"
                )
            }
        };
        format!("nbd-client {server} /dev/nbd0 -name {} -persist{tls}", shell(self.disk.name))
    }

    /// Only a URI has an IPv6 address in brackets.
    fn plain_host(&self) -> &str {
        self.host.trim_start_matches('[').trim_end_matches(']')
    }
}
