//! The calls of one connection.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use forebay_wire::nfs::{CALL_MAX, PROGRAM, Procedure, Request, VERSION, mount, portmap};
use forebay_wire::rpc::{Call, MARK, Record, Reply, next_record};

use super::access::Permitted;
use super::attributes::caller_of;
use super::connection::Programs;
use super::context::Context;
use super::errors::End;
use super::job::Job;
use super::{lookups, mounts};
use crate::exec::Executor;
use crate::plane::{Backlog, Charge, FENCED, Front, Kind, Output, Protocol, Served, Stop, Worker, must_stop};

/// Bytes of memory that a call in a task is charged, in addition to its message.
const TASK_COST: usize = 2 << 10;

/// What the calls of a connection have in common.
pub(super) struct Shared {
    pub context: Arc<Context>,
    pub permitted: Permitted,
    pub client: IpAddr,
}

/// The state of a connection.
pub(super) struct Session {
    worker: Rc<Worker>,
    programs: Programs,
    shared: Rc<Shared>,
    executor: Executor,
    leaving: bool,
}

impl Session {
    pub fn new(
        worker: Rc<Worker>,
        context: Arc<Context>,
        backlog: Rc<Backlog>,
        (programs, permitted, client): (Programs, Permitted, IpAddr),
    ) -> Session {
        let executor = Executor::new(Front::Nfs, backlog, worker.times().clone());
        let shared = Rc::new(Shared { context, permitted, client });
        Session { worker, programs, shared, executor, leaving: false }
    }

    fn backlog(&self) -> &Rc<Backlog> {
        self.executor.backlog()
    }

    /// Serves a call at once. Returns its reply; `None` if the call has to be performed in a task.
    fn at_once(&self, message: &[u8], output: &Output) -> Result<Option<Vec<u8>>, End> {
        if self.shared.context.files.pool().is_fenced() {
            // What is in memory here may have been changed by the other server.
            return Err(End::Ended(FENCED));
        }
        let call = match Call::decode(message) {
            Ok(call) => call,
            Err(error) => {
                let reply = Reply::refusal(error).ok_or(End::Ended("a message is not a call"))?;
                return Ok(Some(reply));
            }
        };
        let xid = call.xid;
        if !self.programs.has(call.program) {
            return Ok(Some(Reply::no_program(xid)));
        }
        let versions = if call.program == portmap::PROGRAM { portmap::VERSION } else { VERSION };
        if call.version != versions {
            return Ok(Some(Reply::versions(xid, versions, versions)));
        }
        match call.program {
            PROGRAM => Ok(self.nfs(&call, output)),
            mount::PROGRAM => Ok(Some(self.mount(&call))),
            _ => Ok(Some(self.port_mapper(&call))),
        }
    }

    fn nfs(&self, call: &Call<'_>, output: &Output) -> Option<Vec<u8>> {
        let Some(procedure) = Procedure::of(call.procedure) else {
            return Some(Reply::no_procedure(call.xid));
        };
        let Ok(request) = Request::decode(procedure, call.args) else {
            return Some(Reply::garbage(call.xid));
        };
        let caller = caller_of(&call.credential, self.shared.permitted);
        if let Request::Read { file, offset, count } = request {
            let most = output.fast_read_max();
            let read = lookups::read_now(
                &self.shared,
                call.xid,
                (file, offset, count),
                most,
                &caller,
                &self.executor,
            );
            if read.is_some() {
                self.executor.count(Served::Ram);
            }
            return read;
        }
        lookups::serve(&self.shared, call.xid, &request, &caller)
    }

    fn mount(&self, call: &Call<'_>) -> Vec<u8> {
        let Context { files, mounts, access, .. } = &*self.shared.context;
        match mount::Request::decode(call.procedure, call.args) {
            Ok(Some(request)) => {
                let mut reply = Reply::success(call.xid, 64);
                mounts::serve(&request, (files, mounts, access), self.shared.client, reply.xdr());
                reply.finish()
            }
            Ok(None) => Reply::no_procedure(call.xid),
            Err(_) => Reply::garbage(call.xid),
        }
    }

    fn port_mapper(&self, call: &Call<'_>) -> Vec<u8> {
        match portmap::Request::decode(call.procedure, call.args) {
            Ok(Some(request)) => {
                let mut reply = Reply::success(call.xid, 64);
                let port = self.shared.context.port.get().copied().unwrap_or(0);
                super::portmap::serve(&request, port, reply.xdr());
                reply.finish()
            }
            Ok(None) => Reply::no_procedure(call.xid),
            Err(_) => Reply::garbage(call.xid),
        }
    }

    /// Performs the call of `message[start..]` in a task.
    fn spawn(&self, message: Vec<u8>, start: usize, charge: Charge) {
        self.executor.spawn_charged(charge, Job::new(self.shared.clone(), message, start));
    }
}

impl Protocol for Session {
    type Error = End;

    fn serve(&mut self, input: &[u8], output: &mut Output) -> Result<(usize, Stop), End> {
        let mut used = 0;
        while !self.leaving {
            if let Some(stop) = must_stop(&self.worker, output, self.backlog(), false) {
                return Ok((used, stop));
            }
            if self.worker.closing() {
                // Clients repeat calls that were not answered.
                self.leaving = true;
                break;
            }
            match next_record(&input[used..], CALL_MAX)? {
                Record::NeedMore { want } => return Ok((used, Stop::Input { want })),
                Record::Complete { used: len, message } => {
                    self.worker.pace().requested();
                    self.backlog().budget().count(len);
                    match self.at_once(&message, output)? {
                        Some(reply) => output.push(&reply),
                        None => {
                            let message = message.into_owned();
                            let bytes = TASK_COST + message.capacity();
                            let charge = self.backlog().account().force(bytes, Kind::Work);
                            self.spawn(message, 0, charge);
                        }
                    }
                    used += len;
                }
            }
        }
        Ok((used, Stop::Leave))
    }

    fn serve_long(&mut self, message: Vec<u8>, charge: Charge, output: &mut Output) -> Result<Stop, End> {
        if self.worker.closing() {
            return Ok(Stop::Leave);
        }
        let Record::Complete { message: call, .. } = next_record(&message, CALL_MAX)? else {
            return Err(End::Ended("a long call has several fragments"));
        };
        match self.at_once(&call, output)? {
            Some(reply) => output.push(&reply),
            None => match call {
                std::borrow::Cow::Borrowed(_) => self.spawn(message, MARK, charge.into_work()),
                std::borrow::Cow::Owned(joined) => self.spawn(joined, 0, charge.into_work()),
            },
        }
        Ok(Stop::Input { want: 0 })
    }
}
