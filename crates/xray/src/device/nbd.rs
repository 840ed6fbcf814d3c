//! An export of an NBD server.

use std::time::Instant;

use super::{Device, DeviceError, Done, Needs};
use crate::nbd::{self, Command, Pipeline, Target};

/// Connects.
pub(super) fn open(target: &Target, export: &str, needs: Needs) -> Result<Pipeline, DeviceError> {
    let connection = nbd::connect(target, export, true, needs.patience)?;
    let found = connection.export;
    if needs.writes && found.read_only() {
        return Err(DeviceError::Lacks("is read-only"));
    }
    if needs.flushes && !found.flushes() {
        return Err(DeviceError::Lacks("cannot flush"));
    }
    if needs.durable && !found.durable_writes() {
        return Err(DeviceError::Lacks("has no durable writes (FUA)"));
    }
    let pipeline = Pipeline::new(connection, needs.depth);
    Ok(if needs.durable { pipeline.with_durable_writes() } else { pipeline })
}

impl Device for Pipeline {
    fn size(&self) -> u64 {
        self.export().size
    }

    fn has_room(&self) -> bool {
        Pipeline::has_room(self)
    }

    fn under_way(&self) -> usize {
        Pipeline::under_way(self)
    }

    fn queue_read(&mut self, offset: u64, len: u32, keep: bool, due: Instant) -> usize {
        Pipeline::queue_read(self, offset, len, keep, due)
    }

    fn queue_write(&mut self, offset: u64, len: u32, due: Instant, fill: &mut dyn FnMut(&mut [u8])) -> usize {
        Pipeline::queue_write(self, offset, len, due, fill)
    }

    fn queue_flush(&mut self, due: Instant) -> bool {
        Pipeline::queue_flush(self, due)
    }

    fn send(&mut self) -> Result<bool, DeviceError> {
        Pipeline::send(self).map_err(|e| DeviceError::Nbd(e.into()))
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Result<(), DeviceError> {
        Ok(Pipeline::receive(self, buffer, false).map(drop)?)
    }

    fn next_done(&mut self) -> Option<Done> {
        let done = Pipeline::next_done(self)?;
        let flush = done.command == Command::Flush;
        Some(Done { slot: done.slot, flush, nanos: done.nanos, error: done.error, conflict: false })
    }

    fn data(&self, slot: usize) -> &[u8] {
        Pipeline::data(self, slot)
    }
}
