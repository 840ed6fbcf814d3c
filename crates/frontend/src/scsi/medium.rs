//! Changes that depend on the contents of a disk: COMPARE AND WRITE and ORWRITE.

use std::ops::ControlFlow;

use forebay_engine::{DiskHandle, Result};

/// Bytes of a change that are held in memory at once.
pub(super) const PIECE: usize = 1 << 20;

/// Writes the second half of `data` at `offset` if the disk holds the first half there, as one atomic change.
/// Otherwise returns the offset of the first byte that differs from the first half.
pub(super) async fn compare_and_write(
    disk: &DiskHandle,
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

/// Sets the bits of `data` at `offset`, as one atomic change.
pub(super) async fn or_write(disk: &DiskHandle, offset: u64, data: &[u8], fua: bool) -> Result<()> {
    let decided = disk.update(offset, data.len() as u64, fua, |found| {
        found.iter_mut().zip(data).for_each(|(byte, bits)| *byte |= bits);
        ControlFlow::<()>::Continue(())
    });
    decided.await.map(drop)
}

/// The first index at which two slices of the same length differ.
fn first_difference(a: &[u8], b: &[u8]) -> Option<usize> {
    if a == b { None } else { a.iter().zip(b).position(|(a, b)| a != b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_found() {
        assert_eq!(first_difference(b"abc", b"abc"), None);
        assert_eq!(first_difference(b"abc", b"abd"), Some(2));
    }
}
