//! Reading a range that is longer than one turn of its thread.

use forebay_engine::{DiskHandle, ReadFrom, Result};
use tokio::task::yield_now;

/// Reads a range into `out` in pieces of `piece` bytes, between which other tasks of the thread have their
/// turns. `each` receives every piece when it has been read.
pub(crate) async fn read_whole(
    disk: &DiskHandle,
    offset: u64,
    out: &mut [u8],
    piece: usize,
    mut each: impl FnMut(&[u8]),
) -> Result<ReadFrom> {
    let (request, mut from) = (offset..offset + out.len() as u64, ReadFrom::Ram);
    for (n, part) in out.chunks_mut(piece).enumerate() {
        if n > 0 {
            yield_now().await;
        }
        let read = disk.read_part(request.clone(), offset + (n * piece) as u64, part).await?;
        from = if read == ReadFrom::Store { read } else { from };
        each(part);
    }
    Ok(from)
}
