//! What happens during a phase, and when. The main thread calls [`Conductor::advance`] often.

use std::sync::Mutex;
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use super::RunError;
use super::clock::Clock;
use super::prepare::{Disks, write_all};
use super::record::EventRecord;
use crate::device::Endpoint;
use crate::iscsi::{FIRST_RESERVED, IscsiError};
use crate::load::{Host, Lock};
use crate::scenario::{Action, Phase, Scenario};
use crate::targets::{Act, Place, System, TargetError};

/// Number of the initiator that changes metadata.
const OTHER_HOST: u16 = FIRST_RESERVED;
/// Mean delay of that host before it tries a lock again.
const BACKOFF: Duration = Duration::from_millis(1);
/// How long a server is away if the file does not specify it.
const DEFAULT_AWAY: Duration = Duration::from_secs(1);

/// A step of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Step {
    at: Duration,
    event: usize,
    action: Action,
    what: What,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum What {
    Act(Act),
    Fill(String),
    /// Another host works on the first disk of a kind for this time.
    Locks(String, Lock, Duration),
}

/// The steps of a phase, in order.
pub(super) fn timeline(scenario: &Scenario, phase: &Phase) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut event = 0;
    for e in scenario.events_of(phase) {
        for n in 0..e.times {
            let at = e.at.0 + e.every.map_or(Duration::ZERO, |d| d.0) * n;
            let disk = e.disk.as_ref().map_or_else(String::new, |d| d.get_ref().clone());
            let name = format!("xray-{event}");
            let back = at + e.length.map_or(DEFAULT_AWAY, |l| l.0);
            let whats = match e.action {
                Action::Snapshot => vec![(at, What::Act(Act::Snapshot(disk, name)))],
                Action::Clone => vec![(at, What::Act(Act::Clone(disk, name, e.clones)))],
                Action::Kill => vec![(at, What::Act(Act::Kill)), (back, What::Act(Act::Start))],
                Action::Pause => vec![(at, What::Act(Act::Pause)), (back, What::Act(Act::Continue))],
                Action::Restart => vec![(at, What::Act(Act::Restart))],
                Action::Upgrade => vec![(at, What::Act(Act::Upgrade))],
                Action::Fill => vec![(at, What::Fill(disk))],
                Action::Reserve => vec![(at, What::Locks(disk, Lock::Reserve, back - at))],
                Action::CompareAndWrite => vec![(at, What::Locks(disk, Lock::CompareAndWrite, back - at))],
                Action::OsdKill => {
                    vec![(at, What::Act(Act::OsdKill(e.osd))), (back, What::Act(Act::OsdStart(e.osd)))]
                }
                Action::NodeKill => vec![(at, What::Act(Act::NodeKill))],
                Action::NodeStart => vec![(at, What::Act(Act::NodeStart))],
                Action::Handover => vec![(at, What::Act(Act::Handover))],
                Action::RollingUpgrade => vec![(at, What::Act(Act::RollingUpgrade))],
            };
            steps.extend(whats.into_iter().map(|(at, what)| Step { at, event, action: e.action, what }));
            event += 1;
        }
    }
    steps.sort_by_key(|s| s.at);
    steps
}

/// What a thread of an event returns: the event, its end, and its figures.
type Working<'scope> = ScopedJoinHandle<'scope, (usize, Duration, Result<Option<String>, RunError>)>;

/// Makes the events of a phase; see the module documentation.
pub(super) struct Conductor<'a, 'scope> {
    steps: std::collections::VecDeque<Step>,
    system: &'a mut dyn System,
    pids: &'a Mutex<Vec<u32>>,
    disks: &'a Disks,
    /// Records, by the number of the event.
    records: Vec<EventRecord>,
    working: Vec<Working<'scope>>,
}

impl<'a, 'scope> Conductor<'a, 'scope> {
    pub fn new(
        steps: Vec<Step>,
        system: &'a mut dyn System,
        pids: &'a Mutex<Vec<u32>>,
        disks: &'a Disks,
    ) -> Conductor<'a, 'scope> {
        Conductor { steps: steps.into(), system, pids, disks, records: Vec::new(), working: Vec::new() }
    }

    /// Does what is due. The measured time began at `start`.
    pub fn advance<'env>(&mut self, scope: &'scope Scope<'scope, 'env>, clock: &'scope Clock, start: Duration)
    where
        'a: 'scope,
    {
        while self.steps.front().is_some_and(|s| clock.elapsed() >= start + s.at) && !clock.is_halted() {
            let Some(step) = self.steps.pop_front() else { return };
            match step.what.clone() {
                What::Act(act) => self.act(&step, &act, clock, start),
                What::Fill(kind) => {
                    self.record(&step, clock, start);
                    let disks = self.disks.get(&kind).cloned().unwrap_or_default();
                    let places: Vec<_> =
                        (0..).zip(&disks).map(|(n, _)| self.system.place(&kind, n)).collect();
                    self.working.push(scope.spawn(move || {
                        let written = places
                            .into_iter()
                            .zip(&disks)
                            .try_for_each(|(place, disk)| write_all(&place?, disk));
                        (step.event, clock.elapsed(), written.map(|()| None))
                    }));
                }
                What::Locks(kind, lock, length) => {
                    self.record(&step, clock, start);
                    let place = self.system.place(&kind, 0);
                    self.working.push(scope.spawn(move || {
                        let done =
                            place.map_err(RunError::from).and_then(|p| updates(&p, lock, length, clock));
                        (step.event, clock.elapsed(), done.map(Some))
                    }));
                }
            }
        }
    }

    fn record(&mut self, step: &Step, clock: &Clock, start: Duration) -> usize {
        let now = clock.elapsed().as_secs_f64() - start.as_secs_f64();
        if self.records.len() <= step.event {
            let none = |_| EventRecord {
                action: step.action.name().to_owned(),
                start_s: now,
                end_s: now,
                error: None,
                figures: None,
            };
            let missing = self.records.len()..=step.event;
            self.records.extend(missing.map(none));
        }
        step.event
    }

    fn act(&mut self, step: &Step, act: &Act, clock: &Clock, start: Duration) {
        let index = self.record(step, clock, start);
        // A killed server has no processes, and the sampler must not use their numbers.
        if matches!(act, Act::Kill | Act::Restart | Act::NodeKill | Act::RollingUpgrade)
            && let Ok(mut pids) = self.pids.lock()
        {
            pids.clear();
        }
        let done = self.system.act(act);
        if let Ok(mut pids) = self.pids.lock() {
            *pids = self.system.pids();
        }
        let record = &mut self.records[index];
        record.end_s = clock.elapsed().as_secs_f64() - start.as_secs_f64();
        if let Err(error) = done {
            record.error.get_or_insert(error.to_string());
        }
    }

    /// After the loads: continues what is paused, starts what is killed, and waits for threads of events.
    pub fn finish(&mut self, clock: &Clock, start: Duration) {
        while let Some(step) = self.steps.pop_front() {
            if let What::Act(act @ (Act::Start | Act::Continue | Act::OsdStart(_))) = &step.what
                && self.records.len() > step.event
            {
                self.act(&step, act, clock, start);
            }
        }
        for thread in std::mem::take(&mut self.working) {
            let Ok((event, end, result)) = thread.join() else { continue };
            if let Some(record) = self.records.get_mut(event) {
                record.end_s = end.as_secs_f64() - start.as_secs_f64();
                match result {
                    Ok(figures) => record.figures = figures,
                    Err(error) => record.error = Some(error.to_string()),
                }
            }
        }
    }

    pub fn into_records(self) -> Vec<EventRecord> {
        self.records
    }
}

/// Changes metadata as another host does, for a time.
fn updates(place: &Place, lock: Lock, length: Duration, clock: &Clock) -> Result<String, RunError> {
    let Endpoint::Iscsi(address) = &place.endpoint else {
        return Err(TargetError::Unsupported("a lock of SCSI").into());
    };
    let failed = |source: IscsiError| {
        RunError::Target(TargetError::Device { endpoint: place.endpoint.to_string(), source: source.into() })
    };
    let mut host = Host::connect(address, OTHER_HOST, lock, BACKOFF).map_err(failed)?;
    host.format().map_err(failed)?;
    let end = Instant::now() + length;
    let done = host.run(None, || Instant::now() >= end || clock.is_halted()).map_err(failed)?;
    Ok(format!("{} updates, the lock was held at {} attempts", done.done, done.conflicts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario;

    #[test]
    fn events_become_steps_in_order() {
        let builtin = scenario::find("server-killed").expect("is built in");
        let s = scenario::parse("t", &scenario::text(builtin)).expect("is valid");
        let steps = timeline(&s, s.phase("run"));
        let acts: Vec<_> = steps.iter().map(|s| (s.at.as_secs(), s.what.clone())).collect();
        assert_eq!(acts, [(600, What::Act(Act::Kill)), (601, What::Act(Act::Start))]);
        let builtin = scenario::find("snapshot-impact-standard").expect("is built in");
        let s = scenario::parse("t", &scenario::text(builtin)).expect("is valid");
        let steps = timeline(&s, s.phase("snapshots"));
        assert_eq!((steps.len(), steps[11].at.as_secs()), (12, 12 * 3600));
    }
}
