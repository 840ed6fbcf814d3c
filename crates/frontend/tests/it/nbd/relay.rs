//! Clients of the gateway of a node, whose connections break, and whose servers are killed.

#[path = "../../../../gateway/tests/it/cut.rs"]
mod cut;
#[path = "../../../../gateway/tests/it/driver.rs"]
mod driver;
#[path = "../../../../gateway/tests/it/random.rs"]
mod random;
#[path = "../../../../gateway/tests/it/register.rs"]
mod register;

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_engine::{CloneRequest, OnMemoryLoss, Pool, PoolConfig, RemoteAnswers, SyncMode};
use forebay_format::SegmentId;
use forebay_frontend::nbd::{self, Clients, ListenerConfig};
use forebay_frontend::plane::{Handle, ListenAddr, Plane};
use forebay_gateway::nbd::{End, Gateway, Settings};
use forebay_gateway::{BoxFuture, NbdClient, Shards, Stream};
use forebay_store::{Completion, IoBuf, MemoryStore, Store};
use forebay_wire::nbd::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};
use tokio::task::{AbortHandle, JoinHandle};

use self::cut::Cut;
use self::driver::{Client, Plan, Signs, drive, request_bytes};
use self::random::Random;
use super::client;
use super::support::{SIZE, pool_config};
use crate::host::host;

/// The store of a server that can be killed: then no append of the server reaches the store any more.
struct Killable {
    inner: Arc<MemoryStore>,
    is_dead: tokio::sync::watch::Sender<bool>,
}

impl Store for Killable {
    forebay_store::forward_store!(inner; except append);

    fn append(&self, id: SegmentId, offset: u64, data: IoBuf, expected: u64) -> Completion<IoBuf> {
        if *self.is_dead.borrow() {
            return Completion::of(std::future::pending());
        }
        self.inner.append(id, offset, data, expected)
    }
}

/// A server with a relay listener.
struct Server {
    runtime: Runtime,
    pool: Arc<Pool>,
    plane: Handle,
    store: Arc<Killable>,
    clients: Clients,
}

impl Server {
    fn start(inner: &Arc<MemoryStore>, config: PoolConfig, socket: PathBuf) -> Server {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let store =
            Arc::new(Killable { inner: inner.clone(), is_dead: tokio::sync::watch::Sender::new(false) });
        let host = Arc::new(host(runtime.handle().clone()));
        let pool = runtime.block_on(Pool::open(store.clone(), host, config)).unwrap();
        let mut plane = Plane::default();
        let listen = vec![ListenAddr::Unix(socket)];
        let listener = ListenerConfig { listen, is_relay: true, ..ListenerConfig::default() };
        let config = nbd::Config { listeners: vec![listener], ..nbd::Config::default() };
        let listening = nbd::listen(&mut plane, &pool, &config).unwrap();
        assert!(listening.listeners.is_empty(), "the listener is not for administrators");
        let plane = plane.run(1).unwrap();
        Server { runtime, pool, plane, store, clients: listening.clients }
    }

    /// Ends the server without making anything durable.
    fn kill(self) {
        self.store.is_dead.send_replace(true);
        let Server { runtime, plane, .. } = self;
        runtime.block_on(plane.shutdown());
        runtime.shutdown_timeout(Duration::from_secs(1));
    }
}

/// A cluster of one shard, as a node that forwards connections to its process.
struct Node {
    dir: Arc<tempfile::TempDir>,
    /// Number of the present server, whose socket has this number.
    server: AtomicU64,
    /// The node cannot reach any server.
    is_cut_off: AtomicBool,
    random: Mutex<Random>,
    /// Streams break after at most this number of bytes; 0 if they do not.
    cut: AtomicU64,
    forwarders: Mutex<HashMap<String, AbortHandle>>,
}

impl Node {
    fn new(seed: u64) -> Arc<Node> {
        Node::of(Arc::new(tempfile::tempdir().unwrap()), seed)
    }

    /// A node of the servers that have sockets in this directory.
    fn of(dir: Arc<tempfile::TempDir>, seed: u64) -> Arc<Node> {
        Arc::new(Node {
            dir,
            server: AtomicU64::new(0),
            is_cut_off: AtomicBool::new(false),
            random: Mutex::new(Random(seed)),
            cut: AtomicU64::new(0),
            forwarders: Mutex::default(),
        })
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join(format!("relay{}.sock", self.server.load(Relaxed)))
    }

    /// Cuts the node off from the servers.
    fn cut_off(&self) {
        self.is_cut_off.store(true, Relaxed);
        let forwarders = std::mem::take(&mut *self.forwarders.lock().unwrap());
        forwarders.into_values().for_each(|forwarder| forwarder.abort());
    }

    /// Starts the next server.
    fn start(&self, store: &Arc<MemoryStore>, config: PoolConfig) -> Server {
        self.server.fetch_add(1, Relaxed);
        Server::start(store, config, self.socket())
    }
}

impl Shards for Node {
    fn locate<'a>(&'a self, _: &'a str) -> BoxFuture<'a, io::Result<Option<u32>>> {
        Box::pin(async { Ok(Some(1)) })
    }

    fn names(&self) -> BoxFuture<'_, io::Result<Vec<String>>> {
        Box::pin(async { Ok(vec!["vol".into()]) })
    }

    fn connect_nbd<'a>(&'a self, _: u32, client: &'a NbdClient) -> BoxFuture<'a, io::Result<Stream>> {
        Box::pin(async move {
            // Earlier streams of the client are ended first.
            let former = self.forwarders.lock().unwrap().remove(&client.id);
            former.inspect(AbortHandle::abort);
            if self.is_cut_off.load(Relaxed) {
                return Err(io::ErrorKind::HostUnreachable.into());
            }
            let mut socket = UnixStream::connect(self.socket()).await?;
            socket.write_all(&client.preamble()).await?;
            let (near, mut far) = tokio::io::duplex(256 << 10);
            let forwarder = tokio::spawn(async move {
                let _ = tokio::io::copy_bidirectional(&mut far, &mut socket).await;
            });
            self.forwarders.lock().unwrap().insert(client.id.clone(), forwarder.abort_handle());
            let part = Random(self.random.lock().unwrap().next());
            Ok(match self.cut.load(Relaxed) {
                0 => Box::new(Cut::never(near, part)) as Stream,
                longest => Box::new(Cut::new(near, part, longest)),
            })
        })
    }
}

type Served = JoinHandle<Result<(), End>>;

fn connect(node: &Arc<Node>) -> (DuplexStream, Arc<Gateway>, Served) {
    connect_with(node, Arc::new(Signs::default()))
}

fn connect_with(node: &Arc<Node>, signs: Arc<Signs>) -> (DuplexStream, Arc<Gateway>, Served) {
    let gateway = Gateway::new(&format!("node{:p}", Arc::as_ptr(node)), node.clone(), Settings::default());
    let (near, far) = tokio::io::duplex(256 << 10);
    let serving = gateway.clone();
    (near, gateway, tokio::spawn(async move { serving.serve(far, &*signs, "10.0.0.7:4711").await }))
}

async fn open(node: &Arc<Node>, export: &str) -> (Client<DuplexStream>, Arc<Gateway>, Served) {
    let (stream, gateway, served) = connect(node);
    let mut client = Client::greet(stream).await;
    client.go(export, &[]).await.unwrap();
    (client, gateway, served)
}

/// A runtime for clients and nodes, apart from those of the servers.
fn outside() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn plan(seed: u64, requests: usize) -> Plan {
    Plan {
        seed,
        export: "vol",
        requests,
        depth: 64,
        sectors: 4096,
        longest: if seed.is_multiple_of(2) { 1300 } else { 40 },
        structured: seed.is_multiple_of(4) || seed.is_multiple_of(3),
    }
}

#[test]
fn a_client_does_not_notice_that_its_streams_break() {
    let runtime = outside();
    let mut reconnected = 0;
    for seed in 0..6 {
        let (node, store) = (Node::new(seed), Arc::new(MemoryStore::new()));
        let server = node.start(&store, pool_config());
        server.runtime.block_on(server.pool.create_volume("vol", SIZE, SyncMode::Flush, 0)).unwrap();
        node.cut.store(if plan(seed, 0).longest > 1000 { 30 << 20 } else { 200 << 10 }, Relaxed);
        let (report, gateway) = runtime.block_on(async {
            let (stream, gateway, served) = connect(&node);
            let driver = tokio::spawn(drive(stream, plan(seed, 600)));
            served.await.unwrap().unwrap();
            (driver.await.unwrap(), gateway)
        });
        assert_eq!((report.size, report.errors, report.violation), (SIZE, 0, None), "seed {seed}");
        assert_ne!(report.flags & FLAG_SEND_TRIM, 0);
        reconnected += gateway.counters().reconnected.load(Relaxed);
        server.runtime.block_on(server.plane.shutdown());
    }
    assert!(reconnected > 6, "{reconnected}");
}

#[test]
fn a_client_does_not_notice_that_its_server_is_killed() {
    let runtime = outside();
    for seed in [3, 5, 8] {
        let (node, store) = (Node::new(seed), Arc::new(MemoryStore::new()));
        // The setting concerns other remote clients: writes over a relay listener are durable.
        let config = || PoolConfig { remote_answers: RemoteAnswers::Memory, ..pool_config() };
        let mut server = node.start(&store, config());
        server.runtime.block_on(server.pool.create_volume("vol", SIZE, SyncMode::Flush, 0)).unwrap();
        let (stream, gateway, served) = {
            let _entered = runtime.enter();
            connect(&node)
        };
        let driver = runtime.spawn(drive(stream, plan(seed, 4000)));
        let mut random = Random(seed);
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(100 + random.below(400)));
            server.kill();
            server = node.start(&store, config());
        }
        let report = runtime.block_on(async {
            served.await.unwrap().unwrap();
            driver.await.unwrap()
        });
        assert_eq!((report.errors, report.violation), (0, None), "seed {seed}");
        assert!(gateway.counters().reconnected.load(Relaxed) > 0, "seed {seed}");
        server.kill();
    }
}

/// Writes to a disk, kills the server, and reads through the same connection. Returns the end of the
/// connection, or the first byte.
fn after_a_kill(export: &'static str, config: fn() -> PoolConfig) -> Result<u8, End> {
    let runtime = outside();
    let (node, store) = (Node::new(1), Arc::new(MemoryStore::new()));
    let server = node.start(&store, config());
    server.runtime.block_on(async {
        let pool = &server.pool;
        pool.create_volume("vol", SIZE, SyncMode::Flush, 0).await.unwrap();
        // The next owner finds this rollback in the log. It is older than the connection of the client.
        pool.create_snapshot("vol", "s").await.unwrap();
        pool.rollback("vol", "s").await.unwrap();
        pool.create_volume("never", SIZE, SyncMode::Never, 0).await.unwrap();
        pool.create_volume("source", SIZE, SyncMode::Flush, 0).await.unwrap();
        pool.create_image("image", "source").await.unwrap();
        let request = CloneRequest { name: "desk".into(), write_cache: 8 << 20, ..CloneRequest::default() };
        pool.clone_disk("image", &[request]).await.unwrap();
    });
    let (mut client, _gateway, served) = runtime.block_on(open(&node, export));
    assert_eq!(runtime.block_on(client.request(CMD_WRITE, 0, 4096, &[7; 4096])).0, 0);
    server.kill();
    let server = node.start(&store, config());
    let read = runtime.block_on(async {
        client.stream.write_all(&request_bytes(0, CMD_READ, 5, 0, 4096)).await.unwrap();
        let mut reply = [0; SIMPLE_REPLY + 4096];
        match client.stream.read_exact(&mut reply).await {
            Ok(_) => Ok(reply[SIMPLE_REPLY]),
            Err(_) => Err(served.await.unwrap().unwrap_err()),
        }
    });
    server.kill();
    read
}

#[test]
fn lost_writes_are_never_hidden() {
    let refuse = || PoolConfig { remote_answers: RemoteAnswers::Memory, ..pool_config() };
    let accept = || PoolConfig { on_memory_loss: OnMemoryLoss::Accept, ..pool_config() };
    assert_eq!(after_a_kill("vol", refuse).unwrap(), 7);
    assert_eq!(after_a_kill("vol", accept).unwrap(), 7);
    for (export, remedy) in [("never", "volume resume"), ("desk", "volume reset")] {
        let refused = after_a_kill(export, refuse).unwrap_err();
        assert!(matches!(refused, End::Gone { .. }) && refused.to_string().contains(remedy), "{refused}");
        let accepted = after_a_kill(export, accept).unwrap_err();
        assert!(matches!(accepted, End::Changed { .. }), "{accepted}");
    }
}

/// Writes 1 to a volume that was reset before, replaces its contents while the client cannot reach the
/// server, and writes 2. Returns the end of the connection.
fn after_a_replacement(replace: impl AsyncFnOnce(&Pool)) -> Result<(), End> {
    let runtime = outside();
    let (node, store) = (Node::new(1), Arc::new(MemoryStore::new()));
    let server = node.start(&store, pool_config());
    server.runtime.block_on(async {
        let pool = &server.pool;
        pool.create_volume("source", SIZE, SyncMode::Flush, 0).await.unwrap();
        pool.create_image("image", "source").await.unwrap();
        let clone = CloneRequest { name: "vol".into(), ..CloneRequest::default() };
        pool.clone_disk("image", &[clone]).await.unwrap();
        pool.reset("vol").await.unwrap();
        pool.create_snapshot("vol", "s").await.unwrap();
    });
    let (mut client, _gateway, served) = runtime.block_on(open(&node, "vol"));
    runtime.block_on(async {
        assert_eq!(client.request(CMD_WRITE, 0, 4096, &[1; 4096]).await.0, 0);
        node.cut_off();
        while server.pool.disk("vol").unwrap().clients > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    server.runtime.block_on(replace(&server.pool));
    node.is_cut_off.store(false, Relaxed);
    let end = runtime.block_on(async {
        let write = [&request_bytes(0, CMD_WRITE, 5, 0, 4096)[..], &[2; 4096]].concat();
        client.stream.write_all(&write).await.unwrap();
        let mut reply = [0; SIMPLE_REPLY];
        let is_answered = client.stream.read_exact(&mut reply).await.is_ok();
        drop(client);
        let end = served.await.unwrap();
        assert_eq!(is_answered, end.is_ok());
        end
    });
    server.kill();
    end
}

#[test]
fn a_client_does_not_continue_on_contents_that_were_replaced_during_an_outage() {
    after_a_replacement(async |_: &Pool| {}).unwrap();
    after_a_replacement(async |pool: &Pool| pool.resize("vol", 2 * SIZE).await.unwrap()).unwrap();
    let ends = [
        after_a_replacement(async |pool: &Pool| pool.rollback("vol", "s").await.unwrap()),
        after_a_replacement(async |pool: &Pool| pool.reset("vol").await.unwrap()),
        after_a_replacement(async |pool: &Pool| {
            pool.resize("vol", SIZE / 2).await.unwrap();
            pool.resize("vol", SIZE).await.unwrap();
        }),
    ];
    for end in ends {
        assert!(matches!(end, Err(End::Changed { .. })), "{end:?}");
    }
}

/// A client loses its node, which is cut off with a write of 1s, and writes 2s through another node. Then the
/// server is replaced, and both nodes connect their clients to the next server, in one order or the other.
/// Returns the end of the connection at the first node, and the first byte of the disk.
fn after_a_move(is_former_first: bool) -> (Result<(), End>, u8) {
    let runtime = outside();
    let (node, store) = (Node::new(1), Arc::new(MemoryStore::new()));
    let server = node.start(&store, pool_config());
    server.runtime.block_on(server.pool.create_volume("vol", SIZE, SyncMode::Flush, 0)).unwrap();
    let other = Node::of(node.dir.clone(), 2);
    other.server.store(node.server.load(Relaxed), Relaxed);
    let signs = Arc::new(Signs::default());
    signs.is_silent.store(true, Relaxed);
    let (mut next, served) = runtime.block_on(async {
        let (stream, _, served) = connect_with(&node, signs);
        let mut former = Client::greet(stream).await;
        former.go("vol", &[]).await.unwrap();
        node.cut_off();
        let write = [&request_bytes(0, CMD_WRITE, 5, 0, 4096)[..], &[1; 4096]].concat();
        former.stream.write_all(&write).await.unwrap();
        // The node does not see the end of the client.
        std::mem::forget(former);
        let (mut next, ..) = open(&other, "vol").await;
        assert_eq!(next.request(CMD_WRITE, 0, 4096, &[2; 4096]).await.0, 0);
        other.cut_off();
        (next, served)
    });
    server.kill();
    let server = node.start(&store, pool_config());
    other.server.store(node.server.load(Relaxed), Relaxed);
    let (first, second) = if is_former_first { (&node, &other) } else { (&other, &node) };
    first.is_cut_off.store(false, Relaxed);
    std::thread::sleep(Duration::from_secs(1));
    second.is_cut_off.store(false, Relaxed);
    let end = runtime.block_on(async {
        let end = tokio::time::timeout(Duration::from_secs(20), served).await.unwrap().unwrap();
        let read = next.request(CMD_READ, 0, 4096, &[]);
        let (error, data) = tokio::time::timeout(Duration::from_secs(20), read).await.unwrap();
        assert_eq!(error, 0);
        (end, data[0])
    });
    server.kill();
    end
}

#[test]
fn a_write_of_a_client_that_moved_to_another_node_is_not_repeated_after_a_takeover() {
    for is_former_first in [false, true] {
        let (end, first) = after_a_move(is_former_first);
        assert!(matches!(end, Err(End::Moved { .. })), "{is_former_first}: {end:?}");
        assert_eq!(first, 2, "{is_former_first}");
    }
}

#[test]
fn an_administrator_sees_the_client_of_the_node_and_can_disconnect_it() {
    let runtime = outside();
    let (node, store) = (Node::new(1), Arc::new(MemoryStore::new()));
    let server = node.start(&store, pool_config());
    server.runtime.block_on(server.pool.create_volume("vol", SIZE, SyncMode::Flush, 0)).unwrap();
    let (mut client, _gateway, served) = runtime.block_on(open(&node, "vol"));
    let clients = server.clients.list(|_| true);
    assert_eq!(clients.len(), 1);
    assert_eq!((clients[0].client.as_str(), clients[0].disk.as_str()), ("10.0.0.7:4711", "vol"));
    clients[0].disconnect();
    runtime.block_on(async {
        assert!(client.stream.read_u8().await.is_err());
        assert!(matches!(served.await.unwrap(), Err(End::Disconnected)));
    });
    server.kill();
}

#[test]
fn a_relay_listener_serves_only_nodes() {
    let (node, store) = (Node::new(1), Arc::new(MemoryStore::new()));
    let server = node.start(&store, pool_config());
    server.runtime.block_on(server.pool.create_volume("vol", SIZE, SyncMode::Flush, 0)).unwrap();
    for garbage in [b"GET / HTTP/1.1\r\n\r\n".as_slice(), b"client a b c\n", &[b'c'; 1000], &[0; 1000]] {
        let mut client = client::Client::unix(&node.socket());
        // The server may disconnect the client while it sends.
        let _ = client.socket.write_all(garbage);
        client.assert_closed();
    }
    let mut client = client::Client::unix(&node.socket());
    let preamble = Preamble { id: "x".into(), generation: 1, age_ms: 0, name: "n".into() }.encode();
    for byte in preamble {
        client.send(&[byte]);
    }
    client.greet();
    client.option(OPT_STARTTLS, b"");
    assert_eq!(client.option_reply(OPT_STARTTLS).kind, REP_ERR_POLICY);
    client.go("vol").unwrap();
    client.assert_alive();
    server.kill();
}

#[test]
fn a_desktop_is_reset_after_its_client_has_disconnected_in_order() {
    let runtime = outside();
    let (node, store) = (Node::new(1), Arc::new(MemoryStore::new()));
    let server = node.start(&store, pool_config());
    server.runtime.block_on(async {
        let pool = &server.pool;
        pool.create_volume("source", SIZE, SyncMode::Flush, 0).await.unwrap();
        pool.create_image("image", "source").await.unwrap();
        let desk = CloneRequest { name: "desk".into(), write_cache: 8 << 20, ..CloneRequest::default() };
        pool.clone_disk("image", &[CloneRequest { reset_at_disconnect: true, ..desk }]).await.unwrap();
    });
    runtime.block_on(async {
        // A client that is only gone finds its writes again.
        for (is_orderly, before) in [(false, 0), (true, 7), (false, 0)] {
            let (mut client, _gateway, served) = open(&node, "desk").await;
            assert_eq!(client.request(CMD_READ, 0, 4096, &[]).await, (0, vec![before; 4096]), "{is_orderly}");
            assert_eq!(client.request(CMD_WRITE, 0, 4096, &[7; 4096]).await.0, 0);
            if is_orderly {
                client.stream.write_all(&request_bytes(0, CMD_DISC, 0, 0, 0)).await.unwrap();
                assert!(client.stream.read_u8().await.is_err());
            }
            drop(client);
            served.await.unwrap().unwrap();
        }
    });
    server.kill();
}

/// A write that the node still holds of a former stream does not reach the disk after the client was
/// connected again, and wrote something newer.
#[test]
fn a_former_stream_of_a_client_that_is_connected_again_is_ended() {
    let (node, store) = (Node::new(1), Arc::new(MemoryStore::new()));
    let server = node.start(&store, pool_config());
    server.runtime.block_on(server.pool.create_volume("vol", SIZE, SyncMode::Flush, 0)).unwrap();
    let connect = |generation| {
        let mut client = client::Client::unix(&node.socket());
        client.send(&Preamble { id: "x".into(), generation, age_ms: 0, name: "n".into() }.encode());
        client.greet();
        client.go("vol").map(|_| client)
    };
    let mut former = connect(1).unwrap();
    assert_eq!(former.put(0, 0, &[1; 4096]).error, 0);
    // The former stream is still connected.
    let mut next = connect(2).unwrap();
    assert_eq!(next.put(0, 0, &[2; 4096]).error, 0);
    let late = [&client::request(0, CMD_WRITE, 9, 0, 4096)[..], &[1; 4096]].concat();
    // The server may have closed the stream.
    let _ = former.socket.write_all(&late);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(next.ask(0, CMD_READ, 0, 4096).data, [2; 4096]);
    let refused = connect(1).err().unwrap();
    assert_eq!(refused.kind, REP_ERR_SHUTDOWN);
    next.assert_alive();
    server.kill();
}
