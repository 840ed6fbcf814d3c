//! The initiator and the benchmark against the real server, if it is built in the same target directory.

use std::path::PathBuf;

use super::servers::{DURABLE, WRITES};
use super::*;
use crate::bench::rounds::generate;
use crate::iscsi::{Command, InitiatorSession, Status};
use crate::load::Stop;
use crate::rng::Rng;

/// The server: `FOREBAY_BIN`, or the binary in the parent directory of this test's binary.
fn server() -> Option<PathBuf> {
    let built = || Some(std::env::current_exe().ok()?.parent()?.parent()?.join("forebay"));
    let found =
        std::env::var_os("FOREBAY_BIN").map(PathBuf::from).or_else(built).filter(|path| path.exists());
    if found.is_none() {
        eprintln!("skipped: the server is not built (cargo build -p forebay-server)");
    }
    found
}

const SIZE: u64 = 16 << 20;

#[test]
fn what_is_written_in_any_length_is_read() {
    let Some(forebay) = server() else { return };
    let parent = tempfile::tempdir().expect("a directory");
    let dir = WorkDir::create(parent.path()).expect("a directory");
    let ours = Ours::start(&dir, &forebay, SIZE).expect("starts");
    let mut rng = Rng::new(1);
    for lun in [WRITES, DURABLE] {
        let mut session = InitiatorSession::connect(&ours.unit(lun), 1, 1).expect("logs in");
        assert_eq!(session.capacity().expect("has one"), SIZE);
        assert!(session.must(&Command::inquiry(), &[]).expect("answers")[8..].starts_with(b"FOREBAY"));
        // Immediate data only, with additional unsolicited data, and with R2Ts.
        for len in [512, 4096, 64 << 10, 200 << 10, 256 << 10, 260 << 10, 3 << 20] {
            let mut data = vec![0; len as usize];
            rng.fill(&mut data);
            session.must(&Command::write(8192, len), &data).expect("writes");
            let read = session.must(&Command::read(8192, len), &[]).expect("reads");
            assert!(read == data, "{len} bytes");
        }
        session.leave().expect("logs out");
    }

    let mut hosts = [1, 2].map(|n| InitiatorSession::connect(&ours.unit(DURABLE), n, 1).expect("logs in"));
    let mut status =
        |n: usize, command: &Command, data: &[u8]| hosts[n].execute(command, data).expect("answers").status;
    let zero = status(0, &Command::write(0, 512), &[0; 512]);
    assert_eq!(zero, Status::Good);
    let take = [[0; 512], [1; 512]].concat();
    assert_eq!(status(0, &Command::compare_and_write(0, 512), &take), Status::Good);
    assert!(status(1, &Command::compare_and_write(0, 512), &take).is_miscompare());
    assert_eq!(status(0, &Command::reserve(), &[]), Status::Good);
    assert_eq!(status(1, &Command::read(0, 512), &[]), Status::Conflict);
    assert_eq!(status(1, &Command::reserve(), &[]), Status::Conflict);
    assert_eq!(status(0, &Command::release(), &[]), Status::Good);
    assert_eq!(status(1, &Command::read(0, 512), &[]), Status::Good);
}

#[test]
fn a_load_of_two_initiators_reads_what_it_wrote() {
    let Some(forebay) = server() else { return };
    let parent = tempfile::tempdir().expect("a directory");
    let dir = WorkDir::create(parent.path()).expect("a directory");
    let ours = Ours::start(&dir, &forebay, SIZE).expect("starts");
    let report = generate(&ours.disk(WRITES), |spec| {
        (spec.read_percent, spec.verify, spec.connections) = (50, true, 2);
        spec.flush_each = Some(Duration::from_millis(20));
        spec.stop = Stop::Requests(1000);
    });
    let counts = report.expect("runs").counts;
    assert_eq!((counts.ops(), counts.wrong), (2000, 0));
    assert!(counts.verified > 500 && counts.flushes >= 2, "{counts:?}");
}

#[test]
fn reservations_are_in_the_way_and_compare_and_write_is_not() {
    let Some(forebay) = server() else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let options =
        Options { forebay: Some(forebay), parent: dir.path().into(), quick: true, only: vec![Part::Shared] };
    let scene = Duration::from_millis(200);
    let pace = Pace { rounds: 1, perf_rounds: 1, load: scene, scene_rounds: 1, scene, size: SIZE };
    let report = match measure(&options, &pace) {
        Err(Error::Missing { program, .. }) => return eprintln!("skipped: {program} is not installed"),
        report => report.expect("runs"),
    };
    assert_eq!((report.details.scenes.len(), report.rows.len()), (12, 10));
    for scene in &report.details.scenes {
        let reserved = scene.name.starts_with("RESERVE");
        assert!(reserved || scene.median(|m| m.data_iops) > 0.0, "{}", scene.name);
        assert_eq!(scene.median(|m| m.data_conflicts) > 0.0, reserved, "{}", scene.name);
        assert_eq!(scene.median(|m| m.operations) > 0.0, scene.name != "alone", "{}", scene.name);
    }
    assert!(report.details.tables().concat().contains("RESERVE") && report.table().contains("COMPARE"));
}
