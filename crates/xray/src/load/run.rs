//! Running a load: the threads, and the loop of each thread.

use std::time::{Duration, Instant};

use super::content::{Content, base_version};
use super::report::{Report, Tally};
use super::source::Source;
use super::spec::{LoadError, Spec};
use crate::nbd::{self, Command, Connection, Done, Pipeline};
use crate::rng::Rng;

/// A server that does not answer for this long counts as stalled.
const STALL: Duration = Duration::from_secs(60);
/// Room for all replies of a deep queue of small reads, and for one large reply.
const RECEIVE_BYTES: usize = 1 << 20;

/// Runs `spec` to its end.
pub fn run(spec: &Spec) -> Result<Report, LoadError> {
    spec.check()?;
    let connections = (0..spec.connections)
        .map(|_| nbd::connect(&spec.target, &spec.export, spec.structured, STALL))
        .collect::<Result<Vec<_>, _>>()?;
    let writes = spec.read_percent < 100;
    for c in &connections {
        if writes && c.export.read_only() {
            return Err(LoadError::ReadOnly);
        }
        if spec.flush_each.is_some() && !c.export.flushes() {
            return Err(LoadError::NoFlush);
        }
        if spec.fua && !c.export.durable_writes() {
            return Err(LoadError::NoFua);
        }
    }
    let workers = connections
        .into_iter()
        .zip(0..)
        .map(|(connection, n)| Worker::new(spec, connection, n))
        .collect::<Result<Vec<_>, _>>()?;
    let mut total = Tally::default();
    let mut seconds = 0f64;
    std::thread::scope(|scope| {
        let threads: Vec<_> = workers.into_iter().map(|w| scope.spawn(move || w.run())).collect();
        for thread in threads {
            let (tally, elapsed) = thread.join().map_err(|_| LoadError::Panicked)??;
            total.add(&tally);
            seconds = seconds.max(elapsed.as_secs_f64());
        }
        Ok::<_, LoadError>(())
    })?;
    Ok(total.report(seconds))
}

/// One connection and its part of the range.
struct Worker<'a> {
    spec: &'a Spec,
    pipeline: Pipeline,
    buffer: Vec<u8>,
    content: Content,
    rng: Rng,
    start: u64,
    blocks: u64,
    /// The read or write in each slot of the pipeline.
    slots: Vec<Option<Io>>,
    /// Version last written, by block, for verification; empty without verification. 0: not written in this
    /// run.
    versions: Vec<u64>,
    version: u64,
    tally: Tally,
}

/// A read or write in progress.
#[derive(Clone, Copy)]
struct Io {
    write: bool,
    block: u64,
    offset: u64,
    /// The version that is written, or that a read must return; 0 if the read is not verified.
    version: u64,
}

/// The progress of one phase of a worker's run.
struct Phase {
    source: Source,
    reads_only: bool,
    left: u64,
    deadline: Option<Instant>,
    next_flush: Option<Instant>,
    /// With a rate: when the next request is due.
    next_due: Option<Instant>,
    over: bool,
}

impl<'a> Worker<'a> {
    fn new(spec: &'a Spec, connection: Connection, n: u64) -> Result<Worker<'a>, LoadError> {
        let size = connection.export.size;
        let range = spec.range.clone().unwrap_or(0..size);
        let (start, end) = (range.start.next_multiple_of(u64::from(spec.block_bytes)), range.end.min(size));
        let block = u64::from(spec.block_bytes);
        let blocks = end.saturating_sub(start) / block / u64::from(spec.connections);
        // Verification keeps concurrent requests on different blocks and must always find a free block.
        if blocks == 0 || spec.verify && blocks <= u64::from(spec.depth) {
            return Err(LoadError::TooSmall {
                range: end.saturating_sub(start),
                connections: spec.connections,
                block: spec.block_bytes,
            });
        }
        let depth = usize::from(spec.depth);
        let pipeline = Pipeline::new(connection, depth);
        Ok(Worker {
            spec,
            pipeline: if spec.fua { pipeline.with_durable_writes() } else { pipeline },
            buffer: vec![0; RECEIVE_BYTES],
            content: Content::of(spec.seed, &spec.fill),
            rng: Rng::new(spec.seed ^ (n + 1) << 32),
            start: start + n * blocks * block,
            blocks,
            slots: vec![None; depth],
            versions: vec![0; if spec.verify { blocks as usize } else { 0 }],
            version: base_version(),
            tally: Tally::default(),
        })
    }

    fn run(mut self) -> Result<(Tally, Duration), LoadError> {
        let began = Instant::now();
        let mut phase = Phase {
            source: self.spec.access.into(),
            reads_only: false,
            left: self.spec.stop.requests(self.blocks),
            deadline: self.spec.stop.deadline(began),
            next_flush: self.spec.flush_each.map(|d| began + d),
            next_due: self.spec.rate.map(|_| began),
            over: false,
        };
        self.drive(&mut phase)?;
        let elapsed = began.elapsed();
        if self.spec.verify {
            self.read_back()?;
        }
        Ok((self.tally, elapsed))
    }

    /// Reads all blocks that this run wrote. Counts only verified blocks and errors, not the reads.
    fn read_back(&mut self) -> Result<(), LoadError> {
        let written = (0u64..).zip(&self.versions).filter(|(_, v)| **v != 0).map(|(block, _)| block);
        let written: Vec<u64> = written.collect();
        let load = std::mem::take(&mut self.tally);
        self.drive(&mut Phase {
            source: Source::List(written.into_iter()),
            reads_only: true,
            left: u64::MAX,
            deadline: None,
            next_flush: None,
            next_due: None,
            over: false,
        })?;
        let check = std::mem::replace(&mut self.tally, load);
        let tally = &mut self.tally;
        tally.verified += check.verified;
        tally.mismatches += check.mismatches;
        tally.first_mismatch = tally.first_mismatch.or(check.first_mismatch);
        tally.errors += check.errors;
        tally.first_error = tally.first_error.or(check.first_error);
        Ok(())
    }

    fn drive(&mut self, phase: &mut Phase) -> Result<(), LoadError> {
        loop {
            let idle_until = self.fill(phase, Instant::now());
            if self.pipeline.under_way() == 0 {
                match idle_until {
                    Some(due) => std::thread::sleep(due.saturating_duration_since(Instant::now())),
                    None if phase.over => return Ok(()),
                    None => {}
                }
                continue;
            }
            self.pipeline.turn(&mut self.buffer, idle_until, STALL)?;
            while let Some(done) = self.pipeline.next_done() {
                self.settle(done);
            }
        }
    }

    /// Queues the requests that are due. Returns when the next request is due if there is already room for
    /// it.
    fn fill(&mut self, phase: &mut Phase, now: Instant) -> Option<Instant> {
        if phase.deadline.is_some_and(|d| now >= d) || phase.left == 0 {
            phase.over = true;
        }
        if phase.over {
            // The last flush follows all replies so that it covers them.
            if phase.next_flush.is_some() && self.pipeline.under_way() == 0 {
                phase.next_flush = None;
                self.pipeline.queue_flush(now);
            }
            return None;
        }
        if let Some(at) = phase.next_flush
            && now >= at
            && self.pipeline.queue_flush(now)
            && let Some(each) = self.spec.flush_each
        {
            phase.next_flush = Some(now + each);
        }
        while self.pipeline.has_room() && phase.left > 0 {
            let mut due = now;
            if let (Some(at), Some(rate)) = (phase.next_due, self.spec.rate) {
                if at > now {
                    return Some(phase.deadline.map_or(at, |d| d.min(at)));
                }
                due = at;
                phase.next_due = Some(at + Duration::from_secs_f64(-self.rng.unit().ln() / rate));
            }
            let Some(block) = self.pick(phase) else {
                phase.over = true;
                break;
            };
            let write = !phase.reads_only
                && (self.spec.read_percent == 0
                    || self.spec.read_percent < 100 && self.rng.below(100) >= self.spec.read_percent.into());
            self.version += 1;
            phase.left -= 1;
            self.queue(write, block, due);
        }
        None
    }

    fn queue(&mut self, write: bool, block: u64, due: Instant) {
        let len = self.spec.block_bytes;
        let offset = self.start + block * u64::from(len);
        let content = &self.content;
        let (version, slot) = if write {
            let version = self.version;
            let fill = |data: &mut [u8]| content.fill(offset, version, data);
            (version, self.pipeline.queue_write(offset, len, due, fill))
        } else {
            let version = self.versions.get(block as usize).copied().unwrap_or(0);
            (version, self.pipeline.queue_read(offset, len, version != 0, due))
        };
        self.slots[slot] = Some(Io { write, block, offset, version });
    }

    /// The next block that may be accessed now. While verification is on, a block with a request in progress
    /// is skipped: its content would depend on the order in which the server executes the two requests.
    fn pick(&mut self, phase: &mut Phase) -> Option<u64> {
        loop {
            let block = phase.source.next(self.blocks, &mut self.rng)?;
            if !self.spec.verify || self.slots.iter().flatten().all(|io| io.block != block) {
                return Some(block);
            }
        }
    }

    /// Counts a request that has been answered, and verifies a read.
    fn settle(&mut self, done: Done) {
        let tally = &mut self.tally;
        if let Some(code) = done.error {
            tally.errors += 1;
            tally.first_error.get_or_insert(code);
        }
        if done.command == Command::Flush {
            tally.flushes += 1;
            tally.flush_nanos.saturating_record(done.nanos);
            return;
        }
        let Some(io) = self.slots[done.slot].take() else { return };
        if done.error.is_some() {
            return;
        }
        if io.write {
            tally.writes += 1;
            if let Some(version) = self.versions.get_mut(io.block as usize) {
                *version = io.version;
            }
        } else {
            tally.reads += 1;
            if io.version != 0 {
                tally.verified += 1;
                if !self.content.matches(io.offset, io.version, self.pipeline.data(done.slot)) {
                    tally.mismatches += 1;
                    tally.first_mismatch.get_or_insert(io.offset);
                }
            }
        }
        tally.bytes += u64::from(self.spec.block_bytes);
        tally.nanos.saturating_record(done.nanos);
    }
}
