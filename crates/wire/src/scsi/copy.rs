//! EXTENDED COPY(LID1) (SPC-4, "Third-party copy functions"): its parameter list, with identification
//! descriptors (E4h) and block device to block device segments (02h), and RECEIVE COPY RESULTS data.

use super::*;

/// Maximum number of sources and destinations of one list.
pub const COPY_TARGETS_MAX: u16 = 8;
/// Maximum number of copies of one list.
pub const COPY_SEGMENTS_MAX: u16 = 64;
/// Maximum bytes of all descriptors of one list.
pub const COPY_DESCRIPTORS_MAX: u32 = COPY_TARGETS_MAX as u32 * TARGET + COPY_SEGMENTS_MAX as u32 * SEGMENT;
/// Maximum length of the copy of one segment, in blocks: the maximum of its field.
pub const COPY_SEGMENT_BLOCKS_MAX: u32 = 0xffff;

/// Bytes of a list before its descriptors.
const HEADER: usize = 16;
/// Bytes of an identification descriptor, and of a segment.
const TARGET: u32 = 32;
const SEGMENT: u32 = 28;
/// Type codes of the descriptors.
const IDENTIFICATION: u8 = 0xe4;
const BLOCK_TO_BLOCK: u8 = 0x02;

/// The designator of a unit in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Designator {
    /// Code set of the designator.
    pub code_set: u8,
    /// Type of the designator.
    pub kind: u8,
    /// The designator, at most 20 bytes.
    pub bytes: Vec<u8>,
}

impl Designator {
    /// Whether the designator is one of the designators of the unit `identity`.
    pub fn names(&self, identity: &Identity) -> bool {
        let is = |(code_set, kind, bytes): &(u8, u8, Vec<u8>)| {
            (*code_set, *kind) == (self.code_set, self.kind) && *bytes == self.bytes
        };
        identity.designators().iter().any(is)
    }
}

/// One copy. Offsets and length are in bytes, and not yet checked against the units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopySegment {
    /// Index of the source in the list of targets; may be out of range.
    pub source: u16,
    /// Index of the destination in the list of targets; may be out of range.
    pub destination: u16,
    /// Offset in the source, in bytes.
    pub source_offset: u64,
    /// Offset in the destination, in bytes.
    pub offset: u64,
    /// Number of bytes to copy.
    pub len: u64,
}

/// The parameter list of EXTENDED COPY.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyList {
    /// List identifier for RECEIVE COPY STATUS; `None` if the status will not be requested.
    pub list: Option<u8>,
    /// The units, at most [`COPY_TARGETS_MAX`].
    pub targets: Vec<Designator>,
    /// The segments, in order of execution; at most [`COPY_SEGMENTS_MAX`].
    pub segments: Vec<CopySegment>,
}

impl CopyList {
    /// Decodes a list that is not empty.
    ///
    /// # Errors
    /// The list is truncated or too long, or has too many descriptors, or descriptors of another type.
    pub fn decode(list: &[u8]) -> Result<CopyList, Sense> {
        if list.len() < HEADER {
            return Err(Sense::length());
        }
        let identifier = match list[1] >> 3 & 3 {
            0 | 2 => Some(list[0]),
            3 if list[0] == 0 => None,
            3 => return Err(Sense::parameter(0)),
            _ => return Err(Sense::parameter(1)),
        };
        let targets = u64::from(list.get16(2));
        let (segments, inline) = (u64::from(list.get32(8)), u64::from(list.get32(12)));
        let end = HEADER as u64 + targets + segments;
        if targets + segments > u64::from(COPY_DESCRIPTORS_MAX) || end + inline > list.len() as u64 {
            return Err(Sense::length());
        }
        if inline > 0 {
            return Err(Sense::illegal(codes::INLINE_DATA_LENGTH_EXCEEDED));
        }
        let (targets, segments) = list[HEADER..end as usize].split_at(targets as usize);
        let first_segment = HEADER + targets.len();
        if targets.len() > usize::from(COPY_TARGETS_MAX) * TARGET as usize {
            return Err(Sense::illegal(codes::TOO_MANY_TARGET_DESCRIPTORS));
        }
        if segments.len() > usize::from(COPY_SEGMENTS_MAX) * SEGMENT as usize {
            return Err(Sense::illegal(codes::TOO_MANY_SEGMENT_DESCRIPTORS));
        }
        let targets = targets.chunks(TARGET as usize).enumerate();
        let targets = targets.map(|(n, bytes)| target(bytes, HEADER + n * TARGET as usize));
        let segments = segments.chunks(SEGMENT as usize).enumerate();
        let segments = segments.map(|(n, bytes)| segment(bytes, first_segment + n * SEGMENT as usize));
        Ok(CopyList {
            list: identifier,
            targets: targets.collect::<Result<_, _>>()?,
            segments: segments.collect::<Result<_, _>>()?,
        })
    }
}

fn target(bytes: &[u8], at: usize) -> Result<Designator, Sense> {
    let wrong = |byte: usize| Sense::parameter((at + byte) as u16);
    if bytes[0] != IDENTIFICATION {
        return Err(Sense::illegal(codes::UNSUPPORTED_TARGET_DESCRIPTOR));
    }
    if bytes.len() < TARGET as usize {
        return Err(Sense::length());
    }
    // LU ID TYPE and NUL are obsolete; the unit must be a block device with the same block length.
    if bytes[1] & 0x1f != 0 {
        return Err(wrong(1));
    }
    let block = bytes.get32(28) & 0x00ff_ffff;
    if block != BLOCK && block != 0 {
        return Err(wrong(29));
    }
    // The designator must be associated with a unit.
    if bytes[5] & 0x30 != 0 {
        return Err(wrong(5));
    }
    let Some(designator) = bytes[8..28].get(..usize::from(bytes[7])) else { return Err(wrong(7)) };
    Ok(Designator { code_set: bytes[4] & 0x0f, kind: bytes[5] & 0x0f, bytes: designator.to_vec() })
}

fn segment(bytes: &[u8], at: usize) -> Result<CopySegment, Sense> {
    if bytes[0] != BLOCK_TO_BLOCK {
        return Err(Sense::illegal(codes::UNSUPPORTED_SEGMENT_DESCRIPTOR));
    }
    if bytes.len() < SEGMENT as usize {
        return Err(Sense::length());
    }
    if u32::from(bytes.get16(2)) != SEGMENT - 4 {
        return Err(Sense::parameter(at as u16 + 2));
    }
    let offset = |byte: usize| bytes.get64(byte).checked_mul(BLOCK.into());
    let (Some(source_offset), Some(offset)) = (offset(12), offset(20)) else {
        return Err(Sense::new(SenseKey::CopyAborted, codes::NO_ADDITIONAL_SENSE));
    };
    Ok(CopySegment {
        source: bytes.get16(4),
        destination: bytes.get16(6),
        source_offset,
        offset,
        len: u64::from(bytes.get16(10)) * u64::from(BLOCK),
    })
}

/// The result of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyOutcome {
    /// Whether the copy succeeded.
    pub done: bool,
    /// Number of executed segments.
    pub segments: u16,
    /// Number of copied bytes.
    pub bytes: u64,
}

/// RECEIVE COPY STATUS(LID1) data.
pub fn copy_status(outcome: &CopyOutcome) -> Vec<u8> {
    let mut data = vec![0, 0, 0, 0, if outcome.done { 1 } else { 2 }];
    data.put16(outcome.segments);
    // The number of bytes is in KiB, rounded down, if the field cannot hold it in bytes.
    match u32::try_from(outcome.bytes) {
        Ok(bytes) => {
            data.push(0);
            data.put32(bytes);
        }
        Err(_) => {
            data.push(1);
            data.put32(u32::try_from(outcome.bytes >> 10).unwrap_or(u32::MAX));
        }
    }
    set_length(&mut data, 0, 4);
    data
}

/// RECEIVE COPY OPERATING PARAMETERS data.
pub fn copy_parameters() -> Vec<u8> {
    // SNLID: a list identifier is not required.
    let mut data = vec![0, 0, 0, 0, 1, 0, 0, 0];
    data.put16(COPY_TARGETS_MAX);
    data.put16(COPY_SEGMENTS_MAX);
    data.put32(COPY_DESCRIPTORS_MAX);
    data.put32(COPY_SEGMENT_BLOCKS_MAX * BLOCK);
    data.zeroes(14); // No inline data, no held data, no streams.
    data.put16(1);
    data.extend_from_slice(&[1, BLOCK.trailing_zeros() as u8, 0, 0, 0, 0, 0]);
    data.extend_from_slice(&[2, BLOCK_TO_BLOCK, IDENTIFICATION]);
    set_length(&mut data, 0, 4);
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(targets: usize, segments: usize) -> Vec<u8> {
        let mut list = vec![7, 0, 0, 0, 0, 0, 0, 0];
        list[2..4].copy_from_slice(&(targets as u16 * 32).to_be_bytes());
        list.put32(segments as u32 * 28);
        list.put32(0);
        for _ in 0..targets {
            let mut target = vec![0xe4, 0, 0, 0, 1, 3, 0, 8, 0x31, 2, 3, 4, 5, 6, 7, 8];
            target.resize(30, 0);
            target.extend_from_slice(&[2, 0]);
            list.extend_from_slice(&target);
        }
        for _ in 0..segments {
            list.extend_from_slice(&[2, 0, 0, 24, 0, 0, 0, 0, 0, 0, 0, 8]);
            list.put64(16);
            list.put64(32);
        }
        list
    }

    #[test]
    fn lists() {
        let found = CopyList::decode(&list(2, 3)).unwrap();
        assert_eq!((found.list, found.targets.len(), found.segments.len()), (Some(7), 2, 3));
        assert_eq!(found.targets[1].bytes, [0x31, 2, 3, 4, 5, 6, 7, 8]);
        let segment =
            CopySegment { source: 0, destination: 0, source_offset: 8192, offset: 16384, len: 4096 };
        assert_eq!(found.segments[2], segment);
        let (targets, segments) = (usize::from(COPY_TARGETS_MAX), usize::from(COPY_SEGMENTS_MAX));
        assert!(CopyList::decode(&list(targets, segments)).is_ok());
        for (list, code) in [
            (list(targets + 1, 1), codes::TOO_MANY_TARGET_DESCRIPTORS),
            (list(1, segments + 1), codes::TOO_MANY_SEGMENT_DESCRIPTORS),
            (list(targets + 1, segments + 1), codes::PARAMETER_LIST_LENGTH_ERROR),
            (list(1, 1)[..47].to_vec(), codes::PARAMETER_LIST_LENGTH_ERROR),
            (list(1, 1)[..75].to_vec(), codes::PARAMETER_LIST_LENGTH_ERROR),
        ] {
            assert_eq!(CopyList::decode(&list), Err(Sense::illegal(code)));
        }
        for (byte, value, code) in [
            (16, 0xe0, codes::UNSUPPORTED_TARGET_DESCRIPTOR),
            (48, 3, codes::UNSUPPORTED_SEGMENT_DESCRIPTOR),
            (15, 1, codes::PARAMETER_LIST_LENGTH_ERROR),
            (1, 0x18, codes::INVALID_FIELD_IN_PARAMETER_LIST),
            (23, 21, codes::INVALID_FIELD_IN_PARAMETER_LIST),
        ] {
            let mut list = list(1, 1);
            list[byte] = value;
            assert_eq!(CopyList::decode(&list).unwrap_err().code, code);
        }
    }

    #[test]
    fn results() {
        let parameters = copy_parameters();
        assert_eq!(parameters.len(), 46);
        assert_eq!((parameters[3], parameters[43]), (42, 2));
        assert_eq!(parameters[8..12], [0, 8, 0, 64]);
        let status = copy_status(&CopyOutcome { done: true, segments: 1, bytes: 4096 });
        assert_eq!(status, [0, 0, 0, 8, 1, 0, 1, 0, 0, 0, 16, 0]);
        let long = copy_status(&CopyOutcome { done: false, segments: 64, bytes: 1 << 40 });
        assert_eq!(long[4..], [2, 0, 64, 1, 0x40, 0, 0, 0]);
    }
}
