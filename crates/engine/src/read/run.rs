//! Runs: blocks that are read with one store read.

use std::sync::Arc;

use forebay_format::{BLOCK, BlockRef, Codec, Form};
use forebay_store::IoBuf;

use super::relocation::Location;
use crate::cache::{Leader, Owner, Rank};
use crate::limits::BATCH_BYTES;
use crate::stored::{unpack, unpack_group};

/// A block that a leader has read: the buffer of its run, and the offset of the block in it.
#[derive(Clone)]
pub(crate) struct Fetched {
    pub run: Arc<IoBuf>,
    /// Offset of the block in `run`.
    pub at: usize,
}

impl Fetched {
    pub fn content(&self) -> &[u8; BLOCK] {
        self.run[self.at..].first_chunk().expect("a run contains whole blocks")
    }
}

/// A block to be read: its reference, the gap that it fills (an index; `None` for read-ahead), its rank and
/// its owner in the read cache, and the leader's obligation to pass it to followers.
pub(crate) struct Wanted {
    pub target: BlockRef,
    pub gap: Option<usize>,
    pub rank: Rank,
    pub owner: Owner,
    pub leader: Leader<Fetched>,
}

/// The blocks of one store read, ordered by location.
pub(crate) struct Run {
    pub wanted: Vec<Wanted>,
    pub locations: Vec<Location>,
}

impl Run {
    pub fn new(wanted: Wanted, location: Location) -> Run {
        Run { wanted: vec![wanted], locations: vec![location] }
    }

    /// Number of blocks of the run.
    pub fn len(&self) -> usize {
        self.wanted.len()
    }

    /// Whether a location can be added to the run: it is behind the last location, with a gap of at most
    /// `gap` bytes, and the read is then at most `most` bytes long.
    pub fn spans(&self, location: &Location, gap: u64, most: u64) -> bool {
        self.locations.first().zip(self.locations.last()).is_some_and(|(first, last)| {
            let is_after = location.offset >= last.offset + last.len as u64 || last.is_followed_by(location);
            let end = location.offset + location.len as u64;
            location.object == last.object
                && is_after
                && location.offset <= last.offset + last.len as u64 + gap
                && end - first.offset <= most
        })
    }

    pub fn push(&mut self, wanted: Wanted, location: Location) {
        self.wanted.push(wanted);
        self.locations.push(location);
    }
}

/// Whether a location can be added to a run of adjacent locations.
pub(crate) fn can_append(run: &[Location], location: &Location) -> bool {
    run.last().is_some_and(|last| last.is_followed_by(location)) && (run.len() + 1) * BLOCK <= BATCH_BYTES
}

/// Unpacks the blocks of a run. Returns their contents, concatenated, and for each block whether it could be
/// unpacked. `stored` are the bytes from the first location to the end of the last location.
pub(crate) fn unpack_run(run: &[Location], stored: IoBuf) -> (IoBuf, Vec<bool>) {
    if stored.len() == run.len() * BLOCK && run.iter().all(|location| location.form == Form::RAW_BLOCK) {
        return (stored, vec![true; run.len()]);
    }
    let mut blocks = IoBuf::with_capacity(run.len() * BLOCK);
    blocks.set_len(run.len() * BLOCK);
    let start = run.first().map_or(0, |location| location.offset);
    let mut group: Option<(u64, Option<Vec<u8>>)> = None;
    let unpack = |(location, out): (&Location, &mut [u8])| {
        let Ok(out) = <&mut [u8; BLOCK]>::try_from(out) else { return false };
        let bytes = &stored[(location.offset - start) as usize..][..location.len];
        if location.form.codec() != Some(Codec::ZstdGroup) {
            return unpack(location.form, bytes, out).is_ok();
        }
        if group.as_ref().is_none_or(|(at, _)| *at != location.offset) {
            group = Some((location.offset, unpack_group(bytes).ok()));
        }
        match &group {
            Some((_, Some(blocks))) => member(blocks, location.form, out),
            _ => false,
        }
    };
    let sound = run.iter().zip(blocks.chunks_exact_mut(BLOCK)).map(unpack).collect();
    (blocks, sound)
}

/// Copies the member with the number in `form` out of an unpacked group; returns false if the group has no
/// such member.
fn member(blocks: &[u8], form: Form, out: &mut [u8; BLOCK]) -> bool {
    let block = blocks.chunks_exact(BLOCK).nth(form.member_number().into());
    block.map(|block| out.copy_from_slice(block)).is_some()
}

/// Adds a block to the last run, or begins a new run.
pub(super) fn push(runs: &mut Vec<Run>, wanted: Wanted, location: Location) {
    match runs.last_mut() {
        Some(run) if can_append(&run.locations, &location) => run.push(wanted, location),
        _ => runs.push(Run::new(wanted, location)),
    }
}
