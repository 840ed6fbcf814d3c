//! Image files that are compressed as a whole, by the tools that publish them.

use std::fs;
use std::path::Path;
use std::process::Command;

use forebay_api::import::Format;

use crate::common::{Rig, convert, disk_bytes, have_qemu_img};

/// Extension of the file, and the command that compresses its standard input.
const TOOLS: [(&str, &str); 9] = [
    ("gz", "gzip -c"),
    ("xz", "xz -c"),
    ("blocks.xz", "xz -c --block-size=1MiB"),
    ("sha.xz", "xz -c -6e --check=sha256"),
    ("zst", "zstd -q -c"),
    ("long.zst", "zstd -q -c --long=27"),
    ("plain.zst", "zstd -q -c --no-check"),
    ("bz2", "bzip2 -c"),
    ("small.bz2", "bzip2 -c -1"),
];

/// Compresses `from` to `to`. False, with a message, if the tool is missing.
fn pack(command: &str, from: &Path, to: &Path) -> bool {
    let mut words = command.split(' ');
    let tool = words.next().unwrap();
    if !Command::new(tool).arg("--version").output().is_ok_and(|out| out.status.success()) {
        eprintln!("SKIPPED: this test requires {tool}");
        return false;
    }
    let (input, output) = (fs::File::open(from).unwrap(), fs::File::create(to).unwrap());
    Command::new(tool).args(words).stdin(input).stdout(output).status().unwrap().success()
}

#[tokio::test]
async fn compressed_files_are_imported() {
    let rig = Rig::new().await;
    let source = disk_bytes(9 << 20, 11);
    fs::write(rig.path("src.raw"), &source).unwrap();
    for (extension, command) in TOOLS {
        let path = rig.path(&format!("disk.raw.{extension}"));
        if pack(command, &rig.path("src.raw"), &path) {
            rig.import(extension, &path, Format::Auto).await.unwrap_or_else(|e| panic!("{extension}: {e:?}"));
            assert!(rig.contents(extension).await == source, "{extension} differs");
        }
    }
    if have_qemu_img() {
        convert(rig.dir.path(), "qcow2", &["-c"], "disk.qcow2");
        for (name, given) in [("auto", Format::Auto), ("given", Format::Qcow2)] {
            let path = rig.path("disk.qcow2.gz");
            assert!(pack("gzip -c", &rig.path("disk.qcow2"), &path));
            rig.import(name, &path, given).await.unwrap();
            assert!(rig.contents(name).await == source, "{name} differs");
        }
    }
}

/// `cat a.gz b.gz`, pigz, pxz and pbzip2 write several members, streams or frames.
#[tokio::test]
async fn several_members_are_one_file() {
    let rig = Rig::new().await;
    let source = disk_bytes(2 << 20, 3);
    let (first, second) = source.split_at(1_000_000);
    fs::write(rig.path("a"), first).unwrap();
    fs::write(rig.path("b"), second).unwrap();
    // A skippable frame (RFC 8878, section 3.1.2).
    let skippable = [&b"\x50\x2a\x4d\x18\x05\0\0\0"[..], b"hello"].concat();
    let cases: [(&str, &str, &[u8], &[u8]); 6] = [
        ("gz", "gzip -c", b"", b""),
        ("gz", "gzip -c", b"", &[0; 100_000]),
        ("gz", "gzip -c", b"", b"{\"metadata\": 1}FWx0\x01\x02\x03\x04\0\0\0\0\0\0\0\x1f"),
        ("xz", "xz -c", &[0; 8], &[0; 4]),
        ("bz2", "bzip2 -c", b"", b""),
        ("zst", "zstd -q -c", &skippable, &skippable),
    ];
    for (n, (extension, command, between, after)) in cases.into_iter().enumerate() {
        let (a, b) = (rig.path("a.packed"), rig.path("b.packed"));
        if !pack(command, &rig.path("a"), &a) || !pack(command, &rig.path("b"), &b) {
            continue;
        }
        let whole = [&fs::read(a).unwrap()[..], between, &fs::read(b).unwrap(), after].concat();
        let path = rig.path(&format!("disk-{n}.img.{extension}"));
        fs::write(&path, whole).unwrap();
        let name = format!("disk-{n}");
        rig.import(&name, &path, Format::Auto).await.unwrap_or_else(|e| panic!("{name}: {e:?}"));
        assert!(rig.contents(&name).await == source, "{name} differs");
    }
}

#[tokio::test]
async fn damaged_and_foreign_contents_are_refused() {
    let rig = Rig::new().await;
    let refused = async |bytes: &[u8], name: &str, part: &str| {
        fs::write(rig.path(name), bytes).unwrap();
        let (code, message) = rig.import("x", &rig.path(name), Format::Auto).await.expect_err(name);
        assert!(message.contains(part) && !message.contains('\n'), "{name}: {message}");
        assert_eq!(code, "bad_source", "{name}: {message}");
        assert!(rig.names().is_empty(), "{name} left something");
    };
    fs::write(rig.path("src"), disk_bytes(1 << 20, 5)).unwrap();
    fs::write(rig.path("text"), b"<!DOCTYPE html>\n<html></html>\n").unwrap();
    for (extension, command) in TOOLS {
        let (packed, text) = (rig.path("packed"), rig.path("packed-text"));
        if !pack(command, &rig.path("src"), &packed) || !pack(command, &rig.path("text"), &text) {
            continue;
        }
        let good = fs::read(&packed).unwrap();
        let name = format!("disk.{extension}");
        for len in [good.len() - 1, good.len() / 2, 20] {
            refused(&good[..len], &name, "ends early").await;
        }
        let mut bad = good.clone();
        let middle = good.len() / 2;
        bad[middle..middle + 8].iter_mut().for_each(|b| *b ^= 0x55);
        if extension != "plain.zst" {
            refused(&bad, &name, "is damaged").await;
        }
        refused(&[&good[..], b"more"].concat(), &name, "cannot decompress").await;
        refused(&fs::read(&text).unwrap(), &format!("page.{extension}"), "web page").await;
    }
    fs::write(rig.path("inner.gz"), b"\x1f\x8b\x08\0\0\0\0\0\0\x03\0\0\0\0\0").unwrap();
    if pack("gzip -c", &rig.path("inner.gz"), &rig.path("twice")) {
        refused(&fs::read(rig.path("twice")).unwrap(), "twice.gz.gz", "a gzip archive; unpack it first")
            .await;
    }
    // A frame that states a window of 1 GiB.
    refused(b"\x28\xb5\x2f\xfd\0\xa0\x01\0\0", "window.zst", "of memory").await;
}

#[tokio::test]
async fn an_explicit_raw_format_takes_the_compressed_bytes() {
    let rig = Rig::new().await;
    let bytes = [&b"BZh9"[..], &[7; 508]].concat();
    fs::write(rig.path("disk"), &bytes).unwrap();
    rig.import("disk", &rig.path("disk"), Format::Raw).await.unwrap();
    assert!(rig.contents("disk").await == bytes);
}
