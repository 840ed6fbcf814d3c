//! Shared code of the file system tests: calls of file system tools, synthetic programs, and the comparison
//! of a scan with the output of the tools.
//!
//! A missing tool fails the test: `make setup` installs all of them. Tests that mount a file system are
//! skipped with a message if they cannot.
// Each test program uses only some of these helpers, and an error in a helper fails the test.
#![allow(dead_code, clippy::unwrap_used)]

use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forebay_guest::{Blocks, Class, Options, ReadError, Scan, scan};

/// Runs a tool and returns its standard output. With `may_fail`, the tool may exit with an error.
pub fn output(program: &str, args: &[&str], may_fail: bool) -> Vec<u8> {
    let mut command = Command::new(program);
    // File system tools are in directories that only root has in PATH.
    command.env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()));
    let output =
        command.args(args).output().unwrap_or_else(|e| panic!("{program}: {e} (make setup installs it)"));
    if !may_fail && !output.status.success() {
        panic!("{program} {args:?} fails: {}", String::from_utf8_lossy(&output.stderr));
    }
    output.stdout
}

pub fn run(program: &str, args: &[&str]) -> String {
    String::from_utf8_lossy(&output(program, args, false)).into_owned()
}

/// A path as an argument.
pub fn arg(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Creates an empty image file.
pub fn image(dir: &Path, name: &str, bytes: u64) -> PathBuf {
    let path = dir.join(name);
    std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
    path
}

/// Returns the privilege or device that is missing to mount file systems. Root in a container may lack the
/// capability and the devices.
fn lacks_to_mount(device: &str) -> Option<String> {
    const SYS_ADMIN: u32 = 21;
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    let capabilities = u64::from_str_radix(capabilities.trim(), 16).unwrap();
    if run("id", &["-u"]).trim() != "0" {
        return Some("root".to_owned());
    }
    if capabilities >> SYS_ADMIN & 1 == 0 {
        return Some("the capability CAP_SYS_ADMIN, which has to be granted to a container".to_owned());
    }
    let opened = std::fs::OpenOptions::new().read(true).write(true).open(device);
    opened.err().map(|error| format!("{device} ({error})"))
}

/// Reports why a test is skipped, also if the test harness captures the output.
#[allow(clippy::explicit_write)] // the harness captures the output of macros only
fn report_skipped(why: &str) {
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    writeln!(std::io::stderr(), "skipped: {name}: {why}").unwrap();
}

/// Whether file systems can be mounted here.
pub fn can_mount(device: &str) -> bool {
    let lacks = lacks_to_mount(device);
    if let Some(lacks) = &lacks {
        report_skipped(&format!("mounting needs {lacks}"));
    }
    lacks.is_none()
}

/// A mounted file system, unmounted when dropped. A FUSE driver continues to write after `umount` has
/// returned, so the driver's exit is awaited.
pub struct Mounted {
    pub root: tempfile::TempDir,
    driver: Option<Child>,
}

impl Mounted {
    /// Mounts an image with the kernel's driver.
    pub fn kernel(image: &Path) -> Mounted {
        let root = tempfile::tempdir().unwrap();
        run("mount", &["-o", "loop", arg(image), arg(root.path())]);
        Mounted { root, driver: None }
    }

    /// Mounts an NTFS image with ntfs-3g.
    pub fn ntfs_3g(image: &Path) -> Mounted {
        let root = tempfile::tempdir().unwrap();
        let before = std::fs::metadata(root.path()).unwrap().dev();
        let mut command = Command::new("ntfs-3g");
        command.args(["-o", "no_detach,streams_interface=windows", arg(image), arg(root.path())]);
        // ntfs-3g prints warnings here, so its output is shown only if it fails.
        let log = tempfile::tempfile().unwrap();
        let mut driver = command
            .stderr(Stdio::from(log.try_clone().unwrap()))
            .spawn()
            .unwrap_or_else(|e| panic!("ntfs-3g: {e} (make setup installs it)"));
        while std::fs::metadata(root.path()).unwrap().dev() == before {
            if driver.try_wait().unwrap().is_some() {
                let mut why = vec![0; log.metadata().unwrap().len() as usize];
                log.read_exact_at(&mut why, 0).unwrap();
                panic!("ntfs-3g does not mount: {}", String::from_utf8_lossy(&why));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Mounted { root, driver: Some(driver) }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let umount = |options: &[&str]| {
            let mut command = Command::new("umount");
            command.args(options).arg(self.root.path()).stderr(Stdio::null());
            command.status().is_ok_and(|s| s.success())
        };
        // A process that another test forks shares the open files of this process until its exec.
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut unmounted = umount(&[]);
        while !unmounted && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
            unmounted = umount(&[]);
        }
        if !unmounted {
            // Remove the mount in any case, even if it is still in use.
            umount(&["-l"]);
        }
        if let Some(mut driver) = self.driver.take() {
            // The driver of a mounted file system does not end without a kill.
            let _ = if unmounted { Ok(()) } else { driver.kill() };
            let _ = driver.wait();
        }
        // Without an unmount, data could be missing in the image.
        assert!(unmounted || std::thread::panicking(), "cannot unmount {}", self.root.path().display());
    }
}

/// Pseudo-random bytes, which no file system stores as holes.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Data with the signatures of a PE file.
pub fn pe(len: usize, seed: u64) -> Vec<u8> {
    let mut file = noise(len, seed);
    file[..2].copy_from_slice(b"MZ");
    file[0x3c..0x40].copy_from_slice(&[0xf0, 0, 0, 0]);
    file[0xf0..0xf4].copy_from_slice(b"PE\0\0");
    file
}

/// Data with the identification of an ELF file.
pub fn elf(len: usize, seed: u64) -> Vec<u8> {
    let mut file = noise(len, seed);
    file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    file
}

/// Writes a file and creates its parent directories.
pub fn write(root: &Path, path: &str, content: &[u8]) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, content).unwrap();
}

/// Creates the files of a typical Linux guest, for all classes.
pub fn linux_tree(root: &Path) {
    for n in 0..12 {
        write(root, &format!("usr/lib/lib{n}.so"), &elf(500 + n * 30_000, n as u64));
    }
    write(root, "usr/lib/win.dll", &pe(60_000, 20));
    write(root, "usr/share/data", &noise(2_000_000, 21));
    write(root, "tmp/deep/er/program", &elf(60_000, 22));
    write(root, "tmp/empty", b"");
    write(root, "home/anna/.cache/thing/x", &noise(90_000, 23));
    write(root, "home/anna/tmp/x", &noise(90_000, 24));
    for n in 0..250 {
        write(root, &format!("home/anna/many/a file with a rather long name {n}"), &noise(n * 3, n as u64));
    }
    std::fs::hard_link(root.join("tmp/deep/er/program"), root.join("var-program")).unwrap();
    write(root, "tmp/twice", &noise(20_000, 25));
    std::fs::hard_link(root.join("tmp/twice"), root.join("tmp/again")).unwrap();
    std::os::unix::fs::symlink("x".repeat(200), root.join("long-link")).unwrap();
    std::os::unix::fs::symlink("short", root.join("short-link")).unwrap();
    write(root, "swapfile", &vec![0; 1 << 20]);
    let swap = root.join("swapfile");
    std::fs::set_permissions(&swap, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    run("mkswap", &[arg(&swap)]);
    // Fills the unused parts of the swap file, which the file system would store as holes.
    let mut content = std::fs::read(&swap).unwrap();
    content[..1024].copy_from_slice(&noise(1024, 27));
    content[2048..4086].copy_from_slice(&noise(2038, 28));
    content[4096..].copy_from_slice(&noise((1 << 20) - 4096, 26));
    std::fs::write(&swap, content).unwrap();
}

/// Creates a program with a hole after each block, so that it has `extents` extents.
pub fn write_fragmented(path: &Path, extents: u64) {
    let file = std::fs::File::create(path).unwrap();
    file.write_all_at(&elf(4096, 1), 0).unwrap();
    (1..extents).for_each(|n| file.write_all_at(&noise(4096, n), n * 8192).unwrap());
}

/// Sets an extended attribute of `len` bytes.
pub fn set_attribute(path: &Path, len: usize) {
    let program = format!("import os, sys; os.setxattr(sys.argv[1], 'user.x', b'x' * {len})");
    run("/usr/bin/python3", &["-c", &program, arg(path)]);
}

/// Whether the kernel can mount this type of file system.
pub fn can_mount_kind(kind: &str) -> bool {
    let known =
        || std::fs::read_to_string("/proc/filesystems").unwrap().split_whitespace().any(|w| w == kind);
    if !can_mount("/dev/loop-control") {
        return false;
    }
    let can = known() || {
        output("modprobe", &[kind], true);
        known()
    };
    if !can {
        report_skipped(&format!("mounting needs a kernel with {kind}"));
    }
    can
}

/// An image as a disk.
struct Image(std::fs::File);

impl Blocks for Image {
    fn size(&self) -> u64 {
        self.0.metadata().unwrap().len()
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<(), ReadError> {
        self.0.read_exact_at(out, offset).map_err(|e| ReadError { offset, source: Some(e) })
    }
}

pub fn scan_bytes(disk: &[u8]) -> Scan {
    complete(&mut &disk[..])
}

pub fn scan_file(image: &Path) -> Scan {
    complete(&mut Image(std::fs::File::open(image).unwrap()))
}

fn complete(disk: &mut dyn Blocks) -> Scan {
    let scan = scan(disk, &Options::default());
    assert!(scan.complete && scan.failed_reads == 0, "{:?}", scan.volumes);
    scan
}

/// The expected classes according to the tools: all claims to each sector of 512 bytes.
pub struct Expected(Vec<Vec<Class>>);

impl Expected {
    pub fn new(bytes: u64) -> Expected {
        Expected(vec![Vec::new(); (bytes / 512) as usize])
    }

    pub fn claim(&mut self, offset: u64, len: u64, class: Class) {
        let (first, last) = ((offset / 512) as usize, ((offset + len) / 512) as usize);
        self.0[first..last].iter_mut().for_each(|parts| parts.push(class));
    }

    /// Resolves the claims by the documented rule: a single class is the result, otherwise code takes
    /// precedence over metadata, and metadata over other.
    pub fn classes(&self) -> Vec<Class> {
        let class_of = |parts: &[Vec<Class>]| {
            let unclaimed = parts.iter().any(Vec::is_empty).then_some(Class::Other);
            let mut all: Vec<_> = parts.iter().flatten().copied().chain(unclaimed).collect();
            all.sort();
            all.dedup();
            match all[..] {
                [one] => one,
                _ if all.contains(&Class::Code) => Class::Code,
                _ if all.contains(&Class::Metadata) => Class::Metadata,
                _ => Class::Other,
            }
        };
        self.0.chunks(8).map(class_of).collect()
    }

    /// Asserts that every block has the expected class.
    pub fn compare(&self, scan: &Scan) {
        let classes = self.classes();
        assert_eq!(scan.map.blocks(), classes.len() as u64);
        let differs = |block: &usize| scan.map.class_of(*block as u64) != classes[*block];
        let wrong: Vec<_> = (0..classes.len()).filter(differs).collect();
        let show = |b: &usize| format!("{b}: {:?}, not {:?}", scan.map.class_of(*b as u64), classes[*b]);
        let first: Vec<_> = wrong.iter().take(10).map(show).collect();
        assert!(wrong.is_empty(), "{} of {} blocks are wrong: {first:#?}", wrong.len(), classes.len());
    }
}

/// Returns the bytes of a class.
pub fn bytes(scan: &Scan, class: Class) -> u64 {
    scan.map.bytes_per_class()[class as usize]
}
