//! Limits of a connection and of a session.

use forebay_wire::iscsi::Offer;

/// Maximum number of commands of a session that are under way: the size of its command window.
pub(super) const WINDOW: u32 = 128;
/// Number of tasks of a session from which on immediate commands are rejected. Immediate commands need no
/// place in the window, but use as much memory as other commands.
pub(super) const MAX_TASKS: usize = 2 * WINDOW as usize;
/// Maximum data segment of a login request: the default of RFC 7143 before the initiator or target declares a
/// length.
pub(super) const MAX_LOGIN_SEGMENT: usize = 8192;
/// Maximum data segment that is received in the full feature phase. Several segments fit into a thread's
/// input buffer.
pub(super) const MAX_RECV: usize = 64 << 10;
/// The operational parameters that this target offers.
pub(super) const OFFER: Offer =
    Offer { max_recv: MAX_RECV, max_burst: 1 << 20, first_burst: 256 << 10, max_outstanding_r2t: 4 };
/// Maximum bytes of a text response in one PDU; the initiator requests the following parts.
pub(super) const MAX_TEXT_REPLY: usize = 64 << 10;
