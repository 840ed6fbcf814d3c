//! Entry points for fuzzing the readers of image files and of URLs, and the decompression.
//!
//! The guarantees: no file causes a panic, an allocation that is larger than the file justifies, or a read
//! that does not end; and no text is displayed with the secrets that a URL in it has.

#![allow(clippy::unwrap_used, reason = "a violation is a panic")]

use std::path::PathBuf;

use forebay_api::import::Format;

use super::file::ImageFile;
use super::file::bytes::{le32, le64};
use super::unpack::{self, Packing};
use super::url::{Url, masked};
use super::{Image, ImportError, Result, detect, ova};

/// Maximum number of runs that are visited: a fuzzer's time is limited, and a disk can have 64 TiB.
const RUNS: usize = 4096;
/// Bytes of one read.
const READ: u64 = 64 << 10;
/// Maximum length of a file.
const MAX_FILE: u64 = 16 << 20;
/// Unit of packed files in bytes.
const SECTOR: usize = 512;
/// Flag of the first byte of an input: checksums are corrected, which a fuzzer cannot guess.
const CORRECTED: u8 = 0x80;
/// The formats by the number in the first byte of an input.
const FORMATS: [Format; 8] = [
    Format::Auto,
    Format::Raw,
    Format::Qcow2,
    Format::Vmdk,
    Format::Vhd,
    Format::Vhdx,
    Format::Vdi,
    Format::Ova,
];

/// A target: its name, which is also the name of its corpus, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[
    ("image_file", image_file),
    ("import_url", import_url),
    ("packed_file", packed_file),
    ("send_stream", send_stream),
];

pub use crate::operations::transfer::stream::fuzzing::{sample as sample_stream, send_stream};

/// Reads the disk in a packed file, see [`pack_image`].
pub fn image_file(data: &[u8]) {
    let Some((kind, packed)) = data.split_first() else { return };
    let mut bytes = unpack(packed);
    if kind & CORRECTED != 0 {
        correct_vhdx(&mut bytes);
        correct_vhd(&mut bytes);
        correct_tar(&mut bytes);
    }
    let format = FORMATS[usize::from(kind & !CORRECTED) % FORMATS.len()];
    let file = memory_file(&bytes);
    let file = ImageFile::from_file(file, PathBuf::new(), "fuzz".to_owned()).unwrap();
    // An error is right for any file.
    let _ = detect::open(file, format, None).and_then(|opened| {
        let mut image = match opened {
            detect::Opened::Image(_, image) => image,
            detect::Opened::Archive(ova) => ova.into_image()?,
        };
        read_all(&mut *image)
    });
}

/// Decompresses a file.
pub fn packed_file(data: &[u8]) {
    let file = memory_file(data);
    let file = ImageFile::from_file(file, PathBuf::new(), "fuzz".to_owned()).unwrap();
    let Ok(Some(packing)) = Packing::detect(&file, Format::Auto) else { return };
    let (report, _reports) = tokio::sync::mpsc::channel(1);
    let mut len = 0;
    // An error is right for any file.
    let _ = unpack::decode(&file, packing, &report, &mut |piece| {
        len += piece.len() as u64;
        if len < MAX_FILE { Ok(()) } else { Err(ImportError::Cancelled) }
    });
}

fn read_all(image: &mut dyn Image) -> Result<()> {
    let (mut offset, size) = (0, image.size());
    let mut buffer = vec![0; READ as usize];
    for _ in 0..RUNS {
        if offset >= size {
            break;
        }
        let run = image.run(offset)?;
        assert!(run.len != 0, "a run has at least one byte");
        let len = run.len.min(size - offset);
        if run.data {
            let len = len.min(READ);
            image.read(offset, &mut buffer[..len as usize])?;
            offset += len;
        } else {
            offset += len;
        }
    }
    Ok(())
}

/// A file in memory, which is freed when it is closed.
fn memory_file(bytes: &[u8]) -> std::fs::File {
    use std::io::Write;
    use std::os::fd::FromRawFd;
    // SAFETY: the name ends with a zero byte.
    let fd = unsafe { libc::memfd_create(c"fuzz".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0, "memfd_create: {}", std::io::Error::last_os_error());
    // SAFETY: the descriptor is new and has no other owner.
    let mut file = unsafe { std::fs::File::from_raw_fd(fd) };
    file.write_all(bytes).unwrap();
    file
}

/// Converts a file to an input of [`image_file`]: the format, the length, and each sector that is not zero
/// with its number.
pub fn pack_image(kind: u8, file: &[u8]) -> Vec<u8> {
    let mut packed = vec![kind];
    packed.extend((file.len() as u32).to_le_bytes());
    for (number, sector) in file.chunks(SECTOR).enumerate() {
        if sector.iter().any(|b| *b != 0) {
            packed.extend((number as u16).to_le_bytes());
            packed.extend(sector);
            packed.resize(packed.len() + SECTOR - sector.len(), 0);
        }
    }
    packed
}

fn unpack(packed: &[u8]) -> Vec<u8> {
    let Some((len, sectors)) = packed.split_first_chunk::<4>() else { return Vec::new() };
    let mut file = vec![0; u64::from(u32::from_le_bytes(*len)).min(MAX_FILE) as usize];
    for sector in sectors.chunks(2 + SECTOR) {
        let Some((number, bytes)) = sector.split_first_chunk::<2>() else { break };
        let at = usize::from(u16::from_le_bytes(*number)) * SECTOR;
        if let Some(place) = file.get_mut(at..) {
            let len = place.len().min(bytes.len());
            place[..len].copy_from_slice(&bytes[..len]);
        }
    }
    file
}

/// Corrects the checksums of headers, region tables, and the first entry of the log.
fn correct_vhdx(file: &mut [u8]) {
    for (at, len) in [(64 << 10, 4096), (128 << 10, 4096), (192 << 10, 64 << 10), (256 << 10, 64 << 10)] {
        correct_crc(file, at, len);
    }
    let number = |at: u64, len: u64| {
        let at = usize::try_from(at).unwrap();
        let bytes = file.get(at..at.checked_add(8)?)?;
        Some(if len == 8 { le64(bytes, 0) } else { le32(bytes, 0).into() })
    };
    if let Some(log) = number((64 << 10) + 72, 8)
        && let Some(len) = number(log.saturating_add(8), 4)
    {
        correct_crc(file, log, len);
    }
}

/// Corrects the CRC-32C at byte 4 of a structure, if it is in the file.
fn correct_crc(file: &mut [u8], at: u64, len: u64) {
    let end = usize::try_from(at.saturating_add(len)).unwrap();
    if let Some(part) = file.get_mut(at as usize..end).filter(|part| part.len() >= 8) {
        part[4..8].fill(0);
        let sum = forebay_format::crc32c(part).to_le_bytes();
        part[4..8].copy_from_slice(&sum);
    }
}

/// Corrects the checksums of the footer, of its copy, and of the header after the copy.
fn correct_vhd(file: &mut [u8]) {
    for (at, len, sum_at) in [(file.len().saturating_sub(512), 512, 64), (0, 512, 64), (512, 1024, 36)] {
        if let Some(part) = file.get_mut(at..at + len).filter(|p| p.starts_with(b"c")) {
            part[sum_at..sum_at + 4].fill(0);
            let sum = !part.iter().map(|b| u32::from(*b)).sum::<u32>();
            part[sum_at..sum_at + 4].copy_from_slice(&sum.to_be_bytes());
        }
    }
}

/// Corrects the checksums of the headers in a tar archive.
fn correct_tar(file: &mut [u8]) {
    let (magic_at, magic) = ova::MAGIC;
    for header in file.as_chunks_mut::<SECTOR>().0 {
        if header[magic_at..].starts_with(magic) {
            header[148..156].fill(b' ');
            let sum: u32 = header.iter().map(|b| u32::from(*b)).sum();
            header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
    }
}

/// Parses a URL, and the target of a redirect on its second line.
pub fn import_url(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (text, location) = text.split_once('\n').unwrap_or((text, ""));
    let shown = masked(text);
    let Some(url) = Url::parse(text) else { return };
    assert_eq!(shown, url.to_string());
    if url.credentials().is_some() {
        assert!(shown.contains("://***@"), "the credentials are displayed");
    }
    // The target of the request is a URL again, and the same one.
    let again = Url::parse(&url.absolute_form()).unwrap();
    assert_eq!(again.absolute_form(), url.absolute_form());
    assert!(url.origin_form().is_ascii() && url.origin_form().starts_with('/'));
    if let Some(target) = url.join(location) {
        assert!(target.origin_form().starts_with('/'));
        assert!(target.credentials().is_none() || target.same_server(&url) || location.contains('@'));
    }
}
