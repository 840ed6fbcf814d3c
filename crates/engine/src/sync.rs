//! Locks and atomics shared between threads: the types of `parking_lot` and the standard library; under
//! `--cfg shuttle` the types of shuttle, which runs `tests/threads.rs` under many schedules.
//!
//! All locks of the engine are taken from here. Shuttle runs all threads of a test on one thread, so a lock
//! of another library would deadlock if it were held when shuttle switches threads. Counters on which nothing
//! depends use the standard library.

#[cfg(not(shuttle))]
pub(crate) use parking_lot::{Mutex, RwLock};
#[cfg(not(shuttle))]
pub(crate) use std::sync::atomic;

#[cfg(shuttle)]
pub(crate) use self::shuttled::{Mutex, RwLock};
#[cfg(shuttle)]
pub(crate) use shuttle::sync::atomic;

/// Shuttle's locks with the interface of `parking_lot`: they are not poisoned.
#[cfg(shuttle)]
mod shuttled {
    use std::sync::PoisonError;

    use shuttle::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub fn new(value: T) -> Mutex<T> {
            Mutex(shuttle::sync::Mutex::new(value))
        }
        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }
        pub fn into_inner(self) -> T {
            self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
        }
    }

    #[derive(Debug, Default)]
    pub(crate) struct RwLock<T>(shuttle::sync::RwLock<T>);

    impl<T> RwLock<T> {
        pub fn new(value: T) -> RwLock<T> {
            RwLock(shuttle::sync::RwLock::new(value))
        }
        pub fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0.read().unwrap_or_else(PoisonError::into_inner)
        }
        pub fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0.write().unwrap_or_else(PoisonError::into_inner)
        }
    }
}
