//! The room that the pool owns: files whose bytes are allocated, and that are removed when the file system
//! refuses room.
//!
//! The free space that a file system reports is not always there: a quota of a btrfs subvolume or of an XFS
//! project, reserved blocks, and other writers are not part of it. So the writes of a deletion (a commit, a
//! checkpoint, the superblock) cannot rely on this free space. When the file system refuses such a write,
//! some of the files of the reserve are removed, and the write is repeated. While the store holds less room
//! than the engine requested, it reports itself as short of room, so that no guest uses the rest.
//!
//! **Pieces.** Each file is one piece of the room. A removal needs no room, also below a quota of btrfs,
//! where the truncation of a file may be refused, and it frees the piece as a whole. The held room is the
//! room that the file system has allocated for the files. So a crash at any moment, a restart, and a pool of
//! an earlier release, which has no such files, need no other state. Each opening requests how much room is
//! to be held.
//!
//! A file system that does not support preallocation, or supports it without allocating anything (ZFS), gets
//! data that it cannot compress. On a thin volume and below a store that finds duplicates, no file can hold
//! room.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use super::errors::is_full;
use super::files::fallocate;
use super::retry::retry_shortage;
use crate::reserve::{OwnedRoom, Purpose};

/// Name of the directory of the files that hold room, in the directory of a pool.
const RESERVE: &str = "reserve";
/// The room is held in about this many pieces, ...
const PIECES: u64 = 32;
/// ... whose sizes are multiples of this number of bytes. The held room is a multiple of it as well.
const UNIT: u64 = 1 << 20;
/// Bytes of data that one call writes to hold more room, on file systems where data has to be written.
const WRITTEN_AT_ONCE: u64 = 8 << 20;

/// The room that the store owns; see the module documentation.
pub(super) struct Reserve {
    /// The directory of the files; `None` if the store is open only for reading.
    dir: Option<PathBuf>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Numbers and bytes of the files, in the order of the numbers.
    pieces: Vec<(u32, u64)>,
    room: OwnedRoom,
    /// Preallocation does not hold room on this file system, so data is written.
    needs_data: bool,
}

impl Reserve {
    /// Opens the reserve in the directory of a pool, with the files that an earlier opening left. Gives up
    /// one piece: the server has to create its sockets before [`Reserve::hold`] is called.
    pub(super) fn open(pool: &Path) -> io::Result<Reserve> {
        let dir = pool.join(RESERVE);
        let mut state = State { pieces: pieces_in(&dir)?, ..State::default() };
        state.room.held = state.pieces.iter().map(|(_, bytes)| bytes).sum();
        state.give_up(&dir, state.room.held.saturating_sub(1));
        Ok(Reserve { dir: Some(dir), state: Mutex::new(state) })
    }

    /// A reserve that holds nothing.
    pub(super) fn none() -> Reserve {
        Reserve { dir: None, state: Mutex::default() }
    }

    /// Makes the files hold `bytes`, or as much of this as there is room for.
    pub(super) fn hold(&self, bytes: u64) {
        let Some(dir) = &self.dir else { return };
        let mut state = self.state.lock();
        state.room.goal = bytes - bytes % UNIT;
        while state.pieces.last().is_some_and(|(_, last)| state.room.held - last >= state.room.goal) {
            let held = state.room.held;
            if !state.give_up(dir, held - 1) {
                break;
            }
        }
        if let Err(e) = state.extend(dir, u64::MAX) {
            let OwnedRoom { goal, held } = state.room;
            tracing::warn!(goal, held, "cannot hold all of the pool's reserve: {e}");
        }
    }

    /// Tries to hold the missing bytes. Returns the room that is owned afterwards.
    pub(super) fn replenish(&self) -> OwnedRoom {
        let mut state = self.state.lock();
        if let Some(dir) = &self.dir
            && !state.room.is_whole()
            && state.extend(dir, WRITTEN_AT_ONCE).is_ok()
            && state.room.is_whole()
        {
            tracing::info!("the reserve of the pool is whole again: {} MiB", state.room.held >> 20);
        }
        state.room
    }

    /// Whether the store should hold room.
    pub(super) fn owns_room(&self) -> bool {
        self.state.lock().room.goal > 0
    }

    /// Executes an operation that needs about `bytes` of room. If the file system refuses room, gives up some
    /// of the held room and repeats the operation, as long as something is left for this purpose.
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

    /// Gives up `bytes`, or all bytes that are left for this purpose; returns false if none are left.
    pub(super) fn give_up(&self, bytes: u64, purpose: Purpose) -> bool {
        let Some(dir) = &self.dir else { return false };
        let mut state = self.state.lock();
        let Some(held) = state.room.without(bytes, purpose, state.piece_bytes()) else { return false };
        if state.room.is_whole() {
            tracing::warn!(
                "the file system refuses room although it may report some as free: the pool uses its reserve, \
                 and writes are refused until the reserve is whole again"
            );
        }
        state.give_up(dir, held)
    }
}

impl State {
    /// Size of a new piece.
    fn piece_bytes(&self) -> u64 {
        (self.room.goal / PIECES).next_multiple_of(UNIT).max(UNIT)
    }

    /// Allocates pieces until the whole goal is held, or more than `data` bytes have been written.
    fn extend(&mut self, dir: &Path, data: u64) -> io::Result<()> {
        let piece = self.piece_bytes();
        let mut written = 0;
        while !self.room.is_whole() && written < data {
            let number = self.pieces.last().map_or(0, |(number, _)| number.saturating_add(1));
            let bytes = piece.min(self.room.goal.saturating_sub(self.room.held)).next_multiple_of(UNIT);
            let path = path_of(dir, number);
            match self.create(dir, &path, bytes) {
                Ok(()) => self.pieces.push((number, bytes)),
                Err(e) => {
                    remove(&path);
                    return Err(e);
                }
            }
            self.room.held += bytes;
            written += if self.needs_data { bytes } else { 0 };
        }
        Ok(())
    }

    /// Creates the file of a piece.
    fn create(&mut self, dir: &Path, path: &Path, bytes: u64) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(dir) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let file = retry_shortage(|| options.open(path))?;
        self.needs_data = self.needs_data || !preallocate(&file, bytes)?;
        if self.needs_data {
            (0..bytes / UNIT).try_for_each(|unit| write_unit(&file, unit * UNIT))?;
            // A file system with delayed allocation refuses room here.
            file.sync_data()?;
        }
        Ok(())
    }

    /// Removes files, the newest first, until at most `held` bytes are held. Returns whether a file was
    /// removed.
    fn give_up(&mut self, dir: &Path, held: u64) -> bool {
        let before = self.room.held;
        while self.room.held > held
            && let Some((number, bytes)) = self.pieces.last().copied()
            && remove(&path_of(dir, number))
        {
            self.pieces.pop();
            self.room.held -= bytes;
        }
        self.room.held < before
    }
}

fn path_of(dir: &Path, number: u32) -> PathBuf {
    dir.join(number.to_string())
}

/// Removes a file if it exists. Returns whether it no longer exists.
fn remove(path: &Path) -> bool {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), "cannot give up room of the reserve: {e}");
            false
        }
        _ => true,
    }
}

/// The files in a directory of pieces, in the order of their numbers.
fn pieces_in(dir: &Path) -> io::Result<Vec<(u32, u64)>> {
    let entries = match retry_shortage(|| std::fs::read_dir(dir)) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut pieces = Vec::new();
    for entry in entries {
        let entry = entry?;
        if let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
            pieces.push((number, entry.metadata()?.blocks() * 512));
        }
    }
    pieces.sort_unstable();
    Ok(pieces)
}

/// Preallocates the room of a file; returns false if the file system does not support it, or allocates
/// nothing.
fn preallocate(file: &File, bytes: u64) -> io::Result<bool> {
    match fallocate(file, 0, bytes) {
        Err(e) if matches!(e.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => Ok(false),
        Err(e) => Err(e),
        Ok(()) => Ok(file.metadata()?.blocks() * 512 >= bytes),
    }
}

/// Writes data that cannot be compressed or deduplicated.
fn write_unit(file: &File, at: u64) -> io::Result<()> {
    let mut seed = [0; 8];
    // SAFETY: the buffer is valid for writing its length.
    let filled = unsafe { libc::getrandom(seed.as_mut_ptr().cast(), seed.len(), 0) };
    if filled != seed.len() as isize {
        return Err(io::Error::last_os_error());
    }
    let mut state = u64::from_ne_bytes(seed) | 1;
    let mut unit = vec![0; UNIT as usize];
    for word in unit.chunks_exact_mut(8) {
        // Xorshift.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_ne_bytes());
    }
    retry_shortage(|| file.write_all_at(&unit, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOAL: u64 = 64 * UNIT;

    fn reserve() -> (tempfile::TempDir, Reserve) {
        let dir = tempfile::tempdir().unwrap();
        let reserve = Reserve::open(dir.path()).unwrap();
        assert_eq!(state_of(&reserve), (0, true), "nothing was requested");
        (dir, reserve)
    }

    /// The bytes that are held after an attempt to hold the goal, and whether the goal is reached.
    fn state_of(reserve: &Reserve) -> (u64, bool) {
        let room = reserve.replenish();
        (room.held, room.is_whole())
    }

    /// The units that the files hold.
    fn held(dir: &tempfile::TempDir) -> u64 {
        pieces_in(&dir.path().join(RESERVE)).unwrap().iter().map(|(_, bytes)| bytes / UNIT).sum()
    }

    #[test]
    fn a_reserve_holds_what_is_requested_and_gives_up_pieces() {
        let (dir, reserve) = reserve();
        reserve.hold(GOAL + 5);
        assert_eq!((held(&dir), state_of(&reserve)), (64, (GOAL, true)));
        assert!(reserve.give_up(1, Purpose::Data) && reserve.give_up(3 * UNIT, Purpose::Data));
        assert_eq!(held(&dir), 58, "whole pieces of two units");
        assert_eq!(state_of(&reserve), (GOAL, true));
        reserve.hold(32 * UNIT);
        assert_eq!((held(&dir), state_of(&reserve)), (32, (32 * UNIT, true)));
        reserve.hold(GOAL);
        assert_eq!((held(&dir), state_of(&reserve)), (64, (GOAL, true)));
    }

    #[test]
    fn an_opening_leaves_room_for_sockets_and_is_short_until_all_is_held() {
        let (dir, reserve) = reserve();
        reserve.hold(GOAL);
        drop(reserve);
        std::fs::remove_file(dir.path().join(RESERVE).join("7")).unwrap();
        // A crash left this part of a piece.
        File::options().write(true).open(dir.path().join(RESERVE).join("3")).unwrap().set_len(UNIT).unwrap();
        let reserve = Reserve::open(dir.path()).unwrap();
        assert_eq!(held(&dir), 64 - 2 - 1 - 2);
        reserve.hold(GOAL);
        assert_eq!((held(&dir), state_of(&reserve).1), (64, true));
    }

    #[test]
    fn an_operation_is_repeated_as_long_as_there_is_something_to_give_up() {
        let (dir, reserve) = reserve();
        reserve.hold(8 * UNIT);
        let full = || io::Error::from_raw_os_error(libc::EDQUOT);
        let mut refusals = 3;
        let done = reserve.lend(1, Purpose::Data, || {
            refusals -= 1;
            if refusals >= 0 { Err(full()) } else { Ok(()) }
        });
        assert!(done.is_ok());
        assert_eq!(held(&dir), 5);
        let mut calls = 0;
        let refused: io::Result<()> = reserve.lend(UNIT, Purpose::Data, || {
            calls += 1;
            Err(full())
        });
        assert_eq!((refused.unwrap_err().raw_os_error(), calls), (Some(libc::EDQUOT), 5));
        assert_eq!(held(&dir), 1, "the rest is for the superblock and for deletions");
        let other: io::Result<()> =
            reserve.lend(1, Purpose::Freeing, || Err(io::Error::from_raw_os_error(libc::EIO)));
        assert_eq!(other.unwrap_err().raw_os_error(), Some(libc::EIO));
        assert_eq!(held(&dir), 1);
    }

    #[test]
    fn data_holds_room_where_preallocation_does_not() {
        let (dir, reserve) = reserve();
        reserve.state.lock().needs_data = true;
        reserve.hold(20 * UNIT);
        assert_eq!(held(&dir), 20);
        let bytes = std::fs::read(dir.path().join(RESERVE).join("0")).unwrap();
        assert!(bytes.chunks(4096).all(|block| block.iter().any(|byte| *byte != 0)));
        assert!(reserve.give_up(12 * UNIT, Purpose::Data));
        assert_eq!(state_of(&reserve), (8 * UNIT + WRITTEN_AT_ONCE, false), "a call is short");
        assert_eq!(state_of(&reserve), (20 * UNIT, true));
    }
}
