//! What a block may contain after the server ended: the rule of write caches.
//!
//! A write that was answered may be lost until a flush that was sent later is answered. So a block has its
//! last version, or one that it had since the last flush that covers it; anything else is wrong. Writes are
//! collected in `recent`; a flush turns them into `covered` when it is sent, and forgets those when it is
//! answered. When the connection is lost, all of them become suspects, until a read or a write settles them.

use std::collections::HashMap;

/// Versions that a block can have in place of its last version; `None`: too many to remember.
type Earlier = Option<Vec<u32>>;

/// Maximum number of versions that are remembered for a block.
const REMEMBERED: usize = 32;

/// Writes that were not flushed; see the module documentation.
#[derive(Default)]
pub(super) struct Unflushed {
    recent: HashMap<u32, Earlier>,
    covered: HashMap<u32, Earlier>,
    suspects: HashMap<u32, Earlier>,
}

fn note(map: &mut HashMap<u32, Earlier>, block: u32, versions: &[u32]) {
    let earlier = map.entry(block).or_insert_with(|| Some(Vec::new()));
    if let Some(known) = earlier {
        known.extend_from_slice(versions);
        if known.len() > REMEMBERED {
            *earlier = None;
        }
    }
}

fn merge(into: &mut HashMap<u32, Earlier>, from: HashMap<u32, Earlier>) {
    for (block, earlier) in from {
        match earlier {
            Some(versions) => note(into, block, &versions),
            None => drop(into.insert(block, None)),
        }
    }
}

impl Unflushed {
    /// A write was answered; the block had this version before.
    pub fn written(&mut self, block: u32, before: u32) {
        match self.suspects.remove(&block) {
            Some(Some(versions)) => note(&mut self.recent, block, &versions),
            Some(None) => drop(self.recent.insert(block, None)),
            None => {}
        }
        note(&mut self.recent, block, &[before]);
    }

    /// Records that a flush is sent.
    pub fn flush_sent(&mut self) {
        merge(&mut self.covered, std::mem::take(&mut self.recent));
    }

    /// Records that the flush is answered.
    pub fn flushed(&mut self) {
        self.covered.clear();
    }

    /// The connection was lost, and maybe the server.
    pub fn lost(&mut self) {
        merge(&mut self.suspects, std::mem::take(&mut self.covered));
        merge(&mut self.suspects, std::mem::take(&mut self.recent));
    }

    /// Returns the versions that a block can have in place of its last version; `None` if the last version is
    /// certain.
    pub fn suspect(&self, block: u32) -> Option<&Earlier> {
        self.suspects.get(&block)
    }

    /// The content of a block is known again.
    pub fn settled(&mut self, block: u32) {
        self.suspects.remove(&block);
    }

    /// Returns the blocks whose last version is not certain.
    pub fn suspects(&self) -> impl Iterator<Item = u32> {
        self.suspects.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_writes_that_no_flush_covers_are_suspects() {
        let mut u = Unflushed::default();
        u.written(1, 10);
        u.flush_sent();
        u.written(2, 20);
        u.written(1, 11);
        u.flushed();
        u.lost();
        assert_eq!(u.suspect(1), Some(&Some(vec![11])), "version 10 was flushed over");
        assert_eq!(u.suspect(2), Some(&Some(vec![20])));
        assert_eq!(u.suspect(3), None);
        u.settled(2);
        u.written(1, 12);
        assert_eq!(u.suspects().count(), 0);
        u.lost();
        assert_eq!(u.suspect(1), Some(&Some(vec![11, 12])), "what was suspect remains possible");
        for v in 0..100 {
            u.written(7, v);
        }
        u.lost();
        assert_eq!(u.suspect(7), Some(&None));
    }

    #[test]
    fn a_flush_that_is_not_answered_covers_nothing() {
        let mut u = Unflushed::default();
        u.written(1, 10);
        u.flush_sent();
        u.lost();
        assert_eq!(u.suspect(1), Some(&Some(vec![10])));
    }
}
