//! Smaller scenarios: sizes, rates and times by a factor each, with a record of what was changed.
//!
//! Block sizes, depths, numbers of disks, numbers of events and the bounds of checks stay the same, so a
//! scaled run has the shape of the full one and is judged by the same rules. It does not replace the full
//! one: caches hold more of a smaller disk, and less time shows less wear. The report prints the record for
//! this reason.

use std::time::Duration;

use super::check;
use super::file::{Disk, Event, Load, Phase, Scenario};
use super::quantity::{Size, Span};

/// Factors above 0 and at most 1.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Scale {
    /// Factor for sizes of disks.
    pub size: f64,
    /// Factor for rates of loads.
    pub rate: f64,
    /// Factor for times of phases.
    pub time: f64,
}

/// A scaled scenario.
#[derive(Debug, Clone)]
pub struct Scaled {
    /// The scenario after scaling.
    pub scenario: Scenario,
    /// The factors by which it was scaled.
    pub scale: Scale,
    /// What was changed, a line each; empty for a full run.
    pub changes: Vec<String>,
}

const MIN_DISK: u64 = 16 << 20;
/// Minimum size of the image of desktops: the phases read pieces of it.
const MIN_IMAGE: u64 = 128 << 20;
const MIB: u64 = 1 << 20;
const MIN_PHASE: Duration = Duration::from_secs(2);
const MIN_WARM_UP: Duration = Duration::from_secs(1);
const MIN_AWAY: Duration = Duration::from_millis(500);

impl Scale {
    /// The same factor for all.
    pub fn all(factor: f64) -> Scale {
        Scale { size: factor, rate: factor, time: factor }
    }

    /// Whether nothing is scaled.
    pub fn is_full(&self) -> bool {
        *self == Scale::all(1.0)
    }

    /// Scales a scenario. Fails if the result is not a valid scenario, such as ranges that became empty.
    pub fn apply(self, mut scenario: Scenario) -> Result<Scaled, String> {
        let mut changes = Vec::new();
        if self.size < 1.0 {
            self.sizes(&mut scenario, &mut changes);
        }
        if self.rate < 1.0 {
            for load in &mut scenario.loads {
                self.rate(load, &mut changes);
            }
        }
        if self.time < 1.0 {
            self.times(&mut scenario, &mut changes);
        }
        if (self.rate < 1.0 || self.time < 1.0) && scenario.loads.iter().any(|l| l.script.is_some()) {
            changes.push(format!(
                "scripts of desktops: {} of the time, {} of the requests",
                factor(self.time),
                factor(self.rate * self.time)
            ));
        }
        match check::check(&scenario) {
            Ok(()) => Ok(Scaled { scenario, scale: self, changes }),
            Err(mistake) => Err(format!("at this scale the scenario is not valid: {}", mistake.what)),
        }
    }

    fn sizes(&self, scenario: &mut Scenario, changes: &mut Vec<String>) {
        let factors: Vec<(String, f64)> = scenario
            .disks
            .iter_mut()
            .filter_map(|d| Some((d.name.get_ref().clone(), self.disk(d, changes)?)))
            .collect();
        let of = |name: &str| factors.iter().find(|(n, _)| n == name).map_or(1.0, |(_, f)| *f);
        let origins: Vec<String> =
            scenario.loads.iter().map(|l| scenario.origin(l.disk.get_ref()).name.get_ref().clone()).collect();
        for (load, origin) in scenario.loads.iter_mut().zip(origins) {
            range(load, of(&origin), changes);
        }
    }

    /// Scales a disk. Returns the factor, which is larger than requested for a small disk.
    fn disk(&self, disk: &mut Disk, changes: &mut Vec<String>) -> Option<f64> {
        let full = disk.size?;
        let least = if disk.desktop_image { MIN_IMAGE } else { MIN_DISK }.min(full.0);
        let size = Size((((full.0 as f64 * self.size) as u64).max(least)).next_multiple_of(MIB).min(full.0));
        if size != full {
            changes.push(format!("disk '{}': {size} instead of {full}", disk.name.get_ref()));
        }
        disk.size = Some(size);
        Some(size.0 as f64 / full.0 as f64)
    }

    fn rate(&self, load: &mut Load, changes: &mut Vec<String>) {
        if let Some(full) = load.rate {
            let rate = full * self.rate;
            load.rate = Some(rate);
            let name = load.name.get_ref();
            changes
                .push(format!("load '{name}': {rate:.3} requests a second for each disk instead of {full}"));
        }
    }

    fn times(&self, scenario: &mut Scenario, changes: &mut Vec<String>) {
        for phase in &mut scenario.phases {
            let factor = self.phase(phase, changes);
            let name = phase.name.get_ref();
            let events = scenario.events.iter_mut().map(toml::Spanned::get_mut);
            for event in events.filter(|e| e.phase.get_ref() == name) {
                moved(event, factor, self.time, changes);
            }
        }
    }

    /// Scales a phase. Returns the factor, which is larger than requested for a short phase.
    fn phase(&self, phase: &mut Phase, changes: &mut Vec<String>) -> f64 {
        let name = phase.name.get_ref().clone();
        let shorter = |full: Span, least: Duration| Span(full.0.mul_f64(self.time).max(least.min(full.0)));
        let mut applied = self.time;
        if let Some(full) = phase.duration {
            let time = shorter(full, MIN_PHASE);
            applied = time.0.as_secs_f64() / full.0.as_secs_f64();
            phase.duration = Some(time);
            changes.push(format!("phase '{name}': {time} instead of {full}"));
        }
        if let Some(full) = phase.warm_up {
            let time = shorter(full, MIN_WARM_UP);
            phase.warm_up = Some(time);
            changes.push(format!("phase '{name}': warm-up of at most {time} instead of {full}"));
        }
        applied
    }
}

/// Scales the range of a load; its ends are rounded alike, so that neighbours stay neighbours.
fn range(load: &mut Load, factor: f64, changes: &mut Vec<String>) {
    if factor >= 1.0 {
        return;
    }
    let round = |bytes: u64| ((bytes as f64 * factor / MIB as f64).round() as u64) * MIB;
    let (full_start, full_size) = (load.offset, load.size);
    let start = full_start.map_or(0, |o| round(o.0));
    load.offset = full_start.map(|_| Size(start)).filter(|s| s.0 > 0);
    if let Some(full) = full_size {
        let end = round(full_start.map_or(0, |o| o.0) + full.0);
        let size = Size(end.saturating_sub(start).max(MIB));
        load.size = Some(size);
        changes.push(format!("load '{}': a range of {size} instead of {full}", load.name.get_ref()));
    }
}

fn moved(event: &mut Event, factor: f64, time: f64, changes: &mut Vec<String>) {
    event.at = Span(event.at.0.mul_f64(factor));
    if let Some(full) = event.every {
        let every = Span(full.0.mul_f64(factor));
        changes.push(format!("{}: each {every} instead of each {full}", event.action.name()));
        event.every = Some(every);
    }
    if let Some(full) = event.length {
        let length = Span(full.0.mul_f64(time).max(MIN_AWAY.min(full.0)));
        changes.push(format!("{}: for {length} instead of {full}", event.action.name()));
        event.length = Some(length);
    }
}

fn factor(f: f64) -> String {
    format!("{:.4}", f).trim_end_matches('0').trim_end_matches('.').to_owned()
}
