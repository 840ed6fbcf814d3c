//! Rows about neighbours: how much a guest is slowed down by another guest that sends as many requests as the
//! server answers.
//!
//! The victim reads 4 KiB blocks from the cache, or writes 4 KiB that are durable when they are answered, one
//! at a time. Or it stands for many guests that do little: each reads at random moments, so that a pause of
//! the server delays all reads that fall into it, where it delays a single one of the other victims; and
//! their blocks are used rarely, compared with those of a hog.
//!
//! Each hog loads a separate volume on the same server. A round measures the victim alone, then next to each
//! hog, and next to all together; a row compares its p99 with that alone. Another row compares it with that
//! next to the same hogs on a separate server: what the machine and its disk cost, which no server can
//! prevent. So does the share of the CPU time that a hypervisor took.
//!
//! The clients of the hogs run only while a CPU is idle otherwise: they stand for other machines. With the
//! usual priority on two cores, a loop that only starts programs increases the p99 of the victim six times,
//! without any request to the server.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::rounds::generate;
use super::{Bench, Pace};
use crate::error::{During, Error, Result};
use crate::load::{Rate, Report, Spec, Stop};
use crate::machine::CpuTimes;
use crate::nbd;
use crate::report::{Bound, Row, Unit};
use crate::targets::servers::{Forebay, ForebayConfig};

const MIB: u64 = 1 << 20;
/// The read cache: the data that the victim reads fits in, that of the scanner does not.
const CACHE: u64 = 64 * MIB;
const VICTIM_BYTES: u64 = 8 * MIB;
const HOG_BYTES: u64 = 1 << 30;
/// What the trimmer writes at a time, and then discards block by block.
const TRIMMED: u64 = 256 << 10;
/// Time for which a hog runs before the victim is measured.
const HEAD_START: Duration = Duration::from_millis(500);
/// Promised ratios of the victim's p99 next to a hog to that alone.
const CACHED: f64 = 2.0;
const DURABLE: f64 = 3.0;
/// The guests of the victim that stands for many, and the reads of each in a second.
const GUESTS: u16 = 20;
const GUEST_RATE: f64 = 100.0;
/// The limit of the row about limits, and its tolerance.
const LIMIT_IOPS: f64 = 500.0;
const TOLERANCE: f64 = 0.05;

/// What loads the server next to the victim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hog {
    Writer,
    Scanner,
    Trimmer,
    Snapshots,
}

/// Sets of hogs, and their names in rows.
const HOGS: [(&str, &[Hog]); 5] = [
    ("a 1 MiB writer, depth 64", &[Hog::Writer]),
    ("a scanner of misses, 1 MiB, depth 64", &[Hog::Scanner]),
    ("a trimmer of what it writes", &[Hog::Trimmer]),
    ("a loop of snapshots", &[Hog::Snapshots]),
    ("all of these", &[Hog::Writer, Hog::Scanner, Hog::Trimmer, Hog::Snapshots]),
];

/// What the victim does.
#[derive(Debug, Clone, Copy)]
enum Victim {
    Reads,
    Writes,
    /// [`GUESTS`], which read.
    Guests,
}

impl Hog {
    /// Unit of the victim's rate.
    fn unit(self) -> Unit {
        match self {
            Hog::Writer | Hog::Scanner => Unit::MibPerSecond,
            Hog::Trimmer | Hog::Snapshots => Unit::Iops,
        }
    }

    /// Loads its volume for `time`, or until `stop`. Returns its rate.
    fn run(self, forebay: &Forebay, time: Duration, stop: &AtomicBool, names: &AtomicU32) -> Result<f64> {
        leave_cpu_to_others()?;
        let large = |spec: &mut Spec, read_percent| {
            spec.read_percent = read_percent;
            spec.block_bytes = MIB as u32;
            spec.depth = 64;
            spec.stop = Stop::After(time);
        };
        match self {
            Hog::Writer => Ok(generate(&forebay.disk("hog-writes"), |spec| large(spec, 0))?.mib_s),
            Hog::Scanner => Ok(generate(&forebay.disk("hog-reads"), |spec| large(spec, 100))?.mib_s),
            Hog::Trimmer => {
                let failed = |source: nbd::NbdError| Error::request("forebay", source);
                let mut disk = nbd::Disk::open(&forebay.server.target(), "hog-trims").map_err(failed)?;
                let mut written = vec![0x5a; TRIMMED as usize];
                each_until(stop, |n| {
                    // No two blocks are equal.
                    let numbers = u64::from(n) * (TRIMMED / 4096)..;
                    written
                        .chunks_mut(4096)
                        .zip(numbers)
                        .for_each(|(b, n)| b[..8].copy_from_slice(&n.to_le_bytes()));
                    let at = u64::from(n) * TRIMMED % HOG_BYTES;
                    disk.write(at, &written).map_err(failed)?;
                    // A file system discards like this when many files are deleted.
                    (at..at + TRIMMED).step_by(4096).try_for_each(|at| disk.trim(at, 4096).map_err(failed))
                })
            }
            Hog::Snapshots => each_until(stop, |_| {
                let name = format!("s{}", names.fetch_add(1, Relaxed));
                forebay.cli(&["snapshot", "create", "hog-writes", &name])?;
                forebay.cli(&["snapshot", "rm", "hog-writes", &name])?;
                Ok(())
            }),
        }
    }
}

impl Victim {
    fn measure(self, forebay: &Forebay, time: Duration, seed: u64) -> Result<f64> {
        let (export, read_percent) = match self {
            Victim::Reads | Victim::Guests => ("victim-reads", 100),
            Victim::Writes => ("victim-writes", 0),
        };
        let report = generate(&forebay.disk(export), |spec| {
            spec.read_percent = read_percent;
            spec.depth = 1;
            if let Victim::Guests = self {
                (spec.connections, spec.rate) = (GUESTS, Some(Rate::Poisson(GUEST_RATE)));
            }
            spec.seed = seed;
            spec.range = Some(0..VICTIM_BYTES);
            spec.stop = Stop::After(time);
        })?;
        Ok(report.latency.p99_us)
    }
}

/// Repeats what gets the number of the repetition, until `stop`; returns its rate.
fn each_until(stop: &AtomicBool, mut each: impl FnMut(u32) -> Result<()>) -> Result<f64> {
    let (began, mut count) = (Instant::now(), 0);
    while !stop.load(Relaxed) {
        each(count)?;
        count += 1;
    }
    Ok(f64::from(count) / began.elapsed().as_secs_f64())
}

/// Lets this thread, and what it starts, run only while a CPU would be idle.
fn leave_cpu_to_others() -> Result<()> {
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: the pointer is valid during the call, which changes only the scheduling of this thread.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &none) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error())
            .during(|| "cannot reduce the priority of a thread".to_owned()),
    }
}

fn write_all(forebay: &Forebay, export: &str, bytes: u64) -> Result<Report> {
    generate(&forebay.disk(export), |spec| {
        spec.pass(true, MIB as u32, 4);
        spec.range = Some(0..bytes);
        spec.flush_each = Some(Duration::from_secs(1));
    })
}

fn prepare(forebay: &Forebay) -> Result<()> {
    forebay.create("victim-reads", VICTIM_BYTES)?;
    let size = VICTIM_BYTES.to_string();
    forebay.cli(&["volume", "create", "victim-writes", "--size", &size, "--sync", "always"])?;
    for hog in ["hog-writes", "hog-reads", "hog-trims"] {
        forebay.create(hog, HOG_BYTES)?;
    }
    for (export, bytes) in [("victim-reads", VICTIM_BYTES), ("hog-reads", HOG_BYTES)] {
        write_all(forebay, export, bytes)?;
    }
    // A scan-resistant cache keeps blocks that are read again.
    for _ in 0..3 {
        Victim::Reads.measure(forebay, Duration::from_secs(1), 1)?;
    }
    Ok(())
}

/// Measures the p99 of the victim next to hogs, which load the server `loaded`, and the rate of the first
/// hog.
fn next_to(
    forebay: &Forebay,
    (hogs, loaded): (&[Hog], &Forebay),
    victim: Victim,
    time: Duration,
    seed: u64,
    names: &AtomicU32,
) -> Result<(f64, f64)> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (stop, all) = (&stop, HEAD_START + time);
        let running: Vec<_> =
            hogs.iter().map(|hog| scope.spawn(move || hog.run(loaded, all, stop, names))).collect();
        if !hogs.is_empty() {
            std::thread::sleep(HEAD_START);
        }
        let p99 = victim.measure(forebay, time, seed);
        stop.store(true, Relaxed);
        let mut rates = Vec::new();
        for hog in running {
            rates.push(hog.join().unwrap_or_else(|_| Err(Error::panicked("forebay")))?);
        }
        Ok((p99?, rates.first().copied().unwrap_or_default()))
    })
}

/// The victim's p99 next to each hog, compared with that alone.
pub fn hogs(bench: &Bench, pace: &Pace, binary: &Path) -> Result<Vec<Row>> {
    let start = |name| {
        let forebay = Forebay::start(&bench.dir, binary, &ForebayConfig::new(name, CACHE))?;
        prepare(&forebay).map(|()| forebay)
    };
    let (forebay, separate) = (start("hog")?, start("hog-separate")?);
    let names = AtomicU32::new(0);
    let mut rows = Vec::new();
    for (victim, what, bound) in [
        (Victim::Reads, "p99 of cached 4 KiB reads", CACHED),
        (Victim::Guests, "p99 of cached 4 KiB reads of 20 guests, 100/s each,", CACHED),
        (Victim::Writes, "p99 of durable 4 KiB writes", DURABLE),
    ] {
        bench.say(&format!("{what} next to hogs"));
        let mut alone = Vec::new();
        let mut with = vec![<[Vec<f64>; 4]>::default(); HOGS.len()];
        for round in 0..pace.rounds {
            let seed = u64::from(round) + 1;
            let measure =
                |hogs: &[_], loaded| next_to(&forebay, (hogs, loaded), victim, pace.write, seed, &names);
            alone.push(measure(&[], &forebay)?.0);
            for ((_, hogs), [p99s, rates, elsewhere, stolen]) in HOGS.iter().zip(&mut with) {
                let before = CpuTimes::now();
                let (p99, rate) = measure(hogs, &forebay)?;
                stolen.push(before.stolen_percent());
                p99s.push(p99);
                rates.push(rate);
                elsewhere.push(measure(hogs, &separate)?.0);
            }
        }
        for ((name, hogs), [p99s, rates, elsewhere, stolen]) in HOGS.iter().zip(&with) {
            let next_to = format!("{what} next to {name}");
            rows.push(Row::compare(
                next_to,
                Unit::Micros,
                Bound::RatioAtMost(bound),
                p99s,
                ("alone", &alone),
            ));
            rows.push(Row::compare(
                "  compared with the same on a separate server",
                Unit::Micros,
                Bound::Nothing,
                p99s,
                ("separate", elsewhere),
            ));
            let unit = hogs.first().map_or(Unit::Iops, |hog| hog.unit());
            rows.push(Row::alone(
                if hogs.len() > 1 { "  rate of the first hog" } else { "  rate of the hog" },
                unit,
                Bound::Nothing,
                rates,
            ));
            rows.push(Row::alone(
                "  CPU time that the hypervisor took",
                Unit::Percent,
                Bound::Nothing,
                stolen,
            ));
        }
    }
    Ok(rows)
}

/// The rate of a volume with a limit, compared with the limit.
pub fn limits(bench: &Bench, pace: &Pace, binary: &Path) -> Result<Vec<Row>> {
    bench.say("limits");
    let forebay = Forebay::start(&bench.dir, binary, &ForebayConfig::new("limits", CACHE))?;
    forebay.create("limited", VICTIM_BYTES)?;
    let iops = (LIMIT_IOPS as u64).to_string();
    forebay.cli(&["volume", "limit", "limited", "--iops", &iops])?;
    let mut off = Vec::new();
    for round in 0..pace.rounds {
        let report = generate(&forebay.disk("limited"), |spec| {
            spec.read_percent = 50;
            spec.depth = 16;
            spec.seed = u64::from(round) + 1;
            spec.stop = Stop::After(Duration::from_secs(2));
        })?;
        off.push((report.iops / LIMIT_IOPS - 1.0).abs());
    }
    let what = "deviation from a limit of 500 operations a second, over 2 s";
    Ok(vec![Row::alone(what, Unit::Times, Bound::AtMost(TOLERANCE), &off)])
}
