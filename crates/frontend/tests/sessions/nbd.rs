//! Generated NBD clients.

use forebay_frontend::fuzzing::{SIZE, SPARSE_SIZE, flags};
use forebay_wire::nbd::*;

use crate::random::Random;

/// A script for [`forebay_frontend::fuzzing::nbd_session`].
pub fn script(random: &mut Random) -> Vec<u8> {
    let kind = random.below(8) as u8;
    let options = random.byte();
    let pieces = random.pick(&[0, 0, 1, 7, 28, 200]);
    let mut script = vec![kind, options, pieces];
    if kind.is_multiple_of(4) {
        script.extend(negotiation(random));
        return script;
    }
    let size = if kind % 4 == 2 { SPARSE_SIZE } else { SIZE };
    for _ in 0..random.below(40) {
        record(random, size, &mut script);
    }
    script
}

/// All messages of a client, starting with its flags.
fn negotiation(random: &mut Random) -> Vec<u8> {
    let mut said = random.pick(&[3u32, 3, 3, 1, 0, 7, u32::MAX]).to_be_bytes().to_vec();
    for _ in 0..random.below(12) {
        let export = random.pick(&["vol", "sparse", "vol@s", "", "no such", "\u{fffd}"]);
        let name = [&(export.len() as u32).to_be_bytes()[..], export.as_bytes()].concat();
        let (number, mut data) = match random.below(9) {
            0 => (OPT_LIST, Vec::new()),
            1 => (OPT_STRUCTURED_REPLY, Vec::new()),
            2 => (OPT_STARTTLS, Vec::new()),
            3 => (OPT_INFO, [&name[..], &[0, 3, 0, 1, 0, 2, 0, 3]].concat()),
            4 => (OPT_GO, [&name[..], &[0, 1, 0, 3]].concat()),
            5 | 6 => {
                let query = random.pick(&["base:allocation", "base:", "", "other:x"]);
                let queries =
                    [&1u32.to_be_bytes()[..], &(query.len() as u32).to_be_bytes(), query.as_bytes()];
                (
                    random.pick(&[OPT_LIST_META_CONTEXT, OPT_SET_META_CONTEXT]),
                    [name, queries.concat()].concat(),
                )
            }
            7 => (OPT_EXPORT_NAME, export.as_bytes().to_vec()),
            _ => {
                let len = random.pick(&[0, 1, 4096, 65536, 65537, 100_000]);
                (random.next() as u32, vec![random.byte(); len])
            }
        };
        random.mutate(&mut data);
        let mut option = OPTION_MAGIC.to_be_bytes().to_vec();
        option.extend_from_slice(&number.to_be_bytes());
        option.extend_from_slice(&(data.len() as u32).to_be_bytes());
        if random.once_in(12) {
            random.mutate(&mut option);
        }
        said.extend(option);
        said.extend(data);
    }
    // Requests, in case one of the options started the transmission.
    for n in 0..random.below(6) {
        said.extend(REQUEST_MAGIC.to_be_bytes());
        said.extend([0, 0, 0, random.below(9) as u8]);
        said.extend(n.to_be_bytes());
        said.extend(random.edge(SIZE).to_be_bytes());
        said.extend((random.edge(1 << 20) as u32).to_be_bytes());
    }
    said.truncate(said.len() - random.below(20).min(said.len() as u64) as usize);
    said
}

fn record(random: &mut Random, size: u64, script: &mut Vec<u8>) {
    let mut how = 0;
    for flag in [flags::RAW, flags::BREAK_OFF, flags::DAMAGE] {
        how |= if random.once_in(80) { flag } else { 0 };
    }
    let kind = match random.below(12) {
        0 => random.next() as u16,
        n => (n % 8) as u16,
    };
    // A disconnect ends the session, so it is the last record of most scripts.
    let kind = if kind == CMD_DISC && !random.once_in(10) { CMD_READ } else { kind };
    let command_flags = match random.below(3) {
        0 => 0,
        1 => 1 << random.below(6),
        _ => random.next() as u16 & 0x1f,
    };
    let len = match random.below(10) {
        0 => random.edge(size) as u32,
        1 => random.edge(32 << 20) as u32,
        2 | 3 => random.below(600) as u32,
        _ => random.pick(&[0u32, 512, 4096, 65536, 256 << 10, (256 << 10) + 512, 1 << 20]),
    };
    let offset = match random.below(4) {
        0 => random.edge(size),
        1 => size.wrapping_sub(len.into()),
        _ => random.below(size) & !511,
    };
    script.push(how);
    script.extend_from_slice(&command_flags.to_be_bytes());
    script.extend_from_slice(&kind.to_be_bytes());
    script.extend_from_slice(&offset.to_be_bytes());
    script.extend_from_slice(&len.to_be_bytes());
}
