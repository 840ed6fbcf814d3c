//! The login phase (RFC 7143, section 6): who comes, to which target, and how both will speak.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use forebay_wire::iscsi::reply::{self, LoginStatus, Numbers};
use forebay_wire::iscsi::text::{self, MAX_TEXT};
use forebay_wire::iscsi::{Digests, Login, Negotiator, Offer, Parameters, ProtocolError, Step, decode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::attempts::Account;
use super::chap::{Algorithm, Challenge, MAX_CHALLENGE};
use super::connection::{Context, End, WINDOW};
use super::registry::{Key, Registered};
use crate::plane::{Charge, Kind, MemoryAccount};
use crate::targets::{Chap, IqnName, Target};

/// Longest data segment of a login request: what holds before anything is declared.
const MAX_SEGMENT: usize = 8192;
/// What this target offers. Its data segments fit into a thread's input buffer several times.
const OFFER: Offer =
    Offer { max_recv: MAX_RECV, max_burst: 1 << 20, first_burst: 256 << 10, max_outstanding_r2t: 4 };
/// Longest data segment that is received in the full feature phase.
pub(super) const MAX_RECV: usize = 64 << 10;
/// The group that all portals are in (RFC 7143, 13.9).
pub(super) const PORTAL_GROUP: u16 = 1;

/// Security negotiation, operational negotiation, full feature phase (11.12.3).
const SECURITY: u8 = 0;
const OPERATIONAL: u8 = 1;
const FULL_FEATURE: u8 = 3;

/// An initiator that is logged in.
pub(super) struct LoggedIn {
    pub initiator: IqnName,
    pub isid: [u8; 6],
    /// The target; `None` in a session of discovery.
    pub session: Option<(Arc<Target>, Registered)>,
    /// With what it authenticated itself, if it did.
    pub proved: Option<Chap>,
    pub parameters: Parameters,
    /// The status number and command number that come next.
    pub stat_sn: u32,
    pub exp_cmd_sn: u32,
    /// What was received behind the login.
    pub rest: Vec<u8>,
}

/// How far an initiator has shown who it is.
enum Auth {
    /// It need not.
    NotNeeded,
    /// It has to, with one of these.
    Needed,
    /// It chose CHAP.
    Chosen,
    /// It was asked.
    Asked(Challenge),
    /// It has.
    Done,
}

struct Conversation<'a> {
    stream: &'a mut TcpStream,
    context: &'a Context,
    peer: IpAddr,
    received: Vec<u8>,
    stat_sn: u32,
    leading: Option<Leading>,
    negotiator: Negotiator,
    auth: Auth,
    proved: Option<Chap>,
    /// What the initiator said in the requests of an unfinished text.
    said: Vec<u8>,
    /// What memory a long text is charged to, and with what.
    account: Rc<MemoryAccount>,
    text_charge: Option<Charge>,
}

/// What the first request settles.
struct Leading {
    initiator: IqnName,
    isid: [u8; 6],
    /// `None` for discovery.
    target: Option<Arc<Target>>,
    /// With what it can authenticate itself.
    chaps: Vec<Chap>,
    /// With what the target does.
    mutual: Option<Chap>,
    /// What failed attempts count against.
    account: Account,
}

/// Logs an initiator in. An error is why it was not; it has been told.
pub(super) async fn login(
    stream: &mut TcpStream,
    context: &Context,
    peer: SocketAddr,
    account: Rc<MemoryAccount>,
) -> Result<LoggedIn, End> {
    let conversation = Conversation {
        stream,
        context,
        peer: peer.ip(),
        received: Vec::new(),
        stat_sn: 1,
        leading: None,
        negotiator: Negotiator::new(OFFER),
        auth: Auth::NotNeeded,
        proved: None,
        said: Vec::new(),
        account,
        text_charge: None,
    };
    conversation.run().await
}

/// A request without its text.
#[derive(Clone, Copy)]
struct Asked {
    transit: bool,
    stages: (u8, u8),
    isid: [u8; 6],
    tag: u32,
    cmd_sn: u32,
}

impl Conversation<'_> {
    async fn run(mut self) -> Result<LoggedIn, End> {
        loop {
            let (asked, whole) = self.receive().await?;
            if !whole {
                self.respond(asked, false, LoginStatus::Success, 0, &[]).await?;
                continue;
            }
            let said = std::mem::take(&mut self.said);
            let _charge = self.text_charge.take();
            let mut answer = Vec::new();
            let transit = match self.answer(asked, &said, &mut answer).await {
                Ok(transit) => transit,
                Err(status) => return Err(self.refuse(asked, status).await),
            };
            if !transit || asked.stages.1 != FULL_FEATURE {
                self.respond(asked, transit, LoginStatus::Success, 0, &answer).await?;
                continue;
            }
            let Some(leading) = self.leading.take() else {
                return Err(self.refuse(asked, LoginStatus::InvalidRequest).await);
            };
            let session = match leading.target {
                None => None,
                Some(target) => {
                    let (initiator, isid) = (leading.initiator.clone(), leading.isid);
                    let key = Key { initiator, isid, target: target.name.clone() };
                    match self.context.registry.begin(key).await {
                        Ok(registered) => Some((target, registered)),
                        Err(status) => return Err(self.refuse(asked, status).await),
                    }
                }
            };
            // A session of discovery has a handle, too; nothing is found by it.
            let tsih = session.as_ref().map_or(1, |(_, registered)| registered.tsih);
            self.respond(asked, true, LoginStatus::Success, tsih, &answer).await?;
            return Ok(LoggedIn {
                initiator: leading.initiator,
                isid: leading.isid,
                session,
                proved: self.proved,
                parameters: self.negotiator.parameters(),
                stat_sn: self.stat_sn,
                exp_cmd_sn: asked.cmd_sn,
                rest: self.received,
            });
        }
    }

    /// The next request; its text is in `said`. Says whether that is whole.
    async fn receive(&mut self) -> Result<(Asked, bool), End> {
        loop {
            match decode(&self.received, Digests::default(), MAX_SEGMENT)? {
                Step::NeedMore { want } => {
                    let missing = (want - self.received.len()) as u64;
                    let read = (&mut *self.stream).take(missing).read_buf(&mut self.received).await?;
                    if read == 0 {
                        return Err(End::LeftInLogin);
                    }
                }
                Step::Pdu { used, pdu } => {
                    let login = Login::parse(&pdu)?;
                    if self.said.len() + login.text.len() > MAX_TEXT {
                        return Err(ProtocolError::Field("a login of more text than any needs").into());
                    }
                    let total = self.said.len() + login.text.len();
                    self.said.extend_from_slice(login.text);
                    let asked = Asked {
                        transit: login.transit,
                        stages: login.stages,
                        isid: login.isid,
                        tag: login.tag,
                        cmd_sn: login.cmd_sn,
                    };
                    let (continues, tsih, version_min) = (login.continues, login.tsih, login.version_min);
                    self.received.drain(..used);
                    if total > MAX_SEGMENT && self.text_charge.is_none() {
                        self.text_charge = self.account.try_take(MAX_TEXT, Kind::Input);
                        if self.text_charge.is_none() {
                            return Err(self.refuse(asked, LoginStatus::OutOfResources).await);
                        }
                    }
                    // Version 0 is the only one (11.12.4).
                    if version_min > 0 {
                        return Err(self.refuse(asked, LoginStatus::UnsupportedVersion).await);
                    }
                    if tsih != 0 {
                        let there = self.context.registry.has(tsih);
                        let status =
                            if there { LoginStatus::TooManyConnections } else { LoginStatus::NoSession };
                        return Err(self.refuse(asked, status).await);
                    }
                    return Ok((asked, !continues));
                }
            }
        }
    }

    async fn respond(
        &mut self,
        asked: Asked,
        transit: bool,
        status: LoginStatus,
        tsih: u16,
        answer: &[u8],
    ) -> Result<(), End> {
        let (exp_cmd_sn, max_cmd_sn) = (asked.cmd_sn, asked.cmd_sn.wrapping_add(WINDOW - 1));
        let numbers = Numbers { stat_sn: self.stat_sn, exp_cmd_sn, max_cmd_sn };
        self.stat_sn = self.stat_sn.wrapping_add(1);
        let login =
            reply::Login { transit, continues: false, stages: asked.stages, isid: asked.isid, tsih, status };
        let mut bytes = Vec::new();
        Digests::default().append(&login.header(asked.tag, &numbers, answer.len()), answer, &mut bytes);
        Ok(self.stream.write_all(&bytes).await?)
    }

    /// Tells the initiator why it is not logged in.
    async fn refuse(&mut self, asked: Asked, status: LoginStatus) -> End {
        // It is told by the closed socket otherwise.
        let _ = self.respond(asked, false, status, 0, &[]).await;
        let initiator = self.leading.as_ref().map(|l| l.initiator.to_string());
        End::LoginRefused { status, initiator: initiator.unwrap_or_else(|| "an initiator".into()) }
    }

    /// Answers a request; says whether it goes to the next stage.
    async fn answer(&mut self, asked: Asked, said: &[u8], out: &mut Vec<u8>) -> Result<bool, LoginStatus> {
        let pairs = text::parse(said).map_err(|_| LoginStatus::InitiatorError)?;
        if self.leading.is_none() {
            let leading = self.lead(asked, &pairs)?;
            if leading.target.is_some() {
                text::push(out, "TargetPortalGroupTag", &PORTAL_GROUP.to_string());
            }
            let needed = leading.target.is_some() && !leading.chaps.is_empty();
            self.auth = if needed { Auth::Needed } else { Auth::NotNeeded };
            self.leading = Some(leading);
        }
        let stage_is_right = match asked.stages {
            (SECURITY, OPERATIONAL | FULL_FEATURE) | (OPERATIONAL, FULL_FEATURE) => true,
            (stage, _) => !asked.transit && matches!(stage, SECURITY | OPERATIONAL),
        };
        if !stage_is_right {
            return Err(LoginStatus::InvalidRequest);
        }
        if asked.stages.0 == SECURITY {
            self.authenticate(&pairs, out).await?;
        } else {
            if !matches!(self.auth, Auth::NotNeeded | Auth::Done) {
                return Err(LoginStatus::AuthenticationFailed);
            }
            self.negotiate(&pairs, out);
            self.negotiator.declare(out);
        }
        Ok(asked.transit && matches!(self.auth, Auth::NotNeeded | Auth::Done))
    }

    /// What the first request says: who, and where to.
    fn lead(&self, asked: Asked, pairs: &[(&str, &str)]) -> Result<Leading, LoginStatus> {
        let initiator = value(pairs, "InitiatorName").ok_or(LoginStatus::MissingParameter)?;
        let initiator: IqnName = initiator.parse().map_err(|_| LoginStatus::InitiatorError)?;
        let targets = &self.context.targets;
        let is_listed = |target: &Target| target.initiators.iter().any(|i| i.name == initiator);
        let listed = |is: bool| is.then(|| initiator.clone());
        let (target, chaps, mutual, account) = match value(pairs, "SessionType").unwrap_or("Normal") {
            "Discovery" => {
                let snapshot = targets.snapshot();
                let seen = || snapshot.values().filter(|t| t.admission(&initiator).is_some());
                let chaps = seen().filter_map(|t| t.admission(&initiator)?.chap.cloned()).collect();
                let account =
                    Account { target: None, initiator: listed(snapshot.values().any(|t| is_listed(t))) };
                (None, chaps, seen().find_map(|t| t.mutual.clone()), account)
            }
            "Normal" => {
                let name = value(pairs, "TargetName").ok_or(LoginStatus::MissingParameter)?;
                // Whoever may not come is told what one is told who asks for what is not there.
                let name = name.parse().map_err(|_| LoginStatus::NotFound)?;
                let target = targets.get(&name).ok_or(LoginStatus::NotFound)?;
                let admission = target.admission(&initiator).ok_or(LoginStatus::NotFound)?;
                let chaps = admission.chap.cloned().into_iter().collect();
                let mutual = target.mutual.clone();
                let initiator = listed(is_listed(&target));
                let account = Account { target: Some(target.name.clone()), initiator };
                (Some(target), chaps, mutual, account)
            }
            _ => return Err(LoginStatus::SessionType),
        };
        Ok(Leading { initiator, isid: asked.isid, target, chaps, mutual, account })
    }

    /// Answers the keys of security negotiation.
    async fn authenticate(&mut self, pairs: &[(&str, &str)], out: &mut Vec<u8>) -> Result<(), LoginStatus> {
        if let Some(offered) = value(pairs, "AuthMethod") {
            let offers = |method| offered.split(',').any(|m| m == method);
            let has_chap = self.leading.as_ref().is_some_and(|l| !l.chaps.is_empty());
            match self.auth {
                Auth::NotNeeded if offers("None") => text::push(out, "AuthMethod", "None"),
                // Who insists on it where it is not needed gets it, if there is something to go by.
                Auth::NotNeeded | Auth::Needed if offers("CHAP") && has_chap => {
                    self.auth = Auth::Chosen;
                    text::push(out, "AuthMethod", "CHAP");
                }
                _ => return Err(LoginStatus::AuthenticationFailed),
            }
        }
        if let Some(list) = value(pairs, "CHAP_A") {
            let algorithm = Algorithm::choose(list, &self.context.chap_algorithms);
            let algorithm = algorithm.ok_or(LoginStatus::AuthenticationFailed)?;
            if !matches!(self.auth, Auth::Chosen) {
                return Err(LoginStatus::InitiatorError);
            }
            let challenge = Challenge::new(algorithm).map_err(|_| LoginStatus::OutOfResources)?;
            text::push(out, "CHAP_A", &(algorithm as u8).to_string());
            text::push(out, "CHAP_I", &challenge.id.to_string());
            text::push(out, "CHAP_C", &text::hex(&challenge.bytes));
            self.auth = Auth::Asked(challenge);
        }
        if let (Some(user), Some(response)) = (value(pairs, "CHAP_N"), value(pairs, "CHAP_R")) {
            self.prove(user, response, pairs, out).await?;
        }
        Ok(())
    }

    /// Checks a response, and answers the initiator's own challenge.
    async fn prove(
        &mut self,
        user: &str,
        response: &str,
        pairs: &[(&str, &str)],
        out: &mut Vec<u8>,
    ) -> Result<(), LoginStatus> {
        let (Auth::Asked(challenge), Some(leading)) = (&self.auth, &self.leading) else {
            return Err(LoginStatus::InitiatorError);
        };
        let turn = self.context.attempts.turn(&leading.account, self.peer).await;
        let turn = turn.map_err(|_| LoginStatus::OutOfResources)?;
        let response = text::binary(response, MAX_CHALLENGE).unwrap_or_default();
        // The secret of nobody is tried as well: how long it takes does not tell who is known.
        let chap = leading.chaps.iter().find(|chap| chap.user == user);
        let secret = chap.map_or(&b"nobody"[..], |chap| chap.secret.reveal());
        if !challenge.is_met(&response, secret) || chap.is_none() {
            turn.failed();
            tracing::warn!(initiator = %leading.initiator, peer = %self.peer, "CHAP failed");
            return Err(LoginStatus::AuthenticationFailed);
        }
        turn.succeeded();
        self.proved = chap.cloned();
        if let (Some(id), Some(theirs)) = (value(pairs, "CHAP_I"), value(pairs, "CHAP_C")) {
            let id = text::number(id).and_then(|id| u8::try_from(id).ok());
            let (Some(id), Some(theirs)) = (id, text::binary(theirs, MAX_CHALLENGE)) else {
                return Err(LoginStatus::InitiatorError);
            };
            // Who sends our challenge back wants us to answer it (RFC 7143, 9.2.1).
            let mutual = leading.mutual.as_ref().filter(|_| theirs != challenge.bytes);
            let Some(mutual) = mutual else { return Err(LoginStatus::AuthenticationFailed) };
            let response = challenge.algorithm.response(id, mutual.secret.reveal(), &theirs);
            text::push(out, "CHAP_N", &mutual.user);
            text::push(out, "CHAP_R", &text::hex(&response));
        }
        self.auth = Auth::Done;
        Ok(())
    }

    fn negotiate(&mut self, pairs: &[(&str, &str)], out: &mut Vec<u8>) {
        let discovery = self.leading.as_ref().is_some_and(|l| l.target.is_none());
        for (key, value) in pairs {
            let settled = ["InitiatorName", "InitiatorAlias", "SessionType", "TargetName"];
            if !settled.contains(key) {
                self.negotiator.answer(key, value, discovery, out);
            }
        }
    }
}

fn value<'a>(pairs: &[(&str, &'a str)], key: &str) -> Option<&'a str> {
    pairs.iter().find(|(k, _)| *k == key).map(|(_, value)| *value)
}
