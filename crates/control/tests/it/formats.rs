//! Import of every format that `qemu-img` can write.

use std::fs;
use std::process::Command;

use forebay_api::import::Format;

use crate::common::{Rig, convert, disk_bytes, have_qemu_img, qemu_img};

/// File name, format and options of `qemu-img`.
const FILES: [(&str, &str, &[&str]); 21] = [
    ("plain.qcow2", "qcow2", &[]),
    ("old.qcow2", "qcow2", &["-o", "compat=0.10"]),
    ("packed.qcow2", "qcow2", &["-c"]),
    ("zstd.qcow2", "qcow2", &["-c", "-o", "compression_type=zstd"]),
    ("small.qcow2", "qcow2", &["-o", "cluster_size=512"]),
    ("large.qcow2", "qcow2", &["-o", "cluster_size=2M"]),
    ("extended.qcow2", "qcow2", &["-o", "extended_l2=on,cluster_size=64k"]),
    ("allocated.qcow2", "qcow2", &["-S", "0"]),
    ("sparse.vmdk", "vmdk", &[]),
    ("zeroed.vmdk", "vmdk", &["-o", "zeroed_grain=on"]),
    ("stream.vmdk", "vmdk", &["-o", "subformat=streamOptimized"]),
    ("flat.vmdk", "vmdk", &["-o", "subformat=monolithicFlat"]),
    ("split.vmdk", "vmdk", &["-o", "subformat=twoGbMaxExtentSparse"]),
    ("splitflat.vmdk", "vmdk", &["-o", "subformat=twoGbMaxExtentFlat"]),
    ("dynamic.vhdx", "vhdx", &[]),
    ("smallblocks.vhdx", "vhdx", &["-o", "block_size=1M"]),
    ("fixed.vhdx", "vhdx", &["-o", "subformat=fixed"]),
    ("dynamic.vhd", "vpc", &[]),
    ("fixed.vhd", "vpc", &["-o", "subformat=fixed"]),
    ("dynamic.vdi", "vdi", &[]),
    ("fixed.vdi", "vdi", &["-o", "static=on"]),
];

#[tokio::test]
async fn every_format_is_imported_with_the_contents_of_its_source() {
    if !have_qemu_img() {
        return;
    }
    let rig = Rig::new().await;
    let source = disk_bytes((9 << 20) + 3 * 512, 7);
    fs::write(rig.path("src.raw"), &source).unwrap();
    for (name, format, options) in FILES {
        convert(rig.dir.path(), format, options, name);
        // The format is detected from the contents, not from the name.
        let path = rig.path(&format!("{name}.img"));
        fs::copy(rig.path(name), &path).unwrap();
        rig.import(name, &path, Format::Auto).await.unwrap_or_else(|e| panic!("{name}: {e:?}"));
        let contents = rig.contents(name).await;
        // A VMDK, VHD or VHDX can be longer than its source by less than a MiB.
        assert!(contents.len() >= source.len() && contents.len() < source.len() + (1 << 20), "{name}");
        let differs = contents.iter().zip(&source).position(|(a, b)| a != b);
        assert_eq!(differs, None, "{name} differs");
        assert!(contents[source.len()..].iter().all(|b| *b == 0), "{name}");
    }
}

#[tokio::test]
async fn holes_of_a_raw_file_are_not_stored_and_its_size_is_rounded_up_if_the_format_is_given() {
    let rig = Rig::new().await;
    let path = rig.path("raw");
    let file = fs::File::create(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"first", 0).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"middle", (100 << 20) + 5).unwrap();
    file.set_len((3 << 40) + 1000).unwrap();
    drop(file);
    let e = rig.import("big", &path, Format::Auto).await.unwrap_err();
    assert!(e.1.contains("no whole number of sectors"), "{e:?}");
    rig.import("big", &path, Format::Raw).await.unwrap();
    let disk = rig.control.pool().attach("big").unwrap();
    assert_eq!(disk.size(), (3 << 40) + 1024);
    let mut middle = [0; 8];
    disk.read((100 << 20) + 4, &mut middle).await.unwrap();
    assert_eq!(&middle, b"\0middle\0");
    let stats = rig.control.pool().stats().await;
    assert!(stats.stored_bytes < 4 << 20, "{} bytes for two blocks", stats.stored_bytes);
}

#[tokio::test]
async fn zero_blocks_of_a_file_without_holes_are_not_stored() {
    let rig = Rig::new().await;
    fs::write(rig.path("zeroes"), vec![0; 8 << 20]).unwrap();
    rig.import("zeroes", &rig.path("zeroes"), Format::Auto).await.unwrap();
    let disk = rig.control.pool().attach("zeroes").unwrap();
    let extents = disk.extents(0, 8 << 20, 16).await.unwrap();
    assert!(extents.iter().all(|e| e.zero), "{extents:?}");
}

#[tokio::test]
async fn internal_snapshots_of_a_qcow2_file_are_ignored() {
    if !have_qemu_img() {
        return;
    }
    let rig = Rig::new().await;
    let source = disk_bytes(4 << 20, 3);
    fs::write(rig.path("src.raw"), &source).unwrap();
    convert(rig.dir.path(), "qcow2", &[], "s.qcow2");
    qemu_img(&["snapshot", "-c", "before", "s.qcow2"], rig.dir.path());
    rig.import("s", &rig.path("s.qcow2"), Format::Auto).await.unwrap();
    assert!(rig.contents("s").await == source);
}

#[tokio::test]
async fn an_empty_disk_of_64_tib_is_imported_and_a_larger_one_refused() {
    if !have_qemu_img() {
        return;
    }
    let rig = Rig::new().await;
    qemu_img(&["create", "-q", "-f", "qcow2", "big.qcow2", "64T"], rig.dir.path());
    rig.import("big", &rig.path("big.qcow2"), Format::Auto).await.unwrap();
    assert_eq!(rig.control.pool().disk("big").unwrap().size, 64 << 40);
    fs::File::create(rig.path("huge")).unwrap().set_len((64 << 40) + 512).unwrap_or_else(|e| {
        eprintln!("SKIPPED: the file system does not support files of 64 TiB ({e})");
    });
    if fs::metadata(rig.path("huge")).unwrap().len() > 0 {
        let e = rig.import("huge", &rig.path("huge"), Format::Auto).await.unwrap_err();
        assert_eq!(e.0, "bad_size", "{e:?}");
    }
}

#[tokio::test]
async fn an_explicit_format_overrides_detection() {
    let rig = Rig::new().await;
    let mut bytes = vec![1; 4096];
    bytes[..2].copy_from_slice(b"\x1f\x8b");
    fs::write(rig.path("z"), &bytes).unwrap();
    let e = rig.import("z", &rig.path("z"), Format::Auto).await.unwrap_err();
    assert!(e.1.contains("gzip") && e.1.contains("--format raw"), "{e:?}");
    rig.import("z", &rig.path("z"), Format::Raw).await.unwrap();
    assert!(rig.contents("z").await == bytes);
    fs::write(rig.path("q"), &bytes[2..]).unwrap();
    let e = rig.import("q", &rig.path("q"), Format::Qcow2).await.unwrap_err();
    assert!(e.1.contains("not a qcow2 file"), "{e:?}");
}

/// Makes an OVA of disks that `qemu-img` converts, with a manifest of `digest`.
fn appliance(rig: &Rig, name: &str, disks: &[&str], digest: &str) {
    let dir = rig.dir.path();
    let (mut files, mut references, mut list) = (vec!["box.ovf".to_owned()], String::new(), String::new());
    for (i, source) in disks.iter().enumerate() {
        let file = format!("box-disk{i}.vmdk");
        qemu_img(
            &["convert", "-f", "raw", "-O", "vmdk", "-o", "subformat=streamOptimized", source, &file],
            dir,
        );
        references += &format!("<File ovf:href=\"{file}\" ovf:id=\"file{i}\" ovf:size=\"1\"/>\n");
        list += &format!("<Disk ovf:capacity=\"9\" ovf:diskId=\"vmdisk{i}\" ovf:fileRef=\"file{i}\"/>\n");
        files.push(file);
    }
    let envelope = format!(
        "<?xml version=\"1.0\"?>\n<Envelope><References>\n{references}</References>\n<DiskSection>\n{list}\
         </DiskSection></Envelope>\n"
    );
    fs::write(dir.join("box.ovf"), envelope).unwrap();
    let run = |program: &str, args: &[&str]| {
        let out = Command::new(program).args(args).current_dir(dir).output().unwrap();
        assert!(out.status.success(), "{program}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    };
    let mut manifest = String::new();
    for file in &files {
        let sum = run(&format!("{}sum", digest.to_lowercase()), &[file]);
        let sum = sum.split_whitespace().next().unwrap();
        manifest += &format!("{digest}({file})= {sum}\n");
    }
    fs::write(dir.join("box.mf"), manifest).unwrap();
    // The descriptor is first; the manifest may follow it or the disks.
    let mut args = vec!["--format=ustar", "-cf", name, "box.ovf"];
    args.extend(files[1..].iter().map(String::as_str));
    args.push("./box.mf");
    run("tar", &args);
}

#[tokio::test]
async fn the_disk_of_an_ova_is_imported_and_verified() {
    if !have_qemu_img() {
        return;
    }
    let rig = Rig::new().await;
    let disks = [disk_bytes(9 << 20, 7), disk_bytes(4 << 20, 8)];
    fs::write(rig.path("one.raw"), &disks[0]).unwrap();
    fs::write(rig.path("two.raw"), &disks[1]).unwrap();
    for digest in ["SHA1", "SHA256"] {
        appliance(&rig, digest, &["one.raw"], digest);
        rig.import(digest, &rig.path(digest), Format::Auto).await.unwrap();
        assert!(rig.contents(digest).await == disks[0], "{digest}");
    }
    appliance(&rig, "two.ova", &["one.raw", "two.raw"], "SHA256");
    let (code, error) = rig.import("two", &rig.path("two.ova"), Format::Auto).await.unwrap_err();
    assert_eq!(code, "bad_source");
    assert!(error.contains("--disk") && error.contains("2: 'box-disk1.vmdk' ('vmdisk1')"), "{error}");
    for disk in ["2", "vmdisk1", "box-disk1.vmdk"] {
        rig.import_disk(disk, &rig.path("two.ova"), Some(disk)).await.unwrap();
        assert!(rig.contents(disk).await == disks[1], "{disk}");
    }
    let (_, error) = rig.import_disk("x", &rig.path("one.raw"), Some("1")).await.unwrap_err();
    assert!(error.contains("has only one disk"), "{error}");

    // A disk that was changed does not have the checksum of the manifest.
    let mut bytes = fs::read(rig.path("two.ova")).unwrap();
    let at = bytes.windows(5).rposition(|bytes| bytes == b"KDMV\x03").unwrap() + 1000;
    bytes[at] ^= 1;
    fs::write(rig.path("changed.ova"), bytes).unwrap();
    let (code, error) = rig.import_disk("x", &rig.path("changed.ova"), Some("2")).await.unwrap_err();
    assert!(code == "bad_source" && error.contains("checksum of the manifest"), "{error}");
    rig.import_disk("first", &rig.path("changed.ova"), Some("1")).await.unwrap();
}
