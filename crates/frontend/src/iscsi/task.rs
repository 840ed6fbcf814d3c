//! The commands of a session that are under way, and how they are aborted (RFC 7143, 4.2.3.3 and 11.5).
//!
//! A task gathers its data, which is solicited once the session has memory for all of it; then it runs. An
//! abort ends a task that gathers data at once, and a task that only reads blocks at its next wait. Other
//! running tasks cannot be stopped: they finish without a response, and the request to abort them is answered
//! afterwards. So an aborted task has no effect after the answer to the request.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use forebay_wire::iscsi::{BHS, Command, Lun, reply};
use forebay_wire::scsi::{self, BLOCK, TRANSFER_MAX};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::gather::Gather;
use super::link::{CommandSlot, Link, SENT_AT_ONCE, Sent};
use crate::exec::{Executor, Job};
use crate::plane::{Backlog, Charge, Claim, Front, Kind, MAX_UNSENT, Served, Times, spawn_request};
use crate::scsi::{Admitted, Arrival, Nexus, Response, Underway, VERIFIED};

/// Bytes of memory that a command is charged when it is accepted, in addition to its data and its work. They
/// are for its task, whose future takes 3 KiB.
pub(super) const TASK_COST: usize = 4 << 10;
/// Maximum bytes of memory that a command uses to run, in addition to the data that it transfers.
const MAX_WORK: usize = 1 << 20;
/// Maximum bytes of response data of a command other than a read.
const MAX_PARAMETERS: u64 = 256 << 10;
/// Maximum bytes of data that a session solicits at once, unless a single command is longer.
const MAX_GATHERED: usize = 16 << 20;

/// What the initiator sent for a command that runs.
pub(super) enum Data {
    /// All data of the command; most commands have none.
    Held(Vec<u8>),
    /// The data of a write, which is in the write buffers already.
    Written { fua: bool },
}

impl Data {
    async fn perform(&self, nexus: &Nexus, request: &scsi::Request) -> Response {
        match self {
            Data::Held(data) => nexus.perform(request, data).await,
            Data::Written { fua } => nexus.end_write(*fua).await,
        }
    }
}

/// A command under way.
pub(super) struct Task {
    pub tag: u32,
    pub lun: Lun,
    /// Bytes that the initiator expects to be transferred.
    pub expected: u32,
    pub nexus: Arc<Nexus>,
    pub request: scsi::Request,
    arrival: Arrival,
    /// The data of the command, until all of it was received.
    pub gather: RefCell<Option<Gather>>,
    aborted: Cell<bool>,
    /// The command is answered BUSY, so that the initiator sends it again.
    put_off: Cell<bool>,
    /// Signalled when the command is aborted or put off, or its unit is withdrawn.
    stop: Notify,
    /// The command's place in the command window. It is given back when the command ends.
    place: Cell<Option<CommandSlot>>,
    /// Released when the command changes nothing any more.
    underway: Cell<Option<Underway>>,
    has_ended: Cell<bool>,
    /// Signalled when the command ends.
    ended: Notify,
}

impl Task {
    pub fn new(
        command: &Command<'_>,
        nexus: Arc<Nexus>,
        admitted: Admitted,
        gather: Option<Gather>,
        place: CommandSlot,
    ) -> Rc<Task> {
        Rc::new(Task {
            tag: command.tag,
            lun: command.lun,
            expected: command.expected,
            nexus,
            request: admitted.request,
            arrival: admitted.arrival,
            gather: RefCell::new(gather),
            aborted: Cell::new(false),
            put_off: Cell::new(false),
            stop: Notify::new(),
            place: Cell::new(Some(place)),
            underway: Cell::new(admitted.underway),
            has_ended: Cell::new(false),
            ended: Notify::new(),
        })
    }

    /// Whether another nexus aborted the command.
    pub fn is_aborted_by_other(&self) -> bool {
        self.nexus.has_aborted(self.arrival)
    }

    /// Waits until the command ends.
    async fn ended(&self) {
        while !self.has_ended.get() {
            self.ended.notified().await;
        }
    }
}

/// The tasks of one session.
pub(super) struct Tasks {
    link: Rc<Link>,
    pub executor: Executor,
    by_tag: RefCell<HashMap<u32, Rc<Task>>>,
    /// Tasks that gather and whose data is not solicited yet, in order of arrival.
    waiting: RefCell<VecDeque<Rc<Task>>>,
    /// Total bytes of data of the tasks whose data is solicited.
    solicited: Cell<usize>,
    /// The memory for which the first of the waiting tasks waits.
    claim: RefCell<Option<Claim>>,
    /// Semaphore for tasks that can take long, which run one at a time: a task holds memory all the time.
    long: Arc<Semaphore>,
}

impl Tasks {
    pub fn new(link: Rc<Link>, times: Rc<Times>) -> Rc<Tasks> {
        Rc::new(Tasks {
            executor: Executor::new(Front::Iscsi, link.backlog.clone(), times),
            link,
            by_tag: RefCell::default(),
            waiting: RefCell::default(),
            solicited: Cell::new(0),
            claim: RefCell::default(),
            long: Arc::new(Semaphore::new(1)),
        })
    }

    /// Adds a task; returns false if its tag is in use.
    pub fn add(&self, task: &Rc<Task>) -> bool {
        let mut by_tag = self.by_tag.borrow_mut();
        if by_tag.contains_key(&task.tag) {
            return false;
        }
        by_tag.insert(task.tag, task.clone());
        if task.gather.borrow().is_some() {
            self.waiting.borrow_mut().push_back(task.clone());
        }
        true
    }

    pub fn get(&self, tag: u32) -> Option<Rc<Task>> {
        self.by_tag.borrow().get(&tag).cloned()
    }

    /// Number of tasks that are in progress.
    pub fn len(&self) -> usize {
        self.by_tag.borrow().len()
    }

    /// The next task whose data is to be solicited, or that can run since it has all of its data. It is the
    /// oldest task, once there is memory for all of its data and to run.
    pub fn next_to_solicit(&self) -> Option<Rc<Task>> {
        let mut waiting = self.waiting.borrow_mut();
        let first = waiting.front()?;
        let mut gather = first.gather.borrow_mut();
        let solicited = self.solicited.get();
        let begins = gather.as_mut().filter(|g| solicited == 0 || solicited + g.wanted() <= MAX_GATHERED)?;
        // The claim includes the memory to run: the task must not wait for this memory while it holds its
        // data.
        let missing = begins.missing() + work(&first.request);
        if missing > 0 {
            let (backlog, mut claim) = (&self.link.backlog, self.claim.borrow_mut());
            let waits = claim.get_or_insert_with(|| backlog.account().claim(missing, Kind::Input));
            let Poll::Ready(charge) = waits.poll(&backlog.waker()) else { return None };
            *claim = None;
            begins.charge(charge);
        }
        begins.begin();
        self.solicited.set(solicited + begins.wanted());
        drop(gather);
        waiting.pop_front()
    }

    /// Whether memory is held for data that the initiator has to send.
    pub fn await_data(&self) -> bool {
        let unsolicited =
            |task: &Rc<Task>| task.gather.borrow().as_ref().is_some_and(Gather::awaits_unsolicited);
        self.solicited.get() > 0 || self.waiting.borrow().iter().any(unsolicited)
    }

    /// Whether a command waits for data of the initiator.
    pub fn gather_data(&self) -> bool {
        self.by_tag.borrow().values().any(|task| task.gather.borrow().is_some())
    }

    /// Ends the gathering of a task, and returns its data; `None` if it does not gather.
    pub fn stop_gathering(&self, task: &Rc<Task>) -> Option<Gather> {
        let gather = task.gather.take()?;
        if gather.has_begun() {
            self.solicited.set(self.solicited.get() - gather.wanted());
        } else {
            let mut waiting = self.waiting.borrow_mut();
            if waiting.front().is_some_and(|first| Rc::ptr_eq(first, task)) {
                self.claim.take();
            }
            waiting.retain(|waiting| !Rc::ptr_eq(waiting, task));
        }
        Some(gather)
    }

    /// Runs a command that has its data, in a task of this thread. `charge` is for the memory that the
    /// command holds already.
    pub fn run(self: &Rc<Self>, task: Rc<Task>, data: Data, charge: Charge) {
        let running = Running { tasks: self.clone(), task };
        self.executor.spawn_charged(charge, Run { running, data: Some(data), work: None, turn: None });
    }

    /// Ends a task: removes it from the list, and answers it unless it was aborted.
    pub fn end(
        &self,
        task: &Rc<Task>,
        response: Option<(&Response, Sent)>,
        send: impl FnMut(&[u8; BHS], &[u8]),
    ) {
        let mut by_tag = self.by_tag.borrow_mut();
        if by_tag.get(&task.tag).is_some_and(|there| Rc::ptr_eq(there, task)) {
            by_tag.remove(&task.tag);
        }
        drop(by_tag);
        drop((task.place.take(), task.underway.take()));
        if let Some(response) = response.filter(|_| !task.aborted.get()) {
            let moved = moved(&task.request, response.0);
            self.link.respond(task.tag, task.expected, moved, response, send);
        }
        task.has_ended.set(true);
        task.ended.notify_waiters();
    }

    /// Aborts the tasks for which `is_meant` is true. The returned tasks still run, and end without an
    /// answer; tasks that only read end soon.
    pub fn abort(&self, is_meant: impl Fn(&Task) -> bool) -> Vec<Rc<Task>> {
        let mut meant: Vec<_> = self.by_tag.borrow().values().filter(|t| is_meant(t)).cloned().collect();
        meant.retain(|task| {
            task.aborted.set(true);
            task.stop.notify_one();
            let gathers = self.stop_gathering(task).is_some();
            if gathers {
                self.end(task, None, |_, _| ());
            }
            !gathers
        });
        meant
    }

    /// Puts off the tasks that may take long: another process can continue the session only when all running
    /// tasks have ended.
    pub fn put_off_long(&self) {
        let by_tag = self.by_tag.borrow();
        let runs = |task: &&Rc<Task>| is_long(&task.request) && task.gather.borrow().is_none();
        for task in by_tag.values().filter(runs).filter(|task| !task.put_off.replace(true)) {
            task.stop.notify_one();
        }
    }

    /// The tasks whose unit was withdrawn. Running tasks among them that only read end soon.
    pub fn withdrawn(&self) -> Vec<Rc<Task>> {
        let by_tag = self.by_tag.borrow();
        let tasks: Vec<_> = by_tag.values().filter(|task| task.nexus.is_withdrawn()).cloned().collect();
        tasks.iter().for_each(|task| task.stop.notify_one());
        tasks
    }

    /// Aborts tasks like [`Tasks::abort`], waits for their end, and answers request `tag` with the result of
    /// `then`.
    pub fn manage(
        self: &Rc<Self>,
        is_meant: impl Fn(&Task) -> bool,
        tag: u32,
        place: CommandSlot,
        then: impl Future<Output = u8> + 'static,
    ) {
        let running = self.abort(is_meant);
        let ticket = self.link.backlog.enter(TASK_COST);
        let tasks = self.clone();
        spawn_request(&self.link.backlog, async move {
            for task in running {
                task.ended().await;
            }
            let response = then.await;
            drop(place);
            tasks.link.push(&reply::task_management(tag, &tasks.link.status_numbers(), response), &[]);
            drop(ticket);
        });
    }
}

/// A command that is being executed.
struct Run {
    running: Running,
    /// The data of the command; `None` when the command is performed.
    data: Option<Data>,
    /// Charge for the memory of the response, and of its copy in PDUs.
    work: Option<Charge>,
    /// The turn of a command that may take long.
    turn: Option<OwnedSemaphorePermit>,
}

impl Run {
    /// Bytes of memory that the command needs to run and does not hold yet. The work of a command that
    /// receives data was charged with that data.
    fn held(&self) -> usize {
        let request = &self.running.task.request;
        if matches!(request.transfer(), scsi::Transfer::Out(_)) { 0 } else { work(request) }
    }

    /// Bytes of response data that are copied into PDUs at once. They are limited, since several PDUs can be
    /// unsent.
    fn copied(&self) -> usize {
        self.held().min(self.running.task.expected as usize).min(MAX_UNSENT + SENT_AT_ONCE)
    }

    /// Waits for the memory of the command, and for its turn if it may take long. Returns false if no
    /// initiator waits for the response any more.
    async fn begin(&mut self, backlog: &Rc<Backlog>) -> bool {
        let (held, copied) = (self.held(), self.copied());
        let Running { tasks, task } = &self.running;
        let (mut work, mut turn) = (None, None);
        if held > 0 || is_long(&task.request) {
            let begin = async {
                if is_long(&task.request) {
                    turn = tasks.long.clone().acquire_owned().await.ok();
                }
                if held > 0 {
                    work = Some(backlog.account().take_shared(held + copied).await);
                }
            };
            tokio::select! {
                () = begin => {}
                // No command that waits here changes anything, and it has not begun.
                () = task.stop.notified() => {}
            }
            if task.aborted.get() || backlog.is_gone() {
                return false;
            }
        }
        (self.work, self.turn) = (work, turn);
        true
    }
}

impl Job for Run {
    type Done = Response;

    async fn perform(&mut self, backlog: &Rc<Backlog>) -> Option<Response> {
        if !self.begin(backlog).await {
            return None;
        }
        let (data, task) = (self.data.take()?, &self.running.task);
        let response = tokio::select! {
            biased;
            () = std::future::ready(()), if task.put_off.get() => Response::busy(),
            response = data.perform(&task.nexus, &task.request) => response,
            // A VERIFY can be as long as the disk.
            () = task.stop.notified(), if task.request.only_reads() => match task.aborted.get() {
                true => return None,
                false if task.put_off.get() => Response::busy(),
                false => task.nexus.cleared(),
            },
        };
        // The command changes nothing any more: aborts need not wait until there is room for the response.
        drop(task.underway.take());
        Some(response)
    }

    fn served(&self, response: &Response) -> Option<Served> {
        let task = &self.running.task;
        task.nexus.served(&task.request, response)
    }

    fn is_fenced(&self) -> bool {
        self.running.task.nexus.disk().is_fenced()
    }

    async fn reply(mut self, response: Response, backlog: &Rc<Backlog>) {
        let (work, copied) = (self.work.take(), self.copied());
        let Running { tasks, task } = &self.running;
        let (link, mut sent) = (&tasks.link, Sent::default());
        while !task.aborted.get() {
            tokio::select! {
                () = backlog.room() => {}
                // The task management function must not wait for the initiator to receive the response.
                () = task.stop.notified() => continue,
            }
            if !link.push_some(task.tag, task.expected, &response, &mut sent) {
                break;
            }
            backlog.wake();
            tokio::task::yield_now().await;
        }
        match work {
            None => tasks.end(task, Some((&response, sent)), |h, d| link.push(h, d)),
            Some(mut work) => {
                tasks.end(task, Some((&response, sent)), |h, d| link.push_charged(h, d));
                backlog.charge_queued(work.split(copied));
            }
        }
    }
}

/// A task that runs. Dropping this ends the task also after an early return or a panic, since aborts wait for
/// its end.
struct Running {
    tasks: Rc<Tasks>,
    task: Rc<Task>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.task.has_ended.get() {
            self.tasks.end(&self.task, None, |_, _| ());
        }
    }
}

/// Memory that a command needs to run, in addition to the data that was received for it.
pub(super) fn work(request: &scsi::Request) -> usize {
    use scsi::Request::*;
    match (request, request.transfer()) {
        (Read { .. }, scsi::Transfer::In(len)) => usize::try_from(len).unwrap_or(usize::MAX),
        (_, scsi::Transfer::In(len)) => len.min(MAX_PARAMETERS) as usize,
        // These commands need only what was received. A node of a cluster can thus be fenced even while
        // memory is short.
        (Write { .. } | PersistentReserveOut { .. } | ModeSelect { .. }, _) => 0,
        (Unmap { .. } | PopulateToken { .. }, _) => 0,
        (Verify { .. }, _) => VERIFIED,
        // These commands compare or copy in pieces, or change as many bytes as were received.
        (_, scsi::Transfer::Out(len)) => usize::try_from(len).unwrap_or(usize::MAX).max(MAX_WORK),
        (PreFetch { .. }, _) => MAX_WORK,
        (_, scsi::Transfer::None) => 0,
    }
}

/// Whether a command may take as long as reading the whole disk.
fn is_long(request: &scsi::Request) -> bool {
    matches!(request, scsi::Request::Verify { len, .. } if *len > u64::from(TRANSFER_MAX * BLOCK))
}

/// Bytes that a command transfers if the initiator does not limit them.
pub(super) fn moved(request: &scsi::Request, response: &Response) -> u64 {
    match request.transfer() {
        scsi::Transfer::Out(len) => len,
        scsi::Transfer::In(_) | scsi::Transfer::None => response.data_in.len() as u64,
    }
}

#[cfg(test)]
mod tests {
    use scsi::{Request, VerifyCheck};

    use super::*;

    #[test]
    fn commands_that_read_in_pieces_are_charged_for_one() {
        for check in [VerifyCheck::Nothing, VerifyCheck::Block] {
            assert_eq!(work(&Request::Verify { offset: 0, len: 1 << 40, check }), VERIFIED);
        }
        assert_eq!(work(&Request::PreFetch { offset: 0, len: 1 << 40 }), MAX_WORK);
        assert_eq!(work(&Request::TestUnitReady), 0);
    }

    #[test]
    fn a_verification_of_any_length_without_data_is_long() {
        let verify = |len, check| is_long(&Request::Verify { offset: 0, len, check });
        let most = u64::from(TRANSFER_MAX * BLOCK);
        assert!(verify(most + 1, VerifyCheck::Nothing) && verify(1 << 40, VerifyCheck::Block));
        assert!(!verify(most, VerifyCheck::Data));
    }

    /// These commands wait for no memory of data, so that a host can fence another node of its cluster even
    /// while other clients use all of the memory.
    #[test]
    fn commands_with_a_parameter_list_need_only_the_list() {
        assert_eq!(work(&Request::ModeSelect { ten: true, length: 24 }), 0);
        assert_eq!(work(&Request::Unmap { length: 24 }), 0);
    }
}
