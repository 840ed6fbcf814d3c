//! A small replay of desktops against the real server, if it is built in the same target directory.

use std::path::PathBuf;
use std::time::Duration;

use forebay_xray::report::Details;
use forebay_xray::vdi::{Cache, Options, Phase, run};

/// The server: `FOREBAY_BIN`, or the binary in the parent directory of this test's binary.
pub fn server() -> Option<PathBuf> {
    let built = || Some(std::env::current_exe().ok()?.parent()?.parent()?.join("forebay"));
    std::env::var_os("FOREBAY_BIN").map(PathBuf::from).or_else(built).filter(|path| path.exists())
}

#[test]
fn desktops_make_the_published_operations_and_read_what_they_wrote() {
    let Some(forebay) = server() else {
        eprintln!("skipped: the server is not built (cargo build -p forebay-server)");
        return;
    };
    let dir = tempfile::tempdir().expect("a directory");
    let options = Options {
        fleets: vec![3],
        speedup: 2000.0,
        scale: 50,
        // Small enough for the desktops to overflow.
        write_cache: 2 << 20,
        // Room for the data of the image and for what the desktops overflow.
        read_cache: 160 << 20,
        still: Duration::from_millis(50),
        image_bytes: 128 << 20,
        image_data: 64 << 20,
        ..Options::new(forebay, dir.path())
    };
    let report = run(&options).expect("runs");
    let days = &report.details;
    assert_eq!(days.phases.len(), 3 * 3 + 2);
    for p in &days.phases {
        assert_eq!(p.reads + p.writes, 3 * u64::from(p.planned_ops), "{:?}", p.phase);
        assert_eq!(p.server.guest_ops, p.reads + p.writes, "operations counted by the server, {:?}", p.phase);
    }
    let boot = |cache| {
        let of = days.phases.iter().find(|p| (p.phase, p.cache) == (Phase::Boot, cache));
        of.expect("a boot").server
    };
    assert!(boot(Cache::Cold).read_ops > 0);
    let (profiled, cold) = (boot(Cache::Profiled).read_ops, boot(Cache::Cold).read_ops);
    // Time runs 2,000 times as fast, so on a busy machine guests overtake a part of the reads ahead.
    assert!(profiled * 3 < cold * 2, "{profiled} store reads with a profile, {cold} without");
    // Misses of guests, not reads of the store: a reclaim, which the reset causes, reads maps at the same
    // time.
    let (warm, cold) = (boot(Cache::Warm).cache_misses, boot(Cache::Cold).cache_misses);
    assert!(warm < cold / 10, "{warm} misses when warm, {cold} when cold");
    let steady = days.phases.iter().find(|p| p.phase == Phase::ProfileSteady).expect("the last phase");
    assert!(steady.server.overflow_ops > 0);
    assert!(days.audited_blocks > 500, "{}", days.audited_blocks);
    assert_eq!(days.wrong_blocks(), 0);
    for table in days.tables().into_iter().chain([report.table()]) {
        assert!(table.contains("boot"));
    }
}
