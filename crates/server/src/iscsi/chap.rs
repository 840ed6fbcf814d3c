//! CHAP (RFC 1994, RFC 7143 section 12.1.3): who an initiator is, and who the target is.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use md5::{Digest, Md5};
use parking_lot::Mutex;
use sha1::Sha1;
use sha2::Sha256;
use sha3::Sha3_256;
use subtle::ConstantTimeEq;

/// Bytes of a challenge: as many as the longest response has.
const CHALLENGE: usize = 32;
/// Longest challenge that an initiator may send.
pub(super) const MAX_CHALLENGE: usize = 1024;

/// A hash function, by its number (IANA, "PPP Authentication Algorithms").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Algorithm {
    Md5 = 5,
    Sha1 = 6,
    Sha256 = 7,
    Sha3_256 = 8,
}

impl Algorithm {
    /// The first of a list that is known here.
    pub fn choose(list: &str) -> Option<Algorithm> {
        list.split(',').find_map(|number| match number {
            "5" => Some(Algorithm::Md5),
            "6" => Some(Algorithm::Sha1),
            "7" => Some(Algorithm::Sha256),
            "8" => Some(Algorithm::Sha3_256),
            _ => None,
        })
    }

    /// The response to a challenge (RFC 1994, section 4.1).
    pub fn response(self, id: u8, secret: &[u8], challenge: &[u8]) -> Vec<u8> {
        fn digest<D: Digest>(id: u8, secret: &[u8], challenge: &[u8]) -> Vec<u8> {
            D::new().chain_update([id]).chain_update(secret).chain_update(challenge).finalize().to_vec()
        }
        match self {
            Algorithm::Md5 => digest::<Md5>(id, secret, challenge),
            Algorithm::Sha1 => digest::<Sha1>(id, secret, challenge),
            Algorithm::Sha256 => digest::<Sha256>(id, secret, challenge),
            Algorithm::Sha3_256 => digest::<Sha3_256>(id, secret, challenge),
        }
    }
}

/// A challenge that was sent.
#[derive(Debug, Clone)]
pub(super) struct Challenge {
    pub algorithm: Algorithm,
    pub id: u8,
    pub bytes: [u8; CHALLENGE],
}

impl Challenge {
    /// A new one; an error where the system has no randomness.
    pub fn new(algorithm: Algorithm) -> Result<Challenge, getrandom::Error> {
        let mut random = [0; CHALLENGE + 1];
        getrandom::fill(&mut random)?;
        let mut bytes = [0; CHALLENGE];
        bytes.copy_from_slice(&random[1..]);
        Ok(Challenge { algorithm, id: random[0], bytes })
    }

    /// Whether a response shows that its sender knows the secret. Takes as long for a wrong one as for the right one.
    pub fn is_met(&self, response: &[u8], secret: &[u8]) -> bool {
        self.algorithm.response(self.id, secret, &self.bytes).ct_eq(response).into()
    }
}

/// Addresses that failed to authenticate, and how often: guessing gets slower.
#[derive(Debug, Default)]
pub(super) struct Failures {
    of: Mutex<HashMap<IpAddr, (u32, Instant)>>,
}

/// Addresses that are remembered; when there are more, all are forgotten.
const MAX_ADDRESSES: usize = 4096;
/// What each failure adds to the time that the next answer takes, and the most that it takes.
const DELAY: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_secs(8);
/// After so long without a failure, an address begins anew.
const FORGET: Duration = Duration::from_secs(300);

impl Failures {
    /// How long the answer to an attempt of this address is to wait.
    pub fn delay(&self, address: IpAddr) -> Duration {
        match self.of.lock().get(&address) {
            Some((count, last)) if last.elapsed() < FORGET => (DELAY * *count).min(MAX_DELAY),
            _ => Duration::ZERO,
        }
    }

    /// An attempt failed.
    pub fn note(&self, address: IpAddr) {
        let mut of = self.of.lock();
        if of.len() >= MAX_ADDRESSES && !of.contains_key(&address) {
            of.clear();
        }
        let (count, last) = of.entry(address).or_insert((0, Instant::now()));
        *count = if last.elapsed() < FORGET { count.saturating_add(1) } else { 1 };
        *last = Instant::now();
    }

    /// An attempt succeeded.
    pub fn forget(&self, address: IpAddr) {
        self.of.lock().remove(&address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_algorithm_that_is_known_is_taken() {
        assert_eq!(Algorithm::choose("9,7,5"), Some(Algorithm::Sha256));
        assert_eq!(Algorithm::choose("5"), Some(Algorithm::Md5));
        assert_eq!(Algorithm::choose("4,x"), None);
    }

    #[test]
    fn a_response_is_met_by_the_secret_alone() {
        for algorithm in [Algorithm::Md5, Algorithm::Sha1, Algorithm::Sha256, Algorithm::Sha3_256] {
            let challenge = Challenge::new(algorithm).unwrap();
            let right = algorithm.response(challenge.id, b"twelve bytes", &challenge.bytes);
            assert!(challenge.is_met(&right, b"twelve bytes"));
            assert!(!challenge.is_met(&right, b"other secret"));
            assert!(!challenge.is_met(&right[1..], b"twelve bytes"));
        }
        // MD5 of the bytes 01, "abc", 02: computed by md5sum.
        let md5 = Algorithm::Md5.response(1, b"abc", &[2]);
        assert_eq!(forebay_wire::iscsi::text::hex(&md5), "0x0f4ee20839643cd588649453c3b06a42");
    }

    #[test]
    fn guessing_gets_slower() {
        let (failures, address) = (Failures::default(), IpAddr::from([127, 0, 0, 1]));
        assert_eq!(failures.delay(address), Duration::ZERO);
        (0..100).for_each(|_| failures.note(address));
        assert_eq!(failures.delay(address), MAX_DELAY);
        failures.forget(address);
        assert_eq!(failures.delay(address), Duration::ZERO);
    }
}
