//! The delay that long requests of one client cause to another client on the same thread.

use std::time::Duration;

use forebay_frontend::fuzzing::{self, SIZE, SPARSE_SIZE};
use forebay_wire::iscsi::BHS;
use forebay_wire::nbd::*;

/// Maximum permitted delay, in CPU time of the thread. The documented limit is 5 ms for release builds; this
/// is a test build. CPU time is measured, because the machine may run other work too.
const MOST: Duration = Duration::from_millis(15);
/// Attempts: a script that delays others does so in each attempt. Time that the host takes away from a
/// virtual processor is counted as CPU time of the thread, but does not affect every attempt.
const ATTEMPTS: usize = 5;

/// A function that runs a script, such as `fuzzing::nbd_session` and `fuzzing::iscsi_session`.
type Session = fn(&[u8]);

/// A script of an NBD client on `vol` (1) or `sparse` (2), which sends the same request repeatedly.
fn nbd(disk: u8, times: usize, kind: u16, flags: u16, offset: u64, len: u32) -> Vec<u8> {
    const STRUCTURED_WITH_BLOCK_STATUS: u8 = 3;
    let mut script = vec![disk, STRUCTURED_WITH_BLOCK_STATUS, 0];
    for _ in 0..times {
        script.push(0);
        script.extend_from_slice(&flags.to_be_bytes());
        script.extend_from_slice(&kind.to_be_bytes());
        script.extend_from_slice(&offset.to_be_bytes());
        script.extend_from_slice(&len.to_be_bytes());
    }
    script
}

/// A script of an initiator, which sends the same command to unit `lun` repeatedly.
fn iscsi(lun: u8, times: usize, cdb: &[u8], data_in: u32, data_out: &[u8]) -> Vec<u8> {
    const LONG_SEGMENTS: u8 = 5;
    const NO_DIGESTS: u8 = 0;
    let mut script = vec![2, LONG_SEGMENTS, NO_DIGESTS, 0];
    // The first command of each unit is answered with a unit attention.
    for n in 0..=times {
        let mut header = [0; BHS];
        header[0] = 0x01;
        header[1] = 0x80 | if data_in > 0 { 0x40 } else { 0 } | if data_out.is_empty() { 0 } else { 0x20 };
        header[9] = lun;
        header[19] = n as u8;
        let expected = if data_out.is_empty() { data_in } else { data_out.len() as u32 };
        header[20..24].copy_from_slice(&expected.to_be_bytes());
        header[32..32 + cdb.len()].copy_from_slice(cdb);
        script.push(0);
        script.extend_from_slice(&header);
        script.extend_from_slice(&(data_out.len() as u16).to_be_bytes());
        script.extend_from_slice(data_out);
    }
    script
}

/// A CDB of 16 bytes.
fn cdb16(opcode: u8, byte: u8, lba: u64, blocks: u32) -> [u8; 16] {
    let mut cdb = [0; 16];
    (cdb[0], cdb[1]) = (opcode, byte);
    cdb[2..10].copy_from_slice(&lba.to_be_bytes());
    cdb[10..14].copy_from_slice(&blocks.to_be_bytes());
    cdb
}

fn unmap_list() -> Vec<u8> {
    let mut list = [(6u16 + 16 * 256).to_be_bytes(), (16u16 * 256).to_be_bytes(), [0; 2], [0; 2]].concat();
    for n in 0..256u64 {
        list.extend((n << 24).to_be_bytes());
        list.extend((1u32 << 23).to_be_bytes());
        list.extend([0; 4]);
    }
    list
}

/// The longest wait of another client while a script runs.
fn longest_wait(target: Session, script: &[u8]) -> Duration {
    let mut found = Duration::MAX;
    for _ in 0..ATTEMPTS {
        found = found.min(fuzzing::longest_wait_during(|| target(script)));
        if found < MOST {
            break;
        }
    }
    found
}

#[test]
fn no_request_delays_the_other_clients_of_its_thread() {
    let _alone = super::alone();
    const ALL: u32 = u32::MAX - 511;
    let mib = 1 << 20;
    let mut attacks: Vec<(&str, Session, Vec<u8>)> = Vec::new();
    for (name, script) in [
        ("CACHE of holes", nbd(2, 30, CMD_CACHE, 0, 0, ALL)),
        ("CACHE of data", nbd(1, 100, CMD_CACHE, 0, 0, SIZE as u32)),
        ("reads of holes", nbd(2, 2000, CMD_READ, 0, SPARSE_SIZE / 2, 256 << 10)),
        ("long reads", nbd(1, 20, CMD_READ, CMD_FLAG_DF, 0, 16 * mib)),
        ("small reads", nbd(1, 20_000, CMD_READ, 0, 0, 1)),
        ("long writes", nbd(1, 20, CMD_WRITE, 0, 8 << 20, 2 * mib)),
        ("WRITE_ZEROES", nbd(2, 200, CMD_WRITE_ZEROES, 0, 1 << 40, ALL)),
        ("TRIM", nbd(2, 200, CMD_TRIM, 0, 1 << 40, ALL)),
        ("BLOCK_STATUS", nbd(2, 200, CMD_BLOCK_STATUS, 0, 0, ALL)),
    ] {
        attacks.push((name, fuzzing::nbd_session, script));
    }
    let block = vec![7; 512];
    for (name, script) in [
        // Few: each takes a tenth of a second of CPU time after the random sessions, and the session of an
        // initiator that is silent for a minute ends.
        ("VERIFY of holes", iscsi(1, 10, &cdb16(0x8f, 0, 0, u32::MAX), 0, &[])),
        ("VERIFY of data", iscsi(0, 60, &cdb16(0x8f, 0, 0, (SIZE / 512) as u32), 0, &[])),
        ("VERIFY of zero blocks", iscsi(1, 60, &cdb16(0x8f, 6, 0, u32::MAX), 0, &vec![0; 512])),
        ("READ", iscsi(0, 30, &cdb16(0x88, 0, 0, 32768), 16 << 20, &[])),
        ("WRITE SAME", iscsi(0, 20, &cdb16(0x93, 0, 16384, 16384), 0, &block)),
        (
            "UNMAP",
            iscsi(1, 20, &[&[0x42, 0, 0, 0, 0, 0, 0][..], &4104u16.to_be_bytes()].concat(), 0, &unmap_list()),
        ),
        ("GET LBA STATUS", iscsi(1, 60, &cdb16(0x9e, 0x12, 0, 65536), 65536, &[])),
        ("PRE-FETCH", iscsi(1, 60, &cdb16(0x90, 0, 0, 0), 0, &[])),
    ] {
        attacks.push((name, fuzzing::iscsi_session, script));
    }
    let found: Vec<_> =
        attacks.iter().map(|(name, target, script)| (*name, longest_wait(*target, script))).collect();
    for (name, longest) in &found {
        println!("{name:24} {longest:?}");
    }
    assert!(found.iter().all(|(_, longest)| *longest < MOST), "other clients waited too long: {found:?}");
}
