//! An allocator that counts for each thread, based on the system's allocator. For test programs that measure
//! allocations, also of other crates (included by path): each installs it with `#[global_allocator]`.
#![allow(dead_code, reason = "each test uses its part")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The allocator.
pub struct Counting;

thread_local! {
    /// Bytes in use.
    static IN_USE: Cell<isize> = const { Cell::new(0) };
    /// Maximum of the bytes in use since the last reset.
    static PEAK: Cell<isize> = const { Cell::new(0) };
    /// Bytes allocated in all, freed or not.
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    let in_use = IN_USE.get() + bytes;
    IN_USE.set(in_use);
    PEAK.set(PEAK.get().max(in_use));
}

// SAFETY: forwards all calls to the system's allocator; the counters do not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        ALLOCATED.set(ALLOCATED.get() + layout.size());
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(ptr, layout) }
    }
}

/// The result of `work`, and the largest number of bytes in use during it beyond those before it.
pub fn peak_of<T>(work: impl FnOnce() -> T) -> (T, isize) {
    let before = IN_USE.get();
    PEAK.set(before);
    let done = work();
    (done, PEAK.get() - before)
}

/// Bytes that are in use after `work` beyond those before it.
pub fn kept_after(work: impl FnOnce()) -> isize {
    let before = IN_USE.get();
    work();
    IN_USE.get() - before
}

/// Bytes that `work` allocated in all, freed or not.
pub fn allocated<T>(work: impl FnOnce() -> T) -> usize {
    let before = ALLOCATED.get();
    drop(work());
    ALLOCATED.get() - before
}
