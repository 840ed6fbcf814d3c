//! The outgoing side of a queue, shared with its tasks: completions, data, and requests for data.

use std::cell::Cell;
use std::rc::Rc;

use forebay_wire::nvme::reply::{Completion, Framing, terminate};
use forebay_wire::nvme::{FatalError, Status};

use crate::plane::{Backlog, Charge, Output};

/// The outgoing side of a queue.
pub(super) struct Link {
    pub backlog: Rc<Backlog>,
    pub framing: Framing,
    pub queue: u16,
    /// Number of entries of the submission queue.
    pub entries: u16,
    /// A read that succeeds needs no completion, since the host does without flow control.
    pub omits_success: bool,
    head: Cell<u16>,
    /// A fatal error was reported: nothing more is sent (Transport 3.5).
    is_ended: Cell<bool>,
}

impl Link {
    pub fn new(
        backlog: Rc<Backlog>,
        framing: Framing,
        (queue, entries, fetched): (u16, u16, u16),
        omits_success: bool,
    ) -> Link {
        // The Connect and the authentication have used entries.
        let head = Cell::new(fetched % entries.max(1));
        Link { backlog, framing, queue, entries, omits_success, head, is_ended: Cell::new(false) }
    }

    /// Counts a command that has left the submission queue.
    pub fn fetched(&self) {
        self.head.set((self.head.get() + 1) % self.entries.max(1));
    }

    fn completion(&self, command: u16, status: Status, result: u64) -> Vec<u8> {
        let (queue, head) = (self.queue, self.head.get());
        let mut out = Vec::with_capacity(32);
        self.framing.complete(&Completion { command, queue, head, result, status }, &mut out);
        out
    }

    /// Completes a command while the queue serves input.
    pub fn complete(&self, command: u16, status: Status, result: u64, output: &mut Output) {
        if !self.is_ended.get() {
            output.push(&self.completion(command, status, result));
        }
    }

    /// Completes a command from a task.
    pub fn complete_later(&self, command: u16, status: Status) {
        if !self.is_ended.get() {
            self.backlog.push(self.completion(command, status, 0));
            self.backlog.wake();
        }
    }

    /// Sends data and the success of a command while the queue serves input.
    pub fn answer(&self, command: u16, data: &[u8], output: &mut Output) {
        if self.is_ended.get() {
            return;
        }
        output.push(&self.framing.data_header(command, data.len(), self.omits_success));
        output.push(data);
        output.push(&self.after_data(command, data));
    }

    /// What follows the data of a command that has succeeded.
    pub fn after_data(&self, command: u16, data: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(40);
        self.framing.data_digest(data, &mut out);
        if !self.omits_success {
            out.append(&mut self.completion(command, Status::SUCCESS, 0));
        }
        out
    }

    /// Sends data and the success of a command from a task; `charge` is for the memory of the data.
    pub fn answer_later(&self, command: u16, data: Vec<u8>, charge: Charge) {
        if self.is_ended.get() {
            return;
        }
        let after = self.after_data(command, &data);
        self.backlog.push(self.framing.data_header(command, data.len(), self.omits_success));
        self.backlog.push_shrunk(data, charge);
        self.backlog.push(after);
        self.backlog.wake();
    }

    /// Requests data of a command.
    pub fn request(&self, command: u16, tag: u16, offset: u32, len: u32, output: &mut Output) {
        let mut out = Vec::with_capacity(32);
        self.framing.ready_to_transfer(command, tag, offset, len, &mut out);
        output.push(&out);
    }

    /// Reports a fatal error, after which nothing is sent.
    pub fn end(&self, error: FatalError, found: &[u8], output: &mut Output) {
        if !self.is_ended.replace(true) {
            output.push(&terminate(error, found));
        }
    }
}
