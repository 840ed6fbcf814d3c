//! A host that changes the metadata of a shared volume as a cluster file system does: it acquires a lock
//! shared by all hosts, reads a block, changes it, writes it, and releases the lock.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::iscsi::{Address, Command, InitiatorSession, IscsiError, Status};
use crate::rng::Rng;

/// The lock of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lock {
    /// No lock, which is incorrect; for comparison.
    None,
    /// RESERVE and RELEASE of the whole unit, against all other hosts.
    Reserve,
    /// COMPARE AND WRITE on a sector that contains the lock's owner.
    CompareAndWrite,
}

/// The results of a run.
#[derive(Debug, Clone, Copy, Default)]
pub struct Updates {
    /// Number of updates that were made.
    pub done: u64,
    /// Number of attempts that found the lock held.
    pub conflicts: u64,
    /// Duration of the run.
    pub seconds: f64,
}

/// Bytes at the end of a volume that contain the lock and the metadata.
pub const METADATA_BYTES: u64 = 1 << 20;
const SECTOR: u32 = 512;
const BLOCK: u32 = 4096;

/// A host that updates metadata under a lock.
pub struct Host {
    session: InitiatorSession,
    lock: Lock,
    /// Position of the lock, and its content while it is free and while this host holds it.
    lock_at: u64,
    free: [u8; SECTOR as usize],
    held: [u8; SECTOR as usize],
    block_at: u64,
    backoff: Duration,
    rng: Rng,
    updates: Updates,
}

impl Host {
    /// Logs in as initiator number `n`. A lock that is held is tried again after about `backoff`.
    pub fn connect(address: &Address, n: u16, lock: Lock, backoff: Duration) -> Result<Host, IscsiError> {
        let mut session = InitiatorSession::connect(address, n, 1)?;
        let lock_at = session.capacity()?.saturating_sub(METADATA_BYTES);
        let mut held = [0; SECTOR as usize];
        held[..2].copy_from_slice(&n.to_be_bytes());
        Ok(Host {
            session,
            lock,
            lock_at,
            free: [0; SECTOR as usize],
            held,
            block_at: lock_at + u64::from(BLOCK),
            backoff,
            rng: Rng::new(n.into()),
            updates: Updates::default(),
        })
    }

    /// Writes a free lock.
    pub fn format(&mut self) -> Result<(), IscsiError> {
        self.session.must(&Command::write(self.lock_at, SECTOR), &self.free).map(drop)
    }

    /// Makes updates until `is_over`, at most `rate` per second if set.
    pub fn run(mut self, rate: Option<f64>, is_over: impl Fn() -> bool) -> Result<Updates, IscsiError> {
        let began = Instant::now();
        let first = self.counter()?;
        while !is_over() {
            self.update()?;
            self.updates.done += 1;
            if let Some(rate) = rate {
                let due = began + Duration::from_secs_f64(self.updates.done as f64 / rate);
                sleep(due.saturating_duration_since(Instant::now()));
            }
        }
        self.updates.seconds = began.elapsed().as_secs_f64();
        if self.counter()? != first.wrapping_add(self.updates.done) {
            return Err(IscsiError::Protocol("an acknowledged update is missing"));
        }
        let updates = self.updates;
        self.session.leave()?;
        Ok(updates)
    }

    fn update(&mut self) -> Result<(), IscsiError> {
        self.take()?;
        let mut block = self.session.must(&Command::read(self.block_at, BLOCK), &[])?;
        let counter = count(&block)?.wrapping_add(1);
        block[..8].copy_from_slice(&counter.to_be_bytes());
        self.session.must(&Command::write(self.block_at, BLOCK), &block)?;
        match self.lock {
            Lock::None => return Ok(()),
            Lock::Reserve => self.session.must(&Command::release(), &[])?,
            Lock::CompareAndWrite => {
                let swap = [self.held, self.free].concat();
                self.session.must(&Command::compare_and_write(self.lock_at, SECTOR), &swap)?
            }
        };
        Ok(())
    }

    /// Acquires the lock, with retries while another host holds it.
    fn take(&mut self) -> Result<(), IscsiError> {
        loop {
            let status = match self.lock {
                Lock::None => return Ok(()),
                Lock::Reserve => self.session.execute(&Command::reserve(), &[])?.status,
                Lock::CompareAndWrite => {
                    // A host reads the lock first to identify its owner.
                    self.session.must(&Command::read(self.lock_at, SECTOR), &[])?;
                    let swap = [self.free, self.held].concat();
                    self.session.execute(&Command::compare_and_write(self.lock_at, SECTOR), &swap)?.status
                }
            };
            match status {
                Status::Good => return Ok(()),
                status if status == Status::Conflict || status.is_miscompare() => {}
                status => return Err(IscsiError::Failed { what: "taking the lock", status }),
            }
            self.updates.conflicts += 1;
            sleep(self.backoff.mul_f64(0.5 + self.rng.unit()));
        }
    }

    fn counter(&mut self) -> Result<u64, IscsiError> {
        count(&self.session.must(&Command::read(self.block_at, BLOCK), &[])?)
    }
}

fn count(block: &[u8]) -> Result<u64, IscsiError> {
    let first = block.first_chunk().ok_or(IscsiError::Protocol("a block is too short"))?;
    Ok(u64::from_be_bytes(*first))
}
