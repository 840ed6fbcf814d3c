//! Runs all fuzz targets with their checked-in corpus on the stable toolchain, as a regression test.
//! `cargo run -p xtask -- corpora` writes the samples again, by the tools that make file systems.

#[path = "../../../format/tests/corpus/mod.rs"]
mod stored;

use std::path::Path;

use crate::common::*;
use forebay_guest::{Class, ClassMap, fuzzing};
use stored::{check_programs, corpus, put, run_inputs};

#[test]
fn every_input_of_the_corpus_passes() {
    fuzzing::TARGETS.iter().for_each(run_inputs);
}

#[test]
fn every_target_has_a_program() {
    check_programs(fuzzing::TARGETS);
}

/// The seeds are complete disks: a scan finds all classes.
#[test]
fn scans_of_the_seeds_find_all_classes() {
    for name in ["ntfs", "ext4", "ext2", "xfs"] {
        let packed = std::fs::read(corpus("guest_disk").join(name)).unwrap();
        let scan = fuzzing::check_scan(&mut fuzzing::SparseDisk::unpack(&packed));
        let page = if name == "ntfs" { Class::Page } else { Class::Temporary };
        for class in [page, Class::Code, Class::Metadata, Class::Free] {
            assert!(bytes(&scan, class) > 0, "{name}: no {class:?}");
        }
    }
}

/// Not the same in each run, so they are only written.
#[test]
fn samples_of_tools() {
    if std::env::var_os("FOREBAY_WRITE_CORPUS").is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let disk = |name: &str, bytes: u64, make: &dyn Fn(&Path)| {
        let image = image(dir.path(), name, bytes);
        make(&image);
        let mut disk = std::fs::read(&image).unwrap();
        // Clears unused logs, which consist of 0xff bytes and which no parser reads.
        disk.chunks_mut(512).filter(|unit| unit.iter().all(|b| *b == 0xff)).for_each(|unit| unit.fill(0));
        disk
    };
    let write = |name: &str, disk: &[u8]| put("guest_disk", name, &fuzzing::pack(disk));
    let source = dir.path().join("source");
    let mut ntfs = disk("ntfs", 4 << 20, &|image| {
        run("mkfs.ntfs", &["-q", "-F", "-Q", "-c", "1024", arg(image)]);
        let mut program = vec![0; 20_000];
        program[..0x100].copy_from_slice(&pe(0x100, 1));
        for (name, content) in [("pagefile.sys", &vec![0; 20_000]), ("a.dll", &program)] {
            std::fs::write(&source, content).unwrap();
            run("ntfscp", &["-f", "-q", arg(image), arg(&source), name]);
        }
    });
    // Clears `$UpCase`, which is large and not used.
    let dump = run("ntfscluster", &["-f", "-I", "10", arg(&dir.path().join("ntfs"))]);
    let numbers =
        |line: &str| line.split_whitespace().map_while(|w| w.parse::<usize>().ok()).collect::<Vec<_>>();
    for run in dump.lines().map(numbers).filter(|numbers| numbers.len() == 3) {
        ntfs[run[1] * 1024..][..run[2] * 1024].fill(0);
    }
    write("ntfs", &ntfs);
    let tree = dir.path().join("tree");
    write_small_tree(&tree);
    for name in ["ext4", "ext2"] {
        let options =
            ["-q", "-F", "-b", "1024", "-N", "32", "-O", "^has_journal", "-d", arg(&tree), "-t", name];
        let make = |image: &Path| drop(run("mke2fs", &[&options[..], &[arg(image)]].concat()));
        write(name, &disk(name, 1 << 20, &make));
    }
    let xfs = disk("xfs", 300 << 20, &|image| {
        let list = dir.path().join("list");
        let program = tree.join("lib.so");
        let file = |name: &str| format!("{name} ---644 0 0 {}\n", arg(&program));
        let content = format!("/boot\n0 0\nd--755 0 0\ntmp d--755 0 0\n{}$\n{}$\n", file("x"), file("y"));
        std::fs::write(&list, content).unwrap();
        run("mkfs.xfs", &["-q", "-f", "-p", arg(&list), arg(image)]);
    });
    write("xfs", &xfs);
    let mut tables = disk("tables", 1 << 20, &|image| {
        let script = dir.path().join("script");
        std::fs::write(&script, "label: gpt\nfirst-lba: 64\nstart=64,size=256\nstart=512,size=256\n")
            .unwrap();
        let command = format!("sfdisk -q {} < {}", arg(image), arg(&script));
        run("sh", &["-c", &command]);
    });
    write("gpt", &tables);
    replace_by_mbr(&mut tables);
    write("mbr", &tables);
}

#[test]
fn samples_are_current() {
    let map = ClassMap::from_ranges(
        1 << 20,
        [(0..1, Class::Metadata), (300..1000, Class::Free), (1000..90_000, Class::Code)],
    );
    put("class_map", "sample", &map.encode());
    put("class_map", "empty", &ClassMap::new(0).encode());
}

/// Replaces a GPT by an MBR with a primary and an extended partition, and an EBR with the same entries.
fn replace_by_mbr(disk: &mut [u8]) {
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    for (slot, (kind, first, sectors)) in [(0x83, 8_u32, 8_u32), (0x0f, 32, 512)].into_iter().enumerate() {
        let entry = &mut disk[446 + 16 * slot..][..16];
        entry[4] = kind;
        entry[8..12].copy_from_slice(&first.to_le_bytes());
        entry[12..].copy_from_slice(&sectors.to_le_bytes());
    }
    disk[512..1024].fill(0);
    disk.copy_within(0..512, 32 * 512);
}

fn write_small_tree(tree: &Path) {
    let mut program = vec![1; 9000];
    program[..64].copy_from_slice(&elf(64, 1));
    write(tree, "lib.so", &program);
    write(tree, "tmp/x", &program);
}
