//! A call that is performed in a task.

use std::rc::Rc;

use forebay_files::Error;
use forebay_wire::nfs::{Procedure, Request};
use forebay_wire::rpc::{Call, Reply};

use super::attributes::caller_of;
use super::errors::is_leaving;
use super::session::Shared;
use super::{changes, data};
use crate::plane::{Backlog, Charge, Served};

/// Why calls are not answered any more.
const LEAVING: &str = "the server is shutting down";

/// A call in a task.
pub(super) struct Job {
    shared: Rc<Shared>,
    message: Vec<u8>,
    /// Offset of the call in the message.
    start: usize,
}

/// A call that was performed.
#[derive(Default)]
pub(super) struct Done {
    /// The reply; `None` if the call is not answered.
    pub reply: Option<Vec<u8>>,
    /// The charge for the memory of a long reply.
    pub charge: Option<Charge>,
    /// How data was read or written.
    pub served: Option<Served>,
}

impl Done {
    pub fn reply(reply: Reply) -> Done {
        Done { reply: Some(reply.finish()), ..Done::default() }
    }

    /// The end of a call with this error; `encode` makes the reply if the call is answered.
    pub fn failed(error: &Error, encode: impl FnOnce() -> Reply) -> Done {
        if is_leaving(error) { Done::default() } else { Done::reply(encode()) }
    }
}

impl Job {
    pub fn new(shared: Rc<Shared>, message: Vec<u8>, start: usize) -> Job {
        Job { shared, message, start }
    }
}

impl crate::exec::Job for Job {
    type Done = Done;

    async fn perform(&mut self, backlog: &Rc<Backlog>) -> Option<Done> {
        // The call was decoded when it arrived.
        let call = Call::decode(self.message.get(self.start..)?).ok()?;
        let request = Request::decode(Procedure::of(call.procedure)?, call.args).ok()?;
        let shared = &*self.shared;
        let caller = caller_of(&call.credential, shared.permitted);
        Some(match request {
            Request::Read { .. }
            | Request::Write { .. }
            | Request::Commit { .. }
            | Request::ReadLink { .. }
            | Request::FsStat { .. } => {
                Box::pin(data::perform(shared, call.xid, &request, &caller, backlog)).await
            }
            _ => Box::pin(changes::perform(shared, &call, &request, &caller)).await,
        })
    }

    fn served(&self, done: &Done) -> Option<Served> {
        done.served
    }

    fn is_fenced(&self) -> bool {
        self.shared.context.files.pool().is_fenced()
    }

    async fn reply(self, done: Done, backlog: &Rc<Backlog>) {
        match (done.reply, done.charge) {
            (None, _) => return backlog.fail(LEAVING),
            (Some(reply), Some(charge)) => backlog.push_shrunk(reply, charge),
            (Some(reply), None) => backlog.push(reply),
        }
        backlog.wake();
    }
}
