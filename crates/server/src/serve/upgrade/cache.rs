//! A copy of the read cache, in memory that is passed to the successor as a descriptor.
//!
//! The copy is made before the connections are quiesced, and read after the successor has begun to serve, so
//! it adds nothing to the pause. Each block is freed when it was read: at most one copy exists in addition to
//! the cache.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Weak;
use std::time::Duration;

use forebay_engine::{CachedBlock, Pool};

/// Blocks that are read or written at once, about 1 MiB.
const AT_ONCE: usize = 256;
/// Pause after each piece, so that most of a core is left to clients.
const PAUSE: Duration = Duration::from_millis(1);

/// A copy of the blocks in the read cache: [`CachedBlock`] values, one after another.
pub(in crate::serve) struct CacheCopy(OwnedFd);

impl From<OwnedFd> for CacheCopy {
    fn from(fd: OwnedFd) -> CacheCopy {
        CacheCopy(fd)
    }
}

impl CacheCopy {
    /// Copies the read cache of `pool`, at most `most` bytes. Blocks.
    pub fn new(pool: &Pool, most: u64) -> io::Result<CacheCopy> {
        // SAFETY: the name is a valid string; the call accesses no other memory.
        let fd = unsafe { libc::memfd_create(c"forebay read cache".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just opened and has no other owner.
        let mut file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        let mut left = most / CachedBlock::SIZE as u64;
        let mut some = Vec::with_capacity(AT_ONCE * CachedBlock::SIZE);
        let mut done = Ok(());
        pool.copy_read_cache(&mut |block| {
            if left == 0 {
                return false;
            }
            left -= 1;
            some.extend_from_slice(block.as_bytes());
            if some.len() == some.capacity() {
                done = file.write_all(&some);
                some.clear();
            }
            done.is_ok()
        });
        done?;
        file.write_all(&some)?;
        Ok(CacheCopy(file.into()))
    }

    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Fills the read cache of `pool` in the background.
    pub fn fill(self, pool: Weak<Pool>) {
        let filling = std::thread::Builder::new().name("read-cache".into()).spawn(move || {
            match fill(&mut File::from(self.0), &pool) {
                Ok(blocks) => tracing::info!("read cache filled with {blocks} blocks of the former process"),
                Err(e) => tracing::warn!("cannot fill the read cache with that of the former process: {e}"),
            }
        });
        if let Err(e) = filling {
            tracing::warn!("cannot fill the read cache with that of the former process: {e}");
        }
    }
}

/// Adds the blocks of a copy to the read cache, as far as there is room. Returns their number.
fn fill(copy: &mut File, pool: &Weak<Pool>) -> io::Result<u64> {
    let mut some = vec![0; AT_ONCE * CachedBlock::SIZE];
    let (mut blocks, mut at) = (0, 0_i64);
    // The position of the descriptor is shared with the former process, which left it at the end.
    io::Seek::rewind(copy)?;
    loop {
        let mut len = 0;
        while len < some.len() {
            match copy.read(&mut some[len..])? {
                0 => break,
                n => len += n,
            }
        }
        let Some(pool) = pool.upgrade().filter(|_| len > 0) else { return Ok(blocks) };
        for block in some[..len].as_chunks::<{ CachedBlock::SIZE }>().0 {
            blocks += u64::from(pool.add_to_read_cache(block));
        }
        drop(pool);
        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: the call accesses no memory. A failure only keeps memory until the copy is closed.
        unsafe { libc::fallocate(copy.as_raw_fd(), mode, at, len as i64) };
        at += len as i64;
        std::thread::sleep(PAUSE);
    }
}
