//! The authentication of a host on one queue, and of the subsystem to the host: DH-HMAC-CHAP (Base 8.13.5).
//!
//! **Invariant.** A queue executes only authentication commands until [`Authentication::is_done`]: the
//! host has answered a challenge of this queue, made of random bytes, with the key that the table of targets
//! has for it; and the host is satisfied with the proof of the subsystem, if it requested one. A host can try
//! one response on each connection, and waits for its turn ([`crate::attempts`]) before the response is
//! checked.
//!
//! A failed authentication is reported by a message, and then the connection ends.

use forebay_wire::nvme::Status;
use forebay_wire::nvme::auth::{self, AuthFailure, AuthGroup, AuthHash, HostBody};
use ring::{digest, hmac};

use super::exchange::Exchange;
use crate::targets::{DhChapKey, IqnName, hmac_of};

/// The groups that the controller accepts, the preferred one first. Larger groups take more time, which hosts
/// that are not authenticated could use up.
const GROUPS: [AuthGroup; 4] =
    [AuthGroup::Ffdhe3072, AuthGroup::Ffdhe4096, AuthGroup::Ffdhe2048, AuthGroup::Null];

/// The keys and names that an authentication is about.
#[derive(Clone)]
pub(super) struct Keys {
    pub host: DhChapKey,
    /// The key of the subsystem, if it can prove its identity.
    pub subsystem: Option<DhChapKey>,
    pub host_name: IqnName,
    /// The NVMe name of the subsystem.
    pub subsystem_name: String,
}

/// A challenge to the host.
pub(super) struct Challenge {
    hash: AuthHash,
    sequence: u32,
    bytes: Vec<u8>,
    exchange: Option<Exchange>,
    public: Vec<u8>,
}

enum State {
    /// The host has sent nothing.
    Begin,
    /// The next Authentication Receive gets the challenge.
    Ready(Box<Challenge>),
    Challenged(Box<Challenge>),
    /// The next Authentication Receive gets this message of success. `awaits` is set if the host then reports
    /// whether it is satisfied.
    Proved {
        message: Vec<u8>,
        awaits: bool,
    },
    AwaitsSuccess,
    Done,
    /// The next Authentication Receive gets the reason.
    Failed(AuthFailure),
    /// The failure was reported, or the host reported one.
    Ended,
}

/// The progress of an authentication.
pub(super) struct Authentication {
    keys: Keys,
    transaction: u16,
    state: State,
}

/// What a response has to be checked with. The check computes powers, which takes milliseconds.
pub(super) struct Check {
    challenge: Box<Challenge>,
    response: Vec<u8>,
    /// The challenge of the host, and its sequence number.
    theirs: Option<(Vec<u8>, u32)>,
    public: Vec<u8>,
}

/// What follows a message of the host.
pub(super) enum Next {
    /// The command of the message succeeds.
    Continue,
    /// A challenge with this hash and group is to be made; then [`Authentication::challenge`] is called.
    /// To make it takes milliseconds.
    Challenge(AuthHash, AuthGroup),
    /// The response is to be checked, when it is the turn of the host; then [`Authentication::checked`] is
    /// called.
    Check(Box<Check>),
}

/// The successful result of a check.
pub(super) struct Checked {
    hash: AuthHash,
    /// The proof of the subsystem, if the host requested one.
    response: Option<Vec<u8>>,
}

impl Authentication {
    pub fn new(keys: Keys) -> Authentication {
        Authentication { keys, transaction: 0, state: State::Begin }
    }

    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    pub fn transaction(&self) -> u16 {
        self.transaction
    }

    /// Whether the host is authenticated.
    pub fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// Whether the authentication has failed, and this was reported.
    pub fn has_ended(&self) -> bool {
        matches!(self.state, State::Ended)
    }

    pub fn fail(&mut self, why: AuthFailure) {
        self.state = State::Failed(why);
    }

    /// Takes a message of the host.
    pub fn receive(&mut self, data: &[u8]) -> Next {
        let message = match auth::decode(data) {
            Ok(message) => message,
            Err(why) => {
                self.fail(why);
                return Next::Continue;
            }
        };
        let state = std::mem::replace(&mut self.state, State::Failed(AuthFailure::Message));
        match (state, message.body) {
            (State::Begin, HostBody::Negotiate { hashes, groups }) => {
                self.transaction = message.transaction;
                match choose(hashes, groups) {
                    Ok((hash, group)) => return Next::Challenge(hash, group),
                    Err(why) => self.fail(why),
                }
            }
            (State::Challenged(challenge), HostBody::Reply { response, challenge: theirs, public })
                if message.transaction == self.transaction =>
            {
                let theirs = theirs.map(|(bytes, sequence)| (bytes.to_vec(), sequence));
                let (response, public) = (response.to_vec(), public.to_vec());
                return Next::Check(Box::new(Check { challenge, response, theirs, public }));
            }
            (State::AwaitsSuccess, HostBody::Success) if message.transaction == self.transaction => {
                self.state = State::Done;
            }
            (_, HostBody::Failure) => self.state = State::Ended,
            (State::Challenged(_) | State::AwaitsSuccess, HostBody::Reply { .. } | HostBody::Success) => {
                self.fail(AuthFailure::Payload);
            }
            _ => {}
        }
        Next::Continue
    }

    /// Sends a challenge that was made.
    pub fn challenge(&mut self, made: Result<Challenge, AuthFailure>) {
        self.state = match made {
            Ok(challenge) => State::Ready(Box::new(challenge)),
            Err(why) => State::Failed(why),
        };
    }

    /// Records the result of a check.
    pub fn checked(&mut self, result: Result<Checked, AuthFailure>) {
        self.state = match result {
            Ok(checked) => State::Proved {
                message: auth::success(self.transaction, checked.hash, checked.response.as_deref()),
                awaits: checked.response.is_some(),
            },
            Err(why) => State::Failed(why),
        };
    }

    /// The message for an Authentication Receive that has room for `room` bytes, filled with zeroes.
    ///
    /// # Errors
    /// There is no message, or no room for it.
    pub fn send(&mut self, room: u32) -> Result<Vec<u8>, Status> {
        let room = usize::try_from(room).ok().filter(|room| *room <= auth::AUTH_MESSAGE_MAX);
        let room = room.ok_or(Status::INVALID_FIELD)?;
        let (mut message, next) = match std::mem::replace(&mut self.state, State::Begin) {
            State::Ready(challenge) => {
                let group = challenge.exchange.as_ref().map_or(AuthGroup::Null, Exchange::group);
                let Challenge { hash, sequence, bytes, public, .. } = &*challenge;
                let message = auth::challenge(self.transaction, (*hash, group), *sequence, bytes, public);
                (message, State::Challenged(challenge))
            }
            State::Proved { message, awaits } => {
                (message, if awaits { State::AwaitsSuccess } else { State::Done })
            }
            State::Failed(why) => (auth::failure(self.transaction, why), State::Ended),
            other => {
                self.state = other;
                return Err(Status::SEQUENCE_ERROR);
            }
        };
        if message.len() > room {
            self.fail(AuthFailure::Payload);
            return Err(Status::INVALID_FIELD);
        }
        message.resize(room, 0);
        self.state = next;
        Ok(message)
    }
}

/// The strongest hash function, and the preferred group, among those that the host offers.
fn choose(hashes: &[u8], groups: &[u8]) -> Result<(AuthHash, AuthGroup), AuthFailure> {
    let hash = hashes.iter().filter_map(|id| AuthHash::of(*id)).max().ok_or(AuthFailure::Hash)?;
    let group = GROUPS.into_iter().find(|group| groups.contains(&(*group as u8)));
    Ok((hash, group.ok_or(AuthFailure::Group)?))
}

impl Challenge {
    /// Makes a challenge.
    ///
    /// # Errors
    /// The system provides no random bytes.
    pub fn new(hash: AuthHash, group: AuthGroup) -> Result<Challenge, AuthFailure> {
        let mut bytes = vec![0; hash.len() + 4];
        getrandom::fill(&mut bytes).map_err(|_| AuthFailure::Failed)?;
        let sequence = bytes.split_off(hash.len());
        // 0 is no sequence number.
        let sequence = u32::from_le_bytes(sequence.try_into().unwrap_or_default()).max(1);
        let exchange = Exchange::new(group).map_err(|_| AuthFailure::Failed)?;
        let public = exchange.as_ref().and_then(Exchange::public).unwrap_or_default();
        Ok(Challenge { hash, sequence, bytes, exchange, public })
    }
}

impl Check {
    /// Whether the response proves that the host has its key; then also the proof of the subsystem, if the
    /// host requests one.
    ///
    /// # Errors
    /// The reason that is reported to the host.
    pub fn run(&self, keys: &Keys, transaction: u16) -> Result<Checked, AuthFailure> {
        let Challenge { hash, sequence, bytes, exchange, .. } = &*self.challenge;
        if self.response.len() != hash.len() || exchange.is_none() != self.public.is_empty() {
            return Err(AuthFailure::Payload);
        }
        let session = match exchange {
            Some(exchange) => Some(exchange.shared(&self.public).ok_or(AuthFailure::Payload)?),
            None => None,
        };
        let augmented = |challenge: &[u8]| augment(*hash, session.as_deref(), challenge);
        let (host, subsystem) = (keys.host_name.as_str(), &*keys.subsystem_name);
        let key = keys.host.of_owner(host).ok_or(AuthFailure::Failed)?;
        let key = hmac::Key::new(hmac_of(*hash), &key);
        let proof = input(&augmented(bytes), (*sequence, transaction), "HostHost", host, subsystem);
        hmac::verify(&key, &proof, &self.response).map_err(|_| AuthFailure::Failed)?;
        let Some((challenge, sequence)) = &self.theirs else {
            return Ok(Checked { hash: *hash, response: None });
        };
        // A challenge that is sent back: the host could use the answer as its own.
        if challenge == bytes {
            return Err(AuthFailure::Failed);
        }
        let own = keys.subsystem.as_ref().and_then(|key| key.of_owner(subsystem));
        let own = hmac::Key::new(hmac_of(*hash), &own.ok_or(AuthFailure::Failed)?);
        let proof = input(&augmented(challenge), (*sequence, transaction), "Controller", subsystem, host);
        Ok(Checked { hash: *hash, response: Some(hmac::sign(&own, &proof).as_ref().to_vec()) })
    }
}

/// What a proof is the HMAC of (Base 8.13.5.4 and 8.13.5.5). No secure channel is concatenated.
fn input(
    challenge: &[u8],
    (sequence, transaction): (u32, u16),
    role: &str,
    prover: &str,
    verifier: &str,
) -> Vec<u8> {
    let (sequence, transaction) = (sequence.to_le_bytes(), transaction.to_le_bytes());
    [challenge, &sequence, &transaction, &[0], role.as_bytes(), prover.as_bytes(), &[0], verifier.as_bytes()]
        .concat()
}

/// The challenge, combined with the shared value of both sides, if any (Base 8.13.5.3).
fn augment(hash: AuthHash, session: Option<&[u8]>, challenge: &[u8]) -> Vec<u8> {
    let Some(session) = session else { return challenge.to_vec() };
    let algorithm = match hash {
        AuthHash::Sha256 => &digest::SHA256,
        AuthHash::Sha384 => &digest::SHA384,
        AuthHash::Sha512 => &digest::SHA512,
    };
    let key = hmac::Key::new(hmac_of(hash), digest::digest(algorithm, session).as_ref());
    hmac::sign(&key, challenge).as_ref().to_vec()
}

#[cfg(test)]
mod tests {
    use forebay_text::Secret;
    use forebay_wire::iscsi::text::hex;

    use super::*;

    const HOST_KEY: &str = "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
    const SUBSYSTEM_KEY: &str = "DHHC-1:00:AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQHMnzFi:";

    fn keys() -> Keys {
        let key = |text: &str| DhChapKey::new(Secret::new(text.into()));
        Keys {
            host: key(HOST_KEY),
            subsystem: Some(key(SUBSYSTEM_KEY)),
            host_name: "nqn.2026-01.org.example:host".parse().unwrap(),
            subsystem_name: "nqn.2026-01.org.example:a".into(),
        }
    }

    /// The check of a response to a challenge whose bytes are all 7.
    fn check(response: Vec<u8>, theirs: Option<(Vec<u8>, u32)>) -> Check {
        let hash = AuthHash::Sha256;
        let challenge = Challenge { hash, sequence: 9, bytes: vec![7; 32], exchange: None, public: vec![] };
        Check { challenge: Box::new(challenge), response, theirs, public: Vec::new() }
    }

    fn bytes_of(hex: &str) -> Vec<u8> {
        (2..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    /// Computed by Python's hmac from the text of the specification.
    const OF_HOST: &str = "0xf2487bff1197103ba772764206dc099fbf608358c945347091cc07f1d53027fd";
    const OF_SUBSYSTEM: &str = "0x6a7b149bb67e168565571bdb3b4066ec27fb2a5ba4abe3b0652bcd444b95c78f";
    const AUGMENTED: &str =
        "0xeb0831399b34ddb4e2f207830e381c8d6cf6b572afe54a2cda41189031adea758fae431eb91a0c1f3ff60847395b8ed2";

    #[test]
    fn proofs_are_those_that_python_computes() {
        let theirs = Some((vec![8; 32], 10));
        let checked = check(bytes_of(OF_HOST), theirs).run(&keys(), 0x1234).ok().unwrap();
        assert_eq!(hex(&checked.response.unwrap()), OF_SUBSYSTEM);
        assert_eq!(hex(&augment(AuthHash::Sha384, Some(&[1, 2, 3]), &[7; 48])), AUGMENTED);
        assert!(check(bytes_of(OF_HOST), None).run(&keys(), 0x1234).ok().unwrap().response.is_none());
    }

    #[test]
    fn nothing_else_is_a_proof() {
        let why = |check: Check, transaction| check.run(&keys(), transaction).err();
        assert_eq!(why(check(bytes_of(OF_HOST), None), 0x1235), Some(AuthFailure::Failed));
        assert_eq!(why(check(vec![0; 32], None), 0x1234), Some(AuthFailure::Failed));
        assert_eq!(why(check(vec![0; 31], None), 0x1234), Some(AuthFailure::Payload));
        let reflected = check(bytes_of(OF_HOST), Some((vec![7; 32], 1)));
        assert_eq!(why(reflected, 0x1234), Some(AuthFailure::Failed));
        let unknown = Keys { subsystem: None, ..keys() };
        let requests = check(bytes_of(OF_HOST), Some((vec![8; 32], 1)));
        assert_eq!(requests.run(&unknown, 0x1234).err(), Some(AuthFailure::Failed));
        let other = Keys { host_name: "nqn.2026-01.org.example:other".parse().unwrap(), ..keys() };
        assert_eq!(check(bytes_of(OF_HOST), None).run(&other, 0x1234).err(), Some(AuthFailure::Failed));
    }

    fn negotiation() -> Vec<u8> {
        let mut data = vec![0, 0, 0, 0, 0x34, 0x12, 0, 1, 1, 0, 2, 1, 1, 2];
        data.resize(8 + 64, 0);
        data
    }

    #[test]
    fn messages_out_of_order_fail_the_authentication() {
        let reply = {
            let mut data = vec![1, 2, 0, 0, 0x34, 0x12, 48, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            data.resize(16 + 96, 0);
            data
        };
        let success = [1, 4, 0, 0, 0x34, 0x12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        for message in [&reply[..], &success, b""] {
            let mut auth = Authentication::new(keys());
            assert_eq!(auth.send(4096).err(), Some(Status::SEQUENCE_ERROR));
            assert!(matches!(auth.receive(message), Next::Continue));
            assert!(!auth.is_done());
            let told = auth.send(4096).unwrap();
            assert_eq!((told[0], told[1], told[6]), (0, 0xf1, 1));
            assert!(auth.has_ended() && !auth.is_done());
            assert_eq!(auth.send(4096).err(), Some(Status::SEQUENCE_ERROR));
        }
        // A second negotiation instead of a reply.
        let mut auth = Authentication::new(keys());
        let Next::Challenge(hash, group) = auth.receive(&negotiation()) else { panic!("no challenge") };
        assert_eq!((hash, group), (AuthHash::Sha384, AuthGroup::Null));
        auth.challenge(Challenge::new(hash, group));
        assert_eq!(auth.send(40).err(), Some(Status::INVALID_FIELD), "no room");
        assert_eq!(auth.send(4096).unwrap()[1], 0xf1);
        let mut auth = Authentication::new(keys());
        auth.receive(&negotiation());
        auth.challenge(Challenge::new(hash, group));
        assert_eq!(auth.send(4096).unwrap()[..2], [1, 1]);
        assert!(matches!(auth.receive(&negotiation()), Next::Continue));
        assert_eq!(auth.send(4096).unwrap()[1], 0xf1);
        // A reply of another transaction.
        let mut auth = Authentication::new(keys());
        auth.receive(&negotiation());
        auth.challenge(Challenge::new(hash, group));
        auth.send(4096).unwrap();
        let mut other = reply;
        other[4] = 0;
        auth.receive(&other);
        assert_eq!(auth.send(4096).unwrap()[7], AuthFailure::Payload as u8);
    }

    #[test]
    fn the_strongest_hash_and_the_preferred_group_are_chosen() {
        let chosen = |hashes: &[u8], groups: &[u8]| choose(hashes, groups);
        assert_eq!(chosen(&[1, 3, 2], &[0, 1, 2, 3, 4, 5]), Ok((AuthHash::Sha512, AuthGroup::Ffdhe3072)));
        assert_eq!(chosen(&[9, 1], &[5, 0]), Ok((AuthHash::Sha256, AuthGroup::Null)));
        assert_eq!(chosen(&[9], &[0]), Err(AuthFailure::Hash));
        assert_eq!(chosen(&[1], &[5]), Err(AuthFailure::Group));
    }
}
