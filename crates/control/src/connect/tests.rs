//! The texts for clients: they are right for TLS, CHAP and masks, and a name cannot leave its place.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use forebay_api::{ClientKind, WayView};
use forebay_frontend::nbd::{Access, ServedListener, TlsMode};
use forebay_frontend::targets::{Chap, DhChapKey, Initiator, Lun, Target};
use forebay_text::Secret;

use super::*;
use crate::import::FetchPolicy;

fn listener(address: &str) -> ServedListener {
    ServedListener {
        address: address.parse().unwrap(),
        tls: TlsMode::Off,
        needs_certificate: false,
        access: Access::default(),
    }
}

fn server(nbd: Vec<ServedListener>, iscsi: &[&str]) -> ServerInfo {
    ServerInfo {
        host: String::new(),
        data: PathBuf::new(),
        pool: String::new(),
        nbd,
        iscsi: iscsi.iter().map(|portal| (*portal).to_owned()).collect(),
        nvme: Vec::new(),
        nfs: Vec::new(),
        http: None,
        imports: FetchPolicy::default(),
        started: Instant::now(),
    }
}

fn disk(name: &str) -> Disk<'_> {
    Disk { name, is_read_only: false, shows_certificates: true }
}

/// The text for one kind of client.
fn text(ways: &[WayView], kind: ClientKind) -> &str {
    &ways.iter().find(|way| way.client == kind).unwrap().text
}

const DISK: &str = "db";

fn target() -> Target {
    let lun = |disk: &str| Lun { disk: disk.into(), read_only: false, write_back: false };
    Target {
        name: "iqn.2026-01.a:x".parse().unwrap(),
        number: 1,
        open: false,
        chap: None,
        dhchap: None,
        mutual: None,
        luns: [(3, lun(DISK)), (4, lun("other"))].into(),
        initiators: Vec::new(),
    }
}

fn initiator(name: &str, chap: Option<&str>, luns: Option<Vec<u16>>) -> Initiator {
    Initiator {
        name: format!("iqn.2026-01.b:{name}").parse().unwrap(),
        chap: chap.map(chap_of),
        dhchap: None,
        luns,
    }
}

const SECRET: &str = "a secret of twelve";

fn chap_of(user: &str) -> Chap {
    Chap { user: user.into(), secret: Secret::new(SECRET.into()) }
}

/// The only way to the disk over iSCSI.
fn iscsi_way(target: Target) -> WayView {
    let targets = [(target.name.clone(), Arc::new(target))].into();
    let mut found =
        to_disk(disk(DISK), &Places::of_server(&server(Vec::new(), &["0.0.0.0:3260"])), &targets).ways;
    assert_eq!(found.len(), 1);
    found.remove(0)
}

#[test]
fn hosts_of_nvme_get_the_lines_for_their_access_but_no_key() {
    const KEY: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
    let way = |target: Target| {
        let server = ServerInfo { nvme: vec!["0.0.0.0:4420".to_owned()], ..server(Vec::new(), &[]) };
        let targets = [(target.name.clone(), Arc::new(target))].into();
        to_disk(disk(DISK), &Places::of_server(&server), &targets)
    };
    let open = way(Target { open: true, ..target() });
    let [found] = &open.ways[..] else { panic!("{open:?}") };
    assert_eq!(
        (found.client, found.target.as_deref(), found.lun),
        (ClientKind::Nvme, Some("nqn.2026-01.a:x"), Some(3))
    );
    assert!(
        found.text.contains("nvme connect -t tcp -a SERVER -s 4420 -n nqn.2026-01.a:x "),
        "{}",
        found.text
    );
    assert!(found.text.contains("discovery.conf\nsystemctl enable nvmf-autoconnect"), "{}", found.text);
    assert!(found.notes.iter().any(|note| note == "The disk is namespace 4."), "{:?}", found.notes);
    assert!(found.notes[0].starts_with("Every host"), "{:?}", found.notes);
    let closed = way(target());
    assert!(closed.ways[0].notes[0].starts_with("No host may use LUN 3 yet"), "{closed:?}");
    let key = |text: &str| Some(DhChapKey::new(Secret::new(text.into())));
    let host =
        |name: &str, dhchap| Initiator { name: name.parse().unwrap(), dhchap, ..initiator("x", None, None) };
    let hosts = vec![
        host("nqn.2026-01.b:one", key(KEY)),
        host("nqn.2026-01.b:two", None),
        initiator("i", None, None),
    ];
    let secured = way(Target { chap: Some(chap_of("u")), dhchap: key(KEY), initiators: hosts, ..target() });
    let found = &secured.ways[0];
    assert!(found.text.contains("--dhchap-secret=KEY --dhchap-ctrl-secret=TARGET-KEY"), "{}", found.text);
    assert_eq!(found.notes[0], "Only these hosts may use LUN 3: nqn.2026-01.b:one.");
    assert!(!serde_json::to_string(&secured).unwrap().contains("DHHC"), "{secured:?}");
    let eui = Target { name: "eui.0123456789abcdef".parse().unwrap(), ..target() };
    let none = way(eui);
    assert!(none.ways.is_empty() && none.missing.iter().any(|one| one.message.contains("NVMe can have")));
}

#[test]
fn each_client_gets_its_lines() {
    let unix = nbd::ways(disk("pc-1"), &listener("unix:/run/nbd.sock"));
    assert_eq!(text(&unix, ClientKind::Uri), "nbd+unix:///pc-1?socket=/run/nbd.sock");
    assert!(
        text(&unix, ClientKind::Qemu).contains("server.path=/run/nbd.sock,export=pc-1,reconnect-delay=300")
    );
    assert!(text(&unix, ClientKind::Libvirt).contains("<host transport='unix' socket='/run/nbd.sock'/>"));
    assert_eq!(
        text(&unix, ClientKind::NbdClient),
        "nbd-client -unix /run/nbd.sock /dev/nbd0 -name pc-1 -persist"
    );
    assert!(unix.iter().all(|way| way.notes.is_empty()), "{unix:?}");
    let snapshot = Disk { is_read_only: true, ..disk("pc@s") };
    let tcp = nbd::ways(snapshot, &listener("0.0.0.0:10809"));
    assert_eq!(text(&tcp, ClientKind::Uri), "nbd://SERVER:10809/pc%40s");
    assert!(text(&tcp, ClientKind::Qemu).contains("server.host=SERVER,server.port=10809,export=pc@s"));
    assert!(text(&tcp, ClientKind::Qemu).contains("read-only=on"));
    assert_eq!(text(&tcp, ClientKind::NbdClient), "nbd-client SERVER 10809 /dev/nbd0 -name pc@s -persist");
    assert_eq!(tcp[0].notes, ["Replace SERVER by a name or an address of this server."]);
    let six = nbd::ways(disk("v"), &listener("[::1]:10809"));
    assert_eq!(text(&six, ClientKind::Uri), "nbd://[::1]:10809/v");
    assert!(text(&six, ClientKind::Qemu).contains("server.host=::1,server.port=10809"));
}

#[test]
fn clients_of_a_listener_with_tls_use_it() {
    let remote = ServedListener { tls: TlsMode::Require, ..listener("10.0.0.1:10809") };
    let ways = nbd::ways(disk("v"), &remote);
    assert_eq!(text(&ways, ClientKind::Uri), "nbds://10.0.0.1:10809/v?tls-certificates=/etc/pki/qemu");
    let qemu = text(&ways, ClientKind::Qemu);
    assert!(qemu.starts_with("-object tls-creds-x509,id=tls0,endpoint=client,dir=/etc/pki/qemu,"), "{qemu}");
    assert!(qemu.contains("export=v,tls-creds=tls0,"), "{qemu}");
    assert!(text(&ways, ClientKind::Libvirt).contains("name='v' tls='yes'>"));
    assert!(text(&ways, ClientKind::NbdClient).contains(" -cacertfile /etc/pki/qemu/ca-cert.pem"));
    assert!(!ways[0].notes[0].contains("client-cert.pem"), "{:?}", ways[0].notes);
    let strict = ServedListener { needs_certificate: true, ..remote };
    assert!(nbd::ways(disk("v"), &strict)[0].notes[0].contains("client-cert.pem"));
    let optional = |address| ServedListener { tls: TlsMode::On, ..listener(address) };
    assert!(text(&nbd::ways(disk("v"), &optional("10.0.0.1:1")), ClientKind::Uri).contains("nbds:"));
    assert!(text(&nbd::ways(disk("v"), &optional("unix:/x")), ClientKind::Uri).contains("nbd+unix:"));
}

#[test]
fn only_listeners_that_export_the_disk_are_named() {
    let access = Access {
        exports: vec!["a-*".parse().unwrap()],
        clients: vec![
            ("CN=host-1".parse().unwrap(), vec!["a-1".parse().unwrap()]),
            ("CN=host-2".parse().unwrap(), vec!["a-*".parse().unwrap()]),
        ],
        read_only: true,
    };
    let server = server(vec![ServedListener { access, ..listener("10.0.0.1:10809") }], &[]);
    let server = Places::of_server(&server);
    let found = to_disk(disk("a-2"), &server, &TargetMap::new());
    assert!(found.ways[0].notes.iter().any(|note| note.ends_with("may use the disk: CN=host-2.")));
    assert!(text(&found.ways, ClientKind::Qemu).contains("read-only=on"), "the listener refuses writes");
    let other = to_disk(disk("b"), &server, &TargetMap::new());
    assert!(other.ways.is_empty() && other.missing[0].message.contains("no NBD listener exports this disk"));
    assert!(other.missing[1].message.contains("--iscsi"), "{:?}", other.missing);
}

#[test]
fn any_node_of_a_cluster_names_addresses_for_other_hosts() {
    let node = |name: &str, nbd: &[&str], iscsi: &[&str]| PortalsView {
        node: name.into(),
        nbd: nbd.iter().map(ToString::to_string).collect(),
        iscsi: iscsi.iter().map(ToString::to_string).collect(),
    };
    let second = node("n2", &["10.0.0.2:10809", "[fd00::2]:10809"], &["10.0.0.2:3260"]);
    let third = node("n3", &["unix:/of/another/host", "10.0.0.3:10809"], &[]);
    let addresses = |nodes: &[PortalsView]| {
        let targets = [(target().name.clone(), Arc::new(target()))].into();
        let ways = to_disk(disk(DISK), &Places::of_cluster(nodes), &targets).ways;
        let mut found: Vec<_> = ways.into_iter().map(|way| (way.address, way.notes)).collect();
        found.dedup();
        found
    };
    let other = |addresses: &str| format!("Other nodes serve it as well: {addresses}.");
    let both = [
        node("n1", &["unix:/nbd.sock", "10.0.0.1:10809"], &["10.0.0.1:3260"]),
        second.clone(),
        third.clone(),
    ];
    let found = addresses(&both);
    assert_eq!(found.len(), 3, "{found:?}");
    assert_eq!(found[0], ("unix:/nbd.sock".into(), Vec::new()), "no other host can use it");
    let others = other("10.0.0.2:10809, [fd00::2]:10809, 10.0.0.3:10809");
    assert_eq!(found[1], ("10.0.0.1:10809".into(), vec![others]));
    assert_eq!((found[2].0.as_str(), found[2].1.last()), ("10.0.0.1:3260", Some(&other("10.0.0.2:3260"))));
    // The node that was asked serves clients of its host only.
    let found = addresses(&[node("n1", &["unix:/nbd.sock"], &[]), second, third]);
    let addresses: Vec<_> = found.iter().map(|(address, _)| address.as_str()).collect();
    assert_eq!(addresses, ["unix:/nbd.sock", "10.0.0.2:10809", "10.0.0.2:3260"]);
    assert_eq!(found[1].1, [other("[fd00::2]:10809, 10.0.0.3:10809")]);
}

/// An administrator copies the lines, and a user with fewer rights may have chosen the name.
#[test]
fn names_and_paths_cannot_leave_their_place() {
    let of = |name| nbd::ways(disk(name), &listener("unix:/tmp/so ck,&"));
    let hostile = of("a%41;$(id)'x,read-only=off<b>\"");
    assert_eq!(
        text(&hostile, ClientKind::Uri),
        "nbd+unix:///a%2541%3B%24%28id%29%27x%2Cread-only%3Doff%3Cb%3E%22?socket=/tmp/so%20ck%2C%26"
    );
    assert_eq!(
        text(&hostile, ClientKind::NbdClient),
        "nbd-client -unix '/tmp/so ck,&' /dev/nbd0 -name 'a%41;$(id)'\\''x,read-only=off<b>\"' -persist"
    );
    let qemu = text(&hostile, ClientKind::Qemu);
    assert!(qemu.starts_with("-blockdev 'driver=nbd,"), "{qemu}");
    assert!(
        qemu.contains("server.path=/tmp/so ck,,&,export=a%41;$(id)'\\''x,,read-only=off<b>\","),
        "{qemu}"
    );
    let libvirt = text(&hostile, ClientKind::Libvirt);
    assert!(libvirt.contains("name='a%41;$(id)&apos;x,read-only=off&lt;b&gt;&quot;'>"), "{libvirt}");
    assert!(libvirt.contains("socket='/tmp/so ck,&amp;'/>"), "{libvirt}");
    assert!(text(&of("--flag"), ClientKind::NbdClient).contains("-name '--flag' -persist"));
    let user = iscsi_way(Target { open: true, chap: Some(chap_of("a;$(id)")), ..target() });
    assert!(user.text.contains("auth.username -v 'a;$(id)'\n"), "{}", user.text);
}

#[test]
fn an_initiator_gets_the_lines_for_its_credentials_but_no_secret() {
    let none = iscsi_way(Target { open: true, ..target() });
    assert_eq!((none.address.as_str(), none.lun), ("SERVER:3260", Some(3)));
    assert_eq!(none.text.lines().count(), 2, "{}", none.text);
    assert!(
        none.text.ends_with("iscsiadm -m node -T iqn.2026-01.a:x -p SERVER:3260 --login"),
        "{}",
        none.text
    );
    let mutual = Some(Chap { user: "storage".into(), secret: Secret::new("another of twelve".into()) });
    let way = iscsi_way(Target { open: true, chap: Some(chap_of("all")), mutual, ..target() });
    for line in ["authmethod -v CHAP", "username -v all", "password -v SECRET", "username_in -v storage"] {
        assert!(way.text.contains(&format!("-n node.session.auth.{line}\n")), "{line}: {}", way.text);
    }
    let all = serde_json::to_string(&way).unwrap();
    assert!(!all.contains(SECRET) && !all.contains("another of twelve"), "{all}");
    assert!(
        way.notes.iter().any(|note| note.contains("Replace SECRET and TARGET-SECRET")),
        "{:?}",
        way.notes
    );
    let own = vec![initiator("one", Some("user-1"), None), initiator("two", Some("user-2"), None)];
    let way = iscsi_way(Target { initiators: own, ..target() });
    assert!(way.text.contains("username -v USER\n"), "{}", way.text);
    assert!(way.notes.iter().any(|note| note.contains("CHAP users: user-1, user-2.")), "{:?}", way.notes);
}

#[test]
fn the_notes_say_who_may_use_the_lun() {
    let who = |open, initiators| {
        let way = iscsi_way(Target { open, initiators, ..target() });
        way.notes.into_iter().find(|note| note.contains("initiator")).unwrap()
    };
    assert!(who(false, Vec::new()).contains("forebay target allow iqn.2026-01.a:x INITIATOR"));
    assert_eq!(who(true, Vec::new()), "Every initiator may use LUN 3.");
    let masked = || initiator("masked", None, Some(vec![4]));
    let admitted = initiator("admitted", None, Some(vec![3]));
    assert_eq!(
        who(false, vec![masked(), admitted]),
        "Only these initiators may use LUN 3: iqn.2026-01.b:admitted."
    );
    assert_eq!(who(true, vec![masked()]), "Every initiator may use LUN 3, except iqn.2026-01.b:masked.");
    assert!(who(false, vec![masked()]).starts_with("No initiator may use LUN 3: the LUNs of iqn"));
}
