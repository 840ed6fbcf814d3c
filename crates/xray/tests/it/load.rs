//! The load generator against a minimal correct server, and against the same server with faults.

use std::time::Duration;

use forebay_xray::device::{DeviceError, Endpoint};
use forebay_xray::load::{Access, LoadError, Rate, Spec, Stop, run};
use forebay_xray::nbd::NbdError;

use crate::server::{Fault, SIZE, Server};

#[test]
fn a_verified_mix_over_several_connections_is_clean() {
    let server = Server::start(Fault::None);
    let spec = Spec {
        read_percent: 50,
        connections: 3,
        verify: true,
        flush_each: Some(Duration::from_millis(5)),
        ..server.spec()
    };
    let report = run(&spec).expect("runs");
    assert_eq!(report.ops, 6000);
    assert_eq!(report.ops, report.counts.ops());
    assert_eq!(report.bytes, 6000 * 4096);
    assert!(report.counts.flushes >= 3, "each connection flushes at the end");
    assert!(report.counts.verified > 1000, "{}", report.counts.verified);
    assert_eq!((report.counts.errors, report.counts.wrong), (0, 0));
}

#[test]
fn large_sequential_requests_cover_the_range_once() {
    let server = Server::start(Fault::None);
    let spec = Spec {
        read_percent: 0,
        access: Access::Sequential,
        block_bytes: 1 << 19,
        depth: 4,
        stop: Stop::OncePerBlock,
        verify: true,
        ..server.spec()
    };
    let report = run(&spec).expect("runs");
    assert_eq!((report.counts.writes, report.bytes), (8, SIZE));
    assert_eq!((report.counts.verified, report.counts.wrong), (8, 0));
}

#[test]
fn a_file_is_loaded_and_verified() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    file.as_file().set_len(SIZE).expect("sets the length");
    let spec = Spec {
        read_percent: 50,
        verify: true,
        flush_each: Some(Duration::from_millis(5)),
        stop: Stop::Requests(2000),
        ..Spec::new(Endpoint::File(file.path().into()))
    };
    let counts = run(&spec).expect("runs").counts;
    assert_eq!((counts.ops(), counts.errors, counts.wrong), (2000, 0, 0));
    assert!(counts.verified > 500 && counts.flushes > 0, "{counts:?}");
}

#[test]
fn lost_writes_are_detected() {
    let server = Server::start(Fault::LosesWrites);
    let report = run(&Spec { read_percent: 0, verify: true, ..server.spec() }).expect("runs");
    assert!(report.counts.wrong > 0 && report.first_mismatch.is_some());
}

#[test]
fn failed_requests_are_counted_with_the_first_error() {
    let server = Server::start(Fault::Fails);
    let report = run(&server.spec()).expect("runs");
    assert_eq!((report.counts.errors, report.counts.first_error, report.ops), (20, Some(5), 1980));
}

#[test]
fn a_server_that_hangs_up_is_an_error() {
    let server = Server::start(Fault::HangsUp);
    match run(&server.spec()) {
        Err(LoadError::Device(DeviceError::Nbd(NbdError::Closed(_) | NbdError::Io(_)))) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_rate_is_kept_on_average() {
    let server = Server::start(Fault::None);
    for rate in [Rate::Poisson(20_000.0), Rate::Bursts(20_000.0)] {
        let report = run(&Spec { rate: Some(rate), ..server.spec() }).expect("runs");
        // 2,000 arrivals at 20,000 per second take close to 0.1 s, however fast the server is.
        assert!(report.seconds > 0.08, "{rate:?}: {}", report.seconds);
    }
}

#[test]
fn invalid_parameters_are_rejected() {
    let server = Server::start(Fault::None);
    let bad = [
        Spec { block_bytes: 1000, ..server.spec() },
        Spec { depth: 0, ..server.spec() },
        Spec { block_bytes: 8 << 20, ..server.spec() },
        Spec { range: Some(0..4096 * 32), verify: true, ..server.spec() },
    ];
    for spec in bad {
        assert!(matches!(run(&spec), Err(LoadError::Spec(_) | LoadError::TooSmall { .. })), "{spec:?}");
    }
}
