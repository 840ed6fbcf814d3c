//! Reading the log back: which batches there are, and which of them are history.

use std::collections::BTreeMap;
use std::ops::Range;

use forebay_format::{
    BLOCK, Batch, BatchHeader, EntryIter, FormatError, GROUP_END, PoolId, SegmentFooter, SegmentHeader,
    SegmentId, Stream,
};
use forebay_store::{BoxFuture, IoBuf, Store};

use crate::Result;
use crate::limits::{MAX_SEGMENT_BYTES, SCAN_BYTES};
use crate::log::Head;

/// A batch that was found whole.
pub(crate) struct Scanned {
    pub header: BatchHeader,
    pub stream: Stream,
    pub check: u64,
    /// Bytes of the segment that are its payload.
    pub payload: Range<u64>,
    /// Byte offset at which it ends.
    pub end: u64,
    /// Its entries, encoded.
    entries: Vec<u8>,
}

impl Scanned {
    /// Its entries, in order; one whose content is not within the payload is an error.
    pub fn entries(&self) -> EntryIter<'_> {
        EntryIter::within(&self.entries, self.payload.clone())
    }
}

/// Reads the batches of a segment from `from` on (0: from its header), up to the first place where none is.
/// Gives nothing where the header is not one of this pool.
///
/// # Errors
/// Those of the store, and [`FormatError::Newer`]; damage ends the scan instead.
pub(crate) async fn scan_segment(
    store: &dyn Store,
    pool: PoolId,
    segment: SegmentId,
    stream: Option<Stream>,
    from: u64,
    len: u64,
) -> Result<Vec<Scanned>> {
    let mut reader = Reader { store, segment, len, start: 0, buf: IoBuf::with_capacity(0), ahead: None };
    let stream = match stream {
        Some(stream) => stream,
        None => match SegmentHeader::decode(reader.bytes(0, BLOCK).await?, pool, segment) {
            Ok(header) => header.stream,
            Err(newer @ FormatError::Newer { .. }) => return Err(newer.into()),
            Err(_) => return Ok(Vec::new()),
        },
    };
    let mut at = from.max(BLOCK as u64);
    let mut found = Vec::new();
    loop {
        let head = reader.bytes(at, BLOCK).await?;
        if SegmentFooter::is_footer(head) {
            return Ok(found);
        }
        let Ok(batch_len) = Batch::peek_len(head) else { return Ok(found) };
        if batch_len as u64 > len.saturating_sub(at).min(MAX_SEGMENT_BYTES as u64) {
            return Ok(found);
        }
        let bytes = reader.bytes(at, batch_len).await?;
        let batch = match Batch::decode(bytes, pool, segment, at as u32) {
            Ok(batch) => batch,
            Err(newer @ FormatError::Newer { .. }) => return Err(newer.into()),
            Err(_) => return Ok(found),
        };
        found.push(Scanned {
            header: batch.header,
            stream,
            check: batch.check,
            payload: batch.payload_range(),
            end: at + batch_len as u64,
            entries: batch.entry_bytes().to_vec(),
        });
        at += batch_len as u64;
    }
}

/// A window on an object, and the next one, which is read while this one is looked at.
struct Reader<'a> {
    store: &'a dyn Store,
    segment: SegmentId,
    len: u64,
    start: u64,
    buf: IoBuf,
    ahead: Option<(u64, BoxFuture<'a, forebay_store::Result<IoBuf>>)>,
}

impl Reader<'_> {
    /// The bytes at an aligned offset; fewer where the object ends.
    async fn bytes(&mut self, at: u64, len: usize) -> Result<&[u8]> {
        if at >= self.len {
            return Ok(&[]);
        }
        let end = (at + len as u64).min(self.len);
        if at < self.start || end > self.start + self.buf.len() as u64 {
            self.buf = match self.ahead.take() {
                Some((there, window)) if there == at => window.await?,
                _ => self.read(at, len).await?,
            };
            self.start = at;
            self.ahead = self.next_window().map(|next| (next, self.read(next, SCAN_BYTES)));
        }
        let from = (at - self.start) as usize;
        let until = (from + len).min(self.buf.len());
        Ok(self.buf.get(from..until).unwrap_or(&[]))
    }
}

impl<'a> Reader<'a> {
    fn read(&self, at: u64, len: usize) -> BoxFuture<'a, forebay_store::Result<IoBuf>> {
        let want = (len.max(SCAN_BYTES) as u64).min(self.len.saturating_sub(at));
        self.store.read(self.segment, at, want.next_multiple_of(BLOCK as u64) as usize)
    }

    /// Where the first batch begins that does not lie whole in this window; `None` where the log ends in it.
    fn next_window(&self) -> Option<u64> {
        let end = self.start + self.buf.len() as u64;
        let mut at = self.start.max(BLOCK as u64);
        while at + BLOCK as u64 <= end {
            let head = &self.buf[(at - self.start) as usize..][..BLOCK];
            let next = at + Batch::peek_len(head).ok()? as u64;
            if next > end {
                break;
            }
            at = next;
        }
        (self.start < at && at < self.len).then_some(at)
    }
}

/// Picks history out of what was scanned: from `head` on, group after whole group, as long as sequence numbers
/// are consecutive, each batch links to the one before, and the epoch does not fall. Where several batches have
/// one number, that of the highest epoch counts.
pub(crate) fn history(scanned: Vec<Scanned>, head: Head) -> (Vec<Scanned>, Head) {
    let mut by_seq: BTreeMap<u64, Vec<Scanned>> = BTreeMap::new();
    for batch in scanned {
        by_seq.entry(batch.header.seq).or_default().push(batch);
    }
    let (mut applied, mut group) = (Vec::new(), Vec::new());
    let (mut committed, mut at, mut epoch) = (head, head, 0);
    while let Some(candidates) = by_seq.remove(&(at.seq + 1)) {
        let links = |b: &Scanned| b.header.chain == at.chain && b.header.epoch >= epoch;
        let Some(batch) = candidates.into_iter().filter(links).max_by_key(|b| b.header.epoch) else { break };
        at = Head { seq: batch.header.seq, chain: batch.check };
        epoch = batch.header.epoch;
        let last = batch.header.flags & GROUP_END != 0;
        group.push(batch);
        if last {
            applied.append(&mut group);
            committed = at;
        }
    }
    (applied, committed)
}
