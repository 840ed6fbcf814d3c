//! CHAP (RFC 1994, RFC 7143 section 12.1.3): authentication of an initiator, and of the target.

use md5::{Digest, Md5};
use serde::Deserialize;
use sha1::Sha1;
use sha2::Sha256;
use sha3::Sha3_256;
use subtle::ConstantTimeEq;

/// Bytes of a challenge: the length of the longest response.
const CHALLENGE: usize = 32;
/// Maximum bytes of an initiator's challenge that is accepted.
pub(super) const MAX_CHALLENGE: usize = 1024;

/// A hash function, by its number (IANA, "PPP Authentication Algorithms"). A stronger function compares
/// greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// CHAP with MD5 (RFC 1994).
    Md5 = 5,
    /// CHAP with SHA-1.
    Sha1 = 6,
    /// CHAP with SHA-256.
    Sha256 = 7,
    /// CHAP with SHA3-256.
    #[serde(rename = "sha3-256")]
    Sha3_256 = 8,
}

impl Algorithm {
    /// All hash functions that CHAP can use.
    pub const ALL: [Algorithm; 4] = [Algorithm::Md5, Algorithm::Sha1, Algorithm::Sha256, Algorithm::Sha3_256];

    /// Name of the function in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Md5 => "md5",
            Algorithm::Sha1 => "sha1",
            Algorithm::Sha256 => "sha256",
            Algorithm::Sha3_256 => "sha3-256",
        }
    }

    /// The strongest of the `allowed` functions in an initiator's list. The order of the list is ignored: an
    /// initiator that supports a stronger function can use it.
    pub(super) fn choose(list: &str, allowed: &[Algorithm]) -> Option<Algorithm> {
        let named = |algorithm: &Algorithm| list.split(',').any(|n| n == (*algorithm as u8).to_string());
        allowed.iter().copied().filter(named).max()
    }

    /// The response to a challenge (RFC 1994, section 4.1).
    pub(super) fn response(self, id: u8, secret: &[u8], challenge: &[u8]) -> Vec<u8> {
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
    /// A new challenge; an error if the system provides no random bytes.
    pub fn new(algorithm: Algorithm) -> Result<Challenge, getrandom::Error> {
        let mut random = [0; CHALLENGE + 1];
        getrandom::fill(&mut random)?;
        let mut bytes = [0; CHALLENGE];
        bytes.copy_from_slice(&random[1..]);
        Ok(Challenge { algorithm, id: random[0], bytes })
    }

    /// Whether a response proves knowledge of the secret. The check takes as long for a wrong response as for
    /// the right one.
    pub fn is_met(&self, response: &[u8], secret: &[u8]) -> bool {
        self.algorithm.response(self.id, secret, &self.bytes).ct_eq(response).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strongest_allowed_algorithm_is_chosen() {
        let all = &Algorithm::ALL;
        assert_eq!(Algorithm::choose("5,6,9,7", all), Some(Algorithm::Sha256));
        assert_eq!(Algorithm::choose("5,8,7", all), Some(Algorithm::Sha3_256));
        assert_eq!(Algorithm::choose("5", all), Some(Algorithm::Md5));
        assert_eq!(Algorithm::choose("4,x", all), None);
        assert_eq!(Algorithm::choose("5,6", &all[1..]), Some(Algorithm::Sha1));
        assert_eq!(Algorithm::choose("5", &all[1..]), None);
    }

    #[test]
    fn only_the_right_secret_gives_the_right_response() {
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
}
