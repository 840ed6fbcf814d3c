//! Negotiation with a running server: the exports, their names, and their descriptions.

use forebay_engine::{CloneRequest, SyncMode};
use forebay_wire::nbd::*;

use super::client::{Client, info, meta};
use super::support::{SIZE, TestServer};

/// The list of exports, with their descriptions.
pub fn list(client: &mut Client) -> Vec<(String, String)> {
    client.option(OPT_LIST, b"");
    let mut found = Vec::new();
    loop {
        let reply = client.option_reply(OPT_LIST);
        if reply.kind == REP_ACK {
            return found;
        }
        assert_eq!(reply.kind, REP_SERVER);
        let (len, rest) = reply.data.split_at(4);
        let (name, remark) = rest.split_at(u32::from_be_bytes(len.try_into().unwrap()) as usize);
        let text = |b: &[u8]| String::from_utf8(b.to_vec()).unwrap();
        found.push((text(name), text(remark)));
    }
}

fn with_snapshot_and_image() -> TestServer {
    let server = TestServer::start();
    server.block_on(async {
        let import = server.pool.begin_import("golden", 1 << 20, 0).await.unwrap();
        server.pool.finish_import(import).await.unwrap();
        server.pool.create_snapshot("vol", "monday").await.unwrap();
        let clone = CloneRequest { name: "desk".into(), ..CloneRequest::default() };
        server.pool.clone_disk("golden", &[clone]).await.unwrap();
    });
    server
}

#[test]
fn the_list_shows_volumes_snapshots_and_images() {
    let server = with_snapshot_and_image();
    let mut client = Client::greeted(&server.socket());
    let found = list(&mut client);
    let expected = [
        ("desk", "volume, clone of golden"),
        ("golden", "image, read-only"),
        ("vol", "volume"),
        ("vol@monday", "snapshot, read-only"),
    ];
    assert_eq!(found, expected.map(|(n, r)| (n.to_owned(), r.to_owned())));
    client.option(OPT_LIST, b"data");
    assert_eq!(client.option_reply(OPT_LIST).kind, REP_ERR_INVALID);
}

#[test]
fn a_list_of_several_pages_is_complete() {
    let server = with_snapshot_and_image();
    let desks = 0..300;
    let clones = desks.map(|n| CloneRequest { name: format!("desk-{n}"), ..CloneRequest::default() });
    server.block_on(server.pool.clone_disk("golden", &clones.collect::<Vec<_>>())).unwrap();
    let mut client = Client::greeted(&server.socket());
    let all: Vec<_> = server.pool.disks().into_iter().map(|disk| disk.name).collect();
    // As often as clients may ask.
    for _ in 0..8 {
        assert_eq!(list(&mut client).into_iter().map(|(name, _)| name).collect::<Vec<_>>(), all);
    }
    assert!(client.go("desk-299").is_ok());
}

#[test]
fn each_kind_of_disk_has_its_flags() {
    let server = with_snapshot_and_image();
    let always = FLAG_HAS_FLAGS | FLAG_SEND_FLUSH | FLAG_SEND_FUA | FLAG_SEND_CACHE | FLAG_CAN_MULTI_CONN;
    let writable = always | FLAG_SEND_TRIM | FLAG_SEND_WRITE_ZEROES | FLAG_SEND_FAST_ZERO;
    for (name, size, flags) in [
        ("vol", SIZE, writable),
        ("desk", 1 << 20, writable),
        ("vol@monday", SIZE, always | FLAG_READ_ONLY),
        ("golden", 1 << 20, always | FLAG_READ_ONLY),
    ] {
        let mut plain = Client::greeted(&server.socket());
        assert_eq!(plain.go(name).unwrap(), (size, flags), "{name}");
        let mut structured = Client::greeted(&server.socket());
        structured.set_up();
        assert_eq!(structured.go(name).unwrap(), (size, flags | FLAG_SEND_DF), "{name}");
        structured.assert_alive();
    }
}

#[test]
fn read_only_exports_refuse_changes() {
    let server = with_snapshot_and_image();
    for name in ["golden", "vol@monday"] {
        let mut client = Client::open(&server.socket(), name);
        let reply = client.put(0, 0, &[1; 4096]);
        assert_eq!((reply.error, reply.text.as_str()), (1, "the export is read-only"));
        assert_eq!(client.ask(0, CMD_TRIM, 0, 4096).error, 1);
        assert_eq!(client.ask(0, CMD_WRITE_ZEROES, 0, 4096).error, 1);
        assert_eq!(client.ask(0, CMD_FLUSH, 0, 0).error, 0);
        client.assert_alive();
    }
}

#[test]
fn the_default_export_is_the_only_volume() {
    let server = TestServer::start();
    let mut client = Client::greeted(&server.socket());
    assert_eq!(client.go("").unwrap().0, SIZE);
    client.assert_alive();
    server.block_on(server.pool.create_volume("second", SIZE, SyncMode::Flush, 0)).unwrap();
    let mut client = Client::greeted(&server.socket());
    let refused = client.go("").unwrap_err();
    assert_eq!(refused.kind, REP_ERR_UNKNOWN);
    assert!(refused.text().contains("more than one volume"), "{}", refused.text());
    assert!(client.go("second").is_ok(), "the negotiation continues");
}

#[test]
fn info_does_not_open_the_disk() {
    let server = TestServer::start();
    let mut client = Client::greeted(&server.socket());
    client.option(OPT_INFO, &info("vol", &[INFO_NAME, INFO_DESCRIPTION, INFO_BLOCK_SIZE]));
    let mut pieces = Vec::new();
    loop {
        let reply = client.option_reply(OPT_INFO);
        if reply.kind == REP_ACK {
            break;
        }
        assert_eq!(reply.kind, REP_INFO);
        pieces.push(reply.data);
    }
    assert_eq!(pieces.len(), 4);
    assert_eq!(pieces[0][..10], [[0, 0].as_slice(), &SIZE.to_be_bytes()].concat());
    assert_eq!(pieces[1], b"\0\x01vol");
    assert_eq!(pieces[2], b"\0\x02volume");
    assert_eq!(pieces[3], b"\0\x03\0\0\0\x01\0\0\x10\0\x02\0\0\0");
    assert_eq!(server.pool.disk("vol").unwrap().clients, 0);
    assert!(client.go("vol").is_ok());
    assert_eq!(server.pool.disk("vol").unwrap().clients, 1);
    drop(client);
    server.wait_until_alone();
}

#[test]
fn a_name_without_a_disk_is_unknown() {
    let server = TestServer::start();
    let mut client = Client::greeted(&server.socket());
    let long = "x".repeat(300);
    let longest = "y".repeat(4096);
    for name in ["nope", "a b", "../../etc/passwd", "vol/", "vol@", "vol@nope", "@", &long, &longest] {
        let refused = client.go(name).unwrap_err();
        assert_eq!(refused.kind, REP_ERR_UNKNOWN, "{name}: {}", refused.text());
        assert!(!refused.data.is_empty());
    }
    let too_long = client.go(&"z".repeat(4097)).unwrap_err();
    assert_eq!(too_long.kind, REP_ERR_TOO_BIG);
    client.option(OPT_GO, b"\0\0\0\x02\xff\xfe\0\0");
    assert_eq!(client.option_reply(OPT_GO).kind, REP_ERR_INVALID);
    assert!(client.go("vol").is_ok());
}

#[test]
fn contexts_are_listed_and_set() {
    let server = TestServer::start();
    let mut client = Client::greeted(&server.socket());
    client.option(OPT_LIST_META_CONTEXT, &meta("vol", &[]));
    assert_eq!(
        client.option_reply(OPT_LIST_META_CONTEXT).kind,
        REP_ERR_INVALID,
        "metadata contexts need structured replies"
    );
    client.set_up();
    for (option, queries, found) in [
        (OPT_LIST_META_CONTEXT, [].as_slice(), true),
        (OPT_LIST_META_CONTEXT, &["base:"], true),
        (OPT_LIST_META_CONTEXT, &["qemu:"], false),
        (OPT_SET_META_CONTEXT, &["base:"], false),
        (OPT_SET_META_CONTEXT, &["qemu:x", "base:allocation"], true),
        (OPT_SET_META_CONTEXT, &[], false),
    ] {
        client.option(option, &meta("vol", queries));
        let mut reply = client.option_reply(option);
        assert_eq!(reply.kind == REP_META_CONTEXT, found, "{queries:?}");
        if found {
            assert_eq!(reply.data[4..], *BASE_ALLOCATION.as_bytes());
            reply = client.option_reply(option);
        }
        assert_eq!(reply.kind, REP_ACK);
    }
    client.option(OPT_SET_META_CONTEXT, &meta("nope", &["base:allocation"]));
    assert_eq!(client.option_reply(OPT_SET_META_CONTEXT).kind, REP_ERR_UNKNOWN);
}

#[test]
fn a_context_is_valid_only_for_the_export_that_it_was_set_for() {
    let server = TestServer::start();
    server.block_on(server.pool.create_volume("other", SIZE, SyncMode::Flush, 0)).unwrap();
    let mut client = Client::greeted(&server.socket());
    client.set_up();
    client.option(OPT_SET_META_CONTEXT, &meta("other", &["base:allocation"]));
    assert_eq!(client.option_reply(OPT_SET_META_CONTEXT).kind, REP_META_CONTEXT);
    assert_eq!(client.option_reply(OPT_SET_META_CONTEXT).kind, REP_ACK);
    client.option(OPT_GO, &info("vol", &[]));
    assert_eq!(client.option_reply(OPT_GO).kind, REP_INFO);
    assert_eq!(client.option_reply(OPT_GO).kind, REP_ACK);
    assert_eq!(client.ask(0, CMD_BLOCK_STATUS, 0, 4096).error, 22);
    client.assert_alive();
}

#[test]
fn export_name_starts_transmission_or_closes_the_connection() {
    let server = TestServer::start();
    let mut client = Client::greeted(&server.socket());
    client.option(OPT_EXPORT_NAME, b"vol");
    let answer = client.read(10);
    assert_eq!(answer[..8], SIZE.to_be_bytes());
    client.assert_alive();
    // The padding is sent to a client that does not negotiate NO_ZEROES.
    let mut client = Client::unix(&server.socket());
    client.read(18);
    client.send(&1u32.to_be_bytes());
    client.option(OPT_EXPORT_NAME, b"vol");
    assert_eq!(client.read(134)[10..], [0; 124]);
    client.assert_alive();
    // The option has no negative reply: the connection is closed.
    let mut client = Client::greeted(&server.socket());
    client.option(OPT_EXPORT_NAME, b"nope");
    client.assert_closed();
}

#[test]
fn abort_is_acknowledged() {
    let server = TestServer::start();
    let mut client = Client::greeted(&server.socket());
    client.option(OPT_ABORT, b"");
    assert_eq!(client.option_reply(OPT_ABORT).kind, REP_ACK);
    client.assert_closed();
}
