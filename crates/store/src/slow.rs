//! A store with the latency of an array of disks: for benchmarks of adaptive behaviour on machines without
//! one.
//!
//! Data is striped over spindles, each of which serves one operation after the other. An operation that does
//! not start where the spindle's last operation ended costs a seek and half a revolution; every byte costs
//! its share of the transfer rate; a sync costs a seek and half a revolution, the time that a disk without a
//! battery-backed cache needs to make data durable. The inner store executes the operation during that time.

use std::sync::Arc;
use std::time::Duration;

use forebay_format::{SegmentId, Superblock};
use parking_lot::Mutex;

use crate::{BoxFuture, Clock, Completion, IoBuf, Store};

/// Bytes of a stripe.
const STRIPE: u64 = 1 << 20;

/// Performance of the array.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DiskArray {
    /// Number of disks; at least one.
    pub spindles: usize,
    /// Mean seek time.
    pub seek: Duration,
    /// Revolutions per minute.
    pub rpm: u32,
    /// Transfer rate of one disk, in bytes per second.
    pub bytes_per_second: u64,
}

impl DiskArray {
    /// Time to move the heads of a disk to another position.
    fn position(&self) -> Duration {
        self.seek + Duration::from_secs_f64(30.0 / f64::from(self.rpm.max(1)))
    }

    fn transfer(&self, bytes: u64) -> Duration {
        Duration::from_secs_f64(bytes as f64 / self.bytes_per_second.max(1) as f64)
    }
}

/// Returns a future that waits for the given time.
pub type Sleep = Arc<dyn Fn(Duration) -> BoxFuture<'static, ()> + Send + Sync>;

/// A store with simulated latency.
pub struct Slow {
    inner: Arc<dyn Store>,
    array: DiskArray,
    clock: Clock,
    sleep: Sleep,
    spindles: Mutex<Vec<Spindle>>,
}

#[derive(Clone, Copy)]
struct Spindle {
    /// The time on the clock at which the disk has served all of its queued operations.
    free: Duration,
    /// Position of the disk at the time `free`.
    at: (SegmentId, u64),
}

impl Slow {
    /// Adds the latency of an array to `inner`. `sleep` waits for a time on `clock`.
    pub fn new(inner: Arc<dyn Store>, array: DiskArray, clock: Clock, sleep: Sleep) -> Slow {
        let spindle = Spindle { free: Duration::ZERO, at: (SegmentId(0), 0) };
        Slow { inner, array, clock, sleep, spindles: Mutex::new(vec![spindle; array.spindles.max(1)]) }
    }

    /// Queues a transfer; returns the time until it completes.
    fn transfer(&self, id: SegmentId, offset: u64, len: u64) -> Duration {
        let now = (self.clock)();
        let mut spindles = self.spindles.lock();
        let (mut at, mut done) = (offset, now);
        while at < offset + len {
            let end = ((at / STRIPE + 1) * STRIPE).min(offset + len);
            let spindle = self.spindle(&mut spindles, id, at);
            let mut took = self.array.transfer(end - at);
            if spindle.at != (id, at) {
                took += self.array.position();
            }
            *spindle = Spindle { free: spindle.free.max(now) + took, at: (id, end) };
            done = done.max(spindle.free);
            at = end;
        }
        done - now
    }

    /// Queues a movement without a transfer, as for a sync.
    fn movement(&self, id: SegmentId) -> Duration {
        let now = (self.clock)();
        let mut spindles = self.spindles.lock();
        let spindle = self.spindle(&mut spindles, id, 0);
        *spindle = Spindle { free: spindle.free.max(now) + self.array.position(), at: (SegmentId(0), 0) };
        spindle.free - now
    }

    fn spindle<'a>(&self, spindles: &'a mut [Spindle], id: SegmentId, offset: u64) -> &'a mut Spindle {
        let stripe = u64::from(id.0) + offset / STRIPE;
        let count = spindles.len() as u64;
        &mut spindles[(stripe % count) as usize]
    }

    /// Returns the result of an operation when the operation has completed and the time `took` has passed.
    fn after<T: Send + 'static>(&self, took: Duration, op: Completion<T>) -> Completion<T> {
        let pause = (self.sleep)(took);
        Completion::of(async move {
            let result = op.await;
            pause.await;
            result
        })
    }
}

impl Store for Slow {
    crate::forward_store!(inner; except append, sync, read, delete, read_superblock, swap_superblock);

    fn append(&self, id: SegmentId, offset: u64, data: IoBuf, expected: u64) -> Completion<IoBuf> {
        let took = self.transfer(id, offset, data.len() as u64);
        self.after(took, self.inner.append(id, offset, data, expected))
    }

    fn sync(&self, id: SegmentId) -> Completion<()> {
        self.after(self.movement(id), self.inner.sync(id))
    }

    fn read(&self, id: SegmentId, offset: u64, len: usize) -> Completion<IoBuf> {
        self.after(self.transfer(id, offset, len as u64), self.inner.read(id, offset, len))
    }

    fn delete(&self, id: SegmentId) -> Completion<()> {
        self.after(self.movement(id), self.inner.delete(id))
    }

    fn read_superblock(&self) -> Completion<[Option<Vec<u8>>; 2]> {
        self.after(self.movement(SegmentId(0)), self.inner.read_superblock())
    }

    fn swap_superblock(&self, new: &Superblock) -> Completion<()> {
        self.after(self.movement(SegmentId(0)), self.inner.swap_superblock(new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryStore;

    fn slow(spindles: usize) -> Slow {
        let array =
            DiskArray { spindles, seek: Duration::from_millis(10), rpm: 6000, bytes_per_second: 100 << 20 };
        let sleep: Sleep = Arc::new(|_| Box::pin(std::future::ready(())));
        Slow::new(Arc::new(MemoryStore::new()), array, Arc::new(|| Duration::ZERO), sleep)
    }

    fn takes(took: Duration, ms: u64) -> bool {
        took.as_millis() as u64 == ms
    }

    #[test]
    fn sequential_transfers_cost_their_bytes_and_random_ones_also_a_seek_and_half_a_revolution() {
        let store = slow(1);
        let (a, b) = (SegmentId(1), SegmentId(2));
        assert!(takes(store.transfer(a, 0, 512 << 10), 15 + 5));
        assert!(takes(store.transfer(a, 512 << 10, 512 << 10), 15 + 5 + 5));
        assert!(takes(store.transfer(b, 0, 4096), 25 + 15));
        assert!(takes(store.movement(b), 40 + 15));
    }

    #[test]
    fn spindles_work_in_parallel() {
        let store = slow(4);
        for n in 0..4 {
            assert!(takes(store.transfer(SegmentId(1), n << 20, 4096), 15), "stripe {n}");
        }
        assert!(takes(store.transfer(SegmentId(1), 4 << 20, 4096), 30));
        assert!(takes(slow(4).transfer(SegmentId(1), 0, 4 << 20), 25));
    }
}
