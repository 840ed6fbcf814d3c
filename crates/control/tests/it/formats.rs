//! Import of every format that `qemu-img` can write.

use std::fs;

use forebay_api::import::Format;

use crate::common::{Rig, convert, disk_bytes, have_qemu_img, qemu_img};

/// File name, format and options of `qemu-img`.
const FILES: [(&str, &str, &[&str]); 19] = [
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
