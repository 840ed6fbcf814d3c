//! Moving a disk's bytes: a thread reads windows in order, this side writes them.
//!
//! A window that holds nothing is not sent. Within a window, blocks that are all zero are left out, so that
//! they take no room, whatever the file says of them. Buffers go round: as many as may be in flight, and no
//! more.

use std::ops::Range;

use forebay_engine::{Disk, is_zero};
use tokio::sync::mpsc;

use super::{Image, ImportError, Result};

/// Bytes that are read, looked at and sent as one.
const WINDOW: u64 = 1 << 20;
/// Windows between reader and writer.
const IN_FLIGHT: usize = 8;
/// The engine's unit of mapping; data is told from zeroes in these.
const BLOCK: usize = 4096;

/// What a window holds.
struct Window {
    /// Where it is on the disk.
    offset: u64,
    bytes: Vec<u8>,
    /// What of it is not zero.
    runs: Vec<Range<usize>>,
}

/// How far a pump is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Moved {
    /// Bytes of the disk that are done, holes included.
    pub done: u64,
    /// Bytes that were written.
    pub written: u64,
}

/// Copies all of `image` into `disk`, which must be all zero; tells `progress` after every window. Dropping
/// the future stops the reader.
pub(super) async fn copy(image: Box<dyn Image>, disk: &Disk, mut progress: impl FnMut(Moved)) -> Result<()> {
    let (windows, mut received) = mpsc::channel(IN_FLIGHT);
    let (give_back, used) = std::sync::mpsc::channel();
    let reader = std::thread::Builder::new().name("import".into());
    let spawned = reader.spawn(move || {
        let mut reader = Reader { image, used, spare: None };
        if let Err(e) = reader.read_all(&windows) {
            // A receiver that is gone has failed by itself.
            let _ = windows.blocking_send(Err(e));
        }
    });
    spawned.map_err(|_| ImportError::Internal("no thread to read with"))?;
    let mut moved = Moved::default();
    while let Some(window) = received.recv().await {
        let window: Window = window?;
        for run in &window.runs {
            disk.write(window.offset + run.start as u64, &window.bytes[run.clone()], false).await?;
            moved.written += run.len() as u64;
        }
        moved.done = window.offset + window.bytes.len() as u64;
        progress(moved);
        // The reader may have read all there is.
        let _ = give_back.send(window.bytes);
    }
    // A reader that panicked sends no error.
    if moved.done < disk.size() { Err(ImportError::Internal("the reader stopped half-way")) } else { Ok(()) }
}

struct Reader {
    image: Box<dyn Image>,
    used: std::sync::mpsc::Receiver<Vec<u8>>,
    /// A buffer that was not sent.
    spare: Option<Vec<u8>>,
}

impl Reader {
    /// Sends every window that holds something, and the last one in any case. Ends early where nobody
    /// receives.
    fn read_all(&mut self, windows: &mpsc::Sender<Result<Window>>) -> Result<()> {
        let size = self.image.size();
        let last = size.saturating_sub(1) / WINDOW * WINDOW;
        let mut offset = 0;
        while offset < size {
            let run = self.image.run(offset)?;
            // The last window is sent in any case: it is the sign that all was read.
            if !run.data && offset < last {
                offset = (offset + run.len).min(last);
                if windows.is_closed() {
                    return Ok(());
                }
                continue;
            }
            let start = offset - offset % BLOCK as u64;
            let end = (offset - offset % WINDOW + WINDOW).min(size.next_multiple_of(512));
            let window = self.read_window(start, end)?;
            offset = end;
            if window.runs.is_empty() && end < size {
                self.spare = Some(window.bytes);
            } else if windows.blocking_send(Ok(window)).is_err() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Reads `start..end`; what lies behind the end of the image is zero.
    fn read_window(&mut self, start: u64, end: u64) -> Result<Window> {
        let mut bytes = self.buffer();
        bytes.resize((end - start) as usize, 0);
        let size = self.image.size();
        let mut at = start;
        while at < end {
            let (len, data) = if at < size {
                let run = self.image.run(at)?;
                assert!(run.len != 0, "a run has at least one byte");
                (run.len.min(end - at), run.data)
            } else {
                (end - at, false)
            };
            let range = (at - start) as usize..(at - start + len) as usize;
            if data {
                self.image.read(at, &mut bytes[range])?;
            } else {
                bytes[range].fill(0);
            }
            at += len;
        }
        let runs = data_runs(&bytes);
        Ok(Window { offset: start, bytes, runs })
    }

    /// A buffer that is free, or a new one; at most as many as are in flight are ever made, and a few.
    fn buffer(&mut self) -> Vec<u8> {
        let free = self.spare.take().or_else(|| self.used.try_recv().ok());
        free.unwrap_or_else(|| Vec::with_capacity(WINDOW as usize))
    }
}

/// The blocks that are not all zero, joined where they touch.
fn data_runs(bytes: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (i, block) in bytes.chunks(BLOCK).enumerate() {
        if is_zero(block) {
            continue;
        }
        let (start, end) = (i * BLOCK, i * BLOCK + block.len());
        match runs.last_mut() {
            Some(last) if last.end == start => last.end = end,
            _ => runs.push(start..end),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_blocks_are_left_out_and_others_joined() {
        let mut bytes = vec![0; 5 * BLOCK + 512];
        assert!(data_runs(&bytes).is_empty());
        bytes[BLOCK] = 1;
        bytes[3 * BLOCK - 1] = 1;
        bytes[5 * BLOCK + 511] = 1;
        assert_eq!(data_runs(&bytes), [BLOCK..3 * BLOCK, 5 * BLOCK..5 * BLOCK + 512]);
    }
}
