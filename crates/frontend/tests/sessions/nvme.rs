//! Generated NVMe hosts.

use forebay_frontend::fuzzing::{SIZE, SPARSE_SIZE, flags};

use crate::random::Random;

const BLOCK: u64 = 512;

/// A script for [`forebay_frontend::fuzzing::nvme_session`].
pub fn script(random: &mut Random) -> Vec<u8> {
    let kind = random.pick(&[0, 1, 2, 2, 2, 2, 2]);
    let mut script = vec![kind, random.byte(), random.pick(&[0, 0, 1, 5, 48, 200])];
    if kind == 0 {
        script.extend_from_slice(&[0, 0, 128, 0, 128, 0, 0, 0]);
        script.resize(script.len() + 120, 0);
        for _ in 0..random.below(4) {
            let bytes = random.pick(&[8, 24, 72, 1100]);
            script.extend_from_slice(&random.bytes(bytes));
        }
        random.mutate(&mut script[3..]);
        return script;
    }
    for _ in 0..random.below(60) {
        let (mut how, mut sqe, mut data) = if kind == 1 { admin(random) } else { command(random) };
        random.mutate(&mut sqe);
        random.mutate(&mut data);
        for flag in [flags::RAW, flags::BREAK_OFF, flags::DAMAGE] {
            how |= if random.once_in(150) { flag } else { 0 };
        }
        script.push(how);
        script.extend_from_slice(&sqe);
        script.extend_from_slice(&(data.len() as u16).to_le_bytes());
        script.extend_from_slice(&data);
    }
    script
}

type Record = (u8, [u8; 64], Vec<u8>);

/// An entry with one of few identifiers, so that some collide.
fn entry(opcode: u8, namespace: u32, random: &mut Random) -> [u8; 64] {
    let mut sqe = [0; 64];
    (sqe[0], sqe[1], sqe[39]) = (opcode, 0x40, 0x5a);
    sqe[2..4].copy_from_slice(&(random.below(200) as u16).to_le_bytes());
    sqe[4..8].copy_from_slice(&namespace.to_le_bytes());
    sqe
}

fn length(sqe: &mut [u8; 64], len: usize) {
    sqe[32..36].copy_from_slice(&(len as u32).to_le_bytes());
}

fn admin(random: &mut Random) -> Record {
    let opcode = random.pick(&[0x02, 0x02, 0x06, 0x06, 0x08, 0x09, 0x0a, 0x0c, 0x18, 0x7f]);
    let namespace = random.below(4) as u32;
    let mut sqe = entry(opcode, namespace, random);
    sqe[40] = random.pick(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 15, 0x70, 0x70, 0x81]);
    if opcode == 0x02 {
        let dwords = random.pick(&[1u16, 256, 1024, 4096]);
        sqe[42..44].copy_from_slice(&(dwords - 1).to_le_bytes());
        sqe[48] = random.pick(&[0, 0, 4, 3]);
        length(&mut sqe, usize::from(dwords) * 4);
    } else if opcode == 0x06 {
        length(&mut sqe, 4096);
    }
    (0, sqe, Vec::new())
}

/// An I/O command, mostly valid, or data for an earlier one.
fn command(random: &mut Random) -> Record {
    if random.once_in(5) {
        let mut sqe = entry(0, 0, random);
        sqe[40] = random.below(8) as u8;
        let len = random.pick(&[512, 4096, 16384, 60000]);
        return (flags::ANSWER_R2T, sqe, random.bytes(len));
    }
    let namespace = random.pick(&[1u32, 1, 1, 2, 2, 3, 4]);
    let blocks = if namespace == 2 { SPARSE_SIZE } else { SIZE } / BLOCK;
    let opcode = random.pick(&[0x00, 0x01, 0x01, 0x01, 0x02, 0x02, 0x05, 0x08, 0x09, 0x0c, 0x7f]);
    let mut sqe = entry(opcode, namespace, random);
    let count = random.pick(&[1u64, 1, 7, 8, 16, 17, 64, 2048]);
    let first = random.below(blocks);
    let first = if random.once_in(8) { random.edge(blocks) } else { first };
    sqe[40..48].copy_from_slice(&first.to_le_bytes());
    sqe[48..52].copy_from_slice(&((count - 1) as u32 | (random.below(4) as u32) << 30).to_le_bytes());
    let mut data = Vec::new();
    match opcode {
        0x01 | 0x05 => {
            length(&mut sqe, (count * BLOCK) as usize);
            if count <= 16 && !random.once_in(4) {
                sqe[39] = 0x01;
                data = random.bytes((count * BLOCK) as usize);
            }
            // A Compare and Write, complete or not.
            sqe[1] |= match opcode {
                0x05 if random.once_in(2) => 1,
                0x01 if random.once_in(4) => 2,
                _ => 0,
            };
        }
        0x02 => length(&mut sqe, (count * BLOCK) as usize),
        0x09 => {
            (sqe[39], sqe[40], sqe[44]) = (0x01, 1, 4);
            data = random.bytes(32);
            length(&mut sqe, data.len());
        }
        0x7f => sqe[4] = random.pick(&[0, 1, 4, 8]),
        _ => {}
    }
    (0, sqe, data)
}
