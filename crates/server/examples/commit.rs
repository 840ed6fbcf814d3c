//! Measures the commit alone: groups are written into the write buffer, and only their flush is timed, while
//! no client takes CPU time.
//!
//! ```text
//! commit DIRECTORY [--workers N] [--group MIB] [--groups N] [--volume MIB] [--data noise|text] [--sequential]
//! ```
//!
//! Prints one line: data, pattern, workers, MiB/s of commits (median over the groups), and the CPU time of
//! the process per written MiB.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser;
use forebay_engine::{Pool, PoolConfig, SyncMode};
use forebay_server::serve::EngineThread;
use forebay_store::{DirectoryOptions, DirectoryStore};

const BLOCK: usize = 4096;
const MIB: usize = 1 << 20;

#[derive(Parser)]
struct Args {
    /// An empty or new directory for the pool.
    directory: PathBuf,
    /// Threads on which a commit prepares blocks.
    #[arg(long, default_value_t = 1)]
    workers: usize,
    /// MiB of a group.
    #[arg(long, default_value_t = 32)]
    group: usize,
    /// Groups that are measured.
    #[arg(long, default_value_t = 40)]
    groups: usize,
    /// MiB of the volume.
    #[arg(long, default_value_t = 1024)]
    volume: usize,
    /// Content: `noise`, which does not compress, or `text`, which does.
    #[arg(long, default_value = "noise")]
    data: String,
    /// Writes 1 MiB at a time, in order, instead of random blocks of 4 KiB.
    #[arg(long)]
    sequential: bool,
}

/// Content and offsets, from a seed.
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

async fn measure(args: &Args) -> Result<(f64, f64), Box<dyn std::error::Error>> {
    let engine = EngineThread::start(args.workers)?;
    let store = DirectoryStore::open(&args.directory, &DirectoryOptions::default())?;
    // A small read cache, which the first pass fills: memory that was never used before would cost more than
    // the work that is measured.
    let write_buffer = 4 * (args.group * MIB) as u64;
    let config = PoolConfig { write_buffer, read_cache: 128 << 20, ..PoolConfig::default() };
    let pool = Pool::open(store, engine.host(), config).await?;
    pool.create_volume("v", (args.volume * MIB) as u64, SyncMode::Flush, 0).await?;
    let disk = pool.attach("v")?;
    let step = if args.sequential { MIB } else { BLOCK };
    let (mut source, mut data, mut at) = (Source(7), vec![0; step], 0);
    let (mut rates, mut used) = (Vec::new(), Duration::ZERO);
    // The first pass over the volume, unmeasured, allocates maps and caches.
    let first = args.volume / args.group;
    for group in 0..first + args.groups {
        for _ in 0..args.group * MIB / step {
            at = if args.sequential || group < first {
                (at + step) % (args.volume * MIB)
            } else {
                source.next() as usize % (args.volume * MIB / step) * step
            };
            source.fill(&mut data, args.data == "text");
            disk.write(at as u64, &data, false).await?;
        }
        let (begin, before) = (Instant::now(), cpu());
        disk.flush().await?;
        if group >= first {
            rates.push(args.group as f64 / begin.elapsed().as_secs_f64());
            used += cpu() - before;
        }
    }
    rates.sort_by(f64::total_cmp);
    drop(disk);
    pool.close().await?;
    Ok((rates[rates.len() / 2], used.as_secs_f64() * 1e3 / (args.group * args.groups) as f64))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (rate, cpu) = runtime.block_on(measure(&args))?;
    let pattern = if args.sequential { "sequential 1 MiB" } else { "random 4 KiB" };
    println!(
        "{} {pattern}, workers {}: {rate:.0} MiB/s, {cpu:.2} ms of CPU per MiB",
        args.data, args.workers
    );
    Ok(())
}
