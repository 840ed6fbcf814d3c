//! The full feature phase of a session, which has one connection (RFC 7143, sections 4.2 and 11).
//!
//! Commands are numbered and arrive in order on the one connection. So a number inside the window that is out
//! of order means that a command was lost, and the connection ends: that is error recovery level 0. Reads of
//! cached blocks and writes that need no wait are executed at once; all other commands run in tasks
//! ([`super::task`]).

use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::task;
use std::time::Duration;

use forebay_host::clock::unix_ms;
use forebay_wire::iscsi::reply::{self, Reason};
use forebay_wire::iscsi::{BHS, NO_TAG, Numbering, Pdu, Request, Step, before, decode};
use tokio::net::TcpStream;

use super::command::Commands;
use super::context::{Context, KnownDisks, LoggedIn};
use super::errors::End;
use super::handover::HandedOver;
use super::limits::{MAX_RECV, MAX_TASKS};
use super::link::{CommandSlot, Link};
use super::lun_map::LunMap;
use super::task::Task;
use super::text::{Invalid, TextRequests};
use super::watch::{Inbox, NOT_ADMITTED, watch};
use crate::peer::cookie_of;
use crate::plane::{
    Backlog, Charge, Conversation, Ended, Kind, MAX_ASIDE, Output, Protocol, Stop, Worker, must_stop,
};
use crate::targets::{EndRequest, IqnName, OpenLuns, SessionInfo};
use crate::throttle::Throttle;

/// Bytes of PDUs that are put aside even if there is no memory: a session must not end because of the
/// commands that usually arrive.
const FORCED_ASIDE: usize = 256 << 10;
const NO_MEMORY_ASIDE: &str = "no memory for what the initiator sends while the server hands over";

/// Reasons of a logout (RFC 7143, 11.14.1).
const CLOSE_SESSION: u8 = 0;
const CLOSE_CONNECTION: u8 = 1;
/// Responses to a logout (RFC 7143, 11.15.1).
const CLOSED: u8 = 0;
const NO_RECOVERY: u8 = 2;

/// The state of an iSCSI session.
struct Session {
    worker: Rc<Worker>,
    initiator: IqnName,
    link: Rc<Link>,
    commands: Commands,
    text: TextRequests,
    inbox: Rc<Inbox>,
    /// The initiator logged out, or an administrator ends the session.
    leaving: bool,
    /// The tag of a logout that is answered when no command is in progress.
    logout: Option<u32>,
    /// The message that the server ends the session was sent.
    stop_announced: bool,
    /// The part of the session's state that does not change, for a successor; `None` for a discovery session.
    identity: Option<HandedOver>,
    /// PDUs that were put aside while only commands in progress were served.
    aside: Aside,
}

/// Serves an initiator that has logged in, until it logs out. A discovery session ends when it has been idle
/// for `discovery_idle`.
pub(super) async fn session(
    worker: Rc<Worker>,
    context: Arc<Context>,
    stream: TcpStream,
    mut login: LoggedIn,
    (peer, local): (SocketAddr, SocketAddr),
    discovery_idle: Option<Duration>,
) -> Result<Ended, End> {
    let backlog = Backlog::new(&worker);
    let link = Link::new(backlog.clone(), login.parameters, login.stat_sn, login.exp_cmd_sn);
    let inbox = Inbox::new(backlog.clone());
    if let Some(continued) = &login.continued {
        link.set_next_transfer_tag(continued.transfer_tag);
    }
    let since_ms = login.continued.as_ref().map_or_else(unix_ms, |continued| continued.since_ms);
    // The subscription precedes the first read of the table, so that no change in between is missed.
    let target = login.session.as_ref().map(|(target, _)| &target.name);
    let changed = target.map(|target| context.targets.changed_at(target));
    let (mut luns, mut listed, mut end) = (None, None, None);
    let disconnect = EndRequest::default();
    if let Some((target, registered)) = &login.session {
        let (initiator, proved) = (login.initiator.clone(), login.proved.clone());
        let before = login.continued.as_mut().map_or_else(Default::default, |continued| {
            (continued.standby.take(), std::mem::take(&mut continued.known))
        });
        let map = LunMap::new(context.clone(), target, (initiator.clone(), login.isid), proved, before);
        // The session is registered before it reads the table, so that it misses no change of the table.
        listed = Some(context.targets.session_began(SessionInfo {
            id: cookie_of(stream.as_raw_fd()),
            target: target.name.clone(),
            initiator: initiator.clone(),
            address: peer,
            since_ms,
            luns: Arc::<LunMap>::downgrade(&map) as Weak<dyn OpenLuns>,
            end: disconnect.clone(),
            applied: map.followed.applied(),
        }));
        if !map.refresh().await {
            return Err(End::Ended(NOT_ADMITTED));
        }
        if login.continued.is_none() {
            log_login(&initiator, peer, &target.name);
        }
        map.followed.settle().await;
        backlog.account().join(&format!("target {}", target.name));
        end = Some(registered.end.clone());
        luns = Some(map);
    }
    login.continued = None;
    let _watching = watch(&inbox, luns.clone(), end, disconnect, changed, discovery_idle);
    let target = luns.as_ref().map(|luns| luns.target().clone());
    let identity = identity(&login, since_ms);
    let session = Session {
        worker: worker.clone(),
        initiator: login.initiator.clone(),
        commands: Commands::new(worker.clone(), luns.clone(), link.clone()),
        text: TextRequests::new(context, link.clone(), login.initiator, target, local),
        link,
        inbox,
        leaving: false,
        logout: None,
        stop_announced: false,
        identity,
        aside: Aside::default(),
    };
    let tasks = session.commands.tasks.clone();
    let done = Conversation::new(worker, stream, None, login.received, backlog.clone(), session).await;
    // A task that gathers waits for data that cannot arrive any more, and nothing aborts the task from here
    // on. Another nexus that requests its abort waits for its end, and must not wait for running tasks too.
    tasks.abort(|_| true);
    drop(tasks);
    // Started requests are finished before another session of this initiator begins.
    requests_ended(&backlog).await;
    luns.iter().for_each(|luns| luns.leave());
    drop((listed, login.session));
    done
}

/// Logs a login. The log is rate-limited: an initiator that logs in again and again would fill it.
fn log_login(initiator: &IqnName, peer: SocketAddr, target: &IqnName) {
    static LOGGED_IN: Throttle = Throttle::new();
    if let Some(left_out) = LOGGED_IN.permit() {
        tracing::info!(left_out, "initiator {initiator} at {peer} logged in to target {target}");
    }
}

/// The part of a session's state that does not change; `None` for a discovery session.
fn identity(login: &LoggedIn, since_ms: u64) -> Option<HandedOver> {
    login.session.as_ref().map(|(target, registered)| HandedOver {
        initiator: login.initiator.clone(),
        isid: login.isid,
        target: target.name.clone(),
        tsih: registered.tsih,
        proved: login.proved.clone(),
        parameters: login.parameters,
        stat_sn: login.stat_sn,
        exp_cmd_sn: login.exp_cmd_sn,
        transfer_tag: 0,
        since_ms,
        standby: None,
        known: KnownDisks::default(),
    })
}

/// Waits until no request is under way.
async fn requests_ended(backlog: &Backlog) {
    std::future::poll_fn(|cx| {
        backlog.set_waker(cx.waker());
        if backlog.has_requests() { task::Poll::Pending } else { task::Poll::Ready(()) }
    })
    .await;
}

impl Protocol for Session {
    type Error = End;

    fn serve(&mut self, input: &[u8], output: &mut Output) -> Result<(usize, Stop), End> {
        self.inbox.received();
        let mut used = 0;
        while !self.leaving {
            if let Some(stop) = must_stop(&self.worker, output, &self.link.backlog, self.needs_input()) {
                return Ok((used, stop));
            }
            match decode(&input[used..], self.link.parameters.digests, MAX_RECV)? {
                Step::NeedMore { want } => return Ok((used, Stop::Input { want })),
                Step::Pdu { used: n, pdu } => {
                    self.link.backlog.budget().count(n);
                    if self.worker.is_quiescing() && !self.completes_data(&pdu) {
                        self.put_aside(&input[used..used + n])?;
                    } else {
                        self.pdu(&pdu, output)?;
                    }
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
        self.commands.tasks.await_data()
    }

    fn needs_input(&self) -> bool {
        self.commands.tasks.gather_data()
    }

    fn take_aside(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.aside).pdus
    }

    fn park(&self) -> Option<serde_json::Value> {
        let identity = self.identity.clone().filter(|_| !self.text.is_busy())?;
        let (stat_sn, exp_cmd_sn) = self.link.next_numbers();
        let transfer_tag = self.link.next_transfer_tag();
        let standby = self.commands.luns.as_ref().and_then(|luns| luns.standby_states());
        let known = self.commands.luns.as_ref().map(|luns| luns.known_disks()).unwrap_or_default();
        let state = HandedOver { stat_sn, exp_cmd_sn, transfer_tag, standby, known, ..identity };
        serde_json::to_value(state).ok()
    }

    fn is_ending(&self) -> bool {
        self.inbox.is_leaving()
    }

    fn attend(&mut self, _: &mut task::Context<'_>, output: &mut Output) -> Result<(), End> {
        if let Some(why) = self.inbox.ended() {
            return Err(End::Ended(why));
        }
        let is_ended = self.inbox.is_leaving() && !std::mem::replace(&mut self.leaving, true);
        if (is_ended || self.worker.closing()) && !std::mem::replace(&mut self.stop_announced, true) {
            // The message states that all connections of the session are going to end (11.9.1).
            self.link.put(&reply::asynchronous(&self.link.status_numbers(), 3, [0, 2, 0]), &[], output);
        }
        if self.inbox.take_aborts() {
            // Running tasks end without an answer; the nexus that aborted them waits for their end. Tasks
            // that arrived later are not aborted.
            self.commands.tasks.abort(Task::is_aborted_by_other);
            self.commands.end_withdrawn(output);
        }
        if self.worker.is_quiescing() {
            self.commands.tasks.put_off_long();
        }
        self.commands.solicit_more(output);
        if !self.worker.is_quiescing() && self.inbox.take_ping() && !self.leaving {
            let tag = self.link.transfer_tag();
            self.link.put(&reply::nop_in(NO_TAG, tag, &self.link.numbers(), 0), &[], output);
        }
        if !self.link.backlog.has_requests()
            && let Some(tag) = self.logout.take()
        {
            // When the initiator reads the answer, RESERVE has ended too.
            self.commands.luns.iter().for_each(|luns| luns.leave());
            self.link.put(&reply::logout(tag, &self.link.status_numbers(), CLOSED), &[], output);
            self.inbox.log_out_answered();
        }
        Ok(())
    }
}

/// PDUs that are served later, with the charge for their memory.
#[derive(Default)]
struct Aside {
    pdus: Vec<u8>,
    charge: Option<Charge>,
}

impl Session {
    /// Whether a PDU has data of a command in progress.
    fn completes_data(&self, pdu: &Pdu<'_>) -> bool {
        matches!(Request::parse(pdu), Request::DataOut(data) if self.commands.tasks.get(data.tag).is_some())
    }

    /// Serves a PDU later, so that commands in progress can be finished although the initiator continues to
    /// send PDUs.
    fn put_aside(&mut self, pdu: &[u8]) -> Result<(), End> {
        let Aside { pdus, charge } = &mut self.aside;
        if pdus.len() + pdu.len() > MAX_ASIDE {
            return Err(End::Ended("the initiator sends more than its command window allows"));
        }
        let account = self.link.backlog.account();
        let more = match pdus.len() < FORCED_ASIDE {
            true => account.force(pdu.len(), Kind::Input),
            false => account.try_take(pdu.len(), Kind::Input).ok_or(End::Ended(NO_MEMORY_ASIDE))?,
        };
        match charge {
            Some(charge) => charge.join(more),
            none => *none = Some(more),
        }
        pdus.extend_from_slice(pdu);
        Ok(())
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
            Request::Command(command)
                if command.numbering.immediate && self.commands.tasks.len() >= MAX_TASKS =>
            {
                self.reject(pdu, Reason::TooManyImmediate, output);
            }
            Request::Command(command) => self.commands.command(&command, place, output),
            Request::DataOut(data) => self.commands.data_out(&data, output),
            Request::TaskManagement { function, lun, tag, referenced_tag, .. } => {
                self.commands.manage(function, lun, tag, referenced_tag, place);
            }
            Request::Text { tag, transfer_tag, continues, text, .. } => {
                drop(place);
                if let Err(Invalid) = self.text.serve(tag, transfer_tag, continues, text, output) {
                    self.reject(pdu, Reason::Protocol, output);
                }
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

    /// Takes the place of a command in the window; `None` if the command is outside of the window and must
    /// not be answered (4.2.2.1).
    fn place(&self, numbering: Numbering) -> Result<Option<CommandSlot>, End> {
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

    /// Rejects a PDU whose data segment has a wrong digest, and fails its command (7.8).
    fn damaged(&mut self, pdu: &Pdu<'_>, request: &Request<'_>, output: &mut Output) -> Result<(), End> {
        static WRONG_DIGEST: Throttle = Throttle::new();
        if let Some(left_out) = WRONG_DIGEST.permit() {
            tracing::warn!(initiator = %self.initiator, left_out, "wrong digest of a data segment");
        }
        self.reject(pdu, Reason::DataDigest, output);
        match request {
            Request::DataOut(data) => self.commands.damaged_data(data.tag, output),
            Request::Command(command) => {
                // The command uses its number: the initiator counts the command as sent.
                if let Some(place) = self.place(command.numbering)? {
                    self.commands.damaged_command(command, place, output);
                }
            }
            // The initiator sends the PDU again, under the same number.
            _ => {}
        }
        Ok(())
    }

    fn reject(&self, pdu: &Pdu<'_>, reason: Reason, output: &mut Output) {
        let header: &[u8; BHS] = pdu.header.as_bytes();
        self.link.put(&reply::reject(&self.link.status_numbers(), reason), header, output);
    }

    /// Handles a logout. Closing the connection closes the session, which has no other connection. This
    /// aborts the commands in progress (11.14). The logout is answered after they have ended, so that no
    /// command changes a unit afterwards.
    fn logout(&mut self, tag: u32, reason: u8, output: &mut Output) {
        if !matches!(reason, CLOSE_SESSION | CLOSE_CONNECTION) {
            self.link.put(&reply::logout(tag, &self.link.status_numbers(), NO_RECOVERY), &[], output);
            return;
        }
        self.leaving = true;
        self.logout = Some(tag);
        self.inbox.log_out();
        self.commands.tasks.abort(|_| true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::throttle::log_of;

    #[test]
    fn repeated_logins_do_not_fill_the_log() {
        let (initiator, target) = ("iqn.2026-11.org.example:host", "iqn.2026-11.org.example:disk");
        let (initiator, target) = (initiator.parse().unwrap(), target.parse().unwrap());
        let text = log_of(|| {
            for _ in 0..1000 {
                log_login(&initiator, "192.0.2.1:1".parse().unwrap(), &target);
            }
        });
        let logged = text.lines().filter(|line| line.contains("logged in")).count();
        // The lines fall into at most two intervals of the limit.
        assert!((1..=20).contains(&logged), "{logged}");
    }
}
