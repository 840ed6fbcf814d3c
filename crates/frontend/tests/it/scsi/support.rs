//! A pool in memory, its units, and sessions on them.

use std::sync::{Arc, Weak};

use forebay_engine::{Pool, PoolConfig, RemoteAnswers, SyncMode};
use forebay_frontend::scsi::{AbortTasks, Nexus, NexusOwner, Port, Response, Settings, UnitAttention, Units};
use forebay_store::MemoryStore;
use forebay_wire::scsi::{AccessState, Code, PortGroup, Request, Sense, SenseKey, Status};
use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};

use crate::host::host;

/// Size of each volume.
pub const SIZE: u64 = 8 << 20;

/// A pool with the volumes `a` and `b`.
pub struct World {
    pub runtime: Runtime,
    pub pool: Arc<Pool>,
    pub units: Units,
}

impl World {
    pub fn new() -> World {
        World::with(Arc::new(MemoryStore::new()), RemoteAnswers::Durable)
    }

    /// A world whose pool is in `store`; it has the volumes `a` and `b` already unless it is empty.
    pub fn with(store: Arc<MemoryStore>, remote_answers: RemoteAnswers) -> World {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let host = Arc::new(host(runtime.handle().clone()));
        let config = PoolConfig {
            read_cache: 16 << 20,
            map_cache: 4 << 20,
            segment_bytes: 4 << 20,
            remote_answers,
            ..Default::default()
        };
        let pool = runtime.block_on(Pool::open(store, host, config)).unwrap();
        for name in ["a", "b"].into_iter().filter(|name| pool.disk(name).is_err()) {
            runtime.block_on(pool.create_volume(name, SIZE, SyncMode::Flush, 0)).unwrap();
        }
        World { runtime, pool, units: Units::new() }
    }

    /// A session of host `n` with `a` as unit 0 and `b` as unit 1. Their power-on attentions are already
    /// cleared.
    pub fn session(&self, n: u8) -> TestSession {
        self.session_with(n, false)
    }

    pub fn session_with(&self, n: u8, read_only: bool) -> TestSession {
        self.session_on(n, read_only, &["a", "b"])
    }

    /// Like [`session`](Self::session), on these volumes.
    pub fn session_on(&self, n: u8, read_only: bool, disks: &[&str]) -> TestSession {
        self.session_at(n, read_only, disks, "iqn.2026-11.example:disks")
    }

    /// Like [`session_on`](Self::session_on), through this target.
    pub fn session_at(&self, n: u8, read_only: bool, disks: &[&str], target: &str) -> TestSession {
        let session = self.join(n, read_only, disks, target);
        for lun in 0..disks.len() {
            session.on(lun).attention(UnitAttention::PowerOn);
        }
        session
    }

    /// The session of [`session`](Self::session), which another process handed over.
    pub fn resumed_session(&self, n: u8) -> TestSession {
        self.join(n, false, &["a", "b"], "iqn.2026-11.example:disks")
    }

    fn join(&self, n: u8, read_only: bool, disks: &[&str], target: &str) -> TestSession {
        let port = Arc::new(Port {
            initiator: format!("iqn.2026-11.example:host{n}"),
            isid: [0x80, 0, 0, 0, 0, n],
            target: target.into(),
            tpgt: 1,
            relative_port: 1,
            host_id: None,
        });
        let shared = Arc::new(Shared::default());
        for (lun, disk) in disks.iter().enumerate() {
            let unit = self.runtime.block_on(self.units.open(&self.pool, disk)).unwrap();
            let settings = Settings { lun: lun as u16, read_only, write_back: true };
            let owner: Weak<dyn NexusOwner> = Arc::downgrade(&(shared.clone() as Arc<dyn NexusOwner>));
            shared.nexuses.lock().push(unit.join(port.clone(), settings, owner));
        }
        TestSession { shared, handle: self.runtime.handle().clone() }
    }
}

/// The part of a session that the units share.
#[derive(Default)]
struct Shared {
    nexuses: Mutex<Vec<Arc<Nexus>>>,
    aborted: Mutex<Vec<u16>>,
}

impl NexusOwner for Shared {
    fn luns(&self) -> Vec<u16> {
        vec![0, 1]
    }
    fn nexuses(&self) -> Vec<Arc<Nexus>> {
        self.nexuses.lock().clone()
    }
    fn port_groups(&self) -> Vec<PortGroup> {
        vec![PortGroup { group: 1, state: AccessState::Optimized, relative_port: 1 }]
    }
}

impl AbortTasks for Shared {
    fn abort_tasks(&self, lun: u16) {
        self.aborted.lock().push(lun);
    }
}

/// A session.
pub struct TestSession {
    shared: Arc<Shared>,
    handle: tokio::runtime::Handle,
}

/// A unit of a session.
pub struct OnUnit {
    pub nexus: Arc<Nexus>,
    handle: tokio::runtime::Handle,
}

impl TestSession {
    pub fn on(&self, lun: usize) -> OnUnit {
        OnUnit { nexus: self.shared.nexuses.lock()[lun].clone(), handle: self.handle.clone() }
    }

    /// LUNs whose commands another nexus aborted.
    pub fn aborted(&self) -> Vec<u16> {
        std::mem::take(&mut self.shared.aborted.lock())
    }

    /// Ends the session.
    pub fn end(self) {
        self.shared.nexuses.lock().clear();
    }
}

/// Key and code of sense data in either format.
pub fn key_and_code(sense: &[u8]) -> (u8, Code) {
    match sense[0] & 0x7f {
        0x72 => (sense[1], Code(sense[2], sense[3])),
        _ => (sense[2] & 0x0f, Code(sense[12], sense[13])),
    }
}

impl OnUnit {
    /// Sends a command as a transport would.
    pub fn send(&self, cdb: &[u8], data_out: &[u8]) -> Response {
        match self.nexus.admit(cdb) {
            Ok(admitted) => self.perform(&admitted.request, data_out),
            Err(response) => response,
        }
    }

    pub fn perform(&self, request: &Request, data_out: &[u8]) -> Response {
        self.handle.block_on(self.nexus.perform(request, data_out))
    }

    /// Sends a command that succeeds, and returns its data.
    #[track_caller]
    pub fn good(&self, cdb: &[u8], data_out: &[u8]) -> Vec<u8> {
        let response = self.send(cdb, data_out);
        assert_eq!(response.status, Status::Good, "{cdb:02x?}: {:02x?}", response.sense);
        response.data_in
    }

    /// Sends a command that fails with this key and code, and returns its sense data.
    #[track_caller]
    pub fn fails(&self, cdb: &[u8], data_out: &[u8], key: SenseKey, code: Code) -> Vec<u8> {
        let response = self.send(cdb, data_out);
        assert_eq!(response.status, Status::CheckCondition, "{cdb:02x?}");
        assert_eq!(key_and_code(&response.sense), (key as u8, code), "{cdb:02x?}");
        response.sense
    }

    #[track_caller]
    pub fn conflicts(&self, cdb: &[u8], data_out: &[u8]) {
        assert_eq!(self.send(cdb, data_out).status, Status::ReservationConflict, "{cdb:02x?}");
    }

    /// Asserts that this unit attention is pending, and clears it.
    #[track_caller]
    pub fn attention(&self, attention: UnitAttention) {
        self.fails(&TEST_UNIT_READY, &[], SenseKey::UnitAttention, attention.code());
    }

    /// Asserts that no unit attention is pending.
    #[track_caller]
    pub fn ready(&self) {
        self.good(&TEST_UNIT_READY, &[]);
    }

    /// Reads blocks.
    #[track_caller]
    pub fn read(&self, lba: u64, count: u32) -> Vec<u8> {
        self.good(&blocks(0x88, 0, lba, count), &[])
    }

    /// Writes whole blocks.
    #[track_caller]
    pub fn write(&self, lba: u64, data: &[u8]) {
        self.good(&blocks(0x8a, 0, lba, (data.len() / 512) as u32), data);
    }
}

pub const TEST_UNIT_READY: [u8; 6] = [0; 6];

/// A 16-byte CDB with an address and a number of blocks.
pub fn blocks(opcode: u8, flags: u8, lba: u64, count: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (opcode, flags);
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&count.to_be_bytes());
    cdb
}

/// Sense data in fixed format.
pub fn fixed(sense: Sense) -> Vec<u8> {
    sense.encode(false)
}
