//! A fleet of desktops on a running server, and its phases in sequence.

use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;

use super::counters::Counters;
use super::desk::{DEPTH, Desk, Family, STALL};
use super::figures::{GuestRow, Phase, StoreRow, guest, store};
use super::script::Script;
use super::shape::scaled;
use super::tally::Tally;
use super::{IMAGE, Options, say};
use crate::device::{DeviceError, Needs, drive};
use crate::error::{Error, Result};
use crate::targets::servers::Forebay;

/// Blocks of each desktop that are read back and verified at the end.
const AUDITED: usize = 400;

/// State of the server's read cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Cache {
    /// Just started: the read cache is empty, and boot profiles are off.
    Cold,
    /// The desktops were just started, with the recorded profile of one desktop's boot.
    Profiled,
    /// The same desktops have run before, and were reset.
    Warm,
}

impl Cache {
    /// Name of the state in tables.
    pub fn name(self) -> &'static str {
        match self {
            Cache::Cold => "cold",
            Cache::Profiled => "profiled",
            Cache::Warm => "warm",
        }
    }
}

/// The results of a phase.
#[derive(Debug, Clone, Serialize)]
pub struct PhaseResult {
    /// The phase of the day.
    pub phase: Phase,
    /// Number of desktops.
    pub desktops: u32,
    /// State of the server's read cache.
    pub cache: Cache,
    /// The published figures of the guests.
    pub guest: GuestRow,
    /// The published figures of the store.
    pub published: Option<StoreRow>,
    /// Reads of all guests.
    pub reads: u64,
    /// Writes of all guests.
    pub writes: u64,
    /// Bytes read by all guests.
    pub read_bytes: u64,
    /// Bytes written by all guests.
    pub write_bytes: u64,
    /// Flushes of all guests; no other figure includes them.
    pub flushes: u64,
    /// Duration here; operations that could not be served in time are delayed.
    pub seconds: f64,
    /// Planned operations of each guest.
    pub planned_ops: u32,
    /// Planned duration of the phase.
    pub planned_seconds: f64,
    /// Median latency, starting at an operation's arrival.
    pub p50_ms: f64,
    /// 99th percentile of the latency, starting at an operation's arrival.
    pub p99_ms: f64,
    /// Blocks that were read and verified.
    pub checked_blocks: u64,
    /// Verified blocks with wrong content.
    pub wrong_blocks: u64,
    /// The server's counters during the phase, for all desktops together.
    pub server: Counters,
}

impl PhaseResult {
    /// Reads and writes per guest.
    pub fn guest_ops(&self) -> f64 {
        self.each(self.reads + self.writes)
    }

    /// Store reads and writes per desktop.
    pub fn store_ops(&self) -> f64 {
        self.each(self.server.read_ops + self.server.write_ops)
    }

    /// Store operations per desktop and second of the published duration.
    pub fn store_iops(&self) -> f64 {
        self.store_ops() / self.guest.seconds
    }

    /// A summary in one line, for progress.
    fn line(&self) -> String {
        let (s, ops) = (&self.server, self.store_ops());
        format!(
            "{}: {:.0} guest ops each in {:.0} s, {ops:.1} store ops each ({} reads and {} writes in all)",
            self.phase.name(),
            self.guest_ops(),
            self.seconds,
            s.read_ops,
            s.write_ops
        )
    }

    /// The share of one desktop.
    pub fn each(&self, n: u64) -> f64 {
        n as f64 / f64::from(self.desktops)
    }
}

/// Desktops with their guests.
pub struct Fleet<'a> {
    forebay: &'a Forebay,
    options: &'a Options,
    family: Family<'a>,
    names: Vec<String>,
    desks: Vec<Desk<'a>>,
    days: u32,
    /// Number of blocks that were verified at the end of each day, and of the wrong blocks among them.
    pub audited: (u64, u64),
}

impl<'a> Fleet<'a> {
    /// Creates `count` desktops.
    pub fn new(
        forebay: &'a Forebay,
        options: &'a Options,
        family: Family<'a>,
        count: u32,
    ) -> Result<Fleet<'a>> {
        let write_cache = options.write_cache.to_string();
        let desktop = ["--desktop", "--write-cache", &write_cache];
        let names = forebay.clone_disks(IMAGE, &format!("desk-{count}"), count, &desktop)?;
        Ok(Fleet { forebay, options, family, names, desks: Vec::new(), days: 0, audited: (0, 0) })
    }

    fn count(&self) -> u32 {
        self.names.len() as u32
    }

    /// Runs one boot and logon whose profile the server records, and waits for the profile: a recording ends
    /// only when the guest has been idle for some time.
    pub fn record(&mut self) -> Result<()> {
        self.day(&[Phase::Boot, Phase::Logon], Cache::Cold)?;
        let begun = Instant::now();
        loop {
            let profile = self.forebay.cli(&["image", "profile", IMAGE])?;
            match profile.get("bytes").and_then(Value::as_u64) {
                Some(0) if begun.elapsed() < STALL => std::thread::sleep(Duration::from_millis(100)),
                Some(bytes) if bytes > 0 => return Ok(()),
                _ => {
                    let command = "image profile".to_owned();
                    return Err(Error::Output { command, wanted: "a profile" });
                }
            }
        }
    }

    /// Runs the phases of a day, starting from the image, and resets the desktops afterwards.
    pub fn day(&mut self, phases: &[Phase], cache: Cache) -> Result<Vec<PhaseResult>> {
        self.days += 1;
        // Reads ahead triggered by the connections are part of the boot.
        let mut before = Counters::at_rest(self.forebay, self.options.still)?;
        let open = |(name, number): (&String, u32)| {
            let endpoint = self.forebay.disk(name).endpoint;
            let device = endpoint.open(Needs::all(DEPTH, STALL)).map_err(failed)?;
            Ok(Desk::new(device, self.family, number, self.days))
        };
        self.desks = self.names.iter().zip(0..).map(open).collect::<Result<Vec<_>>>()?;
        let mut results = Vec::new();
        for phase in phases {
            let (result, after) = self.phase(*phase, cache, before)?;
            results.push(result);
            before = after;
        }
        self.audit()?;
        // Shuts the guests down.
        self.desks.clear();
        self.reset()?;
        Ok(results)
    }

    /// Runs a phase. Returns its results and the counters after it.
    fn phase(&mut self, phase: Phase, cache: Cache, before: Counters) -> Result<(PhaseResult, Counters)> {
        let options = self.options;
        let row = scaled(guest(phase, self.count()), options.scale);
        let mut planned_ops = 0;
        for desk in &mut self.desks {
            let script = Script::new(self.family.shape, phase, &row, options.speedup, options.scale);
            planned_ops = script.left();
            desk.begin(script);
        }
        let took = self.run()?;
        let after = Counters::at_rest(self.forebay, options.still)?;
        let wanted = "counters that grow";
        let unusable = || Error::Output { command: "forebay stats --json".to_owned(), wanted };
        let server = after.since(&before).ok_or_else(unusable)?;
        let tally = self.tally()?;
        let counts = tally.counts;
        let result = PhaseResult {
            phase,
            desktops: self.count(),
            cache,
            guest: row,
            published: store(phase, self.count()),
            reads: counts.reads,
            writes: counts.writes,
            read_bytes: counts.read_bytes,
            write_bytes: counts.write_bytes,
            flushes: counts.flushes,
            seconds: took.as_secs_f64(),
            planned_ops,
            planned_seconds: row.seconds / options.speedup,
            p50_ms: tally.latency_ms(0.5),
            p99_ms: tally.latency_ms(0.99),
            checked_blocks: counts.verified,
            wrong_blocks: counts.wrong,
            server,
        };
        say(&format!("  {}", result.line()));
        Ok((result, after))
    }

    /// Runs what all desktops have begun to its end. Returns how long it took.
    fn run(&mut self) -> Result<Duration> {
        let mut begun = Instant::now();
        drive(&mut self.desks, &mut begun).map_err(|(_, error)| failed(error))?;
        Ok(begun.elapsed())
    }

    /// Reads back some of the blocks that the desktops have written.
    fn audit(&mut self) -> Result<()> {
        self.desks.iter_mut().for_each(|desk| desk.begin_audit(AUDITED));
        self.run()?;
        let counts = self.tally()?.counts;
        self.audited.0 += counts.verified;
        self.audited.1 += counts.wrong;
        Ok(())
    }

    fn tally(&self) -> Result<Tally> {
        let mut all = Tally::default();
        self.desks.iter().for_each(|desk| all.add(&desk.tally));
        match all.counts.first_error {
            Some(code) => Err(Error::Errors { server: "forebay", count: all.counts.errors, code }),
            None => Ok(all),
        }
    }

    /// Resets all desktops once their connections are closed.
    fn reset(&self) -> Result<()> {
        while self.in_use()? {
            std::thread::sleep(Duration::from_millis(50));
        }
        let words = ["volume", "reset"].into_iter().chain(self.names.iter().map(String::as_str));
        self.forebay.cli(&words.collect::<Vec<_>>()).map(drop)
    }

    /// Whether a desktop still has a connection.
    fn in_use(&self) -> Result<bool> {
        let volumes = self.forebay.cli(&["volume", "list"])?;
        let unused = |v: &&Value| v.get("clients").and_then(Value::as_u64) == Some(0);
        let mut used = volumes.as_array().into_iter().flatten().filter(|v| !unused(v));
        Ok(used.any(|v| {
            v.get("name").and_then(Value::as_str).is_some_and(|n| self.names.iter().any(|m| m == n))
        }))
    }

    /// Deletes the desktops.
    pub fn remove(self) -> Result<()> {
        self.names.iter().try_for_each(|name| self.forebay.cli(&["volume", "rm", name]).map(drop))
    }
}

fn failed(source: DeviceError) -> Error {
    Error::request("forebay", source)
}
