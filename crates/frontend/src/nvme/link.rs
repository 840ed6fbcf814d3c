//! The outgoing side of a queue, shared with its tasks: completions, data, and requests for data.

use std::cell::{Cell, RefCell};
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
    /// Where PDUs of commands that are served at once are encoded, so that they cost no allocation.
    scratch: RefCell<Vec<u8>>,
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
        let (scratch, is_ended) = (RefCell::default(), Cell::new(false));
        Link { backlog, framing, queue, entries, omits_success, head, scratch, is_ended }
    }

    /// Counts a command that has left the submission queue.
    pub fn fetched(&self) {
        self.head.set((self.head.get() + 1) % self.entries.max(1));
    }

    fn completion(&self, command: u16, status: Status, result: u64, out: &mut Vec<u8>) {
        let (queue, head) = (self.queue, self.head.get());
        self.framing.complete(&Completion { command, queue, head, result, status }, out);
    }

    /// Encodes PDUs, and passes their bytes on.
    pub fn encoded<T>(&self, encode: impl FnOnce(&mut Vec<u8>), then: impl FnOnce(&[u8]) -> T) -> T {
        let mut scratch = self.scratch.take();
        scratch.clear();
        encode(&mut scratch);
        let done = then(&scratch);
        self.scratch.replace(scratch);
        done
    }

    /// Completes a command while the queue serves input.
    pub fn complete(&self, command: u16, status: Status, result: u64, output: &mut Output) {
        if !self.is_ended.get() {
            self.encoded(|out| self.completion(command, status, result, out), |bytes| output.push(bytes));
        }
    }

    /// Completes a command from a task.
    pub fn complete_later(&self, command: u16, status: Status) {
        if !self.is_ended.get() {
            let mut out = Vec::with_capacity(32);
            self.completion(command, status, 0, &mut out);
            self.backlog.push(out);
            self.backlog.wake();
        }
    }

    /// Sends data and the success of a command while the queue serves input.
    pub fn answer(&self, command: u16, data: &[u8], output: &mut Output) {
        if self.is_ended.get() {
            return;
        }
        let (framing, omits) = (self.framing, self.omits_success);
        self.encoded(
            |out| framing.put_data_header(command, data.len(), omits, out),
            |bytes| output.push(bytes),
        );
        output.push(data);
        self.encoded(|out| self.after_data(command, data, out), |bytes| output.push(bytes));
    }

    /// Appends what follows the data of a command that has succeeded.
    pub fn after_data(&self, command: u16, data: &[u8], out: &mut Vec<u8>) {
        self.framing.data_digest(data, out);
        if !self.omits_success {
            self.completion(command, Status::SUCCESS, 0, out);
        }
    }

    /// Sends data and the success of a command from a task; `charge` is for the memory of the data.
    pub fn answer_later(&self, command: u16, data: Vec<u8>, charge: Charge) {
        if self.is_ended.get() {
            return;
        }
        let mut after = Vec::with_capacity(40);
        self.after_data(command, &data, &mut after);
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
