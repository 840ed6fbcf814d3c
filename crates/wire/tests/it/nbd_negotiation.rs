//! Negotiation: well-formed options are decoded correctly, other options are refused or end the connection,
//! independent of packet boundaries.

use forebay_wire::nbd::*;
use proptest::prelude::*;

/// Feeds `bytes` in pieces, like a server: unused bytes precede the next piece.
fn decode(bytes: &[u8], cuts: &[usize]) -> (Vec<OptionEvent>, Option<ProtocolError>, usize) {
    let mut decoder = OptionDecoder::new();
    let (mut events, mut held, mut from, mut most) = (Vec::new(), Vec::new(), 0, 0);
    for to in cuts.iter().copied().chain([bytes.len()]) {
        held.extend_from_slice(&bytes[from..to]);
        from = to;
        loop {
            let (used, event) = match decoder.next(&held) {
                Ok(next) => next,
                Err(e) => return (events, Some(e), most),
            };
            held.drain(..used);
            if event == OptionEvent::NeedMore {
                break;
            }
            events.push(event);
        }
        most = most.max(held.len());
    }
    (events, None, most)
}

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend(number.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

fn string(s: &[u8]) -> Vec<u8> {
    let mut bytes = (s.len() as u32).to_be_bytes().to_vec();
    bytes.extend(s);
    bytes
}

fn info(name: &str, wants: &[u16]) -> Vec<u8> {
    let mut data = string(name.as_bytes());
    data.extend((wants.len() as u16).to_be_bytes());
    wants.iter().for_each(|w| data.extend(w.to_be_bytes()));
    data
}

fn meta(name: &str, queries: &[&[u8]]) -> Vec<u8> {
    let mut data = string(name.as_bytes());
    data.extend((queries.len() as u32).to_be_bytes());
    queries.iter().for_each(|q| data.extend(string(q)));
    data
}

fn flags(flags: u32) -> Vec<u8> {
    flags.to_be_bytes().to_vec()
}

/// Decodes a single option.
fn one(number: u32, data: &[u8]) -> OptionEvent {
    let bytes = [flags(1), option(number, data)].concat();
    let (events, error, _) = decode(&bytes, &[]);
    assert_eq!((events.len(), error), (2, None));
    events[1].clone()
}

fn refused(number: u32, data: &[u8]) -> OptionRefusal {
    match one(number, data) {
        OptionEvent::Refused { option, refusal } => {
            assert_eq!(option, number);
            refusal
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn options_are_decoded_correctly() {
    assert_eq!(one(OPT_LIST, b""), OptionEvent::Option(OptionRequest::List));
    assert_eq!(one(OPT_ABORT, b"whatever"), OptionEvent::Option(OptionRequest::Abort));
    assert_eq!(
        one(OPT_EXPORT_NAME, b"a b/c"),
        OptionEvent::Option(OptionRequest::ExportName("a b/c".into()))
    );
    let go = InfoRequest { name: "x".into(), want_name: true, want_block_size: true, ..Default::default() };
    let wants = [INFO_EXPORT, INFO_NAME, INFO_BLOCK_SIZE, 77];
    assert_eq!(one(OPT_GO, &info("x", &wants)), OptionEvent::Option(OptionRequest::Go(go)));
    let set = MetaRequest { export: "x".into(), allocation: true, ..Default::default() };
    let queries: [&[u8]; 2] = [b"qemu:dirty-bitmap:b", BASE_ALLOCATION.as_bytes()];
    assert_eq!(
        one(OPT_SET_META_CONTEXT, &meta("x", &queries)),
        OptionEvent::Option(OptionRequest::SetMetaContext(set))
    );
    let list = MetaRequest { empty: true, ..Default::default() };
    assert_eq!(
        one(OPT_LIST_META_CONTEXT, &meta("", &[])),
        OptionEvent::Option(OptionRequest::ListMetaContext(list))
    );
}

#[test]
fn malformed_options_are_refused() {
    assert_eq!(refused(OPT_LIST, b"x"), OptionRefusal::Malformed);
    assert_eq!(refused(OPT_GO, b""), OptionRefusal::Malformed);
    assert_eq!(refused(OPT_GO, &u32::MAX.to_be_bytes()), OptionRefusal::Malformed);
    assert_eq!(refused(OPT_GO, &[info("x", &[]), vec![0]].concat()), OptionRefusal::Malformed);
    // It announces more queries than it has.
    let mut claims = string(b"x");
    claims.extend(u32::MAX.to_be_bytes());
    assert_eq!(refused(OPT_SET_META_CONTEXT, &claims), OptionRefusal::Malformed);
    assert_eq!(refused(OPT_EXPORT_NAME, &[0xff, 0xfe]), OptionRefusal::NotUtf8);
    assert_eq!(refused(OPT_GO, &info(&"x".repeat(4097), &[])), OptionRefusal::NameTooLong);
    let long_query: &[u8] = &[b'x'; 4097];
    assert_eq!(refused(OPT_SET_META_CONTEXT, &meta("x", &[long_query])), OptionRefusal::NameTooLong);
}

#[test]
fn unknown_options_are_refused_with_any_data() {
    for number in [0, 4, OPT_EXTENDED_HEADERS, 12, 1000, u32::MAX] {
        assert_eq!(refused(number, b"data"), OptionRefusal::Unknown(number));
        assert_eq!(OptionRefusal::Unknown(number).reply(), REP_ERR_UNSUP);
    }
}

#[test]
fn a_long_option_is_skipped_without_buffering() {
    let long = option(OPT_GO, &vec![7; OPTION_MAX as usize + 1]);
    let bytes = [flags(3), long, option(OPT_LIST, b"")].concat();
    let cuts: Vec<usize> = (1000..bytes.len()).step_by(1000).collect();
    let (events, error, most_held) = decode(&bytes, &cuts);
    assert_eq!(error, None);
    assert_eq!(events[1], OptionEvent::Refused { option: OPT_GO, refusal: OptionRefusal::TooBig });
    assert_eq!(events[2], OptionEvent::Option(OptionRequest::List));
    assert!(most_held < 1000, "{most_held} bytes were buffered");
}

#[test]
fn undecodable_input_ends_the_connection() {
    assert_eq!(decode(&flags(4), &[]).1, Some(ProtocolError::ClientFlags(4)));
    let bytes = [flags(1), b"GET / HTTP/1.1\r\n".to_vec()].concat();
    assert!(matches!(decode(&bytes, &[]).1, Some(ProtocolError::OptionMagic(_))));
    // The magic number is checked as soon as it has arrived.
    assert!(matches!(decode(&bytes[..12], &[]).1, Some(ProtocolError::OptionMagic(_))));
    let mut huge = [flags(1), option(OPT_GO, b"")].concat();
    huge[16..20].copy_from_slice(&(OPTION_SKIP_MAX + 1).to_be_bytes());
    let error = ProtocolError::OptionTooLong { option: OPT_GO, len: OPTION_SKIP_MAX + 1 };
    assert_eq!(decode(&huge, &[]).1, Some(error));
}

#[test]
fn replies_have_the_layout_of_the_protocol() {
    let mut out = Vec::new();
    greeting(&mut out);
    assert_eq!(out, b"NBDMAGICIHAVEOPT\x00\x03");
    out.clear();
    option_info_export(&mut out, OPT_GO, 0x1122, 0x0103);
    assert_eq!(
        out,
        b"\x00\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0\x03\0\0\0\x0c\0\0\0\0\0\0\0\0\x11\x22\x01\x03"
    );
    out.clear();
    option_error(&mut out, OPT_GO, REP_ERR_UNKNOWN, &"é".repeat(3000));
    assert_eq!(out[12..20], [0x80, 0, 0, 6, 0, 0, 0x10, 0], "the text is truncated at a character boundary");
    assert!(std::str::from_utf8(&out[20..]).is_ok());
    out.clear();
    option_export_name(&mut out, 1, 2, false);
    assert_eq!(out.len(), 8 + 2 + 124);
    out.clear();
    option_export_name(&mut out, 1, 2, true);
    assert_eq!(out, [0, 0, 0, 0, 0, 0, 0, 1, 0, 2]);
}

/// A negotiation of a client, valid or nearly valid.
fn negotiation() -> impl Strategy<Value = Vec<u8>> {
    let data = prop_oneof![
        Just(Vec::new()),
        proptest::collection::vec(any::<u8>(), 0..64),
        "[a-z@]{0,20}".prop_map(|n| info(&n, &[INFO_NAME, INFO_BLOCK_SIZE])),
        "[a-z@]{0,20}".prop_map(|n| meta(&n, &[b"base:", BASE_ALLOCATION.as_bytes()])),
    ];
    let options = proptest::collection::vec((0..14u32, data).prop_map(|(n, d)| option(n, &d)), 0..6);
    (0..4u32, options, proptest::collection::vec(any::<u8>(), 0..20))
        .prop_map(|(f, options, tail)| [flags(f), options.concat(), tail].concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn the_result_does_not_depend_on_how_the_bytes_are_split(bytes in negotiation()) {
        let (events, error, _) = decode(&bytes, &[]);
        let every_byte: Vec<usize> = (0..bytes.len()).collect();
        let split = decode(&bytes, &every_byte);
        prop_assert_eq!((&split.0, split.1), (&events, error));
        for at in 0..bytes.len() {
            let split = decode(&bytes, &[at]);
            prop_assert_eq!((&split.0, split.1), (&events, error));
        }
    }

    #[test]
    fn no_input_causes_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), f in 0..4u32) {
        decode(&bytes, &[]);
        decode(&[flags(f), OPTION_MAGIC.to_be_bytes().to_vec(), bytes].concat(), &[]);
    }
}
