//! Truncated, damaged and malicious image files: they are refused with a clear message and leave nothing
//! behind.

use std::fs;
use std::path::Path;
use std::process::Command;

use forebay_server::import::Format;

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
    refused(&rig, "missing", "cannot open").await;
    fs::create_dir(rig.path("directory")).unwrap();
    refused(&rig, "directory", "is a directory").await;
    assert!(Command::new("mkfifo").arg(rig.path("pipe")).status().unwrap().success());
    refused(&rig, "pipe", "is a pipe").await;
    write("a.xz", b"\xfd7zXZ\0and so on");
    refused(&rig, "a.xz", "unpack it first").await;
    let mut tar = vec![b'a'; 1024];
    tar[257..262].copy_from_slice(b"ustar");
    write("a.ova", &tar);
    refused(&rig, "a.ova", "tar archive").await;
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
    for (format, name, part) in [("vpc", "a.vhd", "VHD"), ("vdi", "a.vdi", "VDI"), ("qed", "a.qed", "QED")] {
        convert(dir, format, &[], name);
        refused(&rig, name, part).await;
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
    fs::write(rig.path("s-many.vmdk"), [b'e'; 512]).unwrap();
    let write = |count: usize| {
        let lines = "RW 1 FLAT \"s-many.vmdk\" 0\n".repeat(count);
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

#[tokio::test]
async fn a_vmdk_descriptor_can_reference_only_vmdk_files_in_its_directory() {
    let rig = Rig::new().await;
    let head = "# Disk DescriptorFile\nversion=1\nparentCID=ffffffff\n";
    fs::write(rig.path("secret"), vec![b's'; 4096]).unwrap();
    fs::write(rig.path("real.vmdk"), vec![b'r'; 4096]).unwrap();
    std::os::unix::fs::symlink(rig.path("secret"), rig.path("link.vmdk")).unwrap();
    for name in ["/etc/passwd", "../secret", "secret", ".vmdk", "", "a/b.vmdk", "/etc/x.vmdk"] {
        fs::write(rig.path("d.vmdk"), format!("{head}RW 8 FLAT \"{name}\" 0\n")).unwrap();
        refused(&rig, "d.vmdk", "extent").await;
    }
    for (line, part) in [
        ("RW 8 FLAT \"link.vmdk\" 0", "cannot open"),
        ("RW 9 FLAT \"real.vmdk\" 0", "truncated"),
        ("RW 8 FLAT \"real.vmdk\" 1", "truncated"),
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
    let extents = "RW 8 ZERO\nRW 8 FLAT \"real.vmdk\" 0\nRW 0 ZERO\nRW 4 FLAT \"real.vmdk\" 4\n";
    fs::write(rig.path("d.vmdk"), format!("{head}{extents}")).unwrap();
    rig.import("d", &rig.path("d.vmdk"), Format::Auto).await.unwrap();
    let contents = rig.contents("d").await;
    assert!(contents[..4096].iter().all(|b| *b == 0));
    assert!(contents[4096..].iter().all(|b| *b == b'r') && contents.len() == 20 * 512);
}

#[tokio::test]
async fn a_vhdx_with_a_log_to_replay_is_refused() {
    if !have_qemu_img() {
        return;
    }
    let rig = Rig::new().await;
    fs::write(rig.path("src.raw"), disk_bytes(1 << 20, 1)).unwrap();
    convert(rig.dir.path(), "vhdx", &[], "a.vhdx");
    let mut bytes = fs::read(rig.path("a.vhdx")).unwrap();
    for header in [64 << 10, 128 << 10] {
        let header: &mut [u8] = &mut bytes[header..header + 4096];
        header[48] = 1;
        header[4..8].fill(0);
        let sum = forebay_format::crc32c(header).to_le_bytes();
        header[4..8].copy_from_slice(&sum);
    }
    fs::write(rig.path("a.vhdx"), &bytes).unwrap();
    refused(&rig, "a.vhdx", "not closed cleanly").await;
    bytes[(64 << 10) + 48] = 0;
    bytes[(128 << 10) + 48] = 0;
    fs::write(rig.path("a.vhdx"), &bytes).unwrap();
    refused(&rig, "a.vhdx", "neither of its headers is valid").await;
}

/// A randomly damaged or truncated file is either imported or refused, without an internal error.
#[tokio::test]
async fn damaged_and_truncated_files_cause_no_internal_error() {
    if !have_qemu_img() {
        return;
    }
    let rig = Rig::new().await;
    fs::write(rig.path("src.raw"), disk_bytes(2 << 20, 5)).unwrap();
    let files: [(&str, &str, &[&str]); 6] = [
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
