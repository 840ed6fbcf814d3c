//! Records in a stream: fragments, each after its mark (RFC 5531, section 11).

use std::borrow::Cow;

use super::MARK;

/// Maximum number of fragments of a record.
pub const FRAGMENTS_MAX: usize = 64;
const LAST: u32 = 1 << 31;

/// What [`next_record`] has found at the front of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record<'a> {
    /// The record is not complete. At least `want` bytes are needed, those that are there included.
    NeedMore {
        /// The number of bytes.
        want: usize,
    },
    /// A complete record.
    Complete {
        /// Bytes of the record in the stream, with its marks.
        used: usize,
        /// The message in the record.
        message: Cow<'a, [u8]>,
    },
}

/// Why no record can be found in a stream any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// The record is longer than any valid call.
    #[error("a record of more than {0} bytes")]
    Long(usize),
    /// The record has too many fragments.
    #[error("a record of more than {FRAGMENTS_MAX} fragments")]
    Fragments,
    /// A fragment other than the last one is empty.
    #[error("an empty fragment")]
    Empty,
}

/// Finds the record at the front of `stream`, whose message has at most `max` bytes.
///
/// # Errors
/// The stream has no valid record at this position, so its connection has to end.
pub fn next_record(stream: &[u8], max: usize) -> Result<Record<'_>, RecordError> {
    let (mut at, mut total, mut fragments) = (0, 0, 0);
    loop {
        let Some(mark) = stream.get(at..).and_then(|rest| rest.first_chunk::<MARK>()) else {
            return Ok(Record::NeedMore { want: at + MARK });
        };
        let mark = u32::from_be_bytes(*mark);
        let (len, is_last) = ((mark & !LAST) as usize, mark & LAST != 0);
        fragments += 1;
        total += len;
        if total > max {
            return Err(RecordError::Long(max));
        } else if fragments > FRAGMENTS_MAX {
            return Err(RecordError::Fragments);
        } else if len == 0 && !is_last {
            return Err(RecordError::Empty);
        }
        at += MARK + len;
        if is_last {
            break;
        }
    }
    if stream.len() < at {
        return Ok(Record::NeedMore { want: at });
    }
    let message = match fragments {
        1 => Cow::Borrowed(stream.get(MARK..at).unwrap_or_default()),
        _ => Cow::Owned(joined(stream, total)),
    };
    Ok(Record::Complete { used: at, message })
}

/// The message of a record whose fragments are all there.
fn joined(mut stream: &[u8], total: usize) -> Vec<u8> {
    let mut message = Vec::with_capacity(total);
    while let Some((mark, rest)) = stream.split_first_chunk::<MARK>() {
        let mark = u32::from_be_bytes(*mark);
        let Some((fragment, rest)) = rest.split_at_checked((mark & !LAST) as usize) else { break };
        message.extend_from_slice(fragment);
        if mark & LAST != 0 {
            break;
        }
        stream = rest;
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(fragments: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        for (n, fragment) in fragments.iter().enumerate() {
            let last = if n + 1 == fragments.len() { LAST } else { 0 };
            out.extend_from_slice(&(last | fragment.len() as u32).to_be_bytes());
            out.extend_from_slice(fragment);
        }
        out
    }

    #[test]
    fn a_record_is_found_when_its_last_byte_is_there() {
        for fragments in [&[&b"message"[..]][..], &[b"mes", b"sage"], &[b"m", b"essag", b"e"]] {
            let stream = record(fragments);
            let longer = [&stream[..], b"next"].concat();
            for len in 0..stream.len() {
                let Ok(Record::NeedMore { want }) = next_record(&stream[..len], 7) else { panic!("{len}") };
                assert!(want > len && want <= stream.len());
            }
            let Ok(Record::Complete { used, message }) = next_record(&longer, 7) else { panic!("complete") };
            assert_eq!((used, &message[..]), (stream.len(), &b"message"[..]));
        }
    }

    #[test]
    fn invalid_records_are_refused_at_their_marks() {
        assert_eq!(next_record(&record(&[&[0; 9]])[..4], 8), Err(RecordError::Long(8)));
        assert_eq!(next_record(&record(&[&[0; 5], &[0; 4]])[..13], 8), Err(RecordError::Long(8)));
        assert_eq!(next_record(&record(&[b"", b"x"]), 8), Err(RecordError::Empty));
        let many = record(&[&b"x"[..]; FRAGMENTS_MAX + 1]);
        assert_eq!(next_record(&many, 1000), Err(RecordError::Fragments));
        assert_eq!(next_record(&[0xff; 4], usize::MAX), Ok(Record::NeedMore { want: 0x8000_0003 }));
    }
}
