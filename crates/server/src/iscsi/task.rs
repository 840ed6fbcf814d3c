//! The commands of a session that are under way, and their management (RFC 7143, 4.2.3.3 and 11.5).
//!
//! A task gathers its data, which is asked for once the session has room for all of it; then it runs. One that is
//! aborted while it gathers is gone at once. One that runs cannot be stopped: it is finished, nobody is told, and
//! whoever had it aborted is answered after it. So nothing of an aborted task happens after the answer.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use forebay_wire::iscsi::{BHS, Lun, reply};
use forebay_wire::scsi;
use tokio::sync::Notify;

use super::gather::Gather;
use super::link::{Link, Place};
use crate::scsi::{Admitted, Nexus, Response, Underway};

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
}

impl Tasks {
    pub fn new(link: Rc<Link>) -> Rc<Tasks> {
        Rc::new(Tasks { link, by_tag: RefCell::default(), waiting: RefCell::default(), asked: Cell::new(0) })
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
        let mut gather = waiting.front()?.gather.borrow_mut();
        let asked = self.asked.get();
        let begins = gather.as_mut().filter(|g| asked == 0 || asked + g.wanted() <= MAX_GATHERED)?;
        begins.begin();
        self.asked.set(asked + begins.wanted());
        drop(gather);
        waiting.pop_front()
    }

    /// Takes what a task has gathered; `None` where it does not gather.
    pub fn stop_gathering(&self, task: &Rc<Task>) -> Option<Gather> {
        let gather = task.gather.take()?;
        if gather.has_begun() {
            self.asked.set(self.asked.get() - gather.wanted());
        } else {
            self.waiting.borrow_mut().retain(|waiting| !Rc::ptr_eq(waiting, task));
        }
        Some(gather)
    }

    /// Carries out a command that has its data, in a task of this thread.
    pub fn run(self: &Rc<Self>, task: Rc<Task>, data: Vec<u8>) {
        let cost = match task.request.transfer() {
            scsi::Transfer::In(len) => len.min(task.expected.into()) as usize,
            _ => data.len(),
        };
        let ticket = self.link.backlog.enter(cost);
        let tasks = self.clone();
        tokio::task::spawn_local(async move {
            let response = task.nexus.perform(&task.request, &data).await;
            drop(data);
            tasks.end(&task, Some(&response), |h, d| tasks.link.push(h, d));
            drop(ticket);
        });
    }

    /// Ends a task: takes it off the list, and answers it, unless it was aborted.
    pub fn end(&self, task: &Rc<Task>, response: Option<&Response>, send: impl FnMut(&[u8; BHS], &[u8])) {
        let mut by_tag = self.by_tag.borrow_mut();
        if by_tag.get(&task.tag).is_some_and(|there| Rc::ptr_eq(there, task)) {
            by_tag.remove(&task.tag);
        }
        drop(by_tag);
        task.holds.take();
        if let Some(response) = response.filter(|_| !task.aborted.get()) {
            let moved = moved(&task.request, response);
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
        let ticket = self.link.backlog.enter(0);
        let tasks = self.clone();
        tokio::task::spawn_local(async move {
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

/// Bytes that a command transferred, or would have.
pub(super) fn moved(request: &scsi::Request, response: &Response) -> u64 {
    match request.transfer() {
        scsi::Transfer::Out(len) => len,
        scsi::Transfer::In(_) | scsi::Transfer::None => response.data_in.len() as u64,
    }
}
