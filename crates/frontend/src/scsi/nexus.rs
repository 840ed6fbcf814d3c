//! A session's access to a unit, and the checks that each command passes before it begins.
//!
//! **Read-only nexuses.** A disk can be mapped for many tenants, in particular a golden image, and they share
//! its unit. So a nexus that is read-only cannot change the blocks of the unit, nor the state that all
//! nexuses share: reservations, mode parameters, commands of other sessions. It does not see registrations
//! that were made through other targets.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, Weak};

use forebay_engine::{DiskHandle, Error};
use forebay_wire::scsi::{PortGroup, Request, Rules, Sense, SenseKey, codes};
use parking_lot::Mutex;

use super::attention::UnitAttention;
use super::errors::sense_of;
use super::member::{AbortTasks, Member};
use super::outcomes::Outcomes;
use super::port::{Port, Settings};
use super::response::Response;
use super::standby::StandbyState;
use super::underway::{Closed, Underway};
use super::unit::{HAS_TOKENS, LogicalUnit, NOT_READY, PROTECTED, RESERVED};

/// The session of a transport that owns nexuses. No lock of a unit is held during a call.
pub trait NexusOwner: AbortTasks {
    /// Logical unit numbers that the initiator can use, in ascending order.
    fn luns(&self) -> Vec<u16>;
    /// Nexuses of the session; third-party copies can name their units.
    fn nexuses(&self) -> Vec<Arc<Nexus>>;
    /// The groups of the target's ports, with their states.
    fn port_groups(&self) -> Vec<PortGroup>;
}

/// An I_T_L nexus. Dropping it leaves the unit: RESERVE is released, but registrations stay.
pub struct Nexus {
    pub(super) unit: Arc<LogicalUnit>,
    pub(super) member: Arc<Member>,
    pub(super) owner: Weak<dyn NexusOwner>,
    /// A reference to the nexus itself, for the tokens that it makes.
    pub(super) own: Weak<Nexus>,
    pub(super) settings: Settings,
    /// Whether the mapping or the disk refuses changes.
    read_only: bool,
    /// The mapping was removed or replaced; commands that were admitted before may still run.
    withdrawn: AtomicBool,
    /// Results of third-party copies, until the initiator reads them.
    pub(super) outcomes: Mutex<Outcomes>,
}

/// A command that passed all checks.
pub struct Admitted {
    /// The request that the command consists of.
    pub request: Request,
    /// Present for a command that changes the unit. It must be dropped when the command changes nothing any
    /// more, not earlier.
    pub underway: Option<Underway>,
    /// Order of the command, for [`Nexus::has_aborted`].
    pub arrival: Arrival,
}

/// The order of a command and the aborts of other nexuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival(u64);

impl Drop for Nexus {
    fn drop(&mut self) {
        self.unit.remove_member(&self.member);
    }
}

impl LogicalUnit {
    /// Adds a nexus of the session `owner`. Its first command reports a power-on condition.
    pub fn join(
        self: &Arc<Self>,
        port: Arc<Port>,
        settings: Settings,
        owner: Weak<dyn NexusOwner>,
    ) -> Arc<Nexus> {
        let member = self.add_member(port, settings, owner.clone());
        let read_only = settings.read_only || self.disk().read_only();
        let (withdrawn, outcomes) = (AtomicBool::new(false), Mutex::default());
        let unit = self.clone();
        Arc::new_cyclic(|own| Nexus {
            unit,
            member,
            owner,
            own: own.clone(),
            settings,
            read_only,
            withdrawn,
            outcomes,
        })
    }
}

impl Nexus {
    /// The disk to which the nexus leads.
    pub fn disk(&self) -> &Arc<DiskHandle> {
        self.unit.disk()
    }

    /// The unit to which the nexus leads.
    pub fn unit(&self) -> &Arc<LogicalUnit> {
        &self.unit
    }

    /// Logical unit number of the nexus.
    pub fn lun(&self) -> u16 {
        self.settings.lun
    }

    /// The initiator port and target port that the nexus connects.
    pub fn port(&self) -> &Arc<Port> {
        &self.member.port
    }

    /// Whether a write has to be durable before it is answered. For transports that execute a
    /// [`Request::Write`] themselves. True also with a volatile cache, if the initiator does not know that
    /// the cache is volatile.
    #[inline]
    pub fn durable(&self, fua: bool) -> bool {
        let told = self.member.told_volatile.load(Relaxed);
        fua || !(told && self.unit.is_cache_volatile(self.settings.write_back))
    }

    /// Continues under a number that a unit of the same session had before: the initiator may not read the
    /// properties of the unit again. If that was of `another_disk`, only commands that identify the unit are
    /// served until the initiator has read the identity: it might write to the wrong disk otherwise.
    pub fn replaces(&self, another_disk: bool) {
        self.member.told_volatile.store(false, Relaxed);
        self.note(UnitAttention::ModeChanged);
        if another_disk {
            self.note(UnitAttention::InquiryChanged);
            self.member.set_unidentified(true);
        }
    }

    /// Whether the initiator is aware that the LUN belongs to this disk.
    pub fn is_identified(&self) -> bool {
        !self.member.is_unidentified()
    }

    /// Decodes a command and makes the checks that precede it: unit attentions, reservations, its range,
    /// write protection. Tokens of the blocks that it changes are revoked. From here on, a request of another
    /// nexus to abort it waits for its end ([`Admitted::underway`]).
    ///
    /// # Errors
    /// The response to a command that fails a check.
    #[inline]
    pub fn admit(&self, cdb: &[u8]) -> Result<Admitted, Response> {
        let decoded = Request::decode(cdb, &self.rules());
        let arrival = Arrival(self.member.aborts.load(Acquire));
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
        Ok(Admitted { request: admitted?, underway, arrival })
    }

    /// Works like [`Nexus::admit`], for a transport whose commands are not CDBs and that reports events to
    /// its client by other means than unit attentions: no attention is taken, and none makes a command fail.
    /// Several threads can admit commands of the nexus.
    ///
    /// # Errors
    /// The response to a command that fails a check.
    #[inline]
    pub fn admit_request(&self, request: Request) -> Result<Admitted, Response> {
        let arrival = Arrival(self.member.aborts.load(Acquire));
        let underway = request.changes().then(|| self.member.gate.enter());
        // This follows the entrance: a withdrawal either waits for the command, or is seen here.
        if self.is_withdrawn() {
            return Err(self.cleared());
        }
        let flags = self.unit.flags();
        let ready = if flags & NOT_READY != 0 { self.unit.check_ready() } else { Ok(()) };
        if flags & RESERVED != 0 && self.unit.conflicts(&self.member, request.access()) {
            return Err(Response::conflict());
        }
        self.admit_to_medium(&request, flags, ready)?;
        Ok(Admitted { request, underway, arrival })
    }

    /// Whether another nexus has aborted the commands that were admitted up to `arrival`.
    pub fn has_aborted(&self, arrival: Arrival) -> bool {
        self.member.aborts.load(Acquire) > arrival.0
    }

    /// The properties of the unit against which commands are checked.
    #[inline]
    pub(super) fn rules(&self) -> Rules {
        Rules { blocks: self.unit.blocks() }
    }

    /// Makes all checks, in the order of SAM-5, "Status precedence".
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
        let ready = if flags & NOT_READY != 0 { self.unit.check_ready() } else { Ok(()) };
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
        if reports && self.member.is_unidentified() {
            return Err(self.check(&Sense::illegal(codes::LOGICAL_UNIT_NOT_SUPPORTED)));
        }
        self.admit_to_medium(&request, flags, ready)?;
        Ok(request)
    }

    /// The last checks of a command: the unit is ready, and can be written. Tokens of the blocks that the
    /// command changes are revoked.
    #[inline]
    fn admit_to_medium(
        &self,
        request: &Request,
        flags: u32,
        ready: forebay_engine::Result<()>,
    ) -> Result<(), Response> {
        if let Err(why) = ready
            && needs_medium(request)
        {
            return Err(self.failed(&why));
        }
        if (self.read_only && is_for_writers(request)) || (request.changes() && flags & PROTECTED != 0) {
            return Err(self.protected());
        }
        if flags & HAS_TOKENS != 0
            && let Some((offset, len)) = request.changed_range()
        {
            self.unit.note_change(offset, len);
        }
        Ok(())
    }

    /// Ends the access: commands that were admitted and have not begun fail, and so do tokens that were made
    /// on it. Returns the gates of the commands that change the unit, or copy from it, and were admitted
    /// before; no command of the session is admitted concurrently, since both are done by the session's
    /// thread.
    pub fn withdraw(&self) -> Closed {
        self.withdrawn.store(true, Release);
        self.member.gate.close()
    }

    /// Whether the access of the nexus was ended.
    pub fn is_withdrawn(&self) -> bool {
        self.withdrawn.load(Acquire)
    }

    /// The response to a command that was admitted before the access was ended. Initiators repeat such a
    /// command, and then learn what became of the unit.
    pub fn cleared(&self) -> Response {
        self.check(&Sense::new(SenseKey::AbortedCommand, codes::COMMANDS_CLEARED_BY_SERVER))
    }

    /// Whether changes of this nexus are refused.
    pub(super) fn is_protected(&self) -> bool {
        self.read_only || self.unit.flags() & PROTECTED != 0
    }

    /// Whether the mapping or the disk refuses changes.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Whether a registration of `port` is visible to this initiator.
    pub(super) fn can_see(&self, port: &Port) -> bool {
        !self.read_only || port.target == self.port().target
    }

    #[cold]
    fn protected(&self) -> Response {
        let code = if self.read_only { codes::WRITE_PROTECTED } else { codes::SOFTWARE_WRITE_PROTECTED };
        self.check(&Sense::new(SenseKey::DataProtect, code))
    }

    /// CHECK CONDITION with this sense data, in the format that the unit currently uses.
    pub fn check(&self, sense: &Sense) -> Response {
        Response::check(sense, self.unit.descriptor_sense())
    }

    /// The response to a command that failed with an engine error.
    pub fn failed(&self, error: &Error) -> Response {
        self.check(&sense_of(error))
    }

    /// LOGICAL UNIT RESET: releases RESERVE, resets mode parameters, aborts commands of other sessions, and
    /// notes a unit attention for each nexus including this one (SAM-5, "Logical unit reset"). Returns when
    /// the aborted commands that change the unit have ended. The transport first aborts the session's own
    /// commands. A read-only nexus resets only itself.
    pub async fn reset(&self) {
        if self.read_only {
            self.note(UnitAttention::Reset);
        } else {
            self.unit.reset(&self.member).await;
        }
    }

    /// CLEAR TASK SET: aborts commands of other sessions and notes a unit attention for them (SAM-5, "CLEAR
    /// TASK SET function"). Returns when the aborted commands that change the unit have ended. A read-only
    /// nexus leaves other sessions alone.
    pub async fn clear_task_set(&self) {
        if !self.read_only {
            self.unit.clear_task_set(&self.member).await;
        }
    }

    /// Continues a nexus of a session that began while another server had the pool: its initiator is informed
    /// of what has changed, instead of a power-on condition.
    pub fn after_standby(&self, state: &StandbyState) {
        self.member.forget(UnitAttention::PowerOn);
        state.attentions.iter().for_each(|attention| self.note(*attention));
        self.note(UnitAttention::AccessState);
        if self.member.told_volatile.swap(state.told_volatile, Relaxed) != state.told_volatile {
            self.note(UnitAttention::ModeChanged);
        }
        if state.size != self.disk().size() {
            self.note(UnitAttention::CapacityChanged);
        }
    }

    /// Notes a unit attention for this nexus.
    pub fn note(&self, attention: UnitAttention) {
        self.member.note(attention);
    }
}

/// Whether a command requires the unit to be ready. Other commands describe the unit or concern reservations,
/// which are durable.
fn needs_medium(request: &Request) -> bool {
    use Request::*;
    match request {
        TestUnitReady | Read { .. } | Write { .. } | WriteAndVerify { .. } | Verify { .. } => true,
        OrWrite { .. } | CompareAndWrite { .. } | WriteSame { .. } | Unmap { .. } => true,
        GetLbaStatus { .. } | PreFetch { .. } | SynchronizeCache { .. } | StartStopUnit { .. } => true,
        ExtendedCopy { .. } | PopulateToken { .. } | WriteUsingToken { .. } => true,
        RequestSense { .. } | Inquiry { .. } | ReportLuns { .. } | ReadCapacity10 | ReadCapacity16 { .. } => {
            false
        }
        ModeSense { .. } | ModeSelect { .. } | PersistentReserveIn { .. } | PersistentReserveOut { .. } => {
            false
        }
        Reserve | Release | CopyStatus { .. } | CopyParameters { .. } | TokenInformation { .. } => false,
        TargetPortGroups { .. } | SupportedOpcodes { .. } | SupportedTaskManagement { .. } => false,
    }
}

/// Whether a command changes the blocks of the unit, or state that all nexuses of the unit share.
#[inline]
fn is_for_writers(request: &Request) -> bool {
    use Request::{ModeSelect, PersistentReserveOut, Reserve};
    request.changes() || matches!(request, PersistentReserveOut { .. } | ModeSelect { .. } | Reserve)
}
