//! The transmission phase: every command, with simple and structured replies, over UNIX and TCP sockets.

use forebay_wire::nbd::*;

use super::client::Client;
use super::support::{SIZE, TestServer};

const MIB: usize = 1 << 20;

/// Bytes that depend on their offset; none is zero.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| ((i ^ (i >> 8) ^ (i >> 16) ^ seed) % 255 + 1) as u8).collect()
}

#[test]
fn written_data_is_read_back() {
    let server = TestServer::start();
    for structured in [false, true] {
        let open = if structured { Client::open } else { Client::open_simple };
        let mut client = open(&server.socket(), "vol");
        // Aligned, unaligned, one byte, across blocks, longer than the server's buffers, the longest request.
        for (offset, len) in [(0, 4096), (513, 1), (4095, 2), (777, 70_001), (MIB, 300_000), (3, 32 * MIB)] {
            let data = pattern(offset as u64 + u64::from(structured), len);
            assert_eq!(client.put(0, offset as u64, &data).error, 0);
            let reply = client.ask(0, CMD_READ, offset as u64, len as u32);
            assert_eq!(reply.error, 0);
            assert!(reply.data == data, "{len} bytes at {offset}");
        }
        assert_eq!(client.ask(0, CMD_FLUSH, 0, 0).error, 0);
    }
    let mut other = Client::tcp(&server.tcp());
    other.greet();
    other.go("vol").unwrap();
    let data = pattern(4, 32 * MIB);
    assert!(other.ask(0, CMD_READ, 3, data.len() as u32).data == data, "another connection sees it");
}

#[test]
fn a_read_of_zeroes_is_a_hole() {
    let server = TestServer::start();
    let mut client = Client::open(&server.socket(), "vol");
    let reply = client.ask(0, CMD_READ, 8192, 65536);
    assert_eq!(reply.chunks, [CHUNK_OFFSET_HOLE]);
    assert!(reply.data == vec![0; 65536]);
    client.put(0, (2 * MIB) as u64, &pattern(1, 4096));
    let reply = client.ask(0, CMD_READ, 0, (4 * MIB) as u32);
    assert!(reply.chunks.contains(&CHUNK_OFFSET_HOLE) && reply.chunks.contains(&CHUNK_OFFSET_DATA));
    assert!(reply.data[2 * MIB..2 * MIB + 4096] == pattern(1, 4096));
    assert!(reply.data[..2 * MIB].iter().all(|b| *b == 0));
    let whole = client.ask(CMD_FLAG_DF, CMD_READ, 0, (4 * MIB) as u32);
    assert_eq!(whole.chunks, [CHUNK_OFFSET_DATA], "DF forbids several chunks");
    assert!(whole.data == reply.data);
}

#[test]
fn requests_of_length_zero_succeed() {
    let server = TestServer::start();
    for structured in [false, true] {
        let open = if structured { Client::open } else { Client::open_simple };
        let mut client = open(&server.socket(), "vol");
        for kind in [CMD_READ, CMD_TRIM, CMD_CACHE, CMD_WRITE_ZEROES] {
            for offset in [0, 5, SIZE] {
                let reply = client.ask(0, kind, offset, 0);
                assert_eq!((reply.error, reply.data.len()), (0, 0));
            }
        }
        assert_eq!(client.put(CMD_FLAG_FUA, 5, b"").error, 0);
        assert_eq!(client.ask(0, CMD_BLOCK_STATUS, 0, 0).error, 22);
        client.assert_alive();
    }
}

#[test]
fn zeroed_and_trimmed_ranges_read_as_zeroes() {
    let server = TestServer::start();
    let mut client = Client::open(&server.socket(), "vol");
    client.put(CMD_FLAG_FUA, 0, &pattern(0, MIB));
    assert_eq!(client.ask(CMD_FLAG_FUA, CMD_WRITE_ZEROES, 4096, 4096).error, 0);
    assert_eq!(client.ask(CMD_FLAG_NO_HOLE | CMD_FLAG_FAST_ZERO, CMD_WRITE_ZEROES, 8192, 4096).error, 0);
    assert_eq!(client.ask(0, CMD_WRITE_ZEROES, 100, 7).error, 0);
    assert_eq!(client.ask(CMD_FLAG_FUA, CMD_TRIM, 65536, 65536).error, 0);
    let mut expected = pattern(0, MIB);
    expected[4096..12288].fill(0);
    expected[100..107].fill(0);
    expected[65536..131072].fill(0);
    assert!(client.ask(0, CMD_READ, 0, MIB as u32).data == expected);
}

#[test]
fn block_status_distinguishes_holes_and_data() {
    let server = TestServer::start();
    let mut client = Client::open(&server.socket(), "vol");
    client.put(CMD_FLAG_FUA, MIB as u64, &pattern(0, MIB));
    client.ask(CMD_FLAG_NO_HOLE | CMD_FLAG_FUA, CMD_WRITE_ZEROES, 3 * MIB as u64, 4096);
    let reply = client.ask(0, CMD_BLOCK_STATUS, 0, 4 * MIB as u32);
    let hole = STATE_HOLE | STATE_ZERO;
    let mib = MIB as u32;
    assert_eq!(reply.extents, [(mib, hole), (mib, 0), (mib, hole), (4096, STATE_ZERO), (mib - 4096, hole)]);
    let one = client.ask(CMD_FLAG_REQ_ONE, CMD_BLOCK_STATUS, MIB as u64 + 4096, 4096);
    assert_eq!(one.extents, [(4096, 0)]);
    assert_eq!(client.ask(CMD_FLAG_REQ_ONE, CMD_BLOCK_STATUS, SIZE - 1, 1).extents, [(1, hole)]);
}

#[test]
fn block_status_describes_the_changes_since_a_snapshot() {
    let server = TestServer::start();
    let mib = MIB as u32;
    let mut writer = Client::open(&server.socket(), "vol");
    writer.put(CMD_FLAG_FUA, 0, &pattern(0, 2 * MIB));
    for name in ["b", "a"] {
        server.block_on(server.pool.create_snapshot("vol", name)).unwrap();
    }
    writer.put(0, MIB as u64, &pattern(1, 4096));
    writer.ask(0, CMD_TRIM, 0, 4096);

    let mut client = Client::greeted(&server.socket());
    client.set_up();
    let context = |name: &str| format!("{CHANGED_SINCE}{name}");
    let all = ["base:allocation".to_owned(), context("a"), context("b")];
    assert_eq!(client.contexts(OPT_LIST_META_CONTEXT, "vol", &[]), all);
    for query in ["forebay:", CHANGED_SINCE] {
        assert_eq!(client.contexts(OPT_LIST_META_CONTEXT, "vol", &[query]), all[1..], "{query}");
        assert_eq!(client.contexts(OPT_SET_META_CONTEXT, "vol", &[query]), [""; 0], "{query}");
    }
    // A snapshot is not compared with itself, and what does not exist is not selected.
    assert_eq!(client.contexts(OPT_LIST_META_CONTEXT, "vol@a", &["forebay:"]), all[2..]);
    for name in ["other", "vol", "vol@", "@a", "\n"] {
        assert_eq!(client.contexts(OPT_SET_META_CONTEXT, "vol", &[&context(name)]), [""; 0], "{name}");
    }
    // The snapshot is in use while its context is selected, and free after another selection.
    assert_eq!(client.contexts(OPT_SET_META_CONTEXT, "vol", &[&context("a")]), [context("a")]);
    let remove = |name: &str| server.block_on(server.pool.delete(name));
    assert!(matches!(remove("vol@a"), Err(forebay_engine::Error::InUse { .. })));
    let both = ["base:allocation", &context("b")];
    assert_eq!(client.contexts(OPT_SET_META_CONTEXT, "vol", &both), both);
    remove("vol@a").unwrap();
    client.go_as_selected("vol");

    let reply = client.ask(0, CMD_BLOCK_STATUS, 0, 4 * mib);
    let hole = STATE_HOLE | STATE_ZERO;
    assert_eq!(reply.chunks, [CHUNK_BLOCK_STATUS; 2]);
    assert_eq!(reply.extents, [(4096, hole), (2 * mib - 4096, 0), (2 * mib, hole)]);
    let zeroed = STATE_CHANGED | STATE_CHANGED_ZERO;
    let changes = [(4096, zeroed), (mib - 4096, 0), (4096, STATE_CHANGED), (3 * mib - 4096, 0)];
    assert_eq!(reply.changes, changes);
    let one = client.ask(CMD_FLAG_REQ_ONE, CMD_BLOCK_STATUS, MIB as u64 + 512, 100);
    assert_eq!((one.extents, one.changes), (vec![(100, 0)], vec![(100, STATE_CHANGED)]));
    // A later write is in the next answer.
    writer.put(0, 3 * MIB as u64, &pattern(2, 4096));
    let later = client.ask(0, CMD_BLOCK_STATUS, 3 * MIB as u64, 8192);
    assert_eq!(later.changes, [(4096, STATE_CHANGED), (4096, 0)]);
    assert!(matches!(remove("vol@b"), Err(forebay_engine::Error::InUse { .. })));
}

#[test]
fn the_cache_command_reads_ahead() {
    let server = TestServer::start();
    let mut client = Client::open(&server.socket(), "vol");
    client.put(CMD_FLAG_FUA, 0, &pattern(0, MIB));
    assert_eq!(client.ask(0, CMD_CACHE, 0, MIB as u32).error, 0);
    assert_eq!(client.ask(0, CMD_CACHE, 0, SIZE as u32).error, 0);
    client.assert_alive();
}

#[test]
fn many_concurrent_requests_are_all_answered() {
    let server = TestServer::start();
    let mut client = Client::open(&server.socket(), "vol");
    let data = pattern(9, 200 * 4096);
    client.put(0, 0, &data);
    let mut bytes = Vec::new();
    for n in 0..200u64 {
        bytes.extend(super::client::request(0, CMD_READ, n, n * 4096, 4096));
    }
    client.send(&bytes);
    let mut seen = [false; 200];
    for _ in 0..200 {
        let reply = client.reply(4096);
        let n = reply.cookie as usize;
        assert!(!std::mem::replace(&mut seen[n], true));
        assert!(reply.data == data[n * 4096..(n + 1) * 4096]);
    }
}

#[test]
fn a_disconnect_closes_the_connection_after_all_replies() {
    let server = TestServer::start();
    let mut client = Client::open(&server.socket(), "vol");
    client.write(CMD_FLAG_FUA, 1, 0, &pattern(3, 2 * MIB));
    client.request(0, CMD_FLUSH, 2, 0, 0);
    client.request(0, CMD_DISC, 3, 0, 0);
    let mut cookies = [client.reply(0), client.reply(0)].map(|r| (r.cookie, r.error));
    cookies.sort();
    assert_eq!(cookies, [(1, 0), (2, 0)]);
    client.assert_closed();
    server.wait_until_alone();
}

#[test]
fn a_disk_that_grows_is_served_up_to_its_new_end() {
    let server = TestServer::start();
    let mut client = Client::open(&server.socket(), "vol");
    assert_eq!(client.ask(0, CMD_READ, SIZE, 4096).error, 22);
    server.block_on(server.pool.resize("vol", SIZE * 2)).unwrap();
    assert_eq!(client.ask(0, CMD_READ, SIZE, 4096).error, 0);
    assert_eq!(client.put(0, SIZE * 2 - 4096, &[1; 4096]).error, 0);
    assert_eq!(client.put(0, SIZE * 2 - 4095, &[1; 4096]).error, 28);
}
