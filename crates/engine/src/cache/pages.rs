//! Memory mapped directly from the kernel, and returned to it when dropped.
//!
//! A cache that shrinks must free memory on the host. A general allocator may keep freed memory; a separate
//! mapping is released when it is unmapped. Whole 2 MiB pieces are aligned and request huge pages: otherwise
//! the page-table walk of a random hit would cost as much as its copy.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Bytes of a huge page.
pub(super) const HUGE: usize = 2 << 20;

/// Zeroed, page-aligned bytes.
pub(super) struct Pages {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping has a single owner, as a Vec's memory has.
unsafe impl Send for Pages {}
// SAFETY: a shared reference gives out only shared slices.
unsafe impl Sync for Pages {}

fn map(len: usize) -> Option<*mut libc::c_void> {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new anonymous mapping at an address chosen by the kernel touches no existing memory.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), len, prot, flags, -1, 0) };
    (at != libc::MAP_FAILED).then_some(at)
}

/// # Safety
/// The range must be part of a mapping made by [`map`], and nothing may refer to it.
unsafe fn unmap(at: *mut libc::c_void, len: usize) {
    if len > 0 {
        // SAFETY: guaranteed by the caller. For a mapped range this fails only if the kernel lacks memory to
        // split a mapping; then the range stays mapped, untouched and unused.
        unsafe { libc::munmap(at, len) };
    }
}

impl Pages {
    /// Bytes of a page.
    pub const PAGE: usize = 4096;

    /// `len` zero bytes (a multiple of the page size), present in memory; `None` if the kernel refuses.
    pub fn new(len: usize) -> Option<Pages> {
        assert!(len.is_multiple_of(Self::PAGE));
        if len == 0 {
            return Some(Pages { ptr: NonNull::dangling(), len });
        }
        let at = if len.is_multiple_of(HUGE) {
            let wide = map(len + HUGE)?;
            let head = wide.addr().next_multiple_of(HUGE) - wide.addr();
            let at = wide.wrapping_byte_add(head);
            // SAFETY: both ends of the new mapping, outside of the `len` bytes that are kept.
            unsafe {
                unmap(wide, head);
                unmap(at.wrapping_byte_add(len), HUGE - head);
            }
            // SAFETY: advice on a mapping that this function owns; a refusal changes nothing.
            unsafe { libc::madvise(at, len, libc::MADV_HUGEPAGE) };
            at
        } else {
            map(len)?
        };
        // Fault in all pages here, not under the lock under which the memory is filled. Kernels before 5.14
        // refuse; then the pages are faulted in one by one.
        // SAFETY: as above.
        unsafe { libc::madvise(at, len, libc::MADV_POPULATE_WRITE) };
        Some(Pages { ptr: NonNull::new(at.cast())?, len })
    }

    /// Unmaps everything from byte `len` (a multiple of the page size) on.
    pub fn truncate(&mut self, len: usize) {
        assert!(len <= self.len && len.is_multiple_of(Self::PAGE));
        // SAFETY: the tail of this mapping; the borrow is unique, so nothing refers to the tail, and from
        // here on it is not part of `self`.
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
        // SAFETY: `len` bytes are mapped readable, and anonymous memory is initialised to zero; no byte needs
        // no mapping.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl DerefMut for Pages {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and the borrow is unique.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}
