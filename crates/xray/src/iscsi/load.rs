//! A load on a logical unit: one thread and one session per initiator, with pipelined commands and few system
//! calls.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::command::{Command, Status};
use super::flight::Done;
use super::{Address, InitiatorSession, IscsiError};
use crate::load::{Access, Content, Report, Source, Stop, Tally, base_version};
use crate::rng::Rng;

/// A load on a logical unit. Every initiator accesses the complete range.
#[derive(Debug, Clone)]
pub struct Load<'a> {
    /// The unit.
    pub address: Address,
    /// Number of initiators, each with one session.
    pub initiators: u16,
    /// Number of the first initiator; numbers are part of their names.
    pub first_initiator: u16,
    /// Commands in progress in each session.
    pub depth: u16,
    /// Order of the offsets.
    pub access: Access,
    /// Whether it writes; otherwise it reads.
    pub writes: bool,
    /// Bytes of each command; a multiple of 512.
    pub block_bytes: u32,
    /// Bytes from the start of the unit that are accessed; the complete unit by default.
    pub bytes: Option<u64>,
    /// Condition for the end.
    pub stop: Stop,
    /// Most commands per second of each initiator, in bursts of `depth` commands. A late initiator catches up
    /// by at most one burst.
    pub rate: Option<f64>,
    /// SYNCHRONIZE CACHE at this interval, and at the end, as part of the load.
    pub flush_each: Option<Duration>,
    /// A command that met a reservation is sent again after 0.5 to 1.5 times this delay; without it, a
    /// reservation conflict is an error.
    pub backoff: Option<Duration>,
    /// Also ends the load.
    pub halt: Option<&'a AtomicBool>,
    /// Seed of offsets, content and back-off.
    pub seed: u64,
}

impl Load<'_> {
    /// 4 KiB random reads of one initiator at depth 32 for one second: defaults to be changed.
    pub fn new(address: Address) -> Self {
        Load {
            address,
            initiators: 1,
            first_initiator: 1,
            depth: 32,
            access: Access::Random,
            writes: false,
            block_bytes: 4096,
            bytes: None,
            stop: Stop::After(Duration::from_secs(1)),
            rate: None,
            flush_each: None,
            backoff: None,
            halt: None,
            seed: 1,
        }
    }
}

/// The results of a load.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// Rates and latencies. The latency of a command starts when it is first sent. `first_error` is sense
    /// key, code and qualifier, or the status.
    pub report: Report,
    /// RESERVATION CONFLICT responses.
    pub conflicts: u64,
}

/// A load whose sessions are logged in.
pub struct Ready<'a>(Vec<Worker<'a>>);

impl Load<'_> {
    /// Logs in.
    pub fn connect(&self) -> Result<Ready<'_>, IscsiError> {
        (0..self.initiators).map(|n| Worker::new(self, n)).collect::<Result<_, _>>().map(Ready)
    }

    /// Logs in and runs the load to its end.
    pub fn run(&self) -> Result<Loaded, IscsiError> {
        self.connect()?.run()
    }
}

impl Ready<'_> {
    /// Runs the load to its end.
    pub fn run(self) -> Result<Loaded, IscsiError> {
        let (mut total, mut conflicts, mut seconds) = (Tally::default(), 0, 0f64);
        std::thread::scope(|scope| {
            let threads: Vec<_> = self.0.into_iter().map(|w| scope.spawn(move || w.run())).collect();
            for thread in threads {
                let (tally, met, elapsed) = thread.join().unwrap_or(Err(IscsiError::Panicked))?;
                total.add(&tally);
                conflicts += met;
                seconds = seconds.max(elapsed.as_secs_f64());
            }
            Ok(Loaded { report: total.report(seconds), conflicts })
        })
    }
}

/// A read, a write or a flush.
#[derive(Clone, Copy)]
struct Io {
    command: Command,
    flush: bool,
    offset: u64,
    version: u64,
    since: Instant,
}

/// One initiator.
struct Worker<'a> {
    load: &'a Load<'a>,
    session: InitiatorSession,
    blocks: u64,
    source: Source,
    content: Content,
    rng: Rng,
    /// The command in each slot.
    slots: Vec<Option<Io>>,
    /// Commands that met a reservation, and when they are sent again.
    waiting: Vec<(Instant, Io)>,
    version: u64,
    flushing: bool,
    next_flush: Option<Instant>,
    /// With a rate: when the next burst is due, and the rest of the current one.
    next_burst: Instant,
    burst: u16,
    left: u64,
    tally: Tally,
    conflicts: u64,
}

impl<'a> Worker<'a> {
    fn new(load: &'a Load<'a>, n: u16) -> Result<Worker<'a>, IscsiError> {
        // One additional slot for the flush.
        let mut session = InitiatorSession::connect(&load.address, load.first_initiator + n, load.depth + 1)?;
        let bytes = load.bytes.unwrap_or(u64::MAX).min(session.capacity()?);
        let blocks = bytes / u64::from(load.block_bytes);
        if blocks == 0 {
            return Err(IscsiError::TooSmall);
        }
        Ok(Worker {
            load,
            session,
            blocks,
            source: load.access.into(),
            content: Content::new(load.seed),
            rng: Rng::new(load.seed ^ u64::from(n + 1) << 32),
            slots: vec![None; usize::from(load.depth) + 1],
            waiting: Vec::new(),
            version: base_version(),
            flushing: false,
            next_flush: None,
            next_burst: Instant::now(),
            burst: 0,
            left: load.stop.requests(blocks),
            tally: Tally::default(),
            conflicts: 0,
        })
    }

    fn run(mut self) -> Result<(Tally, u64, Duration), IscsiError> {
        let began = Instant::now();
        self.next_burst = began;
        let deadline = self.load.stop.deadline(began);
        self.next_flush = self.load.flush_each.map(|each| began + each);
        loop {
            let now = Instant::now();
            let over = deadline.is_some_and(|at| now >= at)
                || self.load.halt.is_some_and(|halt| halt.load(Relaxed))
                || self.left == 0 && self.waiting.is_empty();
            let again_at = if over { None } else { self.fill(now) };
            if self.session.under_way() == 0 && over {
                // The last flush follows all other commands so that it covers them.
                match self.next_flush.take() {
                    Some(_) => self.flush(now),
                    None => break,
                }
            }
            self.session.turn(again_at)?;
            while let Some(done) = self.session.next_done() {
                self.settle(done)?;
            }
        }
        let elapsed = began.elapsed();
        self.session.leave()?;
        Ok((self.tally, self.conflicts, elapsed))
    }

    /// Queues the commands that are due. Returns when the next one is due.
    fn fill(&mut self, now: Instant) -> Option<Instant> {
        if let (Some(at), Some(each)) = (self.next_flush, self.load.flush_each)
            && now >= at
            && !self.flushing
            && self.session.has_room()
        {
            self.flush(now);
            self.next_flush = Some(now + each);
        }
        while let Some(i) = self.waiting.iter().position(|(at, _)| *at <= now)
            && self.session.has_room()
        {
            let (_, io) = self.waiting.swap_remove(i);
            self.queue(io);
        }
        let depth = usize::from(self.load.depth);
        let interval = self.load.rate.map(|rate| Duration::from_secs_f64(f64::from(self.load.depth) / rate));
        if let Some(interval) = interval
            && self.burst == 0
            && now >= self.next_burst
        {
            self.burst = self.load.depth;
            self.next_burst =
                now.checked_sub(interval).map_or(now, |late| self.next_burst.max(late)) + interval;
        }
        while self.left > 0
            && (interval.is_none() || self.burst > 0)
            && self.session.under_way() + self.waiting.len() < depth + usize::from(self.flushing)
            && self.session.has_room()
            && let Some(block) = self.source.next(self.blocks, &mut self.rng)
        {
            self.left -= 1;
            self.burst = self.burst.saturating_sub(1);
            self.version += 1;
            let (offset, len) = (block * u64::from(self.load.block_bytes), self.load.block_bytes);
            let command =
                if self.load.writes { Command::write(offset, len) } else { Command::read(offset, len) };
            self.queue(Io { command, flush: false, offset, version: self.version, since: now });
        }
        let next_burst = interval.filter(|_| self.burst == 0).map(|_| self.next_burst);
        self.waiting.iter().map(|(at, _)| *at).chain(next_burst).min()
    }

    fn flush(&mut self, now: Instant) {
        self.flushing = true;
        let command = Command::synchronize_cache();
        self.queue(Io { command, flush: true, offset: 0, version: 0, since: now });
    }

    fn queue(&mut self, io: Io) {
        let content = &self.content;
        let slot = self.session.queue(&io.command, |data| content.fill(io.offset, io.version, data));
        self.slots[slot] = Some(io);
    }

    fn settle(&mut self, done: Done) -> Result<(), IscsiError> {
        let Some(io) = self.slots[done.slot].take() else { return Ok(()) };
        let now = done.at;
        match (done.status, self.load.backoff) {
            (Status::Good, _) => {
                let nanos = now.saturating_duration_since(io.since).as_nanos() as u64;
                if io.flush {
                    self.flushing = false;
                    self.tally.flushes += 1;
                    self.tally.flush_nanos.saturating_record(nanos);
                    return Ok(());
                }
                if !self.load.writes && done.got != self.load.block_bytes {
                    return Err(IscsiError::Protocol("a read returned too little data"));
                }
                let count = if self.load.writes { &mut self.tally.writes } else { &mut self.tally.reads };
                *count += 1;
                self.tally.bytes += u64::from(self.load.block_bytes);
                self.tally.nanos.saturating_record(nanos);
            }
            (Status::Conflict, Some(backoff)) => {
                self.conflicts += 1;
                self.waiting.push((now + backoff.mul_f64(0.5 + self.rng.unit()), io));
            }
            (status, _) if status.is_attention() => self.waiting.push((now, io)),
            (status, _) => {
                self.flushing &= !io.flush;
                self.tally.errors += 1;
                self.tally.first_error.get_or_insert(status.number());
            }
        }
        Ok(())
    }
}
