//! The copy loop of an import: a thread reads windows of the disk in order, and the receiver writes them.
//!
//! A window without data is not sent. Zero blocks within a window are not written, so that they use no space
//! even if the file has them as data. Buffers are reused, so their number is limited by the windows in
//! flight.

use std::ops::Range;

use forebay_engine::{DiskHandle, is_zero};
use tokio::sync::mpsc;

use super::{Image, ImportError, Result};

/// Bytes of the disk in one window of the copy.
const WINDOW: u64 = 1 << 20;
/// Number of windows between reader and writer.
const IN_FLIGHT: usize = 8;
/// The engine's mapping unit; zeroes are detected in blocks of this size.
const BLOCK: usize = 4096;

/// A window of the disk, with its contents.
struct Window {
    /// Offset of the window on the disk.
    offset: u64,
    bytes: Vec<u8>,
    /// The ranges of `bytes` that are not zero.
    runs: Vec<Range<usize>>,
}

/// What a copy has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Copied {
    /// Bytes of the disk that are done, including holes.
    pub done: u64,
    /// Bytes that were written to the disk.
    pub written: u64,
}

/// Copies `image` to `disk`, which must be all zero. Calls `progress` after every window. Dropping the future
/// stops the reader.
pub(super) async fn copy(
    image: Box<dyn Image>,
    disk: &DiskHandle,
    mut progress: impl FnMut(Copied),
) -> Result<()> {
    let (windows, mut received) = mpsc::channel(IN_FLIGHT);
    let (recycle, recycled) = std::sync::mpsc::channel();
    let reader = std::thread::Builder::new().name("import".into());
    let spawned = reader.spawn(move || {
        let mut reader = Reader { image, recycled, spare: None };
        if let Err(e) = reader.read_all(&windows) {
            // The receiver may be dropped.
            let _ = windows.blocking_send(Err(e));
        }
    });
    spawned.map_err(|_| ImportError::Internal("cannot start the reader thread"))?;
    let mut copied = Copied::default();
    while let Some(window) = received.recv().await {
        let window: Window = window?;
        for run in &window.runs {
            disk.write(window.offset + run.start as u64, &window.bytes[run.clone()], false).await?;
            copied.written += run.len() as u64;
        }
        copied.done = window.offset + window.bytes.len() as u64;
        progress(copied);
        // The reader may have finished.
        let _ = recycle.send(window.bytes);
    }
    // A reader that panicked sends no error.
    if copied.done < disk.size() { Err(ImportError::Internal("the reader thread panicked")) } else { Ok(()) }
}

struct Reader {
    image: Box<dyn Image>,
    recycled: std::sync::mpsc::Receiver<Vec<u8>>,
    /// The buffer of a window that did not have to be sent.
    spare: Option<Vec<u8>>,
}

impl Reader {
    /// Sends every window with data, and the last window in any case. Returns early if the receiver is
    /// dropped.
    fn read_all(&mut self, windows: &mpsc::Sender<Result<Window>>) -> Result<()> {
        let size = self.image.size();
        let last = size.saturating_sub(1) / WINDOW * WINDOW;
        let mut offset = 0;
        while offset < size {
            let run = self.image.run(offset)?;
            // The last window is always sent: it signals that the whole disk was read.
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
                if windows.is_closed() {
                    return Ok(());
                }
            } else if windows.blocking_send(Ok(window)).is_err() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Reads `start..end`; bytes beyond the end of the image are zero.
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

    /// Returns a recycled buffer or a new one. The number of buffers exceeds the windows in flight by a few
    /// at most.
    fn buffer(&mut self) -> Vec<u8> {
        let free = self.spare.take().or_else(|| self.recycled.try_recv().ok());
        free.unwrap_or_else(|| Vec::with_capacity(WINDOW as usize))
    }
}

/// Returns the ranges of blocks that are not zero; adjacent blocks are merged.
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
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use super::*;
    use crate::import::Run;

    /// A disk of 1 GiB whose zeroes are data. Counts the reads.
    struct Zeroes(Arc<AtomicU64>);

    impl Image for Zeroes {
        fn size(&self) -> u64 {
            1 << 30
        }

        fn run(&mut self, offset: u64) -> Result<Run> {
            Ok(Run { len: self.size() - offset, data: true })
        }

        fn read(&mut self, _: u64, out: &mut [u8]) -> Result<()> {
            self.0.fetch_add(1, Relaxed);
            out.fill(0);
            Ok(())
        }
    }

    /// Windows of zeroes are not sent, so no send reports that the receiver is dropped.
    #[test]
    fn a_cancelled_import_reads_no_further_zeroes() {
        let reads = Arc::new(AtomicU64::new(0));
        let (windows, received) = mpsc::channel(IN_FLIGHT);
        let (_recycle, recycled) = std::sync::mpsc::channel();
        drop(received);
        let mut reader = Reader { image: Box::new(Zeroes(reads.clone())), recycled, spare: None };
        reader.read_all(&windows).unwrap();
        assert_eq!(reads.load(Relaxed), 1);
    }

    #[test]
    fn zero_blocks_are_skipped_and_adjacent_data_blocks_merged() {
        let mut bytes = vec![0; 5 * BLOCK + 512];
        assert!(data_runs(&bytes).is_empty());
        bytes[BLOCK] = 1;
        bytes[3 * BLOCK - 1] = 1;
        bytes[5 * BLOCK + 511] = 1;
        assert_eq!(data_runs(&bytes), [BLOCK..3 * BLOCK, 5 * BLOCK..5 * BLOCK + 512]);
    }
}
