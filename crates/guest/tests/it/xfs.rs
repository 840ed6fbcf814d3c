//! XFS volumes created by mkfs.xfs and filled by the kernel. The scan is compared with the output of xfs_db
//! for every block.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use crate::common::*;
use forebay_guest::{Class, Content, Scan};

/// The minimum size for mkfs.xfs.
const BYTES: u64 = 300 << 20;

struct Volume {
    image: PathBuf,
    _dir: tempfile::TempDir,
}

impl Volume {
    fn new(options: &[&str]) -> Volume {
        let dir = tempfile::tempdir().unwrap();
        let image = image(dir.path(), "disk", BYTES);
        run("mkfs.xfs", &[options, &["-q", "-f", arg(&image)]].concat());
        Volume { image, _dir: dir }
    }

    fn db(&self, commands: &[&str]) -> String {
        let mut args = vec!["-r"];
        commands.iter().for_each(|command| args.extend(["-c", command]));
        args.push(arg(&self.image));
        run("xfs_db", &args)
    }

    /// Determines the expected classes from lines such as `block 24 (0/24) type data inode 131 b`, one for
    /// each block.
    fn expected(&self) -> Expected {
        let head = self.db(&["sb 0", "p blocksize dblocks agblocks agcount"]);
        let value = |key: &str| -> u64 {
            let line = head.lines().find_map(|l| l.strip_prefix(key)).unwrap();
            line.trim_start_matches([' ', '=']).parse().unwrap()
        };
        let (block, blocks) = (value("blocksize"), value("dblocks"));
        let (group_blocks, groups) = (value("agblocks"), value("agcount"));
        let mut commands = vec!["blockget -n".to_owned()];
        for group in 0..groups {
            let count = group_blocks.min(blocks - group * group_blocks);
            let number = group * group_blocks.next_power_of_two();
            commands.extend([format!("fsblock {number}"), format!("blockuse -n -c {count}")]);
        }
        let commands: Vec<_> = commands.iter().map(String::as_str).collect();
        let names = self.names();
        let mut expected = Expected::new(BYTES);
        // Bytes of each file so far: the first page of a swap file is its header.
        let mut seen: HashMap<&str, u64> = HashMap::new();
        for line in self.db(&commands).lines().filter(|l| l.starts_with("block ")) {
            let words: Vec<_> = line.split_whitespace().collect();
            let location = words[2].trim_matches(['(', ')']);
            let (group, within) = location.split_once('/').unwrap();
            let at = (group.parse::<u64>().unwrap() * group_blocks + within.parse::<u64>().unwrap()) * block;
            let class = match words[4] {
                "free1" | "free2" => Class::Free,
                "unknown" => panic!("{line}"),
                "symlink" => Class::Other,
                // xfs_db reports the blocks of a file's B+tree as data.
                "data" if [b"BMA3", b"BMAP"].contains(&&self.magic(at)) => Class::Metadata,
                "data" => {
                    let (number, names) =
                        names.get_key_value(words[6]).map_or(("", &[][..]), |(n, p)| (n, p));
                    let seen = seen.entry(number).or_default();
                    *seen += block;
                    match class(names) {
                        Class::Page if *seen <= 4096 => Class::Metadata,
                        class => class,
                    }
                }
                _ => Class::Metadata,
            };
            if class != Class::Other {
                expected.claim(at, block, class);
            }
        }
        expected
    }

    /// Returns the first bytes of a block.
    fn magic(&self, at: u64) -> [u8; 4] {
        let mut magic = [0; 4];
        fs::File::open(&self.image).unwrap().read_exact_at(&mut magic, at).unwrap();
        magic
    }

    /// Returns all paths of each inode.
    fn names(&self) -> HashMap<String, Vec<String>> {
        let mut names: HashMap<String, Vec<String>> = HashMap::new();
        for line in self.db(&["blockget -n", "ncheck"]).lines() {
            if let Some((number, path)) = line.trim().split_once(' ') {
                names.entry(number.to_owned()).or_default().push(path.trim().to_owned());
            }
        }
        names
    }

    fn check(&self) -> Scan {
        let scan = scan_file(&self.image);
        assert_eq!(scan.volumes, [(0..BYTES, Content::Xfs)]);
        self.expected().compare(&scan);
        scan
    }
}

/// Returns the class of a file by its paths, which imply the contents in these tests.
fn class(paths: &[String]) -> Class {
    let is_temporary = |path: &String| path.starts_with("tmp/") || path.starts_with("home/anna/.cache/");
    let is_program = |path: &String| ["program", ".so", ".dll"].iter().any(|end| path.ends_with(end));
    match () {
        () if paths.is_empty() => Class::Metadata,
        () if paths.iter().all(is_temporary) => Class::Temporary,
        () if paths.iter().any(is_program) => Class::Code,
        () if paths == ["swapfile"] => Class::Page,
        () => Class::Other,
    }
}

fn change(root: &Path) {
    for n in (0..250).step_by(2) {
        fs::remove_file(root.join(format!("home/anna/many/a file with a rather long name {n}"))).unwrap();
    }
    fs::rename(root.join("tmp/deep"), root.join("home/deep")).unwrap();
    fs::remove_file(root.join("var-program")).unwrap();
    fs::rename(root.join("usr/share/data"), root.join("tmp/data")).unwrap();
    // Enough extents and names for B+trees.
    write_fragmented(&root.join("sparse.so"), 600);
    write_fragmented(&root.join("tmp/sparse"), 40);
    set_attribute(&root.join("tmp/sparse"), 3000);
    set_attribute(&root.join("sparse.so"), 20_000);
    for n in 0..600 {
        write(root, &format!("tmp/more/entry number {n} of the new ones"), &noise(n / 50, n as u64));
    }
    std::os::unix::fs::symlink("x".repeat(1000), root.join("longer-link")).unwrap();
}

#[test]
fn all_blocks_have_the_classes_that_xfs_db_reports() {
    if !can_mount_kind("xfs") {
        return;
    }
    let variants: [&[&str]; 4] = [
        &[],
        &["-m", "rmapbt=1", "-i", "nrext64=1"],
        &["-b", "size=1024", "-i", "size=512"],
        &["-n", "size=16384", "-i", "size=2048", "-m", "reflink=0,finobt=0"],
    ];
    for options in variants {
        println!("{options:?}");
        let volume = Volume::new(options);
        linux_tree(Mounted::kernel(&volume.image).root.path());
        volume.check();
        change(Mounted::kernel(&volume.image).root.path());
        let scan = volume.check();
        for class in [Class::Page, Class::Temporary, Class::Code, Class::Metadata, Class::Free] {
            assert!(bytes(&scan, class) > 50_000, "{class:?}: {:?}", scan.map.bytes_per_class());
        }
    }
}

/// Requires no root: mkfs.xfs creates the files from a list. Also tests version 4, which new kernels do not
/// mount.
#[test]
fn volumes_filled_by_mkfs_are_classified() {
    for options in [&[][..], &["-m", "crc=0", "-n", "ftype=0"]] {
        let dir = tempfile::tempdir().unwrap();
        let (program, other) = (dir.path().join("program"), dir.path().join("other"));
        fs::write(&program, elf(100_000, 1)).unwrap();
        fs::write(&other, noise(100_000, 2)).unwrap();
        let file = |name, from| format!("{name} ---644 0 0 {}\n", arg(from));
        let deep: String = (0..100).map(|n| file(format!("a-long-name-for-the-file-{n}"), &other)).collect();
        let temporary = file("x".to_owned(), &program);
        let rest = file("program".to_owned(), &program) + &file("z".to_owned(), &other);
        let content = format!(
            "/boot\n0 0\nd--755 0 0\ntmp d--755 0 0\n{temporary}deep d--755 0 0\n{deep}$\n$\n{rest}$\n"
        );
        let list = dir.path().join("list");
        fs::write(&list, content).unwrap();
        let scan = Volume::new(&[options, &["-p", arg(&list)]].concat()).check();
        let each = 100_000_u64.next_multiple_of(4096);
        assert_eq!(bytes(&scan, Class::Code), each);
        assert_eq!(bytes(&scan, Class::Temporary), 101 * each);
    }
}
