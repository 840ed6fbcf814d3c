//! Task management (RFC 7143, section 11.5).

use std::future::ready;

use forebay_wire::iscsi::{Lun, TaskFunction};

use super::command::Commands;
use super::link::CommandSlot;
use super::task::Task;
use crate::scsi::{NexusOwner as _, UnitAttention};

/// Responses to task management (RFC 7143, 11.6.1).
const FUNCTION_COMPLETE: u8 = 0;
const NO_TASK: u8 = 1;
const NO_LUN: u8 = 2;
const NO_REASSIGN: u8 = 4;
const NOT_SUPPORTED: u8 = 5;

/// Whether two LUNs name the same unit: a unit has one LUN in each addressing method (SAM-5, 4.7).
fn is_same(one: Lun, other: Lun) -> bool {
    one.number().is_some() && one.number() == other.number()
}

impl Commands {
    /// Executes a task management function and answers the request `tag`.
    pub fn manage(&self, function: TaskFunction, lun: Lun, tag: u32, referenced: u32, place: CommandSlot) {
        let tasks = &self.tasks;
        let answer = |place, response| tasks.manage(|_| false, tag, place, ready(response));
        let Some(luns) = &self.luns else { return answer(place, NO_LUN) };
        let unit = lun.number().and_then(|lun| luns.unit(lun));
        match (function, unit) {
            (TaskFunction::AbortTask, _) => {
                let is_meant = |task: &Task| task.tag == referenced && is_same(task.lun, lun);
                let exists = tasks.get(referenced).is_some_and(|task| is_meant(&task));
                let response = if exists { FUNCTION_COMPLETE } else { NO_TASK };
                tasks.manage(is_meant, tag, place, ready(response));
            }
            (TaskFunction::TargetWarmReset | TaskFunction::TargetColdReset, _) => {
                let units = luns.nexuses();
                let reset = async move {
                    for unit in units {
                        unit.reset().await;
                    }
                    FUNCTION_COMPLETE
                };
                tasks.manage(|_| true, tag, place, reset);
            }
            (TaskFunction::TaskReassign, _) => answer(place, NO_REASSIGN),
            (TaskFunction::Other(_), _) => answer(place, NOT_SUPPORTED),
            (function, None) => {
                // The unit belongs to a pool that another server has, so it has no commands in progress.
                let Some(unit) = lun.number().and_then(|lun| luns.standby_unit(lun)) else {
                    return answer(place, NO_LUN);
                };
                if let TaskFunction::LogicalUnitReset = function {
                    unit.note(UnitAttention::Reset);
                }
                answer(place, FUNCTION_COMPLETE);
            }
            (function, Some(unit)) => {
                let on_unit = async move {
                    match function {
                        TaskFunction::LogicalUnitReset => unit.reset().await,
                        TaskFunction::ClearTaskSet => unit.clear_task_set().await,
                        _ => {}
                    }
                    FUNCTION_COMPLETE
                };
                tasks.manage(|task| is_same(task.lun, lun), tag, place, on_unit);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_the_same_in_each_addressing_method() {
        let (peripheral, flat) = (Lun([0, 5, 0, 0, 0, 0, 0, 0]), Lun([0x40, 5, 0, 0, 0, 0, 0, 0]));
        assert!(is_same(peripheral, flat));
        assert!(!is_same(peripheral, Lun([0x40, 6, 0, 0, 0, 0, 0, 0])));
        let unknown = Lun([0xc0, 5, 0, 0, 0, 0, 0, 0]);
        assert!(!is_same(unknown, unknown));
    }
}
