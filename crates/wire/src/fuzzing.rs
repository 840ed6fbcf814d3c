//! Entry points for fuzzing: one plain function for each decoder, which takes any bytes and panics where a
//! promise of this crate is broken. The targets in `fuzz/` call them, and so does a test with the checked-in
//! corpus.
//!
//! The promises: no decoder panics; what comes out keeps to the rules; it does not depend on how the bytes
//! were cut; and no more is kept than the longest message.

use crate::nbd::*;

/// A target: its name, which is also that of its corpus, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: &[Target] = &[("nbd_options", nbd_options), ("nbd_requests", nbd_requests)];

/// Feeds `bytes` in pieces of `piece`, as a server would: what is not used stays in front of the next piece.
/// `next` returns how much it used, and whether there may be more to find.
fn feed(
    bytes: &[u8],
    piece: usize,
    most_held: usize,
    mut next: impl FnMut(&[u8]) -> Result<(usize, bool), ProtocolError>,
) -> Option<ProtocolError> {
    let mut held = Vec::new();
    for piece in bytes.chunks(piece.max(1)) {
        held.extend_from_slice(piece);
        loop {
            match next(&held) {
                Ok((used, more)) => {
                    held.drain(..used);
                    if !more {
                        break;
                    }
                }
                Err(error) => return Some(error),
            }
        }
        assert!(held.len() <= most_held);
    }
    None
}

/// [`OptionDecoder`]: a whole negotiation. The first byte says how it is cut.
pub fn nbd_options(data: &[u8]) {
    let Some((cut, bytes)) = data.split_first() else { return };
    let run = |piece: usize| {
        let (mut decoder, mut events) = (OptionDecoder::new(), Vec::new());
        let error = feed(bytes, piece, OPTION_MAX as usize + 16, |held| {
            let (used, event) = decoder.next(held)?;
            let more = event != OptionEvent::NeedMore;
            if more {
                events.push(event);
            }
            Ok((used, more))
        });
        (events, error)
    };
    let whole = run(bytes.len().min(OPTION_MAX as usize));
    assert_eq!(run(usize::from(*cut)), whole);
    for event in whole.0 {
        if let OptionEvent::Option(OptionRequest::Go(info) | OptionRequest::Info(info)) = event {
            assert!(info.name.len() <= NAME_MAX as usize);
        }
    }
}

/// [`RequestDecoder`]: a whole transmission. The first byte says how it is cut, the second what was
/// negotiated, the next two the size of the disk.
pub fn nbd_requests(data: &[u8]) {
    let Some((&[cut, negotiated, size_high, size_low], bytes)) = data.split_first_chunk() else { return };
    let rules = Rules {
        size: u64::from(u16::from_be_bytes([size_high, size_low])) << (negotiated >> 3),
        read_only: negotiated & 1 != 0,
        structured: negotiated & 2 != 0,
        block_status: negotiated & 4 != 0,
    };
    let run = |piece: usize| {
        let (mut decoder, mut seen) = (RequestDecoder::new(), Vec::new());
        let error = feed(bytes, piece, MAX_PAYLOAD as usize + REQUEST_HEADER, |held| {
            let (used, step) = decoder.next(&rules, held)?;
            match step {
                Step::NeedMore { want } => {
                    assert!(want > held.len() - used, "it has what it wants");
                    return Ok((used, false));
                }
                Step::Request(Request { cookie, command, payload }) => {
                    check(&rules, &command, payload);
                    seen.push((cookie, Ok((command, payload.to_vec()))));
                }
                Step::Refused { cookie, refusal } => seen.push((cookie, Err(refusal))),
            }
            Ok((used, true))
        });
        (seen, error)
    };
    assert_eq!(run(usize::from(cut)), run(bytes.len()));
}

/// Whatever is let through keeps to the rules.
fn check(rules: &Rules, command: &Command, payload: &[u8]) {
    let (offset, len, changes) = match *command {
        Command::Disconnect | Command::Flush => return,
        Command::Read { offset, len, dont_fragment } => {
            assert!(len <= MAX_PAYLOAD && (rules.structured || !dont_fragment));
            (offset, len as usize, false)
        }
        Command::Cache { offset, len } => (offset, len as usize, false),
        Command::BlockStatus { offset, len, .. } => {
            assert!(rules.block_status && len > 0);
            (offset, len as usize, false)
        }
        Command::Write { offset, .. } => (offset, payload.len(), true),
        Command::Trim { offset, len, .. } | Command::WriteZeroes { offset, len, .. } => {
            (offset, len as usize, true)
        }
    };
    assert!(offset + len as u64 <= rules.size);
    assert!(!(changes && rules.read_only));
}
