//! The authentication of an initiator during its login (RFC 7143, section 12.1).

use std::net::IpAddr;

use forebay_wire::iscsi::reply::LoginStatus;
use forebay_wire::iscsi::text;

use super::attempts::Account;
use super::chap::{Algorithm, Challenge, MAX_CHALLENGE};
use super::context::Context;
use super::errors::Refusal;
use crate::targets::Chap;

/// Progress of the authentication.
enum State {
    NotNeeded,
    Needed,
    /// The initiator chose CHAP.
    Chosen,
    /// The challenge was sent.
    Challenged(Challenge),
    Done,
}

/// The credentials that a login is checked against.
pub(super) struct Credentials {
    /// Those that the initiator can use.
    pub chaps: Vec<Chap>,
    /// Those of the target, for mutual authentication.
    pub mutual: Option<Chap>,
    /// The account to which failed attempts are counted.
    pub account: Account,
}

/// The authentication of one initiator.
pub(super) struct Authenticator {
    peer: IpAddr,
    credentials: Credentials,
    state: State,
    /// The credentials with which the initiator authenticated itself, if it did.
    pub proved: Option<Chap>,
}

impl Authenticator {
    /// An initiator at `peer`. With `required`, it has to authenticate itself if there are credentials.
    pub fn new(peer: IpAddr, credentials: Credentials, required: bool) -> Authenticator {
        let needed = required && !credentials.chaps.is_empty();
        let state = if needed { State::Needed } else { State::NotNeeded };
        Authenticator { peer, credentials, state, proved: None }
    }

    /// Whether nothing more is needed for the login to proceed.
    pub fn is_done(&self) -> bool {
        matches!(self.state, State::NotNeeded | State::Done)
    }

    /// Answers the keys of security negotiation.
    pub async fn negotiate(
        &mut self,
        context: &Context,
        pairs: &[(&str, &str)],
        out: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        if let Some(offered) = value(pairs, "AuthMethod") {
            let offers = |method| offered.split(',').any(|m| m == method);
            match self.state {
                State::NotNeeded if offers("None") => text::push(out, "AuthMethod", "None"),
                // CHAP is possible also where it is not needed, if there are credentials for it.
                State::NotNeeded | State::Needed if offers("CHAP") && !self.credentials.chaps.is_empty() => {
                    self.state = State::Chosen;
                    text::push(out, "AuthMethod", "CHAP");
                }
                State::Needed => {
                    return Err(failed("the target requires CHAP, which the initiator did not offer"));
                }
                _ => return Err(failed("no authentication method in common")),
            }
        }
        if let Some(list) = value(pairs, "CHAP_A") {
            let algorithm = Algorithm::choose(list, &context.chap_algorithms);
            let algorithm = algorithm.ok_or(failed("no CHAP algorithm in common"))?;
            if !matches!(self.state, State::Chosen) {
                return Err(LoginStatus::InitiatorError.into());
            }
            let challenge = Challenge::new(algorithm).map_err(|_| LoginStatus::OutOfResources)?;
            text::push(out, "CHAP_A", &(algorithm as u8).to_string());
            text::push(out, "CHAP_I", &challenge.id.to_string());
            text::push(out, "CHAP_C", &text::hex(&challenge.bytes));
            self.state = State::Challenged(challenge);
        }
        if let (Some(user), Some(response)) = (value(pairs, "CHAP_N"), value(pairs, "CHAP_R")) {
            self.check(context, user, response, pairs, out).await?;
        }
        Ok(())
    }

    /// Checks a response, and answers the initiator's challenge if it sent one.
    async fn check(
        &mut self,
        context: &Context,
        user: &str,
        response: &str,
        pairs: &[(&str, &str)],
        out: &mut Vec<u8>,
    ) -> Result<(), Refusal> {
        let State::Challenged(challenge) = &self.state else {
            return Err(LoginStatus::InitiatorError.into());
        };
        let turn = context.attempts.turn(&self.credentials.account, self.peer).await;
        let turn = turn.map_err(|_| {
            Refusal::new(LoginStatus::OutOfResources, "too many CHAP attempts of this initiator are waiting")
        })?;
        let response = text::binary(response, MAX_CHALLENGE).unwrap_or_default();
        // An unknown user is checked against a dummy secret, so that the time does not reveal which users
        // exist.
        let chap = self.credentials.chaps.iter().find(|chap| chap.user == user);
        let secret = chap.map_or(&b"no such user"[..], |chap| chap.secret.reveal());
        if !challenge.is_met(&response, secret) || chap.is_none() {
            turn.failed();
            return Err(failed("CHAP failed: wrong user or secret"));
        }
        turn.succeeded();
        self.proved = chap.cloned();
        if let (Some(id), Some(theirs)) = (value(pairs, "CHAP_I"), value(pairs, "CHAP_C")) {
            let id = text::number(id).and_then(|id| u8::try_from(id).ok());
            let (Some(id), Some(theirs)) = (id, text::binary(theirs, MAX_CHALLENGE)) else {
                return Err(LoginStatus::InitiatorError.into());
            };
            // Our own challenge is refused, against reflection of its response (RFC 7143, 9.2.1).
            let mutual = self.credentials.mutual.as_ref().filter(|_| theirs != challenge.bytes);
            let Some(mutual) = mutual else {
                return Err(failed("the initiator requires mutual CHAP, for which the target has no secret"));
            };
            let response = challenge.algorithm.response(id, mutual.secret.reveal(), &theirs);
            text::push(out, "CHAP_N", &mutual.user);
            text::push(out, "CHAP_R", &text::hex(&response));
        }
        self.state = State::Done;
        Ok(())
    }
}

fn failed(reason: &'static str) -> Refusal {
    Refusal::new(LoginStatus::AuthenticationFailed, reason)
}

/// The value of a key in a login request.
pub(super) fn value<'a>(pairs: &[(&str, &'a str)], key: &str) -> Option<&'a str> {
    pairs.iter().find(|(k, _)| *k == key).map(|(_, value)| *value)
}
