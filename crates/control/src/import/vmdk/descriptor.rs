//! The descriptor of a VMDK: a text with a line for each extent.
//!
//! The text is in ASCII, except the names of files. The names are in the encoding of the host that wrote
//! them, so the text is handled as bytes.

use super::super::error::Remedy;
use super::super::file::ImageFile;
use super::super::{Result, text};

/// First line of most descriptors, in any letter case. Like QEMU, this server also accepts any other comments
/// before the line of the version.
const MARK: &[u8] = b"# disk descriptorfile";
/// Key of the first line that is no comment.
const VERSION: &[u8] = b"version";
/// `parentCID` of a disk without a parent.
const NO_PARENT: &[u8] = b"ffffffff";

/// A parsed descriptor of a VMDK disk.
#[derive(Debug)]
pub(super) struct Descriptor {
    pub extents: Vec<ExtentLine>,
}

/// The line of an extent of at least one sector.
#[derive(Debug)]
pub(super) struct ExtentLine {
    pub sectors: u64,
    pub kind: ExtentKind,
}

/// The type of an extent of the disk.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ExtentKind {
    Zero,
    Flat { name: Vec<u8>, offset_sectors: u64 },
    Sparse { name: Vec<u8> },
}

/// Whether `head` is the start of a descriptor.
pub fn is_descriptor(head: &[u8]) -> bool {
    let text = text::decoded(head);
    let mut lines = lines(&text).filter(|line| !line.is_empty());
    let Some(first) = lines.find(|line| !line.starts_with(b"#") || starts_with(line, MARK)) else {
        return false;
    };
    starts_with(first, MARK) || key_value(first).is_some_and(|(key, _)| key.eq_ignore_ascii_case(VERSION))
}

/// The lines of a text, without the white space and the padding around them.
fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|b| *b == b'\n').map(|line| {
        let is_space = |b: &u8| *b == 0 || b.is_ascii_whitespace();
        let start = line.iter().position(|b| !is_space(b)).unwrap_or(line.len());
        let end = line.iter().rposition(|b| !is_space(b)).map_or(start, |last| last + 1);
        &line[start..end]
    })
}

fn starts_with(line: &[u8], start: &[u8]) -> bool {
    line.get(..start.len()).is_some_and(|s| s.eq_ignore_ascii_case(start))
}

/// Splits a line `key = value`.
fn key_value(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let (key, value) = split_at_byte(line, b'=')?;
    Some((key.trim_ascii(), value.trim_ascii()))
}

/// Returns what precedes and follows the first `byte`.
fn split_at_byte(bytes: &[u8], byte: u8) -> Option<(&[u8], &[u8])> {
    let at = bytes.iter().position(|b| *b == byte)?;
    Some((&bytes[..at], &bytes[at + 1..]))
}

fn words(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

fn number(word: &[u8]) -> Option<u64> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

impl Descriptor {
    /// Parses a descriptor file, or a descriptor embedded in an extent, whose extent lines are not used.
    pub fn parse(file: &ImageFile, text: &[u8]) -> Result<Descriptor> {
        if !is_descriptor(text) {
            return file.damaged("it is neither a sparse VMDK nor a descriptor");
        }
        let text = text::decoded(text);
        let mut extents = Vec::new();
        for line in lines(&text) {
            if let Some((key, value)) = key_value(line)
                && key.eq_ignore_ascii_case(b"parentCID")
                && !value.eq_ignore_ascii_case(NO_PARENT)
            {
                return file.unsupported(
                    "is a delta disk, which is not supported",
                    Remedy::Convert { from: "vmdk" },
                );
            }
            let access = words(line).next().unwrap_or_default();
            if matches!(access, b"RW" | b"RDONLY" | b"NOACCESS") {
                extents.extend(extent(file, line)?);
                if extents.len() > super::MAX_EXTENTS {
                    return file.damaged("its descriptor lists more than 4096 extents");
                }
            }
        }
        Ok(Descriptor { extents })
    }
}

/// Parses an extent line: `RW 4192256 SPARSE "disk-s001.vmdk"`, `RW 2048 FLAT "disk-flat.vmdk" 0`, `RW 2048
/// ZERO`. Returns `None` for an extent of 0 sectors.
fn extent(file: &ImageFile, line: &[u8]) -> Result<Option<ExtentLine>> {
    let bad = || file.damaged_or("its descriptor has an invalid extent line");
    let (head, quoted) = match split_at_byte(line, b'"') {
        Some((head, rest)) => {
            let end = rest.iter().rposition(|b| *b == b'"').ok_or_else(bad)?;
            (head, Some((&rest[..end], &rest[end + 1..])))
        }
        None => (line, None),
    };
    let mut words = words(head);
    let (access, sectors, kind) = (words.next(), words.next(), words.next());
    if access == Some(b"NOACCESS") {
        let remedy = Remedy::Say("copy the disk on its host, and import the copy");
        return file.unsupported("has an extent with access NOACCESS", remedy);
    }
    let sectors: u64 = sectors.and_then(number).ok_or_else(bad)?;
    let kind = match (kind, quoted) {
        (Some(b"ZERO"), _) => ExtentKind::Zero,
        (Some(b"FLAT" | b"VMFS"), Some((name, offset))) => {
            let offset = offset.trim_ascii();
            let offset_sectors = if offset.is_empty() { 0 } else { number(offset).ok_or_else(bad)? };
            ExtentKind::Flat { name: name.to_owned(), offset_sectors }
        }
        (Some(b"SPARSE"), Some((name, _))) => ExtentKind::Sparse { name: name.to_owned() },
        (Some(b"VMFSSPARSE" | b"SESPARSE" | b"VMFSRDM" | b"VMFSRAW"), _) => {
            let remedy = Remedy::Say("clone the disk on the ESX host, and import the clone");
            return file.unsupported("has an extent of a type that only ESX supports", remedy);
        }
        _ => return Err(bad()),
    };
    Ok((sectors != 0).then_some(ExtentLine { sectors, kind }))
}
