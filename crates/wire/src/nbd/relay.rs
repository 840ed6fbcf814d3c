//! What nodes of a cluster add to the protocol between them.
//!
//! A node forwards its client to the server that has the disk. This connection begins with a line, the
//! [`Preamble`], which precedes the greeting of the server. The server's reply to `OPT_GO` contains one more
//! piece of information, `INFO_RELAY`, with a [`RelayInfo`]. If an administrator disconnects the client, the
//! server sends a reply with the cookie [`DISMISSED`](super::DISMISSED) before it closes the connection.

use super::consts::*;
use super::option_reply::reply;
use super::{ProtocolError, cut, take};

/// Maximum length of a preamble in bytes, including the end of the line.
pub const PREAMBLE_MAX: usize = 448;
/// Maximum lengths of the id and of the name in a preamble, in bytes.
const CLIENT_ID_MAX: usize = 128;
const CLIENT_NAME_MAX: usize = 256;
/// The first word of a preamble.
const WORD: &str = "client ";
const IS_DURABLE: u8 = 1;
/// Length of the data of `INFO_RELAY` without its type. A later release may append fields.
const INFO_LEN: usize = 49;

/// The first line of a connection between nodes: `client ID GENERATION AGE NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preamble {
    /// Identity of the client's connection; no other connection of the cluster has it. It has no spaces.
    pub id: String,
    /// How often the client was connected to the disk, by this connection too; 1 for a new client.
    pub generation: u64,
    /// Milliseconds since the client first opened the disk.
    pub age_ms: u64,
    /// The client for administrators. It has no control characters.
    pub name: String,
}

impl Preamble {
    /// The line, with its end. Long texts are truncated, and control characters in them are replaced.
    pub fn encode(&self) -> Vec<u8> {
        let plain = |text: &str| text.replace(char::is_control, "?");
        let (id, name) = (plain(&self.id).replace(' ', "?"), plain(&self.name));
        let (id, name) = (cut(&id, CLIENT_ID_MAX), cut(&name, CLIENT_NAME_MAX));
        format!("{WORD}{id} {} {} {name}\n", self.generation, self.age_ms).into_bytes()
    }

    /// Decodes the line at the front of `bytes`. Returns the number of bytes used; `None` if the line is not
    /// complete.
    ///
    /// # Errors
    /// [`ProtocolError::Preamble`].
    pub fn decode(bytes: &[u8]) -> Result<Option<(usize, Preamble)>, ProtocolError> {
        let bad = ProtocolError::Preamble;
        let word = &bytes[..bytes.len().min(WORD.len())];
        if !WORD.as_bytes().starts_with(word) {
            return Err(bad);
        }
        let head = &bytes[..bytes.len().min(PREAMBLE_MAX)];
        let Some(end) = head.iter().position(|byte| *byte == b'\n') else {
            return if head.len() == PREAMBLE_MAX { Err(bad) } else { Ok(None) };
        };
        let line = std::str::from_utf8(&bytes[..end]).map_err(|_| bad)?;
        let (id, rest) = line.strip_prefix(WORD).and_then(|rest| rest.split_once(' ')).ok_or(bad)?;
        let (generation, rest) = rest.split_once(' ').ok_or(bad)?;
        let (age_ms, name) = rest.split_once(' ').ok_or(bad)?;
        let generation = generation.parse().map_err(|_| bad)?;
        let age_ms = age_ms.parse().map_err(|_| bad)?;
        if line.chars().any(char::is_control) {
            return Err(bad);
        }
        Ok(Some((end + 1, Preamble { id: id.to_owned(), generation, age_ms, name: name.to_owned() })))
    }
}

/// What a node needs to know about the disk of its client, to connect the client again unnoticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelayInfo {
    /// Identity of the disk.
    pub uuid: [u8; 16],
    /// Whether all writes are durable when they are answered.
    pub is_durable: bool,
    /// Identity of the memory in which answered writes are kept that are not durable. If another server has
    /// another memory, such writes may be lost.
    pub memory: u64,
    /// Milliseconds since another client opened the disk for the first time, for writing; `None` if this
    /// server has no record of another client.
    pub newer_client_ms: Option<u64>,
    /// Identity of the opening of the pool by its owner.
    pub opening: u64,
    /// How often the owner has replaced the contents of the disk, or shrunk it, in this opening.
    pub replacements: u64,
}

impl RelayInfo {
    /// Decodes the data of `INFO_RELAY`, without its type. `None` if it is malformed.
    pub fn decode(data: &[u8]) -> Option<RelayInfo> {
        let newer = take::<8>(data, 25).map(u64::from_be_bytes)?;
        Some(RelayInfo {
            uuid: take::<16>(data, 0)?,
            is_durable: data.get(16)? & IS_DURABLE != 0,
            memory: take::<8>(data, 17).map(u64::from_be_bytes)?,
            newer_client_ms: (newer != u64::MAX).then_some(newer),
            opening: take::<8>(data, 33).map(u64::from_be_bytes)?,
            replacements: take::<8>(data, 41).map(u64::from_be_bytes)?,
        })
    }
}

/// `INFO_RELAY`.
pub fn option_info_relay(out: &mut Vec<u8>, option: u32, info: &RelayInfo) {
    let mut data = [0; INFO_LEN];
    data[..16].copy_from_slice(&info.uuid);
    data[16] = if info.is_durable { IS_DURABLE } else { 0 };
    data[17..25].copy_from_slice(&info.memory.to_be_bytes());
    data[25..33].copy_from_slice(&info.newer_client_ms.unwrap_or(u64::MAX).to_be_bytes());
    data[33..41].copy_from_slice(&info.opening.to_be_bytes());
    data[41..].copy_from_slice(&info.replacements.to_be_bytes());
    reply(out, option, REP_INFO, &[&INFO_RELAY.to_be_bytes(), &data]);
}

#[cfg(test)]
mod tests {
    use super::super::{OptionReply, option_reply};
    use super::*;

    #[test]
    fn a_preamble_is_decoded_when_it_is_complete() {
        let preamble = |id: &str, n, name: &str| Preamble {
            id: id.into(),
            generation: n,
            age_ms: n - 1,
            name: name.into(),
        };
        let bytes = preamble("a 1", 3, "10.0.0.7:4711\nclient 1 x").encode();
        for len in 0..bytes.len() {
            assert_eq!(Preamble::decode(&bytes[..len]), Ok(None), "{len}");
        }
        let expected = preamble("a?1", 3, "10.0.0.7:4711?client 1 x");
        let more = [&bytes[..], b"NBD"].concat();
        assert_eq!(Preamble::decode(&more), Ok(Some((bytes.len(), expected))));
        let long = preamble(&"ä".repeat(1000), u64::MAX, &"ä".repeat(1000)).encode();
        assert!(long.len() <= PREAMBLE_MAX);
        assert!(matches!(Preamble::decode(&long), Ok(Some(_))));
    }

    #[test]
    fn anything_else_is_no_preamble() {
        let endless = [b"client a 1 ".as_slice(), &[b'x'; PREAMBLE_MAX]].concat();
        for bad in [
            b"GET / HTTP/1.1".as_slice(),
            b"c1",
            b"client \n",
            b"client a x 1 y\n",
            b"client a 1 y\n",
            b"client a 1 x y\n",
            b"client a 1 1 \xff\n",
            b"client a 1 1 \x1b\n",
        ] {
            assert_eq!(Preamble::decode(bad), Err(ProtocolError::Preamble), "{bad:?}");
        }
        assert_eq!(Preamble::decode(&endless), Err(ProtocolError::Preamble));
    }

    #[test]
    fn the_information_survives_its_encoding() {
        for newer_client_ms in [None, Some(0), Some(77)] {
            let info = RelayInfo {
                uuid: [9; 16],
                is_durable: true,
                memory: 1 << 60,
                newer_client_ms,
                opening: 3 << 50,
                replacements: 1 << 40,
            };
            let mut bytes = Vec::new();
            option_info_relay(&mut bytes, OPT_GO, &info);
            let Ok(Some((_, OptionReply { kind: REP_INFO, data, .. }))) = option_reply(&bytes) else {
                panic!("no information");
            };
            assert_eq!(data[..2], INFO_RELAY.to_be_bytes());
            assert_eq!(RelayInfo::decode(&data[2..]), Some(info));
            assert_eq!(RelayInfo::decode(&data[2..data.len() - 1]), None);
        }
    }
}
