//! A control plane over a pool in memory, and image files created with `qemu-img`.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use forebay_api::import::{Event, Format, Request, Source};
use forebay_control::access::{Access, Audit};
use forebay_control::import::{self, Client, FetchPolicy};
use forebay_control::limits::LimitTable;
use forebay_control::operations::{Control, ServerInfo};
use forebay_engine::{Pool, PoolConfig};
use forebay_frontend::scsi::Units;
use forebay_frontend::targets::Targets;
use forebay_host::EngineThread;
use forebay_store::MemoryStore;

/// A client of the control socket.
pub const CLIENT: Client<'_> = Client { name: "a test", uploads: None, on_host: true };

/// A control plane over a pool in memory.
pub struct Rig {
    pub control: Control,
    pub access: Arc<Access>,
    pub store: Arc<MemoryStore>,
    audit: tempfile::TempDir,
    pub dir: tempfile::TempDir,
    // Dropped last: the pool uses it.
    _engine: EngineThread,
}

impl Rig {
    pub async fn new() -> Rig {
        Rig::with(PoolConfig::default()).await
    }

    /// A control plane over a pool with this configuration, apart from the size of its caches.
    pub async fn with(config: PoolConfig) -> Rig {
        let engine = EngineThread::start(2).unwrap();
        let config =
            PoolConfig { read_cache: config.read_cache.min(32 << 20), map_cache: 32 << 20, ..config };
        let store = Arc::new(MemoryStore::new());
        let pool = engine.run(Pool::open(store.clone(), engine.host(), config)).await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().to_owned();
        let info = ServerInfo {
            host: "host".to_owned(),
            pool: data.display().to_string(),
            data,
            nbd: Vec::new(),
            iscsi: Vec::new(),
            nvme: Vec::new(),
            nfs: Vec::new(),
            http: None,
            imports: FetchPolicy::default(),
            started: Instant::now(),
        };
        let targets = Arc::new(Targets::load(pool.clone()).await);
        let units = Arc::new(Units::new());
        let limits = Arc::new(LimitTable::load(pool.clone()).await);
        let audit = tempfile::tempdir().unwrap();
        let log = Audit::open(Some(&audit.path().join("audit"))).unwrap();
        let access = Access::load(dir.path(), false, log);
        let control = Control::new(pool, targets, units, limits, info);
        Rig { control, access, store, audit, dir, _engine: engine }
    }

    /// The text of the audit log.
    pub fn audit(&self) -> String {
        std::fs::read_to_string(self.audit.path().join("audit")).unwrap()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Imports a file. Returns code and message of the error if it fails.
    pub async fn import(&self, name: &str, path: &Path, format: Format) -> Result<(), (String, String)> {
        self.import_from(name, Source::File(path.to_owned()), format).await
    }

    pub async fn import_from(
        &self,
        name: &str,
        source: Source,
        format: Format,
    ) -> Result<(), (String, String)> {
        self.run_import(name, source, format, None).await
    }

    /// Imports a disk of an archive.
    pub async fn import_disk(
        &self,
        name: &str,
        path: &Path,
        disk: Option<&str>,
    ) -> Result<(), (String, String)> {
        self.run_import(name, Source::File(path.to_owned()), Format::Auto, disk).await
    }

    async fn run_import(
        &self,
        name: &str,
        source: Source,
        format: Format,
        disk: Option<&str>,
    ) -> Result<(), (String, String)> {
        let disk = disk.map(str::to_owned);
        let request = Request { name: name.into(), source, format, disk, max_bytes: None, dedup_domain: 0 };
        let started = import::start(&self.control, request, CLIENT).await;
        let mut events = started.map_err(|e| (e.kind.code().to_owned(), e.message))?.1;
        while let Some(event) = events.recv().await {
            match event {
                Ok(Event::Progress { .. }) => (),
                Ok(Event::Done { image, .. }) => {
                    assert_eq!(image.name, name);
                    return Ok(());
                }
                Ok(Event::Failed { error }) => return Err((error.code, error.message)),
                Err(e) => return Err((e.kind.code().to_owned(), e.message)),
            }
        }
        panic!("an import ended without a last event");
    }

    /// Reads a whole disk.
    pub async fn contents(&self, name: &str) -> Vec<u8> {
        let disk = self.control.pool().attach(name).unwrap();
        let mut bytes = vec![0; usize::try_from(disk.size()).unwrap()];
        for (i, chunk) in bytes.chunks_mut(1 << 20).enumerate() {
            disk.read((i << 20) as u64, chunk).await.unwrap();
        }
        bytes
    }

    pub fn names(&self) -> Vec<String> {
        self.control.pool().disks().into_iter().map(|d| d.name).collect()
    }
}

/// A deterministic random number generator (xorshift).
pub struct Rng(pub u64);

impl Rng {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Disk contents with zeroes, data that compresses well, and noise that does not compress.
pub fn disk_bytes(len: usize, seed: u64) -> Vec<u8> {
    let mut rng = Rng(seed | 1);
    let mut bytes = vec![0; len];
    for _ in 0..len / (256 << 10) {
        let start = rng.below(len as u64) as usize / 512 * 512;
        let end = (start + [512, 4096, 65_536, 100_000][rng.below(4) as usize]).min(len);
        let noise = rng.below(2) == 0;
        for (i, b) in bytes[start..end].iter_mut().enumerate() {
            *b = if noise { rng.below(256) as u8 } else { (i / 700) as u8 };
        }
    }
    // A wrong length would lose the last sector.
    bytes[len - 1] = 0xa5;
    bytes
}

/// Whether `qemu-img` is installed. Prints a message if it is not.
pub fn have_qemu_img() -> bool {
    let found = Command::new("qemu-img").arg("--version").output().is_ok_and(|o| o.status.success());
    if !found {
        eprintln!("SKIPPED: this test requires qemu-img; install qemu-utils");
    }
    found
}

pub fn qemu_img(args: &[&str], directory: &Path) {
    let out = Command::new("qemu-img").args(args).current_dir(directory).output().unwrap();
    assert!(out.status.success(), "qemu-img {args:?}: {}", String::from_utf8_lossy(&out.stderr));
}

/// Converts `src.raw` in `directory` to `name`.
pub fn convert(directory: &Path, format: &str, options: &[&str], name: &str) {
    let mut args = vec!["convert", "-f", "raw", "-O", format];
    args.extend(options);
    args.extend(["src.raw", name]);
    qemu_img(&args, directory);
}
