//! Measures the commit alone: groups are written into the write buffer, and only their flush is timed, while
//! no client takes CPU time.
//!
//! Run by `make bench-engine`. Each combination of content and pattern is measured with one worker and with
//! all, in turns, each time in a new pool in a subdirectory, which is removed afterwards. Prints a line for
//! each: MiB/s of commits (median over the groups), CPU time of the process per MiB, both as medians of the
//! rounds, and the rate relative to that of one worker.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser;
use forebay_engine::{Pool, PoolConfig, SyncMode};
use forebay_host::EngineThread;
use forebay_store::{DirectoryOptions, DirectoryStore};

const BLOCK: usize = 4096;
const MIB: usize = 1 << 20;

#[derive(Parser)]
struct Args {
    /// A directory for the pools: on the disk to be measured, or on tmpfs.
    directory: PathBuf,
    /// Number of threads on which a commit prepares blocks, in addition to the first thread [default: all
    /// cores].
    #[arg(long)]
    workers: Option<usize>,
    /// Number of measurements of each load.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// MiB of a group.
    #[arg(long, default_value_t = 32)]
    group: usize,
    /// Groups that are measured.
    #[arg(long, default_value_t = 40)]
    groups: usize,
    /// MiB of the volume.
    #[arg(long, default_value_t = 1024)]
    volume: usize,
}

/// The load that is measured.
#[derive(Clone, Copy)]
struct Load {
    /// Compressible content instead of noise.
    text: bool,
    /// 1 MiB at a time, in order, instead of random blocks of 4 KiB.
    sequential: bool,
}

/// A source of content and offsets, from a seed.
struct Source(u64);

impl Source {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn fill(&mut self, data: &mut [u8], text: bool) {
        const WORDS: [&[u8; 8]; 16] = [
            b"segment ",
            b"volume  ",
            b"commit: ",
            b"written\n",
            b"address ",
            b"0x0001f ",
            b"return; ",
            b"struct  ",
            b"the log ",
            b"of the  ",
            b"server  ",
            b"guest's ",
            b"error:  ",
            b"checks  ",
            b"blocks, ",
            b"[INFO]  ",
        ];
        for word in data.chunks_exact_mut(8) {
            let next = self.next();
            // A seventh of the words are random, so that no two blocks are equal.
            match text && !next.is_multiple_of(7) {
                true => word.copy_from_slice(WORDS[(next >> 32) as usize % WORDS.len()]),
                false => word.copy_from_slice(&next.to_le_bytes()),
            }
        }
    }
}

fn cpu() -> Duration {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to a whole rusage, which the call fills.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    let of = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    of(usage.ru_utime) + of(usage.ru_stime)
}

/// Rate in MiB/s, and CPU time of each MiB in ms.
async fn measure(args: &Args, load: Load, workers: usize) -> Result<(f64, f64), Box<dyn std::error::Error>> {
    let Load { text, sequential } = load;
    let engine = EngineThread::start(workers)?;
    let directory = args.directory.join("pool");
    let store = DirectoryStore::open(&directory, &DirectoryOptions::default())?;
    // A small read cache, which the first pass fills: memory that was never used before would cost more than
    // the work that is measured.
    let write_buffer = 4 * (args.group * MIB) as u64;
    let config = PoolConfig { write_buffer, read_cache: 128 << 20, ..PoolConfig::default() };
    let pool = Pool::open(store, engine.host(), config).await?;
    pool.create_volume("v", (args.volume * MIB) as u64, SyncMode::Flush, 0).await?;
    let disk = pool.attach("v")?;
    let step = if sequential { MIB } else { BLOCK };
    let (mut source, mut data, mut at) = (Source(7), vec![0; step], 0);
    let (mut rates, mut used) = (Vec::new(), Duration::ZERO);
    // The first pass over the volume, unmeasured, allocates maps and caches.
    let first = args.volume / args.group;
    for group in 0..first + args.groups {
        for _ in 0..args.group * MIB / step {
            at = if sequential || group < first {
                (at + step) % (args.volume * MIB)
            } else {
                source.next() as usize % (args.volume * MIB / step) * step
            };
            source.fill(&mut data, text);
            disk.write(at as u64, &data, false).await?;
        }
        let (begin, before) = (Instant::now(), cpu());
        disk.flush().await?;
        if group >= first {
            rates.push(args.group as f64 / begin.elapsed().as_secs_f64());
            used += cpu() - before;
        }
    }
    drop(disk);
    pool.close().await?;
    std::fs::remove_dir_all(&directory)?;
    Ok((median(rates), used.as_secs_f64() * 1e3 / (args.group * args.groups) as f64))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    std::fs::create_dir_all(&args.directory)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let workers = [1, args.workers.unwrap_or(cores)];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for (text, sequential) in [(false, false), (false, true), (true, false), (true, true)] {
        let load = Load { text, sequential };
        let (mut rates, mut cpu) = ([vec![], vec![]], [vec![], vec![]]);
        for _ in 0..args.rounds.max(1) {
            for (n, workers) in workers.into_iter().enumerate() {
                let (rate, used) = runtime.block_on(measure(&args, load, workers))?;
                rates[n].push(rate);
                cpu[n].push(used);
            }
        }
        let (rates, cpu) = (rates.map(median), cpu.map(median));
        let data = if text { "text" } else { "noise" };
        let pattern = if sequential { "sequential 1 MiB" } else { "random 4 KiB" };
        for (n, workers) in workers.into_iter().enumerate() {
            println!(
                "{data}, {pattern}, workers {workers}: {:.0} MiB/s, {:.2} ms of CPU per MiB, {:.2} times one worker",
                rates[n],
                cpu[n],
                rates[n] / rates[0]
            );
        }
    }
    Ok(())
}
