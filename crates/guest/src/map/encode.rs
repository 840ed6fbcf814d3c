//! The stored format of a class map. `docs/guests.md` has the layout.
//!
//! Each run is one LEB128 number with its length and class, so most runs have two or three bytes. A checksum
//! is at the end. Decoding accepts arbitrary bytes: it does not panic, and uses at most eight times the
//! memory of the input.

use crc_fast::{CrcAlgorithm, checksum};

use super::{CLASS_BITS, ClassMap, MAX_BLOCKS, class};

const MAGIC: &[u8; 4] = b"FBCM";
/// The version of the encoding that this release writes. It can read no other version.
const VERSION: u8 = 1;
/// Length of the header: magic number, version, three zero bytes, blocks, runs.
const HEADER: usize = 24;
const CHECK: usize = 4;

/// Why the bytes of a map cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are not a class map, or are truncated.
    #[error("not a class map")]
    Magic,
    /// Written by a newer release. The disk has to be scanned again.
    #[error("class map has version {0}, which this release does not support")]
    Version(u8),
    /// The checksum of the map does not match.
    #[error("class map: checksum mismatch")]
    Checksum,
    /// The checksum is correct, but a value is invalid.
    #[error("class map: invalid value in {0}")]
    Value(&'static str),
}

fn crc(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Reads a number and advances `bytes`. Returns `None` if the number is incomplete or not in its shortest
/// form.
fn take_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for (i, byte) in bytes.iter().take(9).enumerate() {
        number |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            let shortest = i == 0 || *byte != 0;
            *bytes = &bytes[i + 1..];
            return shortest.then_some(number);
        }
    }
    None
}

impl ClassMap {
    /// Encodes the map of block classes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER + CHECK + self.runs.len() * 3);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&[VERSION, 0, 0, 0]);
        out.extend_from_slice(&self.blocks.to_le_bytes());
        out.extend_from_slice(&(self.runs.len() as u64).to_le_bytes());
        for (range, class) in self.runs() {
            let mut number = (range.end - range.start) << CLASS_BITS | class as u64;
            while number >= 0x80 {
                out.push(number as u8 | 0x80);
                number >>= 7;
            }
            out.push(number as u8);
        }
        let check = crc(&out);
        out.extend_from_slice(&check.to_le_bytes());
        out
    }

    /// Decodes the output of [`ClassMap::encode`]. Accepts exactly one encoding of each map.
    pub fn decode(bytes: &[u8]) -> Result<ClassMap, DecodeError> {
        let Some((content, check)) = bytes.split_last_chunk::<CHECK>() else {
            return Err(DecodeError::Magic);
        };
        let Some((header, mut rest)) = content.split_first_chunk::<HEADER>() else {
            return Err(DecodeError::Magic);
        };
        if &header[..4] != MAGIC {
            return Err(DecodeError::Magic);
        }
        if header[4] != VERSION {
            return Err(DecodeError::Version(header[4]));
        }
        if crc(content) != u32::from_le_bytes(*check) {
            return Err(DecodeError::Checksum);
        }
        if header[5..8] != [0; 3] {
            return Err(DecodeError::Value("header"));
        }
        let word = |at: usize| header[at..at + 8].iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
        let (blocks, runs) = (word(8), word(16));
        if blocks > MAX_BLOCKS {
            return Err(DecodeError::Value("blocks"));
        }
        let mut map = ClassMap::empty();
        while !rest.is_empty() {
            let number = take_number(&mut rest).ok_or(DecodeError::Value("run"))?;
            let (len, class) = (number >> CLASS_BITS, class_of_number(number)?);
            let differs = map.runs.last().is_none_or(|last| self::class(*last) != class);
            if len == 0 || len > blocks - map.blocks || !differs {
                return Err(DecodeError::Value("run"));
            }
            map.push(len, class);
        }
        if map.blocks != blocks || map.runs.len() as u64 != runs {
            return Err(DecodeError::Value("runs"));
        }
        Ok(map)
    }
}

fn class_of_number(number: u64) -> Result<crate::Class, DecodeError> {
    let class = (number & ((1 << CLASS_BITS) - 1)) as u8;
    crate::Class::from_number(class).ok_or(DecodeError::Value("class"))
}

/// Corrects the checksum, as an attacker could.
#[cfg(feature = "fuzzing")]
pub(crate) fn seal(bytes: &mut [u8]) {
    if let Some((content, check)) = bytes.split_last_chunk_mut::<CHECK>() {
        *check = crc(content).to_le_bytes();
    }
}
