//! File records of the MFT, and their attributes.

use crate::bytes::{le16, le32, le64};

/// Type codes of NTFS attributes.
pub(super) const ATTRIBUTE_LIST: u32 = 0x20;
pub(super) const FILE_NAME: u32 = 0x30;
pub(super) const DATA: u32 = 0x80;
const END: u32 = u32::MAX;

/// A fixup is at the end of each stride of this many bytes (update sequence array).
const STRIDE: usize = 512;

/// A file reference: the number of a record and its sequence number, which changes when the record is reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reference {
    pub number: u64,
    pub sequence: u16,
}

impl Reference {
    pub fn parse(bytes: &[u8], at: usize) -> Option<Reference> {
        let word = le64(bytes, at)?;
        Some(Reference { number: word & ((1 << 48) - 1), sequence: (word >> 48) as u16 })
    }
}

/// A record in use, with its fixups applied.
#[derive(Debug)]
pub(super) struct Record {
    bytes: Vec<u8>,
    pub sequence: u16,
    pub is_directory: bool,
    /// The base record, if this is an extension record.
    pub base: Option<Reference>,
    attributes: usize,
}

impl Record {
    /// Returns `None` if the record is unused, invalid or partially written.
    pub fn parse(bytes: &[u8]) -> Option<Record> {
        let flags = le16(bytes, 22)?;
        if !bytes.starts_with(b"FILE") || flags & 1 == 0 {
            return None;
        }
        let base = Reference::parse(bytes, 32)?;
        let used = (le32(bytes, 24)? as usize).min(bytes.len());
        let mut bytes = bytes.to_vec();
        undo_fixups(&mut bytes)?;
        bytes.truncate(used);
        Some(Record {
            sequence: le16(&bytes, 16)?,
            is_directory: flags & 2 != 0,
            // Record 0 can be a base record: a reference to it has a sequence number other than 0.
            base: (base != Reference { number: 0, sequence: 0 }).then_some(base),
            attributes: le16(&bytes, 20)?.into(),
            bytes,
        })
    }

    /// Returns the attributes, up to the first invalid one.
    pub fn attributes(&self) -> impl Iterator<Item = Attribute<'_>> {
        let mut rest = self.bytes.get(self.attributes..).unwrap_or_default();
        std::iter::from_fn(move || {
            let kind = le32(rest, 0).filter(|kind| *kind != END)?;
            let len = le32(rest, 4)? as usize;
            // An attribute has a header of at least 24 bytes, so the iteration ends.
            let (bytes, behind) = rest.split_at_checked(len).filter(|_| len >= 24)?;
            rest = behind;
            Attribute::parse(kind, bytes)
        })
    }
}

/// Restores the last two bytes of each stride. Returns `None` if a stride was not written together with the
/// other strides.
fn undo_fixups(bytes: &mut [u8]) -> Option<()> {
    let (at, count) = (usize::from(le16(bytes, 4)?), usize::from(le16(bytes, 6)?));
    let array = bytes.get(at..at + count * 2)?.to_vec();
    let (expected, saved) = array.split_at_checked(2)?;
    if saved.len() / 2 != bytes.len() / STRIDE || at + count * 2 > STRIDE - 2 {
        return None;
    }
    for (stride, saved) in bytes.chunks_exact_mut(STRIDE).zip(saved.chunks_exact(2)) {
        let end = &mut stride[STRIDE - 2..];
        if end != expected {
            return None;
        }
        end.copy_from_slice(saved);
    }
    Some(())
}

/// An attribute, or one extent of its stream.
#[derive(Debug)]
pub(super) struct Attribute<'b> {
    pub kind: u32,
    /// Name in UTF-16; empty for an unnamed attribute.
    pub name: &'b [u8],
    /// The stream is compressed or encrypted: its clusters do not contain the plain stream.
    pub is_coded: bool,
    pub value: Value<'b>,
}

/// The value of an attribute.
#[derive(Debug)]
pub(super) enum Value<'b> {
    /// The value is resident: it is in the record.
    Resident(&'b [u8]),
    /// The value is non-resident: it is in clusters.
    Clusters {
        /// First VCN of this extent of the attribute.
        first_vcn: u64,
        /// Size of the stream in bytes; valid in the first extent only.
        size: u64,
        /// Initialised size of the stream in bytes; valid in the first extent only.
        written: u64,
        pairs: &'b [u8],
    },
}

impl<'b> Attribute<'b> {
    fn parse(kind: u32, bytes: &'b [u8]) -> Option<Attribute<'b>> {
        let (name_len, name_at) = (usize::from(bytes[9]) * 2, usize::from(le16(bytes, 10)?));
        let name = if name_len == 0 { &[] } else { bytes.get(name_at..name_at + name_len)? };
        let flags = le16(bytes, 12)?;
        let value = if bytes[8] == 0 {
            let (len, at) = (le32(bytes, 16)? as usize, usize::from(le16(bytes, 20)?));
            Value::Resident(bytes.get(at..at.checked_add(len)?)?)
        } else {
            Value::Clusters {
                first_vcn: le64(bytes, 16)?,
                size: le64(bytes, 48).unwrap_or(0),
                written: le64(bytes, 56).unwrap_or(0),
                pairs: bytes.get(usize::from(le16(bytes, 32)?)..)?,
            }
        };
        Some(Attribute { kind, name, is_coded: flags & 0x40ff != 0, value })
    }
}

/// A name of a file and its parent directory.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub parent: Reference,
    pub name: String,
}

impl Name {
    /// Parses the value of a `$FILE_NAME`. Returns `None` for a DOS short name.
    pub fn parse(value: &[u8]) -> Option<Name> {
        const DOS: u8 = 2;
        let (len, space) = (usize::from(*value.get(64)?), *value.get(65)?);
        let units = value.get(66..66 + 2 * len)?.chunks_exact(2).map(|c| u16::from_le_bytes([c[0], c[1]]));
        let name = char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)).collect();
        (space != DOS).then_some(Name { parent: Reference::parse(value, 0)?, name })
    }
}
