//! ext volumes created by e2fsprogs and changed by debugfs and the kernel. The scan is compared with the
//! output of dumpe2fs and debugfs for every block.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;

use crate::common::*;
use forebay_guest::{Class, Content};

const MIB: u64 = 1 << 20;
const INODES: usize = 1200;

struct Volume {
    image: PathBuf,
    bytes: u64,
    dir: tempfile::TempDir,
}

/// Parses `12-15` or `12` as first number and count.
fn range(text: &str) -> Option<(u64, u64)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last): (u64, u64) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (first <= last).then_some((first, last - first + 1))
}

impl Volume {
    fn new(bytes: u64, options: &[&str]) -> Volume {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        linux_tree(&tree);
        let image = image(dir.path(), "disk", bytes);
        let inodes = INODES.to_string();
        let fixed = ["-q", "-F", "-N", &inodes, "-d", arg(&tree), arg(&image)];
        run("mke2fs", &[options, &fixed].concat());
        Volume { image, bytes, dir }
    }

    fn debugfs(&self, options: &[&str], commands: &str) -> String {
        let script = self.dir.path().join("script");
        fs::write(&script, commands).unwrap();
        run("debugfs", &[options, &["-f", arg(&script), arg(&self.image)]].concat())
    }

    fn expected(&self) -> Expected {
        let mut expected = Expected::new(self.bytes);
        let groups = run("dumpe2fs", &[arg(&self.image)]);
        let value = |key: &str| {
            let line = groups.lines().find_map(|l| l.strip_prefix(key));
            line.and_then(|l| l.trim().parse::<u64>().ok())
        };
        let block = value("Block size:").unwrap();
        // dumpe2fs lists only the first block of each free cluster.
        let cluster = value("Cluster size:").unwrap_or(block) / block;
        let mut claim = |text: &str, class| {
            if let Some((first, mut count)) = range(text) {
                if class == Class::Free {
                    count = count.next_multiple_of(cluster);
                }
                expected.claim(first * block, count * block, class);
            }
        };
        for line in groups.lines().skip_while(|l| !l.starts_with("Group 0")) {
            if let Some(free) = line.trim().strip_prefix("Free blocks: ") {
                free.split(", ").for_each(|text| claim(text, Class::Free));
                continue;
            }
            for part in line.split(", ") {
                let is_metadata =
                    ["superblock", "descriptor", "GDT", "bitmap", "table"].iter().any(|w| part.contains(w));
                if let (true, Some((_, at))) = (is_metadata, part.split_once(" at ")) {
                    claim(at.split_whitespace().next().unwrap(), Class::Metadata);
                }
            }
        }
        if let Some(mmp) = value("MMP block number:") {
            claim(&mmp.to_string(), Class::Metadata);
        }
        let count = value("Inode count:").unwrap();
        let paths = self.paths(count);
        let image = fs::read(&self.image).unwrap();
        let script: String = (1..=count).map(|n| format!("stat <{n}>\n")).collect();
        let stats = self.debugfs(&[], &script);
        for stat in stats.split("debugfs: stat <").skip(1) {
            let number: u64 = stat.split('>').next().unwrap().parse().unwrap();
            let word = |key: &str| stat.split(key).nth(1).and_then(|rest| rest.split_whitespace().next());
            if word("Links:") == Some("0") || number == 1 {
                continue;
            }
            let mut runs = Vec::new();
            let list = stat.lines().skip_while(|l| !matches!(*l, "EXTENTS:" | "BLOCKS:"));
            for item in list.skip(1).flat_map(|l| l.split(", ")).filter(|item| item.starts_with('(')) {
                let (label, blocks) = item[1..].split_once("):").unwrap();
                runs.push((range(label.trim_end_matches("[u]")).map(|r| r.0), range(blocks).unwrap()));
            }
            let first = runs.iter().find(|(logical, _)| *logical == Some(0)).map(|(_, run)| run.0);
            let head = first.map_or(&[][..], |at| &image[(at * block) as usize..][..4096]);
            let class = self.class(number, word("Type:").unwrap(), paths.get(&number), head);
            for (logical, (first, count)) in runs {
                let header =
                    if class == Class::Page && logical == Some(0) { 4096 / block.min(4096) } else { 0 };
                let class = if logical.is_none() { Class::Metadata } else { class };
                if class != Class::Other {
                    expected.claim(first * block, header * block, Class::Metadata);
                    expected.claim((first + header) * block, (count - header) * block, class);
                }
            }
            if let Some(attributes) = word("File ACL:").filter(|block| *block != "0") {
                expected.claim(attributes.parse::<u64>().unwrap() * block, block, Class::Metadata);
            }
        }
        expected
    }

    /// Returns all paths of each inode.
    fn paths(&self, count: u64) -> HashMap<u64, Vec<String>> {
        let numbers: Vec<_> = (11..=count).map(|n| n.to_string()).collect();
        let mut paths: HashMap<u64, Vec<String>> = HashMap::new();
        for line in self.debugfs(&[], &format!("ncheck {}\n", numbers.join(" "))).lines() {
            if let Some((number, path)) = line.split_once('\t')
                && let Ok(number) = number.parse()
            {
                paths.entry(number).or_default().push(path.replace("//", "/"));
            }
        }
        paths
    }

    fn class(&self, inode: u64, kind: &str, paths: Option<&Vec<String>>, head: &[u8]) -> Class {
        let is_temporary =
            |path: &String| path.starts_with("/tmp/") || path[1..].starts_with("home/anna/.cache/");
        match () {
            () if inode < 11 || kind == "directory" || paths.is_none() => Class::Metadata,
            () if kind != "regular" => Class::Other,
            () if paths.is_some_and(|paths| paths.iter().all(is_temporary)) => Class::Temporary,
            () if head.starts_with(b"\x7fELF") || head.starts_with(b"MZ") => Class::Code,
            () if head.get(4086..4096) == Some(b"SWAPSPACE2") => Class::Page,
            () => Class::Other,
        }
    }

    fn check(&self) {
        let scan = scan_file(&self.image);
        assert_eq!(scan.volumes, [(0..self.bytes, Content::Ext)]);
        for class in [Class::Page, Class::Temporary, Class::Code, Class::Metadata, Class::Free] {
            assert!(bytes(&scan, class) > 50_000, "{class:?}: {:?}", scan.map.bytes_per_class());
        }
        self.expected().compare(&scan);
    }
}

#[test]
fn all_blocks_have_the_classes_that_debugfs_reports() {
    let variants: [&[&str]; 10] = [
        &["-t", "ext4", "-b", "4096"],
        &["-t", "ext4", "-b", "1024"],
        &["-t", "ext4", "-b", "4096", "-O", "^flex_bg,^64bit,^metadata_csum,uninit_bg", "-g", "2048"],
        &["-t", "ext4", "-b", "1024", "-O", "meta_bg,^resize_inode", "-g", "512"],
        &["-t", "ext4", "-b", "4096", "-O", "sparse_super2,^has_journal", "-g", "2048"],
        &["-t", "ext4", "-b", "4096", "-O", "bigalloc", "-C", "16384"],
        &["-t", "ext4", "-b", "2048", "-O", "mmp,quota,project", "-I", "512"],
        &["-t", "ext2", "-b", "1024"],
        &["-t", "ext2", "-b", "4096", "-r", "1", "-I", "128"],
        &["-t", "ext3", "-b", "1024", "-J", "size=4"],
    ];
    for options in variants {
        println!("{options:?}");
        let volume = Volume::new(64 * MIB, options);
        // Free gaps, a fragmented file with an extent tree or indirect blocks, and a temporary file.
        let removals: String = (0..250)
            .step_by(2)
            .map(|n| format!("rm \"home/anna/many/a file with a rather long name {n}\"\n"))
            .collect();
        volume.debugfs(&["-w"], &removals);
        let source = volume.dir.path().join("source");
        fs::write(&source, pe(15_000_000, 30)).unwrap();
        volume.debugfs(
            &["-w"],
            &format!(
                "write {0} big.dll\nrm /usr/lib/lib3.so\nmkdir tmp/new\nwrite {0} tmp/new/big\n",
                source.display()
            ),
        );
        volume.check();
    }
}

#[test]
fn changes_by_the_kernel_are_classified() {
    if !can_mount("/dev/loop-control") {
        return;
    }
    let volume = Volume::new(64 * MIB, &["-t", "ext4", "-b", "4096"]);
    volume.check();
    {
        let mounted = Mounted::kernel(&volume.image);
        let root = mounted.root.path();
        fs::rename(root.join("tmp/deep"), root.join("home/deep")).unwrap();
        fs::remove_file(root.join("var-program")).unwrap();
        fs::rename(root.join("usr/share/data"), root.join("tmp/data")).unwrap();
        (0..250).step_by(3).for_each(|n| {
            fs::remove_file(root.join(format!("home/anna/many/a file with a rather long name {n}"))).unwrap();
        });
        for n in 0..300 {
            write(root, &format!("tmp/more/entry number {n} of the new ones"), &noise(n * 20, n as u64));
        }
        // Enough extents for an extent tree with nodes.
        write_fragmented(&root.join("sparse.so"), 900);
        set_attribute(&root.join("tmp/data"), 3000);
    }
    let stat = volume.debugfs(&[], "stat sparse.so\n");
    assert!(stat.contains("(ETB0)"), "the file has no extent tree block: {stat}");
    volume.check();
}
