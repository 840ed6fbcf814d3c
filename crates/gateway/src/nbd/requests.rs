//! The unanswered requests of a client: requests that have to be sent to the owner, and sent again to the
//! next owner. This module does no I/O.
//!
//! Each request gets a cookie of this side, since clients may give one cookie to several requests. Requests
//! are sent in the order in which they arrived, with one exception: **a change that overlaps an earlier
//! change waits until the earlier change is answered.** So of the changes of a connection to any byte, at
//! most one is at the owner at any time. [`super`] argues why this makes it safe to send requests again.

use std::collections::VecDeque;

use forebay_wire::nbd::{
    CMD_BLOCK_STATUS, CMD_DISC, CMD_READ, CMD_TRIM, CMD_WRITE, CMD_WRITE_ZEROES, COOKIE, MAX_PAYLOAD,
    REQUEST_HEADER, REQUEST_MAGIC, RequestHeader,
};

use super::limits::{BLOCK_STATUS_REPLY, MAX_REQUESTS, REQUEST};

/// Bits of a cookie that hold the number of a slot; the others hold the number of the request.
const SLOT_BITS: u32 = 16;

/// The memory of a request with its payload and its reply, in bytes.
pub(super) fn cost_of(header: &RequestHeader) -> usize {
    REQUEST
        + match header.kind {
            CMD_READ | CMD_WRITE => header.len.min(MAX_PAYLOAD) as usize,
            CMD_BLOCK_STATUS => BLOCK_STATUS_REPLY,
            _ => 0,
        }
}

/// A request as it is sent.
fn encode(header: &RequestHeader, cookie: u64) -> [u8; REQUEST_HEADER] {
    let mut bytes = [0; REQUEST_HEADER];
    bytes[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    bytes[4..6].copy_from_slice(&header.flags.to_be_bytes());
    bytes[6..8].copy_from_slice(&header.kind.to_be_bytes());
    bytes[COOKIE].copy_from_slice(&cookie.to_be_bytes());
    bytes[16..24].copy_from_slice(&header.offset.to_be_bytes());
    bytes[24..28].copy_from_slice(&header.len.to_be_bytes());
    bytes
}

/// The request with which a client disconnects.
pub(super) fn disconnect() -> [u8; REQUEST_HEADER] {
    encode(&RequestHeader { flags: 0, kind: CMD_DISC, cookie: 0, offset: 0, len: 0 }, 0)
}

/// Number of a slot of [`Requests`].
pub(super) type Slot = u16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The request is not sent, or not completely.
    Unsent,
    /// The request was sent completely.
    Sent,
}

/// A request that is not answered completely.
#[derive(Debug)]
pub(super) struct Request {
    /// The header as the client sent it.
    pub header: RequestHeader,
    pub payload: Vec<u8>,
    /// Number of the request in the order of arrival.
    number: u64,
    state: State,
    /// Number of earlier changes that overlap this change and are not answered.
    waits_for: usize,
    /// Ranges of a read whose data the client has received: offset and length.
    pub relayed: Vec<(u64, u32)>,
    /// The request was sent to another owner before.
    pub is_repeated: bool,
}

impl Request {
    /// The range that the request changes.
    fn changes(&self) -> Option<(u64, u64)> {
        let RequestHeader { kind, offset, len, .. } = self.header;
        matches!(kind, CMD_WRITE | CMD_WRITE_ZEROES | CMD_TRIM)
            .then(|| (offset, offset.saturating_add(len.into())))
    }

    /// Bytes of memory that are charged to the client for the request.
    pub fn cost(&self) -> usize {
        cost_of(&self.header)
    }
}

/// A change that is not answered.
#[derive(Debug, Clone, Copy)]
struct Change {
    start: u64,
    end: u64,
    slot: Slot,
}

impl Change {
    fn overlaps(&self, other: (u64, u64)) -> bool {
        self.start < other.1 && other.0 < self.end
    }
}

/// The unanswered requests of a connection.
#[derive(Debug, Default)]
pub(super) struct Requests {
    slots: Vec<Option<Request>>,
    free: Vec<Slot>,
    count: usize,
    last_number: u64,
    changes: Vec<Change>,
    /// Number of changes that wait for earlier ones.
    waiting: usize,
    /// The requests to be sent, in their order.
    queue: VecDeque<Slot>,
}

impl Requests {
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether no further request can be added.
    pub fn is_full(&self) -> bool {
        self.count >= MAX_REQUESTS
    }

    /// Whether changes are unanswered.
    pub fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Whether all requests are sent, or on their way.
    #[cfg(test)]
    fn all_sent(&self) -> bool {
        self.queue.is_empty() && self.waiting == 0
    }

    /// Adds a request with its complete payload.
    pub fn add(&mut self, header: RequestHeader, payload: Vec<u8>) {
        self.last_number += 1;
        let number = self.last_number;
        let mut request = Request {
            header,
            payload,
            number,
            state: State::Unsent,
            waits_for: 0,
            relayed: Vec::new(),
            is_repeated: false,
        };
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            (self.slots.len() - 1) as Slot
        });
        if let Some(range) = request.changes() {
            request.waits_for = self.changes.iter().filter(|change| change.overlaps(range)).count();
            self.changes.push(Change { start: range.0, end: range.1, slot });
        }
        if request.waits_for > 0 {
            self.waiting += 1;
        } else {
            self.queue.push_back(slot);
        }
        self.slots[usize::from(slot)] = Some(request);
        self.count += 1;
    }

    /// The next request to be sent.
    pub fn next(&mut self) -> Option<Slot> {
        self.queue.pop_front()
    }

    /// The header of a request as it is sent, and its payload.
    pub fn message(&self, slot: Slot) -> Option<([u8; REQUEST_HEADER], &[u8])> {
        let request = self.slots.get(usize::from(slot))?.as_ref()?;
        let cookie = request.number << SLOT_BITS | u64::from(slot);
        Some((encode(&request.header, cookie), &request.payload))
    }

    /// Records that a request was sent completely.
    pub fn sent(&mut self, slot: Slot) {
        if let Some(request) = self.slots.get_mut(usize::from(slot)).and_then(Option::as_mut) {
            request.state = State::Sent;
        }
    }

    /// The request with this cookie. `None` if no such request was sent.
    pub fn get(&mut self, cookie: u64) -> Option<&mut Request> {
        let request = self.slots.get_mut(usize::from(cookie as Slot))?.as_mut()?;
        (request.number == cookie >> SLOT_BITS && request.state == State::Sent).then_some(request)
    }

    /// Removes the request with this cookie, which was answered completely. Changes that waited for it are to
    /// be sent.
    pub fn remove(&mut self, cookie: u64) -> Option<Request> {
        self.get(cookie)?;
        let slot = cookie as Slot;
        let request = self.slots[usize::from(slot)].take()?;
        self.free.push(slot);
        self.count -= 1;
        if let Some(range) = request.changes() {
            self.changes.retain(|change| change.slot != slot);
            if self.waiting > 0 {
                self.release(range, request.number);
            }
        }
        Some(request)
    }

    /// Lets changes continue that waited for a change of this range.
    fn release(&mut self, range: (u64, u64), number: u64) {
        let mut free = Vec::new();
        for change in self.changes.iter().filter(|change| change.overlaps(range)) {
            let Some(request) = &mut self.slots[usize::from(change.slot)] else { continue };
            if request.number > number && request.waits_for > 0 {
                request.waits_for -= 1;
                if request.waits_for == 0 {
                    free.push((request.number, change.slot));
                }
            }
        }
        self.waiting -= free.len();
        free.sort_unstable();
        self.queue.extend(free.into_iter().map(|(_, slot)| slot));
    }

    /// Prepares all requests to be sent to another owner, in their order. Returns how many are repeated.
    pub fn restart(&mut self) -> usize {
        let mut repeated = 0;
        let mut order = Vec::with_capacity(self.count);
        for (slot, request) in (0..).zip(&mut self.slots) {
            let Some(request) = request else { continue };
            if request.state == State::Sent {
                request.is_repeated = true;
                repeated += 1;
            }
            request.state = State::Unsent;
            if request.waits_for == 0 {
                order.push((request.number, slot));
            }
        }
        order.sort_unstable();
        self.queue = order.into_iter().map(|(_, slot)| slot).collect();
        repeated
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(kind: u16, offset: u64, len: u32) -> RequestHeader {
        RequestHeader { flags: 0, kind, cookie: 7, offset, len }
    }

    fn cookie(requests: &Requests, slot: Slot) -> u64 {
        let (bytes, _) = requests.message(slot).unwrap();
        u64::from_be_bytes(bytes[COOKIE].try_into().unwrap())
    }

    /// Sends all requests that can be sent. Returns their cookies.
    fn send(requests: &mut Requests) -> Vec<u64> {
        let mut cookies = Vec::new();
        while let Some(slot) = requests.next() {
            requests.sent(slot);
            cookies.push(cookie(requests, slot));
        }
        cookies
    }

    fn offset(requests: &mut Requests, cookie: u64) -> u64 {
        requests.get(cookie).unwrap().header.offset
    }

    #[test]
    fn requests_are_sent_again_in_their_order() {
        let mut requests = Requests::default();
        (0..5).for_each(|n| requests.add(header(CMD_WRITE, n * 10, 10), vec![n as u8; 10]));
        let sent = send(&mut requests);
        assert_eq!(sent.len(), 5);
        requests.remove(sent[1]).unwrap();
        requests.remove(sent[3]).unwrap();
        assert!(requests.remove(sent[3]).is_none(), "each request is answered once");
        // The slot of an answered request is used again.
        requests.add(header(CMD_READ, 70, 10), Vec::new());
        assert_eq!(requests.restart(), 3);
        let again = send(&mut requests);
        let offsets: Vec<u64> = again.iter().map(|c| offset(&mut requests, *c)).collect();
        assert_eq!(offsets, [0, 20, 40, 70]);
        assert_eq!(again[..3], [sent[0], sent[2], sent[4]]);
    }

    #[test]
    fn a_change_waits_for_earlier_changes_that_it_overlaps() {
        let mut requests = Requests::default();
        for (kind, at, len) in [
            (CMD_WRITE, 0, 20),
            (CMD_WRITE_ZEROES, 10, 20),
            (CMD_TRIM, 25, 10),
            (CMD_READ, 0, 100),
            (CMD_WRITE, 40, 10),
            (CMD_WRITE, 0, 50),
        ] {
            requests.add(header(kind, at, len), Vec::new());
        }
        let first = send(&mut requests);
        let offsets: Vec<u64> = first.iter().map(|c| offset(&mut requests, *c)).collect();
        assert_eq!(offsets, [0, 0, 40], "the first write, the read, and the write that overlaps no other");
        assert!(!requests.all_sent());
        requests.remove(first[1]).unwrap();
        assert!(send(&mut requests).is_empty());
        requests.restart();
        assert_eq!(send(&mut requests), [first[0], first[2]]);
        for expected in [10, 25] {
            let done = first[0];
            let next = match expected {
                10 => requests.remove(done),
                _ => {
                    let zeroes = requests.changes.iter().find(|c| c.start == 10).unwrap().slot;
                    let zeroes = cookie(&requests, zeroes);
                    requests.remove(zeroes)
                }
            };
            next.unwrap();
            let sent = send(&mut requests);
            assert_eq!(sent.len(), 1);
            assert_eq!(offset(&mut requests, sent[0]), expected);
        }
        let trim = requests.changes.iter().find(|c| c.start == 25).unwrap().slot;
        let trim = cookie(&requests, trim);
        requests.remove(trim).unwrap();
        assert!(send(&mut requests).is_empty(), "the last write waits for the write at 40");
        requests.remove(first[2]).unwrap();
        assert_eq!(send(&mut requests).len(), 1);
        assert!(requests.all_sent());
    }

    #[test]
    fn a_reply_to_a_request_that_was_not_sent_is_not_accepted() {
        let mut requests = Requests::default();
        requests.add(header(CMD_WRITE, 0, 10), vec![0; 10]);
        let slot = requests.next().unwrap();
        let cookie = cookie(&requests, slot);
        assert!(requests.get(cookie).is_none());
        requests.sent(slot);
        assert!(requests.get(cookie + (1 << SLOT_BITS)).is_none());
        assert!(requests.get(cookie).is_some());
    }
}
