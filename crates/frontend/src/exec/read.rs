//! Reading a range that is longer than one turn of its thread.

use forebay_engine::{DiskHandle, ReadFrom, Result};
use tokio::task::yield_now;

/// Bytes that are read before other tasks of the thread have their turn.
pub(crate) const PIECE: usize = 256 << 10;

/// Reads a range into `out`, piece by piece. `each` receives every piece when it has been read.
pub(crate) async fn read_whole(
    disk: &DiskHandle,
    offset: u64,
    out: &mut [u8],
    mut each: impl FnMut(&[u8]),
) -> Result<ReadFrom> {
    let (request, mut from) = (offset..offset + out.len() as u64, ReadFrom::Ram);
    for (n, piece) in out.chunks_mut(PIECE).enumerate() {
        if n > 0 {
            yield_now().await;
        }
        let read = disk.read_part(request.clone(), offset + (n * PIECE) as u64, piece).await?;
        from = if read == ReadFrom::Store { read } else { from };
        each(piece);
    }
    Ok(from)
}
