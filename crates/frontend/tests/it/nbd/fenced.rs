//! A server whose pool another server has taken over.

use std::sync::Arc;

use forebay_engine::Error;
use forebay_format::Superblock;
use forebay_store::{MemoryStore, Store};
use forebay_wire::nbd::*;

use super::client::{Client, info};
use super::support::{TestServer, on_all_addresses, pool_config};

#[test]
fn a_server_that_lost_its_pool_cuts_its_clients_unanswered() {
    let store = Arc::new(MemoryStore::new());
    let server = TestServer::with_store(store.clone(), pool_config(), on_all_addresses);
    let mut clients: Vec<_> = (0..6).map(|_| Client::open(&server.socket(), "vol")).collect();
    assert_eq!(clients[0].put(0, 0, &[1; 4096]).error, 0);
    // Another server opens the pool.
    let [a, b] = server.block_on(store.read_superblock()).unwrap();
    let mut newest = Superblock::choose([a.as_deref(), b.as_deref()]).unwrap();
    newest.generation += 1;
    newest.epoch += 1;
    server.block_on(store.swap_superblock(&newest)).unwrap();
    clients.iter_mut().for_each(Client::assert_alive);
    assert!(matches!(server.block_on(server.pool.checkpoint()), Err(Error::Fenced)));
    server.block_on(server.pool.fenced());

    clients[0].request(0, CMD_READ, 1, 0, 4096);
    clients[1].request(0, CMD_READ, 1, 1 << 20, 1 << 20);
    clients[2].write(0, 1, 0, &[2; 4096]);
    clients[3].write(CMD_FLAG_FUA, 1, 0, &[2; 4096]);
    clients[4].request(0, CMD_FLUSH, 1, 0, 0);
    clients[5].request(0, CMD_BLOCK_STATUS, 1, 0, 1 << 20);
    clients.iter_mut().for_each(Client::assert_closed);

    let mut late = Client::greeted(&server.socket());
    late.option(OPT_GO, &info("vol", &[]));
    late.assert_closed();
}
