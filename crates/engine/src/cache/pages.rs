//! Memory straight from the kernel, and back to it at once when dropped.
//!
//! A cache that shrinks must really make room on the host. A general allocator may keep what it is given back;
//! a mapping of our own is gone when it is unmapped. Whole 2 MiB pieces are aligned, and huge pages are asked
//! for: a random hit would otherwise pay for its page-table walk as much as for its copy.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Bytes of a huge page.
pub(super) const HUGE: usize = 2 << 20;

/// Zeroed, page-aligned bytes.
pub(super) struct Pages {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is owned alone, as a Vec's memory is.
unsafe impl Send for Pages {}
// SAFETY: a shared reference gives out only shared slices.
unsafe impl Sync for Pages {}

fn map(len: usize) -> Option<*mut libc::c_void> {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new anonymous mapping wherever the kernel likes touches nothing that exists.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
    (at != libc::MAP_FAILED).then_some(at)
}

/// # Safety
/// The range must be part of a mapping made by [`map`], and nothing may refer to it.
unsafe fn unmap(at: *mut libc::c_void, len: usize) {
    if len > 0 {
        // SAFETY: the caller's promise. It cannot fail for a range that is mapped, but for want of kernel
        // memory when splitting a mapping; then the range stays mapped, untouched and unused.
        unsafe { libc::munmap(at, len) };
    }
}

impl Pages {
    /// Bytes of a page.
    pub const PAGE: usize = 4096;

    /// `len` zero bytes, a multiple of the page size and not 0, present in memory; `None` where the kernel
    /// refuses.
    pub fn new(len: usize) -> Option<Pages> {
        assert!(len > 0 && len.is_multiple_of(Self::PAGE));
        let at = if len.is_multiple_of(HUGE) {
            let wide = map(len + HUGE)?;
            let head = wide.addr().next_multiple_of(HUGE) - wide.addr();
            let at = wide.wrapping_byte_add(head);
            // SAFETY: both ends of the mapping just made, outside of the `len` bytes that are kept.
            unsafe {
                unmap(wide, head);
                unmap(at.wrapping_byte_add(len), HUGE - head);
            }
            // SAFETY: advice on a mapping of our own; a refusal changes nothing.
            unsafe { libc::madvise(at, len, libc::MADV_HUGEPAGE) };
            at
        } else {
            map(len)?
        };
        // Fault everything in here and not under the lock of whoever fills it. Kernels before 5.14 refuse;
        // then the pages come one by one.
        // SAFETY: as above.
        unsafe { libc::madvise(at, len, libc::MADV_POPULATE_WRITE) };
        Some(Pages { ptr: NonNull::new(at.cast())?, len })
    }

    /// Gives everything from byte `len` on back, a multiple of the page size.
    pub fn truncate(&mut self, len: usize) {
        assert!(len <= self.len && len.is_multiple_of(Self::PAGE));
        // SAFETY: the tail of this mapping; the borrow is unique, so nothing refers to it, and from here on it
        // is not part of `self`.
        unsafe { unmap(self.ptr.as_ptr().wrapping_add(len).cast(), self.len - len) };
        self.len = len;
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: exactly the bytes that `new` kept of its mapping; no borrow outlives the owner.
        unsafe { unmap(self.ptr.as_ptr().cast(), self.len) };
    }
}

impl Deref for Pages {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` bytes are mapped readable, and anonymous memory is initialised to zero.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and the borrow is unique.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}
