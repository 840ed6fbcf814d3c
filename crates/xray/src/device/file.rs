//! A file or block device of this machine, through io_uring, past the page cache if the file system allows
//! it.
//!
//! The kernel reads and writes the buffers of slots while requests are in flight. A buffer is moved or freed
//! only when its slot is free, and the device waits for all requests before it drops its buffers.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, types};

use super::{Device, DeviceError, Done, Needs, slots};
use crate::socket;

/// Alignment that direct I/O needs at most.
const ALIGN: usize = 4096;

/// Zeroed memory at an aligned address.
struct Aligned {
    start: *mut u8,
    layout: Layout,
}

// SAFETY: it owns its memory, like a Vec.
unsafe impl Send for Aligned {}

impl Aligned {
    fn new(len: usize) -> Aligned {
        let len = len.max(ALIGN).next_multiple_of(ALIGN);
        let Ok(layout) = Layout::from_size_align(len, ALIGN) else {
            unreachable!("requests are at most 32 MiB")
        };
        // SAFETY: the size of the layout is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        Aligned { start, layout }
    }

    fn len(&self) -> usize {
        self.layout.size()
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is initialized and as long as this; no request is in flight (see the module).
        unsafe { std::slice::from_raw_parts(self.start, self.len()) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len()) }
    }
}

impl Drop for Aligned {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.start, self.layout) }
    }
}

struct Slot {
    buffer: Aligned,
    len: u32,
    due: Instant,
}

/// A file or block device; see the module documentation.
pub(crate) struct FileDevice {
    ring: IoUring,
    file: File,
    size: u64,
    durable: bool,
    patience: Duration,
    slots: Vec<Slot>,
    free: Vec<usize>,
    flushing: bool,
    under_way: usize,
    done: VecDeque<Done>,
}

impl FileDevice {
    /// Opens a file.
    pub fn open(path: &Path, needs: Needs) -> Result<FileDevice, DeviceError> {
        let failed = |what| move |source| DeviceError::File { what, path: path.to_owned(), source };
        let open = |flags| OpenOptions::new().read(true).write(needs.writes).custom_flags(flags).open(path);
        let file = match open(libc::O_DIRECT) {
            // The file system has no direct I/O.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => open(0),
            opened => opened,
        };
        let file = file.map_err(failed("cannot open"))?;
        let size = size(&file).map_err(failed("cannot get the size of"))?;
        let room = slots(needs.depth);
        let ring =
            IoUring::new((room as u32).next_power_of_two()).map_err(failed("cannot use io_uring for"))?;
        let now = Instant::now();
        Ok(FileDevice {
            ring,
            file,
            size,
            durable: needs.durable,
            patience: needs.patience,
            slots: (0..room).map(|_| Slot { buffer: Aligned::new(0), len: 0, due: now }).collect(),
            free: (0..needs.depth).rev().collect(),
            flushing: false,
            under_way: 0,
            done: VecDeque::new(),
        })
    }

    fn push(&mut self, entry: io_uring::squeue::Entry, index: usize) {
        // SAFETY: the buffer of the slot lives until the request has completed, and is not accessed before.
        let pushed = unsafe { self.ring.submission().push(&entry.user_data(index as u64)) };
        assert!(pushed.is_ok(), "the ring has an entry for each slot, and entries are submitted at once");
        self.under_way += 1;
    }

    fn take(&mut self, len: u32, due: Instant) -> usize {
        let Some(index) = self.free.pop() else { unreachable!("the caller checks for room") };
        let slot = &mut self.slots[index];
        if slot.buffer.len() < len as usize {
            slot.buffer = Aligned::new(len as usize);
        }
        (slot.len, slot.due) = (len, due);
        index
    }
}

/// Size of a file or block device.
pub(crate) fn size(file: &File) -> io::Result<u64> {
    let found = file.metadata()?.len();
    if found > 0 {
        return Ok(found);
    }
    // A block device has no length; its end is its size.
    io::Seek::seek(&mut &*file, io::SeekFrom::End(0))
}

/// Whether a file has data. Holes have none; a block device always has.
pub(crate) fn has_data(path: &Path) -> io::Result<bool> {
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Ok(true);
    }
    // SAFETY: lseek only moves the position of this descriptor.
    let at = unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_DATA) };
    if at < 0 {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ENXIO) { Ok(false) } else { Err(error) };
    }
    let mut byte = [0];
    Ok(file.read_at(&mut byte, at as u64)? > 0)
}

impl AsRawFd for FileDevice {
    fn as_raw_fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }
}

impl Device for FileDevice {
    fn size(&self) -> u64 {
        self.size
    }

    fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    fn under_way(&self) -> usize {
        self.under_way
    }

    fn queue_read(&mut self, offset: u64, len: u32, _keep: bool, due: Instant) -> usize {
        let index = self.take(len, due);
        let fd = types::Fd(self.file.as_raw_fd());
        let entry = opcode::Read::new(fd, self.slots[index].buffer.start, len).offset(offset).build();
        self.push(entry, index);
        index
    }

    fn queue_write(&mut self, offset: u64, len: u32, due: Instant, fill: &mut dyn FnMut(&mut [u8])) -> usize {
        let index = self.take(len, due);
        let fd = types::Fd(self.file.as_raw_fd());
        let flags = if self.durable { libc::RWF_DSYNC } else { 0 };
        let buffer = &mut self.slots[index].buffer;
        fill(&mut buffer.bytes_mut()[..len as usize]);
        let entry = opcode::Write::new(fd, buffer.start, len).offset(offset).rw_flags(flags).build();
        self.push(entry, index);
        index
    }

    fn queue_flush(&mut self, due: Instant) -> bool {
        if self.flushing {
            return false;
        }
        self.flushing = true;
        let index = self.slots.len() - 1;
        (self.slots[index].len, self.slots[index].due) = (0, due);
        let fd = types::Fd(self.file.as_raw_fd());
        self.push(opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(), index);
        true
    }

    fn send(&mut self) -> Result<bool, DeviceError> {
        match self.ring.submit() {
            Ok(_) => Ok(false),
            // The kernel has no room now: try again later.
            Err(e) if matches!(e.raw_os_error(), Some(libc::EBUSY | libc::EAGAIN | libc::EINTR)) => Ok(true),
            Err(source) => Err(DeviceError::File {
                what: "cannot send requests to",
                path: Path::new("io_uring").into(),
                source,
            }),
        }
    }

    fn receive(&mut self, _buffer: &mut [u8], wait: bool) -> Result<bool, DeviceError> {
        if wait && !socket::wait(&mut [socket::poll(self.as_raw_fd(), false)], self.patience)? {
            return Ok(false);
        }
        let now = Instant::now();
        let before = self.done.len();
        for entry in self.ring.completion() {
            let index = entry.user_data() as usize;
            let slot = &self.slots[index];
            let flush = index + 1 == self.slots.len();
            let result = entry.result();
            let error = match u32::try_from(result) {
                Ok(n) if n == slot.len => None,
                // A request that ends early hit the end of the device.
                Ok(_) => Some(libc::EIO as u32),
                Err(_) => Some(result.unsigned_abs()),
            };
            let nanos = now.saturating_duration_since(slot.due).as_nanos() as u64;
            self.done.push_back(Done { slot: index, flush, nanos, error, again: None });
            self.under_way -= 1;
            if flush {
                self.flushing = false;
            } else {
                self.free.push(index);
            }
        }
        Ok(self.done.len() > before)
    }

    fn next_done(&mut self) -> Option<Done> {
        self.done.pop_front()
    }

    fn data(&self, slot: usize) -> &[u8] {
        let slot = &self.slots[slot];
        &slot.buffer.bytes()[..slot.len as usize]
    }
}

impl Drop for FileDevice {
    fn drop(&mut self) {
        // The kernel writes into the buffers until then.
        while self.under_way > 0 {
            let waited = self.ring.submit_and_wait(1);
            if waited.is_err_and(|e| e.kind() != io::ErrorKind::Interrupted)
                || self.receive(&mut [], false).is_err()
            {
                // Rather lose the memory than let the kernel write into memory of another owner.
                std::mem::forget(std::mem::take(&mut self.slots));
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_read_as_they_were_written() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("disk");
        File::create(&path).expect("creates").set_len(1 << 20).expect("sets the length");
        assert!(!has_data(&path).expect("is readable"));
        let mut device = FileDevice::open(&path, Needs::all(4, Duration::from_secs(1))).expect("opens");
        assert_eq!(device.size(), 1 << 20);
        let finish = |device: &mut FileDevice| {
            device.send().expect("sends");
            let mut done = Vec::new();
            while device.under_way() > 0 {
                device.receive(&mut [], false).expect("receives");
                done.extend(std::iter::from_fn(|| device.next_done()));
            }
            done
        };
        let now = Instant::now();
        device.queue_write(8192, 4096, now, &mut |data| data.fill(7));
        device.queue_flush(now);
        assert!(finish(&mut device).iter().all(|d| d.error.is_none()));
        let slot = device.queue_read(8192, 4096, true, now);
        let beyond = device.queue_read(1 << 20, 4096, true, now);
        let done = finish(&mut device);
        let error = |slot| done.iter().find(|d| d.slot == slot).and_then(|d| d.error);
        assert_eq!((error(slot), error(beyond)), (None, Some(libc::EIO as u32)));
        assert!(device.data(slot).iter().all(|b| *b == 7));
        assert!(has_data(&path).expect("is readable"));
    }
}
