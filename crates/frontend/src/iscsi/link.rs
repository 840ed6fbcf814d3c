//! The outgoing side of a session, shared with its tasks: numbers, the command window, and PDUs to the
//! initiator.

use std::cell::Cell;
use std::rc::Rc;

use forebay_wire::iscsi::reply::{self, Numbers, Residual};
use forebay_wire::iscsi::{BHS, NO_TAG, Parameters};
use forebay_wire::scsi::Status;

use super::limits::WINDOW;
use crate::plane::{Backlog, Output};
use crate::scsi::Response;

/// The outgoing side of a session.
///
/// A PDU is numbered when it is built, and PDUs are sent in the order in which they were built: first those
/// of the backlog, to which no task adds while the session serves input, then those of the output.
pub(super) struct Link {
    pub backlog: Rc<Backlog>,
    pub parameters: Parameters,
    stat_sn: Cell<u32>,
    exp_cmd_sn: Cell<u32>,
    /// Number of commands under way that occupy a place in the window.
    under_way: Cell<u32>,
    next_transfer_tag: Cell<u32>,
}

/// A place in the command window. Dropping this guard gives the place back.
pub(super) struct CommandSlot(Option<Rc<Link>>);

/// Bytes of a long response that are sent in one turn of its task.
pub(super) const SENT_AT_ONCE: usize = 256 << 10;

/// The part of a response's data that was sent.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sent {
    bytes: usize,
    pdus: u32,
}

impl Drop for CommandSlot {
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
            next_transfer_tag: Cell::new(0),
        })
    }

    /// The number of the next PDU with status, and of the next command.
    pub fn next_numbers(&self) -> (u32, u32) {
        (self.stat_sn.get(), self.exp_cmd_sn.get())
    }

    /// The next target transfer tag.
    pub fn next_transfer_tag(&self) -> u32 {
        self.next_transfer_tag.get()
    }

    /// Sets the next transfer tag, so that it follows the tags of the former process.
    pub fn set_next_transfer_tag(&self, tag: u32) {
        self.next_transfer_tag.set(tag.min(NO_TAG - 1));
    }

    /// A new target transfer tag.
    pub fn transfer_tag(&self) -> u32 {
        let tag = self.next_transfer_tag.get();
        // NO_TAG is reserved.
        self.next_transfer_tag.set(if tag == NO_TAG - 1 { 0 } else { tag + 1 });
        tag
    }

    /// The number of the next command, and the number of free places in the window.
    pub fn window(&self) -> (u32, u32) {
        (self.exp_cmd_sn.get(), WINDOW - self.under_way.get())
    }

    /// Accepts a numbered command, or with `immediate` a command that does not use a number.
    pub fn take(self: &Rc<Self>, immediate: bool) -> CommandSlot {
        if immediate {
            return CommandSlot(None);
        }
        self.exp_cmd_sn.set(self.exp_cmd_sn.get().wrapping_add(1));
        self.under_way.set(self.under_way.get() + 1);
        CommandSlot(Some(self.clone()))
    }

    /// Returns the sequence numbers of a PDU without status.
    pub fn numbers(&self) -> Numbers {
        let (exp_cmd_sn, room) = self.window();
        Numbers {
            stat_sn: self.stat_sn.get(),
            exp_cmd_sn,
            max_cmd_sn: exp_cmd_sn.wrapping_add(room).wrapping_sub(1),
        }
    }

    /// Returns the sequence numbers of a PDU with status.
    pub fn status_numbers(&self) -> Numbers {
        let numbers = self.numbers();
        self.stat_sn.set(numbers.stat_sn.wrapping_add(1));
        numbers
    }

    /// Sends a PDU from a task.
    pub fn push(&self, header: &[u8; BHS], data: &[u8]) {
        self.backlog.push(self.sealed(header, data));
    }

    /// Sends a PDU from a task that charges its memory itself.
    pub fn push_charged(&self, header: &[u8; BHS], data: &[u8]) {
        self.backlog.push_charged(self.sealed(header, data), None);
    }

    fn sealed(&self, header: &[u8; BHS], data: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.parameters.digests.pdu_len(data.len()));
        self.parameters.digests.append(header, data, &mut bytes);
        bytes
    }

    /// Sends a PDU while the session serves input.
    pub fn put(&self, header: &[u8; BHS], data: &[u8], output: &mut Output) {
        let digests = self.parameters.digests;
        let len = digests.pdu_len(data.len());
        digests.put(header, data, output.reserve(len, 0).0);
        output.keep(len);
    }

    /// Sends the next [`SENT_AT_ONCE`] bytes of a long response from a task. Returns false if no more than
    /// that is left, which [`Link::respond`] sends.
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

    /// Answers a command for which the initiator expects `expected` bytes: sends the data that was not sent
    /// yet, cut to that length, then the status. `moved` is the number of bytes that the command transfers
    /// without that limit.
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
                // A length field precedes the sense data (11.4.7).
                sense.extend_from_slice(&(response.sense.len() as u16).to_be_bytes());
                sense.extend_from_slice(&response.sense);
            }
            let status = response.status as u8;
            send(&reply::scsi_response(tag, &numbers, status, residual, data_sn, sense.len()), &sense);
        }
    }
}
