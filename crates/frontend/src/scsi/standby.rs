//! A logical unit of a pool that another server has: its state is *standby* (SPC-4, 5.15.2.4.4).
//!
//! It answers the commands that describe the unit, from facts that the owner published, so that an initiator
//! recognizes the path before it needs it. It has neither the blocks nor the reservations of the unit: all
//! other commands, TEST UNIT READY among them, fail with NOT READY, LOGICAL UNIT NOT ACCESSIBLE, TARGET PORT
//! IN STANDBY STATE.
//!
//! READ CAPACITY is answered although SPC-4 does not require it: hosts read the size once, when they find the
//! path, and would use a path without a size only after a rescan. MODE SELECT and both PERSISTENT RESERVE
//! commands are not answered although SPC-4 lists them: their state is in the pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use forebay_wire::scsi::{
    BLOCK, Identity, ModeState, PortGroup, Request, Rules, Sense, SenseKey, VpdPage, capacity10, capacity16,
    codes, mode_sense, reports_cache, target_port_groups, task_management_functions,
};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::attention::{Attentions, UnitAttention};
use super::describe;
use super::port::{Port, Settings};
use super::response::Response;

/// What is known about the disk of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitFacts {
    /// UUID of the disk.
    pub uuid: [u8; 16],
    /// Size of the unit in bytes.
    pub size: u64,
    /// Writes to the disk are durable when they are acknowledged.
    pub write_through: bool,
}

/// The state of a unit that the initiator has observed, to be kept until this server has the pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StandbyState {
    /// The unit attentions that wait.
    pub attentions: Vec<UnitAttention>,
    /// The size in bytes that the initiator last saw.
    pub size: u64,
    /// The initiator was informed that the write cache is volatile.
    #[serde(default)]
    pub told_volatile: bool,
}

/// A unit in the state standby, as one session sees it.
pub struct StandbyUnit {
    port: Arc<Port>,
    settings: Settings,
    /// The size in bytes that the initiator last saw.
    size: AtomicU64,
    /// The initiator was informed that the write cache is volatile.
    told_volatile: AtomicBool,
    attentions: Mutex<Attentions>,
}

/// What a response depends on outside of the unit; it can change with each command.
pub struct Surroundings<'a> {
    /// What is known about the disk; `None` if the owner has removed the disk.
    pub facts: Option<UnitFacts>,
    /// Logical unit numbers that the initiator can use, in ascending order.
    pub luns: &'a [u16],
    /// The groups of the target's ports.
    pub groups: &'a [PortGroup],
}

impl StandbyUnit {
    /// A unit of a new session: its first command reports a power-on condition.
    pub fn new(port: Arc<Port>, settings: Settings, facts: &UnitFacts) -> StandbyUnit {
        let mut attentions = Attentions::default();
        attentions.note(UnitAttention::PowerOn);
        let unit = StandbyUnit {
            port,
            settings,
            size: AtomicU64::new(facts.size),
            told_volatile: AtomicBool::new(false),
            attentions: Mutex::new(attentions),
        };
        unit.told_volatile.store(unit.is_cache_volatile(facts), Relaxed);
        unit
    }

    /// Notes a unit attention.
    pub fn note(&self, attention: UnitAttention) {
        self.attentions.lock().note(attention);
    }

    /// The state of the unit that the initiator has observed.
    pub fn state(&self) -> StandbyState {
        StandbyState {
            attentions: self.attentions.lock().all().to_vec(),
            size: self.size.load(Relaxed),
            told_volatile: self.told_volatile.load(Relaxed),
        }
    }

    /// Answers a command to the unit.
    pub fn answer(&self, cdb: &[u8], around: &Surroundings<'_>) -> Response {
        let Some(facts) = around.facts else { return check(&standby()) };
        if self.size.swap(facts.size, Relaxed) != facts.size {
            self.note(UnitAttention::CapacityChanged);
        }
        // The state of the port is checked before the range.
        let decoded = Request::decode(cdb, &Rules { blocks: u64::MAX / u64::from(BLOCK) });
        let reports = !matches!(
            decoded,
            Ok(Request::Inquiry { .. } | Request::ReportLuns { .. } | Request::RequestSense { .. })
        );
        if reports && let Some(attention) = self.attentions.lock().take(false) {
            return check(&attention.sense());
        }
        match decoded {
            Ok(request) => self.perform(&request, &facts, around).unwrap_or_else(|sense| check(&sense)),
            Err(sense) => check(&sense),
        }
    }

    fn perform(
        &self,
        request: &Request,
        facts: &UnitFacts,
        around: &Surroundings<'_>,
    ) -> Result<Response, Sense> {
        let blocks = facts.size / u64::from(BLOCK);
        Ok(match *request {
            Request::RequestSense { descriptor, allocation } => {
                let sense = self.attentions.lock().take(false).map_or(standby(), UnitAttention::sense);
                Response::data(sense.encode(descriptor), allocation)
            }
            Request::Inquiry { page, allocation } => {
                let about = VpdPage {
                    identity: Identity { uuid: facts.uuid },
                    port: self.port.identity(),
                    volatile_cache: self.is_cache_volatile(facts),
                };
                describe::inquiry(page, &about, allocation)?
            }
            Request::ReportLuns { select, allocation } => {
                self.attentions.lock().forget(UnitAttention::LunsChanged);
                describe::luns(select, around.luns, allocation)
            }
            Request::ReadCapacity10 => Response::data(capacity10(blocks), u32::MAX),
            Request::ReadCapacity16 { allocation } => Response::data(capacity16(blocks), allocation),
            Request::ModeSense { allocation, .. } => {
                let write_back = self.is_cache_volatile(facts);
                let mode = ModeState { write_back, ..ModeState::default() };
                if reports_cache(request) {
                    self.told_volatile.store(write_back, Relaxed);
                }
                Response::data(mode_sense(request, &mode, self.settings.read_only, blocks)?, allocation)
            }
            Request::TargetPortGroups { allocation } => {
                Response::data(target_port_groups(around.groups), allocation)
            }
            Request::SupportedOpcodes { query, timeouts, allocation } => {
                describe::opcodes(query, timeouts, allocation)?
            }
            Request::SupportedTaskManagement { extended, allocation } => {
                Response::data(task_management_functions(extended), allocation)
            }
            _ => return Err(standby()),
        })
    }

    fn is_cache_volatile(&self, facts: &UnitFacts) -> bool {
        self.settings.write_back && !facts.write_through
    }
}

fn standby() -> Sense {
    Sense::new(SenseKey::NotReady, codes::STANDBY)
}

/// CHECK CONDITION with this sense data, in fixed format: mode parameters have their defaults here.
fn check(sense: &Sense) -> Response {
    Response::check(sense, false)
}

#[cfg(test)]
mod tests {
    use forebay_wire::scsi::{AccessState, Code, Status};

    use super::*;

    const FACTS: UnitFacts = UnitFacts { uuid: [7; 16], size: 1 << 20, write_through: false };
    const GROUPS: [PortGroup; 2] = [
        PortGroup { group: 1, state: AccessState::Optimized, relative_port: 5 },
        PortGroup { group: 2, state: AccessState::Standby, relative_port: 4101 },
    ];

    fn unit() -> StandbyUnit {
        let port = Port {
            initiator: "iqn.2026-11.example:host".into(),
            isid: [1; 6],
            target: "iqn.2026-11.example:disks".into(),
            tpgt: 2,
            relative_port: 4101,
            host_id: None,
        };
        StandbyUnit::new(Arc::new(port), Settings { lun: 3, read_only: false, write_back: true }, &FACTS)
    }

    fn send(unit: &StandbyUnit, cdb: &[u8]) -> Response {
        resized(unit, cdb, FACTS.size)
    }

    fn resized(unit: &StandbyUnit, cdb: &[u8], size: u64) -> Response {
        let facts = Some(UnitFacts { size, ..FACTS });
        unit.answer(cdb, &Surroundings { facts, luns: &[3], groups: &GROUPS })
    }

    #[track_caller]
    fn fails(response: &Response, key: u8, code: Code) {
        assert_eq!(response.status, Status::CheckCondition);
        assert_eq!((response.sense[2] & 15, Code(response.sense[12], response.sense[13])), (key, code));
    }

    const TEST_UNIT_READY: [u8; 6] = [0; 6];
    const INQUIRY: [u8; 6] = [0x12, 0, 0, 0, 96, 0];
    const IDENTIFICATION: [u8; 6] = [0x12, 1, 0x83, 0, 255, 0];
    const RTPG: [u8; 12] = [0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 0, 255, 0, 0];

    #[test]
    fn commands_that_describe_the_unit_are_answered() {
        let unit = unit();
        let inquiry = send(&unit, &INQUIRY);
        assert_eq!((inquiry.status, inquiry.data_in[0], inquiry.data_in[5] >> 4 & 3), (Status::Good, 0, 1));
        let luns = send(&unit, &[0xa0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 0, 0]);
        assert_eq!((luns.data_in.len(), luns.data_in[9]), (16, 3));
        fails(&send(&unit, &TEST_UNIT_READY), 6, codes::POWER_ON_OCCURRED);
        let page = send(&unit, &IDENTIFICATION).data_in;
        let has = |bytes: &[u8]| page.windows(bytes.len()).any(|some| some == bytes);
        assert!(has(&[0x51, 0x94, 0, 4, 0, 0, 0x10, 0x05]), "relative target port");
        assert!(has(&[0x51, 0x95, 0, 4, 0, 0, 0, 2]), "target port group");
        assert!(has(b"iqn.2026-11.example:disks,t,0x0002"));
        let groups = send(&unit, &RTPG).data_in;
        assert_eq!((groups.len(), groups[4], groups[16]), (28, 0, 2));
        let mut capacity = [0; 16];
        (capacity[0], capacity[1], capacity[13]) = (0x9e, 0x10, 32);
        assert_eq!(send(&unit, &capacity).data_in[..8], 2047u64.to_be_bytes());
        let caching = send(&unit, &[0x1a, 8, 8, 0, 255, 0]).data_in;
        assert_eq!(caching[6] & 4, 4, "a write cache is reported as by the owner");
        assert_eq!(send(&unit, &[0x03, 0, 0, 0, 18, 0]).data_in[2..14], {
            let mut sense = [0; 12];
            (sense[0], sense[5], sense[10], sense[11]) = (2, 10, 4, 0x0b);
            sense
        });
    }

    #[test]
    fn all_other_commands_fail_with_the_state() {
        let unit = unit();
        send(&unit, &TEST_UNIT_READY);
        let commands: [&[u8]; 9] = [
            &TEST_UNIT_READY,
            &[0x28, 0, 0, 0, 0, 0, 0, 0, 8, 0],
            &[0x28, 0, 0xff, 0, 0, 0, 0, 0, 8, 0],
            &[0x2a, 0, 0, 0, 0, 0, 0, 0, 8, 0],
            &[0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            &[0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0],
            &[0x5e, 0, 0, 0, 0, 0, 0, 0, 255, 0],
            &[0x5f, 0, 0, 0, 0, 0, 0, 0, 24, 0],
            &[0x15, 0x10, 0, 0, 12, 0],
        ];
        for cdb in commands {
            fails(&send(&unit, cdb), 2, codes::STANDBY);
        }
        fails(&send(&unit, &[0xff; 16]), 5, codes::INVALID_OPERATION_CODE);
        fails(&send(&unit, &[0x12, 1, 0xcc, 0, 255, 0]), 5, codes::INVALID_FIELD_IN_CDB);
        let removed = Surroundings { facts: None, luns: &[], groups: &GROUPS };
        fails(&unit.answer(&INQUIRY, &removed), 2, codes::STANDBY);
    }

    #[test]
    fn what_the_initiator_has_not_been_told_is_kept() {
        let unit = unit();
        assert_eq!(unit.state().attentions, [UnitAttention::PowerOn]);
        fails(&send(&unit, &TEST_UNIT_READY), 6, codes::POWER_ON_OCCURRED);
        fails(&resized(&unit, &TEST_UNIT_READY, 2 << 20), 6, codes::CAPACITY_CHANGED);
        unit.note(UnitAttention::LunsChanged);
        let state = unit.state();
        let attentions = vec![UnitAttention::LunsChanged];
        assert_eq!(state, StandbyState { attentions, size: 2 << 20, told_volatile: true });
    }
}
