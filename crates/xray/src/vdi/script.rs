//! The operations of one desktop in a phase.
//!
//! The numbers of reads and writes are exactly the published ones, in a random order; they arrive as a
//! Poisson process. All desktops make the same reads in nearly the same order and write nearly the same
//! content: the content of the n-th block of files is the same for all of them (`mix`), its position differs.

use std::collections::VecDeque;
use std::time::Duration;

use super::content::Origin;
use super::figures::{GuestRow, PROFILE_BYTES, PROFILE_FILES, Phase};
use super::shape::{CELL, Piece, Shape, read_ops, write_size};
use crate::rng::Rng;

/// Writes to positions that are rewritten repeatedly, in percent.
const HOT: u64 = 25;
/// Writes that rewrite a file of this desktop, in percent, in steady phases.
const REWRITE: u64 = 30;
/// Like [`REWRITE`], for the phases before.
const REWRITE_EARLY: u64 = 10;
/// New writes that start at another position, in percent; the others continue where the last one ended.
const JUMP: u64 = 40;
/// New files that replace a file of the image, in percent.
const OVER_DATA: u64 = 20;
/// Reads of files that the desktop wrote, in percent, in steady phases.
const READ_OWN: u64 = 10;
/// Reads of the image at any position, in percent, in steady phases.
const READ_ANYWHERE: u64 = 1;
/// How far reads can deviate from the image's order, in reads.
const WINDOW: usize = 8;
/// Reads that deviate from the image's order, in percent.
const OUT_OF_ORDER: u64 = 20;
/// Positions of own files that are remembered.
const REMEMBERED: usize = 4096;
/// Largest write of a file that is copied.
const COPY_BLOCKS: u32 = 16;

/// One operation of a desktop.
#[derive(Debug, Clone, PartialEq)]
pub struct Op {
    /// When the operation arrives, relative to the start of the phase.
    pub due: Duration,
    /// The blocks that the operation reads or writes.
    pub piece: Piece,
    /// Content of a write, by block; empty for a read.
    pub write: Vec<Origin>,
}

/// The state of a desktop that phases share.
#[derive(Debug)]
pub struct Memory {
    desktop: u32,
    /// Each day has other positions and content: data stored or cached on the previous day does not help,
    /// except for the image blocks that all desktops read.
    day: u64,
    rng: Rng,
    /// End of the last new file.
    end: Piece,
    /// Pieces of own files, for reads and rewrites.
    own: Vec<Piece>,
    /// Number of blocks written that no other desktop writes.
    own_blocks: u64,
}

impl Memory {
    /// The state of a desktop at the start of a day, when it equals its image.
    pub fn new(desktop: u32, day: u32) -> Memory {
        let rng = Rng::new(0xde5c << 48 | u64::from(day) << 32 | u64::from(desktop));
        Memory {
            desktop,
            day: day.into(),
            rng,
            end: Piece { block: 0, blocks: 0 },
            own: Vec::new(),
            own_blocks: 0,
        }
    }

    /// Allocates a position for a write of a new file.
    fn new_piece(&mut self, shape: &Shape, blocks: u32) -> Piece {
        let next = self.end.block + self.end.blocks;
        let crosses = next % CELL + blocks > CELL || next.is_multiple_of(CELL);
        let block = if crosses || self.rng.below(100) < JUMP {
            let over = shape.free.is_empty() || self.rng.below(100) < OVER_DATA;
            let cells = if over { &shape.data } else { &shape.free };
            let cell = cells[self.rng.below(cells.len() as u64) as usize];
            cell * CELL + self.rng.below(u64::from(CELL - blocks)) as u32
        } else {
            next
        };
        self.end = Piece { block, blocks };
        if self.own.len() < REMEMBERED {
            self.own.push(self.end);
        } else {
            let at = self.rng.below(REMEMBERED as u64) as usize;
            self.own[at] = self.end;
        }
        self.end
    }

    /// Content of a block that no other desktop writes.
    fn own_content(&mut self) -> Origin {
        self.own_blocks += 1;
        Origin::Own(self.desktop, self.day << 32 | self.own_blocks)
    }

    fn own_piece(&mut self) -> Option<Piece> {
        let n = self.own.len() as u64;
        (n > 0).then(|| self.own[self.rng.below(n) as usize])
    }
}

/// The remaining operations of a phase.
pub struct Script<'a> {
    shape: &'a Shape,
    phase: Phase,
    reads_left: u32,
    writes_left: u32,
    /// Remaining files of a profile to be copied, in writes.
    copies: VecDeque<u32>,
    /// The next reads of the image to choose from, and the position in the image's order.
    window: VecDeque<Piece>,
    walk: usize,
    new_blocks: u64,
    now: f64,
    gap: f64,
}

impl<'a> Script<'a> {
    /// The operations of `phase`, `speedup` times as fast as published.
    pub fn new(shape: &'a Shape, phase: Phase, row: &GuestRow, speedup: f64, scale: u32) -> Script<'a> {
        let reads = read_ops(row);
        let copies = if phase == Phase::Profile { copies(scale) } else { VecDeque::new() };
        let ops = row.ops as usize + copies.len();
        Script {
            shape,
            phase,
            reads_left: reads,
            writes_left: row.ops - reads + copies.len() as u32,
            copies,
            window: VecDeque::new(),
            walk: 0,
            new_blocks: 0,
            now: 0.0,
            gap: row.seconds / speedup / ops.max(1) as f64,
        }
    }

    /// Number of remaining operations of a guest.
    pub fn left(&self) -> u32 {
        self.reads_left + self.writes_left
    }

    /// The next operation of the desktop with this state.
    pub fn next(&mut self, memory: &mut Memory) -> Option<Op> {
        let left = self.left();
        if left == 0 {
            return None;
        }
        self.now -= memory.rng.unit().ln() * self.gap;
        let read = memory.rng.below(left.into()) < self.reads_left.into();
        let (piece, write) = if read {
            self.reads_left -= 1;
            (self.read(memory), Vec::new())
        } else {
            self.writes_left -= 1;
            self.write(memory)
        };
        Some(Op { due: Duration::from_secs_f64(self.now), piece, write })
    }

    fn read(&mut self, memory: &mut Memory) -> Piece {
        if self.phase.is_steady() {
            let dice = memory.rng.below(100);
            if dice < READ_ANYWHERE {
                return self.shape.anywhere(&mut memory.rng);
            }
            if dice < READ_ANYWHERE + READ_OWN
                && let Some(own) = memory.own_piece()
            {
                return own;
            }
        }
        let all = self.shape.reads(self.phase);
        while self.window.len() < WINDOW {
            self.window.push_back(all[self.walk % all.len()]);
            self.walk += 1;
        }
        let at =
            if memory.rng.below(100) < OUT_OF_ORDER { memory.rng.below(WINDOW as u64) as usize } else { 0 };
        self.window.remove(at).unwrap_or(all[0])
    }

    fn write(&mut self, memory: &mut Memory) -> (Piece, Vec<Origin>) {
        // While a profile is copied, the writes of its files are mixed with those of the logon.
        let left = u64::from(self.writes_left) + 1;
        if memory.rng.below(left) < self.copies.len() as u64
            && let Some(blocks) = self.copies.pop_front()
        {
            if blocks == 0 {
                return self.hot(memory);
            }
            return self.new_file(memory, blocks);
        }
        let rewrite = if self.phase.is_steady() { REWRITE } else { REWRITE_EARLY };
        let dice = memory.rng.below(100);
        if dice < HOT {
            return self.hot(memory);
        }
        if dice < HOT + rewrite
            && let Some(piece) = memory.own_piece()
        {
            let write = self.content(memory, piece.blocks);
            return (piece, write);
        }
        let blocks = write_size(&mut memory.rng);
        self.new_file(memory, blocks)
    }

    fn hot(&mut self, memory: &mut Memory) -> (Piece, Vec<Origin>) {
        let piece = self.shape.hot[memory.rng.below(self.shape.hot.len() as u64) as usize];
        (piece, (0..piece.blocks).map(|_| memory.own_content()).collect())
    }

    fn new_file(&mut self, memory: &mut Memory, blocks: u32) -> (Piece, Vec<Origin>) {
        let piece = memory.new_piece(self.shape, blocks);
        let write = self.content(memory, blocks);
        (piece, write)
    }

    /// Content of a write to files: each block is all zero, equal to a block of the image, common to all
    /// desktops of the family, or unique to this desktop. Desktops of a family share 67 to 80 % of their
    /// writes.
    fn content(&mut self, memory: &mut Memory, blocks: u32) -> Vec<Origin> {
        let one = |_| {
            let number = self.new_blocks;
            self.new_blocks += 1;
            let mut rng = common(self.phase, number);
            match rng.below(100) {
                0..4 => Origin::Zero,
                4..18 => {
                    let data = &self.shape.data;
                    let cell = data[rng.below(data.len() as u64) as usize];
                    Origin::Image(cell * CELL + rng.below(CELL.into()) as u32)
                }
                18..75 => Origin::Family(memory.day << 48 | (self.phase as u64) << 40 | number),
                _ => memory.own_content(),
            }
        };
        (0..blocks).map(one).collect()
    }
}

/// The random numbers for a written block, which are the same for all desktops.
fn common(phase: Phase, number: u64) -> Rng {
    Rng::new((phase as u64) << 48 ^ number << 8 ^ 0xfa)
}

/// The writes that copy a profile, in blocks: the content of each file, with a typical distribution of sizes,
/// and two writes of the file system (0), for the file's record and its directory.
fn copies(scale: u32) -> VecDeque<u32> {
    let mut rng = Rng::new(260);
    let files = PROFILE_FILES / scale;
    let blocks = (PROFILE_BYTES / 4096 / u64::from(scale)) as f64;
    let mean = blocks / f64::from(files.max(1));
    let mut writes = VecDeque::new();
    let (mut done, mut wanted) = (0u32, 0f64);
    for _ in 0..files {
        // An exponential distribution; rounding errors carry over so that the sum is exact. The least size is
        // a block.
        wanted -= mean * rng.unit().ln();
        let mut left = (wanted as u32).saturating_sub(done).max(1);
        done += left;
        while left > 0 {
            let n = left.min(COPY_BLOCKS);
            writes.push_back(n);
            left -= n;
        }
        writes.extend([0, 0]);
    }
    writes
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::super::figures::guest;
    use super::super::shape::scaled;
    use super::*;

    fn ops(shape: &Shape, desktop: u32, fleet: u32, phases: &[Phase]) -> Vec<Op> {
        ops_of(shape, Memory::new(desktop, 1), fleet, phases)
    }

    fn ops_of(shape: &Shape, mut memory: Memory, fleet: u32, phases: &[Phase]) -> Vec<Op> {
        let day = phases.iter().flat_map(|phase| {
            let mut script = Script::new(shape, *phase, &guest(*phase, fleet), 1.0, 1);
            std::iter::from_fn(|| script.next(&mut memory)).collect::<Vec<_>>()
        });
        day.collect()
    }

    fn shape() -> Shape {
        Shape::new(12 << 30, 3 << 30, 1)
    }

    fn count(ops: &[Op]) -> (usize, usize) {
        let reads = ops.iter().filter(|op| op.write.is_empty()).count();
        (reads, ops.len() - reads)
    }

    #[test]
    fn each_phase_has_the_published_operations_mix_and_duration() {
        let shape = shape();
        for (phase, fleet, total, percent) in [
            (Phase::Boot, 1, 24_921, 86),
            (Phase::Boot, 150, 25_272, 86),
            (Phase::Logon, 1, 4_390, 59),
            (Phase::Logon, 11, 4_249, 48),
            (Phase::Steady, 1, 22_713, 35),
            (Phase::Steady, 11, 20_009, 27),
        ] {
            let ops = ops(&shape, 3, fleet, &[phase]);
            let (reads, _) = count(&ops);
            assert_eq!(ops.len(), total);
            assert_eq!(reads, total * percent / 100);
            let seconds = guest(phase, fleet).seconds;
            let last = ops.last().map_or(0.0, |op| op.due.as_secs_f64());
            assert!((0.9..1.1).contains(&(last / seconds)), "{last} of {seconds} s");
            for op in &ops {
                assert!(op.piece.block + op.piece.blocks <= shape.blocks);
                assert!(op.write.is_empty() || op.write.len() == op.piece.blocks as usize);
            }
        }
    }

    #[test]
    fn scripts_are_deterministic_and_similar_between_desktops() {
        let shape = shape();
        let [first, again, other] = [1, 1, 2].map(|n| ops(&shape, n, 11, &[Phase::Boot]));
        assert_eq!(first, again);
        assert_ne!(first, other);
        let read = |ops: &[Op]| {
            let reads = ops.iter().filter(|op| op.write.is_empty());
            reads.map(|op| (op.piece.block, op.piece.blocks)).collect::<HashSet<_>>()
        };
        let (a, b) = (read(&first), read(&other));
        assert!(a.intersection(&b).count() * 100 >= a.len() * 99);
    }

    #[test]
    fn each_day_writes_new_content() {
        let shape = shape();
        let new = |day| {
            let ops = ops_of(&shape, Memory::new(1, day), 11, &[Phase::Boot]);
            let new = |o: &Origin| matches!(o, Origin::Family(_) | Origin::Own(..));
            ops.into_iter()
                .flat_map(|op| op.write)
                .filter(new)
                .map(|o| format!("{o:?}"))
                .collect::<HashSet<_>>()
        };
        assert!(new(1).is_disjoint(&new(2)));
    }

    #[test]
    fn desktops_of_a_family_share_most_of_their_content() {
        let shape = shape();
        let day = [Phase::Boot, Phase::Logon, Phase::Steady];
        let mut a = HashMap::new();
        for op in ops(&shape, 1, 11, &day) {
            a.extend((op.piece.block..).zip(op.write));
        }
        let written = ops(&shape, 2, 11, &day).into_iter().flat_map(|op| op.write);
        let known: HashSet<String> = written.map(|o| format!("{o:?}")).collect();
        let shared = |o: &&Origin| matches!(o, Origin::Image(_)) || known.contains(&format!("{o:?}"));
        let percent = a.values().filter(shared).count() * 100 / a.len();
        assert!((67..=80).contains(&percent), "{percent} %");
        // The written data fits into the write cache of 256 MiB, as in the published test with few
        // exceptions.
        let mib = (a.len() * 4096) >> 20;
        assert!((60..200).contains(&mib), "{mib} MiB");
    }

    #[test]
    fn a_part_of_the_blocks_is_rewritten_within_ten_seconds() {
        let shape = shape();
        let mut last: HashMap<u32, Duration> = HashMap::new();
        let (mut all, mut soon) = (0, 0);
        for op in ops(&shape, 1, 11, &[Phase::Steady]).iter().filter(|op| !op.write.is_empty()) {
            for block in op.piece.block..op.piece.block + op.piece.blocks {
                let before = last.insert(block, op.due);
                all += 1;
                soon += usize::from(before.is_some_and(|at| op.due - at < Duration::from_secs(10)));
            }
        }
        let percent = 100.0 * soon as f64 / f64::from(all);
        assert!((6.0..10.0).contains(&percent), "{percent} %");
    }

    #[test]
    fn a_profile_is_copied_file_by_file() {
        let writes = copies(1);
        let bytes: u64 = writes.iter().map(|blocks| u64::from(*blocks) * 4096).sum();
        assert!((250_000_000..275_000_000).contains(&bytes), "{bytes}");
        let records = writes.iter().filter(|blocks| **blocks == 0).count();
        assert_eq!(records as u32, 2 * PROFILE_FILES);
        let ops = ops(&shape(), 1, 11, &[Phase::Profile]);
        assert_eq!(ops.len(), 4_249 + writes.len());
        assert_eq!(count(&ops).0, 2_039);
        let small = scaled(guest(Phase::Profile, 11), 100);
        let script = Script::new(&shape(), Phase::Profile, &small, 1.0, 100).left();
        assert!((200..600).contains(&script), "{script}");
    }
}
