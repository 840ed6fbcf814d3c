//! Fabrics commands (Base 6) and the properties of a controller (Base 3.1.3).

use super::{Sqe, Status, array, auth, get16};

/// The operation code of all fabrics commands.
pub(super) const OPCODE: u8 = 0x7f;
/// Bytes of the data of a Connect.
pub const CONNECT_DATA: u32 = 1024;
/// Bytes of a field with a qualified name.
pub const NQN_FIELD: usize = 256;
/// The well-known name of the discovery subsystem (Base 3.1.2.3).
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// A property of a controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Property {
    /// Controller capabilities (CAP).
    Capabilities,
    /// Version (VS).
    Version,
    /// Controller configuration (CC).
    Configuration,
    /// Controller status (CSTS).
    State,
}

impl Property {
    /// The property at an offset, of 4 or 8 bytes.
    fn of(offset: u32, is_long: bool) -> Result<Property, Status> {
        match (offset, is_long) {
            (0x00, true) => Ok(Property::Capabilities),
            (0x08, false) => Ok(Property::Version),
            (0x14, false) => Ok(Property::Configuration),
            (0x1c, false) => Ok(Property::State),
            _ => Err(Status::INVALID_FIELD),
        }
    }
}

/// The parameters of a Connect (Base 6.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connect {
    /// Identifier of the queue; 0 is the admin queue.
    pub queue: u16,
    /// Number of entries of the queue.
    pub entries: u32,
    /// The host does without flow control of the submission queue.
    pub no_flow_control: bool,
    /// Keep alive timeout of the controller in milliseconds; 0 means none. For the admin queue only.
    pub keep_alive_ms: u32,
}

/// The data of a Connect (Base 6.3, figure 547).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectData {
    /// Identifier of the host.
    pub host_id: [u8; 16],
    /// Identifier of the controller; FFFFh requests any.
    pub controller: u16,
    /// Name of the subsystem.
    pub subsystem: String,
    /// Name of the host.
    pub host: String,
}

impl ConnectData {
    /// Decodes the data of a Connect.
    ///
    /// # Errors
    /// A name is not terminated, or is not UTF-8.
    pub fn decode(data: &[u8]) -> Result<ConnectData, Status> {
        if data.len() != CONNECT_DATA as usize {
            return Err(Status::SGL_LENGTH_INVALID);
        }
        let name = |at: usize| {
            let field = &data[at..at + NQN_FIELD];
            let len = field.iter().position(|b| *b == 0).ok_or(Status::CONNECT_INVALID)?;
            std::str::from_utf8(&field[..len]).map(str::to_owned).map_err(|_| Status::CONNECT_INVALID)
        };
        Ok(ConnectData {
            host_id: array(data, 0),
            controller: get16(data, 16),
            subsystem: name(256)?,
            host: name(512)?,
        })
    }
}

/// A fabrics command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fabrics {
    /// Property Set.
    Set(Property, u64),
    /// Connect.
    Connect(Connect),
    /// Property Get.
    Get(Property),
    /// Authentication Send: a message of the host of this many bytes ([`super::auth`]).
    AuthSend(u32),
    /// Authentication Receive: the host has room for a message of this many bytes.
    AuthReceive(u32),
    /// Disconnect.
    Disconnect,
}

impl Fabrics {
    /// Decodes a fabrics command; `None` if the entry is another command.
    ///
    /// # Errors
    /// The status of an invalid command.
    pub fn decode(sqe: &Sqe) -> Option<Result<Fabrics, Status>> {
        (sqe.opcode() == OPCODE).then(|| Fabrics::decode_type(sqe))
    }

    fn decode_type(sqe: &Sqe) -> Result<Fabrics, Status> {
        let property = || match sqe.byte(40) & 7 {
            size @ (0 | 1) => Property::of(sqe.dword(11), size == 1),
            _ => Err(Status::INVALID_FIELD),
        };
        match sqe.fabrics_type() {
            0x00 => Ok(Fabrics::Set(property()?, sqe.long(48))),
            0x01 if sqe.half(40) != 0 => Err(Status::CONNECT_FORMAT),
            0x01 => Ok(Fabrics::Connect(Connect {
                queue: sqe.half(42),
                entries: u32::from(sqe.half(44)) + 1,
                no_flow_control: sqe.byte(46) & 4 != 0,
                keep_alive_ms: sqe.dword(12),
            })),
            0x04 => Ok(Fabrics::Get(property()?)),
            0x05 | 0x06 if sqe.bytes(41) != auth::PROTOCOL => Err(Status::INVALID_FIELD),
            0x05 => Ok(Fabrics::AuthSend(sqe.dword(11))),
            0x06 => Ok(Fabrics::AuthReceive(sqe.dword(11))),
            0x08 if sqe.half(40) != 0 => Err(Status::CONNECT_FORMAT),
            0x08 => Ok(Fabrics::Disconnect),
            _ => Err(Status::INVALID_OPCODE),
        }
    }
}
