//! Records of the master file table, and the attributes in them.

use crate::bytes::{le16, le32, le64};

/// Types of attributes.
pub(super) const ATTRIBUTE_LIST: u32 = 0x20;
pub(super) const FILE_NAME: u32 = 0x30;
pub(super) const DATA: u32 = 0x80;
const END: u32 = u32::MAX;

/// Fixups stand at the end of each so many bytes.
const STRIDE: usize = 512;

/// A record's number, and how often it was used before: one that was used again is another.
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

/// A record in use, with its fixups undone.
#[derive(Debug)]
pub(super) struct Record {
    bytes: Vec<u8>,
    pub sequence: u16,
    pub is_directory: bool,
    /// The record that this one adds to, if it is not one of its own.
    pub base: Option<Reference>,
    attributes: usize,
}

impl Record {
    /// None where nothing is, or something half-written.
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
            // Record 0 may be a base too; its sequence number tells it from none.
            base: (base != Reference { number: 0, sequence: 0 }).then_some(base),
            attributes: le16(&bytes, 20)?.into(),
            bytes,
        })
    }

    /// Its attributes, up to the first that makes no sense.
    pub fn attributes(&self) -> impl Iterator<Item = Attribute<'_>> {
        let mut rest = self.bytes.get(self.attributes..).unwrap_or_default();
        std::iter::from_fn(move || {
            let kind = le32(rest, 0).filter(|kind| *kind != END)?;
            let len = le32(rest, 4)? as usize;
            // A header is 24 bytes, so this ends.
            let (bytes, behind) = rest.split_at_checked(len).filter(|_| len >= 24)?;
            rest = behind;
            Attribute::parse(kind, bytes)
        })
    }
}

/// Puts the last two bytes of each stride back; None where they were not written together with the rest.
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

/// One attribute, or one part of it.
#[derive(Debug)]
pub(super) struct Attribute<'b> {
    pub kind: u32,
    /// In UTF-16; empty for the one without a name.
    pub name: &'b [u8],
    /// Compressed or encrypted: what its clusters hold is not what the stream holds.
    pub is_coded: bool,
    pub value: Value<'b>,
}

/// Where its value is.
#[derive(Debug)]
pub(super) enum Value<'b> {
    /// In the record.
    Resident(&'b [u8]),
    /// In clusters.
    Clusters {
        /// The first of the stream that this part has.
        first_vcn: u64,
        /// Bytes of the stream; only the first part knows.
        size: u64,
        /// Of these, bytes that were written.
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

/// A name of a file, in a directory.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub parent: Reference,
    pub name: String,
}

impl Name {
    /// Of the value of a `$FILE_NAME`. None for the short names that only DOS sees.
    pub fn parse(value: &[u8]) -> Option<Name> {
        const DOS: u8 = 2;
        let (len, space) = (usize::from(*value.get(64)?), *value.get(65)?);
        let units = value.get(66..66 + 2 * len)?.chunks_exact(2).map(|c| u16::from_le_bytes([c[0], c[1]]));
        let name = char::decode_utf16(units).map(|c| c.unwrap_or(char::REPLACEMENT_CHARACTER)).collect();
        (space != DOS).then_some(Name { parent: Reference::parse(value, 0)?, name })
    }
}
