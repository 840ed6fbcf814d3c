//! Runs every fuzz target on its checked-in corpus, on the stable toolchain, as a regression test.
//! `cargo run -p xtask -- corpora` writes the samples again.

#[path = "../../../format/tests/corpus/mod.rs"]
mod stored;

use forebay_wire::fuzzing;
use forebay_wire::nbd::*;
use stored::*;

#[test]
fn every_input_of_the_corpus_passes() {
    fuzzing::TARGETS.iter().for_each(run_inputs);
}

#[test]
fn every_target_has_a_program() {
    check_programs(fuzzing::TARGETS);
}

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    [&OPTION_MAGIC.to_be_bytes()[..], &number.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data]
        .concat()
}

fn request(flags: u16, kind: u16, offset: u64, len: u32) -> Vec<u8> {
    let magic = REQUEST_MAGIC.to_be_bytes();
    let (flags, kind, cookie) = (flags.to_be_bytes(), kind.to_be_bytes(), 7u64.to_be_bytes());
    [&magic[..], &flags, &kind, &cookie, &offset.to_be_bytes(), &len.to_be_bytes()].concat()
}

/// Seeds: negotiations and requests of clients, complete, truncated and corrupted.
#[test]
fn samples_are_current() {
    let write = put_with_variants;
    let go = option(OPT_GO, b"\0\0\0\x03vol\0\x02\0\x01\0\x03");
    let meta = option(OPT_SET_META_CONTEXT, b"\0\0\0\x03vol\0\0\0\x01\0\0\0\x0fbase:allocation");
    let structured = option(OPT_STRUCTURED_REPLY, b"");
    let flags = |cut: u8, flags: u8| vec![cut, 0, 0, 0, flags];
    write("nbd_options", "go", &[flags(5, 3), structured.clone(), meta.clone(), go].concat());
    let list = option(OPT_LIST, b"");
    let tls = option(OPT_STARTTLS, b"");
    write("nbd_options", "list", &[flags(1, 1), tls, list, option(OPT_ABORT, b"bye")].concat());
    write("nbd_options", "old", &[flags(200, 0), option(OPT_EXPORT_NAME, b"vol")].concat());
    let contexts = option(OPT_LIST_META_CONTEXT, b"\0\0\0\x03vol\0\0\0\x02\0\0\0\x05base:\0\0\0\x01x");
    write("nbd_options", "contexts", &[flags(33, 3), structured, contexts, meta].concat());
    write(
        "nbd_options",
        "long",
        &[flags(100, 3), option(OPT_INFO, &vec![1; OPTION_MAX as usize + 9])].concat(),
    );
    write("nbd_options", "unknown", &[flags(9, 3), option(4711, b"data"), option(11, b"")].concat());
    let all: Vec<u8> = (0..9u16)
        .flat_map(|kind| {
            let data = if kind == CMD_WRITE { vec![kind as u8; 512] } else { Vec::new() };
            [request(u16::from(kind % 2 == 1), kind, 512 * u64::from(kind), 512), data].concat()
        })
        .collect();
    let disc = request(0, CMD_DISC, 0, 0);
    write("nbd_requests", "all", &[&[7, 6, 0xff, 0xff][..], &all, &disc].concat());
    write("nbd_requests", "read-only", &[&[255, 7, 0x10, 0], &all[..]].concat());
    write("nbd_requests", "plain", &[&[1, 0, 0xff, 0xff], &all[..]].concat());
    let beyond =
        [request(0, CMD_WRITE, u64::MAX, 100), vec![1; 100], request(0, CMD_READ, 1 << 40, 1)].concat();
    write("nbd_requests", "beyond", &[&[30, 6, 1, 0], &beyond[..]].concat());
    let long = [request(0, CMD_READ, 0, 33 << 20), request(CMD_FLAG_DF, CMD_READ, 0, 33 << 20)].concat();
    write("nbd_requests", "long", &[&[64, 0xff, 0xff, 0xff], &long[..]].concat());
    scsi_seeds(&write);
    iscsi_seeds(&write);
    nvme_seeds(&write);
    nfs_seeds(&write);
}

/// CDBs and parameter lists of initiators.
fn scsi_seeds(write: &dyn Fn(&str, &str, &[u8])) {
    let unit = [0, 1, 0, 0];
    for (name, cdb) in [
        ("read6", &[0x08, 0x01, 2, 3, 0, 0][..]),
        ("read10", &[0x28, 0x18, 0, 0, 0, 8, 0, 0, 8, 0]),
        ("write16", &[0x8a, 0x08, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 8, 0, 0]),
        ("verify12", &[0xaf, 0x06, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0]),
        ("compare-and-write", &[0x89, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 255, 0, 0]),
        ("write-same", &[0x93, 0x09, 0, 0, 0, 0, 0, 0, 255, 0, 0, 0, 0, 0, 0, 0]),
        ("lba-status", &[0x9e, 0x12, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0]),
        ("inquiry", &[0x12, 1, 0x83, 1, 0, 0]),
        ("mode-sense", &[0x5a, 0x10, 0x4a, 0xff, 0, 0, 0, 1, 0, 0]),
        ("reserve-out", &[0x5f, 1, 0x05, 0, 0, 0, 0, 0, 24, 0]),
        ("opcodes", &[0xa3, 0x0c, 0x83, 0x9e, 0, 0x10, 0, 0, 255, 255, 0, 0]),
        ("beyond", &[0x88, 0, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0]),
    ] {
        write("scsi_cdb", name, &[&unit[..], cdb].concat());
    }
    let list = |which: u8, flag: u8, bytes: &[u8]| [&[which, flag, 0x10, 0][..], bytes].concat();
    let control = [0x0a, 10, 6, 0x10, 8, 0, 0, 0, 255, 255, 0, 0];
    write("scsi_parameters", "mode6", &list(0, 0, &[&[0; 4][..], &control].concat()));
    write("scsi_parameters", "mode10", &list(0, 1, &[&[0; 8][..], &control].concat()));
    write("scsi_parameters", "reserve", &list(1, 0, &[[0; 20], [1; 20]].concat()[..24]));
    let ranges = [0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0, 0, 0];
    write("scsi_parameters", "unmap", &list(2, 0, &[&[0, 22, 0, 16, 0, 0, 0, 0][..], &ranges].concat()));
    let mut copy = vec![1, 0, 0, 32, 0, 0, 0, 0, 0, 0, 0, 28, 0, 0, 0, 0];
    copy.extend_from_slice(&[0xe4, 0, 0, 0, 1, 3, 0, 8, 0x31, 2, 3, 4, 5, 6, 7, 8]);
    copy.extend_from_slice(&[0; 14]);
    copy.extend_from_slice(&[2, 0, 2, 0, 0, 24, 0, 0, 0, 0, 0, 0, 0, 8]);
    copy.extend_from_slice(&[0; 16]);
    write("scsi_parameters", "copy", &list(3, 0, &copy));
    let populate = [&[0, 30, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 16][..], &ranges].concat();
    write("scsi_parameters", "populate", &list(4, 0, &populate));
    let mut token =
        [&[2, 0x26, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 1][..], &[0; 514]].concat();
    token.extend_from_slice(&[0, 16]);
    token.extend_from_slice(&ranges);
    write("scsi_parameters", "write-token", &list(5, 0, &token));
}

/// Logins and sessions of initiators.
fn iscsi_seeds(write: &dyn Fn(&str, &str, &[u8])) {
    use forebay_wire::iscsi::{BHS, Digests};
    let pdu = |opcode: u8, flags: u8, data: &[u8], digests: Digests| {
        let mut header = [0; BHS];
        (header[0], header[1]) = (opcode, flags);
        header[4..8].copy_from_slice(&(data.len() as u32).to_be_bytes());
        header[16..20].copy_from_slice(&7u32.to_be_bytes());
        header[32..42].copy_from_slice(&[0x2a, 0, 0, 0, 0, 8, 0, 0, 1, 0]);
        let mut out = Vec::new();
        digests.append(&header, data, &mut out);
        out
    };
    let login = b"InitiatorName=iqn.2026-01.org.example:i\0SessionType=Normal\0TargetName=iqn.2026-01.org.example:t\0";
    for (name, bits) in [("plain", 0u8), ("header", 1), ("both", 3)] {
        let digests = Digests { header: bits & 1 != 0, data: bits & 2 != 0 };
        let all = [
            (0x43, 0x87, &login[..]),
            (0x01, 0xa0, &[5; 512]),
            (0x05, 0x80, &[6; 100]),
            (0x40, 0x80, b"ping"),
            (0x02, 0x81, b""),
        ];
        let stream: Vec<u8> =
            all.iter().flat_map(|(op, flags, data)| pdu(*op, *flags, data, digests)).collect();
        write("iscsi_pdus", name, &[&[17, bits][..], &stream].concat());
    }
    write(
        "iscsi_pdus",
        "too-long",
        &[&[1, 0][..], &pdu(0x01, 0x80, &[1; 5000], Digests::default())].concat(),
    );
    write("iscsi_text", "login", login);
    let operational = b"HeaderDigest=CRC32C,None\0DataDigest=None\0InitialR2T=No\0ImmediateData=Yes\0MaxBurstLength=0x40000\0FirstBurstLength=65536\0MaxOutstandingR2T=8\0MaxRecvDataSegmentLength=262144\0ErrorRecoveryLevel=2\0DefaultTime2Wait=0\0X-org.example.thing=1\0";
    write("iscsi_text", "operational", operational);
    write(
        "iscsi_text",
        "chap",
        b"CHAP_N=user\0CHAP_R=0x00112233445566778899aabbccddeeff\0CHAP_I=7\0CHAP_C=0bAAECAwQFBgcICQ==\0",
    );
}

/// Initializations, command capsules and data of hosts.
/// Sessions of NFS clients: a mount, names and data, in whole records and in fragments.
#[allow(clippy::too_many_lines, reason = "a flat list of calls")]
fn nfs_seeds(write: &dyn Fn(&str, &str, &[u8])) {
    use forebay_wire::nfs::{self, mount, portmap};
    use forebay_wire::rpc::Encoder;
    let call = |program: u32, version: u32, procedure: u32, args: &dyn Fn(&mut Encoder)| {
        let mut xdr = Encoder::default();
        xdr.u32(procedure + 1).u32(0).u32(2).u32(program).u32(version).u32(procedure);
        xdr.u32(1).opaque(&[&[0; 7][..], &[4, b'h', b'o', b's', b't'], &[0; 11], &[1, 0, 0, 0, 9]].concat());
        xdr.u32(0).opaque(&[]);
        args(&mut xdr);
        xdr.into_bytes()
    };
    let record = |message: &[u8], fragments: usize| {
        let len = message.len().div_ceil(fragments);
        let marked = message.chunks(len).enumerate().flat_map(|(n, fragment)| {
            let last = if (n + 1) * len >= message.len() { 1 << 31 } else { 0 };
            [&(last | fragment.len() as u32).to_be_bytes()[..], fragment].concat()
        });
        marked.collect::<Vec<u8>>()
    };
    let nfs = |procedure: u32, args: &dyn Fn(&mut Encoder)| call(nfs::PROGRAM, nfs::VERSION, procedure, args);
    let set = |xdr: &mut Encoder| {
        xdr.u32(1).u32(0o644).u32(0).u32(0).u32(1).u64(0).u32(1).u32(2).u32(5).u32(6);
    };
    let mounts = [
        call(portmap::PROGRAM, portmap::VERSION, 3, &|xdr| {
            xdr.u32(nfs::PROGRAM).u32(nfs::VERSION).u32(portmap::TCP).u32(0);
        }),
        call(mount::PROGRAM, 3, 1, &|xdr| {
            xdr.opaque(b"/datastore");
        }),
        call(mount::PROGRAM, 3, 5, &|_| ()),
    ];
    let names = [
        nfs(3, &|xdr| {
            xdr.opaque(&[1; 20]).opaque(b"file");
        }),
        nfs(8, &|xdr| {
            xdr.opaque(&[1; 20]).opaque(b"file").u32(0);
            set(xdr);
        }),
        nfs(8, &|xdr| {
            xdr.opaque(&[1; 20]).opaque(b"file").u32(2).u64(77);
        }),
        nfs(14, &|xdr| {
            xdr.opaque(&[1; 20]).opaque(b"file").opaque(&[1; 20]).opaque(b"other");
        }),
        nfs(17, &|xdr| {
            xdr.opaque(&[1; 20]).u64(3).u64(0).u32(512).u32(4096);
        }),
    ];
    let data = [
        nfs(2, &|xdr| {
            xdr.opaque(&[1; 20]);
            set(xdr);
            xdr.u32(1).u32(5).u32(6);
        }),
        nfs(7, &|xdr| {
            xdr.opaque(&[1; 20]).u64(4096).u32(9).u32(2).opaque(b"some data");
        }),
        nfs(6, &|xdr| {
            xdr.opaque(&[1; 20]).u64(4096).u32(9);
        }),
        nfs(21, &|xdr| {
            xdr.opaque(&[1; 20]).u64(0).u32(0);
        }),
    ];
    for (name, calls) in [("mounts", &mounts[..]), ("names", &names), ("data", &data)] {
        for fragments in [1, 3] {
            let records: Vec<u8> = calls.iter().flat_map(|call| record(call, fragments)).collect();
            write("nfs_calls", &format!("{name}-{fragments}"), &[&[11][..], &records].concat());
        }
    }
    write("nfs_calls", "too-long", &[&[9][..], &record(&[0; 2049], 1)].concat());
    write("nfs_calls", "many", &[&[50][..], &record(&[0; 65], 65)].concat());
}

fn nvme_seeds(write: &dyn Fn(&str, &str, &[u8])) {
    use forebay_wire::iscsi::crc32c;
    let pdu = |kind: u8, digests: u8, header: &[u8], data: &[u8]| {
        let digests = if kind == 0 { 0 } else { digests };
        let (head, digest) = (8 + header.len(), usize::from(digests & 1) * 4);
        let tail = if data.is_empty() { 0 } else { data.len() + usize::from(digests >> 1 & 1) * 4 };
        let flags = if data.is_empty() { digests & 1 } else { digests };
        let mut out = vec![kind, flags, head as u8, (head + digest) as u8];
        out.extend_from_slice(&((head + digest + tail) as u32).to_le_bytes());
        out.extend_from_slice(header);
        for (bit, part) in [(1, out.clone()), (2, data.to_vec())] {
            if bit == 2 {
                out.extend_from_slice(data);
            }
            if digests & bit != 0 && !part.is_empty() {
                out.extend_from_slice(&crc32c(&part, 0).to_le_bytes());
            }
        }
        out
    };
    let command = |opcode: u8, blocks: u8| {
        let mut sqe = [0; 64];
        (sqe[0], sqe[1], sqe[4], sqe[39], sqe[48]) = (opcode, 0x40, 1, 0x01, blocks - 1);
        sqe[32..36].copy_from_slice(&(u32::from(blocks) * 512).to_le_bytes());
        sqe
    };
    let mut data = vec![3, 0, 1, 0];
    data.extend_from_slice(&[0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0]);
    for (name, digests) in [("plain", 0), ("header", 1), ("both", 3)] {
        let stream = [
            pdu(0, 0, &[0; 120], &[]),
            pdu(4, digests, &command(0x7f, 1), &[]),
            pdu(4, digests, &command(0x01, 1), &[5; 512]),
            pdu(4, digests, &command(0x02, 2), &[]),
            pdu(4, digests, &command(0x09, 1), &[0; 16]),
            pdu(6, digests, &data, &[6; 512]),
            pdu(2, 0, &[0; 16], &[4; 24]),
        ];
        write("nvme_pdus", name, &[&[13, digests, 9][..], &stream.concat()].concat());
    }
    let first = pdu(0, 0, &[0; 120], &[]);
    let long = pdu(6, 0, &data, &[6; 5000]);
    write("nvme_pdus", "too-long", &[&[40, 0, 9][..], &first, &long].concat());
}
