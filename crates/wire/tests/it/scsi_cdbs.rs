//! Decoding of CDBs, and the refusal of invalid ones.

use forebay_wire::scsi::*;

const RULES: Rules = Rules { blocks: 1 << 16 };

fn decode(cdb: &[u8]) -> Result<Request, Sense> {
    Request::decode(cdb, &RULES)
}

/// A CDB with an address and a number of blocks, by its length.
fn blocks(opcode: u8, flags: u8, lba: u64, count: u32, len: usize) -> Vec<u8> {
    let mut cdb = vec![0; len];
    (cdb[0], cdb[1]) = (opcode, flags);
    let (lba, count) = (lba.to_be_bytes(), count.to_be_bytes());
    match len {
        6 => {
            cdb[1] |= lba[5];
            cdb[2..4].copy_from_slice(&lba[6..]);
            cdb[4] = count[3];
        }
        10 => {
            cdb[2..6].copy_from_slice(&lba[4..]);
            cdb[7..9].copy_from_slice(&count[2..]);
        }
        12 => {
            cdb[2..6].copy_from_slice(&lba[4..]);
            cdb[6..10].copy_from_slice(&count);
        }
        _ => {
            cdb[2..10].copy_from_slice(&lba);
            cdb[10..14].copy_from_slice(&count);
        }
    }
    cdb
}

/// READ, WRITE, WRITE AND VERIFY, VERIFY of each length, with the maximum number of blocks.
const READS: [(u8, usize); 4] = [(0x08, 6), (0x28, 10), (0xa8, 12), (0x88, 16)];
const WRITES: [(u8, usize); 4] = [(0x0a, 6), (0x2a, 10), (0xaa, 12), (0x8a, 16)];
const WRITE_VERIFIES: [(u8, usize); 3] = [(0x2e, 10), (0xae, 12), (0x8e, 16)];
const VERIFIES: [(u8, usize); 3] = [(0x2f, 10), (0xaf, 12), (0x8f, 16)];
const PREFETCHES: [(u8, usize); 2] = [(0x34, 10), (0x90, 16)];
const WRITE_SAMES: [(u8, usize); 2] = [(0x41, 10), (0x93, 16)];
const OR_WRITE: [(u8, usize); 1] = [(0x8b, 16)];

#[test]
fn reads_and_writes_of_every_length() {
    for (opcode, len) in READS {
        let read = decode(&blocks(opcode, 0, 300, 9, len));
        assert_eq!(read, Ok(Request::Read { offset: 300 * 512, len: 9 * 512 }));
    }
    for (opcode, len) in WRITES {
        for fua in [false, true] {
            let flags = if fua && len > 6 { 0x18 } else { 0 };
            let write = decode(&blocks(opcode, flags, 300, 9, len));
            assert_eq!(write, Ok(Request::Write { offset: 300 * 512, len: 9 * 512, fua: fua && len > 6 }));
        }
    }
    // Bits of the address are not decoded as flags.
    let high = Rules { blocks: 1 << 21 };
    let write = Request::decode(&blocks(0x0a, 0, 0x08_0000, 1, 6), &high);
    assert_eq!(write, Ok(Request::Write { offset: 0x08_0000 * 512, len: 512, fua: false }));
    // Zero means 256 blocks, only in these commands.
    assert_eq!(decode(&blocks(0x08, 0, 0, 0, 6)), Ok(Request::Read { offset: 0, len: 256 * 512 }));
    assert_eq!(decode(&blocks(0x28, 0, 0, 0, 10)), Ok(Request::Read { offset: 0, len: 0 }));
}

#[test]
fn ranges_must_end_within_the_unit() {
    let all = READS.iter().chain(&WRITES).chain(&WRITE_VERIFIES).chain(&VERIFIES).chain(&PREFETCHES);
    for &(opcode, len) in all.chain(&WRITE_SAMES).chain(&OR_WRITE) {
        let at = |lba, count| decode(&blocks(opcode, 0, lba, count, len));
        let beyond = Err(Sense::illegal(codes::LBA_OUT_OF_RANGE));
        assert!(at(RULES.blocks - 8, 8).is_ok(), "{opcode:#x}");
        assert_eq!(at(RULES.blocks - 7, 8), beyond, "{opcode:#x}");
        assert_eq!(at(RULES.blocks + 1, 0), beyond, "{opcode:#x}");
        if len > 6 {
            // Zero blocks, which WRITE SAME refuses (WSNZ).
            let none = at(RULES.blocks, 0);
            assert!(none.is_ok() != WRITE_SAMES.contains(&(opcode, len)), "{opcode:#x}: {none:?}");
            assert_eq!(at(u32::MAX.into(), 1), beyond);
        }
        if len == 16 {
            for lba in [1 << 63, u64::MAX] {
                assert_eq!(at(lba, 0), beyond);
                assert_eq!(at(lba, 1), beyond);
            }
        }
    }
    let status = |lba| decode(&[&blocks(0x9e, 0x12, lba, 24, 16)[..]].concat());
    assert_eq!(status(RULES.blocks), Err(Sense::illegal(codes::LBA_OUT_OF_RANGE)));
    assert!(status(RULES.blocks - 1).is_ok());
    let compare = |lba, count: u8| {
        let mut cdb = blocks(0x89, 0, lba, 0, 16);
        cdb[13] = count;
        decode(&cdb)
    };
    assert_eq!(compare(0, 255), Ok(Request::CompareAndWrite { offset: 0, len: 255 * 512, fua: false }));
    assert_eq!(compare(0, 0), Ok(Request::CompareAndWrite { offset: 0, len: 0, fua: false }));
    assert_eq!(compare(RULES.blocks - 1, 2), Err(Sense::illegal(codes::LBA_OUT_OF_RANGE)));
}

#[test]
fn transfers_are_bounded() {
    for (cdbs, flags) in [
        (&READS[1..], 0),
        (&WRITES[1..], 0),
        (&WRITE_VERIFIES[..], 0),
        (&VERIFIES[..], 0x02),
        (&OR_WRITE[..], 0),
        (&WRITE_SAMES[..], 0),
    ] {
        for &(opcode, len) in cdbs {
            assert!(decode(&blocks(opcode, flags, 0, TRANSFER_MAX, len)).is_ok(), "{opcode:#x}");
            let long = decode(&blocks(opcode, flags, 0, TRANSFER_MAX + 1, len)).unwrap_err();
            let field = match len {
                10 => 7,
                12 => 6,
                _ => 10,
            };
            assert_eq!(long, Sense::cdb(field), "{opcode:#x}");
        }
    }
    // Zero does not mean the rest of the unit, either.
    assert_eq!(decode(&blocks(0x93, 0x09, RULES.blocks - 1, 0, 16)), Err(Sense::cdb(10)));
}

#[test]
fn protection_and_anchor_bits_are_refused() {
    let protected = READS[1..].iter().chain(&WRITES[1..]).chain(&WRITE_VERIFIES).chain(&VERIFIES);
    for &(opcode, len) in protected.chain(&WRITE_SAMES).chain(&OR_WRITE) {
        for protect in 1..8 {
            let refused = decode(&blocks(opcode, protect << 5, 0, 1, len)).unwrap_err();
            assert_eq!(refused, Sense::cdb_bit(1, 5 + protect.ilog2() as u8), "{opcode:#x}");
        }
    }
    for (opcode, len) in WRITE_SAMES {
        assert_eq!(decode(&blocks(opcode, 0x18, 0, 1, len)), Err(Sense::cdb_bit(1, 4)));
    }
    assert_eq!(decode(&[0x42, 1, 0, 0, 0, 0, 0, 0, 8, 0]), Err(Sense::cdb_bit(1, 0)));
}

#[test]
fn verify_checks_are_decoded() {
    for (opcode, len) in VERIFIES {
        let check = |bytchk: u8| match decode(&blocks(opcode, bytchk << 1, 8, 4, len)) {
            Ok(request @ Request::Verify { check, .. }) => Ok((check, request.transfer())),
            Ok(other) => panic!("{other:?}"),
            Err(sense) => Err(sense),
        };
        assert_eq!(check(0), Ok((VerifyCheck::Nothing, Transfer::None)));
        assert_eq!(check(1), Ok((VerifyCheck::Data, Transfer::Out(2048))));
        assert_eq!(check(2), Err(Sense::cdb_bit(1, 2)));
        assert_eq!(check(3), Ok((VerifyCheck::Block, Transfer::Out(512))));
    }
}

#[test]
fn unsupported_commands_and_service_actions_are_refused() {
    for opcode in [0x04, 0x1e, 0x37, 0x48, 0x4d, 0x9c, 0xb7, 0xff] {
        assert_eq!(decode(&[opcode; 16]), Err(Sense::illegal(codes::INVALID_OPERATION_CODE)));
    }
    assert_eq!(decode(&[]), Err(Sense::illegal(codes::INVALID_OPERATION_CODE)));
    for (opcode, action) in [(0x5e, 4), (0x5f, 7), (0x83, 1), (0x84, 5), (0x9e, 0x11), (0xa3, 0x0f)] {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1]) = (opcode, action);
        assert_eq!(decode(&cdb), Err(Sense::cdb_bit(1, 4)));
    }
    // A truncated CDB.
    assert_eq!(decode(&blocks(0x28, 0, 0, 1, 10)[..9]), Err(Sense::cdb(0)));
}

#[test]
fn invalid_fields_are_refused() {
    for (cdb, sense) in [
        (&[0x12, 0, 0x80, 0, 255, 0][..], Sense::cdb(2)),
        (&[0x12, 2, 0, 0, 255, 0], Sense::cdb_bit(1, 1)),
        (&[0xa0, 0, 3, 0, 0, 0, 0, 0, 0, 16, 0, 0], Sense::cdb(2)),
        (&[0x15, 0x11, 0, 0, 24, 0], Sense::cdb_bit(1, 0)),
        (&[0x15, 0x00, 0, 0, 24, 0], Sense::cdb_bit(1, 4)),
        (&[0x5f, 1, 0x02, 0, 0, 0, 0, 0, 24, 0], Sense::cdb_bit(2, 3)),
        (&[0x5f, 1, 0x11, 0, 0, 0, 0, 0, 24, 0], Sense::cdb_bit(2, 7)),
        (&[0xa3, 0x0c, 4, 0, 0, 0, 0, 0, 0, 16, 0, 0], Sense::cdb_bit(2, 2)),
        (&[0x1b, 0, 0, 0, 2, 0], Sense::cdb_bit(4, 1)),
        (&[0x83, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0], Sense::cdb(10)),
        (&[0x00, 0, 0, 0, 0, 4], Sense::cdb_bit(5, 2)),
    ] {
        assert_eq!(decode(cdb), Err(sense), "{cdb:02x?}");
    }
}

#[test]
fn data_out_of_another_length_is_accepted_or_refused() {
    let information_unit = Err(Sense::illegal(codes::INVALID_FIELD_IN_INFORMATION_UNIT));
    let write = decode(&blocks(0x2a, 0, 0, 2, 10)).unwrap();
    assert_eq!(write.transfer(), Transfer::Out(1024));
    for bytes in [0, 512, 1024, 4096] {
        assert_eq!(write.accepts(bytes), Ok(()));
    }
    assert_eq!(write.accepts(200), information_unit);
    let compare = decode(&[0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0]).unwrap();
    assert_eq!(compare.accepts(2048), Ok(()));
    for bytes in [0, 1024, 3072] {
        assert_eq!(compare.accepts(bytes), Err(Sense::cdb(13)));
    }
    let same = decode(&blocks(0x41, 0, 0, 9, 10)).unwrap();
    assert_eq!(
        (same.accepts(512), same.accepts(0), same.accepts(1024)),
        (Ok(()), information_unit, information_unit)
    );
    let unmap = decode(&blocks(0x41, 8, 0, 9, 10)).unwrap();
    assert_eq!(
        (unmap.accepts(512), unmap.accepts(0), unmap.accepts(256)),
        (Ok(()), Ok(()), information_unit)
    );
    let none = decode(&blocks(0x93, 9, 0, 9, 16)).unwrap();
    assert_eq!(
        (none.transfer(), none.accepts(0), none.accepts(512)),
        (Transfer::None, Ok(()), information_unit)
    );
    let reserve = decode(&[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0]).unwrap();
    assert_eq!((reserve.accepts(24), reserve.accepts(23)), (Ok(()), Err(Sense::length())));
    let or_write = decode(&blocks(0x8b, 0, 0, 2, 16)).unwrap();
    assert_eq!((or_write.accepts(1024), or_write.accepts(512)), (Ok(()), information_unit));
}

#[test]
fn other_fields_are_decoded() {
    let tests: [(&[u8], Request); 8] = [
        (&[0x12, 1, 0xb0, 1, 2, 0], Request::Inquiry { page: Some(0xb0), allocation: 258 }),
        (&[0x03, 1, 0, 0, 252, 0], Request::RequestSense { descriptor: true, allocation: 252 }),
        (&[0x1b, 0, 0, 0, 1, 0], Request::StartStopUnit { start: true }),
        (&[0x1b, 0, 0, 0, 0x31, 0], Request::StartStopUnit { start: false }),
        (
            &[0x5f, 5, 0x08, 0, 0, 0, 0, 0, 24, 0],
            Request::PersistentReserveOut {
                action: ReserveOut::PreemptAndAbort(ReservationType::ExclusiveAccessAll),
                length: 24,
            },
        ),
        (
            &[0x84, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 0, 0],
            Request::CopyStatus { list: 9, allocation: 12 },
        ),
        (
            &[0x84, 7, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0],
            Request::TokenInformation { list: 0x0102_0304, allocation: 1024 },
        ),
        (
            &[0x83, 0x10, 0, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 32, 0, 0],
            Request::PopulateToken { list: 0x0102_0304, length: 32 },
        ),
    ];
    for (cdb, request) in tests {
        assert_eq!(decode(cdb), Ok(request));
    }
    // The rest of the unit.
    let rest = Request::PreFetch { offset: 512, len: (RULES.blocks - 1) * 512 };
    assert_eq!(decode(&blocks(0x34, 2, 1, 0, 10)), Ok(rest));
}
