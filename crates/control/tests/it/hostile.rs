//! Truncated, damaged and malicious image files: they are refused with a clear message and leave nothing
//! behind.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use forebay_api::import::Format;

use crate::common::{Rig, Rng, convert, disk_bytes, have_qemu_img, qemu_img};

async fn refused(rig: &Rig, file: &str, part: &str) {
    let (code, message) = rig.import("x", &rig.path(file), Format::Auto).await.expect_err(file);
    assert!(message.contains(part), "{file}: {message}");
    assert!(!message.contains('\n'), "{message}");
    assert_ne!(code, "internal", "{file}: {message}");
    assert!(rig.names().is_empty(), "{file} left something");
}

#[tokio::test]
async fn files_that_are_no_disk_images_are_refused() {
    let rig = Rig::new().await;
    let write = |name: &str, bytes: &[u8]| fs::write(rig.path(name), bytes).unwrap();
    write("empty", b"");
    refused(&rig, "empty", "nothing to import").await;
    refused(&rig, "missing", "no such file as the server sees").await;
    fs::create_dir(rig.path("directory")).unwrap();
    refused(&rig, "directory", "is a directory").await;
    assert!(Command::new("mkfifo").arg(rig.path("pipe")).status().unwrap().success());
    refused(&rig, "pipe", "is a pipe").await;
    write("a.xz", b"\xfd7zXZ\0and so on");
    refused(&rig, "a.xz", "cannot decompress").await;
    write("a.7z", b"7z\xbc\xaf\x27\x1cand so on");
    refused(&rig, "a.7z", "unpack it first").await;
    let mut tar = vec![b'a'; 1024];
    tar[257..262].copy_from_slice(b"ustar");
    write("a.ova", &tar);
    refused(&rig, "a.ova", "header of the archive").await;
    let e = rig.import("x", Path::new("relative"), Format::Auto).await.unwrap_err();
    assert!(e.1.contains("not an absolute path"), "{e:?}");
}

#[tokio::test]
async fn files_that_depend_on_other_files_are_refused() {
    if !have_qemu_img() {
        return;
    }
    let rig = Rig::new().await;
    let dir = rig.dir.path();
    fs::write(rig.path("src.raw"), disk_bytes(1 << 20, 1)).unwrap();
    qemu_img(&["create", "-q", "-f", "qcow2", "-b", "src.raw", "-F", "raw", "child.qcow2"], dir);
    refused(&rig, "child.qcow2", "backing file").await;
    qemu_img(&["create", "-q", "-f", "qcow2", "-o", "data_file=data.raw", "outside.qcow2", "1M"], dir);
    refused(&rig, "outside.qcow2", "another file").await;
    convert(dir, "vmdk", &[], "base.vmdk");
    qemu_img(&["create", "-q", "-f", "vmdk", "-b", "base.vmdk", "-F", "vmdk", "delta.vmdk"], dir);
    refused(&rig, "delta.vmdk", "delta disk").await;
    for (format, name, part) in [("qed", "a.qed", "QED")] {
        convert(dir, format, &[], name);
        refused(&rig, name, part).await;
    }
}

/// Text, other formats, and names and sizes that contradict a raw disk are refused; `--format raw` overrides.
#[tokio::test]
async fn what_is_not_known_is_not_a_raw_disk() {
    let rig = Rig::new().await;
    let binary = [&b"\xeb\x63\x90\0"[..], &[3; 4092]].concat();
    let with = |magic: &[u8]| [magic, &binary[magic.len()..]].concat();
    let text = |start: &str| start.as_bytes().repeat(8192 / start.len() + 1)[..8192].to_vec();
    let utf16: Vec<u8> = "\u{feff}text\n".repeat(100).encode_utf16().flat_map(u16::to_le_bytes).collect();
    let files: [(&str, Vec<u8>, &str); 26] = [
        ("page", text("<!DOCTYPE html>\n<html>"), "web page"),
        ("page2", text("\u{feff}  <HTML lang=de>"), "web page"),
        (
            "pointer",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 2\n".to_vec(),
            "Git LFS",
        ),
        ("passwd", text("root:x:0:0:root:/root:/bin/bash\n"), "text file"),
        ("padded", [&b"a few words\n"[..], &[0; 500]].concat(), "text file"),
        ("utf16", utf16, "text file"),
        ("latin1", b"Gr\xf6\xdfe ".repeat(512), "text file"),
        ("script", with(b"#!/bin/sh\n#V2.0 Format\n"), "script"),
        ("lz4", with(b"\x04\x22\x4d\x18"), "LZ4"),
        ("lz4old", with(b"\x02\x21\x4c\x18"), "LZ4"),
        ("skip", with(b"\x5e\x2a\x4d\x18"), "zstd"),
        ("lzop", with(b"\x89LZO\0\r\n\x1a\n"), "lzop"),
        ("wim", with(b"MSWIM\0\0\0"), "WIM"),
        ("evf", with(b"EVF\x09\x0d\x0a\xff\0"), "EnCase"),
        ("vma", with(b"VMA\0"), "VMA"),
        ("sesparse", with(b"\xbe\xba\xfe\xca\0\0\0\0"), "seSparse"),
        ("cowd", with(b"COWD"), "COWD"),
        ("disk.vmdk", binary.clone(), "name"),
        ("d-flat.VMDK", binary.clone(), "name"),
        ("disk.vhd", binary.clone(), "name"),
        ("disk.img.gz", binary.clone(), "name"),
        ("disk.html", binary.clone(), "name"),
        ("odd", binary[..1000].to_vec(), "whole number of sectors"),
        ("odd.iso", vec![0; 4097], "whole number of sectors"),
        ("gpt4k", [&binary[..], b"EFI PART", &[1; 4088]].concat(), "sectors of 4096 bytes"),
        ("vhd", [&binary[..512], &b"conectix"[..], &[0; 504]].concat(), "footers"),
    ];
    for (name, bytes, part) in &files {
        fs::write(rig.path(name), bytes).unwrap();
        refused(&rig, name, part).await;
    }
    for (name, bytes, _) in &files {
        rig.import(name, &rig.path(name), Format::Raw).await.unwrap_or_else(|e| panic!("{name}: {e:?}"));
        assert!(rig.contents(name).await[..bytes.len()] == bytes[..], "{name}");
    }
    let gpt512 = [&binary[..512], &b"EFI PART"[..], &[1; 7672]].concat();
    for (name, bytes) in
        [("boot.img", &binary), ("disk", &binary), ("gpt512.raw", &gpt512), ("zero.iso", &vec![0; 512])]
    {
        fs::write(rig.path(name), bytes).unwrap();
        rig.import(name, &rig.path(name), Format::Auto).await.unwrap_or_else(|e| panic!("{name}: {e:?}"));
    }
}

/// The first lines and encodings of descriptors that occur, as QEMU reads them and beyond. Names of extents
/// are bytes.
#[tokio::test]
async fn descriptors_are_recognized_by_their_lines() {
    let rig = Rig::new().await;
    let flat = [vec![0xeb, 0, 1], vec![b'r'; 4093]].concat();
    fs::write(rig.path("d-flat.vmdk"), &flat).unwrap();
    let body = "version=1\nCID=7e5b80a7\nparentCID=ffffffff\ncreateType=\"monolithicFlat\"\nRW 8 FLAT \"d-flat.vmdk\" 0\n";
    let marked = format!("# Disk DescriptorFile\n{body}");
    let utf16 =
        |bytes: fn(u16) -> [u8; 2]| format!("\u{feff}{marked}").encode_utf16().flat_map(bytes).collect();
    let gbk = marked.replace("d-flat", "\0").into_bytes();
    let gbk: Vec<u8> =
        gbk.into_iter().flat_map(|b| if b == 0 { vec![0xce, 0xd2, 0xb5, 0xc4] } else { vec![b] }).collect();
    let directory = rig.dir.path().to_owned();
    let name = std::ffi::OsStr::from_bytes(b"\xce\xd2\xb5\xc4.vmdk");
    // Some file systems accept only UTF-8.
    let gbk_ok = fs::write(directory.join(name), &flat).is_ok();
    let files: [(&str, Vec<u8>); 9] = [
        ("good", marked.clone().into_bytes()),
        ("space", format!("# Disk Descriptor File\n{body}").into_bytes()),
        ("comment", format!("# made by a tool\n\n{marked}").into_bytes()),
        ("none", body.into()),
        ("dos", body.replace('\n', "\r\n").into_bytes()),
        ("bom", format!("\u{feff}{marked}").into_bytes()),
        ("utf16le", utf16(u16::to_le_bytes)),
        ("utf16be", utf16(u16::to_be_bytes)),
        ("gbk", gbk),
    ];
    for (name, bytes) in files {
        if name == "gbk" && !gbk_ok {
            continue;
        }
        fs::write(rig.path(name), bytes).unwrap();
        rig.import(name, &rig.path(name), Format::Auto).await.unwrap_or_else(|e| panic!("{name}: {e:?}"));
        assert!(rig.contents(name).await == flat, "{name}");
    }
}

/// One extent of a split disk is a part of the disk, so it is imported only if the format is given.
#[tokio::test]
async fn an_extent_of_a_split_disk_is_not_a_disk() {
    if !have_qemu_img() {
        return;
    }
    let rig = Rig::new().await;
    let options = ["create", "-q", "-f", "vmdk", "-o", "subformat=twoGbMaxExtentSparse", "d.vmdk", "3G"];
    qemu_img(&options, rig.dir.path());
    refused(&rig, "d-s001.vmdk", "one extent").await;
    rig.import("part", &rig.path("d-s001.vmdk"), Format::Vmdk).await.unwrap();
    rig.import("whole", &rig.path("d.vmdk"), Format::Auto).await.unwrap();
    assert_eq!(rig.control.pool().disk("whole").unwrap().size, 3 << 30);
}

/// A small file whose tables repeat one cluster over a large disk: the import ends early, and not by a
/// client.
#[tokio::test]
async fn a_cluster_cannot_be_repeated_over_a_large_disk() {
    if !have_qemu_img() {
        return;
    }
    let rig = Rig::new().await;
    let mut noise = vec![0; 128 << 10];
    let mut rng = Rng(0x5eed);
    noise[..96 << 10].iter_mut().for_each(|b| *b = rng.below(256) as u8);
    noise[96 << 10..].fill(7);
    fs::write(rig.path("src.raw"), noise).unwrap();
    for (name, options) in [("plain.qcow2", &[][..]), ("packed.qcow2", &["-c"])] {
        convert(rig.dir.path(), "qcow2", options, name);
        qemu_img(&["resize", "-q", name, "1T"], rig.dir.path());
        let mut bytes = fs::read(rig.path(name)).unwrap();
        let at = |bytes: &[u8], from: usize| {
            u64::from_be_bytes(bytes[from..from + 8].try_into().unwrap()) & 0x00ff_ffff_ffff_fe00
        };
        let l1 = at(&bytes, 40) as usize;
        let l2 = at(&bytes, l1) as usize;
        bytes.resize(bytes.len().max(l1 + 2048 * 8).max(l2 + 8192 * 8), 0);
        // The second cluster, which is the compressible one, becomes all clusters.
        let (table, entry) = (bytes[l1..l1 + 8].to_vec(), bytes[l2 + 8..l2 + 16].to_vec());
        bytes[l1..l1 + 2048 * 8].copy_from_slice(&table.repeat(2048));
        bytes[l2..l2 + 8192 * 8].copy_from_slice(&entry.repeat(8192));
        fs::write(rig.path(name), bytes).unwrap();
        refused(&rig, name, "more than once").await;
    }
}

/// The same for the block tables of VHD and VHDX.
#[tokio::test]
async fn a_block_cannot_be_repeated_over_a_disk() {
    if !have_qemu_img() {
        return;
    }
    let rig = Rig::new().await;
    fs::write(rig.path("src.raw"), disk_bytes(2 << 20, 5)).unwrap();
    fs::OpenOptions::new().write(true).open(rig.path("src.raw")).unwrap().set_len(64 << 20).unwrap();
    convert(rig.dir.path(), "vpc", &[], "a.vhd");
    let mut bytes = fs::read(rig.path("a.vhd")).unwrap();
    // The offset of the table is in the header, which follows the copy of the footer.
    let table = u64::from_be_bytes(bytes[512 + 16..][..8].try_into().unwrap()) as usize;
    let first = bytes[table..table + 4].to_vec();
    bytes[table..table + 32 * 4].copy_from_slice(&first.repeat(32));
    fs::write(rig.path("a.vhd"), bytes).unwrap();
    refused(&rig, "a.vhd", "more than once").await;

    convert(rig.dir.path(), "vhdx", &["-o", "block_size=1M"], "a.vhdx");
    let mut bytes = fs::read(rig.path("a.vhdx")).unwrap();
    // The table is the region whose identifier begins with these bytes.
    let mut regions = bytes[192 << 10..256 << 10][16..].chunks_exact(32);
    let region = regions.find(|region| region.starts_with(b"\x66\x77\xc2\x2d")).unwrap();
    let table = u64::from_le_bytes(region[16..24].try_into().unwrap()) as usize;
    let first = bytes[table..table + 8].to_vec();
    bytes[table..table + 64 * 8].copy_from_slice(&first.repeat(64));
    fs::write(rig.path("a.vhdx"), bytes).unwrap();
    refused(&rig, "a.vhdx", "more than once").await;
}

/// Returns the command that an error prints: the part after the last colon.
fn printed_command(message: &str) -> &str {
    message
        .rsplit_once(": ")
        .map(|(_, command)| command)
        .filter(|c| c.starts_with("qemu-img "))
        .expect(message)
}

/// Every command that an error prints is run; the file that it makes is imported.
#[tokio::test]
async fn the_printed_commands_work() {
    if !have_qemu_img() {
        return;
    }
    let rig = Rig::new().await;
    let dir = rig.dir.path();
    let source = disk_bytes(1 << 20, 1);
    fs::write(rig.path("src.raw"), &source).unwrap();
    let mut files = vec!["child.qcow2", "outside file's.qcow2", "delta.vmdk", "corrupt.qcow2"];
    qemu_img(&["create", "-q", "-f", "qcow2", "-b", "src.raw", "-F", "raw", "child.qcow2"], dir);
    convert(dir, "qcow2", &["-o", "data_file=data.raw"], "outside file's.qcow2");
    convert(dir, "vmdk", &[], "base.vmdk");
    qemu_img(&["create", "-q", "-f", "vmdk", "-b", "base.vmdk", "-F", "vmdk", "delta.vmdk"], dir);
    convert(dir, "qcow2", &[], "corrupt.qcow2");
    let mut bytes = fs::read(rig.path("corrupt.qcow2")).unwrap();
    bytes[79] |= 2;
    fs::write(rig.path("corrupt.qcow2"), bytes).unwrap();
    for (format, name) in [("qed", "a.qed"), ("parallels", "a.hds"), ("qcow", "a.qcow")] {
        convert(dir, format, &[], name);
        files.push(name);
    }
    for name in files {
        let (_, message) = rig.import("x", &rig.path(name), Format::Auto).await.expect_err(name);
        let command = printed_command(&message);
        let done = Command::new("sh").args(["-c", command]).current_dir(dir).output().unwrap();
        assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
        let file = if command.contains("NEW.qcow2") { "NEW.qcow2" } else { name };
        rig.import(name, &rig.path(file), Format::Auto).await.unwrap_or_else(|e| panic!("{name}: {e:?}"));
        assert!(rig.contents(name).await[..source.len()] == source, "{name}");
        let _ = fs::remove_file(rig.path("NEW.qcow2"));
    }
}

/// Counts the file descriptors of this process that are open on `*-many.vmdk` files.
fn open_vmdks() -> usize {
    let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
    open.filter(|fd| fs::read_link(fd.path()).is_ok_and(|to| to.to_string_lossy().ends_with("-many.vmdk")))
        .count()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_extents_of_a_vmdk_are_bounded_and_open_one_at_a_time() {
    let rig = Rig::new().await;
    let head = "# Disk DescriptorFile\nparentCID=ffffffff\n";
    fs::write(rig.path("s-many.vmdk"), vec![b'e'; 4096 * 512]).unwrap();
    let write = |count: usize| {
        let lines: String = (0..count).map(|n| format!("RW 1 FLAT \"s-many.vmdk\" {n}\n")).collect();
        fs::write(rig.path("d.vmdk"), format!("{head}{lines}")).unwrap();
    };
    write(30_000);
    refused(&rig, "d.vmdk", "neither a sparse VMDK nor a descriptor").await;
    write(4097);
    refused(&rig, "d.vmdk", "more than 4096 extents").await;
    write(4096);
    let (done, most) = (std::sync::atomic::AtomicBool::new(false), std::sync::atomic::AtomicUsize::new(0));
    std::thread::scope(|s| {
        s.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                most.fetch_max(open_vmdks(), std::sync::atomic::Ordering::Relaxed);
            }
        });
        let path = rig.path("d.vmdk");
        let import = rig.import("many", &path, Format::Auto);
        let imported = tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(import));
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        imported.unwrap();
    });
    assert!(most.into_inner() <= 2, "one extent is open at a time");
    assert!(rig.contents("many").await == vec![b'e'; 4096 * 512]);
}

/// Each extent counts its contents separately, so a small descriptor could repeat a large file 4096 times.
#[tokio::test]
async fn the_extents_of_a_vmdk_do_not_share_data() {
    let rig = Rig::new().await;
    let head = "# Disk DescriptorFile\nparentCID=ffffffff\n";
    fs::write(rig.path("s-flat.vmdk"), [b'e'; 4 * 512]).unwrap();
    fs::hard_link(rig.path("s-flat.vmdk"), rig.path("link.vmdk")).unwrap();
    for second in ["RW 2 FLAT \"s-flat.vmdk\" 1", "RW 1 FLAT \"link.vmdk\" 0"] {
        let text = format!("{head}RW 2 FLAT \"s-flat.vmdk\" 0\nRW 1 ZERO\n{second}\n");
        fs::write(rig.path("d.vmdk"), text).unwrap();
        refused(&rig, "d.vmdk", "refer to the same data more than once").await;
    }
    // The parts of one file can have any order.
    let text = format!("{head}RW 2 FLAT \"s-flat.vmdk\" 2\nRW 2 FLAT \"link.vmdk\" 0\n");
    fs::write(rig.path("d.vmdk"), text).unwrap();
    rig.import("parts", &rig.path("d.vmdk"), Format::Auto).await.unwrap();
    if have_qemu_img() {
        fs::write(rig.path("src.raw"), disk_bytes(1 << 20, 1)).unwrap();
        convert(rig.dir.path(), "vmdk", &[], "sparse.vmdk");
        let line = "RW 2048 SPARSE \"sparse.vmdk\"\n";
        fs::write(rig.path("d.vmdk"), format!("{head}{line}{line}")).unwrap();
        let e = rig.import("x", &rig.path("d.vmdk"), Format::Auto).await.unwrap_err();
        assert!(e.1.contains("refer to the same data more than once"), "{e:?}");
    }
}

#[tokio::test]
async fn a_vmdk_descriptor_can_reference_only_vmdk_files_in_its_directory() {
    let rig = Rig::new().await;
    let head = "# Disk DescriptorFile\nversion=1\nparentCID=ffffffff\n";
    fs::write(rig.path("secret"), vec![b's'; 4096]).unwrap();
    fs::write(rig.path("real.vmdk"), vec![b'r'; 12 * 512]).unwrap();
    std::os::unix::fs::symlink(rig.path("secret"), rig.path("link.vmdk")).unwrap();
    for name in ["/etc/passwd", "../secret", "secret", ".vmdk", "", "a/b.vmdk", "/etc/x.vmdk"] {
        fs::write(rig.path("d.vmdk"), format!("{head}RW 8 FLAT \"{name}\" 0\n")).unwrap();
        refused(&rig, "d.vmdk", "extent").await;
    }
    for (line, part) in [
        ("RW 8 FLAT \"link.vmdk\" 0", "cannot open"),
        ("RW 13 FLAT \"real.vmdk\" 0", "truncated"),
        ("RW 12 FLAT \"real.vmdk\" 1", "truncated"),
        ("RW 8 FLAT \"real.vmdk\" 18446744073709551615", "truncated"),
        ("RW 18446744073709551615 ZERO", "too long"),
        ("RW 8 SPARSE \"real.vmdk\"", "damaged"),
        ("RW 8 VMFSRDM \"real.vmdk\"", "only ESX"),
        ("RW eight ZERO", "invalid extent line"),
        ("", "no extents"),
    ] {
        fs::write(rig.path("d.vmdk"), format!("{head}{line}\n")).unwrap();
        refused(&rig, "d.vmdk", part).await;
    }
    let extents = "RW 8 ZERO\nRW 8 FLAT \"real.vmdk\" 0\nRW 0 ZERO\nRW 4 FLAT \"real.vmdk\" 8\n";
    fs::write(rig.path("d.vmdk"), format!("{head}{extents}")).unwrap();
    rig.import("d", &rig.path("d.vmdk"), Format::Auto).await.unwrap();
    let contents = rig.contents("d").await;
    assert!(contents[..4096].iter().all(|b| *b == 0));
    assert!(contents[4096..].iter().all(|b| *b == b'r') && contents.len() == 20 * 512);
}

/// Corrects the checksum of a structure of a VHDX.
fn correct(structure: &mut [u8]) {
    structure[4..8].fill(0);
    let sum = forebay_format::crc32c(structure).to_le_bytes();
    structure[4..8].copy_from_slice(&sum);
}

/// Sets the identifier of the log in both headers of a VHDX. Returns the offset of the log.
fn begin_log(bytes: &mut [u8], id: u8) -> usize {
    for at in [64 << 10, 128 << 10] {
        bytes[at + 48] = id;
        correct(&mut bytes[at..at + 4096]);
    }
    u64::from_le_bytes(bytes[(64 << 10) + 72..][..8].try_into().unwrap()) as usize
}

/// Writes an entry that replaces the page at `target` by `page`. `tail` is the offset in the log of the first
/// entry to replay; `len` is the length of the file.
fn log_page(log: &mut [u8], sequence: u64, tail: u32, target: u64, page: &[u8; 4096], len: u64) {
    let mut entry = vec![0; 8192];
    let mut set = |at: usize, bytes: &[u8]| entry[at..at + bytes.len()].copy_from_slice(bytes);
    set(0, b"loge");
    set(8, &8192u32.to_le_bytes());
    set(12, &tail.to_le_bytes());
    set(16, &sequence.to_le_bytes());
    set(24, &1u32.to_le_bytes());
    set(32, &[1]);
    set(48, &len.to_le_bytes());
    set(56, &len.to_le_bytes());
    set(64, b"desc");
    set(68, &page[4092..]);
    set(72, &page[..8]);
    set(80, &target.to_le_bytes());
    set(88, &sequence.to_le_bytes());
    set(4096, b"data");
    set(4104, &page[8..4092]);
    set(8188, &(sequence as u32).to_le_bytes());
    correct(&mut entry);
    log[..8192].copy_from_slice(&entry);
}

/// The log of a VHDX has changes of contents that its host had not written in place before a power failure.
#[tokio::test]
async fn the_log_of_a_vhdx_is_replayed() {
    if !have_qemu_img() {
        return;
    }
    let rig = Rig::new().await;
    let source = disk_bytes(3 << 20, 1);
    fs::write(rig.path("src.raw"), &source).unwrap();
    convert(rig.dir.path(), "vhdx", &["-o", "block_size=1M,subformat=fixed"], "a.vhdx");
    let clean = fs::read(rig.path("a.vhdx")).unwrap();
    let (mut bytes, len) = (clean.clone(), clean.len() as u64);
    let log = begin_log(&mut bytes, 1);
    fs::write(rig.path("opened.vhdx"), &bytes).unwrap();
    rig.import("opened", &rig.path("opened.vhdx"), Format::Auto).await.unwrap();
    assert!(rig.contents("opened").await == source);

    // An older sequence, which is ignored; then three entries at the end of the ring. The first of them was
    // already written in place.
    let payload = len - (1 << 20);
    let mut expected = source.clone();
    expected[2 << 20..(2 << 20) + 4096].fill(0xab);
    log_page(&mut bytes[log + 0x10000..], 3, 0x10000, payload + 8192, &[0xee; 4096], len);
    let page = clean[payload as usize + 4096..][..4096].try_into().unwrap();
    log_page(&mut bytes[log + 0xfa000..], 7, 0xfa000, payload + 4096, &page, len);
    log_page(&mut bytes[log + 0xfc000..], 8, 0xfc000, payload, &[0xcd; 4096], len);
    log_page(&mut bytes[log + 0xfe000..], 9, 0xfc000, payload, &[0xab; 4096], len);
    fs::write(rig.path("dirty.vhdx"), &bytes).unwrap();
    rig.import("dirty", &rig.path("dirty.vhdx"), Format::Auto).await.unwrap();
    assert!(rig.contents("dirty").await == expected);
    // QEMU agrees. It replays the log in place.
    qemu_img(&["check", "-q", "-r", "all", "dirty.vhdx"], rig.dir.path());
    rig.import("repaired", &rig.path("dirty.vhdx"), Format::Auto).await.unwrap();
    assert!(rig.contents("repaired").await == expected);

    // The file was longer when the last entry was logged.
    bytes.truncate(bytes.len() - 4096);
    fs::write(rig.path("cut.vhdx"), &bytes).unwrap();
    let e = rig.import("cut", &rig.path("cut.vhdx"), Format::Auto).await.unwrap_err();
    assert!(e.1.contains("truncated"), "{e:?}");
    bytes[(64 << 10) + 48] = 0;
    bytes[(128 << 10) + 48] = 0;
    fs::write(rig.path("bad.vhdx"), &bytes).unwrap();
    let e = rig.import("bad", &rig.path("bad.vhdx"), Format::Auto).await.unwrap_err();
    assert!(e.1.contains("neither of its headers is valid"), "{e:?}");
}

/// Entries whose ranges overlap would cost a checksum of the whole log for each of its sectors.
#[tokio::test]
async fn an_artificial_log_is_refused_soon() {
    if !have_qemu_img() {
        return;
    }
    let rig = Rig::new().await;
    qemu_img(&["create", "-q", "-f", "vhdx", "a.vhdx", "4M"], rig.dir.path());
    let mut bytes = fs::read(rig.path("a.vhdx")).unwrap();
    let log = begin_log(&mut bytes, 1);
    for at in (0..1 << 20).step_by(4096) {
        let entry = &mut bytes[log + at..][..4096];
        entry[..4].copy_from_slice(b"loge");
        entry[8..12].copy_from_slice(&(1u32 << 20).to_le_bytes());
        entry[16] = 1;
        entry[32] = 1;
    }
    fs::write(rig.path("a.vhdx"), &bytes).unwrap();
    refused(&rig, "a.vhdx", "overlap").await;
}

/// Guests would find no partition on a disk with sectors of another size.
#[tokio::test]
async fn sectors_of_4096_bytes_are_refused_unless_the_format_is_given() {
    if !have_qemu_img() {
        return;
    }
    let rig = Rig::new().await;
    let source = disk_bytes(2 << 20, 1);
    fs::write(rig.path("src.raw"), &source).unwrap();
    convert(rig.dir.path(), "vhdx", &[], "a.vhdx");
    let mut bytes = fs::read(rig.path("a.vhdx")).unwrap();
    let item = b"\x1d\xbf\x41\x81\x6f\xa9\x09\x47\xba\x47\xf2\x33\xa8\xfa\xab\x5f";
    let entry = bytes.windows(16).position(|w| w == item).unwrap();
    let table = bytes.windows(8).position(|w| w == b"metadata").unwrap();
    let offset = u32::from_le_bytes(bytes[entry + 16..][..4].try_into().unwrap()) as usize;
    bytes[table + offset..][..4].copy_from_slice(&4096u32.to_le_bytes());
    fs::write(rig.path("a.vhdx"), &bytes).unwrap();
    refused(&rig, "a.vhdx", "sectors of 4096 bytes").await;
    rig.import("a", &rig.path("a.vhdx"), Format::Vhdx).await.unwrap();
    assert!(rig.contents("a").await[..source.len()] == source);
}

/// A randomly damaged or truncated file is either imported or refused, without an internal error.
#[tokio::test]
async fn damaged_and_truncated_files_cause_no_internal_error() {
    if !have_qemu_img() {
        return;
    }
    let rig = Rig::new().await;
    fs::write(rig.path("src.raw"), disk_bytes(2 << 20, 5)).unwrap();
    let files: [(&str, &str, &[&str]); 7] = [
        ("a.vhd", "vpc", &[]),
        ("a.qcow2", "qcow2", &["-o", "cluster_size=4k"]),
        ("c.qcow2", "qcow2", &["-c"]),
        ("z.qcow2", "qcow2", &["-c", "-o", "compression_type=zstd"]),
        ("a.vmdk", "vmdk", &[]),
        ("s.vmdk", "vmdk", &["-o", "subformat=streamOptimized"]),
        ("a.vhdx", "vhdx", &["-o", "block_size=1M"]),
    ];
    let mut rng = Rng(0x5eed);
    for (name, format, options) in files {
        convert(rig.dir.path(), format, options, name);
        let good = fs::read(rig.path(name)).unwrap();
        for round in 0..60 {
            let mut bytes = good.clone();
            if round % 4 == 0 {
                bytes.truncate(rng.below(good.len() as u64) as usize);
            } else {
                // Damages the start of the file, which has the tables, more often than the rest.
                for _ in 0..=rng.below(4) {
                    let range = if rng.below(3) == 0 { good.len() as u64 } else { 1024 };
                    let at = rng.below(range) as usize;
                    bytes[at] = rng.below(256) as u8;
                }
            }
            fs::write(rig.path("bad"), &bytes).unwrap();
            match rig.import("bad", &rig.path("bad"), Format::Auto).await {
                Ok(()) => rig.control.pool().delete("bad").await.unwrap(),
                Err((code, message)) => assert_ne!(code, "internal", "{name}, round {round}: {message}"),
            }
            assert!(rig.names().is_empty(), "{name}, round {round}");
        }
    }
}
