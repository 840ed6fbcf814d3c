//! Image files of each format, for the corpus and for generated damage.

use std::io::Write;

use forebay_control::fuzzing::{pack_image, sample_stream};

use crate::random::Random;
use crate::stored::put;

/// Flag of an input: checksums are corrected.
const CORRECTED: u8 = 0x80;
/// Generated files in a run, for each sample.
const DAMAGED: u64 = 200;
const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// URLs, and targets of redirects.
const URLS: [&str; 6] = [
    "https://user:p%40ss@images.example:8443/a/b/disk.img?sig=secret\n../c.img?new",
    "HTTP://[fd00::1]:80/disk.qcow2#part\n//other/x",
    "http://h?q\nhttp://user:pw@h/x",
    "ftp://user:secret@h/disk.img\n/",
    "http://user:se/cret@h/x y\n?q",
    "http://Größe.example/\n",
];

/// The text of [`packed`], compressed by liblzma: the decoder of the server has no encoder.
#[rustfmt::skip]
const XZ: [u8; 88] = [
    0xfd, 0x37, 0x7a, 0x58, 0x5a, 0x00, 0x00, 0x04, 0xe6, 0xd6, 0xb4, 0x46, 0x02, 0x00, 0x21, 0x01,
    0x16, 0x00, 0x00, 0x00, 0x74, 0x2f, 0xe5, 0xa3, 0xe0, 0x01, 0x17, 0x00, 0x15, 0x5d, 0x00, 0x20,
    0x88, 0x08, 0x86, 0x93, 0xd1, 0x00, 0xd3, 0xe1, 0x9a, 0xff, 0x56, 0xea, 0x43, 0xf5, 0x2b, 0x40,
    0x7c, 0xcf, 0xe0, 0x00, 0x00, 0x00, 0x00, 0x00, 0x6d, 0x3a, 0xde, 0x59, 0x10, 0xc3, 0xf5, 0x74,
    0x00, 0x01, 0x31, 0x98, 0x02, 0x00, 0x00, 0x00, 0x8f, 0xa4, 0x0c, 0x47, 0xb1, 0xc4, 0x67, 0xfb,
    0x02, 0x00, 0x00, 0x00, 0x00, 0x04, 0x59, 0x5a,
];

/// Names, numbers of the format, and contents.
fn samples() -> Vec<(&'static str, u8, Vec<u8>)> {
    vec![
        ("raw", 0, [vec![0xeb, 0x63, 0x90, 0], vec![0; 4092]].concat()),
        ("html", 0, b"<!DOCTYPE html><html>".to_vec()),
        ("qcow2", 0, qcow2()),
        ("qcow2-given", 2, qcow2()),
        (
            "descriptor",
            3,
            b"\xef\xbb\xbfversion=1\nparentCID=ffffffff\nRW 8 ZERO\nRW 8 FLAT \"\xce\xd2.vmdk\" 0\n".to_vec(),
        ),
        ("vmdk", 3, vmdk()),
        ("vhd-fixed", 4, vhd(2)),
        ("vhd-dynamic", 4 | CORRECTED, vhd(3)),
        ("vhdx-log", 5 | CORRECTED, vhdx()),
        ("vdi", 6, vdi()),
        ("ova", 7 | CORRECTED, ova()),
        ("ova-detected", CORRECTED, ova()),
    ]
}

/// Writes the samples, or checks that those in the corpus are current.
pub fn put_all() {
    for (name, kind, file) in samples() {
        put("image_file", name, &pack_image(kind, &file));
    }
    for (name, file) in packed() {
        put("packed_file", name, &file);
    }
    for (number, url) in URLS.iter().enumerate() {
        put("import_url", &format!("url-{number}"), url.as_bytes());
    }
    for (name, first) in [("stream", 64), ("stream-corrected", CORRECTED | 64)] {
        put("send_stream", name, &[&[first], &sample_stream()[..]].concat());
    }
}

/// Compressed files: names and contents, of 280 bytes of text.
fn packed() -> Vec<(&'static str, Vec<u8>)> {
    let text = b"A disk image.\n".repeat(20);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&text).unwrap();
    let mut bzip2 = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
    bzip2.write_all(&text).unwrap();
    let zstd = ruzstd::encoding::compress_to_vec(&text[..], ruzstd::encoding::CompressionLevel::Fastest);
    vec![
        ("gzip", gzip.finish().unwrap()),
        ("bzip2", bzip2.finish().unwrap()),
        ("zstd", zstd),
        ("xz", XZ.to_vec()),
    ]
}

/// Passes damaged samples to `target`.
pub fn damage(target: impl Fn(&[u8])) {
    for (name, kind, file) in samples() {
        let good = pack_image(kind, &file);
        for seed in 0..DAMAGED {
            let mut random = Random::new(seed);
            let mut bad = good.clone();
            if random.once_in(8) {
                bad.truncate(random.below(good.len() as u64) as usize);
            }
            for _ in 0..=random.below(6) {
                // Numbers of 4 or 8 bytes with edges; the format and the packing stay.
                let at = 5 + random.below(good.len() as u64 - 5) as usize;
                let number = random.edge(file.len() as u64).to_le_bytes();
                let len = random.pick(&[1, 4, 8]);
                let swapped = random.once_in(2);
                for (i, byte) in bad.iter_mut().skip(at).take(len).enumerate() {
                    *byte = if swapped { number[len - 1 - i] } else { number[i] };
                }
            }
            let passed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| target(&bad)));
            assert!(passed.is_ok(), "the sample '{name}' with the damage of seed {seed} fails");
        }
    }
}

/// Passes damaged compressed files to `target`.
pub fn damage_packed(target: impl Fn(&[u8])) {
    for (name, good) in packed() {
        for seed in 0..10 * DAMAGED {
            let mut random = Random::new(seed);
            let mut bad = good.clone();
            if random.once_in(8) {
                bad.truncate(random.below(good.len() as u64) as usize);
            }
            for _ in 0..=random.below(4) {
                let at = 6 + random.below(good.len() as u64 - 6) as usize;
                bad.iter_mut().skip(at).take(1).for_each(|byte| *byte = random.below(256) as u8);
            }
            let passed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| target(&bad)));
            assert!(passed.is_ok(), "the sample '{name}' with the damage of seed {seed} fails");
        }
    }
}

fn set(file: &mut [u8], at: usize, bytes: &[u8]) {
    file[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Clusters of 4 KiB: a header, an L1 table, an L2 table, and a cluster that is mapped as it is; in the
/// last one a compressed cluster.
fn qcow2() -> Vec<u8> {
    let mut file = vec![0; 5 * 4096];
    set(&mut file, 0, b"QFI\xfb\0\0\0\x03");
    set(&mut file, 20, &12u32.to_be_bytes());
    set(&mut file, 24, &(4u64 << 20).to_be_bytes());
    set(&mut file, 36, &2u32.to_be_bytes());
    set(&mut file, 40, &4096u64.to_be_bytes());
    set(&mut file, 100, &104u32.to_be_bytes());
    set(&mut file, 4096, &(1 << 63 | 8192u64).to_be_bytes());
    set(&mut file, 8192, &(1 << 63 | 12288u64).to_be_bytes());
    set(&mut file, 8200, &(1 << 62 | 16384u64).to_be_bytes());
    file[12288..16384].fill(7);
    // A DEFLATE stream of 4096 zeroes.
    set(
        &mut file,
        16384,
        b"\xed\xc1\x01\x0d\x00\x00\x00\xc2\xa0\xf7\x4f\x6d\x0f\x07\x14\x00\x00\x00\xf0\x6e",
    );
    file
}

/// A sparse extent with a descriptor: a directory, a table, and one grain of 4 KiB.
fn vmdk() -> Vec<u8> {
    let mut file = vec![0; 16 * KIB];
    set(&mut file, 0, b"KDMV\x01\0\0\0\x03\0\0\0");
    set(&mut file, 12, &64u64.to_le_bytes());
    set(&mut file, 20, &8u64.to_le_bytes());
    set(&mut file, 28, &1u64.to_le_bytes());
    set(&mut file, 36, &1u64.to_le_bytes());
    set(&mut file, 44, &512u32.to_le_bytes());
    set(&mut file, 56, &2u64.to_le_bytes());
    set(&mut file, 73, b"\n \r\n");
    set(&mut file, 512, b"# Disk DescriptorFile\nversion=1\nparentCID=ffffffff\n");
    set(&mut file, 1024, &4u32.to_le_bytes());
    set(&mut file, 2048 + 4, &16u32.to_le_bytes());
    file[8 * KIB..12 * KIB].fill(9);
    file
}

/// A disk of 64 KiB, fixed (2) or dynamic with blocks of 32 KiB (3).
fn vhd(kind: u32) -> Vec<u8> {
    let mut footer = vec![0; 512];
    set(&mut footer, 0, b"conectix");
    set(&mut footer, 16, &512u64.to_be_bytes());
    set(&mut footer, 48, &(64u64 << 10).to_be_bytes());
    set(&mut footer, 60, &kind.to_be_bytes());
    let sum = !footer.iter().map(|b| u32::from(*b)).sum::<u32>();
    set(&mut footer, 64, &sum.to_be_bytes());
    if kind == 2 {
        return [vec![5; 64 * KIB], footer].concat();
    }
    let mut header = vec![0; 1024];
    set(&mut header, 0, b"cxsparse");
    set(&mut header, 16, &1536u64.to_be_bytes());
    set(&mut header, 28, &2u32.to_be_bytes());
    set(&mut header, 32, &(32u32 << 10).to_be_bytes());
    let mut table = vec![0xff; 512];
    set(&mut table, 4, &4u32.to_be_bytes());
    let block = [vec![0xff; 512], vec![6; 32 * KIB]].concat();
    [footer.clone(), header, table, block, footer].concat()
}

/// A disk of 2 MiB in blocks of 1 MiB. The log has an entry that replaces one page by another, and one by
/// zeroes.
fn vhdx() -> Vec<u8> {
    let mut file = vec![0; 4 * MIB];
    set(&mut file, 0, b"vhdxfile");
    let id = [7; 16];
    for (at, number) in [(64 * KIB, 1u64), (128 * KIB, 2)] {
        set(&mut file, at, b"head");
        set(&mut file, at + 8, &number.to_le_bytes());
        set(&mut file, at + 48, &id);
        set(&mut file, at + 66, &1u16.to_le_bytes());
        set(&mut file, at + 68, &(64u32 << 10).to_le_bytes());
        set(&mut file, at + 72, &(1u64 << 20).to_le_bytes());
    }
    let (bat, metadata) = (320 * KIB, 512 * KIB);
    let bat_region = *b"\x66\x77\xc2\x2d\x23\xf6\x00\x42\x9d\x64\x11\x5e\x9b\xfd\x4a\x08";
    let metadata_region = *b"\x06\xa2\x7c\x8b\x90\x47\x9a\x4b\xb8\xfe\x57\x5f\x05\x0f\x88\x6e";
    set(&mut file, 192 * KIB, b"regi");
    set(&mut file, 192 * KIB + 8, &2u32.to_le_bytes());
    for (i, (region, at, len)) in
        [(bat_region, bat, 64 * KIB), (metadata_region, metadata, 128 * KIB)].iter().enumerate()
    {
        let entry = 192 * KIB + 16 + 32 * i;
        set(&mut file, entry, region);
        set(&mut file, entry + 16, &(*at as u64).to_le_bytes());
        set(&mut file, entry + 24, &(*len as u32).to_le_bytes());
    }
    set(&mut file, metadata, b"metadata");
    set(&mut file, metadata + 10, &3u16.to_le_bytes());
    let items: [(&[u8; 16], &[u8]); 3] = [
        (b"\x37\x67\xa1\xca\x36\xfa\x43\x4d\xb3\xb6\x33\xf0\xaa\x44\xe7\x6b", &[0, 0, 16, 0, 0, 0, 0, 0]),
        (b"\x24\x42\xa5\x2f\x1b\xcd\x76\x48\xb2\x11\x5d\xbe\xd8\x3b\xf4\xb8", &[0, 0, 32, 0, 0, 0, 0, 0]),
        (b"\x1d\xbf\x41\x81\x6f\xa9\x09\x47\xba\x47\xf2\x33\xa8\xfa\xab\x5f", &[0, 2, 0, 0]),
    ];
    for (i, (item, value)) in items.iter().enumerate() {
        let entry = metadata + 32 + 32 * i;
        set(&mut file, entry, *item);
        set(&mut file, entry + 16, &(64 * KIB as u32 + 16 * i as u32).to_le_bytes());
        set(&mut file, entry + 20, &(value.len() as u32).to_le_bytes());
        set(&mut file, metadata + 64 * KIB + 16 * i, value);
    }
    set(&mut file, bat, &(2u64 << 20 | 6).to_le_bytes());
    set(&mut file, bat + 8, &(3u64 << 20 | 6).to_le_bytes());
    file[2 * MIB..2 * MIB + 8 * KIB].fill(3);
    log_entry(&mut file, MIB, &id);
    file
}

/// A disk of 12 KiB in blocks of 4 KiB, of which the first one has data, and the last one is zero.
fn vdi() -> Vec<u8> {
    let mut file = vec![0; 8 * KIB];
    set(&mut file, 0x40, b"\x7f\x10\xda\xbe\x01\0\x01\0");
    for (at, number) in [
        (0x4c, 1u32),
        (0x154, 1024),
        (0x158, 4096),
        (0x168, 512),
        (0x170, 12 << 10),
        (0x178, 4096),
        (0x180, 3),
    ] {
        set(&mut file, at, &number.to_le_bytes());
    }
    set(&mut file, 1024, b"\0\0\0\0\xff\xff\xff\xff\xfe\xff\xff\xff");
    file[4 * KIB..].fill(4);
    file
}

/// An archive with an extended header, a descriptor, a manifest, and the disk of [`vmdk`].
fn ova() -> Vec<u8> {
    let descriptor =
        b"<Envelope><!-- x --><References><File ovf:href='d&#x2e;vmdk' ovf:id=\"f\"/></References>\
        <DiskSection><Disk ovf:diskId='a' ovf:fileRef='f'/></DiskSection></Envelope>";
    let members: [(&str, u8, &[u8]); 4] = [
        ("pax", b'x', b"14 path=x.ovf\n"),
        ("a name that the extended header replaces", b'0', descriptor),
        ("x.mf", b'0', b"SHA256(d.vmdk)= 00\nSHA1(d.vmdk)= 01\n"),
        ("./d.vmdk", b'0', &vmdk()),
    ];
    let mut file = Vec::new();
    for (name, kind, contents) in members {
        let mut header = vec![0; 512];
        set(&mut header, 0, name.as_bytes());
        set(&mut header, 124, format!("{:011o}", contents.len()).as_bytes());
        set(&mut header, 156, &[kind]);
        set(&mut header, 257, b"ustar\x0000");
        file.extend(header);
        file.extend(contents);
        file.resize(file.len().next_multiple_of(512), 0);
    }
    file.resize(file.len() + 1024, 0);
    file
}

fn log_entry(file: &mut [u8], at: usize, id: &[u8; 16]) {
    let len = file.len() as u64;
    set(file, at, b"loge");
    set(file, at + 8, &8192u32.to_le_bytes());
    set(file, at + 16, &1u64.to_le_bytes());
    set(file, at + 24, &2u32.to_le_bytes());
    set(file, at + 32, id);
    set(file, at + 48, &len.to_le_bytes());
    set(file, at + 56, &len.to_le_bytes());
    set(file, at + 64, b"desc\x01\x02\x03\x04\x05\x05\x05\x05\x05\x05\x05\x05");
    set(file, at + 80, &(2u64 << 20).to_le_bytes());
    set(file, at + 88, &1u64.to_le_bytes());
    set(file, at + 96, b"zero");
    set(file, at + 104, &4096u64.to_le_bytes());
    set(file, at + 112, &((2u64 << 20) + 4096).to_le_bytes());
    set(file, at + 120, &1u64.to_le_bytes());
    set(file, at + 4096, b"data");
    set(file, at + 8188, &1u32.to_le_bytes());
}
