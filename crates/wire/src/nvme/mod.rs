//! NVMe over TCP, controller side: decodes the PDUs and commands of a host, and encodes replies.
//!
//! Follows the NVMe/TCP Transport Specification 1.0 ("Transport"), the NVMe Base Specification 2.0 ("Base")
//! and the NVM Command Set Specification 1.0 ("NVM"); comments cite their clauses.
//!
//! [`decode`] finds the PDUs in a stream, and checks their headers and digests; a violation becomes a
//! [`FatalError`] with the status that a C2HTermReq reports. [`Sqe`] is the submission queue entry of a
//! command capsule; [`Fabrics`], [`Admin`] and [`Io`] are commands that were decoded from one. [`Status`] is
//! the reason why a command fails. [`reply`] frames the PDUs of the controller. [`identify`] and [`log`]
//! build the data structures that a host reads. [`reservation`] has all about reservations, [`auth`] the
//! messages by which both sides prove who they are.

mod admin;
pub mod auth;
mod fabrics;
mod fatal;
pub mod identify;
mod io;
pub mod log;
mod pdu;
pub mod reply;
pub mod reservation;
mod sqe;
mod status;

pub use admin::{Admin, AsyncEvent, Feature};
pub use fabrics::{CONNECT_DATA, Connect, ConnectData, DISCOVERY_NQN, Fabrics, NQN_FIELD, Property};
pub use fatal::FatalError;
pub use io::{DSM_RANGES_MAX, Io, unmap_list};
pub use pdu::{DataPdu, Digests, InitRequest, Limits, Pdu, Phase, Step, decode};
pub use sqe::{Fuse, Sgl, Sqe};
pub use status::Status;

/// Bytes of a logical block: ESXi accepts no other size.
pub const BLOCK: u32 = 512;
/// Maximum bytes of data that follow a command in its capsule (IOCCSZ).
pub const IN_CAPSULE_MAX: u32 = 8192;
/// Maximum bytes of data of one H2CData PDU (MAXH2CDATA; Transport 3.6.2.3 requires at least 4096).
pub const H2C_DATA_MAX: u32 = 128 << 10;
/// Maximum bytes that a command transfers, as a power of two of pages of 4096 bytes (MDTS).
pub const MDTS: u8 = 8;
/// Maximum bytes that a command transfers: 1 MiB.
pub const TRANSFER_MAX: u32 = 4096 << MDTS;
/// Maximum blocks of a fused Compare and Write.
pub const COMPARE_AND_WRITE_MAX: u32 = 255;
/// The version of the Base specification to which the controller conforms (VS): 1.4.
pub const VERSION: u32 = 0x0001_0400;
/// Maximum entries of a queue.
pub const QUEUE_ENTRIES: u16 = 128;
/// The highest namespace identifier. Namespace `n` is the unit with the number `n - 1` of the target.
pub const NAMESPACES: u32 = 256;
/// The namespace identifier that means all namespaces.
pub const ALL_NAMESPACES: u32 = 0xffff_ffff;

/// The `N` bytes at `at`; zeroes if the bytes end before.
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(<[u8]>::first_chunk::<N>).copied().unwrap_or([0; N])
}

/// Little-endian fields, the format of all NVMe structures.
fn get16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array(bytes, at))
}

fn get32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

fn get64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

/// Writes a field of a structure that has at least `at + N` bytes.
fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&value);
}

/// Writes a text into a field, cut to `len` bytes and padded with `pad`.
fn put_text(bytes: &mut [u8], at: usize, len: usize, text: &str, pad: u8) {
    let field = &mut bytes[at..at + len];
    field.fill(pad);
    let used = text.len().min(len);
    field[..used].copy_from_slice(&text.as_bytes()[..used]);
}
