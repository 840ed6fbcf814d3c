//! A pool with a size limit, and loads that continue when it is full.

use std::path::Path;
use std::time::Duration;

use super::Bench;
use super::rounds::generate;
use crate::error::{Error, Result};
use crate::load::{Fill, Report};
use crate::targets::servers::{Forebay, ForebayConfig};

const MIB: u64 = 1 << 20;
/// Bytes written between two checks of the progress.
pub const SLICE: u64 = 8 * MIB;
/// Bytes of a segment and of the write buffer; small compared with the pool.
pub const SEGMENT: u64 = 4 * MIB;
/// NBD's error number for a full disk.
pub const NO_SPACE: u32 = 28;
/// Retries of a load that met a full store, and the delay between them.
const RETRIES: u32 = 300;
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// A pool with a size limit.
pub fn limited(bench: &Bench, binary: &Path, name: &'static str, limit: u64) -> Result<Forebay> {
    let settings = format!(
        "[store]\nlimit = {limit}\n[memory]\nwrite_buffer = {SEGMENT}\n[log]\nsegment = {SEGMENT}\ncheckpoint = \"64M\"\n"
    );
    Forebay::start(&bench.dir, binary, &ForebayConfig::new(name, 32 * MIB).with(settings))
}

/// Writes a whole volume, slice by slice.
pub fn fill(forebay: &Forebay, volume: &str, bytes: u64, seed: u64, content: &Fill) -> Result<u32> {
    let mut refused = 0;
    for start in (0..bytes).step_by(SLICE as usize) {
        refused += persist(|| {
            generate(&forebay.disk(volume), |spec| {
                spec.pass(true, 64 << 10, 4);
                spec.seed = seed;
                spec.fill = content.clone();
                spec.range = Some(start..bytes.min(start + SLICE));
            })
        })?;
    }
    Ok(refused)
}

/// Runs a load until none of its writes is rejected because the store is full, with pauses for the cleaner.
/// Returns the number of rejected runs.
pub fn persist(load: impl Fn() -> Result<Report>) -> Result<u32> {
    for refused in 0..RETRIES {
        match load() {
            Err(Error::Errors { code: NO_SPACE, .. }) => std::thread::sleep(RETRY_AFTER),
            done => return done.map(|_| refused),
        }
    }
    load().map(|_| RETRIES)
}
