//! Partition tables created by sfdisk, and swap areas created by mkswap.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::*;
use forebay_guest::{Class, Content};

const MIB: u64 = 1 << 20;

/// Partitions an image, and returns the offsets and lengths of the partitions in bytes.
fn partition(image: &Path, table: &str) -> Vec<(u64, u64)> {
    let mut command = Command::new("sfdisk");
    command.env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default()));
    command.args(["-q", arg(image)]).stdin(Stdio::piped()).stderr(Stdio::inherit());
    let mut sfdisk = command.spawn().unwrap_or_else(|e| panic!("sfdisk: {e} (make setup installs it)"));
    sfdisk.stdin.take().unwrap().write_all(table.as_bytes()).unwrap();
    assert!(sfdisk.wait().unwrap().success());
    let dump = run("sfdisk", &["-d", arg(image)]);
    let number = |line: &str, key: &str| -> u64 {
        line.split(key).nth(1).unwrap().split(',').next().unwrap().trim().parse().unwrap()
    };
    let lines = dump.lines().filter(|l| l.contains("start=") && !l.contains("type=5"));
    let mut found: Vec<_> = lines.map(|l| (number(l, "start=") * 512, number(l, "size=") * 512)).collect();
    found.sort();
    found
}

/// Creates the content of a partition in a separate file, and copies it to the image.
fn write_partition(image: &Path, (start, len): (u64, u64), make: impl FnOnce(&Path)) {
    let part = image.with_extension("part");
    fs::File::create(&part).unwrap().set_len(len).unwrap();
    make(&part);
    let content = fs::read(&part).unwrap();
    fs::OpenOptions::new().write(true).open(image).unwrap().write_all_at(&content, start).unwrap();
}

fn fill(image: &Path, partitions: &[(u64, u64)]) {
    write_partition(image, partitions[0], |p| drop(run("mkfs.ntfs", &["-q", "-F", "-Q", arg(p)])));
    write_partition(image, partitions[1], |p| drop(run("mkswap", &[arg(p)])));
    write_partition(image, partitions[2], |p| drop(run("mke2fs", &["-q", "-F", arg(p)])));
}

fn ranges(partitions: &[(u64, u64)], contents: &[Content]) -> Vec<(std::ops::Range<u64>, Content)> {
    partitions.iter().zip(contents).map(|((start, len), content)| (*start..start + len, *content)).collect()
}

#[test]
fn partitions_of_gpt_and_mbr_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let gpt = "label: gpt\n,10M\n,10M\n,10M\n,2M\n";
    let mbr = "label: dos\n,10M\n,10M\n,10M\n,2M\n";
    // The third partition is the extended one, which contains the logical partitions.
    let logical = "label: dos\n,10M\n,10M\n,50M,E\n,10M,L\n,10M,L\n";
    use Content::{Ext, Ntfs, Swap, Unknown};
    for (name, table, contents) in [
        ("gpt", gpt, &[Ntfs, Swap, Ext, Unknown][..]),
        ("mbr", mbr, &[Ntfs, Swap, Ext, Unknown]),
        ("logical", logical, &[Ntfs, Swap, Ext, Unknown]),
    ] {
        let image = image(dir.path(), name, 96 * MIB);
        let partitions = partition(&image, table);
        fill(&image, &partitions);
        let scan = scan_file(&image);
        assert_eq!(scan.volumes, ranges(&partitions, contents), "{name}");
        let (start, len) = (partitions[1].0 / 4096, partitions[1].1 / 4096);
        assert_eq!(scan.map.class_of(start), Class::Metadata, "the header of the swap area");
        assert!((start + 1..start + len).all(|block| scan.map.class_of(block) == Class::Page));
        assert_eq!(scan.map.class_of(0), Class::Metadata);
        assert!(scan.map.runs_in(partitions[2].0 / 4096..96 * MIB / 4096).any(|(_, c)| c == Class::Free));
        if name == "gpt" {
            // Gaps between partitions are `Other`; the second copy of the table is at the end.
            assert_eq!(scan.map.class_of(96 * MIB / 4096 - 1), Class::Metadata);
            assert_eq!(scan.map.class_of(50 * MIB / 4096), Class::Other);
        }
    }
}

#[test]
fn the_copy_of_a_damaged_gpt_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let image = image(dir.path(), "disk", 64 * MIB);
    let partitions = partition(&image, "label: gpt\n,10M\n,10M\n,10M\n");
    fill(&image, &partitions);
    let expected = scan_file(&image).volumes;
    let mut disk = fs::read(&image).unwrap();
    let whole = |disk: &[u8]| scan_bytes(disk).volumes;
    for (at, what) in [(512 + 40, "a header"), (1024 + 33, "an array"), (510, "the first sector")] {
        let mut damaged = disk.clone();
        damaged[at] ^= 1;
        assert_eq!(whole(&damaged), expected, "{what}");
    }
    // Without a valid copy, the disk is one volume with unknown content.
    let end = disk.len();
    disk[512 + 40] ^= 1;
    disk[end - 512 + 40] ^= 1;
    assert_eq!(whole(&disk), [(0..end as u64, Content::Unknown)]);
}

/// A partition at sector 63, as created by old Windows releases: its clusters are not aligned to blocks.
#[test]
fn files_of_an_unaligned_partition_are_classified() {
    let dir = tempfile::tempdir().unwrap();
    let image = image(dir.path(), "disk", 24 * MIB);
    let partitions = partition(&image, "label: dos\nstart=63, size=40000, type=7\n");
    write_partition(&image, partitions[0], |p| {
        run("mkfs.ntfs", &["-q", "-F", "-Q", "-c", "4096", arg(p)]);
        let source = p.with_extension("source");
        fs::write(&source, noise(100 * 4096, 1)).unwrap();
        run("ntfscp", &["-f", "-q", arg(p), arg(&source), "pagefile.sys"]);
    });
    let scan = scan_file(&image);
    assert_eq!(scan.volumes, ranges(&partitions, &[Content::Ntfs]));
    // The first and last block of the file contain other data too.
    assert_eq!(bytes(&scan, Class::Page), 99 * 4096);
}

#[test]
fn swap_on_a_whole_disk_and_empty_disks_are_scanned() {
    let dir = tempfile::tempdir().unwrap();
    let image = image(dir.path(), "swap", 8 * MIB);
    run("mkswap", &[arg(&image)]);
    let scan = scan_file(&image);
    assert_eq!(scan.volumes, [(0..8 * MIB, Content::Swap)]);
    assert_eq!(bytes(&scan, Class::Page), 8 * MIB - 4096);
    for len in [0, 1, 511, 512, 4096, 100_000] {
        let scan = scan_bytes(&vec![0; len]);
        assert_eq!(bytes(&scan, Class::Other), (len as u64).next_multiple_of(4096));
    }
}
