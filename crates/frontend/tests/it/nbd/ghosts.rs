//! Requests of connections that are gone: none of them changes the disk after the next connection began.
//!
//! The store of these tests accepts no appends while its gate is closed. So the write buffer fills up, and
//! writes wait, for as long as a test needs.

use std::io::Read as _;
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_engine::{CloneRequest, PoolConfig, SyncMode};
use forebay_format::SegmentId;
use forebay_store::{Completion, IoBuf, MemoryStore, Store};
use forebay_wire::nbd::*;
use socket2::SockRef;
use tokio::sync::watch;

use super::client::{Client, request};
use super::support::{TestServer, on_all_addresses};

const MIB: u64 = 1 << 20;
const PIECE: u64 = 64 << 10;
/// Bytes that the server accepts at most while the gate is closed: more than the write buffer holds.
const FLOOD: u64 = 16 * MIB;

/// A store whose appends wait while the gate is closed.
struct Gated {
    inner: Arc<MemoryStore>,
    open: watch::Sender<bool>,
}

impl Gated {
    fn new() -> Arc<Gated> {
        Arc::new(Gated { inner: Arc::default(), open: watch::Sender::new(true) })
    }

    fn set_open(&self, open: bool) {
        self.open.send_replace(open);
    }
}

impl Store for Gated {
    forebay_store::forward_store!(inner; except append);

    fn append(&self, id: SegmentId, offset: u64, data: IoBuf, expected: u64) -> Completion<IoBuf> {
        let (inner, mut open) = (self.inner.clone(), self.open.subscribe());
        Completion::of(async move {
            let _ = open.wait_for(|open| *open).await;
            inner.append(id, offset, data, expected).await
        })
    }
}

fn server() -> (TestServer, Arc<Gated>) {
    let store = Gated::new();
    let config = PoolConfig { write_buffer: 4 * MIB, ..super::support::pool_config() };
    (TestServer::with_store(store.clone(), config, on_all_addresses), store)
}

/// How a client goes.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Cut {
    Close,
    Reset,
    /// Only its sending side is closed, with `NBD_CMD_DISC` before.
    Disconnect,
}

/// A client over TCP or a UNIX socket whose writes are sent without waiting for replies.
enum Flood {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Flood {
    fn open(server: &TestServer, tcp: bool) -> Flood {
        if tcp {
            let socket = TcpStream::connect(server.tcp()).unwrap();
            negotiate(Client::over(socket.try_clone().unwrap()));
            Flood::Tcp(socket)
        } else {
            let socket = UnixStream::connect(server.socket()).unwrap();
            negotiate(Client::over(socket.try_clone().unwrap()));
            Flood::Unix(socket)
        }
    }

    /// Sends writes of `version` to pieces `0..count`, several times, until the server accepts no more.
    fn write(&mut self, version: u8, count: u64) {
        let mut sent = 0;
        let timeout = Some(Duration::from_millis(300));
        match self {
            Flood::Tcp(s) => s.set_write_timeout(timeout).unwrap(),
            Flood::Unix(s) => s.set_write_timeout(timeout).unwrap(),
        }
        while sent < FLOOD {
            for piece in 0..count {
                let mut message = request(0, CMD_WRITE, piece, piece * PIECE, PIECE as u32);
                message.resize(message.len() + PIECE as usize, version);
                if self.stream().write_all(&message).is_err() {
                    return;
                }
                sent += PIECE;
            }
        }
    }

    fn stream(&mut self) -> &mut dyn std::io::Write {
        match self {
            Flood::Tcp(s) => s,
            Flood::Unix(s) => s,
        }
    }

    fn cut(mut self, cut: Cut) {
        match (&mut self, cut) {
            // The kernel resets a connection that is closed before all replies were received.
            (Flood::Tcp(s), Cut::Close) => {
                s.set_nonblocking(true).unwrap();
                while s.read(&mut [0; 4096]).is_ok_and(|n| n > 0) {}
            }
            (Flood::Unix(_), Cut::Close) => {}
            (Flood::Tcp(s), Cut::Reset) => SockRef::from(&*s).set_linger(Some(Duration::ZERO)).unwrap(),
            (Flood::Unix(s), Cut::Reset) => s.shutdown(Shutdown::Both).unwrap(),
            (_, Cut::Disconnect) => self.stream().write_all(&request(0, CMD_DISC, 9, 0, 0)).unwrap(),
        }
    }
}

fn open_later(store: &Arc<Gated>, ms: u64) -> std::thread::JoinHandle<()> {
    let store = store.clone();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(ms));
        store.set_open(true);
    })
}

fn negotiate(mut client: Client) {
    client.greet();
    client.go("vol").unwrap();
}

fn assert_version(client: &mut Client, version: u8, count: u64) {
    for piece in 0..count {
        let read = client.ask(0, CMD_READ, piece * PIECE, PIECE as u32);
        assert_eq!(read.error, 0);
        let wrong = read.data.iter().position(|b| *b != version);
        assert_eq!(wrong, None, "piece {piece} has version {}", read.data[wrong.unwrap_or(0)]);
    }
}

#[test]
fn no_write_of_a_cut_connection_lands_after_one_of_the_next() {
    const COUNT: u64 = 16;
    let (server, store) = server();
    let mut version = 0;
    for round in 0..12 {
        let (tcp, cut) = (round % 2 == 0, if round % 4 < 2 { Cut::Reset } else { Cut::Close });
        store.set_open(false);
        let mut old = Flood::open(&server, tcp);
        version += 1;
        old.write(version, COUNT);
        old.cut(cut);
        // The end of a TCP stream is hidden behind its data.
        let is_hidden = tcp && cut == Cut::Close;
        let opener = is_hidden.then(|| open_later(&store, 300));
        let begin = Instant::now();
        let mut new = Client::open(&server.socket(), "vol");
        // It does not wait for the store: requests that have not ended are dropped.
        assert!(begin.elapsed() < Duration::from_secs(3), "{cut:?} tcp {tcp}: {:?}", begin.elapsed());
        store.set_open(true);
        opener.into_iter().for_each(|opener| opener.join().unwrap());
        version += 1;
        for piece in 0..COUNT {
            assert_eq!(new.put(0, piece * PIECE, &[version; PIECE as usize]).error, 0);
        }
        assert_eq!(new.ask(0, CMD_FLUSH, 0, 0).error, 0);
        assert_version(&mut new, version, COUNT);
        std::thread::sleep(Duration::from_millis(100));
        assert_version(&mut new, version, COUNT);
    }
    server.wait_until_alone();
}

#[test]
fn requests_before_a_disconnect_are_completed_before_the_next_connection_begins() {
    const COUNT: u64 = 100;
    let (server, store) = server();
    store.set_open(false);
    let mut old = Client::open(&server.socket(), "vol");
    for piece in 0..COUNT {
        old.write(0, piece, piece * PIECE, &[7; PIECE as usize]);
    }
    old.request(0, CMD_DISC, 1, 0, 0);
    // The server reads all of it; then the client closes.
    std::thread::sleep(Duration::from_millis(300));
    drop(old);
    let opener = open_later(&store, 700);
    let begin = Instant::now();
    let mut new = Client::open(&server.socket(), "vol");
    assert!(begin.elapsed() >= Duration::from_millis(400), "it began after {:?}", begin.elapsed());
    assert_version(&mut new, 7, COUNT);
    opener.join().unwrap();
}

#[test]
fn connected_peers_are_not_waited_for() {
    const COUNT: u64 = 100;
    let (server, store) = server();
    store.set_open(false);
    let mut one = Client::open(&server.socket(), "vol");
    for piece in 0..COUNT {
        one.write(0, piece, piece * PIECE, &[3; PIECE as usize]);
    }
    let begin = Instant::now();
    let mut two = Client::open(&server.socket(), "vol");
    two.assert_alive();
    assert!(begin.elapsed() < Duration::from_secs(1), "{:?}", begin.elapsed());
    store.set_open(true);
    // Each of its requests is executed and answered.
    let mut answered: Vec<u64> = (0..COUNT).map(|_| one.reply(0).cookie).collect();
    answered.sort_unstable();
    assert_eq!(answered, (0..COUNT).collect::<Vec<_>>());
    assert_version(&mut two, 3, COUNT);
}

#[test]
fn a_disconnect_in_unread_input_resets_a_desktop() {
    let (server, store) = server();
    server.block_on(server.pool.create_image("image", "vol")).unwrap();
    server.block_on(server.pool.delete("vol")).unwrap();
    let desktop = CloneRequest {
        name: "vol".into(),
        sync: SyncMode::Never,
        write_cache: MIB,
        reset_at_disconnect: true,
    };
    server.block_on(server.pool.clone_disk("image", &[desktop])).unwrap();
    // The replies cannot be sent, since the client has closed its socket; or the cache is full, 256 requests
    // wait, and the rest of the input is not read.
    for (writes, blocks) in [(320, 64), (552, 552)] {
        // The first write makes a mark, which needs the store.
        assert_eq!(Client::open_simple(&server.socket(), "vol").put(0, 0, &[5; 4096]).error, 0);
        // It is lost without a disconnect: if it was the last to end, there would be no reset.
        server.wait_until_alone();
        store.set_open(false);
        let mut old = Flood::open(&server, false);
        for n in 0..writes {
            let mut message = request(0, CMD_WRITE, n, n % blocks * 4096, 4096);
            message.resize(message.len() + 4096, 5);
            old.stream().write_all(&message).unwrap();
        }
        old.cut(Cut::Disconnect);
        let opener = open_later(&store, 300);
        let mut new = Client::open(&server.socket(), "vol");
        assert_version(&mut new, 0, 4);
        drop(new);
        opener.join().unwrap();
        server.wait_until_alone();
    }
}

/// A client over TCP in the transmission phase, and its socket.
fn over_tcp(server: &TestServer) -> (Client, TcpStream) {
    let socket = TcpStream::connect(server.tcp()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let mut client = Client::over(socket.try_clone().unwrap());
    client.greet();
    client.set_up();
    client.go("vol").unwrap();
    (client, socket)
}

/// The network has dropped the last packets of a client, whose kernel sends them again after the client has
/// continued over another connection: the server receives a request and the end of the stream late.
#[test]
fn a_write_that_arrives_with_the_end_of_its_connection_does_not_land_after_newer_ones() {
    let (server, _store) = server();
    for last in [None, Some(CMD_DISC)] {
        for kind in [CMD_WRITE, CMD_WRITE_ZEROES, CMD_TRIM] {
            let (mut old, socket) = over_tcp(&server);
            assert_eq!(old.put(0, 0, &[1; PIECE as usize]).error, 0);
            let (mut new, _socket) = over_tcp(&server);
            assert_eq!(new.put(0, 0, &[2; PIECE as usize]).error, 0);
            let mut late = request(0, kind, 7, 0, PIECE as u32);
            late.resize(late.len() + if kind == CMD_WRITE { PIECE as usize } else { 0 }, 1);
            late.extend(last.into_iter().flat_map(|kind| request(0, kind, 8, 0, 0)));
            old.send(&late);
            drop((old, socket));
            let deadline = Instant::now() + Duration::from_secs(60);
            while server.pool.disks().iter().any(|disk| disk.clients > 1) {
                assert!(Instant::now() < deadline, "the connection has not ended");
                std::thread::sleep(Duration::from_millis(2));
            }
            assert_version(&mut new, 2, 1);
        }
    }
}

/// They are in doubt until they acknowledge a reply or their requests do not end the connection.
#[test]
fn earlier_connections_that_are_open_go_on() {
    let (server, _store) = server();
    let (mut clients, _sockets): (Vec<_>, Vec<_>) = (0..4).map(|_| over_tcp(&server)).unzip();
    for round in 0..2 {
        for (n, client) in clients.iter_mut().enumerate() {
            let version = 4 * round + n as u8 + 1;
            if n % 2 == 1 {
                assert_version(client, version - 1, 1);
            }
            assert_eq!(client.put(0, 0, &[version; PIECE as usize]).error, 0);
            assert_eq!(client.ask(0, CMD_FLUSH, 0, 0).error, 0);
        }
    }
    assert_version(&mut clients[0], 8, 1);
}
