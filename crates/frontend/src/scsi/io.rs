//! Commands that read, change or compare blocks.

use forebay_engine::{ReadFrom, Result};
use forebay_wire::scsi::{
    BLOCK, BlockRange, LbaStatus, STATUS_DESCRIPTORS_MAX, Sense, SenseKey, TRANSFER_MAX, VerifyCheck, codes,
    lba_status, unmap_list,
};
use tokio::task::yield_now;

use super::medium::{self, PIECE};
use super::nexus::Nexus;
use super::response::Response;
use crate::exec::read_whole;

/// The sense data of a failed comparison. Only COMPARE AND WRITE reports the offset of the difference
/// (SBC-3).
const MISCOMPARE: Sense = Sense::new(SenseKey::Miscompare, codes::MISCOMPARE_DURING_VERIFY);

/// Splits a range into pieces that are held in memory at once: offset and length.
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (u64, usize)> {
    let piece = PIECE as u64;
    (0..len.div_ceil(piece)).map(move |n| (offset + n * piece, (len - n * piece).min(piece) as usize))
}

/// Bytes that a VERIFY reads at once.
pub(crate) const VERIFIED: usize = 64 << 10;

impl Nexus {
    /// The response to a command without data.
    pub(super) fn answer(&self, done: Result<()>) -> Response {
        match done {
            Ok(()) => Response::good(),
            Err(error) => self.failed(&error),
        }
    }

    /// Executes READ: the response has the data.
    pub async fn read(&self, offset: u64, len: u32) -> Response {
        let mut data = vec![0; len as usize];
        match read_whole(self.disk(), offset, &mut data, PIECE, |_| ()).await {
            Ok(from) => Response { is_from_store: from == ReadFrom::Store, ..Response::data(data, len) },
            Err(error) => self.failed(&error),
        }
    }

    /// Writes the data that was sent, at most `len` bytes.
    pub(super) async fn write(&self, offset: u64, len: u32, data: &[u8], fua: bool) -> Result<()> {
        let data = &data[..data.len().min(len as usize)];
        if data.is_empty() {
            return Ok(());
        }
        self.disk().write(offset, data, self.durable(fua)).await
    }

    pub(super) async fn write_and_verify(
        &self,
        offset: u64,
        len: u32,
        data: &[u8],
        compare: bool,
    ) -> Result<Response> {
        let data = &data[..data.len().min(len as usize)];
        self.write(offset, len, data, true).await?;
        let check = if compare { VerifyCheck::Data } else { VerifyCheck::Nothing };
        self.verify(offset, data.len() as u64, data, check).await
    }

    pub(super) async fn verify(
        &self,
        offset: u64,
        len: u64,
        data: &[u8],
        check: VerifyCheck,
    ) -> Result<Response> {
        let mut stored = vec![0; VERIFIED.min(usize::try_from(len).unwrap_or(VERIFIED))];
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let zeroes = if Nexus::zeroes_pass(data, check) { self.disk().zeroes(at, end - at)? } else { 0 };
            if zeroes == 0 {
                let part = (end - at).min(VERIFIED as u64) as usize;
                let stored = &mut stored[..part];
                self.disk().read(at, stored).await?;
                let same = match check {
                    VerifyCheck::Nothing => true,
                    VerifyCheck::Data => *stored == data[(at - offset) as usize..][..part],
                    VerifyCheck::Block => stored.chunks(BLOCK as usize).all(|b| *b == data[..BLOCK as usize]),
                };
                if !same {
                    return Ok(self.check(&MISCOMPARE));
                }
                at += part as u64;
            }
            at += zeroes;
            yield_now().await;
        }
        Ok(Response::good())
    }

    /// Whether zeroes pass a VERIFY at any offset, so that holes of any length can be skipped.
    fn zeroes_pass(data: &[u8], check: VerifyCheck) -> bool {
        match check {
            VerifyCheck::Nothing => true,
            VerifyCheck::Block => forebay_engine::is_zero(&data[..BLOCK as usize]),
            VerifyCheck::Data => false,
        }
    }

    pub(super) async fn or_write(&self, offset: u64, len: u32, data: &[u8], fua: bool) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        medium::or_write(self.disk(), offset, &data[..len as usize], self.durable(fua)).await
    }

    pub(super) async fn compare_and_write(&self, offset: u64, data: &[u8], fua: bool) -> Result<Response> {
        if data.is_empty() {
            return Ok(Response::good());
        }
        let difference = medium::compare_and_write(self.disk(), offset, data, self.durable(fua)).await?;
        Ok(match difference {
            None => Response::good(),
            Some(at) => self.check(&MISCOMPARE.at(at)),
        })
    }

    /// Executes WRITE SAME. Without data, the block that is written is zero.
    pub(super) async fn write_same(&self, offset: u64, len: u32, data: &[u8], unmap: bool) -> Result<()> {
        if len == 0 {
            return Ok(());
        }
        let durable = self.durable(false);
        if forebay_engine::is_zero(data) {
            return self.disk().write_zeroes(offset, len.into(), !unmap, durable).await;
        }
        let same = data.repeat(PIECE.min(len as usize) / data.len());
        for (at, part) in pieces(offset, len.into()) {
            self.disk().write_part(at, &same[..part]).await?;
        }
        self.disk().finish(durable).await
    }

    /// Executes UNMAP. Where a range covers only a part of a stored block, this part is zeroed: unmapped
    /// blocks read as zero (LBPRZ).
    pub(super) async fn unmap(&self, list: &[u8]) -> Result<Response> {
        let ranges = match unmap_list(list, &self.rules()) {
            Ok(ranges) => ranges,
            Err(sense) => return Ok(self.check(&sense)),
        };
        Ok(self.answer(self.zero_ranges(&ranges, &mut 0).await))
    }

    /// Turns ranges into holes. Adds the bytes of each finished range to `done`.
    pub(super) async fn zero_ranges(&self, ranges: &[BlockRange], done: &mut u64) -> Result<()> {
        for range in ranges.iter().filter(|r| r.len > 0) {
            self.unit.note_change(range.offset, range.len);
            self.disk().write_zeroes_part(range.offset, range.len, false).await?;
            *done += range.len;
            yield_now().await;
        }
        self.disk().finish(self.durable(false)).await
    }

    pub(super) async fn lba_status(&self, offset: u64, allocation: u32) -> Result<Response> {
        let most = (allocation.saturating_sub(8) / 16).clamp(1, STATUS_DESCRIPTORS_MAX);
        let len = self.disk().size().saturating_sub(offset);
        let extents = self.disk().extents(offset, len, most as usize).await?;
        let runs = extents.into_iter().take(most as usize);
        let runs = runs.map(|e| LbaStatus { len: e.len, mapped: !e.hole });
        Ok(Response::data(lba_status(offset, runs), allocation))
    }

    /// Executes PRE-FETCH. A long range is cut to the longest transfer: the status of PRE-FETCH does not
    /// promise that everything is cached.
    pub(super) async fn prefetch(&self, offset: u64, len: u64) -> Result<()> {
        self.disk().prefetch(offset, len.min(u64::from(TRANSFER_MAX * BLOCK))).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_a_range() {
        let found: Vec<_> = pieces(512, 2 * PIECE as u64 + 512).collect();
        let piece = PIECE as u64;
        assert_eq!(found, [(512, PIECE), (512 + piece, PIECE), (512 + 2 * piece, 512)]);
        assert_eq!(pieces(0, 0).count(), 0);
    }
}
