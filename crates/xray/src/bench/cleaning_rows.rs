//! Rows about cleaning: its cost at a steady 80 % full, and its effect on reads.

use std::path::Path;
use std::sync::Arc;

use super::limited::{NO_SPACE, SEGMENT, SLICE, fill, limited, persist};
use super::rounds::generate;
use super::{Bench, Pace};
use crate::error::{Error, Result};
use crate::load::{Access, Fill, Rate, Stop};
use crate::report::{Bound, Row, Unit};
use crate::targets::servers::Forebay;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
/// Requests per second of the load whose reads are timed: well below the server's limit.
const WRITES: f64 = 2000.0;
const READS: f64 = 500.0;
/// Fill level of the pool, in percent.
const FULL: u64 = 80;

/// Overwrites on a pool that is 80 % full, with typical guest data and with noise; and the reads of another
/// guest at the same time.
pub fn cleaning(bench: &Bench, pace: &Pace, binary: &Path, arena: &Arc<Vec<u8>>) -> Result<Vec<Row>> {
    let guests = Content { what: "real data", fill: Fill::Stamped(arena.clone()), name: "cleaning" };
    let noise = Content { what: "noise", fill: Fill::Noise, name: "cleaning-noise" };
    let mut rows = of_content(bench, pace, binary, &guests)?;
    rows.extend(of_content(bench, pace, binary, &noise)?);
    Ok(rows)
}

/// The data that is written.
struct Content {
    what: &'static str,
    fill: Fill,
    /// Name of the pool.
    name: &'static str,
}

fn of_content(bench: &Bench, pace: &Pace, binary: &Path, content: &Content) -> Result<Vec<Row>> {
    let (limit, what) = (pace.limited_bytes, content.what);
    bench.say(&format!("cleaning of {what} at {FULL} % full, on {} MiB", limit / MIB));
    let forebay = limited(bench, binary, content.name, limit)?;
    let mut guests = Guests { forebay: &forebay, content, size: limit / 10 / MIB * MIB, volumes: Vec::new() };
    guests.add("reads")?;
    guests.volumes.clear();
    guests.add("writes")?;
    let calm = guests.timed_reads(pace)?;
    guests.fill_up(limit)?;
    let mut rows = Vec::new();
    let loads = [("uniform", Access::Random), ("4/5 to 1/5", Access::Skewed)];
    for (i, (how, access)) in loads.into_iter().enumerate() {
        bench.say(&format!("  overwrites, {how}"));
        let bytes = guests.bytes() / 100 * pace.overwrite_percent;
        guests.overwrite(access, bytes, i as u64)?;
        let (written, moved) = (guest_bytes(&forebay)?, forebay.stat("/moved_bytes")?);
        let refused = guests.overwrite(access, bytes / 2, i as u64 + 10)?;
        let written = guest_bytes(&forebay)? - written;
        let moved = forebay.stat("/moved_bytes")? - moved;
        if access == Access::Random {
            let busy = guests.timed_reads(pace)?;
            let text = format!("p99 of reads while {} MiB are cleaned, {what}", busy.moved / MIB);
            let peer = ("without cleaning", &calm.p99_us[..]);
            rows.push(Row::compare(text, Unit::Micros, Bound::RatioAtMost(2.0), &busy.p99_us, peer));
        }
        let cost = moved as f64 / written.max(1) as f64;
        let live = guests.live()?;
        let full = if refused == 0 { String::new() } else { format!(" (store full {refused} times)") };
        let percent = 100 * live / limit;
        let text = format!("bytes moved per random byte written, {how}: {what}, {percent} % full{full}");
        rows.push(match content.fill {
            Fill::Noise => {
                let peer = ("theory, uniform", &[at_best(live, limit)][..]);
                Row::compare(text, Unit::Times, Bound::RatioAtMost(1.3), &[cost], peer)
            }
            _ => Row::alone(text, Unit::Times, Bound::AtMost(1.3), &[cost]),
        });
    }
    Ok(rows)
}

/// Volumes of one size that are overwritten.
struct Guests<'a> {
    forebay: &'a Forebay,
    content: &'a Content,
    size: u64,
    volumes: Vec<String>,
}

impl Guests<'_> {
    /// Adds a volume and writes all of it.
    fn add(&mut self, name: &str) -> Result<()> {
        self.forebay.create(name, self.size)?;
        fill(self.forebay, name, self.size, self.volumes.len() as u64 + 1, &self.content.fill)?;
        self.volumes.push(name.to_owned());
        Ok(())
    }

    /// Adds volumes until the pool has the intended fill level. The size of a volume in the pool is known
    /// only after it was overwritten and cleaned, because cleaning packs compressed blocks more tightly.
    fn fill_up(&mut self, limit: u64) -> Result<()> {
        let mut wanted = FULL as usize / 10 - 1;
        loop {
            for n in self.volumes.len()..wanted {
                self.add(&format!("writes-{n}"))?;
            }
            self.overwrite(Access::Random, self.bytes(), wanted as u64 + 100)?;
            let live = self.live()?;
            // The pool also contains the volume that is read.
            let of_each = live / (self.volumes.len() as u64 + 1);
            let more = (limit / 100 * FULL).saturating_sub(live) / of_each.max(1);
            if more == 0 {
                return Ok(());
            }
            wanted += more as usize;
        }
    }

    fn bytes(&self) -> u64 {
        self.size * self.volumes.len() as u64
    }

    /// Live bytes of the pool.
    fn live(&self) -> Result<u64> {
        self.forebay.gc()?;
        self.forebay.stat("/space/live_bytes")
    }

    /// Overwrites `bytes` of the volumes, in slices; a slice that meets a full store is written again after a
    /// pause for the cleaner. Returns how often that happened.
    fn overwrite(&self, access: Access, bytes: u64, seed: u64) -> Result<u32> {
        let mut refused = 0;
        for (slice, volume) in (0..bytes / SLICE).zip(self.volumes.iter().cycle()) {
            refused += persist(|| {
                generate(&self.forebay.disk(volume), |spec| {
                    spec.read_percent = 0;
                    spec.access = access;
                    spec.seed = seed << 32 | slice;
                    spec.fill = self.content.fill.clone();
                    spec.stop = Stop::Requests(SLICE / BLOCK);
                })
            })?;
        }
        Ok(refused)
    }

    /// Reads at a fixed rate while another guest writes at a fixed rate.
    fn timed_reads(&self, pace: &Pace) -> Result<Timed> {
        let before = self.forebay.stat("/moved_bytes")?;
        let mut timed = Timed::default();
        for round in 0..pace.rounds {
            let load = |export, read_percent, rate| {
                generate(&self.forebay.disk(export), |spec| {
                    spec.read_percent = read_percent;
                    spec.rate = Some(Rate::Poisson(rate));
                    spec.seed = u64::from(round) + 50;
                    spec.fill = self.content.fill.clone();
                    spec.stop = Stop::After(pace.write);
                })
            };
            let report = std::thread::scope(|scope| {
                let writer = scope.spawn(|| load("writes", 0, WRITES));
                let report = load("reads", 100, READS);
                // Writes that a full store rejects are counted elsewhere.
                match writer.join() {
                    Ok(Ok(_) | Err(Error::Errors { code: NO_SPACE, .. })) => report,
                    Ok(Err(e)) => Err(e),
                    Err(_) => Err(Error::panicked("forebay")),
                }
            })?;
            timed.p99_us.push(report.latency.p99_us);
        }
        timed.moved = self.forebay.stat("/moved_bytes")? - before;
        Ok(timed)
    }
}

/// Reads concurrent with writes.
#[derive(Default)]
struct Timed {
    p99_us: Vec<f64>,
    moved: u64,
}

fn guest_bytes(forebay: &Forebay) -> Result<u64> {
    forebay.stat("/guest/write/bytes")
}

/// The minimum number of bytes to be moved per byte overwritten at random, if `live` bytes are live in a pool
/// of `limit` (docs/adr/0008).
fn at_best(live: u64, limit: u64) -> f64 {
    let usable = limit - 4 * SEGMENT - limit / 32;
    let used = live as f64 / usable as f64;
    // The live share of the segment to be cleaned next increases with the live share of the pool.
    let (mut low, mut high) = (1e-6, 1.0 - 1e-6);
    for _ in 0..60 {
        let share: f64 = f64::midpoint(low, high);
        if (share - 1.0) / share.ln() < used {
            low = share;
        } else {
            high = share;
        }
    }
    low / (1.0 - low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_minimum_matches_the_table_of_the_decision_record() {
        let limit = 1 << 40;
        for (used, moved) in [(0.6, 0.5), (0.7, 0.9), (0.8, 1.7), (0.9, 4.2)] {
            let usable = (limit - limit / 32) as f64;
            let found = at_best((usable * used) as u64, limit);
            assert!((found - moved).abs() < 0.1, "{used}: {found}");
        }
    }
}
