//! Running a load: threads, and the loop of each.

use std::os::fd::{AsRawFd, RawFd};
use std::time::{Duration, Instant};

use super::content::Content;
use super::flight::{Flight, Io};
use super::report::{Report, Tally};
use super::source::Source;
use super::spec::{LoadError, Spec};
use super::{socket, spec};
use crate::nbd::{self, Command, Connection, NbdError, Parser};
use crate::rng::Rng;

/// A server that answers nothing for so long is taken for dead.
const STALL: Duration = Duration::from_secs(60);
/// Enough for all replies of a deep queue of small reads, and for one large one.
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
    spec: &'a spec::Spec,
    connection: Connection,
    flight: Flight,
    parser: Parser,
    buffer: Vec<u8>,
    rng: Rng,
    start: u64,
    blocks: u64,
    version: u64,
}

/// How far a phase of a worker's run has come.
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
        // Verification keeps requests under way on different blocks, and must always find one that is free.
        if blocks == 0 || spec.verify && blocks <= u64::from(spec.depth) {
            return Err(LoadError::TooSmall {
                range: end.saturating_sub(start),
                connections: spec.connections,
                block: spec.block_bytes,
            });
        }
        let verified = if spec.verify { blocks } else { 0 };
        Ok(Worker {
            spec,
            connection,
            flight: Flight::new(usize::from(spec.depth), Content::of(spec.seed, &spec.fill), verified),
            parser: Parser::default(),
            buffer: vec![0; RECEIVE_BYTES],
            rng: Rng::new(spec.seed ^ (n + 1) << 32),
            start: start + n * blocks * block,
            blocks,
            version: 0,
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
        self.disconnect();
        Ok((self.flight.tally, elapsed))
    }

    /// Reads all that this run wrote; counts only what it finds, not the reads.
    fn read_back(&mut self) -> Result<(), LoadError> {
        let written = self.flight.written();
        let load = std::mem::take(&mut self.flight.tally);
        self.drive(&mut Phase {
            source: Source::List(written.into_iter()),
            reads_only: true,
            left: u64::MAX,
            deadline: None,
            next_flush: None,
            next_due: None,
            over: false,
        })?;
        let check = std::mem::replace(&mut self.flight.tally, load);
        let tally = &mut self.flight.tally;
        tally.verified += check.verified;
        tally.mismatches += check.mismatches;
        tally.first_mismatch = tally.first_mismatch.or(check.first_mismatch);
        tally.errors += check.errors;
        tally.first_error = tally.first_error.or(check.first_error);
        Ok(())
    }

    fn drive(&mut self, phase: &mut Phase) -> Result<(), LoadError> {
        let fd = self.connection.as_raw_fd();
        loop {
            let now = Instant::now();
            let idle_until = self.fill(phase, now);
            let mut blocked = false;
            while self.flight.unsent() && !blocked {
                blocked = !self.flight.send(|parts| socket::send(fd, parts)).map_err(NbdError::Io)?;
            }
            if self.flight.under_way() == 0 {
                match idle_until {
                    Some(due) => std::thread::sleep(due.saturating_duration_since(Instant::now())),
                    None if phase.over => return Ok(()),
                    None => {}
                }
                continue;
            }
            // Where only replies can bring it on, one call is enough: it waits and receives.
            let alone = !blocked && idle_until.is_none();
            if !alone {
                let timeout = idle_until.map_or(STALL, |due| due.saturating_duration_since(Instant::now()));
                if !socket::wait(fd, blocked, timeout).map_err(NbdError::Io)? && idle_until.is_none() {
                    return Err(NbdError::Stalled(STALL.as_secs()).into());
                }
            }
            self.receive(fd, alone)?;
        }
    }

    /// Queues what is due. Gives the moment at which the next request is due if there is room for it already.
    fn fill(&mut self, phase: &mut Phase, now: Instant) -> Option<Instant> {
        if phase.deadline.is_some_and(|d| now >= d) || phase.left == 0 {
            phase.over = true;
        }
        if phase.over {
            // The last flush comes after all replies: it is to cover them.
            if phase.next_flush.is_some() && self.flight.under_way() == 0 {
                phase.next_flush = None;
                self.flight.queue_flush(now);
            }
            return None;
        }
        if let Some(at) = phase.next_flush
            && now >= at
            && self.flight.queue_flush(now)
            && let Some(each) = self.spec.flush_each
        {
            phase.next_flush = Some(now + each);
        }
        while self.flight.has_room() && phase.left > 0 {
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
            let offset = self.start + block * u64::from(self.spec.block_bytes);
            self.version += 1;
            phase.left -= 1;
            self.flight.queue(&Io { write, block, offset, len: self.spec.block_bytes, due }, self.version);
        }
        None
    }

    /// The next block that may be touched now.
    fn pick(&mut self, phase: &mut Phase) -> Option<u64> {
        loop {
            let block = phase.source.next(self.blocks, &mut self.rng)?;
            if !self.flight.conflicts(block) {
                return Some(block);
            }
        }
    }

    fn receive(&mut self, fd: RawFd, wait: bool) -> Result<(), LoadError> {
        let n = socket::receive(fd, &mut self.buffer, wait).map_err(NbdError::Io)?;
        match n {
            Some(0) => Err(NbdError::Closed(self.flight.under_way()).into()),
            Some(n) => {
                self.flight.now = Instant::now();
                Ok(self.parser.feed(&self.buffer[..n], &mut self.flight)?)
            }
            None if wait => Err(NbdError::Stalled(STALL.as_secs()).into()),
            None => Ok(()),
        }
    }

    /// Says goodbye; the server need not answer.
    fn disconnect(&self) {
        let request = nbd::request(Command::Disconnect, 0, 0, 0);
        // A server that is gone already is no failure of the load.
        let _ = socket::send(self.connection.as_raw_fd(), &[std::io::IoSlice::new(&request)]);
    }
}
