//! A session's access to a unit: what every command passes before it begins.
//!
//! **Read-only nexuses.** A disk can be mapped for many tenants, a golden image above all, and they share its unit.
//! So a nexus that may not write may not change what the unit holds, and not what all nexuses share either:
//! reservations, mode parameters, commands of other sessions. It does not see registrations that were made through
//! other targets.

use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;

use forebay_engine::{Disk, Error};
use forebay_wire::scsi::{Request, Rules, Sense, SenseKey, codes};
use parking_lot::Mutex;

use super::attention::UnitAttention;
use super::copy::Outcomes;
use super::response::{Response, sense_of};
use super::underway::Underway;
use super::unit::{HAS_TOKENS, LogicalUnit, Member, PROTECTED, Port, RESERVED, Settings};

/// An I_T_L nexus. Dropping it leaves the unit: RESERVE is released, registrations stay.
pub struct Nexus {
    pub(super) unit: Arc<LogicalUnit>,
    pub(super) member: Arc<Member>,
    pub(super) settings: Settings,
    /// The mapping or the disk refuses changes.
    read_only: bool,
    /// Of third-party copies, until the initiator asks.
    pub(super) outcomes: Mutex<Outcomes>,
}

/// A command that may run.
pub struct Admitted {
    /// The command.
    pub request: Request,
    /// Of one that changes what the unit holds; to be dropped when it is over, and not before.
    pub underway: Option<Underway>,
}

impl Drop for Nexus {
    fn drop(&mut self) {
        self.unit.leave(&self.member);
    }
}

impl Nexus {
    pub(super) fn new(unit: Arc<LogicalUnit>, member: Arc<Member>, settings: Settings) -> Nexus {
        let read_only = settings.read_only || unit.disk().read_only();
        Nexus { unit, member, settings, read_only, outcomes: Mutex::default() }
    }

    /// The disk.
    pub fn disk(&self) -> &Arc<Disk> {
        self.unit.disk()
    }

    /// The unit.
    pub fn unit(&self) -> &Arc<LogicalUnit> {
        &self.unit
    }

    /// The ports that it connects.
    pub fn port(&self) -> &Arc<Port> {
        &self.member.port
    }

    /// Whether a write has to be durable before it is answered; for transports that carry out a
    /// [`Request::Write`] themselves.
    #[inline]
    pub fn durable(&self, fua: bool) -> bool {
        fua || !self.settings.write_back
    }

    /// Decodes a command and checks all that is checked before it begins: unit attentions, reservations, its
    /// range, write protection. What it changes, tokens of that are void from here on; who has it aborted waits until
    /// it is over ([`Admitted::underway`]).
    ///
    /// # Errors
    /// How it is answered instead.
    #[inline]
    pub fn admit(&self, cdb: &[u8]) -> Result<Admitted, Response> {
        let decoded = Request::decode(cdb, &self.rules());
        let underway = decoded.as_ref().is_ok_and(Request::changes).then(|| self.member.gate.enter());
        let admitted = if self.unit.flags() != 0 || self.member.alert.load(Acquire) {
            self.admit_closely(cdb, decoded)
        } else {
            match decoded {
                Ok(request) if self.read_only && is_for_writers(&request) => Err(self.protected()),
                Ok(request) => Ok(request),
                Err(sense) => Err(self.check(&sense)),
            }
        };
        Ok(Admitted { request: admitted?, underway })
    }

    /// The unit as commands are checked against it.
    #[inline]
    pub(super) fn rules(&self) -> Rules {
        Rules { blocks: self.unit.blocks() }
    }

    /// In the order that SAM-5 gives in "Status precedence".
    #[cold]
    fn admit_closely(&self, cdb: &[u8], decoded: Result<Request, Sense>) -> Result<Request, Response> {
        const INQUIRY: u8 = 0x12;
        const REPORT_LUNS: u8 = 0xa0;
        const REQUEST_SENSE: u8 = 0x03;
        let reports = !matches!(cdb.first(), Some(&(INQUIRY | REPORT_LUNS | REQUEST_SENSE)));
        let attention = |resets_only| reports.then(|| self.member.take(resets_only)).flatten();
        if let Some(attention) = attention(true) {
            return Err(self.check(&attention.sense()));
        }
        let flags = self.unit.flags();
        if let Ok(request) = &decoded
            && flags & RESERVED != 0
            && self.unit.conflicts(&self.member, request.access())
        {
            return Err(Response::conflict());
        }
        if let Some(attention) = attention(false) {
            return Err(self.check(&attention.sense()));
        }
        let request = decoded.map_err(|sense| self.check(&sense))?;
        if (self.read_only && is_for_writers(&request)) || (request.changes() && flags & PROTECTED != 0) {
            return Err(self.protected());
        }
        if flags & HAS_TOKENS != 0
            && let Some((offset, len)) = request.changed_range()
        {
            self.unit.note_change(offset, len);
        }
        Ok(request)
    }

    /// Whether changes of this nexus are refused.
    pub(super) fn is_protected(&self) -> bool {
        self.read_only || self.unit.flags() & PROTECTED != 0
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Whether this initiator may learn of a registration of `port`.
    pub(super) fn may_know(&self, port: &Port) -> bool {
        !self.read_only || port.target == self.port().target
    }

    #[cold]
    fn protected(&self) -> Response {
        let code = if self.read_only { codes::WRITE_PROTECTED } else { codes::SOFTWARE_WRITE_PROTECTED };
        self.check(&Sense::new(SenseKey::DataProtect, code))
    }

    /// CHECK CONDITION, in the format of sense data that the unit is set to.
    pub fn check(&self, sense: &Sense) -> Response {
        Response::check(sense, self.unit.descriptor_sense())
    }

    /// What a command is answered that failed in the engine.
    pub fn failed(&self, error: &Error) -> Response {
        self.check(&sense_of(error))
    }

    /// LOGICAL UNIT RESET: RESERVE is released, mode parameters are as at first, commands of other sessions
    /// are aborted, and every nexus, this one too, is told (SAM-5, "Logical unit reset"). Ends when none of those
    /// changes anything any more. The session's own commands are the transport's to abort, before. A read-only nexus
    /// resets nothing but itself.
    pub async fn reset(&self) {
        if self.read_only {
            self.note(UnitAttention::Reset);
        } else {
            self.unit.reset(&self.member).await;
        }
    }

    /// CLEAR TASK SET: commands of other sessions are aborted, and they are told (SAM-5, "CLEAR TASK SET function").
    /// Ends when none of those changes anything any more. A read-only nexus clears nothing of other sessions.
    pub async fn clear_task_set(&self) {
        if !self.read_only {
            self.unit.clear_task_set(&self.member).await;
        }
    }

    /// Tells this nexus something.
    pub fn note(&self, attention: UnitAttention) {
        self.member.note(attention);
    }
}

/// Whether a command changes what the unit holds, or what all nexuses of the unit share.
#[inline]
fn is_for_writers(request: &Request) -> bool {
    use Request::{ModeSelect, PersistentReserveOut, Reserve};
    request.changes() || matches!(request, PersistentReserveOut { .. } | ModeSelect { .. } | Reserve)
}
