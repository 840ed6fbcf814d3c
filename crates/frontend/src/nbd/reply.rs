//! The reply to a request of the transmission phase.
//!
//! A request of a connection that is gone is dropped, wherever it waits ([`super::attachments`]): the futures
//! of the engine release their memory and permits, and a write that is dropped has written whole blocks only.

use forebay_engine::{Changed, Extent, Result};
use forebay_wire::nbd::{
    self, BASE_ALLOCATION_ID, BlockDescriptor, CHANGED_SINCE_ID, DATA_CHUNK_HEADER, ErrorCode, SIMPLE_REPLY,
    STATE_CHANGED, STATE_CHANGED_ZERO, STATE_HOLE, STATE_ZERO,
};

use super::attachments::Begun;
use super::errors::error_code;
use crate::exec::block::{Description, Layout, Piece, Reply};

/// Maximum number of descriptors in a block status reply, in all contexts together.
pub(super) const MAX_EXTENTS: usize = 8192;
/// Minimum bytes of zeroes that are sent as a hole; shorter data is sent as it is, even if it is zero.
pub(super) const MIN_HOLE: usize = 512;

/// The reply to one request.
pub(super) struct NbdReply {
    pub begun: Begun,
    pub cookie: u64,
    pub structured: bool,
    /// The data of a read is sent in one chunk.
    pub dont_fragment: bool,
}

impl NbdReply {
    /// Encodes the reply to a request that failed.
    pub fn error(cookie: u64, structured: bool, code: ErrorCode, text: &str) -> Vec<u8> {
        if !structured {
            return nbd::simple_reply(cookie, Some(code)).to_vec();
        }
        let mut chunk = Vec::with_capacity(128);
        nbd::error_chunk(&mut chunk, cookie, code, text);
        chunk
    }
}

impl Reply for NbdReply {
    async fn run<T>(&self, is_change: bool, request: impl Future<Output = T>) -> Option<T> {
        match is_change {
            true => self.begun.run_change(request).await,
            false => self.begun.run(request).await,
        }
    }

    fn layout(&self) -> Layout {
        let header = if self.structured { DATA_CHUNK_HEADER } else { SIMPLE_REPLY };
        Layout { header, in_pieces: self.structured && !self.dont_fragment }
    }

    fn data(&self, message: &mut Vec<u8>, piece: Piece) {
        let Piece { offset, len, is_zero, is_last } = piece;
        if !self.structured {
            message[..SIMPLE_REPLY].copy_from_slice(&nbd::simple_reply(self.cookie, None));
        } else if is_zero && len as usize >= MIN_HOLE {
            *message = nbd::hole_chunk(self.cookie, offset, len, is_last).to_vec();
        } else {
            let header = nbd::data_chunk_header(self.cookie, offset, len, is_last);
            message[..DATA_CHUNK_HEADER].copy_from_slice(&header);
        }
    }

    fn extents(&self, description: &Description, len: u64) -> Vec<u8> {
        let mut reply = Vec::new();
        let Description { extents, changes } = description;
        let mut chunk = |context, done, descriptors: Vec<BlockDescriptor>| {
            debug_assert!(!descriptors.is_empty(), "the engine describes at least the first byte");
            nbd::block_status_chunk(&mut reply, self.cookie, context, done, &descriptors);
        };
        if let Some(extents) = extents {
            let runs = extents.iter().map(|extent| (extent.len, allocation_state(extent)));
            chunk(BASE_ALLOCATION_ID, changes.is_none(), descriptors(runs, len));
        }
        if let Some(changes) = changes {
            let runs = changes.iter().map(|change| (change.len, change_state(change)));
            chunk(CHANGED_SINCE_ID, true, descriptors(runs, len));
        }
        reply
    }

    fn end(&self, done: Result<()>) -> Vec<u8> {
        match done {
            Ok(()) => nbd::simple_reply(self.cookie, None).to_vec(),
            Err(error) => {
                // The executor answers no request that found the pool lost, so this code is not sent.
                let code = error_code(&error).unwrap_or(ErrorCode::Shutdown);
                NbdReply::error(self.cookie, self.structured, code, &error.to_string())
            }
        }
    }
}

/// The descriptors of runs, each with its length and state, which are cut at `len` bytes.
fn descriptors(runs: impl Iterator<Item = (u64, u32)>, len: u64) -> Vec<BlockDescriptor> {
    let mut left = len;
    let cut = runs.map_while(|(run, state)| {
        let run = run.min(left);
        left -= run;
        (run > 0).then_some(BlockDescriptor { len: run as u32, state })
    });
    cut.collect()
}

/// The state of an extent in `base:allocation`.
fn allocation_state(extent: &Extent) -> u32 {
    let hole = if extent.hole { STATE_HOLE } else { 0 };
    hole | if extent.zero { STATE_ZERO } else { 0 }
}

/// The state of a range in `forebay:changed-since=…`.
fn change_state(change: &Changed) -> u32 {
    let changed = if change.changed { STATE_CHANGED } else { 0 };
    changed | if change.zero { STATE_CHANGED_ZERO } else { 0 }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use forebay_engine::{Pool, PoolConfig, SyncMode};
    use forebay_host::EngineThread;
    use forebay_store::MemoryStore;

    use super::super::attachments::Attachments;
    use super::*;
    use crate::exec::block::{COST, Io, Request};
    use crate::exec::task_size;
    use crate::plane::{BASE, TASK_OVERHEAD};

    /// A client with one small request at a time never waits for memory of other clients, even if its data is
    /// in the store.
    #[tokio::test]
    async fn a_small_read_fits_into_the_memory_of_each_connection() {
        const DATA: usize = 4096 + DATA_CHUNK_HEADER;
        let engine = EngineThread::start(1).unwrap();
        let config = PoolConfig { read_cache: 4 << 20, map_cache: 4 << 20, ..PoolConfig::default() };
        let opening = Pool::open(Arc::new(MemoryStore::new()), engine.host(), config);
        let pool = engine.run(opening).await.unwrap();
        pool.create_volume("v", 1 << 20, SyncMode::Flush, 0).await.unwrap();
        let begun = Attachments::default().attach("v", None).begin();
        let reply = NbdReply { begun, cookie: 1, structured: true, dont_fragment: false };
        let read = Io::Read { offset: 0, len: 4096 };
        let task = task_size(Request::new(pool.attach("v").unwrap(), read, reply));
        assert!(task + COST + TASK_OVERHEAD + DATA <= BASE, "{task} bytes");
    }
}
