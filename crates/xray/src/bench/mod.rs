//! The benchmarks: each promise compared with its peer, in one run.
//!
//! Absolute figures of a shared or virtual machine mean little. Therefore all servers run at the same time,
//! idle except for the one that is measured; each row measures all of them in turns, in several rounds; and a
//! ratio is the median over the rounds of two figures measured within seconds of each other. A benchmark
//! fails only if a server or a client fails: a missed promise is a line in the table.

mod cleaning_rows;
mod clone_rows;
mod fio;
mod hog_rows;
mod io_rows;
mod limited;
mod pool_rows;
mod reduce_rows;
pub(crate) mod rounds;
mod slow_rows;
mod space_rows;
mod transport_rows;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use crate::error::Result;
use crate::files;
use crate::report::{Begun, BenchReport, Details, Row};
use crate::targets::servers::{self, Forebay, ForebayConfig, Server, WorkDir};

/// Options of a run.
#[derive(Debug, Clone)]
pub struct Options<P> {
    /// The `forebay` binary; without one, only the peers are measured.
    pub forebay: Option<PathBuf>,
    /// Directory for data, on the disk to be measured.
    pub parent: PathBuf,
    /// The loads are shorter, on less data.
    pub quick: bool,
    /// The parts that are measured; all parts if empty.
    pub only: Vec<P>,
}

impl<P: PartialEq> Options<P> {
    /// Whether a part is measured.
    pub fn wants(&self, part: P) -> bool {
        self.only.is_empty() || self.only.contains(&part)
    }
}

/// Rows that are measured together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Reads and writes, compared with the peers.
    Io,
    /// Snapshots, clones, recovery, memory.
    Pool,
    /// CPU of reduction, and space saved on real data.
    Reduce,
    /// Clones to which the same files are added.
    Clones,
    /// Cleaning, and space freed by deletes and discards.
    Space,
    /// Small writes on a store that is as slow as hard disks.
    Slow,
    /// A guest next to others that take all that they can get.
    Hog,
    /// Small requests over NVMe/TCP, NBD over TCP and iSCSI.
    Transports,
}

/// Durations and sizes of a run.
struct Pace {
    rounds: u32,
    fio_rounds: u32,
    read: Duration,
    write: Duration,
    snapshots: u32,
    recovery_bytes: u64,
    /// Writes per round of the reduction rows.
    reduce_writes: u64,
    /// Bytes of files in each image of real data.
    image_bytes: u64,
    clones: u32,
    /// Bytes of files added to each clone.
    package_bytes: u64,
    /// Size of the pool on which cleaning is measured.
    limited_bytes: u64,
    /// Bytes overwritten before the measurement, in percent of the data; half as many are measured.
    overwrite_percent: u64,
    /// Data on the slow store, and the duration of its load.
    slow_bytes: u64,
    slow: Duration,
}

impl Pace {
    fn of(quick: bool) -> Pace {
        let seconds = |short, full| Duration::from_secs_f64(pick(quick, short, full));
        Pace {
            rounds: pick(quick, 3, 5),
            fio_rounds: pick(quick, 2, 3),
            read: seconds(0.6, 2.0),
            write: seconds(1.2, 3.0),
            snapshots: pick(quick, 100, 1000),
            recovery_bytes: pick(quick, 256 << 20, 1 << 30),
            reduce_writes: pick(quick, 20_000, 60_000),
            image_bytes: pick(quick, 64 << 20, 400 << 20),
            clones: pick(quick, 4, 20),
            package_bytes: pick(quick, 32 << 20, 300 << 20),
            limited_bytes: pick(quick, 256 << 20, 1 << 30),
            overwrite_percent: pick(quick, 40, 100),
            slow_bytes: pick(quick, 128 << 20, 1 << 30),
            slow: seconds(5.0, 30.0),
        }
    }
}

/// Returns the value for a quick run, or for a full run.
pub(crate) fn pick<T>(quick: bool, short: T, full: T) -> T {
    if quick { short } else { full }
}

/// State shared by the rows. Fields drop in order: the servers end before their files are removed.
struct Bench {
    ours: Option<Forebay>,
    nbdkit: Server,
    qemu_reads: Server,
    qemu_writes: Server,
    size: u64,
    dir: WorkDir,
}

/// Note on the peers that the rows about reduction and space lack.
const NO_PEER: &str = "Peers of deduplication: none. Debian has no block server in user space that does it (VDO is a \
                       kernel module, borg and zbackup are for backups); qcow2 compresses, read-only.";
/// Bytes of real data from which writes are taken.
const ARENA: usize = 24 << 20;
/// Number of images for which Forebay's read cache has room: all images of the rows, which measure the cache
/// and not the disk.
const CACHED_IMAGES: u64 = 4;
/// Name of the pool of the I/O rows.
const MAIN_POOL: &str = "main";

impl Bench {
    fn start(options: &Options<Part>, size: u64) -> Result<Bench> {
        let dir = WorkDir::create(&options.parent)?;
        let base = dir.data("base.raw");
        servers::random_image(&base, size)?;
        let ours = match &options.forebay {
            None => None,
            Some(binary) => {
                let config = ForebayConfig::new(MAIN_POOL, CACHED_IMAGES * size);
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

    /// Prints progress to standard error.
    fn say(&self, what: &str) {
        eprintln!("bench: {what}");
    }
}

/// The rows that need only Forebay, or a server with another configuration.
fn own_rows(
    bench: &Bench,
    options: &Options<Part>,
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
    if options.wants(Part::Transports) {
        rows.extend(transport_rows::transports(bench, pace, binary)?);
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
    if options.wants(Part::Hog) {
        rows.extend(hog_rows::hogs(bench, pace, binary)?);
        rows.extend(hog_rows::limits(bench, pace, binary)?);
    }
    Ok(rows)
}

/// Rows that were omitted, with the reason.
#[derive(Debug, Serialize)]
pub struct Omitted {
    /// Notes, one line each.
    pub notes: Vec<String>,
}

impl Details for Omitted {
    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }
}

/// Runs the selected rows.
pub fn run(options: &Options<Part>) -> Result<BenchReport<Omitted>> {
    let begun = Begun::now();
    let peers = vec![
        servers::version("nbdkit", "nbdkit")?,
        servers::version("qemu-nbd", "qemu-utils")?,
        servers::version("fio", "fio")?,
    ];
    let pace = Pace::of(options.quick);
    let size = pick(options.quick, 256 << 20, 1 << 30);
    let mut bench = Bench::start(options, size)?;
    let mut notes = vec![NO_PEER.to_owned()];
    let mut rows = Vec::new();
    if options.wants(Part::Io) || options.wants(Part::Pool) {
        io_rows::warm_up(&bench)?;
    }
    if options.wants(Part::Io) {
        rows.extend(io_rows::reads(&bench, &pace)?);
        rows.extend(io_rows::writes(&bench, &pace)?);
        rows.extend(io_rows::durable_writes(&bench, &pace)?);
    }
    if let (Some(forebay), Some(binary)) = (bench.ours.take(), &options.forebay) {
        rows.extend(own_rows(&bench, options, &pace, binary, forebay, &mut notes)?);
    }
    // The peers end here, so that their CPU time counts as this process's.
    drop(bench);
    Ok(begun.report(options.quick, peers, rows, Omitted { notes }))
}
