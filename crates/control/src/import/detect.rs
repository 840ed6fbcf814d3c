//! Detection of the image format from the contents of the file.
//!
//! A file in an unknown format must not become a raw disk: guests would find garbage on it, long after the
//! import. So a file is raw only if nothing contradicts that: no known format of other files, no text, no
//! file name and no media type of other contents, and a length in whole sectors. Naming the format on the
//! command line overrides all of these checks.

use forebay_api::import::Format;

use super::error::Remedy;
use super::file::ImageFile;
use super::ova::{self, Ova};
use super::{Image, ImportError, Result, qcow2, raw, text, vdi, vhd, vhdx, vmdk};

/// A pattern at an offset of the file.
type Magic = (usize, &'static [u8]);

/// Archives and compressed files, and their descriptions.
const ARCHIVES: [(Magic, &str); 15] = [
    ((0, b"\x1f\x8b"), "a gzip archive"),
    ((0, b"\xfd7zXZ\0"), "an xz archive"),
    ((0, b"\x28\xb5\x2f\xfd"), "a zstd archive"),
    ((0, b"BZh"), "a bzip2 archive"),
    ((0, b"PK\x03\x04"), "a zip archive"),
    ((0, b"7z\xbc\xaf\x27\x1c"), "a 7z archive"),
    ((0, b"\x04\x22\x4d\x18"), "an LZ4 archive"),
    ((0, b"\x02\x21\x4c\x18"), "an LZ4 archive"),
    ((0, b"\x89LZO\0\r\n\x1a\n"), "an lzop archive"),
    ((0, b"LZIP\x01"), "an lzip archive"),
    ((0, b"Rar!\x1a\x07"), "a RAR archive"),
    ((0, b"MSCF\0\0\0\0"), "a cabinet archive"),
    ((0, b"MSWIM\0\0\0"), "a Windows image (WIM)"),
    ((0, b"!<arch>\n"), "an ar archive"),
    // zstd and LZ4 share the magic numbers of skippable frames, the first byte of which varies.
    ((1, b"\x2a\x4d\x18"), "a zstd or LZ4 archive"),
];

/// Disk formats that are not supported, their descriptions, and what to do.
const UNSUPPORTED: [(Magic, &str, Remedy); 11] = [
    ((0, b"QED\0"), "is a QED file", Remedy::Convert { from: "qed" }),
    ((0, b"WithoutFreeSpace"), "is a Parallels disk", Remedy::Convert { from: "parallels" }),
    ((0, b"WithouFreSpacExt"), "is a Parallels disk", Remedy::Convert { from: "parallels" }),
    (
        (0, b"COWD"),
        "is a COWD file (VMDK of old ESX releases)",
        Remedy::Say("clone the disk on the ESX host, and import the clone"),
    ),
    (
        (0, b"\xbe\xba\xfe\xca\0\0\0\0"),
        "is an extent of ESX (seSparse)",
        Remedy::Say("clone the disk on the ESX host to one without snapshots, and import the clone"),
    ),
    ((0, b"VMA\0"), "is a backup of Proxmox VE (VMA)", Remedy::Say("extract its disks, and import these")),
    ((0, b"EVF\x09\x0d\x0a\xff\0"), "is an EnCase image (EVF)", Remedy::Say("export it as a raw disk first")),
    ((0, b"EVF2\x0d\x0a\x81\0"), "is an EnCase image (EVF)", Remedy::Say("export it as a raw disk first")),
    ((0, b"AFF10\r\n\0"), "is an AFF image", Remedy::Say("export it as a raw disk first")),
    ((0, b"Bochs Virtual HD Image"), "is a Bochs disk", Remedy::Say("convert it to a raw disk first")),
    ((0, b"#!"), "is a script", Remedy::UseRaw),
];

/// Extensions of file names that indicate other contents than a raw disk.
const OTHER_EXTENSIONS: [&str; 38] = [
    "qcow", "qcow2", "vmdk", "vhd", "vhdx", "avhd", "avhdx", "vdi", "qed", "hdd", "hds", "vma", "e01",
    "ex01", "aff", "dmg", "ova", "ovf", "gz", "tgz", "xz", "txz", "zst", "bz2", "lz4", "lzo", "lz", "zip",
    "7z", "rar", "tar", "wim", "html", "htm", "txt", "json", "xml", "asc",
];

/// Media types of web servers whose contents are not a raw disk. `text/plain` is missing: servers send it for
/// any file of an unknown type, and text is found by its contents.
const OTHER_TYPES: [&str; 6] =
    ["text/html", "text/xml", "application/xhtml+xml", "application/xml", "application/json", "text/css"];

/// Bytes at the start of the file that are examined.
const HEAD: u64 = 4096;
/// Sector size of the disks that are served.
const SECTOR: u64 = 512;
/// Sector size of the disks that are refused: partition tables and file systems count in sectors.
const LARGE_SECTOR: u64 = 4096;
/// First bytes of the header of a GUID partition table, which is in the second sector of a disk.
const GPT: &[u8; 8] = b"EFI PART";

/// What a file is.
pub(super) enum Opened {
    /// A disk, with its format, which is not `Auto`.
    Image(Format, Box<dyn Image>),
    /// A disk in an archive.
    Archive(Box<Ova>),
}

/// Opens a file with the given or the detected format. `disk` is the disk of an archive that the user has
/// chosen.
pub(super) fn open(file: ImageFile, given: Format, disk: Option<&str>) -> Result<Opened> {
    if file.len() == 0 {
        return Err(ImportError::Empty(file.display_name().to_owned()));
    }
    let format = if given == Format::Auto { detect(&file)? } else { given };
    match (format, disk) {
        (Format::Ova, disk) => Ok(Opened::Archive(Box::new(Ova::open(&file, disk)?))),
        (_, Some(_)) => Err(ImportError::OneDisk(file.display_name().to_owned())),
        (format, None) => Ok(Opened::Image(format, open_as(file, format, given == Format::Auto)?)),
    }
}

/// Opens the disk in the file of an archive.
pub(super) fn open_member(file: ImageFile) -> Result<Box<dyn Image>> {
    if file.len() == 0 {
        return Err(ImportError::Empty(file.display_name().to_owned()));
    }
    let format = detect(&file)?;
    open_as(file, format, true)
}

fn open_as(file: ImageFile, format: Format, detect_all: bool) -> Result<Box<dyn Image>> {
    let name = file.display_name().to_owned();
    let mut image: Box<dyn Image> = match format {
        Format::Auto | Format::Raw => Box::new(raw::Raw::new(file)),
        Format::Qcow2 => Box::new(qcow2::Qcow2::open(file)?),
        Format::Vmdk => vmdk::open(file, !detect_all)?,
        Format::Vhd => Box::new(vhd::Vhd::open(file)?),
        Format::Vhdx => Box::new(vhdx::Vhdx::open(file)?),
        Format::Vdi => Box::new(vdi::Vdi::open(file)?),
        Format::Ova => return Err(ImportError::Archive { path: name, what: "an archive in an archive" }),
    };
    if detect_all && (image.sector_size() != SECTOR || has_large_sectors(&mut *image)?) {
        return Err(ImportError::LargeSectors { path: name, format });
    }
    Ok(image)
}

fn detect(file: &ImageFile) -> Result<Format> {
    let head = file.read_vec(0, file.len().min(HEAD))?;
    let found = |(at, magic): Magic| head.get(at..at + magic.len()) == Some(magic);
    if found((0, qcow2::MAGIC)) {
        return Ok(Format::Qcow2);
    }
    if found((0, vmdk::SPARSE_MAGIC)) || vmdk::is_descriptor(&head) {
        return Ok(Format::Vmdk);
    }
    if found((0, vhdx::MAGIC)) {
        return Ok(Format::Vhdx);
    }
    if vhd::is_vhd(file)? {
        return Ok(Format::Vhd);
    }
    if found(vdi::MAGIC) {
        return Ok(Format::Vdi);
    }
    if head.get(..512).is_some_and(ova::is_header) || found(ova::MAGIC) {
        return Ok(Format::Ova);
    }
    if let Some((_, what, remedy)) = UNSUPPORTED.iter().find(|(magic, ..)| found(*magic)) {
        return file.unsupported(what, *remedy);
    }
    if let Some((_, what)) = ARCHIVES.iter().find(|(magic, _)| found(*magic)) {
        return Err(ImportError::Archive { path: file.display_name().to_owned(), what });
    }
    match contradiction(file, &head) {
        Some(what) => file.unsupported(what, Remedy::UseRaw),
        None => Ok(Format::Raw),
    }
}

/// Returns why a file in no known format is not a raw disk, as the predicate of a sentence.
fn contradiction(file: &ImageFile, head: &[u8]) -> Option<&'static str> {
    // A text file that was padded with zeroes to whole sectors is text, too. The start of a larger file is
    // not sufficient: a disk may begin with a few letters.
    let start = if file.len() <= HEAD { text::without_padding(head) } else { head };
    if text::is_text(start) {
        return Some(text::describe(start));
    }
    if file.content_type().is_some_and(|kind| OTHER_TYPES.contains(&kind)) {
        return Some("was sent as a web page or document, and is no known disk format");
    }
    let extension = file.file_name().rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase());
    if extension.is_some_and(|e| OTHER_EXTENSIONS.contains(&e.as_str())) {
        return Some("does not have the contents that its name states");
    }
    (!file.len().is_multiple_of(SECTOR)).then_some("has a length of no whole number of sectors")
}

/// Whether the partition table of a disk is where only sectors of 4096 bytes put it.
fn has_large_sectors(image: &mut dyn Image) -> Result<bool> {
    Ok(&peek(image, SECTOR)? != GPT && &peek(image, LARGE_SECTOR)? == GPT)
}

/// Returns the bytes at `offset`; zeroes in a hole, and beyond the end of the disk.
fn peek(image: &mut dyn Image, offset: u64) -> Result<[u8; 8]> {
    let mut bytes = [0; 8];
    if offset + 8 <= image.size() {
        let run = image.run(offset)?;
        if run.data && run.len >= 8 {
            image.read(offset, &mut bytes)?;
        }
    }
    Ok(bytes)
}
