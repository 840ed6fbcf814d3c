//! The capsules of one queue.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task;

use forebay_wire::nvme::reply::Framing;
use forebay_wire::nvme::{Fabrics, FatalError, Pdu, Phase, Sqe, Status, Step, decode};

use super::admin::Admin;
use super::commands::Commands;
use super::connect::LIMITS;
use super::context::Context;
use super::controller::Controller;
use super::errors::End;
use super::link::Link;
use super::watch::Inbox;
use crate::plane::{Backlog, Charge, Output, Protocol, Stop, Worker, must_stop};
use crate::throttle::Throttle;

/// The commands that a queue serves.
enum Kind {
    Admin(Admin),
    Io(Rc<Commands>),
}

/// The state of a connection with a queue.
pub(super) struct Queue {
    worker: Rc<Worker>,
    controller: Arc<Controller>,
    link: Rc<Link>,
    kind: Kind,
    inbox: Rc<Inbox>,
    /// The host has disconnected the queue, or a fatal error was reported.
    leaving: bool,
}

impl Queue {
    pub fn new(
        worker: Rc<Worker>,
        context: Arc<Context>,
        controller: Arc<Controller>,
        (backlog, inbox): (Rc<Backlog>, Rc<Inbox>),
        (queue, entries, fetched, no_flow_control): (u16, u16, u16, bool),
        framing: Framing,
        local: SocketAddr,
    ) -> Queue {
        let link = Rc::new(Link::new(backlog, framing, (queue, entries, fetched), no_flow_control));
        let kind = match queue {
            0 => Kind::Admin(Admin::new(context, controller.clone(), link.clone(), local)),
            _ => Kind::Io(Commands::new(controller.clone(), link.clone(), worker.times().clone())),
        };
        controller.touch();
        Queue { worker, controller, link, kind, inbox, leaving: false }
    }

    fn pdu(&mut self, pdu: &Pdu<'_>, output: &mut Output) -> Result<(), FatalError> {
        match pdu {
            Pdu::Init(_) => Err(FatalError::Sequence("a second initialization request")),
            Pdu::Terminate { status } => {
                log_termination(*status);
                self.leaving = true;
                Ok(())
            }
            Pdu::Command { sqe, data, intact } => self.command(sqe, data, *intact, output),
            Pdu::Data { header, data, intact } => match &self.kind {
                Kind::Io(commands) => commands.data(header, data, *intact, output),
                Kind::Admin(_) => {
                    Err(FatalError::Header { offset: 8, why: "no data of the command was requested" })
                }
            },
        }
    }

    fn command(
        &mut self,
        sqe: &Sqe,
        data: &[u8],
        intact: bool,
        output: &mut Output,
    ) -> Result<(), FatalError> {
        self.worker.pace().requested();
        self.link.fetched();
        match (Fabrics::decode(sqe), &mut self.kind) {
            (Some(Ok(Fabrics::Disconnect)), Kind::Io(_)) => {
                self.link.complete(sqe.id(), Status::SUCCESS, 0, output);
                self.leaving = true;
            }
            (Some(fabrics), Kind::Admin(admin)) => admin.fabrics(sqe, fabrics, output),
            (Some(_), Kind::Io(_)) => self.link.complete(sqe.id(), Status::INVALID_FIELD, 0, output),
            (None, Kind::Admin(admin)) => return admin.command(sqe, output),
            (None, Kind::Io(commands)) => return commands.command(sqe, data, intact, output),
        }
        Ok(())
    }

    /// Reports a fatal error; the connection ends when the report is sent (Transport 3.5).
    fn fatal(&mut self, error: FatalError, found: &[u8], output: &mut Output) {
        static FATAL: Throttle = Throttle::new();
        if let Some(left_out) = FATAL.permit() {
            let host = &self.controller.host;
            tracing::warn!(%host, queue = self.link.queue, left_out, "a fatal error of an NVMe host: {error}");
        }
        self.link.end(error, found, output);
        self.leaving = true;
    }
}

fn log_termination(status: u16) {
    static TERMINATED: Throttle = Throttle::new();
    if let Some(left_out) = TERMINATED.permit() {
        tracing::warn!(status, left_out, "an NVMe host has found a fatal error");
    }
}

impl Protocol for Queue {
    type Error = End;

    fn serve(&mut self, input: &[u8], output: &mut Output) -> Result<(usize, Stop), End> {
        self.controller.touch();
        let mut used = 0;
        while !self.leaving {
            if let Some(stop) = must_stop(&self.worker, output, &self.link.backlog, false) {
                return Ok((used, stop));
            }
            if self.worker.closing() {
                // Hosts repeat commands that were not answered.
                self.leaving = true;
                break;
            }
            let rest = &input[used..];
            match decode(rest, Phase::Established, self.link.framing.digests, LIMITS) {
                Ok(Step::NeedMore { want }) => return Ok((used, Stop::Input { want })),
                Ok(Step::Pdu { used: n, pdu }) => {
                    self.link.backlog.budget().count(n);
                    if let Err(error) = self.pdu(&pdu, output) {
                        self.fatal(error, rest, output);
                    }
                    used += n;
                }
                Err(error) => self.fatal(error, rest, output),
            }
        }
        Ok((used, Stop::Leave))
    }

    fn serve_long(&mut self, message: Vec<u8>, _: Charge, output: &mut Output) -> Result<Stop, End> {
        self.serve(&message, output).map(|(_, stop)| stop)
    }

    fn awaits_data(&self) -> bool {
        matches!(&self.kind, Kind::Io(commands) if commands.await_data())
    }

    fn attend(&mut self, _: &mut task::Context<'_>, output: &mut Output) -> Result<(), End> {
        if let Some(why) = self.inbox.ended() {
            return Err(End::Ended(why));
        }
        match &mut self.kind {
            Kind::Admin(admin) => admin.report_events(output),
            Kind::Io(_) if !self.controller.is_ready() => {
                return Err(End::Ended("the host has disabled the controller"));
            }
            Kind::Io(commands) => {
                if self.inbox.take_interrupts() {
                    commands.end_interrupted(output);
                }
                commands.solicit(output);
            }
        }
        Ok(())
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if let Kind::Io(commands) = &self.kind {
            commands.drop_gathering();
        }
    }
}
