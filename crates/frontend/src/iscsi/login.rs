//! The login phase (RFC 7143, section 6): authentication, choice of the target, and operational parameters.

use std::net::SocketAddr;
use std::rc::Rc;

use forebay_wire::iscsi::reply::{self, LoginStatus, Numbers};
use forebay_wire::iscsi::text::{self, MAX_TEXT};
use forebay_wire::iscsi::{Digests, Login, Negotiator, ProtocolError, Step, decode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::authentication::value;
use super::context::{Context, Disks, LoggedIn};
use super::errors::{End, Refusal, RefusedLogin, logged_name};
use super::leading::{Leading, Named};
use super::limits::{MAX_LOGIN_SEGMENT, OFFER, WINDOW};
use super::registry::Key;
use crate::plane::{Charge, Kind, MemoryAccount, Received};

/// Stages: security negotiation, operational negotiation, full feature phase (11.12.3).
const SECURITY: u8 = 0;
const OPERATIONAL: u8 = 1;
const FULL_FEATURE: u8 = 3;

/// The TSIH of a discovery session. It is not registered, so no login finds a session by it.
const DISCOVERY_TSIH: u16 = 1;

/// Logs an initiator in.
///
/// # Errors
/// Why the login failed. A refusal was sent to the initiator.
pub(super) async fn login(
    stream: &mut TcpStream,
    context: &Context,
    (peer, local): (SocketAddr, SocketAddr),
    account: Rc<MemoryAccount>,
) -> Result<LoggedIn, End> {
    let phase = LoginPhase {
        stream,
        context,
        peer,
        local,
        named: (None, None),
        received: Vec::new(),
        stat_sn: 1,
        leading: None,
        negotiator: Negotiator::new(OFFER),
        text: Vec::new(),
        account,
        text_charge: None,
    };
    phase.run().await
}

struct LoginPhase<'a> {
    stream: &'a mut TcpStream,
    context: &'a Context,
    peer: SocketAddr,
    /// The names of the initiator and of the target in the leading request, for the log.
    named: (Option<String>, Option<String>),
    /// The address to which the initiator connected.
    local: SocketAddr,
    received: Vec<u8>,
    stat_sn: u32,
    leading: Option<Leading>,
    negotiator: Negotiator,
    /// The text of the login requests received so far, until a request completes the text.
    text: Vec<u8>,
    account: Rc<MemoryAccount>,
    /// The charge for a long text.
    text_charge: Option<Charge>,
}

/// The header fields of a request.
#[derive(Clone, Copy)]
struct Header {
    transit: bool,
    /// The text continues in the next request.
    continues: bool,
    stages: (u8, u8),
    isid: [u8; 6],
    tag: u32,
    cmd_sn: u32,
}

impl LoginPhase<'_> {
    async fn run(mut self) -> Result<LoggedIn, End> {
        loop {
            let header = self.receive().await?;
            if header.continues {
                self.respond(header, false, LoginStatus::Success, 0, &[]).await?;
                continue;
            }
            let text = std::mem::take(&mut self.text);
            let _charge = self.text_charge.take();
            let mut answer = Vec::new();
            let transit = match self.answer(header, &text, &mut answer).await {
                Ok(transit) => transit,
                Err(refusal) => {
                    // The answer that was begun is incomplete and is dropped, except for the address of a
                    // redirection.
                    let is_moved = refusal.status == LoginStatus::TargetMoved;
                    let said = if is_moved { &answer[..] } else { &[] };
                    return Err(self.refuse_with(header, refusal, said).await);
                }
            };
            if transit && header.stages.1 == FULL_FEATURE {
                return self.finish(header, &answer).await;
            }
            self.respond(header, transit, LoginStatus::Success, 0, &answer).await?;
        }
    }

    /// Begins the session, and sends the last response.
    async fn finish(mut self, header: Header, answer: &[u8]) -> Result<LoggedIn, End> {
        let Some(leading) = self.leading.take() else {
            return Err(self.refuse(header, LoginStatus::InvalidRequest).await);
        };
        let session = match leading.target {
            None => None,
            Some(_) if self.context.disks.are_lost() => {
                return Err(self.refuse(header, LoginStatus::ServiceUnavailable).await);
            }
            Some(target) => {
                let (initiator, isid) = (leading.initiator.clone(), leading.isid);
                let key = Key { initiator, isid, target: target.name.clone() };
                match self.context.registry.begin(key, self.peer.ip()).await {
                    Ok(registered) => Some((target, registered)),
                    Err(status) => return Err(self.refuse(header, status).await),
                }
            }
        };
        let tsih = session.as_ref().map_or(DISCOVERY_TSIH, |(_, registered)| registered.tsih);
        self.respond(header, true, LoginStatus::Success, tsih, answer).await?;
        Ok(LoggedIn {
            initiator: leading.initiator,
            isid: leading.isid,
            session,
            proved: leading.authenticator.proved,
            parameters: self.negotiator.parameters(),
            stat_sn: self.stat_sn,
            exp_cmd_sn: header.cmd_sn,
            received: Received::after_negotiation(self.received),
            continued: None,
        })
    }

    /// Receives the next request, and appends its text to `text`.
    async fn receive(&mut self) -> Result<Header, End> {
        let (used, login) = loop {
            match decode(&self.received, Digests::default(), MAX_LOGIN_SEGMENT)? {
                Step::NeedMore { want } => {
                    let missing = (want - self.received.len()) as u64;
                    let read = (&mut *self.stream).take(missing).read_buf(&mut self.received).await?;
                    if read == 0 {
                        return Err(End::LeftInLogin);
                    }
                }
                Step::Pdu { used, pdu } => break (used, Login::parse(&pdu)?),
            }
        };
        if self.text.len() + login.text.len() > MAX_TEXT {
            return Err(ProtocolError::Field("the text of a login is too long").into());
        }
        self.text.extend_from_slice(login.text);
        let header = Header {
            transit: login.transit,
            continues: login.continues,
            stages: login.stages,
            isid: login.isid,
            tag: login.tag,
            cmd_sn: login.cmd_sn,
        };
        let (tsih, version_min) = (login.tsih, login.version_min);
        self.received.drain(..used);
        match self.check(tsih, version_min) {
            Ok(()) => Ok(header),
            Err(status) => Err(self.refuse(header, status).await),
        }
    }

    /// Checks the fields of a request that can be refused, and charges a long text.
    fn check(&mut self, tsih: u16, version_min: u8) -> Result<(), LoginStatus> {
        if self.text.len() > MAX_LOGIN_SEGMENT && self.text_charge.is_none() {
            let charge = self.account.try_take(MAX_TEXT, Kind::Input);
            self.text_charge = Some(charge.ok_or(LoginStatus::OutOfResources)?);
        }
        // Version 0 is the only version (11.12.4).
        if version_min > 0 {
            return Err(LoginStatus::UnsupportedVersion);
        }
        match tsih {
            0 => Ok(()),
            tsih if self.context.registry.has(tsih) => Err(LoginStatus::TooManyConnections),
            _ => Err(LoginStatus::NoSession),
        }
    }

    async fn respond(
        &mut self,
        header: Header,
        transit: bool,
        status: LoginStatus,
        tsih: u16,
        answer: &[u8],
    ) -> Result<(), End> {
        let (exp_cmd_sn, max_cmd_sn) = (header.cmd_sn, header.cmd_sn.wrapping_add(WINDOW - 1));
        let numbers = Numbers { stat_sn: self.stat_sn, exp_cmd_sn, max_cmd_sn };
        self.stat_sn = self.stat_sn.wrapping_add(1);
        let (stages, isid) = (header.stages, header.isid);
        let login = reply::Login { transit, continues: false, stages, isid, tsih, status };
        let mut bytes = Vec::new();
        Digests::default().append(&login.header(header.tag, &numbers, answer.len()), answer, &mut bytes);
        Ok(self.stream.write_all(&bytes).await?)
    }

    /// Refuses the login with `status`.
    async fn refuse(&mut self, header: Header, status: LoginStatus) -> End {
        self.refuse_with(header, status.into(), &[]).await
    }

    async fn refuse_with(&mut self, header: Header, refusal: Refusal, said: &[u8]) -> End {
        let Refusal { status, reason } = refusal;
        // If this fails, the initiator sees the connection close.
        let _ = self.respond(header, false, status, 0, said).await;
        let (initiator, target) = self.named.clone();
        End::LoginRefused(Box::new(RefusedLogin { status, reason, initiator, target, peer: self.peer }))
    }

    /// Redirects the initiator to the owner of a pool for which this server waits, unless it serves sessions
    /// itself; at a node of a cluster, to the owner of the shard of the target.
    async fn redirect(&self, pairs: &[(&str, &str)], out: &mut Vec<u8>) -> Result<(), Refusal> {
        let peer = self.peer.ip();
        let portal = match &self.context.disks {
            Disks::Own { .. } => return Ok(()),
            // The answer does not depend on names, so it does not reveal targets.
            Disks::OfOther(standby) => {
                if value(pairs, "InitiatorName").is_none() {
                    return Err(LoginStatus::MissingParameter.into());
                }
                let Some(portal) = standby.admit(peer, self.local).await? else { return Ok(()) };
                portal
            }
            Disks::OfCluster(cluster) => {
                let Named { initiator, target } = Named::parse(pairs)?;
                let Some(target) = target else { return Ok(cluster.discover(peer).await?) };
                let portal = cluster.portal_for((peer, self.local), &initiator, &target).await;
                let not_found = "no target of this name in the cluster admits this initiator";
                portal.map_err(|status| match status {
                    LoginStatus::NotFound => Refusal::new(status, not_found),
                    status => status.into(),
                })?
            }
        };
        // The address has no portal group tag (RFC 7143, 13.8).
        text::push(out, "TargetAddress", &portal.to_string());
        Err(LoginStatus::TargetMoved.into())
    }

    /// Answers a complete text. Returns whether the login proceeds to the next stage.
    async fn answer(&mut self, header: Header, text: &[u8], out: &mut Vec<u8>) -> Result<bool, Refusal> {
        let pairs = text::parse(text).map_err(|_| LoginStatus::InitiatorError)?;
        if self.leading.is_none() {
            let named = |key| value(&pairs, key).map(logged_name);
            self.named = (named("InitiatorName"), named("TargetName"));
            self.redirect(&pairs, out).await?;
            let leading = Leading::new(self.context, self.peer.ip(), header.isid, &pairs)?;
            if leading.target.is_some() {
                text::push(out, "TargetPortalGroupTag", &self.context.groups.own().to_string());
            }
            self.leading = Some(leading);
        }
        let Some(leading) = &mut self.leading else { return Err(LoginStatus::InvalidRequest.into()) };
        let is_valid_stage = match header.stages {
            (SECURITY, OPERATIONAL | FULL_FEATURE) | (OPERATIONAL, FULL_FEATURE) => true,
            (stage, _) => !header.transit && matches!(stage, SECURITY | OPERATIONAL),
        };
        if !is_valid_stage {
            return Err(LoginStatus::InvalidRequest.into());
        }
        if header.stages.0 == SECURITY {
            leading.authenticator.negotiate(self.context, &pairs, out).await?;
        } else {
            if !leading.authenticator.is_done() {
                let reason = "the target requires CHAP, which the initiator did not begin";
                return Err(Refusal::new(LoginStatus::AuthenticationFailed, reason));
            }
            let is_discovery = leading.target.is_none();
            let settled = ["InitiatorName", "InitiatorAlias", "SessionType", "TargetName"];
            for (key, value) in pairs.iter().filter(|(key, _)| !settled.contains(key)) {
                self.negotiator.answer(key, value, is_discovery, out);
            }
            self.negotiator.declare(out);
        }
        Ok(header.transit && leading.authenticator.is_done())
    }
}
