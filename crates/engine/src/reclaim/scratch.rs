//! Temporary data of a mark that does not fit into the memory budget of the mark, and is written to the
//! store.
//!
//! The data is appended to the map stream as blobs, in segments that the checkpoint of the mark does not
//! cover. So no step of the same reclaim drops, moves or deletes these segments ([`super`]). After the
//! reclaim, or after a crash, nothing refers to the blobs, so they are ordinary garbage for the next reclaim.

use std::sync::Arc;

use forebay_format::{BLOCK, BlobRef, Stream, check64};

use crate::commit::Committer;
use crate::limits::MARK_PIECE;
use crate::log::Item;
use crate::read::Reader;
use crate::{Error, Result};

/// Number of pieces that are written at a time.
const PIECES_AT_ONCE: usize = 16;

/// Temporary memory in the store.
pub(super) struct Scratch {
    reader: Arc<Reader>,
    committer: Arc<Committer>,
    /// Maximum bytes of one piece.
    piece: usize,
}

impl Scratch {
    pub fn new(reader: Arc<Reader>, committer: Arc<Committer>, segment_bytes: u64) -> Scratch {
        // A batch holds at least one piece, its header and its entry.
        let piece = MARK_PIECE.min((segment_bytes / 4) as usize - 2 * BLOCK);
        Scratch { reader, committer, piece }
    }

    async fn write(&self, pieces: &[Vec<u8>]) -> Result<Vec<BlobRef>> {
        let items: Vec<Item> = pieces.iter().map(|piece| Item::Blob(piece)).collect();
        let placed = {
            let mut log = self.committer.write_log().await?;
            let workers = self.committer.context().host.workers();
            let written = log.write_group(Stream::Map, &items, workers).await;
            self.committer.latching(written)?
        };
        let bytes: usize = pieces.iter().map(Vec::len).sum();
        self.committer.count_cleaner(bytes as u64);
        let refs = pieces.iter().zip(placed).map(|(piece, at)| BlobRef {
            segment: at.addr.segment,
            offset: at.addr.slot.offset() as u32,
            len: piece.len() as u32,
            check: check64(piece),
        });
        Ok(refs.collect())
    }

    pub async fn read(&self, piece: &BlobRef) -> Result<Vec<u8>> {
        let source = &self.reader.source;
        let bytes = source.read_exact(piece.segment, piece.offset.into(), piece.len as usize).await?;
        match check64(&bytes) == piece.check {
            true => Ok(bytes.to_vec()),
            false => Err(Error::Damaged(format!("temporary data of a mark in segment {}", piece.segment))),
        }
    }

    pub fn writer(&self) -> Writer<'_> {
        Writer { scratch: self, full: Vec::new(), last: Vec::new(), written: Vec::new() }
    }
}

/// A sequence of items that is being written.
pub(super) struct Writer<'a> {
    scratch: &'a Scratch,
    full: Vec<Vec<u8>>,
    last: Vec<u8>,
    written: Vec<BlobRef>,
}

impl Writer<'_> {
    /// The bytes to which an item is appended.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.last
    }

    /// Ends an item. Called after each item, since no item is divided between two pieces.
    pub async fn end_item(&mut self) -> Result<()> {
        if self.last.len() >= self.scratch.piece {
            self.full.push(std::mem::take(&mut self.last));
        }
        if self.full.len() >= PIECES_AT_ONCE { self.write().await } else { Ok(()) }
    }

    async fn write(&mut self) -> Result<()> {
        self.written.extend(self.scratch.write(&self.full).await?);
        self.full.clear();
        Ok(())
    }

    /// Returns the locations of the pieces, in order.
    pub async fn finish(mut self) -> Result<Vec<BlobRef>> {
        if !self.last.is_empty() {
            self.full.push(std::mem::take(&mut self.last));
        }
        if !self.full.is_empty() {
            self.write().await?;
        }
        Ok(self.written)
    }
}
