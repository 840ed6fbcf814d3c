//! The bytes of an export: the plan of a response, and how the response is produced piece by piece.
//!
//! The extents of the disk do not change during an export, so they are looked up again where they are needed
//! and never kept: once to count the clusters of a qcow2 file, once for its tables, and once for the data.

use std::collections::VecDeque;
use std::time::Duration;

use forebay_api::ErrorKind;
use forebay_api::export::{DifferenceLine, ExtentHeader, Format};
use forebay_engine::{Changed, Export, Since};
use hyper::body::Bytes;
use tokio::sync::mpsc;

use super::PIECE;
use super::qcow2::{CLUSTER, L2_ENTRIES, Layout};
use crate::operations::transfer::stream::{Encoder, Header, MAX_DATA, Position};
use crate::operations::{ControlError, Result};

/// Maximum number of extents that are looked up at once.
const EXTENTS: usize = 256;

/// Why an export ends whose client has closed its connection.
pub(super) const DISCONNECTED: &str = "the client of the export has disconnected";

/// Checks that the client still has its right.
type IsValid = Box<dyn Fn() -> Result<()> + Send + Sync>;

/// Where the pieces of a response go.
pub(super) struct Sink {
    pieces: mpsc::Sender<Bytes>,
    stall: Duration,
    is_valid: IsValid,
    sent: u64,
}

impl Sink {
    pub fn new(pieces: mpsc::Sender<Bytes>, stall: Duration, is_valid: IsValid) -> Sink {
        Sink { pieces, stall, is_valid, sent: 0 }
    }

    async fn send(&mut self, piece: impl Into<Bytes>) -> Result<()> {
        (self.is_valid)()?;
        let piece = piece.into();
        let len = piece.len() as u64;
        let gone = |why| Err(ControlError::new(ErrorKind::Cancelled, why));
        match tokio::time::timeout(self.stall, self.pieces.send(piece)).await {
            Ok(Ok(())) => {
                self.sent += len;
                Ok(())
            }
            Ok(Err(_)) => gone(DISCONNECTED),
            Err(_) => gone("the client of the export has received nothing for too long"),
        }
    }

    /// Completes when the client has disconnected.
    pub fn client_gone(&self) -> impl Future<Output = ()> + use<> {
        let pieces = self.pieces.clone();
        async move { pieces.closed().await }
    }
}

/// The response of an export.
pub(super) enum Plan {
    Qcow2(Layout),
    /// All bytes of a disk of this size.
    Raw(u64),
    /// The data of a disk of this size.
    Extents(u64),
    /// The ranges that have changed.
    Changes,
    /// A stream with this header.
    Stream(Header),
}

impl Plan {
    /// Plans a response, for which the extents of the disk are looked up if the format needs that.
    pub async fn new(export: &Export, format: Format) -> Result<Plan> {
        Ok(match format {
            Format::Raw => Plan::Raw(export.size()),
            Format::Extents => Plan::Extents(export.size()),
            Format::Changes => Plan::Changes,
            Format::Stream => return Err(ControlError::internal("a stream is planned by its header")),
            Format::Qcow2 => {
                let (mut layout, mut clusters) = (Layout::new(export.size()), Clusters::new(export));
                while let Some((first, end)) = clusters.next().await? {
                    layout.add(first, end);
                }
                Plan::Qcow2(layout)
            }
        })
    }

    /// Plans a stream of a snapshot or image, with the changes since the earlier disk of the export.
    pub fn stream(export: &Export, disk: &str, position: Position) -> Result<Plan> {
        let Some(uuid) = export.identity() else {
            let why =
                "a volume changes, so it cannot be sent itself; create a snapshot, and send VOLUME@SNAPSHOT";
            return Err(ControlError::new(ErrorKind::WrongKind, why));
        };
        if position.offset > export.size() {
            return Err(ControlError::bad_request("the position is beyond the end of the disk"));
        }
        Ok(Plan::Stream(Header {
            is_image: export.is_image(),
            size: export.size(),
            uuid,
            parent: export.since().map(Since::uuid),
            position,
            name: disk.split_once('@').map_or(disk, |(_, snapshot)| snapshot).to_owned(),
        }))
    }

    /// Length of the response in bytes, if it is known before its end.
    pub fn len(&self) -> Option<u64> {
        match self {
            Plan::Qcow2(layout) => Some(layout.len()),
            Plan::Raw(size) => Some(*size),
            Plan::Extents(_) | Plan::Changes | Plan::Stream(_) => None,
        }
    }

    /// Sends the response; returns its length. `progress` gets the bytes that are done and their total.
    pub async fn send(
        self,
        export: &Export,
        sink: &mut Sink,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<u64> {
        match self {
            Plan::Qcow2(layout) => send_qcow2(&layout, export, sink, &mut progress).await?,
            Plan::Raw(size) => {
                let mut at = 0;
                while at < size {
                    let len = (size - at).min(PIECE);
                    sink.send(read(export, at, len, len).await?).await?;
                    at += len;
                    progress(at, size);
                }
            }
            Plan::Extents(size) => {
                let mut runs = Runs::new(export);
                while let Some((offset, len)) = runs.next().await? {
                    for (offset, len) in pieces(offset, len) {
                        sink.send(ExtentHeader { offset, len }.encode().to_vec()).await?;
                        sink.send(read(export, offset, len, len).await?).await?;
                        progress(offset + len, size);
                    }
                }
                sink.send(ExtentHeader { offset: size, len: 0 }.encode().to_vec()).await?;
            }
            Plan::Changes => send_changes(export, sink, &mut progress).await?,
            Plan::Stream(header) => send_stream(&header, export, sink, &mut progress).await?,
        }
        Ok(sink.sent)
    }
}

/// Sends the ranges that have changed, without their data.
async fn send_changes(export: &Export, sink: &mut Sink, progress: &mut impl FnMut(u64, u64)) -> Result<()> {
    let (size, mut offset, mut lines) = (export.size(), 0, Vec::new());
    let (mut data_bytes, mut zero_bytes) = (0, 0);
    let line = |lines: &mut Vec<u8>, line: DifferenceLine| {
        serde_json::to_writer(&mut *lines, &line).map_err(|e| ControlError::internal(e.to_string()))?;
        lines.push(b'\n');
        Ok::<_, ControlError>(())
    };
    // A page can end within a range.
    let mut last: Option<DifferenceLine> = None;
    while offset < size {
        for Changed { len, changed, zero } in export.changes(offset, size - offset, EXTENTS).await? {
            let (offset_bytes, length_bytes) = (offset, len);
            offset += len;
            if !changed {
                continue;
            }
            *(if zero { &mut zero_bytes } else { &mut data_bytes }) += len;
            last = match (last, zero) {
                (Some(DifferenceLine::Data { offset_bytes: at, length_bytes: run }), false)
                    if at + run == offset_bytes =>
                {
                    Some(DifferenceLine::Data { offset_bytes: at, length_bytes: run + len })
                }
                (Some(DifferenceLine::Zero { offset_bytes: at, length_bytes: run }), true)
                    if at + run == offset_bytes =>
                {
                    Some(DifferenceLine::Zero { offset_bytes: at, length_bytes: run + len })
                }
                (before, zero) => {
                    before.map(|before| line(&mut lines, before)).transpose()?;
                    Some(match zero {
                        true => DifferenceLine::Zero { offset_bytes, length_bytes },
                        false => DifferenceLine::Data { offset_bytes, length_bytes },
                    })
                }
            };
        }
        // An empty piece notices that the client is gone.
        sink.send(std::mem::take(&mut lines)).await?;
        progress(offset, size);
        tokio::task::yield_now().await;
    }
    last.map(|last| line(&mut lines, last)).transpose()?;
    let from_size_bytes = export.since().map(Since::size);
    line(&mut lines, DifferenceLine::End { size_bytes: size, from_size_bytes, data_bytes, zero_bytes })?;
    sink.send(lines).await
}

/// Sends a stream: what has changed, in records of at most [`MAX_DATA`] bytes.
async fn send_stream(
    header: &Header,
    export: &Export,
    sink: &mut Sink,
    progress: &mut impl FnMut(u64, u64),
) -> Result<()> {
    let (mut encoder, begin) = Encoder::begin(header);
    sink.send(begin).await?;
    let (size, mut offset) = (export.size(), header.position.offset);
    while offset < size {
        for Changed { len, changed, zero } in export.changes(offset, size - offset, EXTENTS).await? {
            let (mut at, end) = (offset, offset + len);
            offset = end;
            if changed && zero {
                sink.send(encoder.zero(at, len)).await?;
            }
            while changed && !zero && at < end {
                let piece = (end - at).min(MAX_DATA);
                let data = read(export, at, piece, piece).await?;
                sink.send(encoder.data(at, &data)).await?;
                at += piece;
                progress(at, size);
            }
        }
        progress(offset, size);
        tokio::task::yield_now().await;
    }
    sink.send(encoder.end()).await
}

async fn send_qcow2(
    layout: &Layout,
    export: &Export,
    sink: &mut Sink,
    progress: &mut impl FnMut(u64, u64),
) -> Result<()> {
    let total = layout.len();
    for cluster in 0..layout.metadata_clusters() {
        sink.send(layout.metadata(cluster)).await?;
        progress(sink.sent, total);
    }
    let (mut tables, mut clusters) = (layout.l2_tables_in_order(), Clusters::new(export));
    while let Some((mut first, end)) = clusters.next().await? {
        while first < end {
            let end_here = end.min((first / L2_ENTRIES + 1) * L2_ENTRIES);
            if let Some(table) = tables.add(first, end_here) {
                sink.send(table).await?;
            }
            first = end_here;
        }
    }
    if let Some(table) = tables.end() {
        sink.send(table).await?;
    }
    progress(sink.sent, total);
    let (mut clusters, size) = (Clusters::new(export), export.size());
    while let Some((first, end)) = clusters.next().await? {
        for (offset, len) in pieces(first * CLUSTER, (end - first) * CLUSTER) {
            // The disk may end within its last cluster.
            sink.send(read(export, offset, len.min(size - offset), len).await?).await?;
            progress(sink.sent, total);
        }
    }
    // A block map that changed during the export would have given a file with wrong tables.
    match sink.sent == total {
        true => Ok(()),
        false => Err(ControlError::internal("the extents of the disk changed during the export")),
    }
}

/// Divides a range into pieces: the offset and the length of each one.
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = offset + len;
    (offset..end).step_by(PIECE as usize).map(move |at| (at, (end - at).min(PIECE)))
}

/// Reads `len` bytes at `offset`, and adds zeroes up to a length of `padded`.
async fn read(export: &Export, offset: u64, len: u64, padded: u64) -> Result<Vec<u8>> {
    // Data in RAM is read without waiting, and other requests of this thread have their turn.
    tokio::task::yield_now().await;
    let mut bytes = vec![0; padded as usize];
    export.read(offset, &mut bytes[..len as usize]).await?;
    Ok(bytes)
}

/// The ranges of a disk that have data, in order.
struct Runs<'a> {
    export: &'a Export,
    /// Where the look-up continues.
    at: u64,
    found: VecDeque<(u64, u64)>,
}

impl<'a> Runs<'a> {
    fn new(export: &'a Export) -> Runs<'a> {
        Runs { export, at: 0, found: VecDeque::new() }
    }

    /// The offset and the length of the next range.
    async fn next(&mut self) -> Result<Option<(u64, u64)>> {
        let size = self.export.size();
        while self.found.is_empty() && self.at < size {
            for extent in self.export.extents(self.at, size - self.at, EXTENTS).await? {
                if !extent.zero {
                    self.found.push_back((self.at, extent.len));
                }
                self.at += extent.len;
            }
        }
        Ok(self.found.pop_front())
    }
}

/// The clusters of a qcow2 file that have data, in order.
struct Clusters<'a> {
    runs: Runs<'a>,
    /// The end of the clusters that were returned.
    end: u64,
}

impl<'a> Clusters<'a> {
    fn new(export: &'a Export) -> Clusters<'a> {
        Clusters { runs: Runs::new(export), end: 0 }
    }

    /// The first cluster of the next range, and the first one after the range.
    async fn next(&mut self) -> Result<Option<(u64, u64)>> {
        while let Some((offset, len)) = self.runs.next().await? {
            let (first, end) = ((offset / CLUSTER).max(self.end), (offset + len).div_ceil(CLUSTER));
            if first < end {
                self.end = end;
                return Ok(Some((first, end)));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_receives_nothing_ends_the_export() {
        let (pieces, mut received) = mpsc::channel(1);
        let mut sink = Sink::new(pieces, Duration::from_secs(300), Box::new(|| Ok(())));
        sink.send(vec![1]).await.unwrap();
        let error = sink.send(vec![2]).await.unwrap_err();
        assert!(error.message.contains("nothing for too long"), "{error}");
        received.recv().await.unwrap();
        sink.send(vec![3]).await.unwrap();
        drop(received);
        assert!(sink.send(vec![4]).await.unwrap_err().message.contains("disconnected"));
    }

    #[tokio::test]
    async fn a_client_that_loses_its_right_gets_no_further_piece() {
        let (pieces, mut received) = mpsc::channel(4);
        let lost = || Err(ControlError::new(ErrorKind::Cancelled, "the token was revoked"));
        let mut sink = Sink::new(pieces, Duration::from_secs(300), Box::new(lost));
        assert!(sink.send(vec![1]).await.is_err());
        drop(sink);
        assert!(received.recv().await.is_none());
    }

    #[test]
    fn ranges_are_divided_into_pieces() {
        let found: Vec<_> = pieces(PIECE / 2, 2 * PIECE + 1).collect();
        assert_eq!(found, [(PIECE / 2, PIECE), (PIECE / 2 + PIECE, PIECE), (PIECE / 2 + 2 * PIECE, 1)]);
    }
}
