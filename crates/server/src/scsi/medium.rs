//! Changes that depend on what a disk holds: what COMPARE AND WRITE and ORWRITE are, said of a disk.

use std::ops::ControlFlow;

use forebay_engine::{Disk, Result};

/// Bytes that are held at once.
pub(super) const PIECE: usize = 1 << 20;

/// Writes the second half of `data` at `offset` if what is there is the first, as one change that no other
/// comes between. Else where in the first half the first difference is.
pub(super) async fn compare_and_write(
    disk: &Disk,
    offset: u64,
    data: &[u8],
    fua: bool,
) -> Result<Option<u64>> {
    let (expected, new) = data.split_at(data.len() / 2);
    let decided = disk.update(offset, expected.len() as u64, fua, |found| {
        if let Some(at) = first_difference(found, expected) {
            return ControlFlow::Break(at as u64);
        }
        found.copy_from_slice(new);
        ControlFlow::Continue(())
    });
    Ok(decided.await?.break_value())
}

/// Sets the bits of `data` at `offset`, as one change that no other comes between.
pub(super) async fn or_write(disk: &Disk, offset: u64, data: &[u8], fua: bool) -> Result<()> {
    let decided = disk.update(offset, data.len() as u64, fua, |found| {
        found.iter_mut().zip(data).for_each(|(byte, bits)| *byte |= bits);
        ControlFlow::<()>::Continue(())
    });
    decided.await.map(drop)
}

/// Where two slices of one length first differ.
fn first_difference(a: &[u8], b: &[u8]) -> Option<usize> {
    if a == b { None } else { a.iter().zip(b).position(|(a, b)| a != b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences() {
        assert_eq!(first_difference(b"abc", b"abc"), None);
        assert_eq!(first_difference(b"abc", b"abd"), Some(2));
    }
}
