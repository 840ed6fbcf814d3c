//! Fleets of virtual desktops: replays boots, logons and office work as published (`figures`) on desktops of
//! a real server, and compares their cost for the store with the published cost of the best RAM cache with
//! overflow.
//!
//! `shape` determines where desktops read and write, `script` the operations of a phase, `content` the bytes
//! of blocks; `desk` is the connection of one desktop, `fleet` runs the phases of all desktops from one
//! thread and takes the server's `counters` before and after each, `report` compares.

pub(crate) mod content;
pub(crate) mod counters;
pub(crate) mod desk;
pub(crate) mod figures;
mod fleet;
pub(crate) mod image;
mod report;
pub(crate) mod script;
pub(crate) mod shape;
pub(crate) mod tally;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use figures::Phase;
pub use fleet::{Cache, PhaseResult};
pub use report::Days;

use crate::error::{During, Error, Result};
use crate::files;
use crate::report::{Begun, BenchReport, Row};
use crate::targets::servers::{Forebay, ForebayConfig, WorkDir};
use content::Content;
use desk::Family;
use fleet::Fleet;
use shape::Shape;

/// Options of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The `forebay` binary.
    pub forebay: PathBuf,
    /// Directory for data.
    pub parent: PathBuf,
    /// Sizes of the fleets.
    pub fleets: Vec<u32>,
    /// Phases, in this order.
    pub phases: Vec<Phase>,
    /// States of the read cache.
    pub caches: Vec<Cache>,
    /// Factor by which time runs faster than published.
    pub speedup: f64,
    /// Number of operations of which one is made; for tests.
    pub scale: u32,
    /// RAM for the writes of each desktop.
    pub write_cache: u64,
    /// RAM for the writes of all desktops together.
    pub desktop_memory: u64,
    /// The server's read cache.
    pub read_cache: u64,
    /// Bytes of the image.
    pub image_bytes: u64,
    /// Bytes of the image that contain data; at least the bytes that are read.
    pub image_data: u64,
    /// The store counts as idle when its counters do not change for this long.
    pub still: Duration,
    /// Whether it is a quick run; for the report.
    pub quick: bool,
}

impl Options {
    /// Returns the options of a full run.
    pub fn new(forebay: PathBuf, parent: &Path) -> Options {
        Options {
            forebay,
            parent: parent.to_owned(),
            fleets: vec![1, 11, 50, 150],
            phases: vec![Phase::Boot, Phase::Logon, Phase::Steady, Phase::Profile, Phase::ProfileSteady],
            caches: vec![Cache::Cold, Cache::Profiled, Cache::Warm],
            speedup: 60.0,
            scale: 1,
            write_cache: 256 << 20,
            desktop_memory: 8 << 30,
            read_cache: 3 << 30,
            image_bytes: 12 << 30,
            image_data: 3 << 30,
            still: Duration::from_millis(1500),
            quick: false,
        }
    }

    /// The phases of a plain day, and those of a day with a profile, which only small fleets have.
    fn days(&self, desktops: u32, cache: Cache) -> [Vec<Phase>; 2] {
        let (profile, plain): (Vec<Phase>, Vec<Phase>) = self.phases.iter().partition(|p| p.has_profile());
        let with_profile = desktops <= PROFILE_DESKTOPS && cache == Cache::Warm && !profile.is_empty();
        [plain, if with_profile { [vec![Phase::Boot], profile].concat() } else { Vec::new() }]
    }
}

/// The image's name in the pool.
const IMAGE: &str = "golden";
/// Bytes of real data from which blocks are made.
const ARENA: usize = 64 << 20;
/// Time limit for reading fingerprints back after a start.
const INDEX_WITHIN: Duration = Duration::from_secs(600);
/// The largest fleet to which profiles are copied: the size of the published fleet.
const PROFILE_DESKTOPS: u32 = 11;

/// Runs all fleets.
pub fn run(options: &Options) -> Result<BenchReport<Days>> {
    let begun = Begun::now();
    let dir = WorkDir::create(&options.parent)?;
    let shape = Shape::new(options.image_bytes, options.image_data, options.scale);
    let content = Content::new(files::bytes_of(&files::packages(), ARENA));
    let family = Family { shape: &shape, content: &content };
    import(&dir, options, family)?;
    let (mut phases, mut memory) = (Vec::new(), Vec::new());
    let mut audited = (0, 0);
    for &count in &options.fleets {
        let (cold, others): (Vec<Cache>, Vec<Cache>) =
            options.caches.iter().partition(|c| **c == Cache::Cold);
        for (caches, profile) in [(cold, "off"), (others, "auto")] {
            let Some(first) = caches.first() else { continue };
            // The caches of a server that was just started are empty.
            let mut forebay = Forebay::start(&dir, &options.forebay, &config(options, count, profile))?;
            wait_for_index(&forebay)?;
            let mut fleet = Fleet::new(&forebay, options, family, count)?;
            if *first == Cache::Warm {
                say(&format!("warming up {count} desktops"));
                fleet.day(&options.days(count, Cache::Profiled)[0], Cache::Profiled)?;
            }
            for &cache in &caches {
                phases.extend(days(&mut fleet, options, count, cache)?);
            }
            audited = (audited.0 + fleet.audited.0, audited.1 + fleet.audited.1);
            let what = format!("{count} {}: peak memory", first.name());
            memory.push(Row::memory(&what, budgets(&forebay)?, forebay.memory()?.peak));
            fleet.remove()?;
            forebay.gc()?;
            forebay.server.process.stop()?;
        }
    }
    let rows = [report::rows(&phases), memory].concat();
    let days = Days {
        speedup: options.speedup,
        image_bytes: options.image_bytes,
        image_data_bytes: (shape.data.len() as u64) << 20,
        boot_touches_bytes: shape.touched_bytes(Phase::Boot),
        read_cache_bytes: options.read_cache,
        write_cache_bytes: options.write_cache,
        desktop_memory_bytes: options.desktop_memory,
        phases,
        audited_blocks: audited.0,
        audited_wrong: audited.1,
    };
    Ok(begun.report(options.quick, Vec::new(), rows, days))
}

/// Runs the days of a fleet.
fn days(fleet: &mut Fleet<'_>, options: &Options, count: u32, cache: Cache) -> Result<Vec<PhaseResult>> {
    let mut phases = Vec::new();
    let [plain, profile] = options.days(count, cache);
    for day in [&plain, &profile].into_iter().filter(|day| !day.is_empty()) {
        let names: Vec<_> = day.iter().map(|p| p.name()).collect();
        say(&format!("{count} desktops, {}: {}", cache.name(), names.join("; ")));
        let results = fleet.day(day, cache)?;
        // The boot before a logon with a profile is not counted: boots are measured on the plain day.
        phases.extend(results.into_iter().filter(|r| day == &plain || r.phase.has_profile()));
    }
    Ok(phases)
}

/// Creates the pool with the packed image and the profile of a boot.
fn import(dir: &WorkDir, options: &Options, family: Family<'_>) -> Result<()> {
    say("importing the image");
    let raw = dir.data("golden.raw");
    image::write(&raw, family.shape, family.content)?;
    let mut forebay = Forebay::start(dir, &options.forebay, &config(options, 1, "auto"))?;
    forebay.import(IMAGE, &raw)?;
    std::fs::remove_file(&raw).during(|| format!("cannot remove {}", raw.display()))?;
    forebay.gc()?;
    say("recording the boot and logon of one desktop");
    let mut one = Fleet::new(&forebay, options, family, 1)?;
    one.record()?;
    one.remove()?;
    forebay.server.process.stop()
}

fn config(options: &Options, desktops: u32, profile: &str) -> ForebayConfig {
    let memory = options.desktop_memory.min(options.write_cache.saturating_mul(desktops.into()));
    ForebayConfig::new("pool", options.read_cache)
        .with(format!("[memory]\ndesktops = {memory}\n[boot]\nprofile = \"{profile}\"\n"))
}

/// The budgets of the server's caches, in bytes.
fn budgets(forebay: &Forebay) -> Result<u64> {
    let budgets = [
        "/read_cache/budget_bytes",
        "/map_cache/budget_bytes",
        "/desktops/budget_bytes",
        "/reduction/index/budget_bytes",
    ];
    budgets.into_iter().map(|which| forebay.stat(which)).sum()
}

/// Waits until the server has read its fingerprints back, which it does once after a start.
fn wait_for_index(forebay: &Forebay) -> Result<()> {
    let begun = Instant::now();
    while forebay.stat("/reduction/index/segments_left")? > 0 {
        if begun.elapsed() > INDEX_WITHIN {
            let wanted = "end of reading fingerprints back";
            return Err(Error::Output { command: "forebay stats --json".to_owned(), wanted });
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

/// Prints progress to standard error.
fn say(what: &str) {
    eprintln!("vdi: {what}");
}
