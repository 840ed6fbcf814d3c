//! Published figures of virtual desktops, used to generate the load and for comparison: a test of Citrix PVS
//! 7.1 with Windows 7 and Login VSI Medium. The guest's view is that of its MCS baseline on a local disk; the
//! store's view is that of its best case, a RAM cache with overflow.
//!
//! The published store's view contains no reads of the image: PVS servers send it over the network from their
//! page caches. Forebay's figures include them.

use clap::ValueEnum;
use serde::Serialize;

/// A part of a desktop's day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// From power on to the logon screen.
    Boot,
    /// The user logs on.
    Logon,
    /// 45 minutes of office work.
    Steady,
    /// The logon of a user whose profile of 260 MB in 6,390 files is copied to the desktop.
    Profile,
    /// The 45 minutes after that.
    ProfileSteady,
}

impl Phase {
    /// Name of the phase in tables.
    pub fn name(self) -> &'static str {
        match self {
            Phase::Boot => "boot",
            Phase::Logon => "logon",
            Phase::Steady => "steady",
            Phase::Profile => "logon, profile",
            Phase::ProfileSteady => "steady, profile",
        }
    }

    /// Whether a profile is copied in this phase or an earlier phase.
    pub fn has_profile(self) -> bool {
        matches!(self, Phase::Profile | Phase::ProfileSteady)
    }

    /// Whether it is office work.
    pub fn is_steady(self) -> bool {
        matches!(self, Phase::Steady | Phase::ProfileSteady)
    }
}

/// The operations of a guest in a phase.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct GuestRow {
    /// Number of reads and writes.
    pub ops: u32,
    /// Share of reads, in percent.
    pub read_percent: u32,
    /// Duration of the phase in seconds.
    pub seconds: f64,
}

/// Number of files of a profile.
pub const PROFILE_FILES: u32 = 6_390;
/// Bytes of the files of a profile.
pub const PROFILE_BYTES: u64 = 260_000_000;

/// The operations of each of `desktops` guests, without copying a profile. One desktop has the row of one VM,
/// more desktops have that of five VMs. The duration is that of the fleet's row in the store's view, if
/// published.
pub fn guest(phase: Phase, desktops: u32) -> GuestRow {
    let alone = desktops == 1;
    let (ops, read_percent, seconds) = match phase {
        Phase::Boot if alone => (24_921, 86, 120.0),
        Phase::Boot => (25_272, 86, 360.0),
        Phase::Logon | Phase::Profile if alone => (4_390, 59, 25.0),
        Phase::Logon | Phase::Profile => (4_249, 48, 90.0),
        Phase::Steady | Phase::ProfileSteady if alone => (22_713, 35, 2700.0),
        Phase::Steady | Phase::ProfileSteady => (20_009, 27, 2700.0),
    };
    let seconds = match (phase, desktops) {
        (Phase::Boot, 11) => 214.0,
        (Phase::Logon, 11) => 180.0,
        (Phase::Profile, 11) => 963.0,
        (Phase::Boot, 150) => 480.0,
        (Phase::Logon, 150) => 1939.0,
        // The published row of 150 desktops has 30 minutes; here all run for 45.
        _ => seconds,
    };
    GuestRow { ops, read_percent, seconds }
}

/// The published operations of the store, per desktop.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct StoreRow {
    /// Number of reads and writes.
    pub ops: f64,
    /// Operations per second.
    pub iops: f64,
    /// Share of reads, in percent.
    pub read_percent: u32,
    /// The promised bound, as a fraction of `ops`.
    pub share: f64,
}

/// The published figures of the store; `None` if there is no row for this number of desktops.
pub fn store(phase: Phase, desktops: u32) -> Option<StoreRow> {
    let (ops, iops, read_percent) = match (phase, desktops) {
        (Phase::Boot, 11) => (536.0, 2.5, 56),
        (Phase::Logon, 11) => (101.0, 0.56, 9),
        (Phase::Steady, 11) => (290.0, 0.1, 1),
        (Phase::Profile, 11) => (4_390.0, 4.56, 5),
        (Phase::ProfileSteady, 11) => (2_301.0, 0.85, 2),
        (Phase::Boot, 150) => (655.0, 1.36, 37),
        (Phase::Logon, 150) => (1_144.0, 0.59, 2),
        (Phase::Steady, 150) => (972.0, 0.535, 1),
        _ => return None,
    };
    let share = if phase.has_profile() { 0.5 } else { 0.25 };
    Some(StoreRow { ops, iops, read_percent, share })
}

/// Promised bound for store operations per second and desktop in a steady phase.
pub const STEADY_IOPS: f64 = 0.2;
