//! Loads and stores of words in the memory, in an order that a kill cannot change.
//!
//! A thread that is killed has executed a prefix of its instructions, and the kernel keeps the memory: all
//! stores before that point are in it, none after. This holds on every processor with precise interrupts.
//! Only the compiler could reorder stores; a compiler fence before and after each tag prevents it. (The
//! language defines this fence for a signal handler of the same thread; what such a handler can see is what a
//! kill leaves.)

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, compiler_fence};

#[cfg(feature = "test-util")]
pub(crate) use hook::step;

/// A point between two stores, at which a test takes a snapshot.
#[cfg(not(feature = "test-util"))]
#[inline(always)]
pub(crate) fn step() {}

/// # Safety
///
/// `at` is aligned to 8 bytes, valid for 8 bytes, and no reference to these bytes exists.
pub(crate) unsafe fn load(at: NonNull<u8>) -> u64 {
    // SAFETY: the caller guarantees that the address is valid and aligned. An atomic access cannot be a data
    // race with the stores of this module, which are atomic as well.
    unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) }.load(Ordering::Acquire)
}

/// # Safety
///
/// As [`load`].
unsafe fn store(at: NonNull<u8>, word: u64) {
    // SAFETY: as in `load`.
    unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) }.store(word, Ordering::Relaxed);
    step();
}

/// Stores a tag: after all stores before it, and before all stores after it.
///
/// # Safety
///
/// As [`load`].
pub(crate) unsafe fn store_tag(at: NonNull<u8>, word: u64) {
    compiler_fence(Ordering::SeqCst);
    // SAFETY: the caller guarantees what `load` demands.
    unsafe { AtomicU64::from_ptr(at.as_ptr().cast()) }.store(word, Ordering::Release);
    compiler_fence(Ordering::SeqCst);
    step();
}

/// Copies `N` bytes, a multiple of 8.
///
/// # Safety
///
/// As [`load`], for all `N` bytes.
pub unsafe fn read<const N: usize>(at: NonNull<u8>) -> [u8; N] {
    const { assert!(N.is_multiple_of(8)) };
    let mut bytes = [0; N];
    for (i, word) in bytes.chunks_exact_mut(8).enumerate() {
        // SAFETY: the caller guarantees what `load` demands for all bytes.
        word.copy_from_slice(&unsafe { load(at.add(8 * i)) }.to_ne_bytes());
    }
    bytes
}

/// Publishes a structure whose tag is the word at the index `tag`: clears the tag, stores all other words,
/// then the tag.
///
/// # Safety
///
/// As [`load`], for all `N` bytes; no other thread stores to them.
pub(crate) unsafe fn publish<const N: usize>(at: NonNull<u8>, bytes: &[u8; N], tag: usize) {
    const { assert!(N.is_multiple_of(8)) };
    // SAFETY: the caller guarantees it for all bytes.
    unsafe {
        if load(at.add(8 * tag)) != 0 {
            store_tag(at.add(8 * tag), 0);
        }
        let words = bytes.as_chunks::<8>().0;
        for (i, word) in words.iter().enumerate().filter(|(i, _)| *i != tag) {
            store(at.add(8 * i), u64::from_ne_bytes(*word));
        }
        store_tag(at.add(8 * tag), u64::from_ne_bytes(words[tag]));
    }
}

#[cfg(feature = "test-util")]
mod hook {
    use std::cell::RefCell;

    thread_local! {
        static HOOK: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
    }

    /// Calls `hook` after each store of this thread, and around each change of a memory's chunks; `None` ends
    /// it. Stores within the hook do not call it.
    pub fn set_hook(hook: Option<Box<dyn FnMut()>>) {
        HOOK.set(hook);
    }

    pub(crate) fn step() {
        // A thread that ends may have dropped the hook already.
        let Some(mut hook) = HOOK.try_with(RefCell::take).ok().flatten() else { return };
        hook();
        HOOK.with_borrow_mut(|current| {
            current.get_or_insert(hook);
        });
    }
}

#[cfg(feature = "test-util")]
pub use hook::set_hook;
