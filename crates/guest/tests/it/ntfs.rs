//! NTFS volumes created and changed by ntfs-3g. The scan is compared with the output of its tools for every
//! cluster.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::common::*;
use forebay_guest::{Class, Content};

const MIB: u64 = 1 << 20;

struct Volume {
    image: PathBuf,
    bytes: u64,
    cluster: u64,
    _dir: tempfile::TempDir,
}

impl Volume {
    fn new(bytes: u64, cluster: u64) -> Volume {
        let dir = tempfile::tempdir().unwrap();
        let image = image(dir.path(), "disk", bytes);
        run("mkfs.ntfs", &["-q", "-F", "-Q", "-s", "512", "-c", &cluster.to_string(), arg(&image)]);
        Volume { image, bytes, cluster, _dir: dir }
    }

    fn mounted(&self, with: impl FnOnce(&Path)) {
        with(Mounted::ntfs_3g(&self.image).root.path());
    }

    /// Copies the volume to another image.
    fn copy(&self) -> Volume {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("copy");
        fs::copy(&self.image, &image).unwrap();
        Volume { image, bytes: self.bytes, cluster: self.cluster, _dir: dir }
    }

    fn cat(&self, args: &[&str]) -> Vec<u8> {
        output("ntfscat", &[&["-f"], args, &[arg(&self.image)]].concat(), false)
    }

    /// Determines the expected classes, from `ntfscluster` for each inode, and from `ntfscat` for contents
    /// and `$Bitmap`.
    fn expected(&self, is_temporary: fn(&str) -> bool) -> Expected {
        let mut expected = Expected::new(self.bytes);
        // The backup boot sector, which does not belong to a file.
        expected.claim(self.bytes - 512, 512, Class::Metadata);
        let records = output("ntfscat", &["-f", "-i", "0", arg(&self.image)], false);
        for (inode, record) in records.chunks(1024).enumerate() {
            let is_base = record[32..40] == [0; 8];
            if !record.starts_with(b"FILE") || record[22] & 1 == 0 || !is_base {
                continue;
            }
            let number = inode.to_string();
            let dump = run("ntfscluster", &["-f", "-I", &number, arg(&self.image)]);
            let path = dump.lines().find_map(|l| l.strip_prefix("Dump: ")).unwrap();
            let mut class = Class::Other;
            for line in dump.lines() {
                let mut words = line.split_whitespace();
                let first = words.next().unwrap_or("");
                if let Some(kind) = first.strip_prefix("0x") {
                    let data = kind == "80" && line.contains("non-resident");
                    class = if data { self.class(inode, path, is_temporary) } else { Class::Metadata };
                } else if let [Ok(_), Ok(lcn), Ok(len)] =
                    [Some(first), words.next(), words.next()].map(|w| w.unwrap_or("").parse::<i64>())
                    && lcn >= 0
                    && class != Class::Other
                {
                    expected.claim(lcn as u64 * self.cluster, len as u64 * self.cluster, class);
                }
            }
        }
        let clusters = (self.bytes - 512) / self.cluster;
        let bitmap = self.cat(&["-i", "6"]);
        for cluster in 0..clusters {
            if bitmap[cluster as usize / 8] >> (cluster % 8) & 1 == 0 {
                expected.claim(cluster * self.cluster, self.cluster, Class::Free);
            }
        }
        expected
    }

    fn class(&self, inode: usize, path: &str, is_temporary: fn(&str) -> bool) -> Class {
        if inode < 24 || path.starts_with("/$Extend/") {
            return Class::Metadata;
        }
        if ["/pagefile.sys", "/swapfile.sys", "/hiberfil.sys"].contains(&path.to_lowercase().as_str()) {
            return Class::Page;
        }
        if is_temporary(path) {
            return Class::Temporary;
        }
        let content = self.cat(&["-i", &inode.to_string()]);
        let signature = || {
            let at = u32::from_le_bytes(*content.get(0x3c..)?.first_chunk()?) as usize;
            content.get(at..at + 4)
        };
        let is_pe = content.starts_with(b"MZ") && signature() == Some(b"PE\0\0");
        if is_pe || content.starts_with(b"\x7fELF") { Class::Code } else { Class::Other }
    }

    /// Asserts that the scan and the tools agree on every block.
    fn check(&self) -> forebay_guest::Scan {
        let scan = scan_file(&self.image);
        assert_eq!(scan.volumes, [(0..self.bytes, Content::Ntfs)]);
        self.expected(|path| path.starts_with("/Windows/Temp/") || path.contains("/AppData/Local/Temp/"))
            .compare(&scan);
        scan
    }
}

fn append(path: &Path, content: &[u8]) {
    OpenOptions::new().append(true).open(path).unwrap().write_all(content).unwrap();
}

/// Returns real Windows programs: small ones of three architectures, which `make setup` installs, and some of
/// Wine if it is installed or `FOREBAY_PE_FILES` is a directory with programs.
fn programs() -> Vec<PathBuf> {
    let list = |directory: &str, at_most: usize| -> Vec<PathBuf> {
        let files = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
        let is_program = |path: &PathBuf| {
            let extension = path.extension().and_then(|e| e.to_str());
            matches!(extension, Some("exe" | "dll")) && path.metadata().is_ok_and(|m| m.len() < 500_000)
        };
        let mut files: Vec<_> = files.filter(is_program).collect();
        files.sort();
        files.truncate(at_most);
        files
    };
    let mut programs = list("/usr/lib/python3/dist-packages/distlib", 6);
    assert!(programs.len() == 6, "no programs of python3-distlib (make setup installs it)");
    let named = std::env::var("FOREBAY_PE_FILES").unwrap_or_default();
    for wine in [&named[..], "/usr/lib/x86_64-linux-gnu/wine/x86_64-windows", "/usr/lib/wine/x86_64-windows"]
    {
        programs.extend(list(wine, 20));
    }
    programs
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).unwrap().len()
}

fn fill(root: &Path) {
    write(root, "pagefile.sys", &noise(3_000_000, 1));
    write(root, "HIBERFIL.SYS", &noise(700_000, 2));
    write(root, "swapfile.sys", &noise(100, 3)); // resident
    for n in 0..20 {
        write(root, &format!("Windows/System32/lib{n}.dll"), &pe(5000 + n * 9000, n as u64));
    }
    write(root, "Windows/System32/no-suffix", &pe(30_000, 40));
    write(root, "Windows/System32/linux", &elf(30_000, 41));
    write(root, "Windows/System32/fake.dll", &noise(30_000, 42));
    write(root, "Windows/Temp/setup.exe", &pe(40_000, 43));
    write(root, "Windows/Temp/deep/er/log", &noise(40_000, 44));
    write(root, "Users/anna/AppData/Local/Temp/x.tmp", &noise(90_000, 45));
    write(root, "Users/anna/pagefile.sys", &noise(50_000, 46));
    write(root, "Users/anna/letter.txt", &noise(70_000, 47));
    write(root, "Users/anna/short.txt", b"short");
    for n in 0..150 {
        write(root, &format!("Users/anna/many/a file with a rather long name {n}"), &noise(n * 40, n as u64));
    }
    for (n, file) in programs().iter().enumerate() {
        fs::copy(file, root.join(format!("Windows/System32/program{n}.exe"))).unwrap();
    }
}

fn change(root: &Path) {
    let temp = root.join("Windows/Temp");
    fs::rename(temp.join("setup.exe"), root.join("Users/anna/setup.exe")).unwrap();
    fs::rename(root.join("Users/anna/letter.txt"), temp.join("letter.txt")).unwrap();
    fs::rename(temp.join("deep"), root.join("Users/deep")).unwrap();
    fs::hard_link(root.join("Users/anna/AppData/Local/Temp/x.tmp"), temp.join("also temporary")).unwrap();
    // Two files that grow in turns are fragmented.
    for n in 0..40 {
        append(&root.join("Windows/System32/lib3.dll"), &noise(9000, n));
        append(&root.join("pagefile.sys"), &noise(12_000, n));
    }
    for n in (0..20).step_by(3) {
        fs::remove_file(root.join(format!("Windows/System32/lib{n}.dll"))).ok();
    }
    for n in (0..150).step_by(2) {
        fs::remove_file(root.join(format!("Users/anna/many/a file with a rather long name {n}"))).unwrap();
    }
    let sparse = fs::File::create(root.join("Users/anna/sparse")).unwrap();
    sparse.set_len(10 << 20).unwrap();
}

#[test]
fn all_blocks_have_the_classes_that_ntfs_3g_reports() {
    if !can_mount("/dev/fuse") {
        return;
    }
    let volume = Volume::new(48 * MIB, 4096);
    volume.check();
    volume.mounted(fill);
    let filled = volume.check();
    volume.mounted(change);
    let changed = volume.check();
    for scan in [&filled, &changed] {
        let least = [Class::Page, Class::Temporary, Class::Code, Class::Metadata, Class::Free];
        assert!(least.iter().all(|class| bytes(scan, *class) > 50_000), "{:?}", scan.map.bytes_per_class());
        assert!(bytes(scan, Class::Code) > programs().iter().map(|program| size(program)).sum());
    }
    assert!(bytes(&changed, Class::Page) > bytes(&filled, Class::Page) + 400_000);
}

/// Simulates a running guest: installs, updates and removes programs; moves files and extends them in turns.
fn guest_activity(root: &Path, step: usize) {
    let (system, temp) = (root.join("Windows/System32"), root.join("Windows/Temp"));
    let programs = programs();
    let installed = root.join(format!("Program Files/{step}/program.exe"));
    fs::create_dir_all(installed.parent().unwrap()).unwrap();
    fs::rename(system.join(format!("program{step}.exe")), &installed).unwrap();
    fs::copy(&programs[step], temp.join(format!("update{step}.exe"))).unwrap();
    if step > 0 {
        let unpacked = temp.join(format!("update{}.exe", step - 1));
        fs::rename(unpacked, system.join(format!("program{}.exe", step - 1))).unwrap();
    }
    for turn in 0..10 {
        let seed = (step * 100 + turn) as u64;
        append(&installed, &noise(7000, seed));
        append(&root.join("pagefile.sys"), &noise(20_000, seed + 10));
        append(&temp.join("deep/er/log"), &noise(5000, seed + 20));
        append(&root.join("Users/anna/letter.txt"), &noise(3000, seed + 30));
    }
    fs::remove_file(system.join(format!("lib{step}.dll"))).unwrap();
    for n in (step..150).step_by(7) {
        fs::remove_file(root.join(format!("Users/anna/many/a file with a rather long name {n}"))).ok();
    }
}

/// Scans a clone while it is mounted and changes: after each step, the scan agrees with the tools. The
/// original volume is unchanged.
#[test]
fn a_mounted_clone_is_classified_while_it_changes() {
    if !can_mount("/dev/fuse") {
        return;
    }
    let golden = Volume::new(48 * MIB, 4096);
    golden.mounted(fill);
    let before = golden.check();
    let clone = golden.copy();
    let mounted = Mounted::ntfs_3g(&clone.image);
    let mut page = bytes(&before, Class::Page);
    for step in 0..4 {
        guest_activity(mounted.root.path(), step);
        // Scan and tools read a copy, so that both see the same state.
        let scan = clone.copy().check();
        assert!(bytes(&scan, Class::Page) > page, "the page file has not grown");
        assert!(scan.map != before.map);
        page = bytes(&scan, Class::Page);
    }
    drop(mounted);
    assert!(bytes(&clone.check(), Class::Page) == page);
    assert_eq!(golden.check().map, before.map);
}

/// Clusters that are smaller and larger than a block.
#[test]
fn volumes_with_other_cluster_sizes_are_classified() {
    if !can_mount("/dev/fuse") {
        return;
    }
    for cluster in [512, 1024, 65536] {
        let volume = Volume::new(48 * MIB, cluster);
        volume.mounted(fill);
        volume.mounted(change);
        let scan = volume.check();
        assert!(bytes(&scan, Class::Page) > 4_000_000 && bytes(&scan, Class::Code) > 400_000);
    }
}

/// Requires no root: `ntfscp` creates the files, and `ntfsfallocate` extends the page file.
#[test]
fn a_page_file_is_classified_without_a_mount() {
    let volume = Volume::new(32 * MIB, 4096);
    let source = volume.image.with_extension("source");
    let program = fs::read(&programs()[0]).unwrap();
    let program_len = program.len() as u64;
    for (name, content) in
        [("pagefile.sys", noise(2_000_000, 1)), ("a.dll", program), ("b", noise(300_000, 3))]
    {
        fs::write(&source, content).unwrap();
        run("ntfscp", &["-f", "-q", arg(&volume.image), arg(&source), name]);
    }
    let scan = volume.check();
    assert_eq!(bytes(&scan, Class::Page), 2_000_000_u64.next_multiple_of(4096));
    assert_eq!(bytes(&scan, Class::Code), program_len.next_multiple_of(4096));
    run("ntfsfallocate", &["-f", "-l", "6000000", arg(&volume.image), "pagefile.sys"]);
    let scan = volume.check();
    assert_eq!(bytes(&scan, Class::Page), 6_000_000_u64.next_multiple_of(4096));
}

/// Named data streams of a program and of a temporary file.
#[test]
fn named_streams_are_not_code() {
    if !can_mount("/dev/fuse") {
        return;
    }
    let volume = Volume::new(16 * MIB, 4096);
    volume.mounted(|root| {
        write(root, "a.exe", &pe(40_960, 1));
        write(root, "a.exe:extra", &pe(81_920, 2));
        write(root, "Windows/Temp/t", &noise(40_960, 3));
        write(root, "Windows/Temp/t:extra", &noise(40_960, 4));
        // A file with another, non-temporary name is not temporary.
        write(root, "Windows/Temp/kept", &noise(40_960, 5));
        fs::hard_link(root.join("Windows/Temp/kept"), root.join("kept")).unwrap();
    });
    let scan = scan_file(&volume.image);
    assert_eq!(bytes(&scan, Class::Code), 40_960);
    assert_eq!(bytes(&scan, Class::Temporary), 81_920);
    assert_eq!(bytes(&scan, Class::Other), 81_920 + 40_960);
}

/// Fragments the free space: fills the volume with files of `each` bytes and removes about half of them at
/// random. A regular pattern would not do, because the driver allocates in several zones in turns.
fn fragment_free_space(root: &Path, each: usize) {
    let name = |n| root.join(format!("filler{n}"));
    // Bounded, in case the volume is not small.
    let full = (0..100_000).find(|n| fs::write(name(*n), noise(each, *n as u64)).is_err()).unwrap();
    let gone = noise(full, 7).into_iter().enumerate().filter(|(_, byte)| byte & 1 == 0);
    gone.for_each(|(n, _)| fs::remove_file(name(n)).unwrap());
}

fn has_attribute_list(dump: &str) -> bool {
    dump.lines().any(|line| line.contains("0x20 "))
}

/// Files whose runs do not fit in the base record, so that they need extension records.
#[test]
fn files_with_attribute_lists_are_classified() {
    if !can_mount("/dev/fuse") {
        return;
    }
    let volume = Volume::new(24 * MIB, 4096);
    volume.mounted(|root| {
        fragment_free_space(root, 16_384);
        write(root, "pagefile.sys", &noise(2 << 20, 1));
        write(root, "big.dll", &pe(6 << 20, 2));
    });
    let dump = run("ntfscluster", &["-f", "-F", "/big.dll", arg(&volume.image)]);
    assert!(has_attribute_list(&dump), "the file has no attribute list: {dump}");
    let scan = volume.check();
    assert_eq!(bytes(&scan, Class::Page), 2 << 20);
    assert_eq!(bytes(&scan, Class::Code), 6 << 20);
}

/// An MFT whose runs are mostly in extension records, which are in the table itself.
#[test]
fn a_fragmented_mft_is_read_completely() {
    if !can_mount("/dev/fuse") {
        return;
    }
    let volume = Volume::new(12 * MIB, 1024);
    volume.mounted(|root| {
        write(root, "Windows/Temp/early", &noise(100_000, 1));
        fragment_free_space(root, 1024);
        let tiny = |n| root.join(format!("tiny{n}"));
        let full = (0..100_000).find(|n| fs::write(tiny(*n), b"").is_err()).unwrap();
        // The record of the last file is in the last run of the table. Removing other files frees clusters
        // for it.
        (0..5000).for_each(|n| fs::remove_file(root.join(format!("filler{n}"))).unwrap_or(()));
        append(&tiny(full - 1), &noise(100_000, 2));
        fs::rename(tiny(full - 1), root.join("Windows/Temp/late")).unwrap();
    });
    let dump = run("ntfscluster", &["-f", "-I", "0", arg(&volume.image)]);
    assert!(has_attribute_list(&dump), "the MFT has no attribute list: {}", dump.lines().count());
    let scan = volume.check();
    assert!(bytes(&scan, Class::Temporary) > 90_000);
}
