//! Changes fields of a pool and recalculates every checksum, so that only plausibility checks can reject it.

use std::collections::BTreeMap;

use forebay_format::{Check64, check64, crc32c};
use forebay_store::Image;

use super::atlas::{Atlas, Piece};
use crate::note;
use crate::rng::Rng;

/// An undamaged pool, and the positions of its fields.
pub struct Original {
    image: Image,
    atlas: Atlas,
}

impl Original {
    /// Analyses an undamaged pool.
    pub fn new(image: Image) -> Original {
        Original { atlas: Atlas::of(&image), image }
    }

    /// Structures and fields that the pool contains.
    pub fn fields(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.atlas.fields.keys().copied()
    }

    /// The pool with some fields changed, and correct checksums.
    pub fn forge(&self, rng: &mut Rng) -> Image {
        let mut image = self.image.clone();
        let kinds: Vec<_> = self.atlas.fields.iter().filter(|(_, pieces)| !pieces.is_empty()).collect();
        for _ in 0..*rng.pick(&[1, 1, 1, 2, 4]) {
            let (name, pieces) = rng.pick(&kinds);
            // Often all such fields of the pool are changed, so that the fields in use are included.
            let value = rng.fork();
            let chosen = match rng.below(4) {
                0 => pieces.to_vec(),
                _ => vec![rng.pick(pieces).clone()],
            };
            note!("{} of {name:?}, first {:?}", chosen.len(), chosen.first());
            for piece in &chosen {
                let before = piece.bytes(&image).to_vec();
                let other = rng.pick(pieces).bytes(&self.image).to_vec();
                let after = plausible(&mut value.clone(), &before, &other);
                piece.bytes_mut(&mut image).copy_from_slice(&after);
            }
        }
        self.seal(&mut image);
        image
    }

    /// Recalculates all checksums, from the inside out: of nodes and blocks in the structures that refer to
    /// them, of directories, relocation maps and headers, of pages and roots of checkpoints, of batches and
    /// in the links between them, of superblocks.
    fn seal(&self, image: &mut Image) {
        self.seal_references(image);
        for piece in &self.atlas.relocations {
            let bytes = piece.bytes_mut(image);
            let crc = crc32c(&bytes[32..]);
            bytes[20..24].copy_from_slice(&crc.to_le_bytes());
        }
        for (footer, directory) in &self.atlas.directories {
            let crc = crc32c(directory.bytes(image));
            if directory.bytes(image) != directory.bytes(&self.image) {
                footer.bytes_mut(image)[48..52].copy_from_slice(&crc.to_le_bytes());
            }
        }
        self.atlas.headers.iter().for_each(|piece| seal_block(piece.bytes_mut(image)));
        let pages = self.seal_pieces(image, &self.atlas.pages, &[]);
        let directories = self.seal_pieces(image, &self.atlas.page_directories, &pages);
        let roots = self.seal_pieces(image, &self.atlas.blobs, &directories);
        let links = self.seal_batches(image).into_iter().filter(|(old, new)| old != new);
        let changed: Vec<_> = links.chain(roots).collect();
        for piece in &self.atlas.superblocks {
            let bytes = piece.bytes_mut(image);
            for (old, new) in &changed {
                replace(bytes, &old.to_le_bytes(), &new.to_le_bytes());
            }
            seal_block(bytes);
        }
    }

    fn seal_references(&self, image: &mut Image) {
        let mut known = BTreeMap::new();
        // A chain of references is at most as long as a map is high.
        for _ in 0..8 {
            let mut changed = BTreeMap::new();
            for piece in &self.atlas.referred {
                let (old, new) = (piece.bytes(&self.image), piece.bytes(image));
                if old != new {
                    changed.insert(crc32c(old), crc32c(new));
                }
            }
            if changed == known {
                return;
            }
            for piece in &self.atlas.referring {
                let original = piece.bytes(&self.image);
                for (old, new) in &changed {
                    for at in positions(original, &old.to_le_bytes()) {
                        piece.bytes_mut(image)[at..at + 4].copy_from_slice(&new.to_le_bytes());
                    }
                }
            }
            known = changed;
        }
    }

    /// Replaces the checksums of lower pieces that have changed. Returns the old and new checksums of those
    /// among `pieces` that have changed.
    fn seal_pieces(&self, image: &mut Image, pieces: &[Piece], below: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let mut changed = Vec::new();
        for piece in pieces {
            let old = check64(piece.bytes(&self.image));
            let bytes = piece.bytes_mut(image);
            for (old, new) in below {
                replace(bytes, &old.to_le_bytes(), &new.to_le_bytes());
            }
            let new = check64(bytes);
            if old != new {
                changed.push((old, new));
            }
        }
        changed
    }

    /// Returns the old and new checksum of each batch.
    fn seal_batches(&self, image: &mut Image) -> BTreeMap<u64, u64> {
        let mut links: BTreeMap<u64, u64> = BTreeMap::new();
        for (_, piece) in &self.atlas.batches {
            let old = word(&piece.bytes(&self.image)[88..]);
            let bytes = piece.bytes_mut(image);
            if let Some(chain) = links.get(&word(&bytes[40..])) {
                bytes[40..48].copy_from_slice(&chain.to_le_bytes());
            }
            let mut check = Check64::default();
            check.update(&bytes[..88]);
            check.update(&bytes[96..]);
            let new = check.finish();
            bytes[88..96].copy_from_slice(&new.to_le_bytes());
            links.insert(old, new);
        }
        links
    }
}

/// Another value for a field: near the old one, extreme, from another structure of the same type, or random.
fn plausible(rng: &mut Rng, before: &[u8], other: &[u8]) -> Vec<u8> {
    let mut after = before.to_vec();
    if after.is_empty() || rng.one_in(4) && other.len() == before.len() {
        return if after.is_empty() { after } else { other.to_vec() };
    }
    if before.len() > 8 {
        let at = rng.below(before.len() as u64) as usize;
        after[at] = plausible(rng, &before[at..=at], &[])[0];
        return after;
    }
    let mut number = [0; 8];
    number[..before.len()].copy_from_slice(before);
    let old = u64::from_le_bytes(number);
    let power = 1_u64 << rng.below(8 * before.len() as u64);
    let new = match rng.below(9) {
        0 => 0,
        1 => u64::MAX,
        2 => power,
        3 => power - 1,
        4 => old.wrapping_add(1 << rng.below(13)),
        5 => old.wrapping_sub(1 << rng.below(13)),
        6 => old ^ power,
        7 => old.wrapping_mul(2),
        _ => rng.next(),
    };
    after.copy_from_slice(&new.to_le_bytes()[..before.len()]);
    after
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(*bytes.first_chunk().expect("a batch has a whole header"))
}

fn positions<'a>(bytes: &'a [u8], pattern: &'a [u8]) -> impl Iterator<Item = usize> + 'a {
    bytes.windows(pattern.len()).enumerate().filter(move |(_, w)| *w == pattern).map(|(at, _)| at)
}

fn replace(bytes: &mut [u8], old: &[u8], new: &[u8]) {
    for at in positions(bytes, old).collect::<Vec<_>>() {
        bytes[at..at + new.len()].copy_from_slice(new);
    }
}

/// The checksum of a superblock copy, a segment header or a footer.
fn seal_block(block: &mut [u8]) {
    let end = block.len() - 8;
    let check = check64(&block[..end]);
    block[end..].copy_from_slice(&check.to_le_bytes());
}
