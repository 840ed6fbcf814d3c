//! A unit of an iSCSI target.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::time::Instant;

use super::{Device, DeviceError, Done, Needs, slots};
use crate::iscsi::{Address, Command, InitiatorSession, IscsiError, Status};

/// A command in a slot of the session.
#[derive(Clone, Copy)]
struct Request {
    command: Command,
    flush: bool,
    due: Instant,
}

/// See the module. Slots are those of the session.
pub(super) struct IscsiDevice {
    session: InitiatorSession,
    size: u64,
    depth: usize,
    durable: bool,
    requests: Vec<Option<Request>>,
    flushing: bool,
    done: VecDeque<Done>,
}

impl IscsiDevice {
    /// Logs in.
    pub fn open(address: &Address, needs: Needs) -> Result<IscsiDevice, DeviceError> {
        // Sessions of one process are different initiators.
        static LOGINS: AtomicU16 = AtomicU16::new(1);
        let room = slots(needs.depth);
        let depth = u16::try_from(room).map_err(|_| DeviceError::Lacks("has no room for this depth"))?;
        let mut session = InitiatorSession::connect(address, LOGINS.fetch_add(1, Relaxed), depth)?;
        let size = session.capacity()?;
        Ok(IscsiDevice {
            session,
            size,
            depth: needs.depth,
            durable: needs.durable,
            requests: vec![None; room],
            flushing: false,
            done: VecDeque::new(),
        })
    }
}

impl AsRawFd for IscsiDevice {
    fn as_raw_fd(&self) -> RawFd {
        self.session.as_raw_fd()
    }
}

impl Device for IscsiDevice {
    fn size(&self) -> u64 {
        self.size
    }

    fn has_room(&self) -> bool {
        self.session.has_room() && self.session.under_way() - usize::from(self.flushing) < self.depth
    }

    fn under_way(&self) -> usize {
        self.session.under_way()
    }

    fn queue_read(&mut self, offset: u64, len: u32, _keep: bool, due: Instant) -> usize {
        let command = Command::read(offset, len);
        let slot = self.session.queue_kept(&command, |_| ());
        self.requests[slot] = Some(Request { command, flush: false, due });
        slot
    }

    fn queue_write(&mut self, offset: u64, len: u32, due: Instant, fill: &mut dyn FnMut(&mut [u8])) -> usize {
        let command = Command::write(offset, len);
        let command = if self.durable { command.durable() } else { command };
        let slot = self.session.queue(&command, fill);
        self.requests[slot] = Some(Request { command, flush: false, due });
        slot
    }

    fn queue_flush(&mut self, due: Instant) -> bool {
        if self.flushing || !self.session.has_room() {
            return false;
        }
        let command = Command::synchronize_cache();
        let slot = self.session.queue(&command, |_| ());
        self.requests[slot] = Some(Request { command, flush: true, due });
        self.flushing = true;
        true
    }

    fn send(&mut self) -> Result<bool, DeviceError> {
        Ok(self.session.send()?)
    }

    fn receive(&mut self, _buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.session.receive(false)?;
        while let Some(ended) = self.session.next_done() {
            let Some(request) = self.requests[ended.slot].take() else { continue };
            self.flushing &= !request.flush;
            let error = match ended.status {
                Status::Good if ended.got != request.command.incoming() => {
                    return Err(IscsiError::Protocol("a read returned too little data").into());
                }
                Status::Good => None,
                status => Some(status.number()),
            };
            let nanos = ended.at.saturating_duration_since(request.due).as_nanos() as u64;
            let conflict = ended.status == Status::Conflict;
            self.done.push_back(Done { slot: ended.slot, flush: request.flush, nanos, error, conflict });
        }
        Ok(())
    }

    fn next_done(&mut self) -> Option<Done> {
        self.done.pop_front()
    }

    fn data(&self, slot: usize) -> &[u8] {
        self.session.data(slot)
    }
}
