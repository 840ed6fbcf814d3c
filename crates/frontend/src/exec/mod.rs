//! The request executor: serves the requests of clients on disks, for every protocol.
//!
//! A protocol decodes a request, chooses how it is served, and encodes the reply. The executor has the rest:
//!
//! - **At once.** [`Executor::read_now`] and [`Executor::write_now`] serve a request in the pass of the
//!   connection that received it, if the request does not have to wait: a read whose data is in RAM, a write
//!   for which the write buffers have room.
//! - **In a task.** [`Executor::spawn`] serves a [`Job`] in a task of the connection's thread. The task holds
//!   the memory that the job is charged until the job ends. [`block`] has the job of protocols whose requests
//!   concern one disk; a SCSI command is a separate kind of job, because it may combine several changes.
//! - **Latency figures.** A request that reads, changes or flushes blocks is counted with its path
//!   ([`Served`]) when it succeeds.
//! - **Loss of the pool.** If another server has opened the pool, the request gets no reply, and the
//!   connection ends: an error would become an I/O error of the client's file system, while the other server
//!   could serve the request.
//!
//! Admission to the write buffers, to quotas and to rate limits is the engine's; the memory of clients and
//! their fair share of the thread belong to the data plane ([`crate::plane`]).

pub(crate) mod block;
mod read;
#[cfg(test)]
mod tests;

#[cfg(test)]
pub(crate) use tests::task_size;

use std::rc::Rc;

use forebay_engine::{DiskHandle, Fast, Result};

use crate::plane::{Backlog, Charge, FENCED, Front, Kind, Served, Ticket, Timed, Times, spawn_request};
pub(crate) use read::read_whole;

/// What [`Executor::write_now`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Now {
    /// The write is complete, and can be answered.
    Done,
    /// The data of the write is in the write buffers. The write can be answered when it is durable
    /// ([`DiskHandle::finish`]).
    InBuffers,
    /// Nothing was written: the write has to wait, in a task.
    Wait,
}

/// A request that is served in a task.
pub(crate) trait Job: 'static {
    /// The result of a request that was served.
    type Done;

    /// Performs the request. Returns `None` if the request was dropped, so that it gets no reply.
    async fn perform(&mut self, backlog: &Rc<Backlog>) -> Option<Self::Done>;

    /// The path of a request that has succeeded; `None` if it failed, or is not counted.
    fn served(&self, done: &Self::Done) -> Option<Served>;

    /// Whether the request has found that another server has the pool.
    fn is_fenced(&self) -> bool;

    /// Queues the reply.
    async fn reply(self, done: Self::Done, backlog: &Rc<Backlog>);
}

/// Serves the requests of one connection.
pub(crate) struct Executor {
    front: Front,
    backlog: Rc<Backlog>,
    times: Rc<Times>,
}

impl Executor {
    /// The executor of a connection with this backlog, on a thread with this clock.
    pub fn new(front: Front, backlog: Rc<Backlog>, times: Rc<Times>) -> Executor {
        Executor { front, backlog, times }
    }

    /// The backlog of the connection.
    pub fn backlog(&self) -> &Rc<Backlog> {
        &self.backlog
    }

    /// Counts a request that was served at once.
    pub fn count(&self, served: Served) {
        self.times.count(self.front, served);
    }

    /// Reads into `out` if that is possible without a wait. Otherwise returns false, and `out` is undefined.
    /// The caller counts the request ([`Executor::count`]), because one request can consist of several reads.
    pub fn read_now(&self, disk: &DiskHandle, offset: u64, out: &mut [u8]) -> Result<bool> {
        Ok(disk.try_read(offset, out)? == Fast::Done)
    }

    /// Writes if that is possible without a wait, and counts the write if it is done.
    pub fn write_now(&self, disk: &DiskHandle, offset: u64, data: &[u8], fua: bool) -> Result<Now> {
        let (written, then) = match disk.is_durable(fua) {
            true => (disk.try_write_durably(offset, data)?, Now::InBuffers),
            false => (disk.try_write(offset, data)?, Now::Done),
        };
        if written == Fast::Wait {
            return Ok(Now::Wait);
        }
        if then == Now::Done {
            self.count(Served::Buffered);
        }
        Ok(then)
    }

    /// Serves a job in a task, which holds `bytes` of memory that are allocated already.
    pub fn spawn(&self, bytes: usize, job: impl Job) {
        self.spawn_charged(self.backlog.account().force(bytes, Kind::Work), job);
    }

    /// Serves a job, whose memory is charged already, in a task. A panic ends the connection.
    pub fn spawn_charged<J: Job>(&self, charge: Charge, job: J) {
        let (ticket, timed) = (self.backlog.enter_charged(charge), self.times.begin(self.front));
        spawn_request(&self.backlog, serve(job, ticket, timed, self.backlog.clone()));
    }
}

/// Serves a job from its beginning to its reply.
async fn serve<J: Job>(job: J, ticket: Ticket, timed: Timed, backlog: Rc<Backlog>) {
    // The ticket is dropped after the job: the connection is idle when the job holds nothing any more.
    let _ticket = ticket;
    let mut job = job;
    let Some(done) = job.perform(&backlog).await else { return };
    if let Some(served) = job.served(&done) {
        timed.end(served);
    }
    if job.is_fenced() {
        return backlog.fail(FENCED);
    }
    job.reply(done, &backlog).await;
}
