//! Reads the log back: its batches, and the gaps between them.
//!
//! Batches follow each other directly. At a location where no batch begins, a scan continues block by block,
//! since further batches may follow an incomplete or damaged batch. From these further batches,
//! [`crate::history`] determines whether the log ends at this location. A batch is accepted only if it
//! contains the pool id, which guests do not know, the segment number and the offset, all covered by its
//! checksum. So guest data that resembles a batch, or is a copy of a batch from another location, is
//! rejected. Each block is read once, and a second time as part of a batch if a batch may begin there, so a
//! scan costs at most two reads of the segment. Preallocated room that was never written is read as zeroes
//! without disk access.
//!
//! If the medium cannot return a block, the scan of recovery continues after this block. The block is then a
//! gap that is known to be damaged. For all other readers, such a block is an error.

use std::collections::BTreeSet;
use std::ops::Range;

use forebay_format::{
    BLOCK, Batch, BatchHeader, EntryIter, PoolId, SegmentFooter, SegmentHeader, SegmentId, SegmentRecord,
    Stream,
};
use forebay_store::{Completion, IoBuf, Store};

use crate::Result;
use crate::limits::{MAX_SEGMENT_BYTES, SCAN_BYTES, UNREADABLE_BLOCKS};

/// A batch that the scan found intact.
pub(crate) struct Scanned {
    pub header: BatchHeader,
    /// Stream of the batch; `None` if the header of its segment is damaged.
    pub stream: Option<Stream>,
    pub check: u64,
    /// Byte range of the batch's payload in the segment.
    pub payload: Range<u64>,
    /// Byte offset of the batch's end.
    pub end: u64,
    /// Encoded entries of the batch.
    entries: Vec<u8>,
}

impl Scanned {
    /// An empty batch. The parameters are its number, its epoch, where its group begins, and whether it ends
    /// the group.
    #[cfg(test)]
    pub fn for_test(
        segment: SegmentId,
        stream: Stream,
        (seq, epoch, group, ends): (u64, u64, u64, bool),
        chain: u64,
        check: u64,
    ) -> Scanned {
        let (pool, flags) = (PoolId([1; 16]), if ends { forebay_format::GROUP_END } else { 0 });
        let header = BatchHeader { pool, epoch, seq, chain, segment, offset: 4096, flags, group };
        Scanned { header, stream: Some(stream), check, payload: 0..0, end: 8192, entries: Vec::new() }
    }

    /// Entries of the batch, in order. An entry whose content is not within the payload is an error.
    pub fn entries(&self) -> EntryIter<'_> {
        EntryIter::within(&self.entries, self.payload.clone())
    }
}

/// A location where no batch begins, and after which further batches were searched for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gap {
    pub segment: SegmentId,
    pub stream: Option<Stream>,
    pub offset: u64,
    /// The location holds only zeroes, at least in its first block.
    pub blank: bool,
    /// A part of the location cannot be read.
    pub unreadable: bool,
    /// The last batch before the gap in the segment, if it is known.
    pub after: Option<Neighbour>,
    /// The first batch after the gap in the segment. If the gap is followed by a footer: one more than the
    /// last batch before the footer.
    pub before: Option<Neighbour>,
}

/// A batch next to a gap.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Neighbour {
    pub seq: u64,
    /// Epoch of the batch, or a lower bound of it; unknown for a footer.
    pub epoch: Option<u64>,
}

/// The contents of a segment from some offset on.
pub(crate) struct SegmentScan {
    pub segment: SegmentId,
    /// The header does not belong to this pool.
    pub header_damaged: bool,
    /// Intact batches, ordered by offset.
    pub batches: Vec<Scanned>,
    /// Gaps between batches, ordered by offset.
    pub gaps: Vec<Gap>,
}

/// The structure that a scan found at an offset.
enum Found {
    Batch(Scanned),
    Footer(SegmentFooter),
    Nothing,
}

/// Reads the batches of a segment, up to the first gap. If `stream` is `None` and the header does not belong
/// to this pool, returns no batches.
///
/// # Errors
/// Errors of the store; a [`FormatError`](forebay_format::FormatError) if a structure has an unsupported
/// version. Damage does not cause an error, but ends the scan.
pub(crate) async fn scan_segment(
    store: &dyn Store,
    pool: PoolId,
    segment: SegmentId,
    stream: Option<Stream>,
    len: u64,
) -> Result<Vec<Scanned>> {
    let mut reader = Reader::new(store, segment, len);
    let stream = match stream {
        Some(stream) => stream,
        None => match SegmentHeader::decode(reader.bytes(0, BLOCK).await?, pool, segment) {
            Ok(header) => header.stream,
            Err(e) if e.is_unsupported() => return Err(e.into()),
            Err(_) => return Ok(Vec::new()),
        },
    };
    let mut at = BLOCK as u64;
    let mut found = Vec::new();
    while let Found::Batch(batch) = reader.look(pool, Some(stream), at).await? {
        at = batch.end;
        found.push(batch);
    }
    Ok(found)
}

/// Reads all batches of a segment, past any gap or unreadable block; if there is a `record`, from the end
/// that it records.
///
/// # Errors
/// As [`scan_segment`], except errors of one location on the medium.
pub(crate) async fn scan_past_gaps(
    store: &dyn Store,
    pool: PoolId,
    segment: SegmentId,
    record: Option<SegmentRecord>,
    len: u64,
) -> Result<SegmentScan> {
    let mut head = Reader::past_damage(store, segment, len.min(BLOCK as u64));
    let header = match SegmentHeader::decode(head.bytes(0, BLOCK).await?, pool, segment) {
        Ok(header) => Some(header),
        Err(e) if e.is_unsupported() => return Err(e.into()),
        Err(_) => None,
    };
    let stream = record.map(|r| r.stream).or(header.map(|h| h.stream));
    let epoch = header.map(|h| h.epoch);
    let seq = record.map(|r| r.last_seq).or(header.map(|h| h.first_seq.saturating_sub(1)));
    let mut after = seq.map(|seq| Neighbour { seq, epoch });
    let mut scan =
        SegmentScan { segment, header_damaged: header.is_none(), batches: Vec::new(), gaps: Vec::new() };
    let mut gap: Option<Gap> = None;
    if record.is_none() && head.is_unreadable(0..BLOCK as u64) {
        // The stream of the batches is unknown, so none of them is accepted.
        scan.gaps.push(Gap {
            segment,
            stream,
            offset: 0,
            blank: false,
            unreadable: true,
            after,
            before: None,
        });
    }
    let mut reader = Reader::past_damage(store, segment, len);
    let mut at = record.map_or(0, |r| u64::from(r.written)).max(BLOCK as u64);
    while at < len {
        match reader.look(pool, stream, at).await? {
            Found::Batch(batch) => {
                let here = Neighbour { seq: batch.header.seq, epoch: Some(batch.header.epoch) };
                scan.gaps.extend(gap.take().map(|gap| reader.end_gap(gap, at, Some(here))));
                (after, at) = (Some(here), batch.end);
                scan.batches.push(batch);
            }
            Found::Footer(footer) => {
                let here = Neighbour { seq: footer.last_seq.saturating_add(1), epoch: None };
                scan.gaps.extend(gap.map(|gap| reader.end_gap(gap, at, Some(here))));
                return Ok(scan);
            }
            Found::Nothing => {
                let bytes = reader.bytes(at, BLOCK).await?;
                let (blank, at_end) = (bytes.iter().all(|b| *b == 0), bytes.is_empty());
                let begun =
                    Gap { segment, stream, offset: at, blank, unreadable: false, after, before: None };
                gap.get_or_insert(begun);
                if at_end {
                    break;
                }
                at += BLOCK as u64;
            }
        }
    }
    scan.gaps.extend(gap.map(|gap| reader.end_gap(gap, len, None)));
    Ok(scan)
}

/// A window on an object, and the next window, which is read while this one is processed.
struct Reader<'a> {
    store: &'a dyn Store,
    segment: SegmentId,
    len: u64,
    start: u64,
    buf: IoBuf,
    ahead: Option<(u64, Completion<IoBuf>)>,
    /// Offsets of unreadable blocks that are skipped. `None`: an unreadable block is an error.
    unreadable: Option<BTreeSet<u64>>,
}

/// Byte that replaces unreadable bytes: no batch begins with it, and it is not blank.
const UNREADABLE: u8 = 0xff;

impl<'a> Reader<'a> {
    fn new(store: &'a dyn Store, segment: SegmentId, len: u64) -> Reader<'a> {
        let len = len.min(u64::from(MAX_SEGMENT_BYTES));
        Reader { store, segment, len, start: 0, buf: IoBuf::with_capacity(0), ahead: None, unreadable: None }
    }

    /// A reader that skips blocks that the medium cannot return.
    fn past_damage(store: &'a dyn Store, segment: SegmentId, len: u64) -> Reader<'a> {
        Reader { unreadable: Some(BTreeSet::new()), ..Reader::new(store, segment, len) }
    }

    /// Whether a part of this range is unreadable.
    fn is_unreadable(&self, range: Range<u64>) -> bool {
        self.unreadable.as_ref().is_some_and(|blocks| blocks.range(range).next().is_some())
    }

    /// Completes a gap, which ends at `end`.
    fn end_gap(&self, gap: Gap, end: u64, before: Option<Neighbour>) -> Gap {
        Gap { before, unreadable: self.is_unreadable(gap.offset..end), ..gap }
    }

    /// The structure that begins at an aligned offset.
    async fn look(&mut self, pool: PoolId, stream: Option<Stream>, at: u64) -> Result<Found> {
        let (segment, room) = (self.segment, self.len.saturating_sub(at));
        let head = self.bytes(at, BLOCK).await?;
        if SegmentFooter::is_footer(head) {
            let footer = SegmentFooter::decode(head, pool, segment, at as u32);
            return Ok(footer.map_or(Found::Nothing, Found::Footer));
        }
        if !Batch::may_begin(head, pool, segment, at as u32) {
            return Ok(Found::Nothing);
        }
        let Ok(batch_len) = Batch::peek_len(head) else { return Ok(Found::Nothing) };
        if batch_len as u64 > room {
            return Ok(Found::Nothing);
        }
        let batch = match Batch::decode(self.bytes(at, batch_len).await?, pool, segment, at as u32) {
            Ok(batch) => batch,
            Err(e) if e.is_unsupported() => return Err(e.into()),
            Err(_) => return Ok(Found::Nothing),
        };
        Ok(Found::Batch(Scanned {
            header: batch.header,
            stream,
            check: batch.check,
            payload: batch.payload_range(),
            end: at + batch_len as u64,
            entries: batch.entry_bytes().to_vec(),
        }))
    }

    /// The bytes at an aligned offset; fewer at the end of the object.
    async fn bytes(&mut self, at: u64, len: usize) -> Result<&[u8]> {
        if at >= self.len {
            return Ok(&[]);
        }
        let end = (at + len as u64).min(self.len);
        if at < self.start || end > self.start + self.buf.len() as u64 {
            let window = match self.ahead.take() {
                Some((there, window)) if there == at => window.await,
                _ => self.read(at, len).await,
            };
            self.buf = match window {
                Err(e) if self.unreadable.is_some() && e.concerns_one_place() => {
                    self.read_around(at, len).await?
                }
                window => window?,
            };
            self.start = at;
            self.ahead = self.next_window().map(|next| (next, self.read(next, SCAN_BYTES)));
        }
        let from = (at - self.start) as usize;
        let until = (from + len).min(self.buf.len());
        Ok(self.buf.get(from..until).unwrap_or(&[]))
    }

    /// Length of the window that begins at `at` and has at least `len` bytes.
    fn window(&self, at: u64, len: usize) -> usize {
        let want = (len.max(SCAN_BYTES) as u64).min(self.len.saturating_sub(at));
        want.next_multiple_of(BLOCK as u64) as usize
    }

    fn read(&self, at: u64, len: usize) -> Completion<IoBuf> {
        self.store.read(self.segment, at, self.window(at, len))
    }

    /// Reads a window that is partly unreadable. Ranges that fail are halved until the unreadable blocks are
    /// found. If there are many, further ranges that fail are skipped as a whole: a dying disk may take
    /// seconds for each read.
    async fn read_around(&mut self, at: u64, len: usize) -> Result<IoBuf> {
        let mut buf = IoBuf::with_capacity(self.window(at, len));
        let mut parts = vec![(at, self.window(at, len))];
        let mut found = 0;
        while let Some((at, len)) = parts.pop() {
            match self.store.read(self.segment, at, len).await {
                Ok(part) => buf.extend_from_slice(&part),
                Err(e) if !e.concerns_one_place() => return Err(e.into()),
                Err(_) if len <= BLOCK || found == UNREADABLE_BLOCKS => {
                    found = UNREADABLE_BLOCKS.min(found + 1);
                    let blocks = (at..at + len as u64).step_by(BLOCK);
                    self.unreadable.get_or_insert_default().extend(blocks);
                    let filled = buf.len();
                    buf.resize(filled + len);
                    buf[filled..].fill(UNREADABLE);
                }
                Err(_) => {
                    let half = (len / BLOCK).div_ceil(2) * BLOCK;
                    parts.extend([(at + half as u64, len - half), (at, half)]);
                }
            }
        }
        Ok(buf)
    }

    /// Offset of the first batch that is not completely within this window. After a gap, the scan continues
    /// block by block, also into the next window.
    fn next_window(&self) -> Option<u64> {
        let end = self.start + self.buf.len() as u64;
        let mut at = self.start.max(BLOCK as u64);
        while at + BLOCK as u64 <= end {
            let head = &self.buf[(at - self.start) as usize..][..BLOCK];
            let Ok(len) = Batch::peek_len(head) else {
                at = end;
                break;
            };
            let next = at + len as u64;
            if next > end {
                break;
            }
            at = next;
        }
        (self.start < at && at < self.len).then_some(at)
    }
}
