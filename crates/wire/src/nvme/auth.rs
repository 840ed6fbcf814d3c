//! The messages of in-band authentication with DH-HMAC-CHAP (Base 8.13.5).
//!
//! A host sends messages as the data of Authentication Send, and reads those of the controller as the data of
//! Authentication Receive. [`decode`] takes the messages of a host; the other functions encode those of the
//! controller. What the messages prove is not known here.

use super::{array, get16, get32, put};

/// The authentication protocol in the commands that transfer messages: SPSP0, SPSP1 and SECP (Base 6.1).
pub(super) const PROTOCOL: [u8; 3] = [0x01, 0x01, 0xe9];
/// Maximum bytes of a message of a host that are accepted.
pub const AUTH_MESSAGE_MAX: usize = 4096;

/// Types of messages: common ones, and those of DH-HMAC-CHAP.
const COMMON: u8 = 0;
const DH_HMAC_CHAP: u8 = 1;
/// Identifiers of messages.
const NEGOTIATE: u8 = 0x00;
const CHALLENGE: u8 = 0x01;
const REPLY: u8 = 0x02;
const SUCCESS_1: u8 = 0x03;
const SUCCESS_2: u8 = 0x04;
const FAILURE_2: u8 = 0xf0;
const FAILURE_1: u8 = 0xf1;
/// Bytes of the fixed part of most messages.
const HEADER: usize = 16;
/// Bytes of the header of a negotiation, and of each protocol descriptor in it.
const NEGOTIATE_HEADER: usize = 8;
const DESCRIPTOR: usize = 64;
/// Offset of the Diffie-Hellman groups in a descriptor, and the maximum number of hash functions and groups.
const GROUPS_AT: usize = 34;
const LISTED_MAX: usize = 30;

/// A hash function, by its identifier. A stronger function compares greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AuthHash {
    /// SHA-256.
    Sha256 = 1,
    /// SHA-384.
    Sha384 = 2,
    /// SHA-512.
    Sha512 = 3,
}

impl AuthHash {
    /// The function with an identifier.
    pub fn of(id: u8) -> Option<AuthHash> {
        [AuthHash::Sha256, AuthHash::Sha384, AuthHash::Sha512].into_iter().find(|hash| *hash as u8 == id)
    }

    /// Bytes of a hash.
    pub fn len(self) -> usize {
        match self {
            AuthHash::Sha256 => 32,
            AuthHash::Sha384 => 48,
            AuthHash::Sha512 => 64,
        }
    }

    /// Always false: hashes have a length.
    pub fn is_empty(self) -> bool {
        false
    }
}

/// A Diffie-Hellman group, by its identifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthGroup {
    /// No exchange.
    Null = 0,
    /// ffdhe2048 (RFC 7919).
    Ffdhe2048 = 1,
    /// ffdhe3072.
    Ffdhe3072 = 2,
    /// ffdhe4096.
    Ffdhe4096 = 3,
}

impl AuthGroup {
    /// Bytes of a public value of the group.
    pub fn len(self) -> usize {
        match self {
            AuthGroup::Null => 0,
            AuthGroup::Ffdhe2048 => 256,
            AuthGroup::Ffdhe3072 => 384,
            AuthGroup::Ffdhe4096 => 512,
        }
    }

    /// Whether the group has no public values.
    pub fn is_empty(self) -> bool {
        self == AuthGroup::Null
    }
}

/// Why an authentication fails (Base 8.13.5.2, reason code explanations).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthFailure {
    /// The other side did not prove its identity.
    Failed = 1,
    /// No authentication protocol in common.
    NotUsable = 2,
    /// A secure channel cannot be concatenated.
    Concatenation = 3,
    /// No hash function in common.
    Hash = 4,
    /// No Diffie-Hellman group in common.
    Group = 5,
    /// The contents of a message are invalid.
    Payload = 6,
    /// A message that was not expected.
    Message = 7,
}

/// A message of a host, with the identifier of its transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostMessage<'a> {
    /// Identifier of the transaction (T_ID).
    pub transaction: u16,
    /// The contents.
    pub body: HostBody<'a>,
}

/// The contents of a message of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostBody<'a> {
    /// AUTH_Negotiate: the identifiers of hash functions and groups that the host offers.
    Negotiate {
        /// Hash functions.
        hashes: &'a [u8],
        /// Diffie-Hellman groups.
        groups: &'a [u8],
    },
    /// DH-HMAC-CHAP_Reply.
    Reply {
        /// The response to the challenge of the controller.
        response: &'a [u8],
        /// The challenge of the host and its sequence number, if the controller has to prove its identity.
        challenge: Option<(&'a [u8], u32)>,
        /// The public value of the host.
        public: &'a [u8],
    },
    /// DH-HMAC-CHAP_Success2: the controller has proved its identity.
    Success,
    /// AUTH_Failure2.
    Failure,
}

/// Decodes a message of a host.
///
/// # Errors
/// The reason to report to the host.
pub fn decode(data: &[u8]) -> Result<HostMessage<'_>, AuthFailure> {
    let &[kind, id, _, _, ..] = data else { return Err(AuthFailure::Payload) };
    let body = match (kind, id) {
        (COMMON, NEGOTIATE) => negotiation(data)?,
        (DH_HMAC_CHAP, REPLY) => reply(data)?,
        (DH_HMAC_CHAP, SUCCESS_2) if data.len() >= HEADER => HostBody::Success,
        (COMMON, FAILURE_2) => HostBody::Failure,
        _ => return Err(AuthFailure::Message),
    };
    Ok(HostMessage { transaction: get16(data, 4), body })
}

fn negotiation(data: &[u8]) -> Result<HostBody<'_>, AuthFailure> {
    let [channel, count] = array(data, 6);
    let all = data.get(NEGOTIATE_HEADER..).unwrap_or_default();
    if count == 0 || all.len() < usize::from(count) * DESCRIPTOR {
        return Err(AuthFailure::Payload);
    }
    if channel != 0 {
        return Err(AuthFailure::Concatenation);
    }
    let mut descriptors = all.chunks_exact(DESCRIPTOR).take(count.into());
    let ours = descriptors.find(|descriptor| descriptor[0] == DH_HMAC_CHAP).ok_or(AuthFailure::NotUsable)?;
    let (hashes, groups) = (usize::from(ours[2]), usize::from(ours[3]));
    if hashes > LISTED_MAX || groups > LISTED_MAX {
        return Err(AuthFailure::Payload);
    }
    Ok(HostBody::Negotiate { hashes: &ours[4..4 + hashes], groups: &ours[GROUPS_AT..GROUPS_AT + groups] })
}

fn reply(data: &[u8]) -> Result<HostBody<'_>, AuthFailure> {
    let len = usize::from(array::<1>(data, 6)[0]);
    let (is_mutual, public_len) = (array::<1>(data, 8)[0] & 1 != 0, usize::from(get16(data, 10)));
    let sequence = get32(data, 12);
    let values = data.get(HEADER..).ok_or(AuthFailure::Payload)?;
    // The field of the challenge exists in any case.
    let (response, rest) = values.split_at_checked(len).ok_or(AuthFailure::Payload)?;
    let (challenge, rest) = rest.split_at_checked(len).ok_or(AuthFailure::Payload)?;
    let public = rest.get(..public_len).ok_or(AuthFailure::Payload)?;
    Ok(HostBody::Reply { response, challenge: is_mutual.then_some((challenge, sequence)), public })
}

fn header(kind: u8, id: u8, transaction: u16) -> Vec<u8> {
    let mut out = vec![0; HEADER];
    (out[0], out[1]) = (kind, id);
    put(&mut out, 4, transaction.to_le_bytes());
    out
}

/// A DH-HMAC-CHAP_Challenge; the challenge has the length of the hash.
pub fn challenge(
    transaction: u16,
    (hash, group): (AuthHash, AuthGroup),
    sequence: u32,
    challenge: &[u8],
    public: &[u8],
) -> Vec<u8> {
    let mut out = header(DH_HMAC_CHAP, CHALLENGE, transaction);
    (out[6], out[8], out[9]) = (challenge.len() as u8, hash as u8, group as u8);
    put(&mut out, 10, (public.len() as u16).to_le_bytes());
    put(&mut out, 12, sequence.to_le_bytes());
    out.extend_from_slice(challenge);
    out.extend_from_slice(public);
    out
}

/// A DH-HMAC-CHAP_Success1: the host has proved its identity. With `response`, the controller proves its own.
pub fn success(transaction: u16, hash: AuthHash, response: Option<&[u8]>) -> Vec<u8> {
    let mut out = header(DH_HMAC_CHAP, SUCCESS_1, transaction);
    (out[6], out[8]) = (hash.len() as u8, u8::from(response.is_some()));
    out.resize(HEADER + hash.len(), 0);
    if let Some(response) = response {
        out[HEADER..].copy_from_slice(response);
    }
    out
}

/// An AUTH_Failure1.
pub fn failure(transaction: u16, why: AuthFailure) -> Vec<u8> {
    let mut out = header(COMMON, FAILURE_1, transaction);
    (out[6], out[7]) = (1, why as u8);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn negotiate(hashes: &[u8], groups: &[u8]) -> Vec<u8> {
        let mut data = vec![0; NEGOTIATE_HEADER + DESCRIPTOR];
        (data[4], data[5], data[7]) = (0x34, 0x12, 1);
        (data[8], data[10], data[11]) = (1, hashes.len() as u8, groups.len() as u8);
        data[12..12 + hashes.len()].copy_from_slice(hashes);
        data[8 + GROUPS_AT..8 + GROUPS_AT + groups.len()].copy_from_slice(groups);
        data
    }

    #[test]
    fn negotiations_list_what_the_host_offers() {
        let data = negotiate(&[3, 1], &[0, 2]);
        let body = HostBody::Negotiate { hashes: &[3, 1], groups: &[0, 2] };
        assert_eq!(decode(&data), Ok(HostMessage { transaction: 0x1234, body }));
        let with = |at: usize, value: u8| {
            let mut data = data.clone();
            data[at] = value;
            data
        };
        assert_eq!(decode(&with(6, 1)), Err(AuthFailure::Concatenation));
        assert_eq!(decode(&with(7, 0)), Err(AuthFailure::Payload));
        assert_eq!(decode(&with(7, 2)), Err(AuthFailure::Payload));
        assert_eq!(decode(&with(8, 2)), Err(AuthFailure::NotUsable));
        assert_eq!(decode(&with(10, 31)), Err(AuthFailure::Payload));
        assert_eq!(decode(&with(1, 9)), Err(AuthFailure::Message));
    }

    #[test]
    fn replies_have_all_of_their_values() {
        let mut data = vec![1, 2, 0, 0, 5, 0, 32, 0, 1, 0, 4, 0, 9, 0, 0, 0];
        data.extend_from_slice(&[7; 32]);
        data.extend_from_slice(&[8; 32]);
        data.extend_from_slice(&[6; 4]);
        let (response, challenge) = (&[7; 32][..], Some((&[8; 32][..], 9)));
        let body = HostBody::Reply { response, challenge, public: &[6; 4] };
        assert_eq!(decode(&data), Ok(HostMessage { transaction: 5, body }));
        for len in 0..data.len() {
            assert!(decode(&data[..len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn messages_of_the_controller_are_encoded() {
        let data = challenge(0x1234, (AuthHash::Sha256, AuthGroup::Ffdhe2048), 7, &[1; 32], &[2; 256]);
        assert_eq!(data[..16], [1, 1, 0, 0, 0x34, 0x12, 32, 0, 1, 1, 0, 1, 7, 0, 0, 0]);
        assert_eq!((data.len(), data[16], data[48]), (16 + 32 + 256, 1, 2));
        let data = success(1, AuthHash::Sha384, Some(&[3; 48]));
        assert_eq!((data.len(), data[1], data[6], data[8], data[16]), (64, 3, 48, 1, 3));
        assert_eq!(success(1, AuthHash::Sha512, None).len(), 80);
        assert_eq!(failure(2, AuthFailure::Group)[..8], [0, 0xf1, 0, 0, 2, 0, 1, 5]);
    }
}
