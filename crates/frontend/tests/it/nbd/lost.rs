//! Clients of a volume whose acknowledged writes are lost, and when writes are acknowledged.

use std::sync::Arc;

use forebay_engine::{Pool, PoolConfig, RemoteAnswers};
use forebay_store::MemoryStore;
use forebay_wire::nbd::*;

use super::client::{Client, info};
use super::support::{TestServer, on_all_addresses, pool_config};
use crate::host::{host, store_with_lost_writes};

/// Later than the start of any process.
const LATE: Option<u64> = Some(1 << 50);

fn tcp(server: &TestServer) -> Client {
    let mut client = Client::tcp(&server.tcp());
    client.greet();
    client
}

fn assert_refused(client: &mut Client) {
    client.option(OPT_GO, &info("lost", &[]));
    let reply = client.option_reply(OPT_GO);
    assert_eq!(reply.kind, REP_ERR_POLICY);
    assert!(reply.text().contains("'forebay volume resume lost'"), "{}", reply.text());
}

#[test]
fn a_remote_client_is_refused_until_the_volume_is_resumed() {
    let server = TestServer::with_store(store_with_lost_writes(&["lost"]), pool_config(), on_all_addresses);
    let mut client = tcp(&server);
    assert_refused(&mut client);
    // The connection can be used for another export.
    client.go("vol").unwrap();
    let mut old = tcp(&server);
    old.option(OPT_EXPORT_NAME, b"lost");
    old.assert_closed();
    // This process started after the loss was detected, as far as the host of the test knows.
    Client::open(&server.socket(), "lost").assert_alive();
    server.block_on(server.pool.resume("lost")).unwrap();
    let mut client = tcp(&server);
    client.go("lost").unwrap();
    client.assert_alive();
}

#[test]
fn a_local_client_that_is_older_than_the_loss_is_refused() {
    let store = store_with_lost_writes(&["lost"]);
    let server = TestServer::at(store, pool_config(), LATE, on_all_addresses);
    assert_refused(&mut Client::greeted(&server.socket()));
    server.block_on(server.pool.resume("lost")).unwrap();
    Client::open(&server.socket(), "lost").assert_alive();
}

/// Opens the pool of a server whose process ends now, together with the memory of its answered writes.
/// Returns whether `vol` has lost writes, and whether the first block was written.
fn after_the_end(store: &Arc<MemoryStore>, server: &TestServer) -> (bool, bool) {
    server.block_on(async {
        let host = Arc::new(host(tokio::runtime::Handle::current()));
        let pool = Pool::open(store.clone(), host, pool_config()).await.unwrap();
        let lost = pool.disk("vol").unwrap().memory_lost;
        pool.resume("vol").await.unwrap();
        let mut block = [0; 4096];
        pool.attach("vol").unwrap().read(0, &mut block).await.unwrap();
        (lost, block == [7; 4096])
    })
}

#[test]
fn writes_over_tcp_are_durable_when_they_are_acknowledged_and_local_ones_are_marked() {
    let in_memory = || PoolConfig { remote_answers: RemoteAnswers::Memory, ..pool_config() };
    for (is_remote, config, is_lost) in
        [(true, pool_config(), false), (true, in_memory(), true), (false, pool_config(), true)]
    {
        let store = Arc::new(MemoryStore::new());
        let server = TestServer::with_store(store.clone(), config, on_all_addresses);
        let mut client = if is_remote { tcp(&server) } else { Client::greeted(&server.socket()) };
        client.go("vol").unwrap();
        for (n, byte) in (0..).zip([5, 6, 7]) {
            assert_eq!(client.put(0, 0, &[byte; 4096]).error, 0, "write {n}");
        }
        let (lost, written) = after_the_end(&store, &server);
        assert_eq!(lost, is_lost, "remote: {is_remote}");
        assert!(written || is_lost, "remote: {is_remote}");
    }
}

#[test]
fn forced_unit_access_over_a_unix_socket_needs_no_mark() {
    let store = Arc::new(MemoryStore::new());
    let server = TestServer::with_store(store.clone(), pool_config(), on_all_addresses);
    let mut client = Client::open(&server.socket(), "vol");
    assert_eq!(client.put(CMD_FLAG_FUA, 0, &[7; 4096]).error, 0);
    assert_eq!(after_the_end(&store, &server), (false, true));
}
