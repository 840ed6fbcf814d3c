//! The encoding of registrations and reservation that is stored with a disk, if initiators request that they
//! persist through power loss (APTPL). Integers are big-endian.
//!
//! | bytes | |
//! |---|---|
//! | 1 | version: 1; 2 if a registration is of an NVMe host |
//! | 1 | type of the reservation; 0: not reserved |
//! | 2 | index of the registration that holds it, or made it |
//! | 2 | number of registrations, then each: |
//! | 8 | key |
//! | 6 | ISID |
//! | 2 | target portal group tag |
//! | 2 | relative target port identifier |
//! | 1, *n* | length of the initiator's name, name |
//! | 1, *n* | length of the target's name, name |
//! | 1, *n* | of version 2: length of the host identifier, which is 16 or 0; host identifier |

use std::sync::Arc;

use forebay_wire::scsi::ReservationType;

use super::port::Port;
use super::reserve::{REGISTRATIONS_MAX, Registration, Reservations};

const VERSION: u8 = 1;
const VERSION_WITH_HOSTS: u8 = 2;

impl Reservations {
    /// Encodes the state; `None` if there is nothing to be stored.
    pub fn encode(&self) -> Option<Vec<u8>> {
        if !self.keep || self.is_empty() {
            return None;
        }
        let (kind, holder) = match &self.held {
            Some((kind, holder)) => {
                // If all registrants hold the reservation, the nexus that made it may be unregistered. Then
                // the first registered nexus is stored.
                let at = self.registrations.iter().position(|r| r.port.is(holder)).unwrap_or(0);
                (*kind as u8, at as u16)
            }
            None => (0, 0),
        };
        let has_hosts = self.registrations.iter().any(|r| r.port.host_id.is_some());
        let mut bytes = vec![if has_hosts { VERSION_WITH_HOSTS } else { VERSION }, kind];
        bytes.extend_from_slice(&holder.to_be_bytes());
        bytes.extend_from_slice(&(self.registrations.len() as u16).to_be_bytes());
        for Registration { key, port } in &self.registrations {
            bytes.extend_from_slice(&key.to_be_bytes());
            bytes.extend_from_slice(&port.isid);
            bytes.extend_from_slice(&port.tpgt.to_be_bytes());
            bytes.extend_from_slice(&port.relative_port.to_be_bytes());
            for name in [&port.initiator, &port.target] {
                // iSCSI names have at most 223 bytes (RFC 7143, "iSCSI names").
                let name = &name.as_bytes()[..name.len().min(255)];
                bytes.push(name.len() as u8);
                bytes.extend_from_slice(name);
            }
            if has_hosts {
                bytes.push(port.host_id.map_or(0, |id| id.len() as u8));
                bytes.extend(port.host_id.iter().flatten());
            }
        }
        Some(bytes)
    }

    /// Decodes stored state; `None` if the bytes are not valid.
    pub fn decode(bytes: &[u8]) -> Option<Reservations> {
        let mut fields = Fields(bytes);
        let [version, kind] = fields.array()?;
        let holder = usize::from(u16::from_be_bytes(fields.array()?));
        let count = usize::from(u16::from_be_bytes(fields.array()?));
        if !matches!(version, VERSION | VERSION_WITH_HOSTS) || count > REGISTRATIONS_MAX {
            return None;
        }
        let mut registrations = Vec::new();
        for _ in 0..count {
            let key = u64::from_be_bytes(fields.array()?);
            let isid = fields.array()?;
            let tpgt = u16::from_be_bytes(fields.array()?);
            let relative_port = u16::from_be_bytes(fields.array()?);
            let (initiator, target) = (fields.name()?, fields.name()?);
            let has_host = version == VERSION_WITH_HOSTS && fields.flag(16)?;
            let host_id = if has_host { Some(fields.array()?) } else { None };
            let port = Arc::new(Port { initiator, isid, target, tpgt, relative_port, host_id });
            registrations.push(Registration { key, port });
        }
        let held = match kind {
            0 => None,
            kind => Some((ReservationType::decode(kind)?, registrations.get(holder)?.port.clone())),
        };
        fields.0.is_empty().then_some(Reservations { generation: 0, keep: true, registrations, held })
    }
}

/// Reads consecutive fields of stored state.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    /// A byte that is either 0 or `set`.
    fn flag(&mut self, set: u8) -> Option<bool> {
        let [byte] = self.array()?;
        (byte == 0 || byte == set).then_some(byte == set)
    }

    fn name(&mut self) -> Option<String> {
        let [len] = self.array()?;
        let (name, rest) = self.0.split_at_checked(len.into())?;
        self.0 = rest;
        String::from_utf8(name.to_vec()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Reservations {
        let port = |n: u8| {
            Arc::new(Port {
                initiator: "i".repeat(usize::from(n) * 100),
                isid: [n; 6],
                target: "iqn.2026-11.example:disks".into(),
                tpgt: n.into(),
                relative_port: 7,
                host_id: (n == 2).then_some([7; 16]),
            })
        };
        let registrations: Vec<_> =
            (0..3).map(|n| Registration { key: 1 << (n * 20), port: port(n) }).collect();
        let held = Some((ReservationType::ExclusiveAccessRegistrants, registrations[2].port.clone()));
        Reservations { generation: 0, keep: true, registrations, held }
    }

    #[test]
    fn encoded_state_decodes_to_itself() {
        let state = some();
        let decoded = Reservations::decode(&state.encode().unwrap()).unwrap();
        assert_eq!(format!("{decoded:?}"), format!("{state:?}"));
        let volatile = Reservations { keep: false, ..some() };
        assert_eq!(volatile.encode(), None);
    }

    #[test]
    fn truncated_or_invalid_bytes_are_refused() {
        let bytes = some().encode().unwrap();
        for len in 0..bytes.len() {
            assert!(Reservations::decode(&bytes[..len]).is_none());
        }
        for (at, bad) in [(0, 3), (0, 1), (1, 2), (1, 9), (3, 3), (4, 0xff)] {
            let mut bytes = bytes.clone();
            bytes[at] = bad;
            assert!(Reservations::decode(&bytes).is_none(), "byte {at} is {bad}");
        }
        assert!(Reservations::decode(&[&bytes[..], b"\0"].concat()).is_none());
    }
}
