//! A logical unit: the state that all sessions on a disk share.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::sync::{Arc, Weak};

use forebay_engine::{DiskHandle, Error, Result, Room};
use forebay_wire::scsi::{Access, BLOCK, Identity, ModeState};
use parking_lot::Mutex;

use super::attention::UnitAttention;
use super::member::{AbortTasks, Member};
use super::port::{Port, Settings};
use super::reserve::Reservations;
use super::tokens::{Tokens, UnitTokens};

/// Bits of [`LogicalUnit::flags`]: reasons to check a command more closely.
pub(super) const RESERVED: u32 = 1 << 0;
pub(super) const PROTECTED: u32 = 1 << 1;
pub(super) const HAS_TOKENS: u32 = 1 << 2;
pub(super) const NOT_READY: u32 = 1 << 3;

/// A disk that initiators use.
pub struct LogicalUnit {
    disk: Arc<DiskHandle>,
    identity: Identity,
    /// The size in bytes that nexuses last saw.
    pub(super) size: AtomicU64,
    /// One bit for each reason why commands need further checks before they run; almost always 0.
    flags: AtomicU32,
    descriptor_sense: AtomicBool,
    /// The store was low on room at the last check.
    pub(super) low: AtomicBool,
    pub(super) members: Mutex<Vec<Arc<Member>>>,
    pub(super) next_member: AtomicU64,
    pub(super) reservations: Mutex<Reservations>,
    /// The member that holds RESERVE.
    pub(super) reserver: Mutex<Option<u64>>,
    /// The encoded reservations that are stored with the disk. The lock is held during a change, so that
    /// changes are made one after another.
    pub(super) kept: tokio::sync::Mutex<Option<Vec<u8>>>,
    /// A reference to the unit itself, as long as there are registrations: they outlive the sessions that
    /// made them.
    held: Mutex<Option<Arc<LogicalUnit>>>,
    pub(super) tokens: UnitTokens,
    /// The tokens of all units of the server.
    pub(super) all_tokens: Arc<Tokens>,
}

impl LogicalUnit {
    pub(super) async fn open(disk: Arc<DiskHandle>, all_tokens: Arc<Tokens>) -> Result<LogicalUnit> {
        // The unit itself is no client.
        disk.set_clients(0);
        let kept = disk.reservations().await?;
        let reservations = match &kept {
            None => Reservations::default(),
            Some(bytes) => Reservations::decode(bytes)
                .ok_or_else(|| Error::Damaged(format!("the reservations of '{}'", disk.name())))?,
        };
        let reserved = if reservations.is_reserved() { RESERVED } else { 0 };
        let flags = reserved | if disk.check_ready().is_err() { NOT_READY } else { 0 };
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

    /// The disk of the unit.
    pub fn disk(&self) -> &Arc<DiskHandle> {
        &self.disk
    }

    /// The identity that initiators see.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Adds a nexus of a session. Its first command reports a power-on condition, unless the session was
    /// handed over by another process.
    pub(super) fn add_member(
        &self,
        port: Arc<Port>,
        settings: Settings,
        session: Weak<dyn AbortTasks>,
    ) -> Arc<Member> {
        let (lun, is_volatile) = (settings.lun, self.is_cache_volatile(settings.write_back));
        if let Some(member) = self.resume_member(&port, lun, &session) {
            if member.told_volatile.load(Relaxed) != is_volatile {
                member.note(UnitAttention::ModeChanged);
            }
            return member;
        }
        let id = self.next_member.fetch_add(1, Relaxed);
        let member = Arc::new(Member::new(id, port, lun, session));
        // The initiator reads the mode parameters after it has found the unit.
        member.told_volatile.store(is_volatile, Relaxed);
        member.note(UnitAttention::PowerOn);
        self.change_members(|members| members.push(member.clone()));
        member
    }

    /// Adds or removes nexuses. Each is a client of the disk, so that all lists show the same number.
    pub(super) fn change_members(&self, change: impl FnOnce(&mut Vec<Arc<Member>>)) {
        let mut members = self.members.lock();
        change(&mut members);
        self.disk.set_clients(members.len());
    }

    /// Connects a session that was handed over with the state of its nexus.
    fn resume_member(
        &self,
        port: &Arc<Port>,
        lun: u16,
        session: &Weak<dyn AbortTasks>,
    ) -> Option<Arc<Member>> {
        let mut members = self.members.lock();
        let waiting = members.iter_mut().find(|m| m.resumes && m.lun == lun && m.port.is(port))?;
        let resumed = Member::new(waiting.id, port.clone(), lun, session.clone());
        resumed.told_volatile.store(waiting.told_volatile.load(Relaxed), Relaxed);
        waiting.pending().into_iter().for_each(|attention| resumed.note(attention));
        *waiting = Arc::new(resumed);
        Some(waiting.clone())
    }

    /// Removes a nexus from the unit.
    pub(super) fn remove_member(&self, member: &Member) {
        self.change_members(|members| members.retain(|m| m.id != member.id));
        self.release(member.id);
    }

    /// Returns the reasons to check commands more closely.
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

    /// The current number of blocks. If it has changed, a unit attention is noted for all nexuses.
    #[inline]
    pub(super) fn blocks(&self) -> u64 {
        let size = self.disk.size();
        if size != self.size.load(Relaxed) && self.size.swap(size, AcqRel) != size {
            self.notify_others(None, UnitAttention::CapacityChanged);
        }
        size / u64::from(BLOCK)
    }

    /// Notes a unit attention for all nexuses, once, when the store becomes low on room (SBC-3, 4.7.3.8.2
    /// soft threshold).
    pub(super) fn note_room(&self) {
        let low = self.disk.room() != Room::Ok;
        if low != self.low.load(Relaxed) && self.low.swap(low, Relaxed) != low && low {
            self.notify_others(None, UnitAttention::Threshold);
        }
    }

    /// Notes a unit attention for all nexuses except `but`.
    pub(super) fn notify_others(&self, but: Option<u64>, attention: UnitAttention) {
        self.members.lock().iter().filter(|m| Some(m.id) != but).for_each(|m| m.note(attention));
    }

    /// Notes unit attentions for the nexuses of these ports, if they exist.
    pub(super) fn notify_ports(&self, attentions: &[(Arc<Port>, UnitAttention)]) {
        for (port, attention) in attentions {
            let members: Vec<_> = self.members.lock().iter().filter(|m| m.port.is(port)).cloned().collect();
            for member in members {
                member.note(*attention);
                // No lock is held during this call.
                if let Some(session) = member.session.upgrade() {
                    session.noted(member.lun, *attention);
                }
            }
        }
    }

    /// Aborts commands to this unit, and waits until the aborted commands that change the unit have ended.
    /// The commands are those of all nexuses except `but` for which `wanted` is true. Commands that arrive
    /// later are not aborted.
    pub(super) async fn abort_others(&self, but: u64, wanted: impl Fn(&Port) -> bool) {
        let members: Vec<_> =
            self.members.lock().iter().filter(|m| m.id != but && wanted(&m.port)).cloned().collect();
        let close = |m: &Arc<Member>| {
            let closed = m.gate.close();
            m.aborts.fetch_add(1, AcqRel);
            closed
        };
        let closed: Vec<_> = members.iter().map(close).collect();
        // No lock is held during these calls.
        for member in members {
            if let Some(session) = member.session.upgrade() {
                session.abort_tasks(member.lun);
            }
        }
        for gate in closed {
            gate.empty().await;
        }
    }

    /// Whether the unit is ready: writes that were answered are not lost, or an administrator has resumed the
    /// disk. When the unit has become ready, a unit attention is noted for all nexuses: the blocks may have
    /// changed (SPC-4, "Not ready to ready change").
    ///
    /// # Errors
    /// [`Error::MemoryLost`].
    #[cold]
    pub(super) fn check_ready(&self) -> Result<()> {
        self.disk.check_ready()?;
        if self.flags.fetch_and(!NOT_READY, AcqRel) & NOT_READY != 0 {
            self.notify_others(None, UnitAttention::Ready);
        }
        Ok(())
    }

    /// Mode parameters of a mapping with this `write_back`.
    pub(super) fn mode(&self, write_back: bool) -> ModeState {
        ModeState {
            descriptor_sense: self.descriptor_sense(),
            write_protect: self.flags() & PROTECTED != 0,
            write_back: self.is_cache_volatile(write_back),
        }
    }

    /// Whether a mapping with this `write_back` acknowledges writes before they are durable.
    pub(super) fn is_cache_volatile(&self, write_back: bool) -> bool {
        write_back && !self.disk.write_through()
    }

    pub(super) fn descriptor_sense(&self) -> bool {
        self.descriptor_sense.load(Relaxed)
    }

    pub(super) fn set_mode(&self, mode: &ModeState) {
        self.descriptor_sense.store(mode.descriptor_sense, Relaxed);
        self.set_flag(PROTECTED, mode.write_protect);
    }

    /// Revokes the tokens of a range that is about to change.
    pub(super) fn note_change(&self, offset: u64, len: u64) {
        if self.flags() & HAS_TOKENS != 0 {
            self.tokens.note_change(offset, len, || self.set_flag(HAS_TOKENS, false));
        }
    }

    /// Whether a command of `member` conflicts with a reservation.
    pub(super) fn conflicts(&self, member: &Member, access: Access) -> bool {
        let reserved_by_other = (*self.reserver.lock()).is_some_and(|id| id != member.id);
        if reserved_by_other && !matches!(access, Access::Always | Access::Release) {
            return true;
        }
        self.reservations.lock().conflicts(&member.port, access)
    }

    /// Executes RESERVE. Returns whether it succeeded.
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

    /// Executes RELEASE. It has no effect for a nexus that does not hold RESERVE.
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

    /// The port of the nexus that holds RESERVE.
    pub(super) fn reserver_port(&self) -> Option<Arc<Port>> {
        let reserver = *self.reserver.lock();
        let members = self.members.lock();
        members.iter().find(|m| Some(m.id) == reserver).map(|m| m.port.clone())
    }

    /// Replaces registrations and reservation, first on the store, then for commands. `kept` is the locked
    /// value of [`Self::kept`].
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

    pub(super) fn install(self: &Arc<Self>, new: Reservations) {
        {
            let mut reservations = self.reservations.lock();
            *reservations = new;
            self.set_flag(RESERVED, reservations.is_reserved() || self.reserver.lock().is_some());
        }
        self.hold_while_registered();
    }

    /// Holds the unit open if there are registrations; otherwise no longer holds it open.
    pub(super) fn hold_while_registered(self: &Arc<Self>) {
        let registered = !self.reservations.lock().is_empty();
        let before = std::mem::replace(&mut *self.held.lock(), registered.then(|| self.clone()));
        drop(before);
    }

    /// Records that registrations no longer hold the unit open.
    pub(super) fn release_hold(&self) {
        let before = self.held.lock().take();
        drop(before);
    }

    /// Executes CLEAR TASK SET: aborts commands of other sessions and notes a unit attention for them.
    pub(super) async fn clear_task_set(&self, by: &Member) {
        self.notify_others(Some(by.id), UnitAttention::CommandsCleared);
        self.abort_others(by.id, |_| true).await;
    }

    /// Executes LOGICAL UNIT RESET: ends RESERVE, resets mode parameters, aborts commands of other sessions,
    /// and notes a unit attention for all nexuses.
    pub(super) async fn reset(&self, by: &Member) {
        self.end_reserve(|_| true);
        self.set_mode(&ModeState::default());
        self.notify_others(None, UnitAttention::Reset);
        self.abort_others(by.id, |_| true).await;
    }
}
