//! How much data a disk has that its origin does not have, as it was counted last; see [`crate::quota`].

use crate::map::Tree;
use crate::sync::Mutex;
use crate::sync::atomic::AtomicU64;
use crate::sync::atomic::Ordering::Relaxed;

/// The number of a disk that was not counted yet.
const UNKNOWN: u64 = u64::MAX;

/// Number of blocks that a disk uses, and the map from which the next count begins. Some 100 bytes for each
/// disk, however large.
#[derive(Debug)]
pub(crate) struct UsedBlocks {
    blocks: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// A stored map and its number of used blocks; `None`: the map of the origin, which has none.
    counted: Option<(Tree, u64)>,
    /// The map in a newer checkpoint than the one that was counted.
    checkpoint: Option<Tree>,
}

impl UsedBlocks {
    /// Of a disk with this map, which was not counted yet.
    pub fn new(map: &Tree) -> UsedBlocks {
        let checkpoint = map.is_stored().then(|| map.clone());
        let state = Mutex::new(State { counted: None, checkpoint });
        UsedBlocks { blocks: AtomicU64::new(UNKNOWN), state }
    }

    /// The number of blocks; `None` before the first count.
    pub fn get(&self) -> Option<u64> {
        Some(self.blocks.load(Relaxed)).filter(|blocks| *blocks != UNKNOWN)
    }

    /// Records the result of a count of the present map.
    pub fn set(&self, blocks: u64) {
        self.blocks.store(blocks.min(UNKNOWN - 1), Relaxed);
    }

    /// Records that the disk was not counted yet.
    pub fn forget(&self) {
        self.blocks.store(UNKNOWN, Relaxed);
    }

    /// Records that the disk has another origin, and the contents of it.
    pub fn rebase(&self) {
        *self.state.lock() = State::default();
        self.set(0);
    }

    /// Records the map that a checkpoint has stored. Returns whether the disk is to be counted again: its
    /// counted map is of an older checkpoint, whose nodes are about to be freed.
    pub fn checkpointed(&self, map: Tree) -> bool {
        let mut state = self.state.lock();
        let is_new = state.counted.as_ref().is_none_or(|(counted, _)| !counted.is_same(&map));
        state.checkpoint = is_new.then_some(map);
        is_new
    }

    /// The counted map with its number of blocks, and the map of a newer checkpoint.
    pub fn maps(&self) -> (Option<(Tree, u64)>, Option<Tree>) {
        let state = self.state.lock();
        (state.counted.clone(), state.checkpoint.clone())
    }

    /// Replaces the counted map. `None`: the next count begins with the map of the origin.
    pub fn set_counted(&self, counted: Option<(Tree, u64)>) {
        let mut state = self.state.lock();
        if let (Some((map, _)), Some(checkpoint)) = (&counted, &state.checkpoint)
            && map.is_same(checkpoint)
        {
            state.checkpoint = None;
        }
        state.counted = counted;
    }
}
