//! Scenarios: what applications do, what breaks at the same time, and what is judged, as files.
//!
//! `file` has the format, `quantity` sizes and times, `parse` reads a file and `check` finds what is wrong
//! with it, `builtin` has the files that belong to the program, `scale` makes a scenario smaller. A
//! [`Scenario`] was checked: all names refer to something, and all ranges are within their disks.

mod builtin;
mod check;
mod file;
mod parse;
mod quantity;
mod scale;
#[cfg(test)]
mod tests;

pub use builtin::{Builtin, all, find, text};
pub use file::{Action, Check, Disk, Event, Judge, Load, Phase, Scenario, Script};
pub use parse::{ScenarioError, parse};
pub use quantity::{QuantityError, Size, Span};
pub use scale::{Scale, Scaled};

impl Scenario {
    /// The disk of a name, which the check has found.
    pub fn disk(&self, name: &str) -> &Disk {
        let found = self.disks.iter().find(|d| d.name.get_ref() == name);
        found.unwrap_or_else(|| unreachable!("the check found the disk {name}"))
    }

    /// Returns the disk of this name, or the disk of which it is a clone.
    pub fn origin(&self, name: &str) -> &Disk {
        let disk = self.disk(name);
        disk.clone_of.as_ref().map_or(disk, |of| self.disk(of.get_ref()))
    }

    /// Size of a disk.
    pub fn size(&self, name: &str) -> Size {
        self.origin(name).size.unwrap_or(Size(4096))
    }

    /// The load of a name, which the check has found.
    pub fn load(&self, name: &str) -> &Load {
        let found = self.loads.iter().find(|l| l.name.get_ref() == name);
        found.unwrap_or_else(|| unreachable!("the check found the load {name}"))
    }

    /// The phase of a name, which the check has found.
    pub fn phase(&self, name: &str) -> &Phase {
        let found = self.phases.iter().find(|p| p.name.get_ref() == name);
        found.unwrap_or_else(|| unreachable!("the check found the phase {name}"))
    }

    /// The events, without their positions.
    pub fn events(&self) -> impl Iterator<Item = &Event> {
        self.events.iter().map(|e| e.get_ref())
    }

    /// The events of a phase.
    pub fn events_of(&self, phase: &Phase) -> impl Iterator<Item = &Event> {
        self.events().filter(move |e| e.phase.get_ref() == phase.name.get_ref())
    }

    /// What a target has to support.
    pub fn actions(&self) -> Vec<Action> {
        let mut actions: Vec<Action> = self.events().map(|e| e.action).collect();
        if self.disks.iter().any(|d| d.clone_of.is_some()) {
            actions.push(Action::Clone);
        }
        actions.sort_unstable();
        actions.dedup();
        actions
    }
}

impl Load {
    /// The smallest block size; all others and all positions are multiples of it.
    pub fn grain(&self) -> u64 {
        self.blocks.keys().next().map_or(4096, |s| s.0)
    }

    /// First byte and end of the range on a disk of `size`.
    pub fn range(&self, size: u64) -> (u64, u64) {
        let start = self.offset.map_or(0, |o| o.0);
        (start, self.size.map_or(size, |s| start.saturating_add(s.0)))
    }
}

impl Action {
    /// Name of the event in a file, and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Action::Snapshot => "snapshot",
            Action::Clone => "clone",
            Action::Kill => "kill",
            Action::Pause => "pause",
            Action::Restart => "restart",
            Action::Upgrade => "upgrade",
            Action::Fill => "fill",
            Action::OsdKill => "osd_kill",
            Action::NodeKill => "node_kill",
            Action::NodeStart => "node_start",
            Action::Handover => "handover",
            Action::RollingUpgrade => "rolling_upgrade",
            Action::Reserve => "reserve",
            Action::CompareAndWrite => "compare_and_write",
        }
    }

    /// Whether another host changes metadata.
    pub fn locks(self) -> bool {
        matches!(self, Action::Reserve | Action::CompareAndWrite)
    }

    /// Whether clients lose their connections, and connect again.
    pub fn disconnects(self) -> bool {
        use Action::{Handover, Kill, NodeKill, Restart, RollingUpgrade};
        matches!(self, Kill | Restart | NodeKill | Handover | RollingUpgrade)
    }
}
