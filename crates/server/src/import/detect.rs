//! What a file is, by its bytes.

use serde::{Deserialize, Serialize};

use super::file::ImageFile;
use super::{Image, ImportError, Result, qcow2, raw, vhdx, vmdk};

/// A format of image files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Found out from the file.
    #[default]
    Auto,
    /// The bytes of the disk.
    Raw,
    /// QEMU's, version 2 or 3.
    Qcow2,
    /// VMware's: sparse, stream-optimised, or a descriptor with its extents.
    Vmdk,
    /// Hyper-V's: fixed or dynamic.
    Vhdx,
}

/// Bytes at the start of files that a raw disk is unlikely to begin with, and what such a file is.
const PACKED: [(&[u8], &str); 6] = [
    (b"\x1f\x8b", "a gzip archive"),
    (b"\xfd7zXZ\0", "an xz archive"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive"),
    (b"BZh", "a bzip2 archive"),
    (b"PK\x03\x04", "a zip archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
];

/// Disk formats that are known and not read.
const OTHER: [(&[u8], &str); 5] = [
    (b"conectix", "is a VHD of the old kind"),
    (b"QED\0", "is a QED file"),
    (b"WithoutFreeSpace", "is a Parallels disk"),
    (b"WithouFreSpacExt", "is a Parallels disk"),
    (b"COWD", "is a VMDK of the old ESX kind"),
];

/// Where VirtualBox's magic number stands, and what it is.
const VDI: (usize, [u8; 4]) = (64, [0x7f, 0x10, 0xda, 0xbe]);
/// Where a tar file (and so an OVA) says that it is one.
const TAR: (usize, &[u8]) = (257, b"ustar");
/// Bytes that are looked at.
const HEAD: u64 = 512;

/// Opens the disk in a file, as the format that is asked for or found.
pub(super) fn open(file: ImageFile, format: Format) -> Result<Box<dyn Image>> {
    if file.len() == 0 {
        return Err(ImportError::Empty(file.shown().to_owned()));
    }
    let format = match format {
        Format::Auto => detect(&file)?,
        given => given,
    };
    match format {
        Format::Auto | Format::Raw => Ok(Box::new(raw::Raw::new(file))),
        Format::Qcow2 => Ok(Box::new(qcow2::Qcow2::open(file)?)),
        Format::Vmdk => vmdk::open(file),
        Format::Vhdx => Ok(Box::new(vhdx::Vhdx::open(file)?)),
    }
}

fn detect(file: &ImageFile) -> Result<Format> {
    let head = file.read_vec(0, file.len().min(HEAD))?;
    if head.starts_with(qcow2::MAGIC) {
        return Ok(Format::Qcow2);
    }
    if head.starts_with(vmdk::SPARSE_MAGIC) || vmdk::is_descriptor(&head) {
        return Ok(Format::Vmdk);
    }
    if head.starts_with(vhdx::MAGIC) {
        return Ok(Format::Vhdx);
    }
    if let Some((_, what)) = OTHER.iter().find(|(magic, _)| head.starts_with(magic)) {
        return file.unsupported(what);
    }
    if head.get(VDI.0..VDI.0 + 4) == Some(&VDI.1[..]) {
        return file.unsupported("is a VirtualBox disk (VDI)");
    }
    let packed = PACKED.iter().find(|(magic, _)| head.starts_with(magic)).map(|(_, what)| *what);
    let tar = head.get(TAR.0..TAR.0 + TAR.1.len()) == Some(TAR.1);
    if let Some(what) = packed.or(tar.then_some("a tar archive (an OVA, perhaps)")) {
        return Err(ImportError::Packed { path: file.shown().to_owned(), what });
    }
    // A fixed VHD is the disk and then a footer of 512 bytes.
    if file.len() > 512 && file.read_array::<8>(file.len() - 512)? == *b"conectix" {
        return file.unsupported("is a VHD of the old kind");
    }
    Ok(Format::Raw)
}
