//! The full feature phase of one session, which has one connection (RFC 7143, sections 4.2 and 11).
//!
//! Commands come numbered in order, and there is one connection, so what is out of order inside the window was lost
//! on the way, and the connection ends: that is error recovery level 0. A read of what is cached, and a write that
//! need not wait, are done at once; all else runs in tasks ([`super::task`]).

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task;
use std::time::Duration;

use forebay_wire::iscsi::reply::{self, Reason};
use forebay_wire::iscsi::text;
use forebay_wire::iscsi::{BHS, Lun, NO_TAG, Numbering, Pdu, Request, Step, TaskFunction, before, decode};
use tokio::net::TcpStream;

use super::command::{CRC_ERROR, aborted};
use super::connection::{Context, End, WINDOW};
use super::discovery::send_targets;
use super::link::{Link, Place};
use super::login::{LoggedIn, MAX_RECV};
use super::task::{Task, Tasks};
use super::units::View;
use super::watch::{Inbox, NOT_ADMITTED, watch};
use crate::clock::unix_ms;
use crate::plane::{Backlog, COSTLY_REQUEST, Charge, Conversation, Kind, Output, Protocol, Stop, Worker};
use crate::scsi::Session as _;
use crate::targets::{IqnName, SessionInfo};

/// Tasks of a session from which on it takes none beside the window. Those hold memory as others do.
const MAX_TASKS: usize = 2 * WINDOW as usize;
/// Most bytes of an answer to a text request in one PDU; the initiator asks for the rest.
const MAX_TEXT_REPLY: usize = 64 << 10;
/// Responses to task management (11.6.1).
const FUNCTION_COMPLETE: u8 = 0;
const NO_TASK: u8 = 1;
const NO_LUN: u8 = 2;
const NO_REASSIGN: u8 = 4;
const NOT_SUPPORTED: u8 = 5;
/// Responses to a logout (11.15.1).
const CLOSED: u8 = 0;
const NO_RECOVERY: u8 = 2;

/// A session.
pub(super) struct Session {
    pub(super) worker: Rc<Worker>,
    context: Arc<Context>,
    initiator: IqnName,
    local: SocketAddr,
    /// What it sees; `None` in a session of discovery.
    pub(super) view: Option<Arc<View>>,
    pub(super) link: Rc<Link>,
    pub(super) tasks: Rc<Tasks>,
    inbox: Rc<Inbox>,
    next_transfer_tag: Cell<u32>,
    /// A text exchange that goes on with the request of this transfer tag.
    exchange: Option<(u32, Exchange)>,
    /// With what that is charged.
    exchange_charge: Option<Charge>,
    leaving: bool,
    /// The initiator was told that the server stops.
    told_of_end: bool,
}

/// A text exchange of more than one request (11.10).
enum Exchange {
    /// What was asked so far.
    Asked(Vec<u8>),
    /// What is left of the answer.
    Unsaid(Vec<u8>),
}

impl Exchange {
    /// Bytes of memory.
    fn bytes(&self) -> usize {
        match self {
            Exchange::Asked(text) | Exchange::Unsaid(text) => text.capacity(),
        }
    }
}

/// Serves an initiator that has logged in, until it leaves. A discovery session ends when it was idle for
/// `discovery_idle`.
pub(super) async fn session(
    worker: Rc<Worker>,
    context: Arc<Context>,
    stream: TcpStream,
    login: LoggedIn,
    (peer, local): (SocketAddr, SocketAddr),
    discovery_idle: Option<Duration>,
) -> Result<(), End> {
    let backlog = Backlog::new(worker.memory());
    let link = Link::new(backlog, login.parameters, login.stat_sn, login.exp_cmd_sn);
    let inbox = Inbox::new(link.backlog.clone());
    // Subscribed before the table is looked at: no change falls in between.
    let changed = context.targets.changed();
    let (mut view, mut listed, mut end) = (None, None, None);
    if let Some((target, registered)) = &login.session {
        let seen =
            View::new(context.clone(), target, login.initiator.clone(), login.isid, login.proved.clone());
        if !seen.refresh().await {
            return Err(End::Ended(NOT_ADMITTED));
        }
        tracing::info!(initiator = %login.initiator, %peer, target = %target.name, "logged in");
        let since_ms = unix_ms();
        let (target, initiator) = (target.name.clone(), login.initiator.clone());
        listed =
            Some(context.targets.session_began(SessionInfo { target, initiator, address: peer, since_ms }));
        end = Some(registered.end.clone());
        view = Some(seen);
    }
    let _watching = watch(&inbox, view.clone(), end, changed, discovery_idle);
    let seen = view.clone();
    let backlog = link.backlog.clone();
    let session = Session {
        worker: worker.clone(),
        context,
        initiator: login.initiator,
        local,
        view,
        tasks: Tasks::new(link.clone()),
        link,
        inbox,
        next_transfer_tag: Cell::new(0),
        exchange: None,
        exchange_charge: None,
        leaving: false,
        told_of_end: false,
    };
    let done = Conversation::new(worker, stream, None, login.rest, backlog.clone(), session).await;
    // What was begun is finished before another session of this initiator begins.
    settled(&backlog).await;
    seen.iter().for_each(|view| view.leave());
    drop((listed, login.session));
    done
}

/// Waits until no request is under way.
async fn settled(backlog: &Backlog) {
    std::future::poll_fn(|cx| {
        backlog.set_waker(cx.waker());
        if backlog.has_requests() { task::Poll::Pending } else { task::Poll::Ready(()) }
    })
    .await;
}

impl Protocol for Session {
    type Error = End;

    fn serve(&mut self, input: &[u8], output: &mut Output) -> Result<(usize, Stop), End> {
        self.inbox.heard();
        let mut used = 0;
        while !self.leaving {
            if output.is_full() {
                return Ok((used, Stop::Output));
            }
            if self.link.backlog.is_full() {
                return Ok((used, Stop::Backlog));
            }
            if self.link.backlog.budget().turn_is_over() {
                return Ok((used, Stop::Turn));
            }
            match decode(&input[used..], self.link.parameters.digests, MAX_RECV)? {
                Step::NeedMore { want } => return Ok((used, Stop::Input { want })),
                Step::Pdu { used: n, pdu } => {
                    self.link.backlog.budget().count(n);
                    self.pdu(&pdu, output)?;
                    used += n;
                }
            }
        }
        Ok((used, Stop::Leave))
    }

    fn serve_long(&mut self, message: Vec<u8>, _: Charge, output: &mut Output) -> Result<Stop, End> {
        self.serve(&message, output).map(|(_, stop)| stop)
    }

    fn awaits_data(&self) -> bool {
        self.tasks.await_data()
    }

    fn attend(&mut self, _: &mut task::Context<'_>, output: &mut Output) -> Result<(), End> {
        if let Some(why) = self.inbox.ended() {
            return Err(End::Ended(why));
        }
        if self.worker.closing() && !std::mem::replace(&mut self.told_of_end, true) {
            // All connections of the session are going to end (11.9.1).
            self.link.put(&reply::asynchronous(&self.link.status_numbers(), 3, [0, 2, 0]), &[], output);
        }
        if self.inbox.take_aborts()
            && let Some(view) = &self.view
        {
            for lun in view.take_aborted() {
                // Those that run end without an answer; whoever had them aborted waits for them.
                self.tasks.abort(|task| task.lun.number() == Some(lun));
            }
        }
        self.solicit_more(output);
        if self.inbox.take_ping() {
            let tag = self.transfer_tag();
            self.link.put(&reply::nop_in(NO_TAG, tag, &self.link.numbers(), 0), &[], output);
        }
        Ok(())
    }
}

impl Session {
    pub(super) fn transfer_tag(&self) -> u32 {
        let tag = self.next_transfer_tag.get();
        // One that stands for none is never given.
        self.next_transfer_tag.set(if tag == NO_TAG - 1 { 0 } else { tag + 1 });
        tag
    }

    fn pdu(&mut self, pdu: &Pdu<'_>, output: &mut Output) -> Result<(), End> {
        let request = Request::parse(pdu);
        if !pdu.intact {
            return self.damaged(pdu, &request, output);
        }
        let place = match request.numbering() {
            Some(numbering) => match self.place(numbering)? {
                Some(place) => place,
                None => return Ok(()),
            },
            None => self.link.take(true),
        };
        match request {
            Request::NopOut { tag: NO_TAG, .. } => {}
            Request::NopOut { tag, data, .. } => {
                drop(place);
                let data = &data[..data.len().min(self.link.parameters.max_send)];
                let header = reply::nop_in(tag, NO_TAG, &self.link.status_numbers(), data.len());
                self.link.put(&header, data, output);
            }
            Request::Command(command) if command.numbering.immediate && self.tasks.len() >= MAX_TASKS => {
                self.reject(pdu, Reason::TooManyImmediate, output);
            }
            Request::Command(command) => self.command(&command, place, output),
            Request::DataOut(data) => self.data_out(&data, output),
            Request::TaskManagement { function, lun, tag, referenced_tag, .. } => {
                self.manage(function, lun, tag, referenced_tag, place);
            }
            Request::Text { tag, transfer_tag, continues, text, .. } => {
                drop(place);
                self.text(pdu, tag, transfer_tag, continues, text, output);
            }
            Request::Logout { tag, reason, .. } => {
                drop(place);
                self.logout(tag, reason, output);
            }
            Request::Snack => self.reject(pdu, Reason::Snack, output),
            Request::Unknown(_) => self.reject(pdu, Reason::NotSupported, output),
        }
        Ok(())
    }

    /// The place of a command in the window; `None` where it is outside, and not to be answered (4.2.2.1).
    fn place(&self, numbering: Numbering) -> Result<Option<Place>, End> {
        let (expected, room) = self.link.window();
        let found = numbering.cmd_sn;
        if numbering.immediate || (found == expected && room > 0) {
            return Ok(Some(self.link.take(numbering.immediate)));
        }
        if before(found, expected) || !before(found, expected.wrapping_add(room)) {
            return Ok(None);
        }
        Err(End::Gap { expected, found })
    }

    /// A PDU whose data was damaged on the way is rejected, and its command fails (7.8).
    fn damaged(&mut self, pdu: &Pdu<'_>, request: &Request<'_>, output: &mut Output) -> Result<(), End> {
        tracing::warn!(initiator = %self.initiator, "the digest of a data segment is wrong");
        self.reject(pdu, Reason::DataDigest, output);
        match request {
            Request::DataOut(data) => {
                if let Some(task) =
                    self.tasks.get(data.tag).filter(|t| self.tasks.stop_gathering(t).is_some())
                {
                    self.end(&task, &aborted(CRC_ERROR), output);
                }
            }
            Request::Command(command) => {
                // It takes its number, for the initiator knows it as sent.
                if let Some(place) = self.place(command.numbering)? {
                    self.respond(command, place, 0, &aborted(CRC_ERROR), output);
                }
            }
            // The initiator sends it again, under the same number.
            _ => {}
        }
        Ok(())
    }

    fn reject(&self, pdu: &Pdu<'_>, reason: Reason, output: &mut Output) {
        let header: &[u8; BHS] = pdu.header.as_bytes();
        self.link.put(&reply::reject(&self.link.status_numbers(), reason), header, output);
    }

    fn manage(&self, function: TaskFunction, lun: Lun, tag: u32, referenced: u32, place: Place) {
        let tasks = &self.tasks;
        let answer = |place, response| tasks.manage(|_| false, tag, place, std::future::ready(response));
        let Some(view) = &self.view else { return answer(place, NO_LUN) };
        let unit = lun.number().and_then(|lun| view.unit(lun));
        match (function, unit) {
            (TaskFunction::AbortTask, _) => {
                let is_meant = |task: &Task| task.tag == referenced && task.lun == lun;
                let there = tasks.get(referenced).is_some_and(|task| is_meant(&task));
                let response = if there { FUNCTION_COMPLETE } else { NO_TASK };
                tasks.manage(is_meant, tag, place, std::future::ready(response));
            }
            (TaskFunction::TargetWarmReset | TaskFunction::TargetColdReset, _) => {
                let units = view.nexuses();
                let reset = async move {
                    for unit in units {
                        unit.reset().await;
                    }
                    FUNCTION_COMPLETE
                };
                tasks.manage(|_| true, tag, place, reset);
            }
            (TaskFunction::TaskReassign, _) => answer(place, NO_REASSIGN),
            (TaskFunction::Other(_), _) => answer(place, NOT_SUPPORTED),
            (_, None) => answer(place, NO_LUN),
            (function, Some(unit)) => {
                let others = async move {
                    match function {
                        TaskFunction::LogicalUnitReset => unit.reset().await,
                        TaskFunction::ClearTaskSet => unit.clear_task_set().await,
                        _ => {}
                    }
                    FUNCTION_COMPLETE
                };
                tasks.manage(|task| task.lun == lun, tag, place, others);
            }
        }
    }

    fn text(
        &mut self,
        pdu: &Pdu<'_>,
        tag: u32,
        transfer_tag: u32,
        continues: bool,
        said: &[u8],
        output: &mut Output,
    ) {
        // A request without a transfer tag begins anew.
        let exchange = match self.exchange.take() {
            Some((expected, exchange)) if transfer_tag == expected => exchange,
            _ if transfer_tag == NO_TAG => Exchange::Asked(Vec::new()),
            _ => return self.reject(pdu, Reason::Protocol, output),
        };
        let answer = match exchange {
            Exchange::Unsaid(rest) => Some(rest),
            Exchange::Asked(before) if before.len() + said.len() > text::MAX_TEXT => None,
            Exchange::Asked(mut asked) => {
                asked.extend_from_slice(said);
                if continues {
                    return self.say(tag, &[], Some(Exchange::Asked(asked)), output);
                }
                self.answer(&asked)
            }
        };
        let Some(mut answer) = answer else { return self.reject(pdu, Reason::Protocol, output) };
        let most = self.link.parameters.max_send.min(MAX_TEXT_REPLY);
        let rest = answer.split_off(answer.len().min(most));
        self.say(tag, &answer, (!rest.is_empty()).then_some(Exchange::Unsaid(rest)), output);
    }

    /// Answers the text request `tag`, and has the initiator go on where there is more of the exchange.
    fn say(&mut self, tag: u32, text: &[u8], more: Option<Exchange>, output: &mut Output) {
        let account = self.link.backlog.account();
        self.exchange_charge = more.as_ref().map(|exchange| account.force(exchange.bytes(), Kind::Input));
        self.exchange = more.map(|exchange| (self.transfer_tag(), exchange));
        let transfer_tag = self.exchange.as_ref().map(|(tag, _)| *tag);
        let header = reply::text(tag, &self.link.status_numbers(), transfer_tag, text.len());
        self.link.put(&header, text, output);
    }

    fn answer(&self, said: &[u8]) -> Option<Vec<u8>> {
        self.link.backlog.budget().count(COSTLY_REQUEST);
        let (mut out, mut listed) = (Vec::new(), false);
        for (key, value) in text::parse(said).ok()? {
            match key {
                // Once for each request: a repeated key would multiply the memory that the answer takes.
                "SendTargets" if !std::mem::replace(&mut listed, true) => {
                    let current = self.view.as_ref().map(|view| view.target());
                    send_targets(&self.context, &self.initiator, current, value, self.local, &mut out);
                }
                // What was negotiated stays.
                _ => text::push(&mut out, key, "Reject"),
            }
        }
        Some(out)
    }

    fn logout(&mut self, tag: u32, reason: u8, output: &mut Output) {
        // The connection is all of the session.
        let response = if matches!(reason, 0 | 1) { CLOSED } else { NO_RECOVERY };
        self.leaving = response == CLOSED;
        self.link.put(&reply::logout(tag, &self.link.status_numbers(), response), &[], output);
    }
}
