//! The authentication of an initiator during its login (RFC 7143, section 12.1).

use std::net::IpAddr;

use forebay_wire::iscsi::reply::LoginStatus;
use forebay_wire::iscsi::text;

use super::chap::{Algorithm, Challenge, MAX_CHALLENGE};
use super::context::Context;
use super::errors::Refusal;
use crate::attempts::Account;
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
    /// Credentials that the initiator can use, each with the credentials of the target for mutual
    /// authentication. An initiator that proved the credentials of one target thus does not learn a response
    /// of another target.
    pub chaps: Vec<(Chap, Option<Chap>)>,
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
    /// Makes the authentication of an initiator at `peer`. With `required`, the initiator has to authenticate
    /// itself if there are credentials.
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
                // CHAP is also possible where it is not required, if there are credentials for it.
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
        let of_user = || self.credentials.chaps.iter().filter(|(chap, _)| chap.user == user);
        let is_met = |secret| challenge.is_met(&response, secret);
        if of_user().next().is_none() {
            is_met(b"no such user");
        }
        // If several targets have the same credentials, a target that can answer is chosen.
        let proved = of_user()
            .filter(|(chap, _)| is_met(chap.secret.reveal().as_bytes()))
            .max_by_key(|(_, mutual)| mutual.is_some());
        let Some((proved, mutual)) = proved else {
            turn.failed();
            return Err(failed("CHAP failed: wrong user or secret"));
        };
        turn.succeeded();
        self.proved = Some(proved.clone());
        if let (Some(id), Some(theirs)) = (value(pairs, "CHAP_I"), value(pairs, "CHAP_C")) {
            let id = text::number(id).and_then(|id| u8::try_from(id).ok());
            let (Some(id), Some(theirs)) = (id, text::binary(theirs, MAX_CHALLENGE)) else {
                return Err(LoginStatus::InitiatorError.into());
            };
            // If the initiator sends our own challenge, it is refused: the response would be a reflection
            // (RFC 7143, 9.2.1).
            let mutual = mutual.as_ref().filter(|_| theirs != challenge.bytes);
            let Some(mutual) = mutual else {
                return Err(failed("the initiator requires mutual CHAP, for which the target has no secret"));
            };
            let response = challenge.algorithm.response(id, mutual.secret.reveal().as_bytes(), &theirs);
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::chap::Algorithm;
    use super::super::context::Disks;
    use super::super::leading::Leading;
    use super::super::registry::Registry;
    use super::super::standby::Standby;
    use super::*;
    use crate::iscsi::{SessionLimits, WhileStandby};
    use crate::targets::{ServedTargets, Target};
    use forebay_text::Secret;

    const SECRETS: [&str; 2] = ["secret of the first", "secret of the second"];

    /// Two targets of different tenants, whose initiators have the same user name.
    fn context() -> Context {
        let chap = |secret: String| Chap { user: "user".into(), secret: Secret::new(secret) };
        let target = |n: usize| Target {
            name: format!("iqn.2026-01.org.example:{n}").parse().unwrap(),
            number: n as u16 + 1,
            open: true,
            chap: Some(chap(SECRETS[n].into())),
            mutual: Some(chap(format!("mutual {}", SECRETS[n]))),
            dhchap: None,
            luns: Default::default(),
            initiators: Vec::new(),
        };
        let targets = [0, 1].map(target).map(|target| (target.name.clone(), Arc::new(target)));
        Context {
            disks: Disks::OfOther(Standby::new(WhileStandby::Alua)),
            targets: Arc::new(ServedTargets::new(targets.into())),
            groups: Arc::new(super::super::groups::PortGroups::new(1)),
            registry: Registry::new(SessionLimits { all: 9, per_initiator: 9, per_address: 9 }),
            attempts: Default::default(),
            chap_algorithms: Algorithm::ALL.to_vec(),
            announced: None,
            portals: Default::default(),
            unknown_target: LoginStatus::NotFound,
        }
    }

    #[tokio::test]
    async fn discovery_answers_with_the_secret_of_the_target_whose_credentials_were_proved() {
        let context = context();
        for secret in SECRETS {
            let keys = [("InitiatorName", "iqn.2026-01.org.example:host"), ("SessionType", "Discovery")];
            let peer = [192, 0, 2, 1].into();
            let mut login = Leading::new(&context, peer, [0; 6], &keys).ok().unwrap().authenticator;
            let mut out = Vec::new();
            let offer = [("AuthMethod", "CHAP"), ("CHAP_A", "7")];
            login.negotiate(&context, &offer, &mut out).await.ok().unwrap();
            let State::Challenged(challenge) = &login.state else { panic!("no challenge") };
            let response = challenge.algorithm.response(challenge.id, secret.as_bytes(), &challenge.bytes);
            let response = text::hex(&response);
            let theirs = [("CHAP_N", "user"), ("CHAP_R", &response), ("CHAP_I", "5"), ("CHAP_C", "0x0102")];
            let mut out = Vec::new();
            login.negotiate(&context, &theirs, &mut out).await.ok().unwrap();
            let pairs = text::parse(&out).unwrap();
            let expected = Algorithm::Sha256.response(5, format!("mutual {secret}").as_bytes(), &[1, 2]);
            assert_eq!(value(&pairs, "CHAP_R"), Some(&*text::hex(&expected)), "{secret}");
            assert_eq!(login.proved.unwrap().secret.reveal().as_bytes(), secret.as_bytes());
        }
    }
}
