//! A unit of an iSCSI target.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use std::time::Instant;

use super::{Again, Device, DeviceError, Done, Needs, slots};
use crate::iscsi::{Address, Command, FIRST_RESERVED, InitiatorSession, IscsiError, Status};

/// A command in a slot of the session.
#[derive(Clone, Copy)]
struct Request {
    command: Command,
    flush: bool,
    due: Instant,
}

/// A unit of an iSCSI target as a device; see the module. Its slots are those of the session.
pub(crate) struct IscsiDevice {
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
        static LOGINS: AtomicU16 = AtomicU16::new(0);
        let number = LOGINS.fetch_add(1, Relaxed) % (FIRST_RESERVED - 1) + 1;
        let room = slots(needs.depth);
        let depth = u16::try_from(room).map_err(|_| DeviceError::Lacks("has no room for this depth"))?;
        let mut session = InitiatorSession::connect(address, number, depth)?;
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

    fn queue(
        &mut self,
        command: Command,
        keep: bool,
        due: Instant,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> usize {
        let slot = self.session.queue(&command, keep, fill);
        self.requests[slot] = Some(Request { command, flush: false, due });
        slot
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

    fn queue_read(&mut self, offset: u64, len: u32, keep: bool, due: Instant) -> usize {
        self.queue(Command::read(offset, len), keep, due, &mut |_| ())
    }

    fn queue_write(&mut self, offset: u64, len: u32, due: Instant, fill: &mut dyn FnMut(&mut [u8])) -> usize {
        let command = Command::write(offset, len);
        self.queue(if self.durable { command.durable() } else { command }, false, due, fill)
    }

    fn queue_flush(&mut self, due: Instant) -> bool {
        if self.flushing || !self.session.has_room() {
            return false;
        }
        let command = Command::synchronize_cache();
        let slot = self.session.queue(&command, false, |_| ());
        self.requests[slot] = Some(Request { command, flush: true, due });
        self.flushing = true;
        true
    }

    fn send(&mut self) -> Result<bool, DeviceError> {
        Ok(self.session.send()?)
    }

    fn receive(&mut self, buffer: &mut [u8], wait: bool) -> Result<bool, DeviceError> {
        let received = self.session.receive(buffer, wait)?;
        while let Some(ended) = self.session.next_done() {
            let Some(request) = self.requests[ended.slot].take() else { continue };
            self.flushing &= !request.flush;
            let (error, again) = match ended.status {
                Status::Good if ended.got != request.command.incoming() => {
                    return Err(IscsiError::Protocol("a read returned too little data").into());
                }
                Status::Good => (None, None),
                Status::Conflict => (Some(ended.status.number()), Some(Again::Reserved)),
                status => (Some(status.number()), status.is_attention().then_some(Again::Event)),
            };
            let nanos = ended.at.saturating_duration_since(request.due).as_nanos() as u64;
            self.done.push_back(Done { slot: ended.slot, flush: request.flush, nanos, error, again });
        }
        Ok(received)
    }

    fn next_done(&mut self) -> Option<Done> {
        self.done.pop_front()
    }

    fn data(&self, slot: usize) -> &[u8] {
        self.session.data(slot)
    }
}

impl Drop for IscsiDevice {
    fn drop(&mut self) {
        // The end of the connection ends the session as well, if the logout does not arrive.
        let _ = self.session.log_out();
    }
}
