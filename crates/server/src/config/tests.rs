use forebay_frontend::iscsi::WhileStandby;
use forebay_frontend::nbd::{Access, ClientCertificates, TlsMode};
use forebay_frontend::plane::ListenAddr;
use forebay_guest::CachePriority;

use super::*;

/// The configuration of a file, or the error without its line.
fn resolve(text: &str, flags: Overrides) -> Result<ServeConfig, ConfigError> {
    ServeConfig::resolve(ConfigFile::parse("f.toml", text)?, flags).map_err(|error| match error {
        ConfigError::At { error, .. } => *error,
        error => error,
    })
}

/// The error of a file, as it is shown.
fn error_of(text: &str, flags: Overrides) -> String {
    let file = ConfigFile::parse("f.toml", text);
    file.and_then(|file| ServeConfig::resolve(file, flags)).unwrap_err().to_string()
}

fn data() -> Overrides {
    Overrides { data: Some("/d".into()), ..Overrides::default() }
}

#[test]
fn default_budgets_fit_the_memory_limit_and_configured_ones_stay() {
    let of = |text, limit| resolve(text, Overrides { memory_limit: Some(limit), ..data() }).unwrap();
    let total = |c: &ServeConfig| {
        let pool = &c.pool;
        let caches = pool.read_cache + pool.map_cache + pool.dedup_index;
        caches + pool.write_buffer + pool.desktops + pool.mark_memory + c.client_memory.budget
    };
    for limit in [400 << 20, 1 << 30, 2 << 30] {
        let c = of("", limit);
        assert!(total(&c) / 10 * 11 + (200 << 20) <= limit, "{limit}: {}", total(&c));
    }
    assert_eq!(of("", 16 << 30).pool.read_cache, PoolConfig::default().read_cache);
    let c = of("[memory]\nread_cache = \"3G\"\n[limits]\nclient_memory = \"200M\"", 1 << 30);
    assert_eq!((c.pool.read_cache, c.client_memory.budget, c.pool.desktops), (3 << 30, 200 << 20, 12 << 20));
}

#[test]
fn all_keys_of_the_file_are_applied() {
    let text = r#"
        data = "/srv/pool"
        cores = 4
        [memory]
        read_cache = "2GiB"
        map_cache = 67108864
        write_buffer = "32M"
        desktops = "2G"
        mark = "96M"
        [log]
        segment = "16M"
        checkpoint = "256M"
        [commit]
        coalesce = "always"
        max_delay_ms = 5
        [store]
        limit = "100G"
        slow = { spindles = 4, seek_ms = 12, rpm = 5400, rate = "100M" }
        [reduce]
        compress = false
        [dedup]
        index = "1G"
        [nbd]
        listen = ["unix:/run/a b.sock", "[::1]:10809"]
        tls = { certificates = "/etc/forebay/tls" }
        [http]
        listen = "127.0.0.1:8080"
    "#;
    let c = resolve(text, Overrides::default()).unwrap();
    assert_eq!(c.data, Path::new("/srv/pool"));
    assert_eq!(c.socket, Path::new("/srv/pool/forebay.sock"));
    assert_eq!(c.cores, 4);
    assert_eq!((c.pool.read_cache, c.pool.map_cache, c.pool.mark_memory), (2 << 30, 64 << 20, 96 << 20));
    assert_eq!((c.pool.coalesce, c.pool.commit_delay), (Coalesce::Always, Duration::from_millis(5)));
    assert_eq!(c.store_slow.map(|s| (s.spindles, s.rpm, s.bytes_per_second)), Some((4, 5400, 100 << 20)));
    assert_eq!((c.pool.segment_bytes, c.pool.checkpoint_bytes), (16 << 20, 256 << 20));
    assert_eq!((c.store_limit, c.pool.compress, c.pool.dedup_index), (Some(100 << 30), false, 1 << 30));
    let nbd: Vec<_> = c.nbd.listeners[0].listen.iter().map(ToString::to_string).collect();
    assert_eq!(nbd, ["unix:/run/a b.sock", "[::1]:10809"]);
    assert_eq!(c.http.listen.unwrap().port(), 8080);
    assert_eq!((c.nbd.listeners[0].tls, c.nbd.tls.clients), (TlsMode::Require, ClientCertificates::Optional));
}

#[test]
fn compression_and_deduplication_are_on_by_default() {
    let c = resolve("", data()).unwrap();
    assert_eq!(
        (c.store_limit, c.pool.compress, c.pool.dedup_index),
        (None, true, PoolConfig::default().dedup_index)
    );
    let smallest = resolve("[dedup]\nindex = 0", data()).unwrap();
    assert_eq!(smallest.pool.dedup_index, 0, "an index of 0 bytes is valid");
}

#[test]
fn the_file_changes_the_policy_of_single_classes() {
    let text = "[classes]\nlearn = false\n[classes.page]\ncompress = true\n[classes.code]\ncache = 'low'";
    let pool = resolve(text, data()).unwrap().pool;
    let change = |class| match class {
        Class::Page => Change { compress: Some(true), ..Change::default() },
        Class::Code => Change { cache: Some(CachePriority::Low), ..Change::default() },
        _ => Change::default(),
    };
    let expected = Class::ALL.into_iter().fold(Policy::default(), |p, class| p.with(class, change(class)));
    assert_eq!((pool.classes, pool.learn_classes), (expected, false));
    let pool = resolve("", data()).unwrap().pool;
    assert_eq!((pool.classes, pool.learn_classes), (Policy::default(), true));
    for wrong in ["[classes]\nlearns = true", "[classes.pages]", "[classes.page]\nstream = 'short'"] {
        assert!(matches!(resolve(wrong, data()), Err(ConfigError::Syntax { .. })), "{wrong}");
    }
}

#[test]
fn command_line_options_override_the_file() {
    let text = "data = '/a'\ncores = 4\n[nbd]\nlisten = ['h:1']\n[memory]\nread_cache = '1G'";
    let flags = Overrides {
        cores: Some(1),
        nbd: NbdFlags { listen: vec!["unix:/x".parse().unwrap()], ..NbdFlags::default() },
        cache: Some(Size(2 << 30)),
        ..data()
    };
    let c = resolve(text, flags).unwrap();
    assert_eq!((c.data.as_path(), c.cores, c.pool.read_cache), (Path::new("/d"), 1, 2 << 30));
    assert_eq!(c.nbd.listeners[0].listen, [ListenAddr::Unix("/x".into())]);
}

#[test]
fn nbd_listeners_have_exports_and_clients() {
    let text = r#"
        [nbd]
        listen = ["unix:/all"]
        tls = { certificates = "/tls", mode = "on" }
        [[nbd.listener]]
        listen = ["127.0.0.1:1"]
        exports = ["tenant-a-*", "img@*"]
        read_only = true
        [[nbd.listener]]
        listen = ["0.0.0.0:2"]
        clients = { "CN=host-1" = ["tenant-a-*"], "URI=spiffe://x/*" = ["*"] }
    "#;
    let flags = NbdFlags { listen: vec!["unix:/flag".parse().unwrap()], ..NbdFlags::default() };
    let listeners = resolve(text, Overrides { nbd: flags, ..data() }).unwrap().nbd.listeners;
    let modes: Vec<_> = listeners.iter().map(|l| l.tls).collect();
    assert_eq!(
        modes,
        [TlsMode::On, TlsMode::On, TlsMode::Require],
        "listeners with client certificates require TLS"
    );
    assert_eq!(listeners[0].listen, ["unix:/flag".parse().unwrap()], "--nbd replaces nbd.listen only");
    assert_eq!(listeners[0].access, Access::default());
    let exports = ["tenant-a-*", "img@*"].map(|p| p.parse().unwrap());
    assert_eq!(
        (listeners[1].access.exports.as_slice(), listeners[1].access.read_only),
        (exports.as_slice(), true)
    );
    let clients: Vec<_> =
        listeners[2].access.clients.iter().map(|(subject, _)| subject.to_string()).collect();
    assert_eq!(clients, ["CN=host-1", "URI=spiffe://x/*"]);
    assert!(listeners.iter().all(|l| !l.allow_remote));
    let clear = "[[nbd.listener]]\nlisten = ['unix:/x']\ntls = 'on'\nclients = { 'CN=x' = ['*'] }";
    assert!(matches!(resolve(clear, data()), Err(ConfigError::Listener { index: 0, tls: "on" })));
    assert!(resolve("[nbd]\nallow_remote = true", data()).unwrap().nbd.listeners[0].allow_remote);
}

#[test]
fn syntax_errors_are_reported_with_their_line() {
    for (text, line, part) in [
        ("cores = 2\nfsync = false\n", 2, "unknown key 'fsync'; known here: data, "),
        ("[memory]\n\nread_cach = 1", 3, "unknown key 'read_cach'; did you mean 'read_cache'?"),
        ("cores = 2\ncores = 3", 2, "'cores' is set more than once: keep one"),
        ("[memory]\nread_cache = '40X'", 2, "'40X' is not a size"),
        ("[nbd]\nlisten = ['nowhere']", 2, "'nowhere' is not an address"),
        ("[http]\nlisten = '127.0.0.1'", 2, "invalid address '127.0.0.1'"),
        ("[[nbd.listener]]\nlisten = ['unix:/x']\nexports = ['a@']", 3, "'a@' is not a pattern"),
        (
            "[[nbd.listener]]\nlisten = ['unix:/x']\nclients = { 'O=x' = ['*'] }",
            3,
            "'O=x' is not a pattern for certificates",
        ),
    ] {
        match resolve(text, data()) {
            Err(ConfigError::Syntax { line: l, reason, .. }) => {
                assert_eq!(l, line, "{text}: {reason}");
                assert!(reason.contains(part), "{text}: {reason}");
                assert!(!reason.contains('\n'), "{reason}");
            }
            other => panic!("{text}: {other:?}"),
        }
    }
}

#[test]
fn each_mistake_is_one_sentence_with_key_value_and_what_is_allowed() {
    let whole = "use a whole number, without quotes";
    for (text, error) in [
        ("cores = 'four'", format!("1: invalid value 'four' for cores: {whole}")),
        ("cores = 2.5", format!("1: invalid value 2.5 for cores: {whole}")),
        ("\ncores = -1", format!("2: invalid value -1 for cores: {whole}")),
        ("cores = 2024-01-01", format!("1: invalid value 2024-01-01 for cores: {whole}")),
        (
            "[iscsi]\nport_group = 70000",
            "2: invalid value 70000 for iscsi.port_group: use a whole number from 0 to 65535, without quotes"
                .into(),
        ),
        (
            "[reduce]\ncompress = 'yes'",
            "2: invalid value 'yes' for reduce.compress: use true or false, without quotes".into(),
        ),
        ("data = 5", "1: invalid value 5 for data: use a text in quotes".into()),
        ("[boot]\nprofile = 5", "2: invalid value 5 for boot.profile: use a text in quotes".into()),
        (
            "[boot]\nprofile = 'never'",
            "2: invalid value 'never' for boot.profile: use \"off\", \"auto\" or \"on\"".into(),
        ),
        (
            "[nbd]\nlisten = 'unix:/s'",
            "2: invalid value 'unix:/s' for nbd.listen: use a list in brackets".into(),
        ),
        (
            "[iscsi.target]\nname = 'iqn.2026-01.a:b'",
            "1: invalid value [iscsi.target] for iscsi.target: use [[iscsi.target]], with two brackets"
                .into(),
        ),
        (
            "memory = '1G'",
            "1: invalid value '1G' for memory: use a table: [memory] in a separate line, and its keys below"
                .into(),
        ),
        (
            "[memory]\nread_cache = true",
            "2: invalid value true for memory.read_cache: use a size: bytes, or a text such as \"40G\""
                .into(),
        ),
        ("[memory]\nread_cache = -1", "2: memory.read_cache: a size cannot be negative".into()),
    ] {
        assert_eq!(error_of(text, data()), format!("f.toml, line {error}"), "{text}");
    }
}

#[test]
fn a_file_that_is_not_toml_is_explained_without_words_of_the_parser() {
    for (text, error) in [
        (
            "[memory]\nread_cache = 2G",
            "2: invalid value 2G for read_cache: a text needs quotes, such as \"2G\"",
        ),
        ("data = /srv", "1: invalid value /srv for data: a text needs quotes, such as \"/srv\""),
        ("cores = fast", "1: invalid value fast for cores: a text needs quotes, such as \"fast\""),
        (
            "[http]\nlisten = 127.0.0.1:80 # local",
            "2: invalid value 127.0.0.1:80 for listen: a text needs quotes, such as \"127.0.0.1:80\"",
        ),
        ("data = '/d' cores = 2", "1: unexpected text after a value: write one setting in a line"),
        ("cores = ", "1: 'cores' has no value"),
        ("cores: 2", "1: 'cores: 2' is no setting: write KEY = VALUE"),
        ("= 2", "1: missing key before '='"),
        ("[memory\nmark = 1", "1: missing ']' after the name of a section"),
        ("[nbd]\nlisten = ['unix:/s'", "2: missing ']' at the end of a list"),
        ("[http]\nhosts = ['a' 'b']", "2: missing comma between two values of a list"),
        ("data = '/d", "1: missing quote at the end of a text"),
        (
            "data = \"C:\\d\"",
            "1: unknown escape sequence: write \\\\ for a backslash, or put the text in single quotes",
        ),
        ("cores = 02", "1: a number has no leading zero"),
        ("[log]\n[log]", "2: 'log' is set more than once: keep one"),
        ("read_cache = '2G'", "1: unknown key 'read_cache'; it belongs in [memory]"),
        (
            "[[iscsi.target]]\nname = 'iqn.2026-01.a:b'\nluns = [{lun = 1}]",
            "3: missing key 'disk' in 'iscsi.target.luns'",
        ),
    ] {
        assert_eq!(error_of(text, data()), format!("f.toml, line {error}"), "{text}");
    }
}

#[test]
fn values_that_are_refused_are_named_with_their_line() {
    let listener = "[[nbd.listener]]\nlisten = ['unix:/x']\n";
    for (text, error) in [
        ("\ncores = 0".to_owned(), "line 2: invalid value 0 for cores: use 1 to 256"),
        (
            "[memory]\nread_cache = 5".to_owned(),
            "line 2: invalid value 5 B for memory.read_cache (--cache): use at least 1M",
        ),
        ("[store]\n\nstandby = true".to_owned(), "line 3: store.standby (--standby) needs a pool in Ceph"),
        ("[iscsi]\nport_group = 2".to_owned(), "line 2: iscsi.port_group needs a pool in Ceph"),
        (
            "[http]\nlisten = '0.0.0.0:80'".to_owned(),
            "line 2: invalid value 0.0.0.0:80 for http.listen (--http)",
        ),
        (
            "[http]\nkey = 'k'".to_owned(),
            "line 2: invalid value k for http.certificate, http.key: TLS needs both",
        ),
        (
            format!("{listener}{listener}tls = 'on'\nclients = {{ 'CN=x' = ['*'] }}"),
            "line 3: invalid value \"on\" for nbd.listener.tls: use \"require\"",
        ),
        (
            "[[iscsi.target]]\nname = 'iqn.2026-01.a:b'\n[[iscsi.target]]\nname = 'IQN.2026-01.a:b'"
                .to_owned(),
            "line 3: iscsi.target iqn.2026-01.a:b: ",
        ),
    ] {
        let found = error_of(&text, data());
        assert!(found.starts_with(&format!("f.toml, {error}")), "{text}: {found}");
    }
    // That of an option is not one of the file.
    let flags = Overrides { cores: Some(0), ..data() };
    assert_eq!(error_of("cores = 2", flags), "invalid value 0 for cores: use 1 to 256");
}

#[test]
fn a_file_that_is_not_text_is_named_with_the_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("c.toml");
    std::fs::write(&path, b"cores = 2\ndata = '\xff'\n").unwrap();
    let error = ConfigFile::load(&path).unwrap_err().to_string();
    assert_eq!(error, format!("{}, line 2: not a text in UTF-8", path.display()));
}

#[test]
fn values_out_of_range_are_refused() {
    for text in [
        "cores = 0",
        "cores = 1000",
        "[log]\nsegment = 4097",
        "[log]\nsegment = '8G'",
        "[memory]\nread_cache = 5",
        "[store]\nlimit = '1M'",
    ] {
        assert!(matches!(resolve(text, data()), Err(ConfigError::Value { .. })), "{text}");
    }
    assert!(matches!(resolve("", Overrides::default()), Err(ConfigError::NoData)));
}

#[test]
fn the_api_listens_on_loopback_addresses_unless_it_has_a_certificate() {
    let http = |addr: &str, tls: bool| {
        let file = || tls.then(|| PathBuf::from("file"));
        let listen = Some(parse_http_addr(addr).unwrap());
        let http = HttpFlags { listen, certificate: file(), key: file(), ..HttpFlags::default() };
        Overrides { http, ..data() }
    };
    assert!(resolve("", http("127.0.0.1:80", false)).is_ok());
    assert!(resolve("", http("[::1]:80", false)).is_ok());
    assert!(resolve("", http("127.0.0.1:80", true)).unwrap().http.https.is_some());
    let error = resolve("", http("0.0.0.0:80", false)).unwrap_err().to_string();
    assert!(error.contains("--http-certificate"), "{error}");
    assert!(resolve("", http("0.0.0.0:80", true)).is_ok());
    let files = "[http]\ncertificate = 'c'\nkey = 'k'";
    assert!(resolve(files, http("10.0.0.1:80", false)).is_ok());
    assert!(resolve("[http]\ncertificate = 'c'", http("127.0.0.1:80", false)).is_err());
    let mut flags = http("localhost:80", false);
    flags.http.hosts = vec!["b.lan".into()];
    let c = resolve("[http]\nhosts = ['a.lan']\ntokens = 'always'\n[audit]\nfile = '/a'", flags).unwrap();
    assert_eq!(c.http.hosts, ["localhost", "a.lan", "b.lan"]);
    assert_eq!((c.http.tokens, c.audit), (TokenMode::Always, Some(PathBuf::from("/a"))));
}

#[test]
fn iscsi_paths_are_validated() {
    let in_ceph = "[store]\npool = 'rados:vms/desktops'\n[iscsi]\n";
    let c = resolve(in_ceph, data()).unwrap();
    assert_eq!(c.iscsi_paths, IscsiPaths { portals: None, while_standby: WhileStandby::Closed, group: 1 });
    let all = "portals = ['10.0.0.1:3260', '[fd00::1]:3260']\nwhile_standby = 'alua'\nport_group = 16";
    let paths = resolve(&format!("{in_ceph}{all}"), data()).unwrap().iscsi_paths;
    assert_eq!((paths.portals.unwrap().len(), paths.group), (2, 16));
    for (line, why) in [
        ("while_standby = 'alua'", "port_group"),
        ("while_standby = 'open'", "use \"closed\", \"redirect\" or \"alua\""),
        ("port_group = 0", "1 to 16"),
        ("port_group = 17", "1 to 16"),
        ("portals = ['0.0.0.0:3260']", "this server alone"),
        ("portals = ['10.0.0.1:0']", "this server alone"),
        ("portals = ['10.0.0.1']", "invalid value '10.0.0.1' for iscsi.portals: use ADDRESS:PORT"),
    ] {
        let error = resolve(&format!("{in_ceph}{line}"), data()).unwrap_err().to_string();
        assert!(error.contains(why), "{line}: {error}");
    }
    // Behind a router that translates addresses, also without Ceph.
    let behind = resolve("[iscsi]\nportals = ['203.0.113.7:3260']", data()).unwrap().iscsi_paths;
    assert_eq!(behind.portals.unwrap(), ["203.0.113.7:3260".parse().unwrap()]);
    for line in ["while_standby = 'redirect'", "port_group = 2"] {
        let error = resolve(&format!("[iscsi]\n{line}"), data()).unwrap_err();
        assert!(matches!(error, ConfigError::NotInCeph(_)), "{line}: {error}");
    }
}

#[test]
fn iscsi_portals_and_targets_are_validated() {
    let c = resolve("", data()).unwrap();
    let limits = SessionLimits { all: 2048, per_initiator: 64, per_address: 512 };
    assert_eq!((c.iscsi, c.iscsi_limits, c.iscsi_targets), (vec![], limits, vec![]));
    let dir = tempfile::tempdir().unwrap();
    let secret = dir.path().join("secret");
    std::fs::write(&secret, "twelve bytes\n").unwrap();
    let file = secret.display();
    let text = format!(
        "[iscsi]\nlisten = ['0.0.0.0:3260', '[::]:3260']\nmax_sessions = 9\nmax_sessions_per_initiator = 2\n\
         [[iscsi.target]]\nname = 'iqn.2026-01.org.example:A'\nchap_user = 'u'\nchap_secret_file = '{file}'\n\
         luns = [{{lun = 0, disk = 'v'}}, {{lun = 4, disk = 'w', read_only = true}}]\n\
         initiators = [{{name = 'iqn.1993-08.org.debian:01:x', luns = [4]}}]"
    );
    let c = resolve(&text, data()).unwrap();
    assert_eq!(
        (c.iscsi.len(), c.iscsi_limits),
        (2, SessionLimits { all: 9, per_initiator: 2, per_address: 2 })
    );
    let target = &c.iscsi_targets[0];
    assert_eq!((target.name.as_str(), target.open), ("iqn.2026-01.org.example:a", false));
    assert_eq!(target.chap.as_ref().unwrap().secret.reveal(), "twelve bytes");
    assert_eq!((target.luns.len(), target.luns[&4].read_only), (2, true));
    let flags = Overrides { iscsi: vec![parse_portal("h:1").unwrap()], ..data() };
    assert_eq!(resolve(&text, flags).unwrap().iscsi, [ListenAddr::Tcp("h:1".into())]);

    let with = |rest: &str| resolve(&format!("[[iscsi.target]]\nname = 'iqn.2026-01.a:b'\n{rest}"), data());
    for (rest, why) in [
        ("luns = [{lun = 1, disk = 'v'}, {lun = 1, disk = 'w'}]", "LUN 1 of target"),
        ("luns = [{lun = 1, disk = 'v'}, {lun = 2, disk = 'v'}]", "'v' is LUN 1"),
        ("luns = [{lun = 256, disk = 'v'}]", "256 cannot be a LUN"),
        ("initiators = [{name = 'iqn.2026-01.a', luns = [0]}]", "has no LUN 0"),
        ("initiators = [{name = 'iqn.2026-01.a'}, {name = 'iqn.2026-01.A'}]", "two entries"),
        ("chap_user = 'u'", "must be given together"),
        ("chap_user = 'u'\nchap_secret_file = '/none'", "cannot read the secret in /none"),
        ("[[iscsi.target]]\nname = 'IQN.2026-01.a:b'", "exists already"),
    ] {
        match with(rest) {
            Err(e @ ConfigError::Target { .. }) => assert!(e.to_string().contains(why), "{rest}: {e}"),
            other => panic!("{rest}: {other:?}"),
        }
    }
    for (text, why) in [
        ("[iscsi]\nlisten = ['unix:/s']", "HOST:PORT"),
        ("[[iscsi.target]]\nname = 'disks'", "not an iSCSI or NVMe name"),
        ("[[iscsi.target]]\nopen = true", "missing key 'name' in 'iscsi.target'"),
        ("[iscsi]\nmax_session = 1", "did you mean 'max_sessions'?"),
    ] {
        match resolve(text, data()) {
            Err(ConfigError::Syntax { line: 2 | 1, reason, .. }) => assert!(reason.contains(why), "{reason}"),
            other => panic!("{text}: {other:?}"),
        }
    }
    assert!(matches!(resolve("[iscsi]\nmax_sessions = 0", data()), Err(ConfigError::Value { .. })));
}

#[test]
fn listen_addresses_without_host_or_port_are_refused() {
    for bad in ["", "unix:", "host", "host:", ":10809", "host:99999", "::1:10809"] {
        assert!(bad.parse::<ListenAddr>().is_err(), "{bad}");
    }
    assert_eq!("localhost:10809".parse(), Ok(ListenAddr::Tcp("localhost:10809".into())));
}

#[test]
fn connection_limits_have_defaults_and_bounds() {
    let c = resolve("", data()).unwrap();
    assert_eq!(c.connections, ConnectionLimits::default());
    let text =
        "[limits]\nconnections = 9\nconnections_per_address = 5\nnegotiating = 3\nnegotiation_timeout_s = 7";
    let seven = Duration::from_secs(7);
    let wanted = ConnectionLimits { all: 9, per_address: 5, negotiating: 3, negotiation: seven };
    assert_eq!(resolve(text, data()).unwrap().connections, wanted);
    for bad in
        ["connections = 0", "negotiating = 0", "connections_per_address = 0", "negotiation_timeout_s = 0"]
    {
        let error = resolve(&format!("[limits]\n{bad}"), data()).unwrap_err().to_string();
        assert!(error.contains("limits."), "{error}");
    }
}

#[test]
fn client_memory_below_the_largest_request_is_refused() {
    assert_eq!(resolve("", data()).unwrap().client_memory, MemoryLimits::default());
    let c = resolve("[limits]\nclient_memory = \"1G\"\nstall_timeout_s = 3", data()).unwrap();
    assert_eq!(c.client_memory, MemoryLimits { budget: 1 << 30, stall: Duration::from_secs(3) });
    for bad in ["client_memory = \"64M\"", "stall_timeout_s = 0"] {
        let error = resolve(&format!("[limits]\n{bad}"), data()).unwrap_err().to_string();
        assert!(error.contains("limits."), "{error}");
    }
}

fn in_ceph() -> Overrides {
    let pool = Some("rados:vms/desktops".parse().unwrap());
    Overrides { store: StoreFlags { pool, ..StoreFlags::default() }, ..data() }
}

#[test]
fn a_pool_is_in_the_data_directory_or_in_ceph() {
    let c = resolve("", data()).unwrap();
    assert!(matches!(&c.location, PoolLocation::Directory(path) if *path == c.data) && !c.standby);
    assert_eq!(c.location.to_string(), "/d");

    let text = r#"
        [store]
        pool = "rados:vms/desktops"
        ceph_conf = "/etc/ceph/other.conf"
        ceph_user = "forebay"
        standby = true
        client_interfaces = ["eth1", "bond0.17"]
        limit = "100G"
    "#;
    let c = resolve(text, data()).unwrap();
    assert_eq!((c.location.to_string(), c.standby), ("rados:vms/desktops".into(), true));
    assert_eq!(c.client_interfaces, ["eth1", "bond0.17"]);
    assert_eq!((c.data.as_path(), c.store_limit), (Path::new("/d"), Some(100 << 30)));
    let PoolLocation::Rados(pool) = c.location else { panic!("{}", c.location) };
    assert_eq!(pool.options.conf.as_deref(), Some(Path::new("/etc/ceph/other.conf")));
    assert_eq!(pool.options.user.as_deref(), Some("forebay"));

    let flags = StoreFlags {
        pool: Some("rados:fast/office".parse().unwrap()),
        ceph_conf: Some("c".into()),
        ceph_user: Some("u".into()),
        standby: false,
    };
    let c = resolve(text, Overrides { store: flags, ..data() }).unwrap();
    assert!(c.standby, "no option of the command line switches it off");
    let PoolLocation::Rados(pool) = c.location else { panic!("{}", c.location) };
    assert_eq!((pool.address.pool.as_str(), pool.address.name.as_str()), ("fast", "office"));
    assert_eq!((pool.options.conf, pool.options.user), (Some("c".into()), Some("u".into())));
    let PoolLocation::Rados(pool) = resolve("", in_ceph()).unwrap().location else { panic!() };
    assert_eq!((pool.options.conf, pool.options.user), (None, None), "Ceph decides");
}

#[test]
fn wrong_settings_of_ceph_are_refused() {
    for wrong in ["vms/desktops", "rados:vms", "rados:/a", "rados:vms/", "rados:vms/a b", "rados:vms/a/b", ""]
    {
        let found = resolve(&format!("[store]\npool = '{wrong}'"), data());
        assert!(matches!(found, Err(ConfigError::Syntax { line: 2, .. })), "{wrong}: {found:?}");
    }
    for alone in ["standby = true", "ceph_conf = '/c'", "ceph_user = 'u'", "client_interfaces = ['eth1']"] {
        let found = resolve(&format!("[store]\n{alone}"), data());
        assert!(matches!(found, Err(ConfigError::NotInCeph(_))), "{alone}: {found:?}");
    }
    for user in ["", "client.admin", "a b"] {
        let found = resolve(&format!("[store]\nceph_user = '{user}'"), in_ceph());
        assert!(matches!(found, Err(ConfigError::Value { .. })), "{user}: {found:?}");
    }
    for interface in ["", "../../etc", "eth0 eth1", "a-name-that-is-too-long"] {
        let found = resolve(&format!("[store]\nclient_interfaces = ['{interface}']"), in_ceph());
        assert!(matches!(found, Err(ConfigError::Value { .. })), "{interface}: {found:?}");
    }
    let none = Overrides { data: None, ..in_ceph() };
    assert_eq!(resolve("", none).unwrap_err(), ConfigError::NoData, "the sockets are in it");
}
