//! Clients that violate the protocol: each receives the specified error, and other clients are not affected.

use std::io::Write;

use forebay_wire::nbd::*;

use super::client::{Client, option, request};
use super::support::{SIZE, TestServer};

const MIB: u32 = 1 << 20;

/// Asserts that the server serves new clients and has released all earlier ones.
fn assert_well(server: &TestServer) {
    Client::open(&server.socket(), "vol").assert_alive();
    server.wait_until_alone();
}

#[test]
fn garbage_in_negotiation_ends_the_connection() {
    let server = TestServer::start();
    for garbage in [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".as_slice(), &[0xff; 64], &[0; 64]] {
        let mut client = Client::unix(&server.socket());
        client.read(18);
        client.send(garbage);
        client.assert_closed();
    }
    let mut client = Client::greeted(&server.socket());
    client.send(b"not an option at all");
    client.assert_closed();
    assert_well(&server);
}

#[test]
fn a_disconnect_during_negotiation_releases_the_client() {
    let server = TestServer::start();
    let bytes =
        [3u32.to_be_bytes().to_vec(), option(OPT_LIST, b""), option(OPT_GO, b"\0\0\0\x03vol\0\0")].concat();
    for len in 0..bytes.len() {
        let mut client = Client::unix(&server.socket());
        client.send(&bytes[..len]);
    }
    assert_well(&server);
}

#[test]
fn negotiation_byte_by_byte_works() {
    let server = TestServer::start();
    let mut client = Client::unix(&server.socket());
    client.read(18);
    let go = option(OPT_GO, b"\0\0\0\x03vol\0\0");
    let read = request(0, CMD_READ, 7, 0, 512);
    for byte in [3u32.to_be_bytes().to_vec(), go, read].concat() {
        client.send(&[byte]);
    }
    assert_eq!(client.option_reply(OPT_GO).kind, REP_INFO);
    assert_eq!(client.option_reply(OPT_GO).kind, REP_ACK);
    assert_eq!(client.reply(512).cookie, 7);
}

#[test]
fn options_about_exports_are_bounded() {
    let server = TestServer::start();
    let info = |client: &mut Client| {
        client.option(OPT_INFO, b"\0\0\0\x03vol\0\0");
        assert_eq!(client.option_reply(OPT_INFO).kind, REP_INFO);
        assert_eq!(client.option_reply(OPT_INFO).kind, REP_ACK);
    };
    let mut client = Client::greeted(&server.socket());
    (0..64).for_each(|_| info(&mut client));
    client.option(OPT_INFO, b"\0\0\0\x03vol\0\0");
    client.assert_closed();
    // A list permits more for each export, and counts once for each.
    let mut client = Client::greeted(&server.socket());
    client.option(OPT_LIST, b"");
    assert_eq!(client.option_reply(OPT_LIST).kind, REP_SERVER);
    assert_eq!(client.option_reply(OPT_LIST).kind, REP_ACK);
    (0..64 + 8 - 2).for_each(|_| info(&mut client));
    client.option(OPT_INFO, b"\0\0\0\x03vol\0\0");
    client.assert_closed();
    drop(client);
    assert_well(&server);
}

#[test]
fn unknown_and_overlong_options_are_refused_and_skipped() {
    let server = TestServer::start();
    let mut client = Client::greeted(&server.socket());
    for number in [0, 4, 11, 12, 4711, u32::MAX] {
        client.option(number, b"some data");
        assert_eq!(client.option_reply(number).kind, REP_ERR_UNSUP);
    }
    client.option(OPT_GO, &vec![1; MIB as usize]);
    assert_eq!(client.option_reply(OPT_GO).kind, REP_ERR_TOO_BIG);
    assert!(client.go("vol").is_ok());
    client.assert_alive();
    drop(client);
    let mut client = Client::greeted(&server.socket());
    let mut endless = option(OPT_LIST, b"");
    endless[12..16].copy_from_slice(&u32::MAX.to_be_bytes());
    client.send(&endless);
    client.assert_closed();
    drop(client);
    assert_well(&server);
}

#[test]
fn requests_beyond_the_end_are_refused() {
    let server = TestServer::start();
    let mut client = Client::open(&server.socket(), "vol");
    for (offset, len) in [(SIZE, 1), (SIZE - 1, 2), (u64::MAX, 1), (u64::MAX - 1, u32::MAX)] {
        for kind in [CMD_READ, CMD_TRIM, CMD_CACHE, CMD_BLOCK_STATUS] {
            let reply = client.ask(0, kind, offset, len);
            assert_eq!(reply.error, 22);
            assert!(reply.text.contains("beyond the end"));
        }
        assert_eq!(client.ask(0, CMD_WRITE_ZEROES, offset, len).error, 28);
    }
    assert_eq!(client.put(0, SIZE - 100, &[1; 4096]).error, 28);
    client.assert_alive();
}

#[test]
fn unknown_commands_and_flags_are_refused() {
    let server = TestServer::start();
    for open in [Client::open, Client::open_simple] {
        let mut client = open(&server.socket(), "vol");
        for kind in [8, 9, 4711, u16::MAX] {
            assert_eq!(client.ask(0, kind, 0, 0).error, 22);
        }
        assert_eq!(client.ask(1 << 9, CMD_READ, 0, 512).error, 22);
        assert_eq!(client.put(1 << 5, 0, &[1; 4096]).error, 22, "its data is skipped");
        client.assert_alive();
    }
}

#[test]
fn too_long_requests_are_refused_and_skipped() {
    let server = TestServer::start();
    let mut client = Client::open(&server.socket(), "vol");
    assert_eq!(client.ask(0, CMD_READ, 0, 33 * MIB).error, 22);
    assert_eq!(client.ask(CMD_FLAG_DF, CMD_READ, 0, 33 * MIB).error, 75);
    assert_eq!(client.put(0, 0, &vec![1; 33 << 20]).error, 22);
    client.assert_alive();
    assert_eq!(
        client.ask(0, CMD_READ, 0, 32 * MIB).data,
        vec![0; 32 << 20],
        "the refused write changed no block"
    );
}

#[test]
fn garbage_in_transmission_ends_the_connection() {
    let server = TestServer::start();
    for garbage in [b"GET / HTTP/1.1\r\n\r\n_____________".as_slice(), &[0; 28], &[0xff; 4096]] {
        let mut client = Client::open(&server.socket(), "vol");
        client.request(0, CMD_READ, 1, 0, 512);
        assert_eq!(client.reply(512).cookie, 1);
        client.send(garbage);
        client.assert_closed();
    }
    assert_well(&server);
}

#[test]
fn a_disconnect_within_a_request_releases_the_client() {
    let server = TestServer::start();
    let short = [request(0, CMD_WRITE, 1, 0, 600), vec![7; 600]].concat();
    for len in (0..short.len()).step_by(13) {
        Client::open(&server.socket(), "vol").send(&short[..len]);
    }
    // Within a payload that is received into separate memory.
    let long = [request(0, CMD_WRITE, 1, 0, 32 * MIB), vec![7; 5 << 20]].concat();
    for len in [28, 29, 200_000, long.len()] {
        Client::open(&server.socket(), "vol").send(&long[..len]);
    }
    assert_well(&server);
    let mut client = Client::open(&server.socket(), "vol");
    assert!(
        client.ask(0, CMD_READ, 0, MIB).data == vec![0; MIB as usize],
        "an incomplete write changed a block"
    );
}

#[test]
fn a_disconnect_within_a_refused_write_releases_the_client() {
    let server = TestServer::start();
    let mut client = Client::open(&server.socket(), "vol");
    client.send(&request(0, CMD_WRITE, 1, SIZE, u32::MAX));
    client.socket.write_all(&[0; 1000]).unwrap();
    drop(client);
    assert_well(&server);
}

#[test]
fn replies_to_many_short_options_are_not_collected() {
    let server = TestServer::start();
    let mut client = Client::greeted(&server.socket());
    // The long option makes room for many short ones in one read.
    let mut options = option(99, &[0; 60 << 10]);
    (0..2000).for_each(|_| options.extend(option(99, b"")));
    options.extend(b"not an option at all");
    client.send(&options);
    for _ in 0..250 {
        assert_eq!(client.option_reply(99).kind, REP_ERR_UNSUP);
    }
    drop(client);
    assert_well(&server);
}
