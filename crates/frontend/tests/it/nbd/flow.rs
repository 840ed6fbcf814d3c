//! Many clients, slow clients, and the shutdown of the server.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_wire::nbd::*;

use super::client::{Client, request};
use super::support::{SIZE, TestServer};

#[test]
fn a_client_that_does_not_read_delays_no_other_client() {
    let server = TestServer::start();
    Client::open(&server.socket(), "vol").put(0, 0, &vec![9; 32 << 20]);
    // Much more than any socket buffer. The server starts the requests up to the limit of each backlog.
    let reads = |flags: u16, len: u32| -> Vec<u8> {
        (0..100).flat_map(|cookie| request(flags, CMD_READ, cookie, 0, len)).collect()
    };
    let mut deaf: Vec<Client> = (0..4)
        .map(|n| {
            let mut client = Client::open(&server.socket(), "vol");
            client.send(&if n < 2 { reads(0, 2 << 20) } else { reads(CMD_FLAG_DF, 32 << 20) });
            client
        })
        .collect();
    // Both threads have such clients, and still serve other clients.
    for _ in 0..8 {
        Client::open(&server.socket(), "vol").assert_alive();
    }
    // Once they read, they receive all replies: in interleaved chunks, or as one chunk.
    let mut of_first = 0;
    while of_first < 2 << 20 {
        let (cookie, kind, done, payload) = deaf[0].chunk();
        assert_eq!(kind, CHUNK_OFFSET_DATA);
        assert!(payload[8..].iter().all(|b| *b == 9));
        if cookie == 0 {
            of_first += payload.len() - 8;
            assert_eq!(done, of_first == 2 << 20);
        }
    }
    let (_, kind, done, payload) = deaf[3].chunk();
    assert!(kind == CHUNK_OFFSET_DATA && done && payload.len() == (32 << 20) + 8);
    drop(deaf);
    server.wait_until_alone();
}

#[test]
fn many_connections_are_served_concurrently() {
    let server = TestServer::start();
    let mut clients: Vec<Client> = (0..200).map(|_| Client::open(&server.socket(), "vol")).collect();
    assert_eq!(server.handle().connections(), 200);
    assert_eq!(server.pool.disk("vol").unwrap().clients, 200);
    for (n, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.put(0, n as u64 * 512, &[n as u8; 512]).error, 0);
    }
    for (n, client) in clients.iter_mut().enumerate() {
        let next = (n + 1) % 200;
        assert_eq!(client.ask(0, CMD_READ, next as u64 * 512, 512).data, [next as u8; 512]);
    }
    drop(clients);
    server.wait_until_alone();
}

#[test]
fn shutdown_closes_all_connections_and_removes_the_socket() {
    let mut server = TestServer::start();
    let socket = server.socket();
    let mut idle = Client::open(&socket, "vol");
    let mut negotiating = Client::greeted(&socket);
    let mut deaf = Client::open(&socket, "vol");
    Client::open(&socket, "vol").put(0, 0, &vec![9; 32 << 20]);
    deaf.send(&request(0, CMD_READ, 1, 0, 32 << 20).repeat(4));
    idle.assert_alive();
    let start = Instant::now();
    server.shutdown();
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    idle.assert_closed();
    negotiating.assert_closed();
    assert!(!socket.exists());
    assert_eq!(server.pool.disk("vol").unwrap().clients, 0);
}

#[test]
fn writes_acknowledged_during_shutdown_are_kept() {
    let mut server = TestServer::start();
    let stop = AtomicBool::new(false);
    let socket = server.socket();
    let written: Vec<u64> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4u64)
            .map(|w| {
                let (stop, socket) = (&stop, &socket);
                scope.spawn(move || {
                    let mut client = Client::open(socket, "vol");
                    let mut acknowledged = 0;
                    while !stop.load(Ordering::Relaxed) {
                        let block = [(acknowledged + 1) as u8; 512];
                        let at = (w * 4096 + acknowledged % 4096) * 512;
                        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                            client.put(0, at, &block).error
                        }));
                        match result {
                            Ok(0) => acknowledged += 1,
                            // ESHUTDOWN, or the connection is closed.
                            Ok(108) | Err(_) => break,
                            Ok(other) => panic!("error {other}"),
                        }
                    }
                    acknowledged
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(200));
        server.shutdown();
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().map(|w| w.join().unwrap()).collect()
    });
    let disk = server.pool.attach("vol").unwrap();
    for (w, acknowledged) in written.iter().enumerate() {
        for n in acknowledged.saturating_sub(100)..*acknowledged {
            let mut block = [0; 512];
            server.block_on(disk.read((w as u64 * 4096 + n % 4096) * 512, &mut block)).unwrap();
            assert_eq!(block, [(n + 1) as u8; 512], "writer {w}, write {n}");
        }
    }
    assert!(disk.size() == SIZE);
}
