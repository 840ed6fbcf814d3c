//! A byte buffer for direct I/O: aligned memory, with a length set by the owner.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Size of a huge page. Buffers of this size and more are in huge pages, if the kernel has any. A request to
/// a disk has a limited number of segments, which are contiguous: 4 MiB in pages of 4 KiB become 17 requests
/// to a virtio disk, and take 1.5 times as long.
const HUGE_PAGE: usize = 2 << 20;

/// Aligned bytes. `len` bytes are initialised and visible; `capacity` bytes are allocated and initialised.
pub struct IoBuf {
    ptr: NonNull<u8>,
    len: usize,
    capacity: usize,
}

// SAFETY: an IoBuf is the only owner of its allocation, like a Vec.
unsafe impl Send for IoBuf {}
// SAFETY: shared references give access only to shared slices.
unsafe impl Sync for IoBuf {}

impl IoBuf {
    /// Alignment of the memory, and the unit of direct I/O: no device requires more.
    pub const ALIGN: usize = 4096;

    /// An empty buffer with room for at least `capacity` bytes, rounded up to [`IoBuf::ALIGN`].
    pub fn with_capacity(capacity: usize) -> IoBuf {
        let capacity = capacity.max(1).next_multiple_of(Self::ALIGN);
        let layout = Self::layout(capacity);
        // SAFETY: the size is not zero.
        let ptr = NonNull::new(unsafe { alloc(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        if capacity >= HUGE_PAGE {
            // The advice is given before the memory is used. An error is ignored: the pages then have the
            // usual size.
            // SAFETY: the range was allocated above, and the advice does not change its contents.
            unsafe { libc::madvise(ptr.as_ptr().cast(), capacity, libc::MADV_HUGEPAGE) };
        }
        // SAFETY: `capacity` bytes were allocated above.
        unsafe { ptr.write_bytes(0, capacity) };
        IoBuf { ptr, len: 0, capacity }
    }

    /// A buffer of `len` zero bytes.
    pub fn zeroed(len: usize) -> IoBuf {
        let mut b = IoBuf::with_capacity(len);
        b.len = len;
        b
    }

    fn layout(capacity: usize) -> Layout {
        let align = if capacity >= HUGE_PAGE { HUGE_PAGE } else { Self::ALIGN };
        Layout::from_size_align(capacity, align).expect("a buffer is far smaller than the address space")
    }

    /// Number of bytes that fit into the buffer without growing.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Whether the memory is in huge pages, provided that the kernel had some.
    pub fn is_in_huge_pages(&self) -> bool {
        self.capacity >= HUGE_PAGE
    }

    /// Sets the length to 0; keeps the memory.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Truncates or grows to `len`; new bytes are zero.
    pub fn resize(&mut self, len: usize) {
        let old = self.len;
        self.reserve(len);
        self.len = len;
        if len > old {
            self[old..].fill(0);
        }
    }

    /// Sets the length after the kernel has filled the buffer. `len` must not exceed the capacity, all of
    /// which is initialised.
    pub fn set_len(&mut self, len: usize) {
        assert!(len <= self.capacity);
        self.len = len;
    }

    /// Appends bytes.
    pub fn extend_from_slice(&mut self, bytes: &[u8]) {
        let old = self.len;
        self.reserve(old + bytes.len());
        self.len = old + bytes.len();
        self[old..].copy_from_slice(bytes);
    }

    /// Appends zeroes up to the next multiple of `align`.
    pub fn pad_to(&mut self, align: usize) {
        self.resize(self.len.next_multiple_of(align));
    }

    /// Start address of the memory, for system calls.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    fn reserve(&mut self, capacity: usize) {
        if capacity > self.capacity {
            let mut grown = IoBuf::with_capacity(capacity.max(self.capacity * 2));
            grown.len = self.len;
            grown.copy_from_slice(self);
            *self = grown;
        }
    }
}

impl Drop for IoBuf {
    fn drop(&mut self) {
        // SAFETY: allocated in `with_capacity` with the same layout.
        unsafe { dealloc(self.ptr.as_ptr(), Self::layout(self.capacity)) }
    }
}

impl Deref for IoBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `capacity` bytes are allocated and initialised (zeroed on allocation), and len <= capacity.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for IoBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and the borrow is unique.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl From<&[u8]> for IoBuf {
    fn from(bytes: &[u8]) -> IoBuf {
        let mut b = IoBuf::with_capacity(bytes.len());
        b.extend_from_slice(bytes);
        b
    }
}

impl std::fmt::Debug for IoBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "IoBuf({} of {} bytes)", self.len, self.capacity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_zeroed_and_aligned_also_in_huge_pages() {
        for capacity in [1, 4096, HUGE_PAGE - 1, HUGE_PAGE, 2 * HUGE_PAGE + 1] {
            // Memory that was used before.
            IoBuf::zeroed(capacity).fill(7);
            let mut buffer = IoBuf::with_capacity(capacity);
            buffer.set_len(buffer.capacity());
            assert!(buffer.capacity() >= capacity && buffer.iter().all(|b| *b == 0));
            let align = if capacity > HUGE_PAGE - IoBuf::ALIGN { HUGE_PAGE } else { IoBuf::ALIGN };
            assert_eq!(buffer.as_mut_ptr().addr() % align, 0, "{capacity}");
        }
    }
}
