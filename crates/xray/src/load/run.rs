//! Running a load: the threads, and the loop of each thread.

use std::time::{Duration, Instant};

use super::content::{Content, base_version};
use super::counts::Counts;
use super::report::{Report, Tally};
use super::source::Source;
use super::spec::{LoadError, Rate, Spec};
use crate::device::{
    Again, Device, DeviceError, Done, Endpoint, FileDevice, IscsiDevice, Needs, NvmeDevice, RECEIVE_BYTES,
    slots, turn,
};
use crate::nbd::Pipeline;
use crate::rng::Rng;

/// A server that does not answer for this long counts as stalled.
const STALL: Duration = Duration::from_secs(60);

/// A thread of the load, whose disk is open: its counters, and how long it took.
type Thread<'a> = Box<dyn FnOnce() -> Result<(Tally, Duration), LoadError> + Send + 'a>;

/// A load that is connected.
pub struct Ready<'a>(Vec<Thread<'a>>);

/// Opens all connections of a load.
pub fn connect(spec: &Spec) -> Result<Ready<'_>, LoadError> {
    spec.check()?;
    let needs = Needs {
        writes: spec.read_percent < 100,
        flushes: spec.flush_each.is_some(),
        durable: spec.fua,
        simple_replies: spec.simple_replies,
        ..Needs::reads(spec.depth.into(), STALL)
    };
    let threads = (0..spec.connections).map(|n| match &spec.endpoint {
        Endpoint::Nbd(target, export) => thread(spec, n, Pipeline::open(target, export, needs)?),
        Endpoint::Iscsi(address) => thread(spec, n, IscsiDevice::open(address, needs)?),
        Endpoint::Nvme(namespace) => thread(spec, n, NvmeDevice::open(namespace, needs)?),
        Endpoint::File(path) => thread(spec, n, FileDevice::open(path, needs)?),
    });
    threads.collect::<Result<_, _>>().map(Ready)
}

/// The thread is compiled for each kind of device, so that a request costs no indirect calls.
fn thread<'a, D: Device + 'a>(spec: &'a Spec, n: u16, device: D) -> Result<Thread<'a>, LoadError> {
    let worker = Worker::new(spec, device, n.into())?;
    Ok(Box::new(move || Ok(worker.run()?)))
}

/// Runs a load to its end.
pub fn run(spec: &Spec) -> Result<Report, LoadError> {
    connect(spec)?.run()
}

impl Ready<'_> {
    /// Runs the load to its end.
    pub fn run(self) -> Result<Report, LoadError> {
        let mut total = Tally::default();
        let mut seconds = 0f64;
        std::thread::scope(|scope| {
            let threads: Vec<_> = self.0.into_iter().map(|thread| scope.spawn(thread)).collect();
            for thread in threads {
                let (tally, elapsed) = thread.join().map_err(|_| LoadError::Panicked)??;
                total.add(&tally);
                seconds = seconds.max(elapsed.as_secs_f64());
            }
            Ok::<_, LoadError>(())
        })?;
        Ok(total.report(seconds))
    }
}

/// A connection and its part of the range.
struct Worker<'a, D> {
    spec: &'a Spec,
    device: D,
    buffer: Vec<u8>,
    content: Content,
    rng: Rng,
    start: u64,
    blocks: u64,
    /// The read or write in each slot of the device.
    slots: Vec<Option<Io>>,
    /// Requests that the target did not execute, and when they are sent again.
    waiting: Vec<(Instant, Io)>,
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
    due: Instant,
}

/// The progress of one phase of a worker's run.
struct Phase {
    source: Source,
    reads_only: bool,
    left: u64,
    deadline: Option<Instant>,
    next_flush: Option<Instant>,
    /// When the next request, or the next burst of requests, is due, if the load has a rate.
    next_due: Option<Instant>,
    /// Requests of the current burst that are not queued.
    burst: u16,
    over: bool,
}

impl<'a, D: Device> Worker<'a, D> {
    fn new(spec: &'a Spec, device: D, n: u64) -> Result<Worker<'a, D>, LoadError> {
        let size = device.size();
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
        Ok(Worker {
            spec,
            device,
            buffer: vec![0; RECEIVE_BYTES],
            content: Content::of(spec.seed, &spec.fill),
            rng: Rng::new(spec.seed ^ (n + 1) << 32),
            start: start + n * blocks * block,
            blocks,
            slots: vec![None; slots(spec.depth.into())],
            waiting: Vec::new(),
            versions: vec![0; if spec.verify { blocks as usize } else { 0 }],
            version: base_version(),
            tally: Tally::default(),
        })
    }

    fn run(mut self) -> Result<(Tally, Duration), DeviceError> {
        let began = Instant::now();
        let mut phase = Phase {
            source: self.spec.access.into(),
            reads_only: false,
            left: self.spec.stop.requests(self.blocks),
            deadline: self.spec.stop.deadline(began),
            next_flush: self.spec.flush_each.map(|d| began + d),
            next_due: self.spec.rate.map(|_| began),
            burst: 0,
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
    fn read_back(&mut self) -> Result<(), DeviceError> {
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
            burst: 0,
            over: false,
        })?;
        let check = std::mem::replace(&mut self.tally, load);
        let Counts { verified, wrong, errors, first_error, .. } = check.counts;
        self.tally.counts.add(&Counts { verified, wrong, errors, first_error, ..Counts::default() });
        self.tally.first_mismatch = self.tally.first_mismatch.or(check.first_mismatch);
        Ok(())
    }

    fn drive(&mut self, phase: &mut Phase) -> Result<(), DeviceError> {
        loop {
            let idle_until = self.fill(phase, Instant::now());
            if phase.over && self.device.under_way() == 0 {
                return Ok(());
            }
            turn(&mut self.device, &mut self.buffer, idle_until, STALL)?;
            while let Some(done) = self.device.next_done() {
                self.settle(done, phase);
            }
        }
    }

    /// Queues the requests that are due. Returns when the next request is due if there is already room for
    /// it.
    fn fill(&mut self, phase: &mut Phase, now: Instant) -> Option<Instant> {
        if phase.deadline.is_some_and(|d| now >= d) || phase.left == 0 && self.waiting.is_empty() {
            phase.over = true;
        }
        if phase.over {
            // The last flush follows all replies so that it covers them.
            if phase.next_flush.is_some() && self.device.under_way() == 0 {
                phase.next_flush = None;
                self.device.queue_flush(now);
            }
            return None;
        }
        if let Some(at) = phase.next_flush
            && now >= at
            && self.device.queue_flush(now)
            && let Some(each) = self.spec.flush_each
        {
            phase.next_flush = Some(now + each);
        }
        while let Some(i) = self.waiting.iter().position(|(at, _)| *at <= now)
            && self.device.has_room()
        {
            let (_, io) = self.waiting.swap_remove(i);
            self.queue(io);
        }
        let again = self.waiting.iter().map(|(at, _)| *at).min();
        let next = self.queue_new(phase, now);
        [again, next].into_iter().flatten().min().map(|at| phase.deadline.map_or(at, |d| d.min(at)))
    }

    /// Queues new requests. Returns when the next request is due, if there is already room for it.
    fn queue_new(&mut self, phase: &mut Phase, now: Instant) -> Option<Instant> {
        while self.has_room() && phase.left > 0 {
            let due = match self.due(phase, now) {
                Ok(due) => due,
                Err(later) => return Some(later),
            };
            let Some(block) = self.pick(phase) else {
                phase.left = 0;
                phase.over = self.waiting.is_empty();
                break;
            };
            let write = !phase.reads_only
                && (self.spec.read_percent == 0
                    || self.spec.read_percent < 100 && self.rng.below(100) >= self.spec.read_percent.into());
            self.version += 1;
            phase.left -= 1;
            let version =
                if write { self.version } else { self.versions.get(block as usize).copied().unwrap_or(0) };
            let offset = self.start + block * u64::from(self.spec.block_bytes);
            self.queue(Io { write, block, offset, version, due });
        }
        None
    }

    /// Requests that wait to be sent again need their room.
    fn has_room(&self) -> bool {
        self.device.has_room()
            && (self.waiting.is_empty()
                || self.slots.iter().flatten().count() + self.waiting.len() < self.spec.depth.into())
    }

    /// When the next request was due, or the later moment at which it is.
    fn due(&mut self, phase: &mut Phase, now: Instant) -> Result<Instant, Instant> {
        let (Some(at), Some(rate)) = (phase.next_due, self.spec.rate) else { return Ok(now) };
        match rate {
            _ if at > now && phase.burst == 0 => Err(at),
            Rate::Poisson(rate) => {
                phase.next_due = Some(at + Duration::from_secs_f64(-self.rng.unit().ln() / rate));
                Ok(at)
            }
            Rate::Bursts(rate) => {
                if phase.burst == 0 {
                    let interval = Duration::from_secs_f64(f64::from(self.spec.depth) / rate);
                    phase.burst = self.spec.depth;
                    phase.next_due =
                        Some(now.checked_sub(interval).map_or(now, |late| at.max(late)) + interval);
                }
                phase.burst -= 1;
                Ok(now)
            }
        }
    }

    fn queue(&mut self, io: Io) {
        let len = self.spec.block_bytes;
        let slot = if io.write {
            let content = &self.content;
            let mut fill = |data: &mut [u8]| content.fill(io.offset, io.version, data);
            self.device.queue_write(io.offset, len, io.due, &mut fill)
        } else {
            self.device.queue_read(io.offset, len, io.version != 0, io.due)
        };
        self.slots[slot] = Some(io);
    }

    /// The next block that may be accessed now. While verification is on, a block with a request in progress
    /// is skipped: its content would depend on the order in which the server executes the two requests.
    fn pick(&mut self, phase: &mut Phase) -> Option<u64> {
        loop {
            let block = phase.source.next(self.blocks, &mut self.rng)?;
            let mut used = self.slots.iter().flatten().chain(self.waiting.iter().map(|(_, io)| io));
            if !self.spec.verify || used.all(|io| io.block != block) {
                return Some(block);
            }
        }
    }

    /// The delay before a request that was not executed is sent again; `None` if that is an error.
    fn delay(&mut self, again: Again) -> Option<Duration> {
        match (again, self.spec.backoff) {
            (Again::Event, _) => Some(Duration::ZERO),
            (Again::Reserved, None) => None,
            (Again::Reserved, Some(mean)) => {
                self.tally.counts.conflicts += 1;
                Some(mean.mul_f64(0.5 + self.rng.unit()))
            }
        }
    }

    /// Counts a request that has been answered, and verifies a read.
    fn settle(&mut self, done: Done, phase: &mut Phase) {
        let io = if done.flush { None } else { self.slots[done.slot].take() };
        if let Some(delay) = done.again.and_then(|again| self.delay(again)) {
            let at = Instant::now() + delay;
            match io {
                Some(io) => self.waiting.push((at, io)),
                None if !phase.over || done.again == Some(Again::Event) => phase.next_flush = Some(at),
                None => {}
            }
            return;
        }
        let tally = &mut self.tally;
        if let Some(code) = done.error {
            tally.counts.failed(code);
        }
        if done.flush {
            tally.counts.flushes += 1;
            tally.flush_nanos.saturating_record(done.nanos);
            return;
        }
        let Some(io) = io.filter(|_| done.error.is_none()) else { return };
        if io.write {
            if let Some(version) = self.versions.get_mut(io.block as usize) {
                *version = io.version;
            }
        } else if io.version != 0 {
            tally.counts.verified += 1;
            if !self.content.matches(io.offset, io.version, self.device.data(done.slot)) {
                tally.counts.wrong += 1;
                tally.first_mismatch.get_or_insert(io.offset);
            }
        }
        tally.counts.answered(io.write, self.spec.block_bytes);
        tally.nanos.saturating_record(done.nanos);
    }
}
