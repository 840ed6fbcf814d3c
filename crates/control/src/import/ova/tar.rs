//! The members of a tar archive (POSIX.1-2017 `pax`, with the long names and numbers of GNU tar).

use super::super::file::ImageFile;
use super::super::{ImportError, Result};

/// Size of a record, to which each member is padded.
const RECORD: u64 = 512;
/// The signature in a header, and its offset.
pub const MAGIC: (usize, &[u8]) = (257, b"ustar");
/// Maximum number of members. An OVA has a descriptor, a manifest, and a few disks.
const MAX_MEMBERS: usize = 1024;
/// Maximum length of an extended header or of a long name.
const MAX_EXTENDED: u64 = 64 << 10;

/// A regular file in the archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The name, without `./` at its beginning.
    pub name: String,
    /// Offset of the contents in the archive.
    pub at: u64,
    /// Length of the contents in bytes.
    pub len: u64,
}

/// Name and length that an extended header states for the next member.
#[derive(Default)]
struct Extended {
    name: Option<String>,
    len: Option<u64>,
}

/// Lists the regular files of an archive, in their order.
pub fn members(file: &ImageFile) -> Result<Vec<Member>> {
    let (mut all, mut at, mut extended) = (Vec::new(), 0, Extended::default());
    while at < file.len() {
        let header = file.read_vec(at, RECORD)?;
        if header.iter().all(|b| *b == 0) {
            break;
        }
        if !is_header(&header) {
            return file.damaged("a header of the archive is invalid");
        }
        let stated = number(&header[124..136]);
        let stated = stated.ok_or_else(|| file.damaged_or("a length in the archive is invalid"))?;
        let len = extended.len.filter(|_| is_regular(header[156])).unwrap_or(stated);
        let contents = at + RECORD;
        let end = contents.checked_add(len).filter(|end| *end <= file.len());
        let end = end.ok_or_else(|| file.truncated(contents.saturating_add(len)))?;
        match header[156] {
            b'x' => read_extended(&extension(file, contents, len)?, &mut extended),
            b'L' => extended.name = Some(text(&extension(file, contents, len)?)),
            kind => {
                let Extended { name, .. } = std::mem::take(&mut extended);
                if is_regular(kind) {
                    let name = name.unwrap_or_else(|| header_name(&header));
                    let name = name.strip_prefix("./").unwrap_or(&name).to_owned();
                    all.push(Member { name, at: contents, len });
                }
            }
        }
        if all.len() > MAX_MEMBERS {
            let path = file.display_name().to_owned();
            return Err(ImportError::Archive { path, what: "a tar archive of more than 1024 files" });
        }
        at = end.next_multiple_of(RECORD);
    }
    Ok(all)
}

/// Whether a record is the header of a member: its checksum is right.
pub fn is_header(record: &[u8]) -> bool {
    let (Some(field), Some(magic)) = (record.get(148..156), record.get(257..262)) else { return false };
    let others = record.iter().enumerate().filter(|(i, _)| !(148..156).contains(i));
    let sum = others.map(|(_, b)| u64::from(*b)).sum::<u64>() + 8 * u64::from(b' ');
    magic == MAGIC.1 && number(field) == Some(sum)
}

fn is_regular(kind: u8) -> bool {
    matches!(kind, b'0' | 0 | b'7')
}

/// The contents of a member that describes the next one.
fn extension(file: &ImageFile, at: u64, len: u64) -> Result<Vec<u8>> {
    match len > MAX_EXTENDED {
        true => file.damaged("a name in the archive is too long"),
        false => file.read_vec(at, len),
    }
}

/// Reads the records of an extended header: `LENGTH KEY=VALUE`, each with a line end.
fn read_extended(mut records: &[u8], extended: &mut Extended) {
    while let Some(space) = records.iter().position(|b| *b == b' ') {
        let len = std::str::from_utf8(&records[..space]).ok().and_then(|len| len.parse::<usize>().ok());
        let Some(record) = len.and_then(|len| records.get(space + 1..len)) else { return };
        records = &records[space + 1 + record.len()..];
        let record = text(record);
        match record.trim_end_matches('\n').split_once('=') {
            Some(("path", name)) => extended.name = Some(name.to_owned()),
            Some(("size", len)) => extended.len = len.parse().ok(),
            _ => {}
        }
    }
}

/// The name in a header: a prefix and a name, each of which ends at its first zero byte.
fn header_name(header: &[u8]) -> String {
    let (name, prefix) = (text(&header[..100]), text(&header[345..500]));
    // GNU tar has other fields in the place of the prefix.
    match prefix.is_empty() || header[262] == b' ' {
        true => name,
        false => format!("{prefix}/{name}"),
    }
}

/// A text up to its first zero byte.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// A number: octal digits, or binary with the highest bit set as GNU tar writes large ones.
fn number(field: &[u8]) -> Option<u64> {
    if let [first @ 0x80..=0xff, rest @ ..] = field {
        let (high, low) = rest.split_at(rest.len().checked_sub(8)?);
        let is_small = first & 0x7f == 0 && high.iter().all(|b| *b == 0);
        return is_small.then(|| low.iter().fold(0, |n, b| (n << 8) | u64::from(*b)));
    }
    let digits = std::str::from_utf8(field).ok()?.trim_matches(['\0', ' ']);
    u64::from_str_radix(digits, 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_binary() {
        for (field, expected) in [
            (&b"0000644\0"[..], Some(0o644)),
            (b"   17 \0\0", Some(0o17)),
            (b"\x80\0\0\0\0\0\0\x01\0\0\0\0", Some(1 << 32)),
            (b"\x80\0\0\x01\0\0\0\0\0\0\0\0", None),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", None),
            (b"\x80\0\0", None),
            (b"9", None),
            (b"", None),
        ] {
            assert_eq!(number(field), expected, "{field:?}");
        }
    }

    #[test]
    fn records_of_extended_headers_are_read() {
        let read = |records: &[u8]| {
            let mut extended = Extended::default();
            read_extended(records, &mut extended);
            (extended.name, extended.len)
        };
        let both = b"15 path=./a b\n\n13 size=4096\n12 mtime=1.\n";
        assert_eq!(read(both), (Some("./a b".into()), Some(4096)));
        for bad in [&b"999 path=x\n"[..], b"1 path=x\n", b"path=x\n", b"x path=y\n", b"0 \n", b"2 "] {
            assert_eq!(read(bad), (None, None), "{bad:?}");
        }
    }
}
