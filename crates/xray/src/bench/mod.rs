//! The benchmarks of DESIGN, section 15: each promise beside its peer, in one run.
//!
//! Figures of a shared or virtual machine mean little by themselves. So all servers run at once, idle except
//! for the one that is measured; each row goes through all of them in turns, several rounds; and a ratio is the
//! median over the rounds of two figures measured within seconds of each other. A benchmark fails only where a
//! server or a client fails: a promise that is missed is a line in the table.

mod cleaning_rows;
mod clone_rows;
pub(crate) mod error;
pub(crate) mod files;
mod fio;
mod io_rows;
mod limited;
pub(crate) mod machine;
mod pool_rows;
pub(crate) mod process;
mod reduce_rows;
pub(crate) mod report;
pub(crate) mod rounds;
pub(crate) mod servers;
mod slow_rows;
mod space_rows;
pub(crate) mod workdir;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use error::{BenchError, Result};
pub use report::{BenchReport, Bound, Row, Unit, Verdict};
pub(crate) use report::{table, thousands, trust};

use error::During;
use machine::{CpuTimes, Machine};
use servers::{Forebay, ForebayConfig, Server};
use workdir::WorkDir;

/// What to run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The `forebay` binary; the peers alone are measured without one.
    pub forebay: Option<PathBuf>,
    /// Where data goes: a directory on the disk to be measured.
    pub parent: PathBuf,
    /// Shorter, on less data.
    pub quick: bool,
    /// Only these rows; all where none is named.
    pub only: Vec<Part>,
}

impl Options {
    fn wants(&self, part: Part) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }
}

/// Rows that are measured together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Reads and writes, beside the peers.
    Io,
    /// Snapshots, clones, recovery, memory.
    Pool,
    /// CPU of reduction, and what it saves on real data.
    Reduce,
    /// Clones that are given the same files.
    Clones,
    /// Cleaning, and room that comes back.
    Space,
    /// Small writes on a store that is made as slow as disks.
    Slow,
}

/// How long everything takes.
struct Pace {
    rounds: u32,
    fio_rounds: u32,
    read: Duration,
    write: Duration,
    snapshots: u32,
    recovery_bytes: u64,
    /// Writes of a round of the reduction rows.
    reduce_writes: u64,
    /// Files of each image of real data.
    image_bytes: u64,
    clones: u32,
    /// Files that each clone is given.
    package_bytes: u64,
    /// Pool on which cleaning is measured.
    limited_bytes: u64,
    /// What is overwritten on it before the measurement, in per cent of it; half of that is measured.
    overwrite_percent: u64,
    /// Data on the slow store, and how long it is loaded.
    slow_bytes: u64,
    slow: Duration,
}

impl Pace {
    fn of(quick: bool) -> Pace {
        let seconds = Duration::from_secs_f64;
        if quick {
            Pace {
                rounds: 3,
                fio_rounds: 2,
                read: seconds(0.6),
                write: seconds(1.2),
                snapshots: 100,
                recovery_bytes: 256 << 20,
                reduce_writes: 20_000,
                image_bytes: 64 << 20,
                clones: 4,
                package_bytes: 32 << 20,
                limited_bytes: 256 << 20,
                overwrite_percent: 40,
                slow_bytes: 128 << 20,
                slow: seconds(5.0),
            }
        } else {
            Pace {
                rounds: 5,
                fio_rounds: 3,
                read: seconds(2.0),
                write: seconds(3.0),
                snapshots: 1000,
                recovery_bytes: 1 << 30,
                reduce_writes: 60_000,
                image_bytes: 400 << 20,
                clones: 20,
                package_bytes: 300 << 20,
                limited_bytes: 1 << 30,
                overwrite_percent: 100,
                slow_bytes: 1 << 30,
                slow: seconds(30.0),
            }
        }
    }
}

/// What the rows share. Fields drop in order: the servers end before their files go.
struct Bench {
    ours: Option<Forebay>,
    nbdkit: Server,
    qemu_reads: Server,
    qemu_writes: Server,
    size: u64,
    dir: WorkDir,
}

/// Whom the rows about reduction and space have no peer of.
const NO_PEER: &str = "Peers of deduplication: none. Debian has no block server in user space that does it (VDO is a \
                       kernel module, borg and zbackup are for backups); qcow2 compresses, read-only.";
/// Real data that writes are cut from.
const ARENA: usize = 24 << 20;
/// Name of the pool of the I/O rows.
const MAIN_POOL: &str = "main";

impl Bench {
    fn start(options: &Options, size: u64) -> Result<Bench> {
        // A qcow2 image takes a relative name of its backing file from where it lies itself.
        let parent = std::path::absolute(&options.parent);
        let dir =
            WorkDir::create(&parent.during(|| format!("cannot resolve {}", options.parent.display()))?)?;
        let base = dir.data("base.raw");
        workdir::random_image(&base, size)?;
        let ours = match &options.forebay {
            None => None,
            Some(binary) => {
                // The images of all rows fit: what is measured is the cache, not the disk.
                let config = ForebayConfig::new(MAIN_POOL, 4 * size);
                let forebay = Forebay::start(&dir, binary, &config)?;
                forebay.import("base", &base)?;
                forebay.clone_disk("base", "reads")?;
                forebay.clone_disk("base", "writes")?;
                Some(forebay)
            }
        };
        Ok(Bench {
            ours,
            nbdkit: servers::nbdkit(&dir, size)?,
            qemu_reads: servers::qemu_nbd(&dir, &base, "qemu-reads")?,
            qemu_writes: servers::qemu_nbd(&dir, &base, "qemu-writes")?,
            size,
            dir,
        })
    }

    /// Tells on standard error what is being done.
    fn say(&self, what: &str) {
        eprintln!("bench: {what}");
    }
}

/// The rows for which only a Forebay is needed, or another one than that of the reads and writes.
fn own_rows(
    bench: &Bench,
    options: &Options,
    pace: &Pace,
    binary: &Path,
    mut forebay: Forebay,
    notes: &mut Vec<String>,
) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    if options.wants(Part::Pool) {
        rows.extend(pool_rows::snapshots(bench, pace, &forebay)?);
    }
    forebay.server.process.stop()?;
    drop(forebay);
    if options.wants(Part::Pool) {
        rows.extend(pool_rows::memory(bench, pace, binary, MAIN_POOL)?);
        rows.extend(pool_rows::clones(bench, binary)?);
        rows.extend(pool_rows::recovery(bench, pace, binary)?);
    }
    let mut packages = files::packages();
    let arena = Arc::new(files::bytes_of(&packages, ARENA));
    if options.wants(Part::Reduce) {
        rows.extend(reduce_rows::cpu(bench, pace, binary, &arena)?);
        rows.extend(reduce_rows::real_data(bench, pace, binary, &mut packages, notes)?);
    }
    if options.wants(Part::Clones) {
        rows.extend(clone_rows::clones(bench, pace, binary, &mut packages)?);
    }
    if options.wants(Part::Space) {
        rows.extend(cleaning_rows::cleaning(bench, pace, binary, &arena)?);
        rows.extend(space_rows::freed(bench, pace, binary)?);
    }
    if options.wants(Part::Slow) {
        rows.extend(slow_rows::coalescing(bench, pace, binary)?);
    }
    Ok(rows)
}

/// Runs all rows.
pub fn run(options: &Options) -> Result<BenchReport> {
    let begun = Instant::now();
    let (machine, cpu) = (Machine::here(), CpuTimes::now());
    let peers = vec![
        servers::version("nbdkit", "nbdkit")?,
        servers::version("qemu-nbd", "qemu-utils")?,
        servers::version("fio", "fio")?,
    ];
    let pace = Pace::of(options.quick);
    let size = if options.quick { 256 << 20 } else { 1 << 30 };
    let mut bench = Bench::start(options, size)?;
    let mut notes = vec![NO_PEER.to_owned()];
    let mut rows = Vec::new();
    if options.wants(Part::Io) || options.wants(Part::Pool) {
        io_rows::warm_up(&bench)?;
    }
    if options.wants(Part::Io) {
        rows.extend(io_rows::reads(&bench, &pace)?);
        rows.extend(io_rows::writes(&bench, &pace)?);
    }
    if let (Some(forebay), Some(binary)) = (bench.ours.take(), &options.forebay) {
        rows.extend(own_rows(&bench, options, &pace, binary, forebay, &mut notes)?);
    }
    // The peers end here, so that what they used is known to be ours.
    drop(bench);
    let (seconds, others_percent) = (begun.elapsed().as_secs_f64(), cpu.others_percent());
    Ok(BenchReport { machine, peers, quick: options.quick, seconds, others_percent, rows, notes })
}
