//! Unit attentions: events that are reported to a nexus before its next command (SAM-5, "Unit attention
//! conditions").

use forebay_wire::scsi::{Code, Sense, SenseKey, codes};

/// An event that is reported to a nexus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum UnitAttention {
    /// The nexus is new.
    PowerOn,
    /// The logical unit was reset.
    Reset,
    /// The nexus was lost and established again.
    NexusLoss,
    /// Another nexus aborted the commands of this nexus.
    CommandsCleared,
    /// The size of the unit changed.
    CapacityChanged,
    /// Another nexus changed mode parameters.
    ModeChanged,
    /// Another nexus cleared the persistent reservation of this nexus.
    ReservationsPreempted,
    /// A persistent reservation was released.
    ReservationsReleased,
    /// Another nexus removed the registration of this nexus.
    RegistrationsPreempted,
    /// The LUN of the unit now belongs to another disk.
    InquiryChanged,
    /// The set of units that the initiator can use changed.
    LunsChanged,
    /// The store is nearly full.
    Threshold,
    /// The logical unit has become ready.
    Ready,
    /// The access state of the target port changed.
    AccessState,
}

impl UnitAttention {
    /// The additional sense code of the event.
    pub fn code(self) -> Code {
        match self {
            UnitAttention::PowerOn => codes::POWER_ON_OCCURRED,
            UnitAttention::Reset => codes::RESET_OCCURRED,
            UnitAttention::NexusLoss => codes::NEXUS_LOSS_OCCURRED,
            UnitAttention::CommandsCleared => codes::COMMANDS_CLEARED,
            UnitAttention::CapacityChanged => codes::CAPACITY_CHANGED,
            UnitAttention::ModeChanged => codes::MODE_PARAMETERS_CHANGED,
            UnitAttention::ReservationsPreempted => codes::RESERVATIONS_PREEMPTED,
            UnitAttention::ReservationsReleased => codes::RESERVATIONS_RELEASED,
            UnitAttention::RegistrationsPreempted => codes::REGISTRATIONS_PREEMPTED,
            UnitAttention::InquiryChanged => codes::INQUIRY_DATA_CHANGED,
            UnitAttention::LunsChanged => codes::REPORTED_LUNS_CHANGED,
            UnitAttention::Threshold => codes::THIN_PROVISIONING_THRESHOLD,
            UnitAttention::Ready => codes::MEDIUM_MAY_HAVE_CHANGED,
            UnitAttention::AccessState => codes::ACCESS_STATE_CHANGED,
        }
    }

    /// Whether the event takes precedence over a reservation conflict (SAM-5, "Status precedence").
    fn is_reset(self) -> bool {
        matches!(self, UnitAttention::PowerOn | UnitAttention::Reset | UnitAttention::NexusLoss)
    }

    /// Returns the event as sense data.
    pub fn sense(self) -> Sense {
        Sense::new(SenseKey::UnitAttention, self.code())
    }
}

/// Pending attentions of a nexus. Each is listed at most once, and attentions of resets are first.
#[derive(Debug, Default)]
pub(super) struct Attentions(Vec<UnitAttention>);

impl Attentions {
    /// All pending attentions, in the order in which they will be reported.
    pub fn all(&self) -> &[UnitAttention] {
        &self.0
    }

    /// Adds a unit attention to those that wait.
    pub fn note(&mut self, attention: UnitAttention) {
        if self.0.contains(&attention) {
            return;
        }
        let at = if attention.is_reset() { 0 } else { self.0.len() };
        self.0.insert(at, attention);
    }

    /// Takes the next attention; with `resets_only` only an attention that takes precedence over a
    /// reservation conflict.
    pub fn take(&mut self, resets_only: bool) -> Option<UnitAttention> {
        let first = *self.0.first()?;
        (first.is_reset() || !resets_only).then(|| self.0.remove(0))
    }

    /// Removes an attention that was reported to the initiator by other means.
    pub fn forget(&mut self, attention: UnitAttention) {
        self.0.retain(|a| *a != attention);
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
