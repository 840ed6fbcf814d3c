//! The system's allocator, which counts for each thread. For test programs that measure with it, of other crates as well
//! (by path): each makes it its own with `#[global_allocator]`.
#![allow(dead_code, reason = "each test uses its part")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The allocator.
pub struct Counting;

thread_local! {
    /// Bytes in use now, ...
    static IN_USE: Cell<isize> = const { Cell::new(0) };
    /// ... the most since the last reset, ...
    static PEAK: Cell<isize> = const { Cell::new(0) };
    /// ... and allocated in all, given back or not.
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    let in_use = IN_USE.get() + bytes;
    IN_USE.set(in_use);
    PEAK.set(PEAK.get().max(in_use));
}

// SAFETY: hands everything on to the system's allocator; the counters do not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        ALLOCATED.set(ALLOCATED.get() + layout.size());
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
}

/// What `work` returns, and the bytes that were in use at one time beyond those before it.
pub fn peak_of<T>(work: impl FnOnce() -> T) -> (T, isize) {
    let before = IN_USE.get();
    PEAK.set(before);
    let done = work();
    (done, PEAK.get() - before)
}

/// Bytes that `work` allocated in all, given back or not.
pub fn allocated<T>(work: impl FnOnce() -> T) -> usize {
    let before = ALLOCATED.get();
    drop(work());
    ALLOCATED.get() - before
}
