//! A namespace of an NVMe/TCP subsystem.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Instant;

use super::{Device, DeviceError, Done, Needs};
use crate::nvme::{Namespace, NvmeQueue};

/// A namespace as a device; see the module. Its slots are those of the queue.
pub(crate) struct NvmeDevice(NvmeQueue);

impl NvmeDevice {
    /// Brings a controller up.
    pub fn open(namespace: &Namespace, needs: Needs) -> Result<NvmeDevice, DeviceError> {
        // Controllers of one process are of different hosts.
        static HOSTS: AtomicU32 = AtomicU32::new(0);
        let host = HOSTS.fetch_add(1, Relaxed);
        let depth =
            u16::try_from(needs.depth).map_err(|_| DeviceError::Lacks("has no room for this depth"))?;
        Ok(NvmeDevice(NvmeQueue::open(namespace, host, depth, needs.durable, needs.patience)?))
    }
}

impl AsRawFd for NvmeDevice {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Device for NvmeDevice {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn has_room(&self) -> bool {
        self.0.has_room()
    }

    fn under_way(&self) -> usize {
        self.0.under_way()
    }

    fn queue_read(&mut self, offset: u64, len: u32, keep: bool, due: Instant) -> usize {
        self.0.queue_read(offset, len, keep, due)
    }

    fn queue_write(&mut self, offset: u64, len: u32, due: Instant, fill: &mut dyn FnMut(&mut [u8])) -> usize {
        self.0.queue_write(offset, len, due, fill)
    }

    fn queue_flush(&mut self, due: Instant) -> bool {
        self.0.queue_flush(due)
    }

    fn send(&mut self) -> Result<bool, DeviceError> {
        Ok(self.0.send()?)
    }

    fn receive(&mut self, buffer: &mut [u8], wait: bool) -> Result<bool, DeviceError> {
        Ok(self.0.receive(buffer, wait)?)
    }

    fn next_done(&mut self) -> Option<Done> {
        self.0.next_done()
    }

    fn data(&self, slot: usize) -> &[u8] {
        self.0.data(slot)
    }
}
