//! The server shared by all scripts of a process.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use forebay_engine::{Pool, PoolConfig, SyncMode};
use forebay_host::EngineThread;
use forebay_store::MemoryStore;
use forebay_text::Secret;

use super::neighbour::Neighbour;
use crate::iscsi::Algorithm;
use crate::iscsi::SessionLimits;
use crate::nbd::ListenerConfig;
use crate::plane::{FrontEnd, Handle, ListenAddr, Plane};
use crate::scsi::Units;
use crate::targets::{Chap, IqnName, Lun, Target, Targets};
use crate::{iscsi, nbd, nvme};

/// Bytes of the volume `vol`.
pub const SIZE: u64 = 16 << 20;
/// Bytes of the volume `sparse`, which is almost unwritten.
pub const SPARSE_SIZE: u64 = 8 << 40;
/// A target without authentication.
pub const OPEN: &str = "iqn.2026-01.org.example:open";
/// A target with authentication.
pub const SECURED: &str = "iqn.2026-01.org.example:secured";
pub const USER: &str = "fuzz";
pub const SECRET: &str = "twelve bytes and more";
/// Number of further targets, so that a discovery has a long answer.
const OTHERS: usize = 20;

/// The addresses of the server.
pub struct Server {
    pub nbd: PathBuf,
    pub iscsi: String,
    pub nvme: String,
    pub neighbour: PathBuf,
    _engine: EngineThread,
    _plane: Handle,
}

/// Returns the server, which the first call starts.
pub fn server() -> &'static Server {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(start())
    })
}

async fn start() -> Server {
    let engine = EngineThread::start(1).unwrap();
    let config =
        PoolConfig { read_cache: 16 << 20, map_cache: 4 << 20, segment_bytes: 4 << 20, ..Default::default() };
    let store = Arc::new(MemoryStore::new());
    let pool = engine.run(Pool::open(store, engine.host(), config)).await.unwrap();
    pool.create_volume("vol", SIZE, SyncMode::Flush, 0).await.unwrap();
    pool.create_volume("sparse", SPARSE_SIZE, SyncMode::Flush, 0).await.unwrap();
    let disk = pool.attach("vol").unwrap();
    let text: Vec<u8> = (0..SIZE / 2).map(|n| (n / 512 * 7 + n) as u8).collect();
    disk.write(0, &text, true).await.unwrap();
    pool.create_snapshot("vol", "s").await.unwrap();

    let [socket, neighbour] = ["nbd", "neighbour"].map(|name| {
        let path = std::env::temp_dir().join(format!("forebay-fuzz-{name}-{}.sock", std::process::id()));
        let _ = std::fs::remove_file(&path);
        path
    });
    let mut plane = Plane::default();
    let listen = vec![ListenAddr::Unix(socket.clone())];
    let listeners = vec![ListenerConfig { listen, ..ListenerConfig::default() }];
    nbd::listen(&mut plane, &pool, &nbd::Config { listeners, ..Default::default() }).unwrap();
    let targets = Arc::new(Targets::load(pool.clone()).await);
    make_targets(&targets).await;
    let units = Arc::new(Units::new());
    let limits = SessionLimits { all: 2048, per_initiator: 64, per_address: 512 };
    let listen = [ListenAddr::Tcp("127.0.0.1:0".into())];
    let groups = Arc::new(iscsi::PortGroups::new(1));
    let settings = iscsi::Settings {
        limits,
        chap_algorithms: &Algorithm::ALL,
        groups,
        known: Arc::default(),
        addresses: &listen,
        portals: None,
        is_shard: false,
    };
    let nvme = nvme::Settings {
        addresses: &listen,
        discovery: &[],
        allow_remote: false,
        limits: nvme::ControllerLimits { all: 2048, per_address: 512 },
    };
    let served = (pool.clone(), units.clone());
    let nvme = nvme::listen(&mut plane, served, (targets.served().clone(), Arc::default()), &nvme).unwrap();
    let disks = iscsi::Disks::Own { pool: pool.clone(), units };
    let taken = iscsi::listen(&mut plane, disks, targets.served().clone(), &settings).unwrap();
    let front: Arc<dyn FrontEnd> = Arc::new(Neighbour);
    plane.listen(&front, &[ListenAddr::Unix(neighbour.clone())]).unwrap();
    let plane = plane.run(1).unwrap();
    Server {
        nbd: socket,
        iscsi: taken[0].to_string(),
        nvme: nvme[0].to_string(),
        neighbour,
        _engine: engine,
        _plane: plane,
    }
}

async fn make_targets(targets: &Targets) {
    let target = |name: &str, chap: Option<Chap>| Target {
        name: name.parse::<IqnName>().unwrap(),
        number: 0,
        open: true,
        chap,
        mutual: None,
        dhchap: None,
        luns: Default::default(),
        initiators: Vec::new(),
    };
    let chap = Chap { user: USER.into(), secret: Secret::new(SECRET.into()) };
    targets.create(target(OPEN, None)).await.unwrap();
    targets.create(target(SECURED, Some(chap))).await.unwrap();
    for n in 0..OTHERS {
        targets.create(target(&format!("{OPEN}-{n:03}-{}", "x".repeat(40)), None)).await.unwrap();
    }
    for name in [OPEN, SECURED] {
        for (lun, disk) in ["vol", "sparse", "vol@s"].into_iter().enumerate() {
            let lun_of = Lun { disk: disk.into(), read_only: disk == "vol@s", write_back: name == OPEN };
            targets.map(&name.parse().unwrap(), Some(lun as u16), lun_of).await.unwrap();
        }
    }
}
