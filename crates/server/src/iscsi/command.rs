//! The commands of a session: what is answered at once, what gathers data, and what runs in a task.

use std::rc::Rc;

use forebay_engine::Fast;
use forebay_wire::iscsi::reply::{self, Residual};
use forebay_wire::iscsi::{Command, DataOut};
use forebay_wire::scsi::{self, Code, Sense, SenseKey, Status, Transfer};

use super::gather::{Gather, OutOfOrder};
use super::link::{Place, Sent};
use super::session::Session;
use super::task::{TASK_COST, Task, moved, work};
use crate::plane::{Charge, Kind, Output};
use crate::scsi::{Nexus, Response, Session as _, absent};

/// Most PDUs of one read that is answered at once; their headers fit into the room that the output keeps for them.
const FAST_READ_PDUS: usize = 32;
/// PROTOCOL SERVICE CRC ERROR, and DATA PHASE ERROR for data that is not in order (11.4.7.2).
pub(super) const CRC_ERROR: Code = Code(0x47, 0x05);
const DATA_PHASE_ERROR: Code = Code(0x4b, 0x00);
/// OVERLAPPED COMMANDS ATTEMPTED: the tag is in use.
const OVERLAPPED: Code = Code(0x4e, 0x00);

pub(super) fn aborted(code: Code) -> Response {
    Response::check(&Sense::new(SenseKey::AbortedCommand, code), false)
}

/// The initiator is to try it again later.
fn busy() -> Response {
    Response { status: Status::Busy, ..Response::good() }
}

/// Bytes that an initiator is going to send for a command.
fn expected_out(command: &Command<'_>) -> u64 {
    if command.write { command.expected.into() } else { 0 }
}

impl Session {
    /// Answers a command at once, which gives its place back first, so that the answer says so.
    pub(super) fn respond(
        &self,
        command: &Command<'_>,
        place: Place,
        moved: u64,
        response: &Response,
        output: &mut Output,
    ) {
        drop(place);
        let response = (response, Sent::default());
        self.link.respond(command.tag, command.expected, moved, response, |h, d| self.link.put(h, d, output));
    }

    pub(super) fn command(&mut self, command: &Command<'_>, place: Place, output: &mut Output) {
        if self.worker.closing() {
            return self.respond(command, place, 0, &busy(), output);
        }
        let Some(view) = &self.view else {
            return self.respond(command, place, 0, &absent(&command.cdb, &[]), output);
        };
        let Some(nexus) = command.lun.number().and_then(|lun| view.unit(lun)) else {
            let response = absent(&command.cdb, &view.luns());
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
                return;
            }
            scsi::Request::Write { offset, len, fua: false }
                if self.write_now(command, &nexus, offset, len) =>
            {
                return self.respond(command, place, u64::from(len), &Response::good(), output);
            }
            _ => {}
        }
        let Some((mut gather, mut charge)) = self.begin(command, request) else {
            // There is no memory for it. The commands behind it, and data of others, must not wait for some.
            return self.respond(command, place, 0, &busy(), output);
        };
        let data =
            gather.take_if(|gather| gather.is_whole()).map_or_else(Vec::new, |gather| gather.into_data().0);
        if let Some(gather) = &mut gather {
            charge.take().into_iter().for_each(|charge| gather.charge(charge));
        }
        let task = Task::new(command.tag, command.lun, command.expected, nexus, admitted, gather, place);
        if !self.tasks.add(&task) {
            return self.end(&task, &aborted(OVERLAPPED), output);
        }
        match charge {
            Some(charge) => self.tasks.run(task, data, charge),
            None => self.solicit_more(output),
        }
    }

    /// Takes the memory that a command needs at first: to run, or, where it takes data, for what comes unasked. `None`
    /// where there is none.
    #[allow(clippy::type_complexity)]
    fn begin(
        &self,
        command: &Command<'_>,
        request: &scsi::Request,
    ) -> Option<(Option<Gather>, Option<Charge>)> {
        let account = self.link.backlog.account();
        let Transfer::Out(len) = request.transfer() else {
            return Some((None, Some(account.force(TASK_COST, Kind::Work))));
        };
        let (wanted, immediate, unsolicited) = self.gathered(command, len);
        let first = Gather::first_bytes(wanted, immediate.len(), unsolicited);
        let runs_now = immediate.len() >= wanted && unsolicited.is_none();
        let work = if runs_now { work(request) } else { 0 };
        let charge = account.try_take(TASK_COST + first + work, Kind::Input)?;
        Some((Some(Gather::new(wanted, immediate, unsolicited)), Some(charge)))
    }

    /// Ends a task that does not run.
    pub(super) fn end(&self, task: &Rc<Task>, response: &Response, output: &mut Output) {
        self.tasks.end(task, Some((response, Sent::default())), |h, d| self.link.put(h, d, output));
    }

    /// How the data of a command comes that takes `len` bytes: how many of them, those that are here, and how many may
    /// follow unsolicited, those included.
    fn gathered<'a>(&self, command: &Command<'a>, len: u64) -> (usize, &'a [u8], Option<usize>) {
        let p = &self.link.parameters;
        let expected = expected_out(command) as usize;
        let wanted = usize::try_from(len).unwrap_or(usize::MAX).min(expected);
        let immediate = if command.write { command.data } else { &[] };
        let unsolicited = (!command.is_final && !p.initial_r2t).then(|| p.first_burst.min(expected));
        (wanted, immediate, unsolicited)
    }

    /// Asks for the data of a command, as far as there is room for it and the initiator takes R2Ts.
    fn solicit(&self, task: &Rc<Task>, output: &mut Output) {
        let p = &self.link.parameters;
        let mut gather = task.gather.borrow_mut();
        let Some(gather) = gather.as_mut() else { return };
        loop {
            let tag = self.transfer_tag();
            let Some(s) = gather.solicit(tag, p.max_burst, p.max_outstanding_r2t) else { return };
            let numbers = self.link.numbers();
            let header = reply::r2t(task.lun, task.tag, tag, &numbers, s.r2t_sn, s.offset, s.len);
            self.link.put(&header, &[], output);
        }
    }

    /// Asks for the data of commands that wait for room, where there is some.
    pub(super) fn solicit_more(&self, output: &mut Output) {
        while let Some(task) = self.tasks.next_to_ask() {
            self.solicit(&task, output);
        }
    }

    pub(super) fn data_out(&mut self, pdu: &DataOut<'_>, output: &mut Output) {
        // Data of a command that has been answered is left where it is.
        let Some(task) = self.tasks.get(pdu.tag) else { return };
        let taken =
            task.gather.borrow_mut().as_mut().map(|gather| gather.take(pdu).map(|()| gather.is_whole()));
        match taken {
            None => {}
            Some(Ok(false)) => self.solicit(&task, output),
            Some(Ok(true)) => {
                let (data, charge) =
                    self.tasks.stop_gathering(&task).map(Gather::into_data).unwrap_or_default();
                let charge =
                    charge.unwrap_or_else(|| self.link.backlog.account().force(data.capacity(), Kind::Input));
                self.tasks.run(task, data, charge);
            }
            Some(Err(OutOfOrder)) => {
                self.tasks.stop_gathering(&task);
                self.end(&task, &aborted(DATA_PHASE_ERROR), output);
            }
        }
    }

    /// Reads straight into the output, if that needs no waiting. False if it does.
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
            if !matches!(nexus.disk().try_read(offset + at as u64, data), Ok(Fast::Done)) {
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

    /// Writes data that came with its command straight from where it lies, if that needs no waiting. False if it does.
    fn write_now(&self, command: &Command<'_>, nexus: &Nexus, offset: u64, len: u32) -> bool {
        let is_whole = command.data.len() == len as usize
            && expected_out(command) >= u64::from(len)
            && (command.is_final || self.link.parameters.initial_r2t);
        is_whole
            && !nexus.durable(false)
            && matches!(nexus.disk().try_write(offset, command.data), Ok(Fast::Done))
    }
}
