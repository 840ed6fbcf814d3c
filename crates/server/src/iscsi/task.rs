//! The commands of a session that are under way, and their management (RFC 7143, 4.2.3.3 and 11.5).
//!
//! A task gathers its data, which is asked for once the session has room for all of it; then it runs. One that is
//! aborted while it gathers is gone at once. One that runs cannot be stopped: it is finished, nobody is told, and
//! whoever had it aborted is answered after it. So nothing of an aborted task happens after the answer.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use forebay_wire::iscsi::{BHS, Lun, reply};
use forebay_wire::scsi;
use tokio::sync::Notify;

use super::gather::Gather;
use super::link::{Link, Place, SENT_AT_ONCE, Sent};
use crate::plane::{Charge, Claim, Kind, MAX_UNSENT, spawn_request};
use crate::scsi::{Admitted, Nexus, Response, Underway};

/// What a command is charged when it is taken, beside its data and its task.
pub(super) const TASK_COST: usize = 1 << 10;
/// The most that a command works with at once, beside what it transfers.
const MAX_WORK: usize = 1 << 20;
/// The most that data takes which is no read's.
const MAX_PARAMETERS: u64 = 256 << 10;
/// Bytes that the commands of a session take whose data is asked for, unless it is one alone.
const MAX_GATHERED: usize = 16 << 20;

/// A command under way.
pub(super) struct Task {
    pub tag: u32,
    pub lun: Lun,
    /// Bytes that the initiator expects to be transferred.
    pub expected: u32,
    pub nexus: Arc<Nexus>,
    pub request: scsi::Request,
    /// Its data, until it is whole.
    pub gather: RefCell<Option<Gather>>,
    aborted: Cell<bool>,
    /// Signalled when it is aborted.
    stop: Notify,
    /// What it gives back when it is over.
    holds: RefCell<Option<(Place, Option<Underway>)>>,
    over: Cell<bool>,
    ended: Notify,
}

impl Task {
    pub fn new(
        tag: u32,
        lun: Lun,
        expected: u32,
        nexus: Arc<Nexus>,
        admitted: Admitted,
        gather: Option<Gather>,
        place: Place,
    ) -> Rc<Task> {
        Rc::new(Task {
            tag,
            lun,
            expected,
            nexus,
            request: admitted.request,
            gather: RefCell::new(gather),
            aborted: Cell::new(false),
            stop: Notify::new(),
            holds: RefCell::new(Some((place, admitted.underway))),
            over: Cell::new(false),
            ended: Notify::new(),
        })
    }

    /// Waits until it is over.
    async fn over(&self) {
        while !self.over.get() {
            self.ended.notified().await;
        }
    }
}

/// The tasks of one session.
pub(super) struct Tasks {
    link: Rc<Link>,
    by_tag: RefCell<HashMap<u32, Rc<Task>>>,
    /// Those that gather and whose data is not asked for yet, in the order in which they came.
    waiting: RefCell<VecDeque<Rc<Task>>>,
    /// Bytes that the others take that gather.
    asked: Cell<usize>,
    /// What the first of those that wait waits for.
    claim: RefCell<Option<Claim>>,
}

impl Tasks {
    pub fn new(link: Rc<Link>) -> Rc<Tasks> {
        Rc::new(Tasks {
            link,
            by_tag: RefCell::default(),
            waiting: RefCell::default(),
            asked: Cell::new(0),
            claim: RefCell::default(),
        })
    }

    /// Adds a task; false where its tag is taken.
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

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_tag.borrow().len()
    }

    /// The next task whose data is to be asked for: the one that came first, once there is room for all of it.
    pub fn next_to_ask(&self) -> Option<Rc<Task>> {
        let mut waiting = self.waiting.borrow_mut();
        let first = waiting.front()?;
        let mut gather = first.gather.borrow_mut();
        let asked = self.asked.get();
        let begins = gather.as_mut().filter(|g| asked == 0 || asked + g.wanted() <= MAX_GATHERED)?;
        // Of all clients' memory, too, with what it takes to run: it must not wait for that once it has its data.
        let missing = begins.missing() + work(&first.request);
        if missing > 0 {
            let (backlog, mut claim) = (&self.link.backlog, self.claim.borrow_mut());
            let waits = claim.get_or_insert_with(|| backlog.account().claim(missing, Kind::Input));
            let Poll::Ready(charge) = waits.poll(&backlog.waker()) else { return None };
            *claim = None;
            begins.charge(charge);
        }
        begins.begin();
        self.asked.set(asked + begins.wanted());
        drop(gather);
        waiting.pop_front()
    }

    /// Whether the initiator has to send data for which there is memory.
    pub fn await_data(&self) -> bool {
        let unsolicited =
            |task: &Rc<Task>| task.gather.borrow().as_ref().is_some_and(Gather::awaits_unsolicited);
        self.asked.get() > 0 || self.waiting.borrow().iter().any(unsolicited)
    }

    /// Takes what a task has gathered; `None` where it does not gather.
    pub fn stop_gathering(&self, task: &Rc<Task>) -> Option<Gather> {
        let gather = task.gather.take()?;
        if gather.has_begun() {
            self.asked.set(self.asked.get() - gather.wanted());
        } else {
            let mut waiting = self.waiting.borrow_mut();
            if waiting.front().is_some_and(|first| Rc::ptr_eq(first, task)) {
                self.claim.take();
            }
            waiting.retain(|waiting| !Rc::ptr_eq(waiting, task));
        }
        Some(gather)
    }

    /// Carries out a command that has its data, in a task of this thread. `charge` is what it holds already.
    pub fn run(self: &Rc<Self>, task: Rc<Task>, data: Vec<u8>, charge: Charge) {
        let ticket = self.link.backlog.enter_charged(charge);
        let running = Running { tasks: self.clone(), task };
        spawn_request(&self.link.backlog, async move {
            let _ticket = ticket;
            let Running { tasks, task } = &running;
            let (link, backlog) = (&tasks.link, &tasks.link.backlog);
            // Data that it takes was charged with what it works with.
            let takes = matches!(task.request.transfer(), scsi::Transfer::Out(_));
            let held = if takes { 0 } else { work(&task.request) };
            // What is read is copied into PDUs, of which a bounded number can be unsent.
            let copied = held.min(task.expected as usize).min(MAX_UNSENT + SENT_AT_ONCE);
            let mut work = match held {
                0 => None,
                held => Some(backlog.account().take_shared(held + copied).await),
            };
            if work.is_some() && (task.aborted.get() || backlog.is_gone()) {
                // No initiator waits for what it would read.
                return;
            }
            let response = task.nexus.perform(&task.request, &data).await;
            drop(data);
            let mut sent = Sent::default();
            while !task.aborted.get() {
                tokio::select! {
                    () = backlog.room() => {}
                    // The task management function waits for its end, and not for what the initiator reads.
                    () = task.stop.notified() => break,
                }
                if !link.push_some(task.tag, task.expected, &response, &mut sent) {
                    break;
                }
                backlog.wake();
                tokio::task::yield_now().await;
            }
            match &mut work {
                None => tasks.end(task, Some((&response, sent)), |h, d| link.push(h, d)),
                Some(work) => {
                    tasks.end(task, Some((&response, sent)), |h, d| link.push_charged(h, d));
                    backlog.charge_queued(work.split(copied));
                }
            }
            drop(running);
        });
    }

    /// Ends a task: takes it off the list, and answers it, unless it was aborted.
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
        task.holds.take();
        if let Some(response) = response.filter(|_| !task.aborted.get()) {
            let moved = moved(&task.request, response.0);
            self.link.respond(task.tag, task.expected, moved, response, send);
        }
        task.over.set(true);
        task.ended.notify_waiters();
    }

    /// Aborts the tasks of which `is_meant` says so. Those that are returned run, and end without an answer.
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

    /// Aborts tasks as [`Tasks::abort`] does, then does `then`, which says what the request `tag` is answered.
    pub fn manage(
        self: &Rc<Self>,
        is_meant: impl Fn(&Task) -> bool,
        tag: u32,
        place: Place,
        then: impl Future<Output = u8> + 'static,
    ) {
        let running = self.abort(is_meant);
        let ticket = self.link.backlog.enter(TASK_COST);
        let tasks = self.clone();
        spawn_request(&self.link.backlog, async move {
            for task in running {
                task.over().await;
            }
            let response = then.await;
            drop(place);
            tasks.link.push(&reply::task_management(tag, &tasks.link.status_numbers(), response), &[]);
            drop(ticket);
        });
    }
}

/// A task that runs. Whatever becomes of it, it is over when this is dropped: others wait for that.
struct Running {
    tasks: Rc<Tasks>,
    task: Rc<Task>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.task.over.get() {
            self.tasks.end(&self.task, None, |_, _| ());
        }
    }
}

/// Memory that a command takes while it runs, beside the data that came for it.
pub(super) fn work(request: &scsi::Request) -> usize {
    match (request, request.transfer()) {
        (scsi::Request::Read { .. }, scsi::Transfer::In(len)) => usize::try_from(len).unwrap_or(usize::MAX),
        (_, scsi::Transfer::In(len)) => len.min(MAX_PARAMETERS) as usize,
        (scsi::Request::Write { .. }, _) => 0,
        // They compare or copy in pieces, or change as much as came.
        (_, scsi::Transfer::Out(len)) => usize::try_from(len).unwrap_or(usize::MAX).max(MAX_WORK),
        (scsi::Request::PreFetch { .. }, _) => MAX_WORK,
        (_, scsi::Transfer::None) => 0,
    }
}

/// Bytes that a command transferred, or would have.
pub(super) fn moved(request: &scsi::Request, response: &Response) -> u64 {
    match request.transfer() {
        scsi::Transfer::Out(len) => len,
        scsi::Transfer::In(_) | scsi::Transfer::None => response.data_in.len() as u64,
    }
}
