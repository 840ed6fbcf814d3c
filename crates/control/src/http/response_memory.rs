//! The memory of responses that wait until their clients read them.
//!
//! The server keeps the part of a response that its client has not read. **Bounds.** A response holds at most
//! [`FREE`] bytes, and more only with a [`Reservation`] of the difference. All reservations of a listener
//! together have at most [`TOTAL`] bytes. The reservations of one client have at most as many bytes as are
//! left for the other clients, so a client that reads slowly leaves memory to other clients. The control
//! socket is a separate listener.
//!
//! Without a reservation, a list of disks is sent piece by piece without an entity tag, a page of that list
//! ends early, and another response is refused.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use forebay_frontend::shares::Shares;
use http_body_util::BodyExt;
use hyper::body::{Buf, Bytes, Frame, SizeHint};
use parking_lot::Mutex;

use super::problem::{ApiError, Refusal, Result};

/// Bytes of a response that need no reservation.
pub(super) const FREE: usize = 64 << 10;
/// Maximum bytes of all reservations of a listener together.
pub(super) const TOTAL: usize = 32 << 20;
/// Maximum bytes of a piece that is given to the connection.
const PIECE: usize = 32 << 10;

/// The reservations of a listener.
#[derive(Debug, Clone, Default)]
pub(super) struct ResponseMemory(Arc<Mutex<Reserved>>);

#[derive(Debug, Default)]
struct Reserved {
    all: usize,
    shares: Shares<String>,
}

/// The memory that is reserved for one response, until all clones are dropped.
#[derive(Debug, Clone)]
pub(super) struct Reservation(Arc<OfResponse>);

#[derive(Debug)]
struct OfResponse {
    memory: ResponseMemory,
    owner: String,
    bytes: Mutex<usize>,
}

impl ResponseMemory {
    /// Begins a response to this client.
    pub fn begin(&self, owner: String) -> Reservation {
        Reservation(Arc::new(OfResponse { memory: self.clone(), owner, bytes: Mutex::new(0) }))
    }

    #[cfg(test)]
    fn reserved(&self) -> usize {
        self.0.lock().all
    }
}

impl Reservation {
    /// Reserves memory for a response of `len` bytes in all. False if there is not enough memory; then the
    /// reservation is unchanged.
    pub fn extend_to(&self, len: usize) -> bool {
        let mut bytes = self.0.bytes.lock();
        let more = len.saturating_sub(FREE).saturating_sub(*bytes);
        if more == 0 {
            return true;
        }
        let mut reserved = self.0.memory.0.lock();
        let all = reserved.all.saturating_add(more);
        let own = reserved.shares.of(&self.0.owner).saturating_add(more);
        if all > TOTAL || own > TOTAL - all {
            return false;
        }
        reserved.all = all;
        reserved.shares.add(self.0.owner.clone(), more);
        *bytes += more;
        true
    }

    /// The body of a response that is in memory.
    ///
    /// # Errors
    /// [`Refusal::TooManyResponses`]
    pub fn body(self, text: impl Into<Bytes>) -> Result<Body> {
        let mut waiting = Waiting::new(self.clone());
        waiting.push(text.into());
        match self.extend_to(waiting.len) {
            true => Ok(Body::new(waiting)),
            false => Err(refused()),
        }
    }
}

impl Drop for OfResponse {
    fn drop(&mut self) {
        let bytes = *self.bytes.lock();
        if bytes > 0 {
            let mut reserved = self.memory.0.lock();
            reserved.all -= bytes;
            reserved.shares.remove(&self.owner, bytes);
        }
    }
}

/// The error for a response that is too long for the memory that is left.
pub(super) fn refused() -> ApiError {
    let detail = "the client has not read the long responses to its earlier requests";
    ApiError::refused(Refusal::TooManyResponses, detail).retry_after(1)
}

/// The body of a response: the part that was read into memory, and the part that was not read yet.
pub(super) struct Waiting {
    pieces: VecDeque<Bytes>,
    /// Number of bytes in `pieces`, all together.
    pub len: usize,
    /// The reservation for the pieces; dropped with the last piece.
    reservation: Option<Reservation>,
    rest: Option<Body>,
}

impl Waiting {
    pub fn new(reservation: Reservation) -> Waiting {
        Waiting { pieces: VecDeque::new(), len: 0, reservation: Some(reservation), rest: None }
    }

    fn push(&mut self, piece: Bytes) {
        self.len += piece.len();
        self.pieces.push_back(piece);
    }

    /// The parts of the body that were read.
    pub fn pieces(&self) -> impl Iterator<Item = &Bytes> {
        self.pieces.iter()
    }

    /// Reads a body until the part in memory has more than `most` bytes, or no memory can be reserved.
    /// Returns whether the body was read completely; if not, the unread part is sent after the read part.
    pub async fn fill(&mut self, mut body: Body, most: usize) -> std::result::Result<bool, axum::Error> {
        while let Some(frame) = body.frame().await {
            if let Ok(piece) = frame?.into_data() {
                self.push(piece);
            }
            let is_reserved = self.reservation.as_ref().is_none_or(|r| r.extend_to(self.len));
            if self.len > most || !is_reserved {
                self.rest = (!hyper::body::Body::is_end_stream(&body)).then_some(body);
                return Ok(false);
            }
        }
        Ok(true)
    }
}

impl hyper::body::Body for Waiting {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, axum::Error>>> {
        let Some(first) = self.pieces.front_mut() else {
            return self.rest.as_mut().map_or(Poll::Ready(None), |rest| Pin::new(rest).poll_frame(cx));
        };
        // A copy: a part of the whole would keep the whole in memory until the client has read this part.
        let piece = Bytes::copy_from_slice(&first[..first.len().min(PIECE)]);
        first.advance(piece.len());
        if first.is_empty() {
            self.pieces.pop_front();
        }
        self.len -= piece.len();
        if self.pieces.is_empty() {
            self.reservation = None;
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.is_empty() && self.rest.as_ref().is_none_or(hyper::body::Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        match self.rest {
            None => SizeHint::with_exact(self.len as u64),
            Some(_) => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::response::Response;

    use super::super::streamed;
    use super::*;

    /// Reserves memory for responses of `len` bytes until a response gets no memory.
    fn exhaust(memory: &ResponseMemory, owner: &str, len: usize) -> Vec<Reservation> {
        let begin = || Some(memory.begin(owner.to_owned())).filter(|r| r.extend_to(len));
        std::iter::from_fn(begin).collect()
    }

    #[test]
    fn a_client_leaves_as_much_memory_as_it_has() {
        let memory = ResponseMemory::default();
        let reader = exhaust(&memory, "reader", 1 << 20);
        let most = reader.len();
        assert!((15..18).contains(&most), "{most} responses of 1 MiB");
        let other = exhaust(&memory, "other", 1 << 20);
        assert!((7..10).contains(&other.len()), "{} responses of another client", other.len());
        assert!(memory.reserved() <= TOTAL);
        // A short response needs no reservation.
        assert!(memory.begin("reader".into()).extend_to(FREE));
        drop((reader, other));
        assert_eq!((memory.reserved(), memory.0.lock().shares.largest()), (0, 0));
        assert_eq!(exhaust(&memory, "reader", 1 << 20).len(), most);
    }

    #[test]
    fn memory_that_is_not_left_is_not_reserved() {
        let memory = ResponseMemory::default();
        let one = memory.begin("a".into());
        assert!(!one.extend_to(TOTAL) && !one.extend_to(usize::MAX) && one.extend_to(TOTAL / 2));
        assert_eq!(memory.reserved(), TOTAL / 2 - FREE);
        assert!(one.extend_to(FREE), "a reservation does not become smaller");
        assert_eq!(memory.reserved(), TOTAL / 2 - FREE);
    }

    #[tokio::test]
    async fn a_body_has_memory_until_its_last_piece_is_taken() {
        let memory = ResponseMemory::default();
        let text: Vec<u8> = (0..1 << 20).map(|i: u32| i.to_le_bytes()[0]).collect();
        let mut body = memory.begin("a".into()).body(text.clone()).unwrap();
        assert_eq!(hyper::body::Body::size_hint(&body).exact(), Some(1 << 20));
        let mut read: Vec<u8> = Vec::new();
        while let Some(frame) = body.frame().await {
            let piece = frame.unwrap().into_data().unwrap();
            read.extend(&piece);
            assert!(piece.len() <= PIECE);
            assert_eq!(memory.reserved(), if read.len() == text.len() { 0 } else { (1 << 20) - FREE });
        }
        assert!(read == text);
    }

    #[tokio::test]
    async fn slow_readers_of_long_lists_hold_a_bounded_part_of_them() {
        const STRETCHES: u64 = 2000;
        let list = || {
            let mut stretches = 0..STRETCHES;
            let next = move || Ok(stretches.next().map(|n| vec![format!("{n:0>400}"); 64]));
            streamed::respond(next).into_body()
        };
        let (memory, mut waiting) = (ResponseMemory::default(), Vec::new());
        for _ in 0..60 {
            let mut one = Waiting::new(memory.begin("reader".into()));
            assert!(!one.fill(list(), 4 << 20).await.unwrap(), "the whole list is in memory");
            waiting.push(one);
        }
        let held: usize = waiting.iter().map(|one| one.len).sum();
        assert!(held < TOTAL / 2 + 60 * 2 * FREE, "{held} bytes");
        // Another client still gets memory, and each list is complete.
        let mut other = Waiting::new(memory.begin("other".into()));
        other.fill(list(), 4 << 20).await.unwrap();
        assert!(other.len > 4 << 20);
        for one in [other, waiting.pop().unwrap()] {
            let text = Response::new(Body::new(one)).into_body().collect().await.unwrap().to_bytes();
            let found: Vec<String> = serde_json::from_slice(&text).unwrap();
            assert_eq!(found.len() as u64, 64 * STRETCHES);
        }
    }
}
