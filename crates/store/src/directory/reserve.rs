//! The room that the pool owns: a file whose bytes are allocated, and given up when the file system refuses
//! room.
//!
//! The free space that a file system reports is not always there: a quota of a btrfs subvolume or of an XFS
//! project, reserved blocks, and other writers are not part of it. So what a deletion needs (a commit, a
//! checkpoint, the superblock) cannot rely on it. When the file system refuses one of these, the file gives
//! up some of its bytes, and the operation is repeated. From then on the store reports itself as short of
//! room, so that no guest uses the rest, until the file is whole again.
//!
//! **State.** The length of the file is the room that is to be held. Its allocated bytes, always the first
//! bytes of the file, are the room that is held. A crash at any step leaves a smaller file or fewer allocated
//! bytes, which the next opening reads from the file. A pool of an earlier release gets the file at its next
//! opening, as large as there is room for.
//!
//! **Pieces.** The file is allocated in small pieces, because btrfs frees an extent only as a whole. A file
//! system that does not support preallocation, or supports it without allocating anything (ZFS), gets data
//! that it cannot compress. On a thin volume and below a store that finds duplicates, no file can hold room.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use super::errors::is_full;
use super::files::fallocate;
use super::retry::retry_shortage;
use crate::reserve::{OwnedRoom, Purpose};

/// Name of the file in the directory of a pool.
const RESERVE: &str = "reserve";
/// Bytes that are allocated at once.
const PIECE: u64 = 1 << 20;
/// Smallest part of the wanted room with which the file is begun, if there is not room for all.
const LEAST_PART: u64 = 16;
/// Bytes of data that one call writes to make the file whole again, where data has to be written.
const WRITTEN_AT_ONCE: u64 = 8 << 20;

/// See the module documentation.
pub(super) struct Reserve {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    file: Option<File>,
    room: OwnedRoom,
    /// Preallocation holds no room here, so data is written.
    needs_data: bool,
}

impl Reserve {
    /// The reserve in a directory, with what an earlier opening left of it.
    pub(super) fn open(dir: &Path) -> io::Result<Reserve> {
        let reserve = Reserve { path: dir.join(RESERVE), state: Mutex::default() };
        let found = retry_shortage(|| OpenOptions::new().read(true).write(true).open(&reserve.path));
        match found {
            Ok(file) => {
                let metadata = file.metadata()?;
                let goal = whole_pieces(metadata.len());
                let room = OwnedRoom { goal, held: whole_pieces(allocated(&file)?).min(goal) };
                *reserve.state.lock() = State { file: Some(file), room, needs_data: false };
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
        Ok(reserve)
    }

    /// No reserve.
    pub(super) fn none() -> Reserve {
        Reserve { path: PathBuf::new(), state: Mutex::default() }
    }

    /// Has the file hold `bytes`, or as much of them as there is room for. What was given up before has to be
    /// held again first.
    pub(super) fn hold(&self, bytes: u64) {
        let wanted = whole_pieces(bytes);
        let mut state = self.state.lock();
        if !state.is_whole_again(&self.path, u64::MAX) || state.room.goal == wanted {
            return;
        }
        if state.room.goal > wanted {
            state.shrink(wanted);
            return;
        }
        let least = (wanted / LEAST_PART).max(state.room.goal + PIECE);
        let parts = std::iter::successors(Some(wanted), |part| Some(whole_pieces(part / 2)));
        for goal in parts.take_while(|part| *part >= least) {
            match state.extend(&self.path, goal, u64::MAX) {
                Ok(()) => {
                    state.room.goal = goal;
                    return;
                }
                Err(e) => {
                    tracing::info!(bytes = goal, "cannot hold this much room for deletions: {e}");
                    let before = state.room.goal;
                    state.shrink(before);
                }
            }
        }
    }

    /// Tries to hold again what was given up. Returns the bytes that are held, and whether these are all.
    pub(super) fn replenish(&self) -> (u64, bool) {
        let mut state = self.state.lock();
        let was_whole = state.room.is_whole();
        let is_whole = state.is_whole_again(&self.path, WRITTEN_AT_ONCE);
        if is_whole && !was_whole {
            tracing::info!(bytes = state.room.held, "the reserve of the pool is whole again");
        }
        (state.room.held, is_whole)
    }

    /// Executes an operation that needs about `bytes` of room. If the file system refuses room, gives up some
    /// and repeats the operation, as long as there is something left for this purpose.
    pub(super) fn lend<T>(
        &self,
        bytes: u64,
        purpose: Purpose,
        mut operation: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        loop {
            match operation() {
                Err(e) if is_full(&e) && self.give_up(bytes, purpose) => {}
                other => return other,
            }
        }
    }

    /// Gives up `bytes`, or what is left for this purpose; false if that is nothing.
    pub(super) fn give_up(&self, bytes: u64, purpose: Purpose) -> bool {
        let mut state = self.state.lock();
        let Some(held) = state.room.without(bytes, purpose, PIECE) else { return false };
        if state.room.is_whole() {
            tracing::warn!(
                "the file system refuses room although it may report some as free: the pool uses its reserve, \
                 and writes are refused until the reserve is whole again"
            );
        }
        state.give_up(&self.path, held)
    }
}

impl State {
    /// Whether everything is held, after an attempt if it is not. Writes at most `data` bytes.
    fn is_whole_again(&mut self, path: &Path, data: u64) -> bool {
        let OwnedRoom { goal, held } = self.room;
        if held < goal && self.extend(path, goal, data).is_err() {
            // Also what was allocated behind the last whole piece. What is missing is tried piece by piece.
            let held = self.room.held;
            self.truncate(held);
        }
        self.room.is_whole()
    }

    /// Allocates pieces up to `goal`, or less if more than `data` bytes have to be written.
    fn extend(&mut self, path: &Path, goal: u64, data: u64) -> io::Result<()> {
        let State { file, room, needs_data } = self;
        let file = match file {
            Some(file) => file,
            None => file.insert(create(path)?),
        };
        let mut written = 0;
        while room.held < goal && written < data {
            *needs_data = *needs_data || !preallocate_piece(file, room.held)?;
            if *needs_data {
                write_piece(file, room.held)?;
                written += PIECE;
            }
            room.held += PIECE;
        }
        // A file system that allocates late refuses room here.
        if written > 0 { file.sync_data() } else { Ok(()) }
    }

    /// Holds no more than `bytes`, and is to hold no more.
    fn shrink(&mut self, bytes: u64) {
        self.room.goal = self.room.goal.min(bytes);
        let held = self.room.held.min(bytes);
        self.truncate(held);
    }

    /// Frees all bytes from `held` on; the length of the file remains what is to be held. Returns whether the
    /// bytes are free.
    fn truncate(&mut self, held: u64) -> bool {
        let Some(file) = &self.file else { return false };
        let truncated = retry_shortage(|| file.set_len(held));
        if let Err(e) = &truncated {
            tracing::warn!("cannot give up room of the reserve: {e}");
            return false;
        }
        self.room.held = self.room.held.min(held);
        if let Err(e) = retry_shortage(|| file.set_len(self.room.goal)) {
            tracing::debug!("cannot restore the length of the reserve: {e}");
        }
        true
    }

    /// Gives up everything from `held` on. A file that cannot be truncated is removed: a file system may need
    /// less room for that.
    fn give_up(&mut self, path: &Path, held: u64) -> bool {
        if self.truncate(held) {
            return true;
        }
        let removed = std::fs::remove_file(path).is_ok();
        if removed {
            self.file = None;
            self.room.held = 0;
        }
        removed
    }
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

fn whole_pieces(bytes: u64) -> u64 {
    bytes - bytes % PIECE
}

/// The bytes of a file for which the file system has allocated room.
fn allocated(file: &File) -> io::Result<u64> {
    Ok(file.metadata()?.blocks() * 512)
}

/// Preallocates a piece; false if the file system does not support it, or allocates nothing for it.
fn preallocate_piece(file: &File, at: u64) -> io::Result<bool> {
    match fallocate(file, at, PIECE) {
        Err(e) if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => Ok(false),
        Err(e) => Err(e),
        Ok(()) => Ok(allocated(file)? >= at + PIECE),
    }
}

/// Writes a piece of data that cannot be compressed, and that no other piece equals.
fn write_piece(file: &File, at: u64) -> io::Result<()> {
    let mut seed = [0; 8];
    // SAFETY: the buffer is valid for writing its length.
    let filled = unsafe { libc::getrandom(seed.as_mut_ptr().cast(), seed.len(), 0) };
    if filled != seed.len() as isize {
        return Err(io::Error::last_os_error());
    }
    let mut state = u64::from_ne_bytes(seed) | 1;
    let mut piece = vec![0; PIECE as usize];
    for word in piece.chunks_exact_mut(8) {
        // Xorshift.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_ne_bytes());
    }
    retry_shortage(|| file.write_all_at(&piece, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state_of(dir: &Path) -> (u64, u64, u64) {
        let metadata = std::fs::metadata(dir.join(RESERVE)).unwrap();
        let found = Reserve::open(dir).unwrap().state.lock().room;
        (metadata.len() / PIECE, found.goal / PIECE, found.held / PIECE)
    }

    #[test]
    fn a_reserve_keeps_its_state_when_it_is_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let reserve = Reserve::open(dir.path()).unwrap();
        assert_eq!(reserve.replenish(), (0, true), "without a file nothing is missing");
        reserve.hold(8 * PIECE + 5);
        assert_eq!(state_of(dir.path()), (8, 8, 8));
        assert!(reserve.give_up(1, Purpose::Data) && reserve.give_up(2 * PIECE, Purpose::Data));
        assert_eq!(state_of(dir.path()), (8, 8, 5));
        assert_eq!(reserve.replenish(), (8 * PIECE, true));
        assert_eq!(state_of(dir.path()), (8, 8, 8));
        reserve.hold(4 * PIECE);
        assert_eq!(state_of(dir.path()), (4, 4, 4));
        reserve.hold(16 * PIECE);
        assert_eq!(state_of(dir.path()), (16, 16, 16));
    }

    #[test]
    fn an_operation_is_repeated_as_long_as_there_is_something_to_give_up() {
        let dir = tempfile::tempdir().unwrap();
        let reserve = Reserve::open(dir.path()).unwrap();
        reserve.hold(8 * PIECE);
        let full = || io::Error::from_raw_os_error(libc::EDQUOT);
        let mut refusals = 3;
        let done = reserve.lend(1, Purpose::Data, || {
            refusals -= 1;
            if refusals >= 0 { Err(full()) } else { Ok(()) }
        });
        assert!(done.is_ok());
        assert_eq!(state_of(dir.path()).2, 5);
        let mut calls = 0;
        let refused: io::Result<()> = reserve.lend(PIECE, Purpose::Data, || {
            calls += 1;
            Err(full())
        });
        assert_eq!((refused.unwrap_err().raw_os_error(), calls), (Some(libc::EDQUOT), 4));
        assert_eq!(state_of(dir.path()).2, 2, "the rest is for the superblock and for deletions");
        let other: io::Result<()> =
            reserve.lend(1, Purpose::Freeing, || Err(io::Error::from_raw_os_error(libc::EIO)));
        assert_eq!(other.unwrap_err().raw_os_error(), Some(libc::EIO));
        assert_eq!(state_of(dir.path()).2, 2);
    }

    #[test]
    fn data_holds_room_where_preallocation_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let reserve = Reserve::open(dir.path()).unwrap();
        reserve.state.lock().needs_data = true;
        reserve.hold(20 * PIECE);
        assert_eq!(state_of(dir.path()), (20, 20, 20));
        let bytes = std::fs::read(dir.path().join(RESERVE)).unwrap();
        assert!(bytes.chunks(4096).all(|block| block.iter().any(|byte| *byte != 0)));
        assert!(reserve.give_up(12 * PIECE, Purpose::Data));
        assert_eq!(reserve.replenish(), (8 * PIECE + WRITTEN_AT_ONCE, false), "a call is short");
        assert_eq!(reserve.replenish(), (20 * PIECE, true));
    }
}
