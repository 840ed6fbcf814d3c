//! `forebay check`, `forebay inspect` and `forebay recover`: commands on a pool that no server has open. They
//! only read the pool, unless `recover` accepts a loss by its ID.

use std::fmt::Display;
use std::num::NonZero;
use std::sync::Arc;

use forebay_engine::{
    BatchView, CheckReport, LogDamage, LossReport, Problem, SegmentId, SegmentView, SuperblockView,
    inspect_batches, inspect_segments, inspect_superblocks, recover_log,
};
use forebay_host::EngineThread;
use forebay_store::rados::{Claim, RadosStore, Waiting};
use forebay_store::{DirectoryOptions, DirectoryStore, Store, StoreError};
use forebay_text::Size;
use parking_lot::Mutex;
use serde_json::json;

use super::progress::{Progress, Step};
use super::{CliError, output};
use crate::config::PoolLocation;

/// Why an offline command failed.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// The store cannot be opened, for example because a server has it open.
    #[error("cannot open the pool in {pool}: {source}{hint}")]
    Open {
        /// Where the pool is.
        pool: String,
        /// The error that the store reported.
        source: StoreError,
        /// A hint for the user, or an empty string.
        hint: &'static str,
    },
    /// The pool cannot be read.
    #[error("cannot read the pool in {pool}: {source}")]
    Pool {
        /// Where the pool is.
        pool: String,
        /// The error that the engine reported.
        source: forebay_engine::Error,
    },
    /// The log is damaged, and the loss was not accepted.
    #[error(
        "flushed writes in {pool} are lost to log damage: restore the segments listed above from a backup, or accept the \
         loss with 'forebay recover --accept-loss {id}'"
    )]
    LossNotAccepted {
        /// Where the pool is.
        pool: String,
        /// Id of the damage.
        id: u64,
    },
    /// The pools in a Ceph pool cannot be listed.
    #[error("cannot list the pools in the Ceph pool '{pool}': {source}")]
    List {
        /// Name of the Ceph pool.
        pool: String,
        /// The error that the store reported.
        source: StoreError,
    },
    /// The pool was read and is damaged.
    #[error(
        "{count} problem(s) found in {pool}: restore the disks listed above from a backup, or remove and recreate them"
    )]
    Damaged {
        /// Where the pool is.
        pool: String,
        /// The number of problems.
        count: usize,
    },
}

/// Verifies all checksums and all block maps. Prints the problems, then returns an error if there are any.
pub(super) fn check(location: &PoolLocation, json: bool) -> Result<(), CliError> {
    let (store, engine) = open(location)?;
    let progress = Arc::new(Mutex::new(Progress::new(json)));
    let shown = progress.clone();
    let host = engine.host();
    let report = run(&engine, async move {
        forebay_engine::check(store, host, |r| show(&mut shown.lock(), r.bytes_read)).await
    })?;
    progress.lock().clear();
    let report = report.map_err(|source| OfflineError::Pool { pool: location.to_string(), source })?;
    if json {
        output::json(&report)?;
    } else {
        output::line(&report_text(&report))?;
    }
    match report.problems.len() {
        0 => Ok(()),
        count => Err(OfflineError::Damaged { pool: location.to_string(), count }.into()),
    }
}

/// Prints superblocks and segments, or the batches of one segment.
pub(super) fn inspect(location: &PoolLocation, segment: Option<u32>, json: bool) -> Result<(), CliError> {
    let (store, engine) = open(location)?;
    let failed = |source| OfflineError::Pool { pool: location.to_string(), source };
    if let Some(segment) = segment {
        let batches = run(&engine, async move { inspect_batches(&*store, SegmentId(segment)).await })?;
        let batches = batches.map_err(failed)?;
        return if json { output::json(&batches) } else { output::line(&batches_text(&batches)) };
    }
    let found = run(&engine, async move {
        let superblocks = inspect_superblocks(&*store).await?;
        Ok((superblocks, inspect_segments(&*store).await?))
    })?;
    let (superblocks, segments) = found.map_err(failed)?;
    if json {
        return output::json(&json!({"superblocks": superblocks, "segments": segments}));
    }
    output::line(&format!("{}\n\n{}", superblocks_text(&superblocks), segments_text(&segments)))
}

/// Reports the writes lost to log damage. With `accept`, the ID of that damage, lets the pool open without
/// these writes. Prints the report, then returns an error if a loss is not accepted.
pub(super) fn recover(location: &PoolLocation, accept: Option<u64>, json: bool) -> Result<(), CliError> {
    let (store, engine) = open(location)?;
    let host = engine.host();
    let failed = |source| OfflineError::Pool { pool: location.to_string(), source };
    let mut report = run(&engine, async move { recover_log(store, host, None).await })?.map_err(failed)?;
    if accept.is_some() {
        // The pool is written, so no other process may have it open, not even read-only.
        let store = open_for_writing(location).map_err(|source| cannot_open(location, source))?;
        let host = engine.host();
        let accepted = run(&engine, async move { recover_log(store, host, accept).await })?;
        report = accepted.map_err(failed)?;
    }
    if json {
        output::json(&report)?;
    } else {
        output::line(&loss_text(&report))?;
    }
    match &report.damage {
        Some(damage) if !report.accepted => {
            Err(OfflineError::LossNotAccepted { pool: location.to_string(), id: damage.id }.into())
        }
        _ => Ok(()),
    }
}

pub(super) fn cannot_open(location: &impl Display, source: StoreError) -> OfflineError {
    let hint = match source {
        StoreError::Busy(_) => "; stop the server first",
        _ => "",
    };
    OfflineError::Open { pool: location.to_string(), source, hint }
}

fn open(location: &PoolLocation) -> Result<(Arc<dyn Store>, EngineThread), CliError> {
    let store = open_read_only(location).map_err(|source| cannot_open(location, source))?;
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    Ok((store, EngineThread::start(cores).map_err(CliError::System)?))
}

fn open_read_only(location: &PoolLocation) -> Result<Arc<dyn Store>, StoreError> {
    Ok(match location {
        PoolLocation::Directory(path) => DirectoryStore::open_read_only(path, &DirectoryOptions::default())?,
        PoolLocation::Rados(pool) => RadosStore::open_read_only(&pool.address, &pool.options)?,
    })
}

fn open_for_writing(location: &PoolLocation) -> Result<Arc<dyn Store>, StoreError> {
    Ok(match location {
        PoolLocation::Directory(path) => DirectoryStore::open(path, &DirectoryOptions::default())?,
        PoolLocation::Rados(pool) => {
            RadosStore::open(&pool.address, &pool.options, Claim::IfFree, &Waiting::NONE)?
        }
    })
}

/// Runs `work` on the engine thread and waits for it.
fn run<T: Send + 'static>(
    engine: &EngineThread,
    work: impl Future<Output = T> + Send + 'static,
) -> Result<T, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(CliError::System)?;
    Ok(runtime.block_on(engine.run(work)))
}

/// Shows the progress of a check. The total is unknown in advance.
fn show(progress: &mut Progress, done: u64) {
    let template = "{msg} {binary_bytes} {binary_bytes_per_sec}";
    let step = Step { template, done, total: None, message: "checking" };
    progress.show(&step, || format!("checking: {} read", Size(done)));
}

fn report_text(r: &CheckReport) -> String {
    let mut lines: Vec<String> = r.problems.iter().map(problem_text).collect();
    let verdict = if r.problems.is_empty() { "sound" } else { "DAMAGED" };
    lines.push(format!(
        "{verdict}: {} disks, {} segments, {} batches, {} map nodes, {} blocks, {} read",
        r.disks,
        r.segments,
        r.batches,
        r.nodes,
        r.blocks,
        Size(r.bytes_read)
    ));
    lines.join("\n")
}

fn problem_text(p: &Problem) -> String {
    match p.disks.as_slice() {
        [] => format!("{}: {}", p.place, p.what),
        disks => format!("{}: {} (used by {})", p.place, p.what, disks.join(", ")),
    }
}

fn loss_text(r: &LossReport) -> String {
    let Some(damage) = &r.damage else {
        return "the log is readable to its end: nothing is lost".to_owned();
    };
    let mut lines = vec![damage_text(damage)];
    if !damage.disks.is_empty() {
        let mut t = output::table(&["DISK", "WRITTEN", "ZEROED"], &[1, 2]);
        for disk in &damage.disks {
            let size = |blocks: u64| Size(blocks.saturating_mul(BLOCK_BYTES)).to_string();
            t.add_row([disk.name.clone(), size(disk.written_blocks), size(disk.zeroed_blocks)]);
        }
        lines.push(output::render(t));
    }
    lines.extend(damage.catalogue.iter().map(|change| format!("lost change: {change}")));
    lines.push(match r.accepted {
        true => format!("accepted: the pool opens as it was after batch {}", damage.intact_until),
        false => "nothing was changed".to_owned(),
    });
    lines.join("\n")
}

/// Bytes per block; losses are counted in blocks.
const BLOCK_BYTES: u64 = 4096;

fn damage_text(damage: &LogDamage) -> String {
    let mut lines: Vec<String> = Vec::new();
    for place in &damage.places {
        lines.push(format!("segment {}, offset {}: {}", place.segment, place.offset, place.what));
    }
    lines.push(format!(
        "DAMAGED: batch {} cannot be read; {} commits after it are lost ({} batches, plus at least {} damaged or \
         missing)",
        damage.id, damage.lost_groups, damage.lost_batches, damage.missing_batches
    ));
    lines.join("\n")
}

fn superblocks_text(superblocks: &[SuperblockView]) -> String {
    let mut t = output::table(
        &["SUPERBLOCK", "GENERATION", "EPOCH", "CHECKPOINT", "SEGMENT SIZE", "POOL"],
        &[0, 1, 2, 3, 4],
    );
    for s in superblocks {
        let copy = s.copy.to_string();
        match &s.error {
            Some(error) => {
                t.add_row([copy, String::new(), String::new(), String::new(), String::new(), error.clone()])
            }
            None => t.add_row([
                copy,
                s.generation.to_string(),
                s.epoch.to_string(),
                s.checkpoint_seq.to_string(),
                Size(s.segment_bytes.into()).to_string(),
                s.pool.clone(),
            ]),
        };
    }
    output::render(t)
}

fn segments_text(segments: &[SegmentView]) -> String {
    let mut t = output::table(&["SEGMENT", "SIZE", "EPOCH", "FIRST BATCH", "STREAM"], &[1, 2, 3]);
    for s in segments {
        let size = Size(s.bytes).to_string();
        match &s.error {
            Some(error) => t.add_row([s.segment.clone(), size, String::new(), String::new(), error.clone()]),
            None => t.add_row([
                s.segment.clone(),
                size,
                s.epoch.to_string(),
                s.first_seq.to_string(),
                s.stream.clone(),
            ]),
        };
    }
    output::render(t)
}

fn batches_text(batches: &[BatchView]) -> String {
    let header =
        ["OFFSET", "BATCH", "EPOCH", "PAYLOAD", "PUTS", "REFS", "ZEROES", "NODES", "BLOBS", "CATALOGUE"];
    let mut t = output::table(&header, &[0, 1, 2, 3, 4, 5, 6, 7, 8]);
    for b in batches {
        let numbers = [b.puts, b.references, b.zeroes, b.nodes, b.blobs].map(|n| n.to_string());
        let mut row = vec![
            b.offset.to_string(),
            // The batches of a group are applied together; a plus marks a batch whose group continues.
            format!("{}{}", b.seq, if b.group_end { "" } else { "+" }),
            b.epoch.to_string(),
            Size(b.payload_bytes).to_string(),
        ];
        row.extend(numbers);
        row.push(b.catalogue.join(", "));
        t.add_row(row);
    }
    output::render(t)
}

#[cfg(test)]
mod tests {
    use forebay_engine::{DamagedPlace, DiskLoss};

    use super::*;

    #[test]
    fn a_loss_is_reported_per_disk() {
        let none = LossReport { damage: None, accepted: false };
        assert!(loss_text(&none).contains("nothing is lost"));
        let disk = DiskLoss { name: "office-1".into(), written_blocks: 3, zeroed_blocks: 256 };
        let place = DamagedPlace { segment: "0000002a".into(), offset: 8192, what: "a batch is damaged" };
        let damage = LogDamage {
            id: 17,
            intact_until: 16,
            places: vec![place],
            missing_batches: 1,
            lost_batches: 5,
            lost_groups: 4,
            disks: vec![disk],
            catalogue: vec!["delete 9".into()],
        };
        let text = loss_text(&LossReport { damage: Some(damage.clone()), accepted: false });
        assert!(
            text.starts_with("segment 0000002a, offset 8192: a batch is damaged\nDAMAGED: batch 17"),
            "{text}"
        );
        assert!(text.contains("office-1") && text.contains("12 KiB") && text.contains("1 MiB"), "{text}");
        assert!(text.contains("lost change: delete 9") && text.ends_with("nothing was changed"), "{text}");
        let text = loss_text(&LossReport { damage: Some(damage), accepted: true });
        assert!(text.ends_with("opens as it was after batch 16"), "{text}");
    }

    #[test]
    fn problems_are_listed_before_the_summary() {
        let sound = CheckReport { disks: 2, ..CheckReport::default() };
        assert!(report_text(&sound).starts_with("sound: 2 disks"));
        let problem = Problem {
            what: "checksum mismatch".into(),
            place: "segment 7".into(),
            disks: vec!["a".into(), "b@s".into()],
        };
        let damaged = CheckReport { problems: vec![problem], ..CheckReport::default() };
        let text = report_text(&damaged);
        assert!(text.starts_with("segment 7: checksum mismatch (used by a, b@s)\nDAMAGED: "), "{text}");
    }
}
