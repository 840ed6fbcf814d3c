//! The backends under test, each behind the same handle.
#![allow(dead_code, reason = "each test file uses its part")]

use std::path::Path;
use std::sync::Arc;

use forebay_format::{Features, PoolId, SegmentId, Superblock};
use forebay_store::rados::{Claim, RadosStore, SimulatedRados};
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
    /// Closes and opens it again, like a restart of the server.
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

/// A simulated RADOS cluster, whose operations end at once.
fn rados() -> Backend {
    let cluster = SimulatedRados::immediate();
    Backend::new("rados, simulated", move || {
        let opened = RadosStore::open_immediate(cluster.client(), "test", Claim::IfFree);
        opened.expect("the pool is free")
    })
}

/// Every backend, new and empty.
pub fn backends() -> Vec<Backend> {
    let memory = Arc::new(MemoryStore::new());
    let faulty = FaultyStore::new(1);
    faulty.set_delay(3);
    vec![
        Backend::new("memory", move || memory.clone()),
        rados(),
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

/// `len` pseudorandom bytes that identify their `seed`.
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
        memory: 0,
        boot: 0,
        blobs: Vec::new(),
        features: Features::default(),
    }
}

/// A small separate file system, unmounted when dropped; `None` if the process lacks the permission to
/// mount.
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
        // SAFETY: the path is zero-terminated.
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
    // SAFETY: the strings are valid until the call returns.
    unsafe { libc::mount(kind.as_ptr(), at.as_ptr(), kind.as_ptr(), flags, data.cast()) == 0 }
}

const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const IF_BITS: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

/// A step of a seccomp filter.
fn step(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

fn refuse(errno: libc::c_int) -> u32 {
    libc::SECCOMP_RET_ERRNO | errno as u32
}

/// Makes the kernel refuse `io_uring_setup` with EPERM and `O_DIRECT` with EINVAL for this thread and its
/// children, like a container's seccomp profile and an old tmpfs.
pub fn forbid_uring_and_direct_io() -> bool {
    install(vec![
        step(LOAD, 0, 0, 0), // the number of the system call
        step(IF_EQUAL, 4, 0, libc::SYS_io_uring_setup as u32),
        step(IF_EQUAL, 0, 2, libc::SYS_openat as u32),
        step(LOAD, 0, 0, 16 + 2 * 8), // the third argument
        step(IF_BITS, 2, 0, libc::O_DIRECT as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
        step(RETURN, 0, 0, refuse(libc::EPERM)),
        step(RETURN, 0, 0, refuse(libc::EINVAL)),
    ])
}

/// Makes the kernel refuse `io_uring_setup` and `pwritev2` for this thread and its children.
pub fn forbid_uring_and_synced_writes(errno: libc::c_int) -> bool {
    install(vec![
        step(LOAD, 0, 0, 0), // the number of the system call
        step(IF_EQUAL, 2, 0, libc::SYS_io_uring_setup as u32),
        step(IF_EQUAL, 1, 0, libc::SYS_pwritev2 as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
        step(RETURN, 0, 0, refuse(errno)),
    ])
}

/// Applies a seccomp filter to this thread and its children.
fn install(mut steps: Vec<libc::sock_filter>) -> bool {
    let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    // SAFETY: the program is valid until the calls return.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    }
}
