//! The backends under test, each behind the same small handle.
#![allow(dead_code, reason = "each test file uses its part")]

use std::path::Path;
use std::sync::Arc;

use forebay_format::{PoolId, SegmentId, Superblock};
use forebay_store::{DirectoryOptions, DirectoryStore, FaultyStore, IoBuf, IoMode, MemoryStore, Store};

/// A store that can be closed and opened again.
pub struct Backend {
    pub name: &'static str,
    pub store: Option<Arc<dyn Store>>,
    open: Box<dyn Fn() -> Arc<dyn Store>>,
}

impl Backend {
    pub fn new(name: &'static str, open: impl Fn() -> Arc<dyn Store> + 'static) -> Backend {
        let store = Some(open());
        Backend { name, store, open: Box::new(open) }
    }
    pub fn store(&self) -> &Arc<dyn Store> {
        self.store.as_ref().expect("the backend is open")
    }
    /// Closes it and opens it again, as a restart of the server does.
    pub fn reopen(&mut self) {
        self.store = None;
        self.store = Some((self.open)());
    }
}

pub fn options(io: IoMode, direct: bool) -> DirectoryOptions {
    DirectoryOptions { io, direct, open_files: 3 }
}

fn directory(name: &'static str, options: DirectoryOptions) -> Backend {
    let dir = tempfile::tempdir().expect("a temporary directory");
    Backend::new(name, move || DirectoryStore::open(dir.path(), &options).expect("the directory opens"))
}

/// Every backend, fresh and empty.
pub fn backends() -> Vec<Backend> {
    let memory = Arc::new(MemoryStore::new());
    let faulty = FaultyStore::new(1);
    faulty.set_delay(3);
    vec![
        Backend::new("memory", move || memory.clone()),
        Backend::new("faulty, without faults", move || faulty.reopen()),
        directory("directory", options(IoMode::Auto, true)),
        directory("directory, threads", options(IoMode::Threads, true)),
        directory("directory, page cache", options(IoMode::Auto, false)),
    ]
}

/// Runs an async test body on this thread.
pub fn block_on<T>(body: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(body)
}

/// `len` bytes that tell where they belong.
pub fn pattern(seed: u64, len: usize) -> IoBuf {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut buf = IoBuf::zeroed(len);
    for word in buf.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    buf
}

pub fn id(n: u32) -> SegmentId {
    SegmentId(n)
}

pub fn superblock(generation: u64) -> Superblock {
    Superblock {
        pool: PoolId([7; 16]),
        generation,
        epoch: generation,
        fingerprint_key: [3; 32],
        created_ms: 1,
        segment_bytes: 1 << 20,
        seq: generation,
        chain: 9,
        blobs: Vec::new(),
    }
}

/// A small file system of its own, mounted as long as it lives; `None` where this needs rights that are
/// missing.
pub struct Mount(tempfile::TempDir);

impl Mount {
    pub fn tmpfs(bytes: u64) -> Option<Mount> {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let data = format!("size={bytes}");
        mount(dir.path(), c"tmpfs", 0, Some(&data)).then_some(Mount(dir))
    }
    pub fn path(&self) -> &Path {
        self.0.path()
    }
    pub fn make_read_only(&self) -> bool {
        mount(self.path(), c"tmpfs", libc::MS_REMOUNT | libc::MS_RDONLY, None)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let path = c_path(self.path());
        // SAFETY: a plain system call with a path that ends with a zero byte.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
    }
}

fn c_path(path: &Path) -> std::ffi::CString {
    use std::os::unix::ffi::OsStrExt;
    std::ffi::CString::new(path.as_os_str().as_bytes()).expect("no zero byte in a path")
}

fn mount(at: &Path, kind: &std::ffi::CStr, flags: libc::c_ulong, data: Option<&str>) -> bool {
    let (at, data) = (c_path(at), data.map(|d| std::ffi::CString::new(d).expect("no zero byte")));
    let data = data.as_ref().map_or(std::ptr::null(), |d| d.as_ptr());
    // SAFETY: a plain system call; the strings live until it returns.
    unsafe { libc::mount(kind.as_ptr(), at.as_ptr(), kind.as_ptr(), flags, data.cast()) == 0 }
}
