//! Reservations (Base 7.2 to 7.5 and 8.19): their commands, the data of a report, and notifications.

use super::{Sqe, Status, TRANSFER_MAX, get64, put};
use crate::scsi::ReservationType;

/// A command that changes reservations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reservation {
    /// Reservation Register.
    Register {
        /// What is done with the registration.
        action: Register,
        /// The current key is not checked (IEKEY).
        ignore_key: bool,
        /// Whether registrations and reservation persist through power loss; `None` for no change (CPTPL).
        keep: Option<bool>,
    },
    /// Reservation Acquire.
    Acquire {
        /// How the reservation is acquired.
        action: Acquire,
        /// The type of the reservation.
        kind: ReservationType,
        /// The current key is not checked.
        ignore_key: bool,
    },
    /// Reservation Release; with a type, the reservation of this type is released, and otherwise everything
    /// is cleared.
    Release {
        /// The type of the reservation to be released.
        kind: Option<ReservationType>,
        /// The current key is not checked.
        ignore_key: bool,
    },
}

/// Action of Reservation Register (RREGA).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Register {
    /// Register the host.
    Register,
    /// Remove the registration of the host.
    Unregister,
    /// Replace the key of the host.
    Replace,
}

/// Action of Reservation Acquire (RACQA).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acquire {
    /// Acquire a reservation.
    Acquire,
    /// Remove the registrations with a key, and take the reservation of its holder.
    Preempt,
    /// Also abort the commands of the hosts whose registrations are removed.
    PreemptAndAbort,
}

/// The type with a code (Base, figure 449).
fn type_of(code: u32) -> Result<ReservationType, Status> {
    let at = usize::try_from(code).ok().and_then(|code| code.checked_sub(1));
    at.and_then(|at| ReservationType::ALL.get(at).copied()).ok_or(Status::INVALID_FIELD)
}

/// The code of a type. Types of NVMe and SCSI have the same meaning and order, but other codes.
fn code_of(kind: ReservationType) -> u8 {
    ReservationType::ALL.iter().position(|one| *one == kind).map_or(0, |at| at as u8 + 1)
}

impl Reservation {
    /// Decodes a command that changes reservations; `None` if the entry is another command.
    pub(super) fn decode(sqe: &Sqe) -> Option<Result<Reservation, Status>> {
        let word = sqe.dword(10);
        let (action, ignore_key) = (word & 7, word & 8 != 0);
        let kind = || type_of(word >> 8 & 0xff);
        Some(match sqe.opcode() {
            0x0d => {
                let action = match action {
                    0 => Ok(Register::Register),
                    1 => Ok(Register::Unregister),
                    2 => Ok(Register::Replace),
                    _ => Err(Status::INVALID_FIELD),
                };
                let keep = match word >> 30 {
                    0 => Ok(None),
                    2 => Ok(Some(false)),
                    3 => Ok(Some(true)),
                    _ => Err(Status::INVALID_FIELD),
                };
                action.and_then(|action| Ok(Reservation::Register { action, ignore_key, keep: keep? }))
            }
            0x11 => {
                let action = match action {
                    0 => Ok(Acquire::Acquire),
                    1 => Ok(Acquire::Preempt),
                    2 => Ok(Acquire::PreemptAndAbort),
                    _ => Err(Status::INVALID_FIELD),
                };
                action.and_then(|action| Ok(Reservation::Acquire { action, kind: kind()?, ignore_key }))
            }
            0x15 => match action {
                0 => kind().map(|kind| Reservation::Release { kind: Some(kind), ignore_key }),
                1 => Ok(Reservation::Release { kind: None, ignore_key }),
                _ => Err(Status::INVALID_FIELD),
            },
            _ => return None,
        })
    }

    /// Bytes that the host sends with the command.
    pub(super) fn data_out(self) -> u32 {
        match self {
            Reservation::Register { .. } | Reservation::Acquire { .. } => 16,
            Reservation::Release { .. } => 8,
        }
    }
}

/// The number of bytes that a Reservation Report requests.
///
/// # Errors
/// The report would have no room for host identifiers of 128 bits, or is longer than a transfer.
pub(super) fn report_len(sqe: &Sqe) -> Result<u32, Status> {
    if sqe.dword(11) & 1 == 0 {
        return Err(Status::HOST_ID_FORMAT);
    }
    let len = u32::try_from((u64::from(sqe.dword(10)) + 1) * 4).ok().filter(|len| *len <= TRANSFER_MAX);
    len.ok_or(Status::INVALID_FIELD)
}

/// The keys in the data of a reservation command: the current key (CRKEY), and the new key (NRKEY) or the key
/// to be preempted (PRKEY).
pub fn keys(data: &[u8]) -> (u64, u64) {
    (get64(data, 0), get64(data, 8))
}

/// A registered host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registrant {
    /// Identifier of the host.
    pub host_id: [u8; 16],
    /// Its key.
    pub key: u64,
    /// It holds the reservation.
    pub holds: bool,
}

/// The extended reservation status data structure (Base, figure 462). Controllers are dynamic, so none is
/// named.
pub fn status(
    generation: u32,
    held: Option<ReservationType>,
    keep: bool,
    registrants: &[Registrant],
) -> Vec<u8> {
    const HEADER: usize = 64;
    const ENTRY: usize = 64;
    let mut data = vec![0; HEADER + ENTRY * registrants.len()];
    put(&mut data, 0, generation.to_le_bytes());
    data[4] = held.map_or(0, code_of);
    put(&mut data, 5, (registrants.len() as u16).to_le_bytes());
    data[9] = u8::from(keep);
    for (out, registrant) in data[HEADER..].chunks_exact_mut(ENTRY).zip(registrants) {
        put(out, 0, u16::MAX.to_le_bytes());
        out[2] = u8::from(registrant.holds);
        put(out, 8, registrant.key.to_le_bytes());
        put(out, 16, registrant.host_id);
    }
    data
}

/// What a host is notified of (Base 5.16.1.27). The value is the type of the log page, and the number of the
/// bit in the notification mask (Base 5.27.1.27).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReservationNotice {
    /// Another host removed the registration of the host.
    RegistrationPreempted = 1,
    /// A reservation under which the host had access was released.
    ReservationReleased = 2,
    /// All registrations and the reservation were cleared.
    ReservationPreempted = 3,
}

/// The reservation notification log page: the notice number `count` of a namespace, after which `more`
/// notices wait; or an empty page.
pub fn notification(count: u64, notice: Option<(u32, ReservationNotice)>, more: usize) -> Vec<u8> {
    let mut data = vec![0; 64];
    put(&mut data, 0, count.to_le_bytes());
    if let Some((namespace, notice)) = notice {
        data[8] = notice as u8;
        data[9] = more.min(255) as u8;
        put(&mut data, 12, namespace.to_le_bytes());
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(opcode: u8, words: [u32; 2]) -> Option<Result<Reservation, Status>> {
        Reservation::decode(&sqe(opcode, words))
    }

    fn sqe(opcode: u8, words: [u32; 2]) -> Sqe {
        let mut bytes = [0; 64];
        bytes[0] = opcode;
        bytes[40..44].copy_from_slice(&words[0].to_le_bytes());
        bytes[44..48].copy_from_slice(&words[1].to_le_bytes());
        Sqe::new(bytes)
    }

    #[test]
    fn commands_are_decoded() {
        let register =
            Reservation::Register { action: Register::Replace, ignore_key: true, keep: Some(true) };
        assert_eq!(decode(0x0d, [0xc000_000a, 0]), Some(Ok(register)));
        let kind = ReservationType::ExclusiveAccessRegistrants;
        let acquire = Reservation::Acquire { action: Acquire::PreemptAndAbort, kind, ignore_key: false };
        assert_eq!(decode(0x11, [0x402, 0]), Some(Ok(acquire)));
        let release = Reservation::Release { kind: Some(kind), ignore_key: true };
        assert_eq!(decode(0x15, [0x408, 0]), Some(Ok(release)));
        assert_eq!(decode(0x15, [1, 0]), Some(Ok(Reservation::Release { kind: None, ignore_key: false })));
        assert_eq!(report_len(&sqe(0x0e, [15, 1])), Ok(64));
        assert_eq!(report_len(&sqe(0x0e, [15, 0])), Err(Status::HOST_ID_FORMAT));
        assert_eq!(report_len(&sqe(0x0e, [1 << 18, 1])), Err(Status::INVALID_FIELD));
        for (opcode, word) in [(0x0d, 3), (0x0d, 1 << 30), (0x11, 3), (0x11, 0), (0x11, 0x700), (0x15, 0x2)] {
            assert_eq!(decode(opcode, [word, 1]), Some(Err(Status::INVALID_FIELD)), "{opcode} {word:x}");
        }
        assert_eq!(decode(0x02, [0, 0]), None);
    }

    #[test]
    fn each_type_has_its_code() {
        for (code, kind) in (1..).zip(ReservationType::ALL) {
            assert_eq!((type_of(code), u32::from(code_of(kind))), (Ok(kind), code));
        }
        assert_eq!(type_of(6), Ok(ReservationType::ExclusiveAccessAll));
    }

    #[test]
    fn reports_and_notices_are_encoded() {
        let registrants = [3, 4].map(|n| Registrant { host_id: [n; 16], key: n.into(), holds: n == 4 });
        let data = status(9, Some(ReservationType::ExclusiveAccess), true, &registrants);
        assert_eq!((data.len(), data[0], data[4], data[5], data[9]), (192, 9, 2, 2, 1));
        assert_eq!((data[64], data[66], data[72], data[80]), (0xff, 0, 3, 3));
        assert_eq!((data[130], data[136], data[144]), (1, 4, 4));
        let data = notification(5, Some((7, ReservationNotice::ReservationReleased)), 300);
        assert_eq!((data.len(), data[0], data[8], data[9], data[12]), (64, 5, 2, 255, 7));
        assert_eq!(notification(5, None, 0)[8..], [0; 56]);
    }
}
