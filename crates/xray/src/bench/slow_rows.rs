//! Rows about a slow store: the laboratory load of an offload appliance, on four disks of 5400 rpm, with and
//! without coalescing of small writes.
//!
//! The load is that of WORKLOADS: 8 KiB, all random, one fifth reads, 1 GiB in total on two persistent
//! volumes, with the request rate that 200 linked clones had on the array without an appliance; each guest
//! flushes once per second.

use std::path::Path;
use std::time::Duration;

use super::limited::fill;
use super::rounds::generate;
use super::{Bench, Pace};
use crate::error::{Error, Result};
use crate::load::{Fill, Rate, Report, Stop};
use crate::report::{Bound, Row, Unit};
use crate::targets::servers::{Forebay, ForebayConfig};

const GUESTS: [&str; 2] = ["first", "second"];
/// Requests per second of all guests together.
const RATE: f64 = 1785.0;
/// Reads, in percent of the requests.
const READ_PERCENT: u8 = 20;
/// Disks of 5400 rpm, as sold for arrays of that time.
const DISKS: &str = "slow = { spindles = 4, seek_ms = 12, rpm = 5400, rate = \"100M\" }";

/// The results of a server under the load.
struct Measured {
    /// Store operations (reads, writes and syncs) per guest operation.
    cost: f64,
    p99_us: f64,
}

/// Runs the load with and without coalescing.
pub fn coalescing(bench: &Bench, pace: &Pace, binary: &Path) -> Result<Vec<Row>> {
    let measure = |name, coalesce: &str| -> Result<Measured> {
        bench.say(&format!("small random writes on slow disks, coalesce = {coalesce}"));
        let settings = format!("[store]\n{DISKS}\n[commit]\ncoalesce = \"{coalesce}\"\n");
        let forebay = Forebay::start(&bench.dir, binary, &ForebayConfig::new(name, 2 << 30).with(settings))?;
        load(&forebay, pace)
    };
    // Filled with coalescing on; without, it would take hours.
    let (adaptive, off) = (measure("slow-adaptive", "adaptive")?, measure("slow-off", "off")?);
    let what = |what: &str| format!("{what}: 8 KiB, random, 20/80, 4 disks of 5400 rpm");
    let times = ("without coalescing", &[off.cost][..]);
    let p99 = ("without coalescing", &[off.p99_us][..]);
    let cost = Row::compare(
        what("store operations per guest operation"),
        Unit::Times,
        Bound::AtMost(0.14),
        &[adaptive.cost],
        times,
    );
    let latency =
        Row::compare(what("p99 of guests"), Unit::Micros, Bound::RatioAtMost(0.2), &[adaptive.p99_us], p99);
    Ok(vec![cost, latency])
}

fn load(forebay: &Forebay, pace: &Pace) -> Result<Measured> {
    let size = pace.slow_bytes / GUESTS.len() as u64;
    for (seed, guest) in (1..).zip(GUESTS) {
        forebay.create(guest, size)?;
        fill(forebay, guest, size, seed, &Fill::Noise)?;
    }
    let store = || -> Result<u64> {
        let stats = forebay.stats()?;
        Ok(stats.get("/store/read/ops")? + stats.get("/store/write/ops")? + stats.get("/store/sync_ops")?)
    };
    let before = store()?;
    let one = |guest: &'static str, seed| {
        generate(&forebay.disk(guest), |spec| {
            spec.read_percent = READ_PERCENT;
            spec.block_bytes = 8 << 10;
            spec.rate = Some(Rate::Poisson(RATE / GUESTS.len() as f64));
            spec.flush_each = Some(Duration::from_secs(1));
            spec.seed = seed;
            spec.stop = Stop::After(pace.slow);
        })
    };
    let reports: Vec<Report> = std::thread::scope(|scope| {
        let guests: Vec<_> =
            (10..).zip(GUESTS).map(|(seed, guest)| scope.spawn(move || one(guest, seed))).collect();
        let join = |guest: std::thread::ScopedJoinHandle<'_, Result<Report>>| {
            guest.join().unwrap_or_else(|_| Err(Error::panicked("forebay")))
        };
        guests.into_iter().map(join).collect::<Result<_>>()
    })?;
    let guest: u64 = reports.iter().map(|r| r.ops).sum();
    let cost = (store()? - before) as f64 / guest.max(1) as f64;
    let p99_us = reports.iter().map(|r| r.latency.p99_us).fold(0.0, f64::max);
    Ok(Measured { cost, p99_us })
}
