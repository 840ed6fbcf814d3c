//! The clients of a thread of a phase: streams of loads, and desktops.

use std::os::fd::{AsRawFd, RawFd};
use std::time::Instant;

use super::clock::Clock;
use super::series::Series;
use super::stream::Stream;
use crate::device::{Client, DeviceError};
use crate::load::Counts;
use crate::vdi::desk::Desk;

/// Blocks of a desktop that are read back at the end.
const AUDITED: usize = 200;

/// What the clients of a thread share: a series for each load, and the clock.
pub(super) struct Shared<'a> {
    pub series: &'a mut [Series],
    pub clock: &'a Clock,
}

/// A client, and the number of its load.
pub(super) struct Active<'a> {
    pub load: usize,
    pub disk: String,
    pub kind: Kind<'a>,
}

/// The kinds of clients.
pub(super) enum Kind<'a> {
    /// The client makes the requests of a load.
    Load(Box<Stream>),
    /// The client makes the requests of a script.
    Script(Box<ScriptStream<'a>>),
}

/// A desktop that plays its part.
pub(super) struct ScriptStream<'a> {
    pub desk: Desk<'a>,
    audit: bool,
    over: bool,
}

impl<'a> ScriptStream<'a> {
    pub fn new(desk: Desk<'a>) -> ScriptStream<'a> {
        ScriptStream { desk, audit: false, over: false }
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
            series.end(false);
            return Ok((None, false));
        }
        if !self.audit && clock.end().is_some_and(|end| now >= end) {
            self.desk.stop();
        }
        let filled = self.desk.fill(now, &mut clock.begun())?;
        if self.desk.is_over() {
            self.count(series);
            if self.audit {
                self.over = true;
            } else {
                series.end(!self.desk.was_stopped());
                self.desk.begin_audit(AUDITED);
                self.audit = true;
            }
        }
        Ok(filled)
    }

    /// Adds what the desktop verified. Its reads and writes are counted when they are answered.
    fn count(&mut self, series: &mut Series) {
        let Counts { errors, first_error, verified, wrong, .. } = self.desk.tally.counts;
        series.counts.add(&Counts { errors, first_error, verified, wrong, ..Counts::default() });
        if wrong > 0 {
            series.first_wrong.get_or_insert_with(|| "a desktop".to_owned());
        }
    }

    fn receive(&mut self, buffer: &mut [u8], clock: &Clock, series: &mut Series) -> Result<(), DeviceError> {
        let at = clock.elapsed();
        let (measured, audit) = (clock.is_measured(at), self.audit);
        self.desk.receive_each(buffer, &mut |a| {
            if !audit {
                series.answered(at, measured, a.write, a.bytes, a.nanos);
            }
        })
    }
}

impl Client<Shared<'_>> for Active<'_> {
    fn is_over(&self) -> bool {
        match &self.kind {
            Kind::Load(stream) => stream.is_over(),
            Kind::Script(script) => script.over,
        }
    }

    fn fill(
        &mut self,
        now: Instant,
        shared: &mut Shared<'_>,
    ) -> Result<(Option<Instant>, bool), DeviceError> {
        let series = &mut shared.series[self.load];
        match &mut self.kind {
            Kind::Load(stream) => stream.fill(now, shared.clock, series),
            Kind::Script(script) => script.fill(now, shared.clock, series),
        }
    }

    fn descriptor(&self) -> Option<RawFd> {
        match &self.kind {
            Kind::Load(stream) => stream.device().map(AsRawFd::as_raw_fd),
            Kind::Script(script) => script.desk.descriptor().filter(|_| !script.over),
        }
    }

    fn receive(&mut self, buffer: &mut [u8], shared: &mut Shared<'_>) -> Result<(), DeviceError> {
        let series = &mut shared.series[self.load];
        match &mut self.kind {
            Kind::Load(stream) => stream.receive(buffer, shared.clock, series),
            Kind::Script(script) => script.receive(buffer, shared.clock, series),
        }
    }
}
