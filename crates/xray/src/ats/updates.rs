//! A host that changes the metadata of a shared volume, as a cluster file system does: it takes a lock that all hosts
//! know, reads a block, changes it, writes it, and gives the lock back.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::iscsi::{Address, Command, IscsiError, Session, Status};
use crate::rng::Rng;

/// How a host locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lock {
    /// Not at all, though it ought to.
    None,
    /// RESERVE and RELEASE: the whole unit, for everybody.
    Reserve,
    /// COMPARE AND WRITE on a sector that says who has the lock.
    CompareAndWrite,
}

/// What it came to.
#[derive(Debug, Clone, Copy, Default)]
pub struct Updates {
    /// Updates that were made.
    pub done: u64,
    /// Times that the lock was taken.
    pub conflicts: u64,
    /// How long it went on.
    pub seconds: f64,
}

/// Bytes at the end of a volume in which the lock and the metadata are.
pub const METADATA_BYTES: u64 = 1 << 20;
const SECTOR: u32 = 512;
const BLOCK: u32 = 4096;

/// A host.
pub struct Host {
    session: Session,
    lock: Lock,
    /// Where the lock is, and what it is while nobody has it and while this host does.
    lock_at: u64,
    free: [u8; SECTOR as usize],
    held: [u8; SECTOR as usize],
    block_at: u64,
    backoff: Duration,
    rng: Rng,
    updates: Updates,
}

impl Host {
    /// Logs in as initiator number `n`. A lock that it finds taken it tries again after about `backoff`.
    pub fn connect(address: &Address, n: u16, lock: Lock, backoff: Duration) -> Result<Host, IscsiError> {
        let mut session = Session::connect(address, n, 1)?;
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

    /// Writes a lock that nobody has.
    pub fn format(&mut self) -> Result<(), IscsiError> {
        self.session.must(&Command::write(self.lock_at, SECTOR), &self.free).map(drop)
    }

    /// Makes updates until `halt`, at most `rate` a second where there is one.
    pub fn run(mut self, rate: Option<f64>, halt: &AtomicBool) -> Result<Updates, IscsiError> {
        let began = Instant::now();
        let first = self.counter()?;
        while !halt.load(Relaxed) {
            self.update()?;
            self.updates.done += 1;
            if let Some(rate) = rate {
                let due = began + Duration::from_secs_f64(self.updates.done as f64 / rate);
                sleep(due.saturating_duration_since(Instant::now()));
            }
        }
        self.updates.seconds = began.elapsed().as_secs_f64();
        if self.counter()? != first.wrapping_add(self.updates.done) {
            return Err(IscsiError::Protocol("an update that was answered is not there"));
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

    /// Takes the lock, however often somebody else has it.
    fn take(&mut self) -> Result<(), IscsiError> {
        loop {
            let status = match self.lock {
                Lock::None => return Ok(()),
                Lock::Reserve => self.session.execute(&Command::reserve(), &[])?.status,
                Lock::CompareAndWrite => {
                    // Whoever has it is to be known, if anybody has.
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
    let first = block.first_chunk().ok_or(IscsiError::Protocol("a block that is none"))?;
    Ok(u64::from_be_bytes(*first))
}
