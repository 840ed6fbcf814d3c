//! What the tasks of a session share with it: its numbers, and the way to the initiator.

use std::cell::Cell;
use std::rc::Rc;

use forebay_wire::iscsi::reply::{self, Numbers, Residual};
use forebay_wire::iscsi::{BHS, Parameters};
use forebay_wire::scsi::Status;

use super::connection::WINDOW;
use crate::plane::{Backlog, Output};
use crate::scsi::Response;

/// The way to one initiator.
///
/// A PDU is numbered when it is built, and built PDUs are sent in order: those of the backlog first, which no task
/// adds to while the session serves, then those of the output.
pub(super) struct Link {
    pub backlog: Rc<Backlog>,
    pub parameters: Parameters,
    stat_sn: Cell<u32>,
    exp_cmd_sn: Cell<u32>,
    /// Commands under way that take a place of the window.
    under_way: Cell<u32>,
}

/// A place in the command window; given back when dropped.
pub(super) struct Place(Option<Rc<Link>>);

/// Bytes of a long response that are sent in one turn of its task.
pub(super) const SENT_AT_ONCE: usize = 256 << 10;

/// What of the data of a response is sent.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sent {
    bytes: usize,
    pdus: u32,
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(link) = &self.0 {
            link.under_way.set(link.under_way.get() - 1);
        }
    }
}

impl Link {
    pub fn new(backlog: Rc<Backlog>, parameters: Parameters, stat_sn: u32, exp_cmd_sn: u32) -> Rc<Link> {
        Rc::new(Link {
            backlog,
            parameters,
            stat_sn: Cell::new(stat_sn),
            exp_cmd_sn: Cell::new(exp_cmd_sn),
            under_way: Cell::new(0),
        })
    }

    /// The number of the command that is to come, and how many may come.
    pub fn window(&self) -> (u32, u32) {
        (self.exp_cmd_sn.get(), WINDOW - self.under_way.get())
    }

    /// Takes a numbered command, or with `immediate` one without number.
    pub fn take(self: &Rc<Self>, immediate: bool) -> Place {
        if immediate {
            return Place(None);
        }
        self.exp_cmd_sn.set(self.exp_cmd_sn.get().wrapping_add(1));
        self.under_way.set(self.under_way.get() + 1);
        Place(Some(self.clone()))
    }

    /// The numbers of a PDU without status.
    pub fn numbers(&self) -> Numbers {
        let (exp_cmd_sn, room) = self.window();
        Numbers {
            stat_sn: self.stat_sn.get(),
            exp_cmd_sn,
            max_cmd_sn: exp_cmd_sn.wrapping_add(room).wrapping_sub(1),
        }
    }

    /// The numbers of a PDU with status.
    pub fn status_numbers(&self) -> Numbers {
        let numbers = self.numbers();
        self.stat_sn.set(numbers.stat_sn.wrapping_add(1));
        numbers
    }

    /// Sends a PDU from a task.
    pub fn push(&self, header: &[u8; BHS], data: &[u8]) {
        self.backlog.push(self.sealed(header, data));
    }

    /// Sends a PDU from a task that charges it itself.
    pub fn push_charged(&self, header: &[u8; BHS], data: &[u8]) {
        self.backlog.push_charged(self.sealed(header, data), None);
    }

    fn sealed(&self, header: &[u8; BHS], data: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.parameters.digests.pdu_len(data.len()));
        self.parameters.digests.append(header, data, &mut bytes);
        bytes
    }

    /// Sends a PDU while the session serves.
    pub fn put(&self, header: &[u8; BHS], data: &[u8], output: &mut Output) {
        let digests = self.parameters.digests;
        let len = digests.pdu_len(data.len());
        digests.put(header, data, output.reserve(len, 0).0);
        output.keep(len);
    }

    /// Sends the first data of a long response from a task, [`SENT_AT_ONCE`] bytes of it; false where the rest is for
    /// [`Link::respond`].
    pub fn push_some(&self, tag: u32, expected: u32, response: &Response, sent: &mut Sent) -> bool {
        let data = &response.data_in[..response.data_in.len().min(expected as usize)];
        let until = sent.bytes + SENT_AT_ONCE;
        if until >= data.len() {
            return false;
        }
        let (max_send, max_burst) = (self.parameters.max_send, self.parameters.max_burst);
        while sent.bytes < until {
            let burst_end = (sent.bytes / max_burst + 1) * max_burst;
            let end = (sent.bytes + max_send).min(burst_end).min(until);
            let piece = &data[sent.bytes..end];
            let last = end == burst_end;
            self.push_charged(
                &reply::data_in(tag, &self.numbers(), sent.pdus, sent.bytes as u32, piece.len(), last),
                piece,
            );
            *sent = Sent { bytes: end, pdus: sent.pdus + 1 };
        }
        true
    }

    /// Answers a command that was to transfer `expected` bytes: its data first, cut to what the initiator expects, but
    /// for what was sent. `moved` is how many bytes it would have transferred.
    pub fn respond(
        &self,
        tag: u32,
        expected: u32,
        moved: u64,
        (response, sent): (&Response, Sent),
        mut send: impl FnMut(&[u8; BHS], &[u8]),
    ) {
        let residual = Residual::of(expected.into(), moved);
        let data = &response.data_in[..response.data_in.len().min(expected as usize)];
        let is_good = response.status == Status::Good;
        let mut data_sn = sent.pdus;
        let (max_send, max_burst) = (self.parameters.max_send, self.parameters.max_burst);
        let mut at = sent.bytes;
        while at < data.len() {
            let burst_end = (at / max_burst + 1) * max_burst;
            let end = (at + max_send).min(burst_end).min(data.len());
            let piece = &data[at..end];
            let header = if end == data.len() && is_good {
                reply::data_in_with_status(
                    tag,
                    &self.status_numbers(),
                    data_sn,
                    at as u32,
                    piece.len(),
                    residual,
                )
            } else {
                let last = end == data.len() || end == burst_end;
                reply::data_in(tag, &self.numbers(), data_sn, at as u32, piece.len(), last)
            };
            send(&header, piece);
            data_sn += 1;
            at = end;
        }
        if data.is_empty() || !is_good {
            let numbers = self.status_numbers();
            let mut sense = Vec::new();
            if !response.sense.is_empty() {
                // 11.4.7: its length goes before it.
                sense.extend_from_slice(&(response.sense.len() as u16).to_be_bytes());
                sense.extend_from_slice(&response.sense);
            }
            let status = response.status as u8;
            send(&reply::scsi_response(tag, &numbers, status, residual, data_sn, sense.len()), &sense);
        }
    }
}
