//! A load on one disk: which request is next, when it is due, and whether what is read is what was written.
//!
//! With a rate, requests arrive as a Poisson process, and a request that finds no room waits; its latency
//! begins when it was due. A request waits while it overlaps one in flight and one of the two writes, so the
//! expected content of a read is always known. When the connection is lost, all requests in flight are sent
//! again on the next one, as a guest does, and keep their due times, so the latency includes the outage.

mod answers;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::clock::Clock;
use super::connect::{Attempt, Connecting, RETRY};
use super::disk::DiskState;
use super::series::Series;
use super::unflushed::Unflushed;
use crate::device::{Device, DeviceError, Needs, slots};
use crate::rng::Rng;
use crate::targets::Place;

/// All reads of up to this length are verified. Of longer reads, one in `LONG_VERIFIED` is verified.
const SHORT: u32 = 64 << 10;
const LONG_VERIFIED: u64 = 8;
/// Maximum number of attempts to find a position that no request in flight overlaps.
const PICKS: u32 = 100;
/// Maximum number of arrivals that are counted as not sent.
const MAX_UNSENT: u64 = 10_000_000;

/// The parameters of a stream.
#[derive(Debug, Clone)]
pub(super) struct StreamSpec {
    /// Block sizes and their weights.
    pub blocks: Vec<(u32, u64)>,
    pub random_percent: u64,
    pub read_percent: u64,
    pub rate: Option<f64>,
    pub depth: u32,
    pub flush: Option<Duration>,
    pub durable: bool,
    pub once: bool,
    /// First byte and end.
    pub range: (u64, u64),
    /// All writes have this version.
    pub version: Option<u32>,
    /// A lost connection is made again.
    pub reconnect: bool,
    /// Maximum wait for a connection or an answer.
    pub patience: Duration,
    /// Maximum number of written blocks that are read back at the end.
    pub read_back: usize,
    pub seed: u64,
}

#[derive(Debug, Clone, Copy)]
struct Request {
    write: bool,
    offset: u64,
    len: u32,
    version: u32,
    due: Instant,
    keep: bool,
    /// A read of what was written, after the load.
    back: bool,
}

impl Request {
    fn overlaps(&self, offset: u64, len: u32) -> bool {
        self.offset < offset + u64::from(len) && offset < self.offset + u64::from(self.len)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Load,
    Drain,
    ReadBack,
    Over,
}

/// A stream; see the module documentation.
pub(super) struct Stream {
    spec: StreamSpec,
    place: Place,
    disk: Arc<DiskState>,
    device: Option<Box<dyn Device>>,
    connecting: Option<Connecting>,
    rng: Rng,
    stage: Stage,
    next_due: Option<Instant>,
    next_flush: Option<Instant>,
    last_flush: bool,
    cursor: u64,
    longs: u64,
    requests: Vec<Option<Request>>,
    again: VecDeque<Request>,
    /// Nothing is sent before: another host has reserved the disk.
    held: Option<Instant>,
    unflushed: Unflushed,
    back: Vec<u32>,
    heard: Instant,
    ended: bool,
    /// The server reported that it shuts down.
    shut_down: bool,
}

impl Stream {
    /// Opens the disk.
    pub fn open(spec: StreamSpec, place: Place, disk: Arc<DiskState>) -> Result<Stream, DeviceError> {
        let device = place.open(needs(&spec))?;
        if place.base + spec.range.1 > device.size() {
            return Err(DeviceError::Lacks("is smaller than the disk of the scenario"));
        }
        let mut rng = Rng::new(spec.seed);
        let grain = disk.grain;
        let random_start = spec.random_percent > 0 && !spec.once;
        let blocks = (spec.range.1 - spec.range.0) / grain;
        let cursor = spec.range.0 + if random_start { rng.below(blocks.max(1)) * grain } else { 0 };
        Ok(Stream {
            requests: vec![None; slots(spec.depth as usize) + 1],
            last_flush: writes(&spec) && (spec.flush.is_some() || spec.reconnect) && !spec.durable,
            spec,
            place,
            disk,
            device: Some(device),
            connecting: None,
            rng,
            stage: Stage::Load,
            next_due: None,
            next_flush: None,
            cursor,
            longs: 0,
            again: VecDeque::new(),
            held: None,
            unflushed: Unflushed::default(),
            back: Vec::new(),
            heard: Instant::now(),
            ended: false,
            shut_down: false,
        })
    }

    /// The device, if it is connected.
    pub fn device(&self) -> Option<&dyn Device> {
        self.device.as_deref()
    }

    pub fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// Whether the stream has covered its whole range. Only a load that covers its range once can do so.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// Queues and sends what is due. Returns when the next request is due, if the stream does not wait for
    /// answers, and whether requests remain unsent.
    pub fn fill(
        &mut self,
        now: Instant,
        clock: &Clock,
        series: &mut Series,
    ) -> Result<(Option<Instant>, bool), DeviceError> {
        if clock.is_halted() && self.stage != Stage::Over {
            self.give_up(series);
        }
        if self.stage == Stage::Over {
            return Ok((None, false));
        }
        if self.device.is_none() && !self.reconnected(now, series)? {
            // The end of the load does not wait for the server.
            if self.stage == Stage::Load && clock.end().is_some_and(|end| now >= end) {
                self.close(now, clock, series);
            }
            return Ok((Some(now + RETRY), false));
        }
        self.held = self.held.filter(|at| now < *at);
        let due = match self.held {
            Some(at) => Some(at),
            None => {
                while self.room()
                    && let Some(request) = self.again.pop_front()
                {
                    self.queue(request);
                }
                self.advance(now, clock, series)
            }
        };
        let sent = self.device.as_mut().map_or(Ok(false), |d| d.send());
        match sent {
            Ok(blocked) => {
                self.check_stall(now)?;
                Ok((due, blocked))
            }
            Err(error) => {
                self.lost(error, series)?;
                Ok((Some(now + RETRY), false))
            }
        }
    }

    fn room(&self) -> bool {
        self.device.as_ref().is_some_and(|d| d.has_room())
    }

    fn idle(&self) -> bool {
        self.again.is_empty() && self.device.as_ref().is_none_or(|d| d.under_way() == 0)
    }

    fn advance(&mut self, now: Instant, clock: &Clock, series: &mut Series) -> Option<Instant> {
        if self.stage == Stage::Load {
            let due = self.load(now, clock);
            if self.stage == Stage::Load {
                return due;
            }
            self.close(now, clock, series);
        }
        if self.stage == Stage::Drain && self.idle() {
            if self.last_flush {
                self.last_flush = false;
                self.flush(now);
            } else {
                self.back = self.written();
                self.stage = Stage::ReadBack;
            }
        }
        if self.stage == Stage::ReadBack {
            while self.room()
                && let Some(block) = self.back.pop()
            {
                let (offset, len) = (u64::from(block) * self.disk.grain, self.disk.grain as u32);
                let read =
                    Request { write: false, offset, len, version: 0, due: now, keep: true, back: true };
                self.queue(read);
            }
            if self.back.is_empty() && self.idle() {
                self.stage = Stage::Over;
            }
        }
        None
    }

    /// Queues the requests of the load that are due, until its end. Returns when the next request is due, if
    /// there is room.
    fn load(&mut self, now: Instant, clock: &Clock) -> Option<Instant> {
        let ended = clock.end().is_some_and(|end| now >= end);
        if !ended {
            return self.queue_due(now, clock);
        }
        if self.spec.rate.is_some() {
            self.queue_due(now, clock);
        }
        self.stage = Stage::Drain;
        None
    }

    /// Queues the requests that are due, and not later than the end: a thread that wakes up after the end
    /// still sends what the target has room for. Returns when the next one is due, if there is room.
    fn queue_due(&mut self, now: Instant, clock: &Clock) -> Option<Instant> {
        let end = clock.end();
        let until = end.map_or(now, |end| end.min(now));
        if let Some(each) = self.spec.flush {
            let at = *self.next_flush.get_or_insert(now + each);
            if now >= at && self.flush(now) {
                self.next_flush = Some(now + each);
            }
        }
        while self.room() {
            let mut due = now;
            if let Some(rate) = self.spec.rate {
                let gap = -self.rng.unit().ln() / rate;
                let at = *self.next_due.get_or_insert_with(|| clock.begun() + Duration::from_secs_f64(gap));
                if at > until {
                    let flush = self.next_flush.unwrap_or(at);
                    return Some(at.min(end.unwrap_or(at)).min(flush));
                }
                due = at;
            }
            let write = self.spec.read_percent < 100
                && (self.spec.read_percent == 0 || self.rng.below(100) >= self.spec.read_percent);
            if self.spec.once && self.cursor >= self.spec.range.1 {
                self.ended = true;
                self.stage = Stage::Drain;
                return None;
            }
            let (offset, len) = self.pick(write)?;
            if let Some(rate) = self.spec.rate {
                self.next_due = Some(due + Duration::from_secs_f64(-self.rng.unit().ln() / rate));
            }
            self.cursor = offset + u64::from(len);
            let request = self.request(write, offset, len, due);
            self.queue(request);
        }
        None
    }

    fn request(&mut self, write: bool, offset: u64, len: u32, due: Instant) -> Request {
        let version = match (write, self.spec.version) {
            (false, _) => 0,
            (true, Some(version)) => version,
            (true, None) => self.disk.next_version(),
        };
        self.longs += u64::from(len > SHORT);
        let keep = !write && (len <= SHORT || self.longs.is_multiple_of(LONG_VERIFIED));
        Request { write, offset, len, version, due, keep, back: false }
    }

    /// Position and length of the next request; `None` while requests in flight block it.
    fn pick(&mut self, write: bool) -> Option<(u64, u32)> {
        let (start, end) = self.spec.range;
        for _ in 0..PICKS {
            let len = self.length();
            let random = self.spec.random_percent > 0 && self.rng.below(100) < self.spec.random_percent;
            let room = u64::from(len).min(end - start);
            let offset = if random {
                start + self.rng.below((end - start - room) / self.disk.grain + 1) * self.disk.grain
            } else if self.spec.once {
                self.cursor
            } else if self.cursor + room > end {
                start
            } else {
                self.cursor
            };
            let len = room.min(end - offset) as u32;
            let mut others = self.requests.iter().flatten().chain(&self.again);
            if !others.any(|r| (write || r.write) && r.overlaps(offset, len)) {
                return Some((offset, len));
            }
            if self.spec.once {
                return None;
            }
            if !random {
                // Continue after that request.
                self.cursor = offset + u64::from(len);
            }
        }
        None
    }

    fn length(&mut self) -> u32 {
        if let [(len, _)] = self.spec.blocks[..] {
            return len;
        }
        let mut at = self.rng.below(self.spec.blocks.iter().map(|b| b.1).sum());
        for (len, weight) in &self.spec.blocks {
            match at.checked_sub(*weight) {
                Some(rest) => at = rest,
                None => return *len,
            }
        }
        unreachable!("the number is below the sum of the weights")
    }

    fn queue(&mut self, request: Request) {
        let Some(device) = &mut self.device else { unreachable!("the caller checks for room") };
        if device.under_way() == 0 {
            self.heard = Instant::now();
        }
        let at = self.place.base + request.offset;
        let slot = if request.write {
            let disk = &self.disk;
            let mut fill = |data: &mut [u8]| disk.fill(request.offset, request.version, data);
            device.queue_write(at, request.len, request.due, &mut fill)
        } else {
            device.queue_read(at, request.len, request.keep, request.due)
        };
        self.requests[slot] = Some(request);
    }

    fn flush(&mut self, now: Instant) -> bool {
        let queued = self.device.as_mut().is_some_and(|d| d.queue_flush(now));
        if queued {
            self.unflushed.flush_sent();
        }
        queued
    }

    /// Ends the load: counts requests that were due and found no room.
    fn close(&mut self, now: Instant, clock: &Clock, series: &mut Series) {
        self.stage = Stage::Drain;
        let end = clock.end().unwrap_or(now);
        let (Some(rate), Some(mut due)) = (self.spec.rate, self.next_due) else { return };
        let mut counted = 0;
        while due < end && counted < MAX_UNSENT {
            series.not_sent((end - due).as_nanos() as u64);
            due += Duration::from_secs_f64(-self.rng.unit().ln() / rate);
            counted += 1;
        }
        self.next_due = None;
    }

    /// Returns the blocks to read back: blocks whose last version may be lost, and other blocks that were
    /// written.
    fn written(&self) -> Vec<u32> {
        if !writes(&self.spec) || self.spec.version.is_some() {
            return Vec::new();
        }
        let mut blocks: Vec<u32> = self.unflushed.suspects().take(4 * self.spec.read_back).collect();
        let grain = self.disk.grain;
        let range = (self.spec.range.0 / grain) as u32..(self.spec.range.1 / grain) as u32;
        let written: Vec<u32> = range.filter(|b| self.disk.version(*b) > super::disk::PREFILLED).collect();
        let each = written.len().div_ceil(self.spec.read_back.max(1)).max(1);
        blocks.extend(written.into_iter().step_by(each));
        blocks
    }

    /// Handles a failed connection: an error, or another attempt.
    fn lost(&mut self, error: DeviceError, series: &mut Series) -> Result<(), DeviceError> {
        self.device = None;
        if !self.spec.reconnect || !error.is_connection() {
            self.give_up(series);
            return Err(error);
        }
        self.unflushed.lost();
        let mut requests: Vec<Request> = self.requests.iter_mut().filter_map(Option::take).collect();
        requests.extend(std::mem::take(&mut self.again));
        requests.sort_unstable_by_key(|r| r.due);
        self.again = requests.into();
        self.connecting = Some(Connecting::start(&self.place, needs(&self.spec)));
        series.reconnects += 1;
        Ok(())
    }

    fn reconnected(&mut self, now: Instant, series: &mut Series) -> Result<bool, DeviceError> {
        let Some(connecting) = &self.connecting else { return Ok(false) };
        match connecting.poll(now, self.spec.patience) {
            Attempt::Made(device) => {
                self.device = Some(device);
                self.connecting = None;
                self.heard = now;
                Ok(true)
            }
            Attempt::Waits => Ok(false),
            Attempt::Failed => {
                self.give_up(series);
                Err(DeviceError::Stalled(self.spec.patience.as_secs()))
            }
        }
    }

    fn check_stall(&mut self, now: Instant) -> Result<(), DeviceError> {
        let waiting = self.device.as_ref().is_some_and(|d| d.under_way() > 0);
        if waiting && now.saturating_duration_since(self.heard) > self.spec.patience {
            return Err(DeviceError::Stalled(self.spec.patience.as_secs()));
        }
        Ok(())
    }

    /// Ends the stream without waiting for answers.
    fn give_up(&mut self, series: &mut Series) {
        self.device = None;
        self.connecting = None;
        let requests: Vec<Request> = self
            .requests
            .iter_mut()
            .filter_map(Option::take)
            .chain(std::mem::take(&mut self.again))
            .collect();
        for request in requests {
            series.unanswered += u64::from(!request.back);
            if request.write {
                self.forget(&request);
            }
        }
        self.stage = Stage::Over;
    }
}

fn writes(spec: &StreamSpec) -> bool {
    spec.read_percent < 100
}

fn needs(spec: &StreamSpec) -> Needs {
    let writes = writes(spec);
    Needs {
        writes,
        flushes: writes && spec.flush.is_some(),
        durable: writes && spec.durable,
        ..Needs::reads(spec.depth as usize, spec.patience.min(Duration::from_secs(10)))
    }
}
