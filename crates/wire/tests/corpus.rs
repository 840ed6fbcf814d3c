//! The checked-in corpus of every fuzz target, on the stable toolchain: what was found once stays found.
//! `FOREBAY_WRITE_CORPUS=1 cargo test -p forebay-wire` adds the seeds made here.

use std::path::{Path, PathBuf};

use forebay_wire::fuzzing;
use forebay_wire::nbd::*;

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target)
}

#[test]
fn every_input_of_the_corpus_passes() {
    for (name, target) in fuzzing::TARGETS {
        let files = std::fs::read_dir(corpus(name)).unwrap_or_else(|e| panic!("no corpus of {name}: {e}"));
        let mut inputs: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        inputs.sort();
        assert!(!inputs.is_empty(), "the corpus of {name} is empty");
        for path in inputs {
            let bytes = std::fs::read(&path).unwrap();
            // The name of the input goes ahead of whatever panics.
            let passed = std::panic::catch_unwind(|| target(&bytes));
            assert!(passed.is_ok(), "{} fails", path.display());
        }
    }
}

/// Each fuzz target of this crate has its program.
#[test]
fn every_target_has_a_program() {
    let manifest = include_str!("../../../fuzz/Cargo.toml");
    for (name, _) in fuzzing::TARGETS {
        assert!(manifest.contains(&format!("name = \"{name}\"")), "fuzz/Cargo.toml lacks {name}");
        let program = std::fs::read_to_string(corpus("../fuzz_targets").join(format!("{name}.rs"))).unwrap();
        assert!(program.contains(&format!("fuzzing::{name}(")), "{name}.rs calls something else");
    }
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

/// Seeds: conversations as clients hold them, cut and changed ones among them.
#[test]
fn seeds() {
    if std::env::var_os("FOREBAY_WRITE_CORPUS").is_none() {
        return;
    }
    let write = |target: &str, name: &str, bytes: &[u8]| {
        std::fs::create_dir_all(corpus(target)).unwrap();
        std::fs::write(corpus(target).join(name), bytes).unwrap();
        std::fs::write(corpus(target).join(format!("{name}-cut")), &bytes[..bytes.len() * 2 / 3]).unwrap();
        let mut changed = bytes.to_vec();
        (5..changed.len()).step_by(31).for_each(|at| changed[at] ^= 0x81);
        std::fs::write(corpus(target).join(format!("{name}-changed")), changed).unwrap();
    };
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
}
