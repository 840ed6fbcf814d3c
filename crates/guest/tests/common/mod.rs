//! What the tests of file systems share: real tools, made-up programs, and the comparison with what tools say.
//!
//! A tool that is missing fails the test: `make setup` installs them all. Only what needs root to mount something is
//! left out without it, and says so.
// Each test program uses a part, and a helper of a test fails as a test does.
#![allow(dead_code, clippy::unwrap_used)]

use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forebay_guest::{Blocks, Class, Options, ReadError, Scan, scan};

/// Runs a tool and returns what it prints. With `may_fail` a failure is an answer too.
pub fn output(program: &str, args: &[&str], may_fail: bool) -> Vec<u8> {
    let mut command = Command::new(program);
    // The tools for file systems stand where only root's shell looks.
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

/// An empty image file.
pub fn image(dir: &Path, name: &str, bytes: u64) -> PathBuf {
    let path = dir.join(name);
    std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
    path
}

/// What is missing to mount file systems here, if anything is. Root of a container may have neither the capability
/// nor the devices.
fn lacks_to_mount(device: &str) -> Option<String> {
    const SYS_ADMIN: u32 = 21;
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    let capabilities = u64::from_str_radix(capabilities.trim(), 16).unwrap();
    if run("id", &["-u"]).trim() != "0" {
        return Some("root".to_owned());
    }
    if capabilities >> SYS_ADMIN & 1 == 0 {
        return Some("the capability CAP_SYS_ADMIN, which a container has to be given".to_owned());
    }
    let opened = std::fs::OpenOptions::new().read(true).write(true).open(device);
    opened.err().map(|error| format!("{device} ({error})"))
}

/// Says why a test is left out, past what the test harness keeps to itself.
#[allow(clippy::explicit_write)] // the harness keeps what the macros print
fn left_out(why: &str) {
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    writeln!(std::io::stderr(), "left out: {name}: {why}").unwrap();
}

/// Whether file systems can be mounted here.
pub fn can_mount(device: &str) -> bool {
    let lacks = lacks_to_mount(device);
    if let Some(lacks) = &lacks {
        left_out(&format!("mounting needs {lacks}"));
    }
    lacks.is_none()
}

/// A mounted file system; no more when it is dropped. A driver in user space writes on when `umount` has returned,
/// so it is waited for.
pub struct Mounted {
    pub root: tempfile::TempDir,
    driver: Option<Child>,
}

impl Mounted {
    /// With the kernel's driver.
    pub fn kernel(image: &Path) -> Mounted {
        let root = tempfile::tempdir().unwrap();
        run("mount", &["-o", "loop", arg(image), arg(root.path())]);
        Mounted { root, driver: None }
    }

    /// NTFS with ntfs-3g.
    pub fn ntfs_3g(image: &Path) -> Mounted {
        let root = tempfile::tempdir().unwrap();
        let before = std::fs::metadata(root.path()).unwrap().dev();
        let mut command = Command::new("ntfs-3g");
        command.args(["-o", "no_detach,streams_interface=windows", arg(image), arg(root.path())]);
        // It complains of what it is used for here, so it is heard only when it fails.
        let said = tempfile::tempfile().unwrap();
        let mut driver = command
            .stderr(Stdio::from(said.try_clone().unwrap()))
            .spawn()
            .unwrap_or_else(|e| panic!("ntfs-3g: {e} (make setup installs it)"));
        while std::fs::metadata(root.path()).unwrap().dev() == before {
            if driver.try_wait().unwrap().is_some() {
                let mut why = vec![0; said.metadata().unwrap().len() as usize];
                said.read_exact_at(&mut why, 0).unwrap();
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
        // A tool that another test starts has this one's open files until it is loaded.
        let deadline = Instant::now() + Duration::from_secs(20);
        let mut unmounted = umount(&[]);
        while !unmounted && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
            unmounted = umount(&[]);
        }
        if !unmounted {
            // Nothing may stay behind in the table of mounts, whoever is still in there.
            umount(&["-l"]);
        }
        if let Some(mut driver) = self.driver.take() {
            // It would never end by itself.
            let _ = if unmounted { Ok(()) } else { driver.kill() };
            let _ = driver.wait();
        }
        // What is tested then might not be all on the disk.
        assert!(unmounted || std::thread::panicking(), "cannot unmount {}", self.root.path().display());
    }
}

/// Bytes that repeat nowhere, so that no file system makes holes of them.
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

/// A PE file as far as its headers go.
pub fn pe(len: usize, seed: u64) -> Vec<u8> {
    let mut file = noise(len, seed);
    file[..2].copy_from_slice(b"MZ");
    file[0x3c..0x40].copy_from_slice(&[0xf0, 0, 0, 0]);
    file[0xf0..0xf4].copy_from_slice(b"PE\0\0");
    file
}

/// An ELF file as far as its identification goes.
pub fn elf(len: usize, seed: u64) -> Vec<u8> {
    let mut file = noise(len, seed);
    file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    file
}

/// Writes a file, and the directories above it.
pub fn write(root: &Path, path: &str, content: &[u8]) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, content).unwrap();
}

/// Files of all kinds, as a guest with Linux has them.
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
    // mkswap leaves the rest as it was, of which the file system would make a hole.
    let mut content = std::fs::read(&swap).unwrap();
    content[..1024].copy_from_slice(&noise(1024, 27));
    content[2048..4086].copy_from_slice(&noise(2038, 28));
    content[4096..].copy_from_slice(&noise((1 << 20) - 4096, 26));
    std::fs::write(&swap, content).unwrap();
}

/// A program with a hole behind each block.
pub fn in_pieces(path: &Path, pieces: u64) {
    let file = std::fs::File::create(path).unwrap();
    file.write_all_at(&elf(4096, 1), 0).unwrap();
    (1..pieces).for_each(|n| file.write_all_at(&noise(4096, n), n * 8192).unwrap());
}

/// An extended attribute that is too long for an inode.
pub fn set_attribute(path: &Path, len: usize) {
    let program = format!("import os, sys; os.setxattr(sys.argv[1], 'user.x', b'x' * {len})");
    run("/usr/bin/python3", &["-c", &program, arg(path)]);
}

/// Whether the kernel can mount such a file system.
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
        left_out(&format!("mounting needs a kernel with {kind}"));
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

/// What tools say, for each 512 bytes: all classes that claim them.
pub struct Expected(Vec<Vec<Class>>);

impl Expected {
    pub fn new(bytes: u64) -> Expected {
        Expected(vec![Vec::new(); (bytes / 512) as usize])
    }

    pub fn claim(&mut self, offset: u64, len: u64, class: Class) {
        let (first, last) = ((offset / 512) as usize, ((offset + len) / 512) as usize);
        self.0[first..last].iter_mut().for_each(|parts| parts.push(class));
    }

    /// The documented rule: a block of one class has it; else code goes before metadata before other.
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

    /// Every block must have its class.
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

/// Bytes of a class, for the assertion that there were some at all.
pub fn bytes(scan: &Scan, class: Class) -> u64 {
    scan.map.bytes_per_class()[class as usize]
}
