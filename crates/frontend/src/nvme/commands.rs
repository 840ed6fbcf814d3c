//! The I/O commands of a queue: they are answered at once, or gather data, or run in a task.
//!
//! The data of a command is requested only when the queue has memory for all of it and to run. Data in the
//! capsule is bounded by the queue, and is taken without a wait.
//!
//! A command that is ended while it gathers is answered at once if its data was not requested; otherwise when
//! the last of its data has arrived, since the host may send the data in any case.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use forebay_wire::nvme::{
    COMPARE_AND_WRITE_MAX, DSM_RANGES_MAX, DataPdu, FatalError, Fuse, Io, Sgl, Sqe, Status,
};
use forebay_wire::scsi::{BLOCK, Request, ReserveIn, ReserveOut, VerifyCheck};

use super::controller::Controller;
use super::errors::status_of;
use super::link::Link;
use super::run::{Data, Run};
use crate::exec::{Executor, Now};
use crate::plane::{Charge, Claim, Front, Kind, Output, Served, Times};
use crate::scsi::{Admitted, Arrival, Nexus, Underway};

/// Bytes of memory that a command is charged, in addition to its data.
pub(super) const TASK_COST: usize = 4 << 10;
/// Maximum bytes of data that a queue requests at once, unless a single command is longer.
const MAX_GATHERED: usize = 16 << 20;

/// The data of one of the commands of a task: a fused operation has two.
pub(super) struct Part {
    pub command: u16,
    /// Offset in the data of the task, and length.
    start: usize,
    len: usize,
    received: Cell<usize>,
    /// The tag of the R2T; `None` if the data was in the capsule, or is not requested yet.
    tag: Cell<Option<u16>>,
}

/// A command in progress, or both commands of a fused operation.
pub(super) struct Task {
    pub parts: Vec<Part>,
    pub nexus: Arc<Nexus>,
    pub io: Io,
    pub request: Request,
    /// The change has to be made durable after it was made.
    pub flushes: bool,
    arrival: Arrival,
    /// Released when the command changes nothing any more.
    pub underway: Cell<Option<Underway>>,
    data: RefCell<Vec<u8>>,
    charge: Cell<Option<Charge>>,
    gathers: Cell<bool>,
    /// Memory for all of the data was reserved, and the data is requested.
    has_begun: Cell<bool>,
    /// The command fails with this status when its data has arrived.
    failed: Cell<Option<Status>>,
}

impl Task {
    fn total(&self) -> usize {
        self.parts.iter().map(|part| part.len).sum()
    }

    fn is_whole(&self) -> bool {
        self.parts.iter().all(|part| part.received.get() == part.len)
    }
}

/// A command as it arrived.
struct Arrived {
    sqe: Sqe,
    data: Vec<u8>,
    intact: bool,
}

/// The I/O commands of a queue.
pub(super) struct Commands {
    controller: Arc<Controller>,
    pub link: Rc<Link>,
    pub executor: Executor,
    /// Commands in progress, with the index of their part.
    by_id: RefCell<HashMap<u16, (Rc<Task>, usize)>>,
    /// The first command of a fused operation, whose second command has not arrived.
    first: RefCell<Option<Arrived>>,
    /// Tasks that gather and whose data is not requested yet, in order of arrival.
    waiting: RefCell<VecDeque<Rc<Task>>>,
    /// Total bytes of data of the tasks whose data is requested.
    requested: Cell<usize>,
    /// The memory for which the first of the waiting tasks waits.
    claim: RefCell<Option<Claim>>,
    next_tag: Cell<u16>,
}

impl Commands {
    pub fn new(controller: Arc<Controller>, link: Rc<Link>, times: Rc<Times>) -> Rc<Commands> {
        Rc::new(Commands {
            controller,
            executor: Executor::new(Front::Nvme, link.backlog.clone(), times),
            link,
            by_id: RefCell::default(),
            first: RefCell::default(),
            waiting: RefCell::default(),
            requested: Cell::new(0),
            claim: RefCell::default(),
            next_tag: Cell::new(0),
        })
    }

    /// Whether memory is held for data that the host has to send.
    pub fn await_data(&self) -> bool {
        self.requested.get() > 0
    }

    /// Serves a command.
    ///
    /// # Errors
    /// The host has more commands in progress than its queue has entries.
    pub fn command(
        self: &Rc<Self>,
        sqe: &Sqe,
        data: &[u8],
        intact: bool,
        output: &mut Output,
    ) -> Result<(), FatalError> {
        if self.by_id.borrow().len() + usize::from(self.first.borrow().is_some())
            >= usize::from(self.link.entries)
        {
            return Err(FatalError::Sequence("more commands than the queue has entries"));
        }
        let first = self.first.take();
        let is_used = self.by_id.borrow().contains_key(&sqe.id())
            || first.as_ref().is_some_and(|first| first.sqe.id() == sqe.id());
        if let Some(first) = first {
            if sqe.fuse() == Fuse::Second && !is_used {
                self.fused(&first, &Arrived { sqe: *sqe, data: data.to_vec(), intact }, output);
                return Ok(());
            }
            self.fail(&first.sqe, Status::MISSING_FUSED, output);
        }
        let served = match sqe.fuse() {
            _ if is_used => Err(Status::ID_CONFLICT),
            Fuse::First => {
                *self.first.borrow_mut() = Some(Arrived { sqe: *sqe, data: data.to_vec(), intact });
                Ok(())
            }
            Fuse::Second => Err(Status::MISSING_FUSED),
            Fuse::Alone | Fuse::Reserved => self.serve(sqe, data, intact, output),
        };
        if let Err(status) = served {
            self.fail(sqe, status, output);
        }
        Ok(())
    }

    fn fail(&self, sqe: &Sqe, status: Status, output: &mut Output) {
        self.controller.failed(self.link.queue, sqe, status);
        self.link.complete(sqe.id(), status, 0, output);
    }

    /// The nexus with the namespace of a command, and the command.
    fn decode(&self, sqe: &Sqe) -> Result<(Arc<Nexus>, Io), Status> {
        let namespaces = self.controller.namespaces.as_ref();
        let nexus = namespaces.and_then(|namespaces| namespaces.nexus(sqe.namespace()));
        let nexus = nexus.ok_or(Status::INVALID_NAMESPACE)?;
        let io = Io::decode(sqe, nexus.disk().size() / u64::from(BLOCK))?;
        Ok((nexus, io))
    }

    fn serve(
        self: &Rc<Self>,
        sqe: &Sqe,
        data: &[u8],
        intact: bool,
        output: &mut Output,
    ) -> Result<(), Status> {
        let (nexus, io) = self.decode(sqe)?;
        let early = early(sqe, &io, data, intact)?;
        let request = self.request(&io);
        let admitted = nexus.admit_request(request).map_err(|response| status_of(&response))?;
        match io {
            Io::Read { offset, len } if self.read_now(sqe.id(), &nexus, offset, len, output) => {
                self.executor.count(Served::Ram);
                return Ok(());
            }
            Io::Write { offset, fua, .. } if !early.is_empty() => {
                let fua = nexus.durable(fua || self.controller.is_durable());
                // A command that fails is served again in a task, which answers it.
                match self.executor.write_now(nexus.disk(), offset, early, fua).unwrap_or(Now::Wait) {
                    Now::Done => {
                        self.link.complete(sqe.id(), Status::SUCCESS, 0, output);
                        return Ok(());
                    }
                    Now::InBuffers => {
                        let task = self.task(vec![part(sqe.id(), 0, 0, 0)], nexus, io, admitted);
                        self.add(&task);
                        let charge = self.link.backlog.account().force(TASK_COST, Kind::Work);
                        self.run(task, Data::Written { fua }, charge);
                        return Ok(());
                    }
                    Now::Wait => {}
                }
            }
            _ => {}
        }
        let len = sent(sqe, &io)?;
        let task = self.task(vec![part(sqe.id(), 0, len, early.len())], nexus, io, admitted);
        task.data.borrow_mut().extend_from_slice(early);
        self.begin(task, output);
        Ok(())
    }

    /// Serves both commands of a Compare and Write.
    fn fused(self: &Rc<Self>, first: &Arrived, second: &Arrived, output: &mut Output) {
        match self.decode_fused(first, second) {
            Ok(task) => self.begin(task, output),
            Err((of_first, of_second)) => {
                self.fail(&first.sqe, of_first, output);
                self.fail(&second.sqe, of_second, output);
            }
        }
    }

    fn decode_fused(&self, first: &Arrived, second: &Arrived) -> Result<Rc<Task>, (Status, Status)> {
        let of_first = |status| (status, Status::FAILED_FUSED);
        let of_second = |status| (Status::FAILED_FUSED, status);
        let (nexus, compare) = self.decode(&first.sqe).map_err(of_first)?;
        let expected = early(&first.sqe, &compare, &first.data, first.intact).map_err(of_first)?;
        let (_, write) = self.decode(&second.sqe).map_err(of_second)?;
        let new = early(&second.sqe, &write, &second.data, second.intact).map_err(of_second)?;
        let (Io::Compare { offset, len }, Io::Write { offset: at, len: written, fua }) = (compare, write)
        else {
            return Err(of_second(Status::INVALID_FIELD));
        };
        // Both commands have the same range (NVM 3.2.6).
        if (first.sqe.namespace(), offset, len) != (second.sqe.namespace(), at, written) {
            return Err(of_second(Status::INVALID_FIELD));
        }
        if len > COMPARE_AND_WRITE_MAX * BLOCK {
            return Err((Status::ATOMIC_WRITE_UNIT_EXCEEDED, Status::ATOMIC_WRITE_UNIT_EXCEEDED));
        }
        let request = Request::CompareAndWrite { offset, len, fua: fua || self.controller.is_durable() };
        let admitted = nexus.admit_request(request).map_err(|response| of_first(status_of(&response)))?;
        let half = len as usize;
        let parts =
            vec![part(first.sqe.id(), 0, half, expected.len()), part(second.sqe.id(), half, half, new.len())];
        let task = self.task(parts, nexus, write, admitted);
        let mut data = task.data.borrow_mut();
        data.resize(2 * half, 0);
        data[..expected.len()].copy_from_slice(expected);
        data[half..half + new.len()].copy_from_slice(new);
        drop(data);
        Ok(task)
    }

    /// The request of the device server that executes a command.
    fn request(&self, io: &Io) -> Request {
        match *io {
            Io::Flush => Request::SynchronizeCache { immediate: false },
            Io::Write { offset, len, fua } => {
                Request::Write { offset, len, fua: fua || self.controller.is_durable() }
            }
            Io::Read { offset, len } => Request::Read { offset, len },
            Io::Compare { offset, len } => {
                Request::Verify { offset, len: len.into(), check: VerifyCheck::Data }
            }
            Io::WriteZeroes { offset, len, deallocate, .. } => {
                Request::WriteSame { offset, len, unmap: deallocate, no_data: true }
            }
            Io::Dataset { deallocate: true, ranges } => Request::Unmap { length: 8 + 16 * ranges as u32 },
            // Hints about ranges.
            Io::Dataset { .. } => Request::TestUnitReady,
            // These are executed otherwise; they are admitted as what SCSI has for them.
            Io::ReservationReport { len } => {
                Request::PersistentReserveIn { action: ReserveIn::FullStatus, allocation: len }
            }
            Io::Reservation(_) => Request::PersistentReserveOut { action: ReserveOut::Clear, length: 0 },
            Io::Verify { offset, len } => {
                Request::Verify { offset, len: len.into(), check: VerifyCheck::Nothing }
            }
        }
    }

    fn task(&self, parts: Vec<Part>, nexus: Arc<Nexus>, io: Io, admitted: Admitted) -> Rc<Task> {
        let asks = match io {
            Io::WriteZeroes { fua, .. } => fua || self.controller.is_durable(),
            Io::Dataset { deallocate, .. } => deallocate && self.controller.is_durable(),
            _ => false,
        };
        // The device server makes the change durable itself unless the cache is volatile.
        let flushes = asks && !nexus.durable(false);
        Rc::new(Task {
            parts,
            nexus,
            io,
            request: admitted.request,
            flushes,
            arrival: admitted.arrival,
            underway: Cell::new(admitted.underway),
            data: RefCell::default(),
            charge: Cell::default(),
            gathers: Cell::new(false),
            has_begun: Cell::new(false),
            failed: Cell::new(None),
        })
    }

    fn add(&self, task: &Rc<Task>) {
        let mut by_id = self.by_id.borrow_mut();
        for (n, part) in task.parts.iter().enumerate() {
            by_id.insert(part.command, (task.clone(), n));
        }
    }

    /// Removes a task from the list. Called before its commands are completed.
    pub fn remove(&self, task: &Rc<Task>) {
        let mut by_id = self.by_id.borrow_mut();
        for part in &task.parts {
            if by_id.get(&part.command).is_some_and(|(there, _)| Rc::ptr_eq(there, task)) {
                by_id.remove(&part.command);
            }
        }
    }

    /// Runs a task that has its data; any other one waits for memory.
    fn begin(self: &Rc<Self>, task: Rc<Task>, output: &mut Output) {
        self.add(&task);
        let held = task.data.borrow().capacity();
        let charge = self.link.backlog.account().force(TASK_COST + held, Kind::Input);
        if task.is_whole() {
            let data = task.data.take();
            return self.run(task, Data::Held(data), charge);
        }
        task.charge.set(Some(charge));
        task.gathers.set(true);
        self.waiting.borrow_mut().push_back(task);
        self.solicit(output);
    }

    fn run(self: &Rc<Self>, task: Rc<Task>, data: Data, charge: Charge) {
        let run = Run::new(self.clone(), task, data);
        self.executor.spawn_charged(charge, run);
    }

    /// Requests the data of waiting commands for which memory is available.
    pub fn solicit(&self, output: &mut Output) {
        while let Some(task) = self.next_to_solicit() {
            for part in &task.parts {
                let missing = part.len - part.received.get();
                if missing > 0 {
                    let tag = self.next_tag.get();
                    self.next_tag.set(tag.wrapping_add(1));
                    part.tag.set(Some(tag));
                    let from = part.received.get() as u32;
                    self.link.request(part.command, tag, from, missing as u32, output);
                }
            }
        }
    }

    /// The oldest waiting task, once there is memory for all of its data.
    fn next_to_solicit(&self) -> Option<Rc<Task>> {
        let mut waiting = self.waiting.borrow_mut();
        let first = waiting.front()?.clone();
        let (total, requested) = (first.total(), self.requested.get());
        if requested > 0 && requested + total > MAX_GATHERED {
            return None;
        }
        let missing = total.saturating_sub(first.data.borrow().capacity());
        if missing > 0 {
            let (backlog, mut claim) = (&self.link.backlog, self.claim.borrow_mut());
            let waits = claim.get_or_insert_with(|| backlog.account().claim(missing, Kind::Input));
            let Poll::Ready(more) = waits.poll(&backlog.waker()) else { return None };
            *claim = None;
            let charge = match first.charge.take() {
                Some(mut charge) => {
                    charge.join(more);
                    charge
                }
                None => more,
            };
            first.charge.set(Some(charge));
        }
        let mut data = first.data.borrow_mut();
        let held = data.len();
        data.reserve_exact(total - held);
        data.resize(total, 0);
        drop(data);
        first.has_begun.set(true);
        self.requested.set(requested + total);
        waiting.pop_front()
    }

    /// Receives data of a command.
    ///
    /// # Errors
    /// The data was not requested, or is out of order.
    pub fn data(
        self: &Rc<Self>,
        header: &DataPdu,
        data: &[u8],
        intact: bool,
        output: &mut Output,
    ) -> Result<(), FatalError> {
        let found = self.by_id.borrow().get(&header.command).cloned();
        let unknown = FatalError::Header { offset: 8, why: "no data of the command was requested" };
        let (task, n) = found.ok_or(unknown)?;
        let part = task.parts.get(n).filter(|part| part.tag.get().is_some()).ok_or(unknown)?;
        if part.tag.get() != Some(header.tag) {
            return Err(FatalError::Header { offset: 10, why: "no data with the tag was requested" });
        }
        let received = part.received.get();
        let end = (header.offset as usize).saturating_add(data.len());
        if end > part.len {
            return Err(FatalError::OutOfRange(header.offset));
        }
        if header.offset as usize != received || header.is_last != (end == part.len) {
            return Err(FatalError::Sequence("data out of order"));
        }
        task.data.borrow_mut()[part.start + received..part.start + end].copy_from_slice(data);
        part.received.set(end);
        if end == part.len {
            part.tag.set(None);
        }
        if !intact {
            task.failed.set(Some(Status::TRANSIENT_TRANSPORT_ERROR));
        }
        if task.is_whole() {
            self.gathered(task, output);
        }
        Ok(())
    }

    /// Runs a task whose data has arrived, or completes it if it has failed.
    fn gathered(self: &Rc<Self>, task: Rc<Task>, output: &mut Output) {
        task.gathers.set(false);
        self.requested.set(self.requested.get() - task.total());
        if let Some(status) = task.failed.get() {
            self.end(&task, status, output);
        } else {
            let (data, charge) = (task.data.take(), task.charge.take());
            let account = self.link.backlog.account();
            let charge = charge.unwrap_or_else(|| account.force(data.capacity(), Kind::Input));
            self.run(task, Data::Held(data), charge);
        }
        self.solicit(output);
    }

    /// Completes a task that does not run.
    fn end(&self, task: &Rc<Task>, status: Status, output: &mut Output) {
        self.remove(task);
        task.data.take();
        drop((task.underway.take(), task.charge.take()));
        for (n, part) in task.parts.iter().enumerate() {
            let status = if n == 0 { status } else { Status::FAILED_FUSED };
            self.link.complete(part.command, status, 0, output);
        }
    }

    /// Ends the tasks that gather data and whose command another nexus aborted, or whose namespace was
    /// withdrawn. Running tasks end by themselves.
    pub fn end_interrupted(&self, output: &mut Output) {
        let tasks: Vec<_> = self.by_id.borrow().values().map(|(task, _)| task.clone()).collect();
        for task in tasks.into_iter().filter(|task| task.gathers.get() && task.failed.get().is_none()) {
            let status = if task.nexus.is_withdrawn() {
                Status::INVALID_NAMESPACE
            } else if task.nexus.has_aborted(task.arrival) {
                Status::ABORTED_BY_REQUEST
            } else {
                continue;
            };
            task.failed.set(Some(status));
            drop(task.underway.take());
            if !task.has_begun.get() {
                let mut waiting = self.waiting.borrow_mut();
                if waiting.front().is_some_and(|first| Rc::ptr_eq(first, &task)) {
                    self.claim.take();
                }
                waiting.retain(|other| !Rc::ptr_eq(other, &task));
                drop(waiting);
                task.gathers.set(false);
                self.end(&task, status, output);
            }
        }
    }

    /// Drops the tasks that gather data at the end of the queue: nothing can arrive any more.
    pub fn drop_gathering(&self) {
        self.waiting.take();
        self.claim.take();
        self.first.take();
        let mut by_id = self.by_id.borrow_mut();
        by_id.retain(|_, (task, _)| {
            if task.gathers.get() {
                drop(task.underway.take());
            }
            !task.gathers.get()
        });
    }

    /// Reads directly into the output if that needs no wait; otherwise returns false.
    fn read_now(&self, command: u16, nexus: &Nexus, offset: u64, len: u32, output: &mut Output) -> bool {
        let bytes = len as usize;
        if bytes > output.fast_read_max() {
            return false;
        }
        self.link.backlog.budget().count(bytes);
        let (link, framing) = (&self.link, self.link.framing);
        let header = framing.data_offset();
        let (head, data) = output.reserve(header, bytes);
        if !matches!(self.executor.read_now(nexus.disk(), offset, data), Ok(true)) {
            return false;
        }
        let omits = link.omits_success;
        link.encoded(|out| framing.put_data_header(command, bytes, omits, out), |h| head.copy_from_slice(h));
        // A digest and a completion.
        let mut tail = [0; 32];
        let encode = |out: &mut Vec<u8>| link.after_data(command, data, out);
        let len = link.encoded(encode, |after| {
            tail[..after.len()].copy_from_slice(after);
            after.len()
        });
        output.keep(header + bytes);
        output.push(&tail[..len]);
        true
    }
}

fn part(command: u16, start: usize, len: usize, received: usize) -> Part {
    Part { command, start, len, received: Cell::new(received), tag: Cell::new(None) }
}

/// Bytes of data that the host sends with a command. Linux sends a page for a Dataset Management command,
/// however few ranges it has.
///
/// # Errors
/// The descriptor of the data does not fit the command.
fn sent(sqe: &Sqe, io: &Io) -> Result<usize, Status> {
    let needed = io.data_out();
    if needed == 0 {
        return Ok(0);
    }
    let len = sqe.sgl()?.len();
    let most = if matches!(io, Io::Dataset { .. }) { DSM_RANGES_MAX as u32 * 16 } else { needed };
    if (needed..=most).contains(&len) { Ok(len as usize) } else { Err(Status::SGL_LENGTH_INVALID) }
}

/// The data of a command that is in its capsule.
///
/// # Errors
/// The descriptor of the data does not fit the command, or the data is damaged.
fn early<'a>(sqe: &Sqe, io: &Io, data: &'a [u8], intact: bool) -> Result<&'a [u8], Status> {
    let (sent, read) = (sent(sqe, io)?, io.data_in());
    if sent == 0 && read == 0 {
        return Ok(&[]);
    }
    let sgl = sqe.sgl()?;
    if read > 0 && sgl.len() != read {
        return Err(Status::SGL_LENGTH_INVALID);
    }
    match sgl {
        Sgl::InCapsule { .. } if read > 0 => Err(Status::SGL_TYPE_INVALID),
        Sgl::InCapsule { offset, .. } if offset != 0 => Err(Status::SGL_OFFSET_INVALID),
        Sgl::InCapsule { .. } if data.len() != sent => Err(Status::SGL_LENGTH_INVALID),
        Sgl::InCapsule { .. } if !intact => Err(Status::TRANSIENT_TRANSPORT_ERROR),
        Sgl::InCapsule { .. } => Ok(data),
        Sgl::Transport { .. } => Ok(&[]),
    }
}
