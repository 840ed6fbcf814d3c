//! Positions and sizes of a desktop's reads and writes.
//!
//! An image is divided into cells of 1 MiB. Some contain data, the others are free. A phase reads a set of
//! data cells: always the same set, in the image's order; a visit to a cell reads several adjacent pieces of
//! it, as a program does with its files. Sizes are the published sizes of boots and logons (Dell's test of
//! 1,270 desktops: reads of 18 to 36 KiB on average, writes of 5 to 10).

use super::content::BLOCK;
use super::figures::{GuestRow, Phase, guest};
use crate::files::shuffle;
use crate::rng::Rng;

/// Blocks of a cell.
pub const CELL: u32 = 256;
/// Blocks of a read and its weight: 30 KiB on average.
const READS: [(u32, u64); 5] = [(1, 22), (2, 12), (4, 16), (8, 20), (16, 30)];
/// Blocks of a write and its weight: 9 KiB on average.
const WRITES: [(u32, u64); 5] = [(1, 60), (2, 18), (4, 14), (8, 5), (16, 3)];
/// Mean number of reads per visit to a cell.
const VISIT: u64 = 6;
/// Share of its cells that a phase reads, in percent.
const TOUCHED: u32 = 60;
/// Share of a phase's reads of the image that repeat an earlier read, in percent.
const AGAIN: u64 = 10;
/// Number of positions that are rewritten repeatedly: journals, registry hives, logs.
const HOT: usize = 36;

/// A number of consecutive blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// The first block of the piece.
    pub block: u32,
    /// Number of blocks in the piece.
    pub blocks: u32,
}

impl Piece {
    /// Offset of the piece in bytes.
    pub fn offset(self) -> u64 {
        u64::from(self.block) * BLOCK as u64
    }

    /// Length of the piece in bytes.
    pub fn len(self) -> u32 {
        self.blocks * BLOCK as u32
    }
}

/// The image, and the reads of each phase.
pub struct Shape {
    /// Blocks of the image.
    pub blocks: u32,
    /// Cells with data, ascending.
    pub data: Vec<u32>,
    /// Cells without data.
    pub free: Vec<u32>,
    /// Positions that are rewritten repeatedly.
    pub hot: Vec<Piece>,
    boot: Vec<Piece>,
    logon: Vec<Piece>,
    steady: Vec<Piece>,
}

impl Shape {
    /// An image of `bytes` of which `data_bytes` contain data, at least the bytes that the phases read;
    /// `scale` divides the number of operations.
    pub fn new(bytes: u64, data_bytes: u64, scale: u32) -> Shape {
        let mut rng = Rng::new(12);
        let cells = (bytes >> 20) as u32;
        let mut order: Vec<u32> = (0..cells).collect();
        shuffle(&mut order, 7);
        let mut reads = |phase: Phase, taken: &mut usize| {
            // The larger of the two published rows, so that there are enough reads for both.
            let n = [1, 2].map(|n| read_ops(&scaled(guest(phase, n), scale))).into_iter().max().unwrap_or(0);
            let sizes: Vec<u32> = (0..n).map(|_| size(&READS, &mut rng)).collect();
            // The shape has a reserve: a visit that does not fit uses another cell.
            let cells = sizes.iter().sum::<u32>() * 100 / (CELL * TOUCHED) + 4;
            let from = *taken;
            *taken = (from + cells as usize).min(order.len());
            walk(&order[from..*taken], &sizes, &mut rng)
        };
        let mut taken = 0;
        let boot = reads(Phase::Boot, &mut taken);
        let logon = reads(Phase::Logon, &mut taken);
        let steady = reads(Phase::Steady, &mut taken);
        let with_data = taken.max((data_bytes >> 20) as usize).min(order.len());
        let (mut data, free) = (order[..with_data].to_vec(), order[with_data..].to_vec());
        data.sort_unstable();
        let hot = (0..HOT).map(|_| {
            let cell = data[rng.below(data.len() as u64) as usize];
            let blocks = 1 + rng.below(4) as u32;
            Piece { block: cell * CELL + rng.below(u64::from(CELL - blocks)) as u32, blocks }
        });
        let hot = hot.collect();
        Shape { blocks: cells * CELL, data, free, hot, boot, logon, steady }
    }

    /// The reads of the image in a phase, in order.
    pub fn reads(&self, phase: Phase) -> &[Piece] {
        match phase {
            Phase::Boot => &self.boot,
            Phase::Logon | Phase::Profile => &self.logon,
            Phase::Steady | Phase::ProfileSteady => &self.steady,
        }
    }

    /// Whether the image has data at a block.
    pub fn has_data(&self, block: u32) -> bool {
        self.data.binary_search(&(block / CELL)).is_ok()
    }

    /// A piece of the image's data at a random position.
    pub fn anywhere(&self, rng: &mut Rng) -> Piece {
        let cell = self.data[rng.below(self.data.len() as u64) as usize];
        let blocks = size(&READS, rng);
        Piece { block: cell * CELL + rng.below(u64::from(CELL - blocks)) as u32, blocks }
    }

    /// Distinct bytes of the image that a phase reads.
    pub fn touched_bytes(&self, phase: Phase) -> u64 {
        let mut seen = vec![false; self.blocks as usize];
        for piece in self.reads(phase) {
            seen[piece.block as usize..][..piece.blocks as usize].fill(true);
        }
        (seen.iter().filter(|s| **s).count() * BLOCK) as u64
    }
}

/// Returns a row with one in `scale` of its operations.
pub fn scaled(row: GuestRow, scale: u32) -> GuestRow {
    GuestRow { ops: row.ops / scale, ..row }
}

/// Number of reads of a phase.
pub fn read_ops(row: &GuestRow) -> u32 {
    (u64::from(row.ops) * u64::from(row.read_percent) / 100) as u32
}

/// Random size of a write, in blocks.
pub fn write_size(rng: &mut Rng) -> u32 {
    size(&WRITES, rng)
}

fn size(weights: &[(u32, u64)], rng: &mut Rng) -> u32 {
    let mut at = rng.below(weights.iter().map(|w| w.1).sum());
    for (blocks, weight) in weights {
        match at.checked_sub(*weight) {
            Some(rest) => at = rest,
            None => return *blocks,
        }
    }
    1
}

/// Visits cells until all sizes have been read.
fn walk(cells: &[u32], sizes: &[u32], rng: &mut Rng) -> Vec<Piece> {
    let mut used = vec![0; cells.len()];
    let mut pieces: Vec<Piece> = Vec::with_capacity(sizes.len());
    let mut visit: Option<usize> = None;
    for &blocks in sizes {
        if !pieces.is_empty() && rng.below(100) < AGAIN {
            let again = pieces[rng.below(pieces.len() as u64) as usize];
            pieces.push(again);
            continue;
        }
        if visit.is_some_and(|at| used[at] + blocks > CELL || rng.below(VISIT) == 0) {
            visit = None;
        }
        let at = *visit.get_or_insert_with(|| {
            let any = rng.below(cells.len() as u64) as usize;
            let fits =
                (0..cells.len()).map(|i| (any + i) % cells.len()).find(|at| used[*at] + blocks <= CELL);
            let at = fits.unwrap_or(any);
            let gap = rng.below(8) as u32;
            if used[at] + gap + blocks <= CELL {
                used[at] += gap;
            }
            at
        });
        if used[at] + blocks > CELL {
            // All cells have been read to their ends, so start again in this one.
            used[at] = 0;
        }
        pieces.push(Piece { block: cells[at] * CELL + used[at], blocks });
        used[at] += blocks;
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> Shape {
        Shape::new(12 << 30, 3 << 30, 1)
    }

    #[test]
    fn a_boot_reads_the_published_share_of_the_image_in_pieces_of_the_published_size() {
        let shape = shape();
        let reads = shape.reads(Phase::Boot);
        assert_eq!(reads.len(), 21_733);
        let mean = reads.iter().map(|p| u64::from(p.blocks) * 4).sum::<u64>() / reads.len() as u64;
        assert!((20..=32).contains(&mean), "{mean} KiB");
        let touched = shape.touched_bytes(Phase::Boot) * 1000 / (12 << 30);
        assert!((40..=70).contains(&touched), "{touched} per mille");
        for piece in reads {
            assert!(shape.has_data(piece.block) && piece.block % CELL + piece.blocks <= CELL);
        }
    }

    #[test]
    fn writes_have_the_published_size() {
        let mut rng = Rng::new(1);
        let kib = (0..10_000).map(|_| write_size(&mut rng) * 4).sum::<u32>() / 10_000;
        assert!((5..=10).contains(&kib), "{kib} KiB");
    }

    #[test]
    fn shapes_are_deterministic_and_small_images_work() {
        assert_eq!(shape().reads(Phase::Logon), shape().reads(Phase::Logon));
        let small = Shape::new(64 << 20, 0, 100);
        assert_eq!(small.reads(Phase::Boot).len(), 216);
        assert!(!small.free.is_empty());
        assert!(small.hot.iter().all(|p| small.has_data(p.block)));
    }
}
