//! Transmission: valid requests are decoded correctly, other requests are refused with the error that the
//! protocol defines, independent of packet boundaries.

use forebay_wire::nbd::*;
use proptest::prelude::*;

const MIB: u32 = 1 << 20;
const RULES: Rules = Rules { size: 64 << 20, read_only: false, structured: true, block_status: true };

#[derive(Debug, Clone, PartialEq)]
enum Seen {
    Request { cookie: u64, command: Command, payload: Vec<u8> },
    Refused(u64, Refusal),
}

/// Feeds `bytes` in pieces, like a server: unused bytes precede the next piece.
fn decode(rules: &Rules, bytes: &[u8], cuts: &[usize]) -> (Vec<Seen>, Option<ProtocolError>) {
    let mut decoder = RequestDecoder::new();
    let (mut seen, mut held, mut from) = (Vec::new(), Vec::new(), 0);
    for to in cuts.iter().copied().chain([bytes.len()]) {
        held.extend_from_slice(&bytes[from..to]);
        from = to;
        loop {
            let (used, step) = match decoder.next(rules, &held) {
                Ok(next) => next,
                Err(e) => return (seen, Some(e)),
            };
            match step {
                Step::NeedMore { want } => {
                    assert!(want > held.len() - used, "more bytes are requested than are present");
                    held.drain(..used);
                    break;
                }
                Step::Request(Request { cookie, command, payload }) => {
                    seen.push(Seen::Request { cookie, command, payload: payload.to_vec() });
                }
                Step::Refused { cookie, refusal } => seen.push(Seen::Refused(cookie, refusal)),
            }
            held.drain(..used);
        }
    }
    (seen, None)
}

fn request(flags: u16, kind: u16, offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend(7u64.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes
}

/// Decodes one request without data.
fn one(rules: &Rules, flags: u16, kind: u16, offset: u64, len: u32) -> Result<Command, Refusal> {
    match decode(rules, &request(flags, kind, offset, len), &[]) {
        (mut seen, None) if seen.len() == 1 => match seen.remove(0) {
            Seen::Request { cookie: 7, command, .. } => Ok(command),
            Seen::Refused(7, refusal) => Err(refusal),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[test]
fn requests_are_decoded_correctly() {
    let read = Command::Read { offset: 5, len: 9, dont_fragment: true };
    assert_eq!(one(&RULES, CMD_FLAG_DF, CMD_READ, 5, 9), Ok(read));
    assert_eq!(one(&RULES, 0, CMD_FLUSH, 0, 0), Ok(Command::Flush));
    assert_eq!(one(&RULES, 0xffff, CMD_DISC, u64::MAX, 1), Ok(Command::Disconnect));
    let trim = Command::Trim { offset: 0, len: 64 * MIB, fua: true };
    assert_eq!(one(&RULES, CMD_FLAG_FUA, CMD_TRIM, 0, 64 * MIB), Ok(trim));
    let zero = Command::WriteZeroes { offset: 1, len: 1, fua: false, no_hole: true };
    assert_eq!(one(&RULES, CMD_FLAG_NO_HOLE | CMD_FLAG_FAST_ZERO, CMD_WRITE_ZEROES, 1, 1), Ok(zero));
    let status = Command::BlockStatus { offset: 0, len: 512, one: true };
    assert_eq!(one(&RULES, CMD_FLAG_REQ_ONE, CMD_BLOCK_STATUS, 0, 512), Ok(status));
    assert_eq!(one(&RULES, 0, CMD_CACHE, 512, 512), Ok(Command::Cache { offset: 512, len: 512 }));
    let write = [request(CMD_FLAG_FUA, CMD_WRITE, 3, 4), b"abcd".to_vec()].concat();
    let command = Command::Write { offset: 3, fua: true };
    assert_eq!(
        decode(&RULES, &write, &[]).0,
        [Seen::Request { cookie: 7, command, payload: b"abcd".to_vec() }]
    );
}

#[test]
fn ranges_may_not_exceed_the_end_of_the_disk() {
    let end = RULES.size;
    assert!(one(&RULES, 0, CMD_READ, end - 1, 1).is_ok());
    assert!(one(&RULES, 0, CMD_READ, end, 0).is_ok());
    for (offset, len) in [(end - 1, 2), (end, 1), (end + 1, 0), (u64::MAX, 1), (u64::MAX, u32::MAX)] {
        for kind in [CMD_READ, CMD_TRIM, CMD_CACHE, CMD_BLOCK_STATUS] {
            assert_eq!(one(&RULES, 0, kind, offset, len), Err(Refusal::BeyondEnd));
        }
        assert_eq!(one(&RULES, 0, CMD_WRITE_ZEROES, offset, len), Err(Refusal::WriteBeyondEnd));
    }
    assert_eq!(Refusal::BeyondEnd.code(), ErrorCode::Inval);
    assert_eq!(Refusal::WriteBeyondEnd.code(), ErrorCode::NoSpc);
}

#[test]
fn long_requests_are_refused() {
    assert!(one(&RULES, 0, CMD_READ, 0, 32 * MIB).is_ok());
    assert_eq!(one(&RULES, 0, CMD_READ, 0, 33 * MIB), Err(Refusal::TooLong));
    assert_eq!(one(&RULES, CMD_FLAG_DF, CMD_READ, 0, 33 * MIB), Err(Refusal::TooLongForOne));
    assert_eq!(Refusal::TooLongForOne.code(), ErrorCode::Overflow);
}

#[test]
fn a_refused_write_is_skipped_and_the_next_request_found() {
    let read_only = Rules { read_only: true, ..RULES };
    for (rules, offset, len, refusal) in [
        (read_only, 0, 4096, Refusal::ReadOnly),
        (RULES, RULES.size, 4096, Refusal::WriteBeyondEnd),
        (RULES, 0, 33 * MIB, Refusal::TooLong),
    ] {
        let data = vec![0x25; len as usize];
        let bytes = [request(0, CMD_WRITE, offset, len), data, request(0, CMD_FLUSH, 0, 0)].concat();
        let cuts: Vec<usize> = (0..bytes.len()).step_by(50_000).collect();
        let (seen, error) = decode(&rules, &bytes, &cuts);
        assert_eq!(error, None);
        assert_eq!(seen[0], Seen::Refused(7, refusal));
        assert!(matches!(seen[1], Seen::Request { command: Command::Flush, .. }));
    }
}

#[test]
fn features_that_were_not_negotiated_are_refused() {
    let plain = Rules { structured: false, block_status: false, ..RULES };
    assert_eq!(one(&plain, CMD_FLAG_DF, CMD_READ, 0, 1), Err(Refusal::BadFlags(CMD_FLAG_DF)));
    assert_eq!(one(&plain, 0, CMD_BLOCK_STATUS, 0, 1), Err(Refusal::NoContext));
    assert_eq!(one(&RULES, 0, CMD_BLOCK_STATUS, 0, 0), Err(Refusal::EmptyRange));
}

#[test]
fn unknown_commands_and_flags_are_refused() {
    for kind in [8, 9, 255, u16::MAX] {
        assert_eq!(one(&RULES, 0, kind, 0, 1), Err(Refusal::UnknownCommand(kind)));
    }
    for kind in [CMD_READ, CMD_FLUSH, CMD_TRIM, CMD_CACHE, CMD_WRITE_ZEROES, CMD_BLOCK_STATUS] {
        for flag in [1 << 5, 1 << 15] {
            assert_eq!(one(&RULES, flag, kind, 0, 1), Err(Refusal::BadFlags(flag)));
        }
    }
    assert_eq!(one(&RULES, CMD_FLAG_NO_HOLE, CMD_TRIM, 0, 1), Err(Refusal::BadFlags(CMD_FLAG_NO_HOLE)));
}

#[test]
fn changes_to_a_read_only_export_are_refused() {
    let rules = Rules { read_only: true, ..RULES };
    for kind in [CMD_TRIM, CMD_WRITE_ZEROES] {
        assert_eq!(one(&rules, 0, kind, 0, 1), Err(Refusal::ReadOnly));
    }
    assert_eq!(Refusal::ReadOnly.code(), ErrorCode::Perm);
    assert_eq!(one(&rules, 0, CMD_FLUSH, 0, 0), Ok(Command::Flush));
}

#[test]
fn a_bad_magic_number_ends_the_connection_immediately() {
    let error = Some(ProtocolError::RequestMagic(u32::from_be_bytes(*b"GET ")));
    assert_eq!(decode(&RULES, b"GET ", &[]).1, error);
}

#[test]
fn replies_have_the_layout_of_the_protocol() {
    assert_eq!(simple_reply(1, None), *b"\x67\x44\x66\x98\0\0\0\0\0\0\0\0\0\0\0\x01");
    assert_eq!(simple_reply(1, Some(ErrorCode::Shutdown))[7], 108);
    let data = data_chunk_header(2, 0x1000, 0x200, true);
    assert_eq!(data[..8], *b"\x66\x8e\x33\xef\0\x01\0\x01");
    assert_eq!(data[16..], *b"\0\0\x02\x08\0\0\0\0\0\0\x10\0");
    let hole = hole_chunk(2, 0x1000, 0x200, false);
    assert_eq!(hole[4..8], *b"\0\0\0\x02");
    assert_eq!(hole[16..], *b"\0\0\0\x0c\0\0\0\0\0\0\x10\0\0\0\x02\0");
    assert_eq!(none_chunk(3)[4..], *b"\0\x01\0\0\0\0\0\0\0\0\0\x03\0\0\0\0");
    let mut out = Vec::new();
    error_chunk(&mut out, 4, ErrorCode::Io, "why");
    assert_eq!(out[4..8], *b"\0\x01\x80\x01");
    assert_eq!(out[16..], *b"\0\0\0\x09\0\0\0\x05\0\x03why");
    out.clear();
    block_status_chunk(
        &mut out,
        5,
        BASE_ALLOCATION_ID,
        true,
        &[BlockDescriptor { len: 512, state: STATE_HOLE | STATE_ZERO }],
    );
    assert_eq!(out[6..8], *b"\0\x05");
    assert_eq!(out[16..], *b"\0\0\0\x0c\0\0\0\x01\0\0\x02\0\0\0\0\x03");
}

fn rules() -> impl Strategy<Value = Rules> {
    (0..1u64 << 20, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(size, read_only, structured, block_status)| Rules { size, read_only, structured, block_status },
    )
}

/// Requests of a client, valid or nearly valid.
fn transmission() -> impl Strategy<Value = Vec<u8>> {
    let one = (0..64u16, 0..10u16, 0..2u64 << 20, 0..200u32, any::<bool>()).prop_map(
        |(flags, kind, offset, len, plain)| {
            let flags = if plain { flags & CMD_FLAG_FUA } else { flags };
            let data = if kind == CMD_WRITE { vec![len as u8; len as usize] } else { Vec::new() };
            [request(flags, kind, offset, len), data].concat()
        },
    );
    let tail = proptest::collection::vec(any::<u8>(), 0..20);
    (proptest::collection::vec(one, 0..6), tail).prop_map(|(all, tail)| [all.concat(), tail].concat())
}

/// Checks that a decoded command obeys the rules.
fn assert_valid(rules: &Rules, command: &Command, payload: &[u8]) {
    let (offset, len, changes) = match *command {
        Command::Disconnect | Command::Flush => return,
        Command::Read { offset, len, dont_fragment } => {
            assert!(len <= MAX_PAYLOAD && (rules.structured || !dont_fragment));
            (offset, len, false)
        }
        Command::Cache { offset, len } => (offset, len, false),
        Command::BlockStatus { offset, len, .. } => {
            assert!(rules.block_status && len > 0);
            (offset, len, false)
        }
        Command::Write { offset, .. } => (offset, payload.len() as u32, true),
        Command::Trim { offset, len, .. } | Command::WriteZeroes { offset, len, .. } => (offset, len, true),
    };
    assert!(offset + u64::from(len) <= rules.size);
    assert!(!(changes && rules.read_only));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn the_result_does_not_depend_on_how_the_bytes_are_split(rules in rules(), bytes in transmission()) {
        let whole = decode(&rules, &bytes, &[]);
        let every_byte: Vec<usize> = (0..bytes.len()).collect();
        prop_assert_eq!(&decode(&rules, &bytes, &every_byte), &whole);
        for at in 0..bytes.len() {
            prop_assert_eq!(&decode(&rules, &bytes, &[at]), &whole);
        }
        for seen in &whole.0 {
            if let Seen::Request { command, payload, .. } = seen {
                assert_valid(&rules, command, payload);
            }
        }
    }

    #[test]
    fn no_input_causes_a_panic(rules in rules(), bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        decode(&rules, &bytes, &[]);
        decode(&rules, &[REQUEST_MAGIC.to_be_bytes().to_vec(), bytes].concat(), &[]);
    }
}
