//! Admin commands (Base 5).

use super::{Sqe, Status, TRANSFER_MAX};

/// A feature (Base 5.27.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// A feature without effect here, whose value is stored: arbitration, temperature threshold, error
    /// recovery, write atomicity. The index is below [`Feature::STORED`].
    Stored(usize),
    /// Power Management: there is one state.
    Power,
    /// Volatile Write Cache.
    WriteCache,
    /// Number of Queues.
    Queues,
    /// Asynchronous Event Configuration.
    AsyncEvents,
    /// Keep Alive Timer.
    KeepAlive,
    /// Host Identifier.
    HostId,
    /// Reservation Notification Mask, of a namespace.
    ReservationMask,
    /// Reservation Persistence, of a namespace.
    ReservationPersistence,
}

impl Feature {
    /// Number of features whose value is stored.
    pub const STORED: usize = 4;

    fn of(id: u8) -> Result<Feature, Status> {
        Ok(match id {
            0x01 => Feature::Stored(0),
            0x02 => Feature::Power,
            0x04 => Feature::Stored(1),
            0x05 => Feature::Stored(2),
            0x06 => Feature::WriteCache,
            0x07 => Feature::Queues,
            0x0a => Feature::Stored(3),
            0x0b => Feature::AsyncEvents,
            0x0f => Feature::KeepAlive,
            0x81 => Feature::HostId,
            0x82 => Feature::ReservationMask,
            0x83 => Feature::ReservationPersistence,
            _ => return Err(Status::INVALID_FIELD),
        })
    }
}

/// An asynchronous event (Base 5.2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AsyncEvent {
    /// The attributes of a namespace, or the list of namespaces, have changed.
    NamespaceChanged,
    /// The discovery log page has changed.
    DiscoveryChanged,
    /// A reservation notification log page is available. Hosts mask it by a separate feature.
    Reservation,
}

impl AsyncEvent {
    /// The result of the command: the type notice, the information, and the log page.
    pub fn result(self) -> u32 {
        match self {
            AsyncEvent::NamespaceChanged => 0x0004_0002,
            AsyncEvent::DiscoveryChanged => 0x0070_f002,
            AsyncEvent::Reservation => 0x0080_0006,
        }
    }

    /// The bit of the event in the Asynchronous Event Configuration, and in OAES; 0 if it has none.
    pub fn bit(self) -> u32 {
        match self {
            AsyncEvent::NamespaceChanged => 1 << 8,
            AsyncEvent::DiscoveryChanged => 1 << 31,
            AsyncEvent::Reservation => 0,
        }
    }

    /// The log page whose reading permits the next event.
    pub fn page(self) -> u8 {
        (self.result() >> 16) as u8
    }
}

/// An admin command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admin {
    /// Get Log Page.
    Log {
        /// Log page identifier (LID).
        page: u8,
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes, at most [`TRANSFER_MAX`].
        len: u32,
        /// Events stay masked (RAE).
        retain: bool,
    },
    /// Identify.
    Identify {
        /// Controller or namespace structure (CNS).
        structure: u8,
        /// Command set identifier (CSI).
        command_set: u8,
    },
    /// Abort.
    Abort {
        /// Identifier of the queue.
        queue: u16,
        /// Identifier of the command.
        command: u16,
    },
    /// Set Features.
    Set {
        /// The feature.
        feature: Feature,
        /// The value.
        value: u32,
    },
    /// Get Features.
    Get {
        /// The feature.
        feature: Feature,
        /// The value of command dword 11.
        value: u32,
    },
    /// Asynchronous Event Request.
    AsyncEvent,
    /// Keep Alive.
    KeepAlive,
}

impl Admin {
    /// Decodes an admin command.
    ///
    /// # Errors
    /// The status of an invalid command.
    pub fn decode(sqe: &Sqe) -> Result<Admin, Status> {
        let dword = |n| sqe.dword(n);
        if sqe.byte(1) & 3 != 0 {
            // No admin command can be fused.
            return Err(Status::INVALID_FIELD);
        }
        match sqe.opcode() {
            0x02 => {
                let dwords = (u64::from(dword(11) & 0xffff) << 16 | u64::from(dword(10) >> 16)) + 1;
                let len = u32::try_from(dwords * 4).ok().filter(|len| *len <= TRANSFER_MAX);
                let (len, offset) = (len.ok_or(Status::INVALID_FIELD)?, sqe.long(48));
                // OT: offsets are in bytes.
                if !offset.is_multiple_of(4) || dword(14) & 1 << 23 != 0 {
                    return Err(Status::INVALID_FIELD);
                }
                let retain = dword(10) & 1 << 15 != 0;
                Ok(Admin::Log { page: dword(10) as u8, offset, len, retain })
            }
            0x06 => Ok(Admin::Identify { structure: dword(10) as u8, command_set: (dword(11) >> 24) as u8 }),
            0x08 => Ok(Admin::Abort { queue: sqe.half(40), command: sqe.half(42) }),
            // SV: nothing can be saved.
            0x09 if dword(10) & 1 << 31 != 0 => Err(Status::INVALID_FIELD),
            0x09 => Ok(Admin::Set { feature: Feature::of(dword(10) as u8)?, value: dword(11) }),
            // SEL: only current values are supported.
            0x0a if dword(10) >> 8 & 7 != 0 => Err(Status::INVALID_FIELD),
            0x0a => Ok(Admin::Get { feature: Feature::of(dword(10) as u8)?, value: dword(11) }),
            0x0c => Ok(Admin::AsyncEvent),
            0x18 => Ok(Admin::KeepAlive),
            _ => Err(Status::INVALID_OPCODE),
        }
    }

    /// Bytes that are sent to the host.
    pub fn data_in(&self) -> u32 {
        match *self {
            Admin::Log { len, .. } => len,
            Admin::Identify { .. } => super::identify::BYTES as u32,
            Admin::Get { feature: Feature::HostId, .. } => 16,
            _ => 0,
        }
    }
}
