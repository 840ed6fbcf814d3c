//! Rows about freed space: how much of the deleted or discarded data is free again, and how soon.

use std::path::Path;
use std::time::Instant;

use super::limited::{fill, limited};
use super::{Bench, Pace};
use crate::error::{Error, Result};
use crate::load::Fill;
use crate::nbd;
use crate::report::{Bound, Row, Unit};

const MIB: u64 = 1 << 20;

/// Measures freed space and time after a disk was deleted and after every other 64 KiB of a disk was
/// discarded. The disks were written interleaved, so that hardly any segment is free without cleaning.
pub fn freed(bench: &Bench, pace: &Pace, binary: &Path) -> Result<Vec<Row>> {
    bench.say("space of deleted and discarded data");
    const PIECE: u32 = 64 << 10;
    let size = pace.limited_bytes / 2;
    let forebay = limited(bench, binary, "freed", size * 4)?;
    for volume in ["stay", "go"] {
        forebay.create(volume, size)?;
    }
    std::thread::scope(|scope| {
        let other = scope.spawn(|| fill(&forebay, "go", size, 5, &Fill::Noise));
        fill(&forebay, "stay", size, 6, &Fill::Noise)?;
        other.join().unwrap_or_else(|_| Err(Error::panicked("forebay")))
    })?;
    forebay.gc()?;
    let free = || forebay.stat("/store_free_bytes");
    let mut rows = Vec::new();
    let mut measure = |what: &str, gone: u64, act: &dyn Fn() -> Result<()>| -> Result<()> {
        let before = free()?;
        let begun = Instant::now();
        act()?;
        forebay.gc()?;
        let seconds = begun.elapsed().as_secs_f64();
        let share = 100.0 * free()?.saturating_sub(before) as f64 / gone as f64;
        let text = format!("space freed after {what} of {} MiB", gone / MIB);
        rows.push(Row::alone(text, Unit::Percent, Bound::AtLeast(95.0), &[share]));
        rows.push(Row::alone("  time until gc is done", Unit::Seconds, Bound::Nothing, &[seconds]));
        Ok(())
    };
    measure("a delete", size, &|| forebay.cli(&["volume", "rm", "go"]).map(drop))?;
    measure("discards, here and there,", size / 2, &|| {
        let failed = |source: nbd::NbdError| Error::request("forebay", source);
        let mut stay = nbd::Disk::open(&forebay.server.target(), "stay").map_err(failed)?;
        for offset in (0..size).step_by(2 * PIECE as usize) {
            stay.trim(offset, PIECE).map_err(failed)?;
        }
        stay.flush().map_err(failed)
    })?;
    Ok(rows)
}
