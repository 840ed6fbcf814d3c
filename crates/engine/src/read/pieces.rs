//! Reads pieces of checkpoints: bytes of map-stream segments that a reference with a checksum names.

use forebay_format::{BlobRef, check64};
use forebay_store::IoBuf;
use futures_util::{StreamExt, stream};

use super::store::{StoreReader, damage};
use crate::Result;
use crate::limits::{NODE_GAP, PIECE_READ_BYTES, PIECE_READS};

/// Pieces that are read together, as indices of the requested pieces.
struct Run {
    first: BlobRef,
    end: u64,
    which: Vec<usize>,
}

/// Combines pieces that are stored close together.
fn runs(pieces: &[BlobRef]) -> Vec<Run> {
    let mut order: Vec<usize> = (0..pieces.len()).collect();
    order.sort_unstable_by_key(|i| (pieces[*i].segment, pieces[*i].offset));
    let mut runs: Vec<Run> = Vec::new();
    for i in order {
        let next = pieces[i];
        let (start, end) = (u64::from(next.offset), u64::from(next.offset) + u64::from(next.len));
        match runs.last_mut() {
            Some(run)
                if run.first.segment == next.segment
                    && start <= run.end + NODE_GAP
                    && end <= u64::from(run.first.offset) + PIECE_READ_BYTES =>
            {
                run.end = run.end.max(end);
                run.which.push(i);
            }
            _ => runs.push(Run { first: next, end, which: vec![i] }),
        }
    }
    runs
}

impl StoreReader {
    /// Reads and verifies pieces, several at once. Calls `each` with the index of every piece and its bytes,
    /// in any order.
    ///
    /// # Errors
    /// The errors of the store; [`crate::Error::Damaged`] if a piece is damaged; the errors of `each`.
    pub async fn read_pieces(
        &self,
        pieces: &[BlobRef],
        mut each: impl FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let reads = runs(pieces).into_iter().map(|run| async {
            let (begin, end) = (u64::from(run.first.offset), run.end);
            let bytes = self.read_exact(run.first.segment, begin, (end - begin) as usize).await;
            (run, bytes)
        });
        let mut reads = stream::iter(reads).buffer_unordered(PIECE_READS);
        while let Some((run, bytes)) = reads.next().await {
            for i in &run.which {
                let piece = pieces[*i];
                let alone;
                let bytes = match &bytes {
                    Ok(all) => &all[(piece.offset - run.first.offset) as usize..][..piece.len as usize],
                    // A bad sector must not fail the reads of adjacent pieces.
                    Err(_) => {
                        alone = self.read_piece_alone(&piece).await?;
                        &alone[..]
                    }
                };
                if check64(bytes) != piece.check {
                    return Err(damage(piece.segment, piece.offset.into()));
                }
                each(*i, bytes)?;
            }
        }
        Ok(())
    }

    async fn read_piece_alone(&self, piece: &BlobRef) -> Result<IoBuf> {
        self.read_exact(piece.segment, piece.offset.into(), piece.len as usize).await
    }
}
