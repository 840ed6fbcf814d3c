//! Entry points for fuzzing: one plain function for each decoder, which takes any bytes and panics if a
//! guarantee of this crate is violated. Called by the targets in `fuzz/`, and by a test with the checked-in
//! corpus.
//!
//! The guarantees: decoders do not panic; decoded values obey the rules; the result does not depend on how
//! the bytes are split; and no more than the longest message is buffered.

use crate::nbd::*;
use crate::{iscsi, nfs, nvme, rpc, scsi};

/// A target: its name, which is also the name of its corpus, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All fuzzing targets.
pub const TARGETS: &[Target] = &[
    ("iscsi_pdus", iscsi_pdus),
    ("iscsi_text", iscsi_text),
    ("nbd_options", nbd_options),
    ("nbd_requests", nbd_requests),
    ("nfs_calls", nfs_calls),
    ("nvme_pdus", nvme_pdus),
    ("scsi_cdb", scsi_cdb),
    ("scsi_parameters", scsi_parameters),
];

/// Feeds `bytes` in pieces of `piece`, like a server: unused bytes precede the next piece. `next` returns the
/// number of used bytes, and whether there may be more messages.
fn feed<E>(
    bytes: &[u8],
    piece: usize,
    most_held: usize,
    mut next: impl FnMut(&[u8]) -> Result<(usize, bool), E>,
) -> Option<E> {
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

/// [`OptionDecoder`]: a whole negotiation. The first byte is the size of the pieces.
pub fn nbd_options(data: &[u8]) {
    let Some((cut, bytes)) = data.split_first() else { return };
    let run = |piece: usize| {
        let (mut decoder, mut events) = (OptionDecoder::new(), Vec::new());
        let error = feed::<ProtocolError>(bytes, piece, OPTION_MAX as usize + 16, |held| {
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

/// [`RequestDecoder`]: a whole transmission. The first byte is the size of the pieces, the second the
/// negotiated features, the next two the size of the disk.
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
        let error = feed::<ProtocolError>(bytes, piece, MAX_PAYLOAD as usize + REQUEST_HEADER, |held| {
            let (used, step) = decoder.next(&rules, held)?;
            match step {
                Step::NeedMore { want } => {
                    assert!(want > held.len() - used, "more bytes are requested than are present");
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

/// Checks that a decoded command obeys the rules.
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

/// [`iscsi::decode`] and the decoding of its PDUs. The first byte is the size of the pieces, the second the
/// digests.
pub fn iscsi_pdus(data: &[u8]) {
    const MAX_DATA: usize = 4096;
    let Some((&[cut, digests], bytes)) = data.split_first_chunk() else { return };
    let digests = iscsi::Digests { header: digests & 1 != 0, data: digests & 2 != 0 };
    let run = |piece: usize| {
        let mut requests = Vec::new();
        // The longest PDU: with all additional header segments, padding and digests.
        let most = iscsi::BHS + 255 * 4 + MAX_DATA + 3 + 8;
        let error = feed::<iscsi::ProtocolError>(bytes, piece, most, |held| {
            match iscsi::decode(held, digests, MAX_DATA)? {
                iscsi::Step::NeedMore { want } => {
                    assert!(want > held.len() && want <= most);
                    Ok((0, false))
                }
                iscsi::Step::Pdu { used, pdu } => {
                    assert!(pdu.data.len() <= MAX_DATA);
                    let request =
                        format!("{:?} {:?}", iscsi::Request::parse(&pdu), iscsi::Login::parse(&pdu));
                    requests.push((request, pdu.intact));
                    Ok((used, true))
                }
            }
        });
        (requests, error)
    };
    let whole = run(bytes.len().min(1024));
    assert_eq!(run(usize::from(cut)), whole);
}

/// [`iscsi::text`] and [`iscsi::Negotiator`]: for any offer of an initiator, the agreed values are within
/// bounds.
pub fn iscsi_text(data: &[u8]) {
    let offer =
        iscsi::Offer { max_recv: 65536, max_burst: 1 << 20, first_burst: 1 << 18, max_outstanding_r2t: 4 };
    let Ok(pairs) = iscsi::text::parse(data) else { return };
    let mut negotiator = iscsi::Negotiator::new(offer);
    let mut answers = Vec::new();
    for (key, value) in &pairs {
        let _ = (iscsi::text::number(value), iscsi::text::binary(value, 64).map(|b| assert!(b.len() <= 64)));
        negotiator.answer(key, value, false, &mut answers);
    }
    negotiator.declare(&mut answers);
    assert!(iscsi::text::parse(&answers).is_ok_and(|a| a.len() <= pairs.len() + 1) || pairs.len() >= 128);
    let p = negotiator.parameters();
    assert!((512..1 << 24).contains(&p.max_send) && (512..=offer.max_burst).contains(&p.max_burst));
    assert!(p.first_burst <= p.max_burst && p.first_burst <= offer.first_burst);
    assert!((1..=offer.max_outstanding_r2t).contains(&p.max_outstanding_r2t));
}

/// [`scsi::Request::decode`]: the first four bytes are the size of the unit, the rest is the CDB.
pub fn scsi_cdb(data: &[u8]) {
    let Some((size, cdb)) = data.split_first_chunk() else { return };
    let rules = scsi::Rules { blocks: u64::from(u32::from_be_bytes(*size)) };
    let decoded = scsi::Request::decode(cdb, &rules);
    // Bytes after the CDB, with which transports pad the field, are ignored.
    if let Ok(request) = &decoded {
        check_scsi(request, rules.blocks * u64::from(scsi::BLOCK));
        let filled = [cdb, &[0xff; 16]].concat();
        assert_eq!(scsi::Request::decode(&filled, &rules), decoded);
    }
    if let Err(sense) = decoded {
        assert!(sense.encode(false).len() == 18 && sense.encode(true).len() <= 32);
    }
}

/// Checks that a decoded request is within the unit and transfers no more than its limits.
fn check_scsi(request: &scsi::Request, size: u64) {
    use scsi::Request::*;
    let range = match *request {
        Verify { offset, len, .. } | PreFetch { offset, len } => Some((offset, len)),
        Read { offset, len } => Some((offset, len.into())),
        GetLbaStatus { offset, .. } => Some((offset, scsi::BLOCK.into())),
        _ => request.changed_range(),
    };
    if let Some((offset, len)) = range {
        let block = u64::from(scsi::BLOCK);
        assert!(offset.is_multiple_of(block) && len.is_multiple_of(block) && offset + len <= size);
    }
    if let scsi::Transfer::Out(bytes) = request.transfer() {
        assert!(bytes > 0 && bytes <= u64::from(scsi::TRANSFER_MAX * scsi::BLOCK));
        assert!(request.accepts(bytes).is_ok());
    }
}

/// The decoders of parameter lists: the first byte selects the decoder, the second is a flag, the next two
/// are the size of the unit; the rest is the list.
pub fn scsi_parameters(data: &[u8]) {
    let Some((&[which, flag, high, low], list)) = data.split_first_chunk() else { return };
    let rules = scsi::Rules { blocks: u64::from(u16::from_be_bytes([high, low])) };
    let within = |ranges: &[scsi::BlockRange], most: usize| {
        assert!(ranges.len() <= most);
        let size = rules.blocks * u64::from(scsi::BLOCK);
        assert!(ranges.iter().all(|r| r.offset + r.len <= size));
    };
    match which % 6 {
        0 => {
            let state = scsi::ModeState::default();
            let Ok(new) = scsi::mode_select(list, flag & 1 != 0, &state, rules.blocks) else { return };
            assert_eq!(new.write_back, state.write_back);
        }
        1 => {
            let decoded = scsi::ReserveParameters::decode(list);
            assert!(decoded.is_err() || list.len() == scsi::ReserveParameters::LENGTH);
        }
        2 => {
            let Ok(ranges) = scsi::unmap_list(list, &rules) else { return };
            within(&ranges, scsi::UNMAP_DESCRIPTORS_MAX as usize);
        }
        3 => {
            let Ok(copy) = scsi::CopyList::decode(list) else { return };
            assert!(copy.targets.len() <= usize::from(scsi::COPY_TARGETS_MAX));
            assert!(copy.segments.len() <= usize::from(scsi::COPY_SEGMENTS_MAX));
            assert!(copy.targets.iter().all(|t| t.bytes.len() <= 20));
        }
        4 => {
            let Ok(populate) = scsi::PopulateList::decode(list, &rules) else { return };
            within(&populate.ranges, scsi::TOKEN_RANGES_MAX.into());
            assert!(populate.timeout <= scsi::TOKEN_TIMEOUT_MAX);
        }
        _ => {
            let Ok(write) = scsi::WriteList::decode(list, &rules) else { return };
            within(&write.ranges, scsi::TOKEN_RANGES_MAX.into());
        }
    }
}

/// [`rpc::next_record`], and the calls of all programs in the records. The first byte is the size of the
/// pieces.
pub fn nfs_calls(data: &[u8]) {
    const MAX: usize = 2048;
    let Some((cut, bytes)) = data.split_first() else { return };
    let run = |piece: usize| {
        let mut seen = Vec::new();
        let most = MAX + rpc::FRAGMENTS_MAX * rpc::MARK;
        let error = feed::<rpc::RecordError>(bytes, piece, most, |held| match rpc::next_record(held, MAX)? {
            rpc::Record::NeedMore { want } => {
                assert!(want > held.len() && want <= most);
                Ok((0, false))
            }
            rpc::Record::Complete { used, message } => {
                assert!(used <= held.len() && message.len() <= MAX);
                seen.push(nfs_call(&message));
                Ok((used, true))
            }
        });
        (seen, error)
    };
    assert_eq!(run(usize::from(*cut)), run(bytes.len().min(MAX)));
}

/// Decodes a call, also as one of every program, and describes it. Decoded fields lie in the message.
fn nfs_call(message: &[u8]) -> String {
    let call = match rpc::Call::decode(message) {
        Ok(call) => call,
        Err(error) => return format!("{error:?}, {:?}", rpc::Reply::refusal(error)),
    };
    if let rpc::Credential::Sys(user) = call.credential {
        assert!(user.groups().len() <= 16);
    }
    let mount = nfs::mount::Request::decode(call.procedure, call.args);
    let portmap = nfs::portmap::Request::decode(call.procedure, call.args);
    let request = nfs::Procedure::of(call.procedure).map(|of| nfs::Request::decode(of, call.args));
    match request {
        Some(Ok(nfs::Request::Write { file, data, .. })) => {
            assert!(file.len() <= nfs::HANDLE_MAX && data.len() <= call.args.len());
        }
        Some(Ok(nfs::Request::Rename { from, to })) => {
            assert!(from.0.len() <= nfs::HANDLE_MAX && to.1.len() <= nfs::NAME_MAX);
        }
        _ => {}
    }
    format!("{call:?} {request:?} {mount:?} {portmap:?}")
}

/// [`nvme::decode`] and the decoding of its commands. The first byte is the size of the pieces, the second
/// the digests, the third the size of the namespace.
pub fn nvme_pdus(data: &[u8]) {
    let Some((&[cut, digests, size], bytes)) = data.split_first_chunk() else { return };
    let digests = nvme::Digests { header: digests & 1 != 0, data: digests & 2 != 0 };
    let limits = nvme::Limits { in_capsule: 1024, data: 4096 };
    let run = |piece: usize| {
        let (mut phase, mut seen) = (nvme::Phase::Initialization, Vec::new());
        // The longest PDU: data at the highest offset, with its digest.
        let most = 128 + 4096 + 4;
        let error = feed::<nvme::FatalError>(bytes, piece, most, |held| {
            match nvme::decode(held, phase, digests, limits)? {
                nvme::Step::NeedMore { want } => {
                    assert!(want > held.len() && want <= most);
                    Ok((0, false))
                }
                nvme::Step::Pdu { used, pdu } => {
                    assert!(used <= held.len());
                    phase = nvme::Phase::Established;
                    if let nvme::Pdu::Command { sqe, data, .. } = pdu {
                        check_nvme(&sqe, data, size.into());
                    }
                    seen.push(format!("{pdu:?}"));
                    Ok((used, true))
                }
            }
        });
        (seen, error)
    };
    assert_eq!(run(usize::from(cut)), run(bytes.len().min(1024)));
}

/// Checks that a decoded command is within the namespace and transfers no more than its limits.
fn check_nvme(sqe: &nvme::Sqe, data: &[u8], blocks: u64) {
    let _ = (nvme::Fabrics::decode(sqe), nvme::ConnectData::decode(data), sqe.sgl());
    let _ = nvme::auth::decode(data);
    if let Ok(admin) = nvme::Admin::decode(sqe) {
        assert!(admin.data_in() <= nvme::TRANSFER_MAX);
    }
    if let Ok(list) = nvme::unmap_list(data, blocks) {
        assert!(scsi::unmap_list(&list, &scsi::Rules { blocks }).is_ok());
    }
    let Ok(io) = nvme::Io::decode(sqe, blocks) else { return };
    assert!(io.data_in() <= nvme::TRANSFER_MAX && io.data_out() <= nvme::TRANSFER_MAX);
    let (offset, len) = match io {
        nvme::Io::Flush | nvme::Io::Dataset { .. } => return,
        nvme::Io::Reservation(_) | nvme::Io::ReservationReport { .. } => return,
        nvme::Io::Write { offset, len, .. }
        | nvme::Io::Read { offset, len }
        | nvme::Io::Compare { offset, len }
        | nvme::Io::WriteZeroes { offset, len, .. }
        | nvme::Io::Verify { offset, len } => (offset, len),
    };
    assert!(len > 0 && offset + u64::from(len) <= blocks * u64::from(nvme::BLOCK));
}
