//! Access control: the exports that each client sees, and that other exports are not revealed to it.

use std::path::{Path, PathBuf};

use forebay_engine::{CloneRequest, SyncMode};
use forebay_frontend::nbd::{
    self, Access, BindError, ClientCertificates, ListenerConfig, TlsConfig, TlsMode,
};
use forebay_frontend::plane::{ListenAddr, Plane};
use forebay_wire::nbd::*;

use super::client::{Client, info, meta};
use super::exports::list;
use super::support::TestServer;
use super::tls::{Authority, upgraded, upgraded_at};

/// An access list from the patterns of the listener and of each client.
fn access(exports: &[&str], clients: &[(&str, &[&str])]) -> Access {
    let patterns = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
    let clients = clients.iter().map(|(subject, texts)| (subject.parse().unwrap(), patterns(texts)));
    Access { exports: patterns(exports), clients: clients.collect(), read_only: false }
}

/// A server with disks of two tenants and images for both. The directories `a`, `b` and `c` have the
/// certificates of these tenants and of a third one.
fn server(access: &Access) -> TestServer {
    let server = TestServer::with_config(|dir| {
        let authority = Authority::new(dir);
        for (tenant, names) in [("a", &["a.example"]), ("b", &["b.example"]), ("c", &["c.example"])] {
            authority.sign(&dir.join(tenant), &format!("tenant-{tenant}"), names);
        }
        let listen = vec![ListenAddr::Unix(dir.join("nbd.sock")), ListenAddr::Tcp("127.0.0.1:0".into())];
        let listener = ListenerConfig { listen, access: access.clone(), ..ListenerConfig::default() };
        let tls = TlsConfig { dir: Some(dir.to_owned()), clients: ClientCertificates::Optional };
        nbd::Config { listeners: vec![listener], tls }
    });
    server.block_on(async {
        for name in ["golden", "img-b"] {
            let import = server.pool.begin_import(name, 1 << 20, 0).await.unwrap();
            server.pool.finish_import(import).await.unwrap();
        }
        for (source, name) in [("golden", "a-1"), ("golden", "b-1"), ("img-b", "a-2")] {
            let clone = CloneRequest { name: name.into(), ..CloneRequest::default() };
            server.pool.clone_disk(source, &[clone]).await.unwrap();
        }
        server.pool.create_snapshot("b-1", "s").await.unwrap();
        server.pool.create_snapshot("a-1", "s").await.unwrap();
    });
    server
}

fn tenants() -> Access {
    access(
        &["a-*", "b-*", "golden"],
        &[("CN=tenant-a", &["a-*"]), ("DNS=a.example", &["golden"]), ("DNS=b.example", &["b-*", "img-b"])],
    )
}

fn identity(server: &TestServer, tenant: &str) -> PathBuf {
    server.dir.path().join(tenant)
}

#[test]
fn a_tenant_lists_only_its_own_exports() {
    let server = server(&tenants());
    let mut a = upgraded(&server, Some(&identity(&server, "a")));
    let expected = [
        ("a-1", "volume, clone of golden"),
        ("a-1@s", "snapshot, read-only"),
        ("a-2", "volume"), // a clone of an image that this tenant does not see
        ("golden", "image, read-only"),
    ];
    assert_eq!(list(&mut a), expected.map(|(n, r)| (n.to_owned(), r.to_owned())));
    let mut b = upgraded(&server, Some(&identity(&server, "b")));
    let names: Vec<String> = list(&mut b).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["b-1", "b-1@s"], "the listener does not offer img-b");
    assert!(b.go("").is_ok(), "the only volume that this tenant sees");
    let mut c = upgraded(&server, Some(&identity(&server, "c")));
    assert_eq!(list(&mut c), [], "a valid certificate that no entry matches");
    assert!(a.go("a-1").is_ok());
    a.assert_alive();
}

#[test]
fn an_invisible_export_is_answered_like_one_that_does_not_exist() {
    let server = server(&tenants());
    let mut answers = Vec::new();
    for name in ["b-1", "b-1@s", "vol", "img-b", "b-9", "b-1@nope", "nope", "a b", "../x", "@"] {
        let mut client = upgraded(&server, Some(&identity(&server, "a")));
        client.set_up();
        let mut of_name = Vec::new();
        for (option, data) in [
            (OPT_INFO, info(name, &[INFO_NAME, INFO_DESCRIPTION, INFO_BLOCK_SIZE])),
            (OPT_GO, info(name, &[])),
            (OPT_LIST_META_CONTEXT, meta(name, &[])),
            (OPT_SET_META_CONTEXT, meta(name, &[BASE_ALLOCATION])),
        ] {
            client.option(option, &data);
            of_name.push(client.option_reply(option));
        }
        assert!(of_name.iter().all(|reply| reply.kind == REP_ERR_UNKNOWN), "{name}: {of_name:?}");
        client.option(OPT_EXPORT_NAME, name.as_bytes());
        let mut rest = Vec::new();
        // The TLS library decides how the end of the connection is reported. Required is only that no answer
        // is sent.
        let _ = client.socket.read_to_end(&mut rest);
        assert!(rest.is_empty(), "{name}: {rest:?}");
        answers.push(of_name);
    }
    assert!(answers.iter().all(|of_name| *of_name == answers[0]), "{answers:?}");
    assert!(server.pool.disks().iter().all(|disk| disk.clients == 0), "no disk was opened");
}

#[test]
fn a_listener_with_client_entries_requires_certificates() {
    let server = server(&tenants());
    let mut clear = Client::greeted(&server.socket());
    clear.option(OPT_LIST, b"");
    assert_eq!(
        clear.option_reply(OPT_LIST).kind,
        REP_ERR_TLS_REQD,
        "client entries imply that TLS is required"
    );
    let mut anonymous = upgraded(&server, None);
    super::tls::assert_refused(&mut anonymous);
    let stranger = tempfile::tempdir().unwrap();
    Authority::new(stranger.path()).sign(stranger.path(), "tenant-a", &["a.example"]);
    let mut stranger = upgraded(&server, Some(stranger.path()));
    super::tls::assert_refused(&mut stranger);
}

#[test]
fn each_listener_has_its_own_exports() {
    let socket = |dir: &Path, name: &str| vec![ListenAddr::Unix(dir.join(name))];
    let server = TestServer::with_config(|dir| {
        let listener = |name, exports: &[&str], read_only| ListenerConfig {
            listen: socket(dir, name),
            access: Access { read_only, ..access(exports, &[]) },
            ..ListenerConfig::default()
        };
        let listeners = vec![
            listener("all", &["*"], false),
            listener("snapshots", &["vol@*"], false),
            listener("read-only", &["v*"], true),
            listener("nothing", &[], false),
        ];
        nbd::Config { listeners, tls: TlsConfig::default() }
    });
    server.block_on(async {
        server.pool.create_snapshot("vol", "s").await.unwrap();
        server.pool.create_volume("other", 1 << 20, SyncMode::Flush, 0).await.unwrap();
    });
    for (name, expected) in [
        ("all", ["other", "vol", "vol@s"].as_slice()),
        ("snapshots", &["vol@s"]),
        ("read-only", &["vol", "vol@s"]),
        ("nothing", &[]),
    ] {
        let mut client = Client::greeted(&server.dir.path().join(name));
        let names: Vec<String> = list(&mut client).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, expected, "{name}");
    }
    let mut client = Client::greeted(&server.dir.path().join("snapshots"));
    assert_eq!(client.go("vol").unwrap_err().kind, REP_ERR_UNKNOWN);
    assert!(client.go("vol@s").is_ok());
    let mut client = Client::greeted(&server.dir.path().join("read-only"));
    client.set_up();
    let (_, flags) = client.go("vol").unwrap();
    assert_ne!(flags & FLAG_READ_ONLY, 0);
    assert_eq!(client.put(0, 0, &[1; 4096]).error, 1);
    assert_eq!(client.ask(0, CMD_TRIM, 0, 4096).error, 1);
    assert_eq!(client.ask(0, CMD_WRITE_ZEROES, 0, 4096).error, 1);
    client.assert_alive();
    let mut client = Client::open(&server.dir.path().join("all"), "vol");
    assert_eq!(client.put(0, 0, &[1; 4096]).error, 0);
}

#[test]
fn clear_tcp_beyond_the_loopback_needs_a_flag() {
    let server = TestServer::start();
    let dir = tempfile::tempdir().unwrap();
    Authority::new(dir.path());
    let listen = |addr: &str, tls, allow_remote| {
        let listen = vec![addr.parse().unwrap()];
        let listeners = vec![ListenerConfig { listen, tls, allow_remote, ..ListenerConfig::default() }];
        let tls = TlsConfig { dir: Some(dir.path().to_owned()), clients: ClientCertificates::Optional };
        nbd::listen(&mut Plane::default(), &server.pool, &nbd::Config { listeners, tls })
    };
    for addr in ["0.0.0.0:0", "[::]:0", "[::ffff:0.0.0.0]:0", "192.0.2.1:0"] {
        for tls in [TlsMode::Off, TlsMode::On] {
            let refused = listen(addr, tls, false).unwrap_err();
            assert!(matches!(refused, BindError::Clear { .. }), "{addr}: {refused}");
            assert!(refused.to_string().contains("--nbd-allow-remote"), "{refused}");
        }
    }
    assert!(listen("0.0.0.0:0", TlsMode::Off, true).is_ok());
    assert!(listen("0.0.0.0:0", TlsMode::Require, false).is_ok());
    for addr in ["127.0.0.1:0", "localhost:0"] {
        assert!(listen(addr, TlsMode::Off, false).is_ok(), "{addr}");
    }
}

#[test]
fn stalled_handshakes_do_not_delay_other_clients() {
    let server = server(&tenants());
    let stalled: Vec<Client> = (0..40)
        .map(|_| {
            let mut client = Client::greeted(&server.socket());
            client.option(OPT_STARTTLS, b"");
            assert_eq!(client.option_reply(OPT_STARTTLS).kind, REP_ACK);
            client
        })
        .collect();
    let mut a = upgraded_at(&server.tcp(), server.dir.path(), Some(&identity(&server, "a")));
    assert!(a.go("a-1").is_ok());
    a.assert_alive();
    drop((a, stalled));
    server.wait_until_alone();
}

#[test]
fn the_search_for_the_default_export_counts_as_a_list() {
    let server = TestServer::with_config(|dir| {
        let listen = vec![ListenAddr::Unix(dir.join("nbd.sock"))];
        let access = access(&["vol"], &[]);
        let listeners = vec![ListenerConfig { listen, access, ..ListenerConfig::default() }];
        nbd::Config { listeners, ..nbd::Config::default() }
    });
    server.block_on(async {
        let import = server.pool.begin_import("golden", 1 << 20, 0).await.unwrap();
        server.pool.finish_import(import).await.unwrap();
        let clones = (0..300).map(|n| CloneRequest { name: format!("desk-{n}"), ..Default::default() });
        server.pool.clone_disk("golden", &clones.collect::<Vec<_>>()).await.unwrap();
    });
    let mut client = Client::greeted(&server.socket());
    // As often as clients may list.
    for _ in 0..8 {
        client.option(OPT_INFO, &info("", &[INFO_NAME]));
        let kinds = [(); 3].map(|()| client.option_reply(OPT_INFO).kind);
        assert_eq!(kinds, [REP_INFO, REP_INFO, REP_ACK]);
    }
    // Searches without end would cost the clients of all other disks their time.
    client.option(OPT_INFO, &info("", &[]));
    client.assert_closed();
}
