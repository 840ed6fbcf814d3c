//! Logical units: what all sessions on a disk have in common.

use std::collections::HashMap;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Weak};

use forebay_engine::{Disk, Pool, Result, Room};
use forebay_wire::scsi::{Access, BLOCK, Identity, ModeState};
use parking_lot::Mutex;

use super::attention::{Attentions, UnitAttention};
use super::nexus::Nexus;
use super::reserve::Reservations;
use super::tokens::{Tokens, UnitTokens};
use super::underway::Gate;

/// An I_T nexus: an initiator port and a target port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Port {
    /// iSCSI name of the initiator.
    pub initiator: String,
    /// ISID of its session.
    pub isid: [u8; 6],
    /// iSCSI name of the target.
    pub target: String,
    /// Target portal group tag.
    pub tpgt: u16,
    /// Relative target port identifier.
    pub relative_port: u16,
}

impl Port {
    /// Whether it is the same nexus, which a new session may have again (RFC 7143, "SCSI architecture
    /// model").
    pub(super) fn is(&self, other: &Port) -> bool {
        (&self.initiator, self.isid, &self.target, self.tpgt)
            == (&other.initiator, other.isid, &other.target, other.tpgt)
    }
}

/// How a unit is mapped for an initiator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Logical unit number.
    pub lun: u16,
    /// Changes are refused.
    pub read_only: bool,
    /// Writes may be acknowledged before they are durable.
    pub write_back: bool,
}

/// The session that a nexus belongs to. Nothing is locked while these are called.
pub trait Session: Send + Sync {
    /// Logical unit numbers that the initiator may use, ascending.
    fn luns(&self) -> Vec<u16>;
    /// The session's nexuses with units that third-party copies may name.
    fn nexuses(&self) -> Vec<Arc<Nexus>>;
    /// Another nexus has all commands to a unit aborted: a reset, or PREEMPT AND ABORT. It waits until those are over
    /// that change something; so none of them may wait for an abort itself.
    fn abort_tasks(&self, lun: u16);
}

/// The logical units of a server.
#[derive(Default)]
pub struct Units {
    /// Held while a unit is opened, or its reservations are changed, which may wait for the store.
    units: tokio::sync::Mutex<OpenUnits>,
    tokens: Arc<Tokens>,
}

/// Units that are in use, by name of the disk.
#[derive(Default)]
pub(super) struct OpenUnits(HashMap<String, Weak<LogicalUnit>>);

impl OpenUnits {
    pub fn find(&self, disk: &str) -> Option<Arc<LogicalUnit>> {
        self.0.get(disk).and_then(Weak::upgrade)
    }
}

impl Units {
    /// No units.
    pub fn new() -> Units {
        Units::default()
    }

    /// The unit of a disk: the one that others use already, or a new one.
    ///
    /// # Errors
    /// Those of [`Pool::attach`], and of reading what is kept of its reservations.
    pub async fn open(&self, pool: &Arc<Pool>, disk: &str) -> Result<Arc<LogicalUnit>> {
        let mut units = self.units.lock().await;
        if let Some(unit) = units.find(disk) {
            return Ok(unit);
        }
        let unit = Arc::new(LogicalUnit::open(pool.attach(disk)?, self.tokens.clone()).await?);
        unit.hold_while_registered();
        units.0.retain(|_, unit| unit.strong_count() > 0);
        units.0.insert(disk.to_owned(), Arc::downgrade(&unit));
        Ok(unit)
    }

    /// The units that are in use; none is opened meanwhile.
    pub(super) async fn lock(&self) -> tokio::sync::MutexGuard<'_, OpenUnits> {
        self.units.lock().await
    }

    /// Disks of which `is_unit` does not say so are units no more: registrations do not hold them open longer. Sessions
    /// that use them go on until they end.
    pub async fn keep(&self, is_unit: impl Fn(&str) -> bool) {
        self.units.lock().await.0.retain(|disk, unit| {
            let stays = is_unit(disk);
            if !stays && let Some(unit) = unit.upgrade() {
                unit.let_go();
            }
            stays
        });
    }
}

impl Drop for Units {
    fn drop(&mut self) {
        self.units.get_mut().0.values().filter_map(Weak::upgrade).for_each(|unit| unit.let_go());
    }
}

/// Bits of [`LogicalUnit::flags`]: why a command has to be looked at more closely.
pub(super) const RESERVED: u32 = 1 << 0;
pub(super) const PROTECTED: u32 = 1 << 1;
pub(super) const HAS_TOKENS: u32 = 1 << 2;

/// A disk that initiators use.
pub struct LogicalUnit {
    disk: Arc<Disk>,
    identity: Identity,
    /// As last seen, in bytes.
    size: AtomicU64,
    /// Why a command has to be looked at more closely; 0 almost always.
    flags: AtomicU32,
    descriptor_sense: AtomicBool,
    /// The store was low on room when last looked at.
    low: AtomicBool,
    members: Mutex<Vec<Arc<Member>>>,
    next_member: AtomicU64,
    pub(super) reservations: Mutex<Reservations>,
    /// Who has RESERVE in force.
    reserver: Mutex<Option<u64>>,
    /// One change of registrations at a time; what is kept of them with the disk.
    pub(super) kept: tokio::sync::Mutex<Option<Vec<u8>>>,
    /// Itself, while there are registrations: those outlive the sessions that made them.
    held: Mutex<Option<Arc<LogicalUnit>>>,
    pub(super) tokens: UnitTokens,
    pub(super) all_tokens: Arc<Tokens>,
}

/// What a unit knows of a nexus.
pub(super) struct Member {
    pub id: u64,
    pub port: Arc<Port>,
    pub lun: u16,
    pub session: Weak<dyn Session>,
    /// There are attentions.
    pub alert: AtomicBool,
    /// Its commands that change what the unit holds.
    pub gate: Gate,
    attentions: Mutex<Attentions>,
}

impl Member {
    pub fn note(&self, attention: UnitAttention) {
        let mut attentions = self.attentions.lock();
        attentions.note(attention);
        self.alert.store(true, Release);
    }

    pub fn take(&self, resets_only: bool) -> Option<UnitAttention> {
        let mut attentions = self.attentions.lock();
        let taken = attentions.take(resets_only);
        self.alert.store(!attentions.is_empty(), Release);
        taken
    }

    pub fn forget(&self, attention: UnitAttention) {
        let mut attentions = self.attentions.lock();
        attentions.forget(attention);
        self.alert.store(!attentions.is_empty(), Release);
    }
}

impl LogicalUnit {
    async fn open(disk: Arc<Disk>, all_tokens: Arc<Tokens>) -> Result<LogicalUnit> {
        let kept = disk.reservations().await?;
        let reservations = match &kept {
            None => Reservations::default(),
            Some(bytes) => Reservations::decode(bytes).ok_or_else(|| {
                forebay_engine::Error::Damaged(format!("the reservations of '{}'", disk.name()))
            })?,
        };
        let flags = if reservations.is_reserved() { RESERVED } else { 0 };
        Ok(LogicalUnit {
            identity: Identity { uuid: disk.uuid() },
            size: AtomicU64::new(disk.size()),
            flags: AtomicU32::new(flags),
            descriptor_sense: AtomicBool::new(false),
            low: AtomicBool::new(false),
            members: Mutex::default(),
            next_member: AtomicU64::new(0),
            reservations: Mutex::new(reservations),
            reserver: Mutex::default(),
            kept: tokio::sync::Mutex::new(kept),
            held: Mutex::default(),
            tokens: UnitTokens::default(),
            all_tokens,
            disk,
        })
    }

    /// The disk.
    pub fn disk(&self) -> &Arc<Disk> {
        &self.disk
    }

    /// Who it is.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Begins the use of the unit by a session, whose first command will be told so.
    pub fn join(
        self: &Arc<Self>,
        port: Arc<Port>,
        settings: Settings,
        session: Weak<dyn Session>,
    ) -> Arc<Nexus> {
        let member = Arc::new(Member {
            id: self.next_member.fetch_add(1, Relaxed),
            port,
            lun: settings.lun,
            session,
            alert: AtomicBool::new(false),
            gate: Gate::default(),
            attentions: Mutex::default(),
        });
        member.note(UnitAttention::PowerOn);
        self.members.lock().push(member.clone());
        Arc::new(Nexus::new(self.clone(), member, settings))
    }

    /// Ends it.
    pub(super) fn leave(&self, member: &Member) {
        self.members.lock().retain(|m| m.id != member.id);
        self.release(member.id);
    }

    /// Why commands have to be looked at more closely.
    #[inline]
    pub(super) fn flags(&self) -> u32 {
        self.flags.load(Acquire)
    }

    pub(super) fn set_flag(&self, flag: u32, on: bool) {
        if on {
            self.flags.fetch_or(flag, AcqRel);
        } else {
            self.flags.fetch_and(!flag, AcqRel);
        }
    }

    /// Blocks as of now; who uses the unit is told when that is another number than before.
    #[inline]
    pub(super) fn blocks(&self) -> u64 {
        let size = self.disk.size();
        if size != self.size.load(Relaxed) && self.size.swap(size, AcqRel) != size {
            self.tell_others(None, UnitAttention::CapacityChanged);
        }
        size / u64::from(BLOCK)
    }

    /// Tells all nexuses, once, that the store has become low on room (SBC-3, 4.7.3.8.2 soft threshold).
    pub(super) fn note_room(&self) {
        let low = self.disk.room() != Room::Ok;
        if low != self.low.load(Relaxed) && self.low.swap(low, Relaxed) != low && low {
            self.tell_others(None, UnitAttention::Threshold);
        }
    }

    /// Tells all nexuses but one.
    pub(super) fn tell_others(&self, but: Option<u64>, attention: UnitAttention) {
        self.members.lock().iter().filter(|m| Some(m.id) != but).for_each(|m| m.note(attention));
    }

    /// Has the sessions, but for one's, of nexuses that are `wanted` abort their commands to this unit, and waits
    /// until none of those changes anything any more.
    pub(super) async fn abort_others(&self, but: u64, wanted: impl Fn(&Port) -> bool) {
        let members: Vec<_> =
            self.members.lock().iter().filter(|m| m.id != but && wanted(&m.port)).cloned().collect();
        let closed: Vec<_> = members.iter().map(|m| m.gate.close()).collect();
        // Nothing is locked while they are called.
        for member in members {
            if let Some(session) = member.session.upgrade() {
                session.abort_tasks(member.lun);
            }
        }
        for gate in closed {
            gate.empty().await;
        }
    }

    /// Tells the nexuses of these ports, if they are there.
    pub(super) fn tell_all(&self, attentions: &[(Arc<Port>, UnitAttention)]) {
        for (port, attention) in attentions {
            self.members.lock().iter().filter(|m| m.port.is(port)).for_each(|m| m.note(*attention));
        }
    }

    /// Mode parameters; `write_back` is that of a mapping.
    pub(super) fn mode(&self, write_back: bool) -> ModeState {
        ModeState {
            descriptor_sense: self.descriptor_sense(),
            write_protect: self.flags() & PROTECTED != 0,
            write_back,
        }
    }

    pub(super) fn descriptor_sense(&self) -> bool {
        self.descriptor_sense.load(Relaxed)
    }

    pub(super) fn set_mode(&self, mode: &ModeState) {
        self.descriptor_sense.store(mode.descriptor_sense, Relaxed);
        self.set_flag(PROTECTED, mode.write_protect);
    }

    /// Whether a command of `member` conflicts with a reservation.
    pub(super) fn conflicts(&self, member: &Member, access: Access) -> bool {
        let reserved_by_other = (*self.reserver.lock()).is_some_and(|id| id != member.id);
        if reserved_by_other && !matches!(access, Access::Always | Access::Release) {
            return true;
        }
        self.reservations.lock().conflicts(&member.port, access)
    }

    /// RESERVE; whether it could be had.
    pub(super) fn reserve(&self, member: u64) -> bool {
        let reservations = self.reservations.lock();
        let mut reserver = self.reserver.lock();
        if !reservations.is_empty() || reserver.is_some_and(|id| id != member) {
            return false;
        }
        *reserver = Some(member);
        self.set_flag(RESERVED, true);
        true
    }

    /// RELEASE; of a nexus that has not reserved it does nothing.
    pub(super) fn release(&self, member: u64) {
        self.end_reserve(|reserver| reserver == member);
    }

    pub(super) fn end_reserve(&self, which: impl Fn(u64) -> bool) {
        let reservations = self.reservations.lock();
        let mut reserver = self.reserver.lock();
        if reserver.is_some_and(which) {
            *reserver = None;
            self.set_flag(RESERVED, reservations.is_reserved());
        }
    }

    /// Replaces registrations and reservation: durably first, then visibly. `kept` is what [`Self::kept`] guards.
    pub(super) async fn keep_reservations(
        self: &Arc<Self>,
        kept: &mut Option<Vec<u8>>,
        new: Reservations,
    ) -> Result<()> {
        let to_keep = new.encode();
        if to_keep != *kept {
            self.disk.set_reservations(to_keep.as_deref()).await?;
            *kept = to_keep;
        }
        self.install(new);
        Ok(())
    }

    /// The port of the nexus that has RESERVE in force.
    pub(super) fn reserver_port(&self) -> Option<Arc<Port>> {
        let reserver = *self.reserver.lock();
        let members = self.members.lock();
        members.iter().find(|m| Some(m.id) == reserver).map(|m| m.port.clone())
    }

    fn install(self: &Arc<Self>, new: Reservations) {
        {
            let mut reservations = self.reservations.lock();
            *reservations = new;
            self.set_flag(RESERVED, reservations.is_reserved() || self.reserver.lock().is_some());
        }
        self.hold_while_registered();
    }

    fn hold_while_registered(self: &Arc<Self>) {
        let registered = !self.reservations.lock().is_empty();
        let before = std::mem::replace(&mut *self.held.lock(), registered.then(|| self.clone()));
        drop(before);
    }

    fn let_go(&self) {
        let before = self.held.lock().take();
        drop(before);
    }

    /// CLEAR TASK SET: commands of other sessions are aborted, and they are told.
    pub(super) async fn clear_task_set(&self, by: &Member) {
        self.tell_others(Some(by.id), UnitAttention::CommandsCleared);
        self.abort_others(by.id, |_| true).await;
    }

    /// LOGICAL UNIT RESET: RESERVE and mode parameters go, commands of other sessions are aborted, and everybody is
    /// told.
    pub(super) async fn reset(&self, by: &Member) {
        self.end_reserve(|_| true);
        self.set_mode(&ModeState::default());
        self.tell_others(None, UnitAttention::Reset);
        self.abort_others(by.id, |_| true).await;
    }
}
