//! Drives many streams from one thread: sends what is due, receives what has arrived, and never waits for one
//! stream while another one can make progress.

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use super::clock::Clock;
use super::series::Series;
use super::stream::Stream;
use crate::device::{DeviceError, RECEIVE_BYTES};
use crate::socket;
use crate::vdi::desk::Desk;

/// Longest sleep: an end or an interruption may arrive.
const NAP: Duration = Duration::from_millis(20);
/// Blocks of a desktop that are read back at the end.
const AUDITED: usize = 200;
/// Longest wait for an answer to a desktop.
const PATIENCE: Duration = Duration::from_secs(120);

/// A stream, and the number of its load.
pub(super) struct Active<'a> {
    pub load: usize,
    pub disk: String,
    pub kind: Kind<'a>,
}

/// The kinds of streams.
pub(super) enum Kind<'a> {
    /// Of a load.
    Load(Box<Stream>),
    /// Of a script.
    Script(Box<ScriptStream<'a>>),
}

/// A desktop that plays its part.
pub(super) struct ScriptStream<'a> {
    pub desk: Desk<'a>,
    audit: bool,
    over: bool,
    heard: Instant,
}

/// What failed, and where.
pub(super) struct Failure {
    pub load: usize,
    pub disk: String,
    pub error: DeviceError,
}

impl<'a> ScriptStream<'a> {
    pub fn new(desk: Desk<'a>) -> ScriptStream<'a> {
        ScriptStream { desk, audit: false, over: false, heard: Instant::now() }
    }

    fn fill(
        &mut self,
        now: Instant,
        clock: &Clock,
        series: &mut Series,
    ) -> Result<(Option<Instant>, bool), DeviceError> {
        if self.over {
            return Ok((None, false));
        }
        if clock.is_halted() {
            self.over = true;
            series.ended.1 += 1;
            return Ok((None, false));
        }
        if !self.audit && clock.end().is_some_and(|end| now >= end) {
            self.desk.stop();
        }
        let due = self.desk.fill(clock.begun(), clock.elapsed());
        let blocked = self.desk.send()?;
        if self.desk.is_done() {
            self.count(series);
            if self.audit {
                self.over = true;
            } else {
                let ended = !self.desk.was_stopped();
                *(if ended { &mut series.ended.0 } else { &mut series.ended.1 }) += 1;
                self.desk.begin_audit(AUDITED);
                self.audit = true;
            }
        } else if now.saturating_duration_since(self.heard) > PATIENCE && due.is_none() {
            return Err(DeviceError::Stalled(PATIENCE.as_secs()));
        }
        Ok((due.map(|due| clock.begun() + due), blocked))
    }

    fn count(&mut self, series: &mut Series) {
        let tally = &self.desk.tally;
        series.errors += tally.errors;
        series.first_error = series.first_error.or(tally.first_error);
        series.verified += tally.checked_blocks;
        series.wrong += tally.wrong_blocks;
        if tally.wrong_blocks > 0 {
            series.first_wrong.get_or_insert_with(|| "a desktop".to_owned());
        }
    }

    fn receive(&mut self, buffer: &mut [u8], clock: &Clock, series: &mut Series) -> Result<(), DeviceError> {
        let at = clock.elapsed();
        let (measured, audit) = (clock.is_measured(at), self.audit);
        self.heard = Instant::now();
        self.desk.receive(buffer, &mut |a| {
            if !audit {
                series.answered(at, measured, a.write, a.bytes, a.nanos);
            }
        })
    }
}

impl Active<'_> {
    fn is_over(&self) -> bool {
        match &self.kind {
            Kind::Load(stream) => stream.is_over(),
            Kind::Script(script) => script.over,
        }
    }
}

/// Runs all streams to their ends. The first failure ends all.
pub(super) fn drive(active: &mut [Active<'_>], series: &mut [Series], clock: &Clock) -> Result<(), Failure> {
    let mut buffer = vec![0; RECEIVE_BYTES];
    let mut polls: Vec<libc::pollfd> = Vec::with_capacity(active.len());
    let mut owners: Vec<usize> = Vec::with_capacity(active.len());
    while !active.iter().all(Active::is_over) {
        let now = Instant::now();
        let mut until = now + NAP;
        polls.clear();
        owners.clear();
        for (i, a) in active.iter_mut().enumerate() {
            let series = &mut series[a.load];
            let filled = match &mut a.kind {
                Kind::Load(stream) => stream.fill(now, clock, series),
                Kind::Script(script) => script.fill(now, clock, series),
            };
            let (due, blocked) = filled.map_err(|error| failure(a, error))?;
            until = due.map_or(until, |due| due.min(until));
            let fd = match &a.kind {
                Kind::Load(stream) => stream.device().map(AsRawFd::as_raw_fd),
                Kind::Script(script) => Some(script.desk.as_raw_fd()).filter(|_| !script.over),
            };
            if let Some(fd) = fd {
                polls.push(socket::poll(fd, blocked));
                owners.push(i);
            }
        }
        let left = until.saturating_duration_since(Instant::now());
        let ready = socket::wait(&mut polls, left);
        let failed = |error: std::io::Error| Failure {
            load: active[0].load,
            disk: active[0].disk.clone(),
            error: error.into(),
        };
        if !ready.map_err(failed)? {
            continue;
        }
        for (poll, i) in polls.iter().zip(&owners).filter(|(p, _)| p.revents & !libc::POLLOUT != 0) {
            debug_assert!(poll.fd >= 0);
            let a = &mut active[*i];
            let series = &mut series[a.load];
            let received = match &mut a.kind {
                Kind::Load(stream) => stream.receive(&mut buffer, clock, series),
                Kind::Script(script) => script.receive(&mut buffer, clock, series),
            };
            received.map_err(|error| failure(a, error))?;
        }
    }
    Ok(())
}

fn failure(a: &Active<'_>, error: DeviceError) -> Failure {
    Failure { load: a.load, disk: a.disk.clone(), error }
}
