//! Generated iSCSI initiators.

use forebay_frontend::fuzzing::{SIZE, SPARSE_SIZE, flags};
use forebay_wire::iscsi::{BHS, NO_TAG, text};

use crate::random::Random;

const BLOCK: u64 = 512;

/// A script for [`forebay_frontend::fuzzing::iscsi_session`].
pub fn script(random: &mut Random) -> Vec<u8> {
    let kind = random.pick(&[0, 1, 2, 2, 2, 2, 2, 3]);
    let mut script = vec![kind, random.byte(), random.byte(), random.pick(&[0, 0, 1, 5, 48, 200])];
    if kind == 0 {
        for _ in 0..=random.below(4) {
            login(random, &mut script);
        }
        return script;
    }
    for _ in 0..random.below(60) {
        let mut pdu = match random.below(if kind == 1 { 3 } else { 16 }) {
            0 => text_request(random),
            1 => other(random),
            2 if kind == 1 => text_request(random),
            2..=4 => Pdu { how: flags::ANSWER_R2T, header: header(0x05, 0x80, random), data: Vec::new() },
            _ => command(random),
        };
        random.mutate(&mut pdu.header);
        random.mutate(&mut pdu.data);
        for flag in [flags::RAW, flags::AHS, flags::KEEP_NUMBER, flags::BREAK_OFF, flags::DAMAGE] {
            pdu.how |= if random.once_in(100) { flag } else { 0 };
        }
        pdu.how |= if random.once_in(20) { flags::WRONG_PLACE } else { 0 };
        pdu.how |= if random.once_in(4) || pdu.header[0] & 0x3f == 0x05 { flags::WAIT } else { 0 };
        script.push(pdu.how);
        script.extend_from_slice(&pdu.header);
        script.extend_from_slice(&(pdu.data.len() as u16).to_be_bytes());
        script.extend_from_slice(&pdu.data);
    }
    script
}

struct Pdu {
    how: u8,
    header: [u8; BHS],
    data: Vec<u8>,
}

/// A header with one of few tags, so that some collide.
fn header(opcode: u8, flags: u8, random: &mut Random) -> [u8; BHS] {
    let mut header = [0; BHS];
    (header[0], header[1]) = (opcode, flags);
    if random.once_in(12) {
        header[0] |= 0x40;
    }
    let tag = if random.once_in(30) { NO_TAG } else { random.below(40) as u32 };
    header[16..20].copy_from_slice(&tag.to_be_bytes());
    header
}

fn login(random: &mut Random, out: &mut Vec<u8>) {
    let mut said = Vec::new();
    let keys = [
        ("InitiatorName", "iqn.2026-01.org.example:fuzz"),
        ("InitiatorName", "x"),
        ("SessionType", "Discovery"),
        ("TargetName", "iqn.2026-01.org.example:open"),
        ("TargetName", "iqn.2026-01.org.example:secured"),
        ("AuthMethod", "CHAP,None"),
        ("CHAP_A", "9,5"),
        ("CHAP_N", "fuzz"),
        ("CHAP_R", "0x00"),
        ("CHAP_I", "300"),
        ("CHAP_C", "0b===="),
        ("MaxRecvDataSegmentLength", "99999999999999999999999"),
        ("MaxBurstLength", "0xffffff"),
        ("FirstBurstLength", "512"),
        ("MaxOutstandingR2T", "65535"),
        ("HeaderDigest", "CRC32C"),
        ("OFMarkInt", "1~2"),
    ];
    let usual: &[usize] = random.pick(&[&[0, 2][..], &[0, 3], &[0, 4, 5, 6], &[]]);
    for at in usual {
        text::push(&mut said, keys[*at].0, keys[*at].1);
    }
    for _ in 0..random.below(4) {
        let (key, value) = random.pick(&keys);
        text::push(&mut said, key, value);
    }
    random.mutate(&mut said);
    let mut header = header(0x43, random.pick(&[0x87, 0x81, 0x00, 0x40, 0x83, 0x04]), random);
    header[16..20].fill(0);
    header[5..8].copy_from_slice(&(said.len() as u32).to_be_bytes()[1..]);
    if random.once_in(3) {
        random.mutate(&mut header);
    }
    out.extend_from_slice(&header);
    out.extend_from_slice(&said);
    out.resize(out.len() + said.len().next_multiple_of(4) - said.len(), 0);
}

fn text_request(random: &mut Random) -> Pdu {
    let mut data = Vec::new();
    for _ in 0..random.pick(&[0u64, 1, 1, 2, 100, 128, 129]) {
        let value = random.pick(&["All", "All", "All", "", "iqn.2026-01.org.example:open", "?"]);
        text::push(&mut data, random.pick(&["SendTargets", "SendTargets", "X-other"]), value);
    }
    let mut header = header(0x04, random.pick(&[0x80, 0x80, 0x40, 0xc0]), random);
    // The request starts an exchange, or continues an exchange by a tag of the target, which counts from 0.
    let transfer_tag = if random.once_in(3) { random.below(8) as u32 } else { NO_TAG };
    header[20..24].copy_from_slice(&transfer_tag.to_be_bytes());
    Pdu { how: 0, header, data }
}

/// Pings, task management, logouts, and PDUs with an unknown opcode.
fn other(random: &mut Random) -> Pdu {
    let opcode = random.pick(&[0x00u8, 0x00, 0x02, 0x02, 0x02, 0x05, 0x10, 0x1e, 0x03, 0x06]);
    let function = match opcode {
        0x02 => random.below(10) as u8,
        0x06 if random.once_in(2) => 2,
        _ => 0,
    };
    let mut header = header(opcode, 0x80 | function, random);
    header[9] = random.below(4) as u8;
    header[20..24].copy_from_slice(&(random.below(40) as u32).to_be_bytes());
    let data = if opcode == 0x02 { 0 } else { random.pick(&[0, 1, 512, 8192, 65535]) };
    let data = random.bytes(data);
    Pdu { how: 0, header, data }
}

/// A SCSI command, mostly valid.
fn command(random: &mut Random) -> Pdu {
    let lun = random.pick(&[0u8, 0, 0, 1, 1, 2, 3]);
    let blocks = if lun == 1 { SPARSE_SIZE } else { SIZE } / BLOCK;
    let (cdb, data_in, data_out) = cdb(random, blocks);
    let mut header = header(0x01, 0x80, random);
    header[9] = lun;
    header[32..].copy_from_slice(&cdb);
    let mut expected = data_in.max(data_out.len() as u64);
    if random.once_in(8) {
        expected = random.edge(expected);
    }
    header[20..24].copy_from_slice(&(expected as u32).to_be_bytes());
    header[1] |= if data_in > 0 { 0x40 } else { 0 } | if data_out.is_empty() { 0 } else { 0x20 };
    let mut data = data_out;
    if random.once_in(3) {
        // Unsolicited data follows, or all data is solicited.
        header[1] &= if random.once_in(2) { 0x7f } else { 0xff };
        data.truncate(random.below(data.len() as u64 + 1) as usize);
    }
    data.truncate(65535);
    Pdu { how: 0, header, data }
}

/// A CDB, the bytes that the initiator expects, and its data.
fn cdb(random: &mut Random, blocks: u64) -> ([u8; 16], u64, Vec<u8>) {
    let mut cdb = [0; 16];
    let count = match random.below(4) {
        0 => random.edge(blocks),
        1 => random.pick(&[0, 255, 256, 257, 511, 512, 513, 2048, 32768, 32769, 65535]),
        _ => random.below(64),
    };
    let lba = match random.below(4) {
        0 => random.edge(blocks),
        1 => blocks.wrapping_sub(count),
        _ => random.below(blocks),
    };
    let opcode = random.pick(&OPCODES);
    cdb[0] = opcode;
    cdb[1] = if random.once_in(2) { 0 } else { random.byte() };
    let mut list = Vec::new();
    match opcode >> 5 {
        1 | 2 => {
            cdb[2..6].copy_from_slice(&(lba as u32).to_be_bytes());
            cdb[7..9].copy_from_slice(&(count as u16).to_be_bytes());
        }
        5 => {
            cdb[2..6].copy_from_slice(&(lba as u32).to_be_bytes());
            cdb[6..10].copy_from_slice(&(count as u32).to_be_bytes());
        }
        4 => {
            cdb[2..10].copy_from_slice(&lba.to_be_bytes());
            cdb[10..14].copy_from_slice(&(count as u32).to_be_bytes());
        }
        _ => cdb[1..5].copy_from_slice(&[random.byte() & 0x1f, random.byte(), random.byte(), count as u8]),
    }
    let transfer = (count.min(1 << 17) * BLOCK).min(200 << 10);
    match opcode {
        // READ and others that return data.
        0x08 | 0x28 | 0xa8 | 0x88 => return (cdb, transfer, list),
        0x0a | 0x2a | 0xaa | 0x8a | 0x2e | 0xae | 0x8e | 0x8b => list = random.bytes(transfer as usize),
        0x2f | 0xaf | 0x8f if cdb[1] & 2 != 0 => list = random.bytes(transfer.max(512) as usize),
        0x89 => {
            cdb[10..13].fill(0);
            cdb[13] = count as u8;
            list = vec![random.pick(&[0, 7]); 2 * usize::from(count as u8) * 512];
        }
        0x41 | 0x93 => list = vec![random.pick(&[0, 0, 5]); 512],
        0x42 => list = unmap(random, blocks, &mut cdb),
        0x15 | 0x55 => {
            list = [&[0; 8][..], &[0x0a, 10, 4, 0x10, 0, 0, 0, 0, 0xff, 0xff, 0, 0]].concat();
            (cdb[1], cdb[4], cdb[8]) = (0x10, list.len() as u8, list.len() as u8);
        }
        0x5f => {
            list = vec![0; 24];
            list[random.pick(&[7, 15])] = random.below(3) as u8;
            (cdb[1], cdb[2], cdb[8]) = (random.below(8) as u8, random.below(9) as u8, 24);
        }
        0x83 => list = third_party(random, blocks, &mut cdb),
        0x12 | 0x1a | 0x03 => {
            (cdb[2], cdb[4]) = (random.pick(&[0, 0x83, 0xb0, 0xb2, 0x3f, 8, 0x0a]), random.byte())
        }
        0x9e => cdb[1] = random.pick(&[0x10, 0x12]),
        0x84 | 0xa3 => cdb[1] = random.byte() & 0x1f,
        _ => {}
    }
    let expected = if list.is_empty() { random.pick(&[0, 255, 4096, 65536]) } else { 0 };
    (cdb, expected, list)
}

/// All supported commands, those with ranges more often, and some unsupported ones.
const OPCODES: [u8; 56] = [
    0x28, 0x2a, 0x88, 0x88, 0x8a, 0x8a, 0x2e, 0x8e, 0x2f, 0x8f, 0x8f, 0x89, 0x89, 0x8b, 0x41, 0x93, 0x93,
    0x42, 0x42, 0x34, 0x90, 0x35, 0x91, 0x9e, 0x9e, 0x83, 0x83, 0x83, 0x84, 0x5f, 0x5f, 0x5e, 0x15, 0x55,
    0x1a, 0x5a, 0x12, 0x12, 0x00, 0x03, 0x08, 0x0a, 0xa8, 0xaa, 0xaf, 0xae, 0x16, 0x17, 0x56, 0x57, 0x1b,
    0x25, 0xa0, 0xa3, 0xa3, 0x7f,
];

fn unmap(random: &mut Random, blocks: u64, cdb: &mut [u8; 16]) -> Vec<u8> {
    let count = random.pick(&[0u16, 1, 3, 256, 257]);
    let mut list = [(6 + 16 * count).to_be_bytes(), (16 * count).to_be_bytes(), [0; 2], [0; 2]].concat();
    for _ in 0..count {
        let len = random.below(100);
        list.extend((random.below(blocks - len)).to_be_bytes());
        list.extend((len as u32).to_be_bytes());
        list.extend([0; 4]);
    }
    cdb[1..7].fill(0);
    cdb[7..9].copy_from_slice(&(list.len() as u16).to_be_bytes());
    list
}

/// EXTENDED COPY, POPULATE TOKEN and WRITE USING TOKEN.
fn third_party(random: &mut Random, blocks: u64, cdb: &mut [u8; 16]) -> Vec<u8> {
    const ROD_TYPE_ZERO: u32 = 0xffff_0001;
    cdb[1] = random.pick(&[0x00, 0x00, 0x10, 0x11]);
    let mut list = match cdb[1] {
        0x10 => vec![0; 14],
        0x11 => {
            let mut list = vec![0; 16];
            list.extend(ROD_TYPE_ZERO.to_be_bytes());
            list.resize(16 + 512 + 6, 0);
            list
        }
        _ => return extended_copy(random, blocks, cdb),
    };
    let ranges = random.pick(&[0u16, 1, 2, 64, 65]);
    list.extend((16 * ranges).to_be_bytes());
    for n in 0..u64::from(ranges) {
        list.extend((n * 64).to_be_bytes());
        list.extend((random.below(65) as u32).to_be_bytes());
        list.extend([0; 4]);
    }
    let len = list.len() as u16 - 2;
    list[..2].copy_from_slice(&len.to_be_bytes());
    cdb[10..14].copy_from_slice(&(list.len() as u32).to_be_bytes());
    list
}

fn extended_copy(random: &mut Random, blocks: u64, cdb: &mut [u8; 16]) -> Vec<u8> {
    let (targets, segments) = (random.below(3) as u16, random.pick(&[0u32, 1, 5, 64, 65]));
    let mut list = vec![random.byte(), 0, 0, 0, 0, 0, 0, 0];
    list[2..4].copy_from_slice(&(32 * targets).to_be_bytes());
    list.extend((28 * segments).to_be_bytes());
    list.extend([0; 4]);
    for _ in 0..targets {
        let mut target = vec![0xe4, 0, 0, 0, 1, 3, 0, 8];
        target.extend(random.bytes(8));
        target.resize(30, 0);
        target.extend([2, 0]);
        list.extend(target);
    }
    for _ in 0..segments {
        list.extend([2, 0, 0, 24, 0, random.below(3) as u8, 0, 0, 0, 0]);
        list.extend((random.edge(blocks) as u16).to_be_bytes());
        list.extend(random.edge(blocks).to_be_bytes());
        list.extend(random.edge(blocks).to_be_bytes());
    }
    cdb[10..14].copy_from_slice(&(list.len() as u32).to_be_bytes());
    list
}
