//! Persistent reservations (SPC-4, "Persistent reservations"): parameter list and data.

use super::*;

/// Type of a persistent reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ReservationType {
    /// Only the holder may write.
    WriteExclusive = 1,
    /// Only the holder may read and write.
    ExclusiveAccess = 3,
    /// Only registered nexuses may write.
    WriteExclusiveRegistrants = 5,
    /// Only registered nexuses may read and write.
    ExclusiveAccessRegistrants = 6,
    /// Only registered nexuses may write, and all of them are holders.
    WriteExclusiveAll = 7,
    /// Only registered nexuses may read and write, and all of them are holders.
    ExclusiveAccessAll = 8,
}

impl ReservationType {
    /// All types.
    pub const ALL: [ReservationType; 6] = [
        ReservationType::WriteExclusive,
        ReservationType::ExclusiveAccess,
        ReservationType::WriteExclusiveRegistrants,
        ReservationType::ExclusiveAccessRegistrants,
        ReservationType::WriteExclusiveAll,
        ReservationType::ExclusiveAccessAll,
    ];

    /// Name for display and in the API.
    pub fn name(self) -> &'static str {
        match self {
            ReservationType::WriteExclusive => "write_exclusive",
            ReservationType::ExclusiveAccess => "exclusive_access",
            ReservationType::WriteExclusiveRegistrants => "write_exclusive_registrants",
            ReservationType::ExclusiveAccessRegistrants => "exclusive_access_registrants",
            ReservationType::WriteExclusiveAll => "write_exclusive_all",
            ReservationType::ExclusiveAccessAll => "exclusive_access_all",
        }
    }

    /// The type of a code.
    pub fn decode(code: u8) -> Option<ReservationType> {
        ReservationType::ALL.into_iter().find(|t| *t as u8 == code)
    }

    /// Whether all registered nexuses have the same access as the holder.
    pub fn includes_registrants(self) -> bool {
        !matches!(self, ReservationType::WriteExclusive | ReservationType::ExclusiveAccess)
    }

    /// Whether all registered nexuses are holders.
    pub fn held_by_all(self) -> bool {
        matches!(self, ReservationType::WriteExclusiveAll | ReservationType::ExclusiveAccessAll)
    }

    /// Whether nexuses without access may read.
    pub fn allows_reads(self) -> bool {
        matches!(
            self,
            ReservationType::WriteExclusive
                | ReservationType::WriteExclusiveRegistrants
                | ReservationType::WriteExclusiveAll
        )
    }
}

/// Parameter list of PERSISTENT RESERVE OUT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReserveParameters {
    /// RESERVATION KEY: the key of the nexus.
    pub key: u64,
    /// SERVICE ACTION RESERVATION KEY: the new key of the nexus, or the key of the nexus to preempt.
    pub action_key: u64,
    /// APTPL: registrations and reservation persist through a power loss.
    pub keep: bool,
}

impl ReserveParameters {
    /// Bytes of the list.
    pub const LENGTH: usize = 24;

    /// Decodes the list, whose length must be the length in its CDB.
    ///
    /// # Errors
    /// Another length; SPEC_I_PT and ALL_TG_PT, which are not among the reported capabilities.
    pub fn decode(list: &[u8]) -> Result<ReserveParameters, Sense> {
        if list.len() != ReserveParameters::LENGTH {
            return Err(Sense::length());
        }
        if list[20] & !0x01 != 0 {
            return Err(Sense::parameter(20));
        }
        Ok(ReserveParameters { key: list.get64(0), action_key: list.get64(8), keep: list[20] & 1 != 0 })
    }
}

/// READ KEYS data.
pub fn keys(generation: u32, keys: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let mut data = generation.to_be_bytes().to_vec();
    data.put32(0);
    keys.into_iter().for_each(|key| data.put64(key));
    set_length(&mut data, 4, 4);
    data
}

/// READ RESERVATION data; the key of a reservation held by all registrants is 0.
pub fn reservation(generation: u32, reservation: Option<(u64, ReservationType)>) -> Vec<u8> {
    let mut data = generation.to_be_bytes().to_vec();
    data.put32(0);
    if let Some((key, kind)) = reservation {
        data.put64(key);
        data.extend_from_slice(&[0, 0, 0, 0, 0, kind as u8, 0, 0]);
    }
    set_length(&mut data, 4, 4);
    data
}

/// REPORT CAPABILITIES data: persistence through a power loss is supported, and active if `kept`; all six
/// types are supported.
pub fn reservation_capabilities(kept: bool) -> Vec<u8> {
    vec![0, 8, 0x01, 0x80 | u8::from(kept), 0xea, 0x01, 0, 0]
}

/// One registration of READ FULL STATUS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FullStatus<'a> {
    /// Reservation key of the nexus.
    pub key: u64,
    /// Type of the reservation, if the nexus is a holder of it.
    pub holds: Option<ReservationType>,
    /// Relative target port identifier.
    pub relative_port: u16,
    /// iSCSI name of the initiator.
    pub initiator: &'a str,
    /// ISID of the initiator's session.
    pub isid: [u8; 6],
}

/// READ FULL STATUS data.
pub fn full_status<'a>(generation: u32, all: impl IntoIterator<Item = FullStatus<'a>>) -> Vec<u8> {
    let mut data = generation.to_be_bytes().to_vec();
    data.put32(0);
    for each in all {
        data.put64(each.key);
        data.put32(0);
        data.extend_from_slice(&[u8::from(each.holds.is_some()), each.holds.map_or(0, |kind| kind as u8)]);
        data.put32(0);
        data.put16(each.relative_port);
        let transport = transport_id(each.initiator, each.isid);
        data.put32(transport.len() as u32);
        data.extend_from_slice(&transport);
    }
    set_length(&mut data, 4, 4);
    data
}

/// TransportID of an iSCSI initiator port (SPC-4, "TransportID for initiator ports using SCSI over iSCSI").
fn transport_id(initiator: &str, isid: [u8; 6]) -> Vec<u8> {
    let mut id = vec![0x45, 0, 0, 0];
    id.extend_from_slice(initiator.as_bytes());
    id.extend_from_slice(b",i,0x");
    isid.iter().for_each(|byte| id.extend_from_slice(format!("{byte:02x}").as_bytes()));
    id.zeroes((id.len() + 1).next_multiple_of(4) - id.len());
    set_length(&mut id, 2, 2);
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters() {
        let mut list = [0; 24];
        (list[7], list[15], list[20]) = (1, 2, 1);
        assert_eq!(
            ReserveParameters::decode(&list),
            Ok(ReserveParameters { key: 1, action_key: 2, keep: true })
        );
        assert_eq!(ReserveParameters::decode(&list[..23]), Err(Sense::length()));
        list[20] = 0x08;
        assert_eq!(ReserveParameters::decode(&list), Err(Sense::parameter(20)));
    }

    #[test]
    fn data() {
        assert_eq!(keys(5, [1, 2])[..16], [0, 0, 0, 5, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(reservation(5, None), [0, 0, 0, 5, 0, 0, 0, 0]);
        let held = reservation(5, Some((3, ReservationType::ExclusiveAccess)));
        assert_eq!((held.len(), held[7], held[15], held[21]), (24, 16, 3, 3));
        let one = FullStatus {
            key: 9,
            holds: Some(ReservationType::WriteExclusive),
            relative_port: 1,
            initiator: "iqn.a",
            isid: [0, 1, 2, 3, 4, 255],
        };
        let full = full_status(5, [one]);
        assert_eq!((full[20], full[21], full[27]), (1, 1, 1));
        assert_eq!(full[32..36], [0x45, 0, 0, 24]);
        assert_eq!(&full[36..], b"iqn.a,i,0x0001020304ff\0\0");
        assert_eq!(full[7] as usize, full.len() - 8);
        assert_eq!(full[31] as usize, full.len() - 32);
    }
}
