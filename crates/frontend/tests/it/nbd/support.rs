//! A server with a pool in memory, for one test.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_engine::{Pool, PoolConfig, SyncMode};
use forebay_frontend::nbd::{self, ListenerConfig, TlsConfig, TlsMode};
use forebay_frontend::plane::{Handle, ListenAddr, Plane};
use forebay_store::{MemoryStore, Store};
use tokio::runtime::{Builder, Runtime};

use crate::host::host;

/// A running server.
pub struct TestServer {
    runtime: Runtime,
    pub pool: Arc<Pool>,
    handle: Option<Handle>,
    pub dir: tempfile::TempDir,
    pub certificates: nbd::Certificates,
}

/// The configuration of the pool of a test server.
pub fn pool_config() -> PoolConfig {
    PoolConfig { read_cache: 64 << 20, map_cache: 4 << 20, segment_bytes: 4 << 20, ..Default::default() }
}

/// A listener on a UNIX socket and a TCP port, without TLS.
pub fn on_all_addresses(dir: &Path) -> nbd::Config {
    let listen = vec![ListenAddr::Unix(dir.join("nbd.sock")), ListenAddr::Tcp("127.0.0.1:0".into())];
    let listener = ListenerConfig { listen, ..ListenerConfig::default() };
    nbd::Config { listeners: vec![listener], ..nbd::Config::default() }
}

/// Size of the volume of every test server.
pub const SIZE: u64 = 64 << 20;

impl TestServer {
    /// A server without TLS. It has one volume, `vol`, of [`SIZE`] bytes.
    pub fn start() -> TestServer {
        TestServer::with_tls(TlsMode::Off, |_| TlsConfig::default())
    }

    /// A server on a UNIX socket and a TCP port, with this TLS mode; `tls` creates the certificates.
    pub fn with_tls(mode: TlsMode, tls: impl FnOnce(&Path) -> TlsConfig) -> TestServer {
        TestServer::with_config(|dir| {
            let mut config = on_all_addresses(dir);
            config.listeners[0].tls = mode;
            nbd::Config { tls: tls(dir), ..config }
        })
    }

    /// A server with the configuration that `config` returns for the test's directory.
    pub fn with_config(config: impl FnOnce(&Path) -> nbd::Config) -> TestServer {
        TestServer::with_store(Arc::new(MemoryStore::new()), pool_config(), config)
    }

    /// A server with a pool in `store`.
    pub fn with_store(
        store: Arc<dyn Store>,
        pool_config: PoolConfig,
        config: impl FnOnce(&Path) -> nbd::Config,
    ) -> TestServer {
        TestServer::at(store, pool_config, None, config)
    }

    /// The same, this many milliseconds after the boot of the host.
    pub fn at(
        store: Arc<dyn Store>,
        pool_config: PoolConfig,
        boot_ms: Option<u64>,
        config: impl FnOnce(&Path) -> nbd::Config,
    ) -> TestServer {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let mut host = host(runtime.handle().clone());
        host.boot_ms = boot_ms;
        let pool = runtime.block_on(Pool::open(store, Arc::new(host), pool_config)).unwrap();
        runtime.block_on(pool.create_volume("vol", SIZE, SyncMode::Flush, 0)).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut plane = Plane::default();
        let certificates = nbd::listen(&mut plane, &pool, &config(dir.path())).unwrap().certificates;
        let handle = plane.run(2).unwrap();
        TestServer { runtime, pool, handle: Some(handle), dir, certificates }
    }

    /// Runs a future of the engine.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    pub fn socket(&self) -> std::path::PathBuf {
        self.dir.path().join("nbd.sock")
    }

    /// `HOST:PORT`.
    pub fn tcp(&self) -> String {
        self.handle().addresses()[1].to_string()
    }

    pub fn handle(&self) -> &Handle {
        self.handle.as_ref().expect("the server runs until the end of the test")
    }

    /// Stops the server; the pool stays open.
    pub fn shutdown(&mut self) {
        if let Some(handle) = self.handle.take() {
            self.runtime.block_on(handle.shutdown());
        }
    }

    /// Waits until no client is connected.
    pub fn wait_until_alone(&self) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.handle().connections() > 0 || self.pool.disks().iter().any(|d| d.clients > 0) {
            assert!(Instant::now() < deadline, "clients stay connected");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.shutdown();
    }
}
