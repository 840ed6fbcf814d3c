//! Detection of the image format from the contents of the file.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::file::ImageFile;
use super::{Image, ImportError, Result, qcow2, raw, vhdx, vmdk};

/// The format of an image file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
#[schema(as = ImageFormat)]
pub enum Format {
    /// Detect the format from the contents of the file
    #[default]
    Auto,
    /// Raw disk contents
    Raw,
    /// QEMU, version 2 or 3
    Qcow2,
    /// VMware: sparse, stream-optimised, or a descriptor with its extents
    Vmdk,
    /// Hyper-V: fixed or dynamic
    Vhdx,
}

/// Magic numbers of archives, which are not likely at the start of a raw disk, and their descriptions.
const ARCHIVES: [(&[u8], &str); 6] = [
    (b"\x1f\x8b", "a gzip archive"),
    (b"\xfd7zXZ\0", "an xz archive"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive"),
    (b"BZh", "a bzip2 archive"),
    (b"PK\x03\x04", "a zip archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
];

/// Magic numbers of disk formats that are not supported, and their descriptions.
const UNSUPPORTED: [(&[u8], &str); 5] = [
    (b"conectix", "is a VHD file (not VHDX)"),
    (b"QED\0", "is a QED file"),
    (b"WithoutFreeSpace", "is a Parallels disk"),
    (b"WithouFreSpacExt", "is a Parallels disk"),
    (b"COWD", "is a COWD file (VMDK of old ESX releases)"),
];

/// Offset and magic number of a VirtualBox disk.
const VDI: (usize, [u8; 4]) = (64, [0x7f, 0x10, 0xda, 0xbe]);
/// Offset and magic number of a tar file, such as an OVA.
const TAR: (usize, &[u8]) = (257, b"ustar");
/// Bytes at the start of the file that are examined.
const HEAD: u64 = 512;

/// Opens the disk in a file, with the given or the detected format.
pub(super) fn open(file: ImageFile, format: Format) -> Result<Box<dyn Image>> {
    if file.len() == 0 {
        return Err(ImportError::Empty(file.display_name().to_owned()));
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
    if let Some((_, what)) = UNSUPPORTED.iter().find(|(magic, _)| head.starts_with(magic)) {
        return file.unsupported(what);
    }
    if head.get(VDI.0..VDI.0 + 4) == Some(&VDI.1[..]) {
        return file.unsupported("is a VirtualBox disk (VDI)");
    }
    let archive = ARCHIVES.iter().find(|(magic, _)| head.starts_with(magic)).map(|(_, what)| *what);
    let tar = head.get(TAR.0..TAR.0 + TAR.1.len()) == Some(TAR.1);
    if let Some(what) = archive.or(tar.then_some("a tar archive (possibly an OVA)")) {
        return Err(ImportError::Archive { path: file.display_name().to_owned(), what });
    }
    // A fixed VHD is the raw disk followed by a footer of 512 bytes.
    if file.len() > 512 && file.read_array::<8>(file.len() - 512)? == *b"conectix" {
        return file.unsupported("is a VHD file (not VHDX)");
    }
    Ok(Format::Raw)
}
