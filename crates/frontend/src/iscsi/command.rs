//! The commands of a session: they are answered at once, or gather data, or run in a task.

use std::rc::Rc;
use std::sync::Arc;

use forebay_wire::iscsi::reply::{self, Residual};
use forebay_wire::iscsi::{Command, DataOut};
use forebay_wire::scsi::{self, Code, Sense, SenseKey, Transfer};

use super::gather::{Gather, OutOfOrder};
use super::link::{CommandSlot, Link, Sent};
use super::lun_map::LunMap;
use super::task::{Data, TASK_COST, Task, Tasks, moved, work};
use crate::exec::Now;
use crate::plane::{Charge, Kind, Output, Served, Worker};
use crate::scsi::{Nexus, Response, absent};

/// Maximum number of PDUs of a read that is answered at once; their headers fit into the room that the output
/// reserves for them.
const FAST_READ_PDUS: usize = 32;
/// PROTOCOL SERVICE CRC ERROR, and DATA PHASE ERROR for data out of order (11.4.7.2).
const CRC_ERROR: Code = Code(0x47, 0x05);
const DATA_PHASE_ERROR: Code = Code(0x4b, 0x00);
/// OVERLAPPED COMMANDS ATTEMPTED: the tag is in use.
const OVERLAPPED: Code = Code(0x4e, 0x00);

fn aborted(code: Code) -> Response {
    Response::check(&Sense::new(SenseKey::AbortedCommand, code), false)
}

/// Bytes that an initiator will send for a command.
fn expected_out(command: &Command<'_>) -> u64 {
    if command.write { command.expected.into() } else { 0 }
}

/// The memory that a command holds at its start.
enum Start {
    /// The command runs; the charge is for its memory.
    Run(Charge),
    /// The command gathers data, or has all of it; the charge is for the memory of the data.
    Gather(Gather, Charge),
}

/// The commands that a session executes.
pub(super) struct Commands {
    worker: Rc<Worker>,
    /// The units of the session; `None` for a discovery session.
    pub luns: Option<Arc<LunMap>>,
    link: Rc<Link>,
    pub tasks: Rc<Tasks>,
}

impl Commands {
    pub fn new(worker: Rc<Worker>, luns: Option<Arc<LunMap>>, link: Rc<Link>) -> Commands {
        let tasks = Tasks::new(link.clone(), worker.times().clone());
        Commands { worker, luns, tasks, link }
    }

    /// Answers a command at once. First gives the command's place back, so that the answer announces the free
    /// place.
    fn respond(
        &self,
        command: &Command<'_>,
        place: CommandSlot,
        moved: u64,
        response: &Response,
        output: &mut Output,
    ) {
        drop(place);
        let response = (response, Sent::default());
        self.link.respond(command.tag, command.expected, moved, response, |h, d| self.link.put(h, d, output));
    }

    /// Serves a command.
    pub fn command(&self, command: &Command<'_>, place: CommandSlot, output: &mut Output) {
        self.worker.pace().requested();
        if self.worker.closing() {
            return self.respond(command, place, 0, &Response::busy(), output);
        }
        let Some(luns) = &self.luns else {
            return self.respond(command, place, 0, &absent(&command.cdb, &[]), output);
        };
        let Some(nexus) = command.lun.number().and_then(|lun| luns.unit(lun)) else {
            let response = luns.without_nexus(command.lun.number(), &command.cdb);
            return self.respond(command, place, response.data_in.len() as u64, &response, output);
        };
        let admitted = match nexus.admit(&command.cdb) {
            Ok(admitted) => admitted,
            Err(response) => return self.respond(command, place, 0, &response, output),
        };
        let request = &admitted.request;
        if let Err(sense) = request.accepts(expected_out(command)) {
            let response = nexus.check(&sense);
            return self.respond(command, place, moved(request, &response), &response, output);
        }
        match *request {
            scsi::Request::Read { offset, len } if self.read_now(command, &nexus, offset, len, output) => {
                return self.tasks.executor.count(Served::Ram);
            }
            scsi::Request::Write { offset, len, fua } => {
                match self.write_now(command, &nexus, offset, len, fua) {
                    Now::Done => {
                        return self.respond(command, place, u64::from(len), &Response::good(), output);
                    }
                    Now::InBuffers => {
                        let charge = self.link.backlog.account().force(TASK_COST, Kind::Work);
                        let task = Task::new(command, nexus, admitted, None, place);
                        // The tag is unique within the session.
                        self.tasks.add(&task);
                        return self.tasks.run(task, Data::Written { fua }, charge);
                    }
                    Now::Wait => {}
                }
            }
            _ => {}
        }
        let Some(start) = self.charge(command, request) else {
            // Memory is short. Later commands, and data of other commands, must not wait behind this command.
            return self.respond(command, place, 0, &Response::busy(), output);
        };
        let (gather, runs) = match start {
            Start::Run(charge) => (None, Some((Data::Held(Vec::new()), charge))),
            Start::Gather(gather, charge) if gather.is_whole() => {
                (None, Some((Data::Held(gather.into_data().0), charge)))
            }
            Start::Gather(mut gather, charge) => {
                gather.charge(charge);
                (Some(gather), None)
            }
        };
        let task = Task::new(command, nexus, admitted, gather, place);
        if !self.tasks.add(&task) {
            return self.end(&task, &aborted(OVERLAPPED), output);
        }
        match runs {
            Some((data, charge)) => self.tasks.run(task, data, charge),
            None => self.solicit_more(output),
        }
    }

    /// Charges the memory that a command needs at first: to run, or, if it takes data, for its immediate and
    /// unsolicited data. `None` if this memory is not available.
    fn charge(&self, command: &Command<'_>, request: &scsi::Request) -> Option<Start> {
        let account = self.link.backlog.account();
        let Transfer::Out(len) = request.transfer() else {
            return Some(Start::Run(account.force(TASK_COST, Kind::Work)));
        };
        let (wanted, immediate, unsolicited) = self.data_of(command, len);
        let first = Gather::first_bytes(wanted, immediate.len(), unsolicited);
        let runs_now = immediate.len() >= wanted && unsolicited.is_none();
        let work = if runs_now { work(request) } else { 0 };
        let charge = account.try_take(TASK_COST + first + work, Kind::Input)?;
        Some(Start::Gather(Gather::new(wanted, immediate, unsolicited), charge))
    }

    /// Ends a task that does not run.
    fn end(&self, task: &Rc<Task>, response: &Response, output: &mut Output) {
        self.tasks.end(task, Some((response, Sent::default())), |h, d| self.link.put(h, d, output));
    }

    /// The data of a command that takes `len` bytes: the number of bytes to gather, the immediate data, and
    /// the number of bytes that the initiator can send unsolicited, including the immediate data.
    fn data_of<'a>(&self, command: &Command<'a>, len: u64) -> (usize, &'a [u8], Option<usize>) {
        let p = &self.link.parameters;
        let expected = expected_out(command) as usize;
        let wanted = usize::try_from(len).unwrap_or(usize::MAX).min(expected);
        let immediate = if command.write { command.data } else { &[] };
        let unsolicited = (!command.is_final && !p.initial_r2t).then(|| p.first_burst.min(expected));
        (wanted, immediate, unsolicited)
    }

    /// Requests data of a command, as far as the number of outstanding R2Ts allows it and if there is memory
    /// for the data.
    fn solicit(&self, task: &Rc<Task>, output: &mut Output) {
        let p = &self.link.parameters;
        let mut gather = task.gather.borrow_mut();
        let Some(gather) = gather.as_mut() else { return };
        loop {
            let tag = self.link.transfer_tag();
            let Some(s) = gather.solicit(tag, p.max_burst, p.max_outstanding_r2t) else { return };
            let numbers = self.link.numbers();
            let header = reply::r2t(task.lun, task.tag, tag, &numbers, s.r2t_sn, s.offset, s.len);
            self.link.put(&header, &[], output);
        }
    }

    /// Requests the data of waiting commands for which memory has become available, and runs the commands
    /// that have all of their data.
    pub fn solicit_more(&self, output: &mut Output) {
        while let Some(task) = self.tasks.next_to_solicit() {
            if task.gather.borrow().as_ref().is_some_and(Gather::is_whole) {
                self.run_gathered(task);
            } else {
                self.solicit(&task, output);
            }
        }
    }

    /// Runs a command that has gathered its data.
    fn run_gathered(&self, task: Rc<Task>) {
        let (data, charge) = self.tasks.stop_gathering(&task).map(Gather::into_data).unwrap_or_default();
        let account = self.link.backlog.account();
        let charge = charge.unwrap_or_else(|| account.force(data.capacity(), Kind::Input));
        self.tasks.run(task, Data::Held(data), charge);
    }

    /// Receives data of a command.
    pub fn data_out(&self, pdu: &DataOut<'_>, output: &mut Output) {
        // Data of a command that was already answered is ignored.
        let Some(task) = self.tasks.get(pdu.tag) else { return };
        let taken = task.gather.borrow_mut().as_mut().map(|gather| {
            gather.take(pdu).map(|()| (gather.is_whole(), gather.has_begun() || work(&task.request) == 0))
        });
        match taken {
            None => {}
            Some(Ok((false, _))) => self.solicit(&task, output),
            Some(Ok((true, true))) => self.run_gathered(task),
            // All data of the command arrived unsolicited, before there was memory to run it.
            Some(Ok((true, false))) => self.solicit_more(output),
            Some(Err(OutOfOrder)) => {
                self.tasks.stop_gathering(&task);
                self.end(&task, &aborted(DATA_PHASE_ERROR), output);
            }
        }
    }

    /// Ends the commands to units that were withdrawn, except for commands that run and change the unit.
    pub fn end_withdrawn(&self, output: &mut Output) {
        for task in self.tasks.withdrawn() {
            if self.tasks.stop_gathering(&task).is_some() {
                self.end(&task, &task.nexus.cleared(), output);
            }
        }
    }

    /// Fails the command whose data had a wrong digest.
    pub fn damaged_data(&self, tag: u32, output: &mut Output) {
        if let Some(task) = self.tasks.get(tag).filter(|t| self.tasks.stop_gathering(t).is_some()) {
            self.end(&task, &aborted(CRC_ERROR), output);
        }
    }

    /// Fails a command whose immediate data had a wrong digest.
    pub fn damaged_command(&self, command: &Command<'_>, place: CommandSlot, output: &mut Output) {
        self.respond(command, place, 0, &aborted(CRC_ERROR), output);
    }

    /// Reads directly into the output if that needs no wait; otherwise returns false.
    fn read_now(
        &self,
        command: &Command<'_>,
        nexus: &Nexus,
        offset: u64,
        len: u32,
        output: &mut Output,
    ) -> bool {
        let p = &self.link.parameters;
        let bytes = (len as usize).min(if command.read { command.expected as usize } else { 0 });
        let pieces = bytes.div_ceil(p.max_send);
        if bytes == 0 || bytes > output.fast_read_max() || bytes > p.max_burst || pieces > FAST_READ_PDUS {
            return false;
        }
        self.link.backlog.budget().count(bytes);
        let head = p.digests.header_len();
        let (out, _) = output.reserve(bytes + pieces * (head + 3 + 4), 0);
        let mut used = 0;
        for at in (0..bytes).step_by(p.max_send) {
            let piece = p.max_send.min(bytes - at);
            let data = &mut out[used + head..used + head + piece];
            if !matches!(self.tasks.executor.read_now(nexus.disk(), offset + at as u64, data), Ok(true)) {
                return false;
            }
            used += p.digests.pdu_len(piece);
        }
        let residual = Residual::of(command.expected.into(), len.into());
        let (mut used, mut data_sn) = (0, 0);
        for at in (0..bytes).step_by(p.max_send) {
            let piece = p.max_send.min(bytes - at);
            let header = if at + piece == bytes {
                let numbers = self.link.status_numbers();
                reply::data_in_with_status(command.tag, &numbers, data_sn, at as u32, piece, residual)
            } else {
                reply::data_in(command.tag, &self.link.numbers(), data_sn, at as u32, piece, false)
            };
            let next = used + p.digests.pdu_len(piece);
            p.digests.seal(&header, piece, &mut out[used..next]);
            (used, data_sn) = (next, data_sn + 1);
        }
        output.keep(used);
        true
    }

    /// Writes the immediate data of a command directly from the input, if that needs no wait and no other
    /// task has the command's tag.
    fn write_now(&self, command: &Command<'_>, nexus: &Nexus, offset: u64, len: u32, fua: bool) -> Now {
        let is_whole = command.data.len() == len as usize
            && expected_out(command) >= u64::from(len)
            && (command.is_final || self.link.parameters.initial_r2t);
        if !is_whole || len == 0 || self.tasks.get(command.tag).is_some() {
            return Now::Wait;
        }
        // A command that fails is served again in a task, which answers it with sense data.
        let written = self.tasks.executor.write_now(nexus.disk(), offset, command.data, nexus.durable(fua));
        written.unwrap_or(Now::Wait)
    }
}
