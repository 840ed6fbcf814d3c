//! The execution of an I/O command in a task.

use std::rc::Rc;

use forebay_wire::nvme::reservation::{Acquire, Register, Reservation, keys};
use forebay_wire::nvme::{Io, Status, unmap_list};
use forebay_wire::scsi::{self, BLOCK, Request};

use super::commands::{Commands, Task};
use super::errors::status_of;
use crate::exec::Job;
use crate::plane::{Backlog, Charge, Served};
use crate::scsi::{HostAction, HostChange, Response, VERIFIED};

/// What the host sent for a command that runs.
pub(super) enum Data {
    /// All data of the command; most commands have none.
    Held(Vec<u8>),
    /// The data of a write, which is in the write buffers already.
    Written { fua: bool },
}

/// A command that is executed.
pub(super) struct Run {
    commands: Rc<Commands>,
    task: Rc<Task>,
    data: Data,
    /// Charge for the memory of the response, or for the work.
    work: Option<Charge>,
}

/// Removes the task also after an early return or a panic.
impl Drop for Run {
    fn drop(&mut self) {
        self.commands.remove(&self.task);
    }
}

impl Run {
    pub fn new(commands: Rc<Commands>, task: Rc<Task>, data: Data) -> Run {
        Run { commands, task, data, work: None }
    }

    /// Bytes of memory that the command needs to run, in addition to its data.
    fn work(&self) -> usize {
        if let Io::ReservationReport { len } = self.task.io {
            return len as usize;
        }
        match self.task.request {
            Request::Read { len, .. } => len as usize,
            Request::Verify { .. } => VERIFIED,
            Request::CompareAndWrite { len, .. } => len as usize,
            _ => 0,
        }
    }

    async fn execute(&self) -> Response {
        let task = &self.task;
        let data = match &self.data {
            Data::Written { fua } => return task.nexus.end_write(*fua).await,
            Data::Held(data) => data,
        };
        let done = match task.io {
            Io::Dataset { deallocate: true, ranges } => {
                let data = &data[..data.len().min(ranges * 16)];
                match unmap_list(data, task.nexus.disk().size() / u64::from(BLOCK)) {
                    Ok(list) => task.nexus.perform(&task.request, &list).await,
                    Err(_) => {
                        let sense = scsi::Sense::illegal(scsi::codes::LBA_OUT_OF_RANGE);
                        return task.nexus.check(&sense);
                    }
                }
            }
            Io::ReservationReport { len } => task.nexus.report_to_host(len),
            Io::Reservation(command) => task.nexus.reserve_for_host(&change(command, data)).await,
            _ => task.nexus.perform(&task.request, data).await,
        };
        if task.flushes && done.status == scsi::Status::Good {
            return task.nexus.perform(&Request::SynchronizeCache { immediate: false }, &[]).await;
        }
        done
    }
}

/// What the device server does for a reservation command with its data.
fn change(command: Reservation, data: &[u8]) -> HostChange {
    let (current, second) = keys(data);
    let (action, ignore_key, keep) = match command {
        Reservation::Register { action, ignore_key, keep } => {
            let action = match action {
                Register::Register => HostAction::Register(second),
                Register::Replace => HostAction::Replace(second),
                Register::Unregister => HostAction::Unregister,
            };
            (action, ignore_key, keep)
        }
        Reservation::Acquire { action, kind, ignore_key } => {
            let action = match action {
                Acquire::Acquire => HostAction::Acquire(kind),
                Acquire::Preempt => HostAction::Preempt { kind, key: second, abort: false },
                Acquire::PreemptAndAbort => HostAction::Preempt { kind, key: second, abort: true },
            };
            (action, ignore_key, None)
        }
        Reservation::Release { kind: Some(kind), ignore_key } => {
            (HostAction::Release(kind), ignore_key, None)
        }
        Reservation::Release { kind: None, ignore_key } => (HostAction::Clear, ignore_key, None),
    };
    HostChange { action, key: (!ignore_key).then_some(current), keep }
}

impl Job for Run {
    type Done = Response;

    async fn perform(&mut self, backlog: &Rc<Backlog>) -> Option<Response> {
        let work = self.work();
        if work > 0 {
            self.work = Some(backlog.account().take_shared(work).await);
            if backlog.is_gone() {
                return None;
            }
        }
        let response = self.execute().await;
        // The command changes nothing any more: aborts need not wait until there is room for the response.
        drop(self.task.underway.take());
        Some(response)
    }

    fn served(&self, response: &Response) -> Option<Served> {
        self.task.nexus.served(&self.task.request, response)
    }

    fn is_fenced(&self) -> bool {
        self.task.nexus.disk().is_fenced()
    }

    async fn reply(mut self, response: Response, backlog: &Rc<Backlog>) {
        backlog.room().await;
        let (task, link) = (self.task.clone(), self.commands.link.clone());
        self.commands.remove(&task);
        let status = status_of(&response);
        let sends = matches!(task.io, Io::Read { .. } | Io::ReservationReport { .. });
        let read = if sends && status.is_success() { self.work.take() } else { None };
        if let (Some(charge), [part]) = (read, &task.parts[..]) {
            return link.answer_later(part.command, response.data_in, charge);
        }
        for (n, part) in task.parts.iter().enumerate() {
            let of_part = if n == 0 || status.is_success() { status } else { Status::FAILED_FUSED };
            link.complete_later(part.command, of_part);
        }
    }
}
