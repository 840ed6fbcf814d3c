//! The answers to the requests of a stream: what they count, and whether what is read is what was written.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::{Request, Stream};
use crate::device::{Again, DeviceError, Done};
use crate::nbd::NbdError;
use crate::run::clock::Clock;
use crate::run::series::Series;

/// NBD_ESHUTDOWN: the request was not executed, and a client sends it again on another connection.
const SHUTDOWN: u32 = 108;
/// Mean delay before a request that met a reservation is sent again; it varies by half.
const BACKOFF: Duration = Duration::from_millis(1);

impl Stream {
    /// Receives answers.
    pub fn receive(
        &mut self,
        buffer: &mut [u8],
        clock: &Clock,
        series: &mut Series,
    ) -> Result<(), DeviceError> {
        let Some(device) = &mut self.device else { return Ok(()) };
        if let Err(error) = device.receive(buffer, false) {
            return self.lost(error, series);
        }
        let at = clock.elapsed();
        let measured = clock.is_measured(at);
        let mut answered = 0;
        self.heard = Instant::now();
        while let Some(done) = self.device.as_mut().and_then(|d| d.next_done()) {
            self.settle(done, at, measured, series);
            answered += 1;
        }
        clock.answered.fetch_add(answered, Relaxed);
        if std::mem::take(&mut self.shut_down) {
            return self.lost(NbdError::Closed(self.again.len()).into(), series);
        }
        Ok(())
    }

    fn settle(&mut self, done: Done, at: Duration, measured: bool, series: &mut Series) {
        if done.again == Some(Again::Reserved) {
            self.held = Some(Instant::now() + BACKOFF.mul_f64(0.5 + self.rng.unit()));
            series.counts.conflicts += 1;
        }
        if done.flush {
            match done.error {
                // It is repeated at its interval.
                Some(_) if done.again.is_some() => {}
                Some(SHUTDOWN) if self.spec.reconnect => self.shut_down = true,
                Some(code) => series.counts.failed(code),
                None => {
                    self.unflushed.flushed();
                    series.counts.flushes += u64::from(measured);
                }
            }
            return;
        }
        let Some(request) = self.requests[done.slot].take() else { return };
        if done.again.is_some() {
            self.again.push_back(request);
            return;
        }
        if let Some(code) = done.error {
            if code == SHUTDOWN && self.spec.reconnect {
                self.shut_down = true;
                self.again.push_back(request);
                return;
            }
            series.counts.failed(code);
            if request.write {
                self.forget(&request);
            }
            return;
        }
        if request.write {
            let track = self.spec.reconnect && !self.spec.durable;
            for block in self.disk.blocks(request.offset, request.len) {
                if track {
                    self.unflushed.written(block, self.disk.version(block));
                }
                self.disk.set_version(block, request.version);
            }
        } else if request.keep {
            self.verify(done.slot, &request, series);
        }
        if !request.back {
            series.answered(at, measured, request.write, request.len, done.nanos);
        }
    }

    /// The content of the blocks of a write is not known any more.
    pub(super) fn forget(&self, request: &Request) {
        self.disk.blocks(request.offset, request.len).for_each(|block| self.disk.set_version(block, 0));
    }

    fn verify(&mut self, slot: usize, request: &Request, series: &mut Series) {
        let Some(device) = &self.device else { return };
        let data = device.data(slot);
        let blocks = self.disk.blocks(request.offset, request.len);
        for (block, data) in blocks.zip(data.chunks(self.disk.grain as usize)) {
            let version = self.disk.version(block);
            let suspect = self.unflushed.suspect(block);
            if version == 0 || data.len() < self.disk.grain as usize {
                continue;
            }
            series.counts.verified += 1;
            if !self.disk.matches(block, version, data) {
                let older = match suspect {
                    // Too many versions: the content is not known.
                    Some(None) => Some(0),
                    Some(Some(versions)) => {
                        let zero = |v: u32| v == 0 && data.iter().all(|b| *b == 0);
                        versions
                            .iter()
                            .copied()
                            .find(|v| zero(*v) || *v > 0 && self.disk.matches(block, *v, data))
                    }
                    None => None,
                };
                match older {
                    Some(version) => {
                        series.lost_unflushed += 1;
                        self.disk.set_version(block, version);
                    }
                    None => {
                        series.counts.wrong += 1;
                        let offset = u64::from(block) * self.disk.grain;
                        let name = &self.disk.name;
                        series.first_wrong.get_or_insert_with(|| format!("{name}, offset {offset}"));
                    }
                }
            }
            self.unflushed.settled(block);
        }
    }
}
