//! One phase on one target: the threads of its loads, and what the main thread does at the same time.
//!
//! Servers are started by the main thread only: they end when the thread that started them ends.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Barrier, Mutex};
use std::thread::sleep;
use std::time::Duration;

use super::clock::Clock;
use super::drive::{Active, Kind, ScriptStream, Shared};
use super::events::{Conductor, timeline};
use super::prepare::Disks;
use super::progress::Progress;
use super::record::{LoadRecord, PhaseRecord, Sample};
use super::sample::{Sampled, sample};
use super::series::{Series, interval};
use super::stream::{Stream, StreamSpec};
use super::{RunError, interrupted};
use crate::device::{DeviceError, Needs, drive};
use crate::machine::CpuTimes;
use crate::scenario::{Action, Event, Load, Phase, Scaled, Scenario, Script};
use crate::targets::servers::StoreOps;
use crate::targets::{Place, System};
use crate::vdi::Phase as Part;
use crate::vdi::desk::{DEPTH, Desk, Family};
use crate::vdi::figures::guest;
use crate::vdi::script::Script as Steps;
use crate::vdi::shape::scaled;

const PATIENCE: Duration = Duration::from_secs(60);
const NAP: Duration = Duration::from_millis(10);
/// Maximum number of blocks of a stream that are read back.
const READ_BACK: usize = 1024;
/// Windows of a warm-up that are compared for the steady state.
const WINDOWS: u32 = 6;

/// What phases of a target share.
pub(super) struct Stage<'a> {
    pub scaled: &'a Scaled,
    pub disks: Disks,
    pub family: Option<Family<'a>>,
    pub seed: u64,
    /// Desktops between phases.
    pub desks: BTreeMap<String, Desk<'a>>,
    /// Percentiles that checks need.
    pub percentiles: Vec<f64>,
}

/// A stream before it is opened.
enum Planned<'a> {
    Load(StreamSpec, Place, Arc<super::disk::DiskState>),
    Script(Box<Option<Desk<'a>>>, (Steps<'a>, Family<'a>), Place, u32),
}

struct Plan<'a> {
    load: usize,
    disk: String,
    planned: Planned<'a>,
}

/// A failure of a thread: what failed, and where.
struct Failure {
    load: usize,
    disk: String,
    error: DeviceError,
}

/// Results of the threads.
struct Finished<'a> {
    series: Vec<Series>,
    desks: Vec<(String, Desk<'a>)>,
    failure: Option<Failure>,
}

/// The planned time of a phase; if the phase has several depths, of all depths together.
pub(super) fn planned(scenario: &Scaled, phase: &Phase) -> Duration {
    let depths = phase.depths.len().max(1) as u32;
    let one = phase.duration.map_or_else(|| script_time(scenario, phase), |d| d.0);
    (one + phase.warm_up.map_or(Duration::ZERO, |w| w.0)) * depths
}

fn script_time(scaled: &Scaled, phase: &Phase) -> Duration {
    let loads = phase.loads.iter().map(|l| scaled.scenario.load(l.get_ref()));
    let time = |load: &Load| {
        let part = part(load.script?);
        let desktops = scaled.scenario.disk(load.disk.get_ref()).count;
        Some(Duration::from_secs_f64(guest(part, desktops).seconds * scaled.scale.time))
    };
    loads.filter_map(time).max().unwrap_or(Duration::ZERO)
}

fn part(script: Script) -> Part {
    match script {
        Script::Boot => Part::Boot,
        Script::Logon => Part::Logon,
        Script::Steady => Part::Steady,
    }
}

/// Runs a phase. An error means that nothing was measured; a failure during the phase is in the second
/// result.
pub(super) fn run<'a>(
    stage: &mut Stage<'a>,
    phase: &Phase,
    depth: Option<u32>,
    system: &mut dyn System,
    progress: &mut Progress,
) -> Result<(PhaseRecord, Option<String>), RunError> {
    let scenario = &stage.scaled.scenario;
    let loads: Vec<&Load> = phase.loads.iter().map(|l| scenario.load(l.get_ref())).collect();
    let whole = planned(stage.scaled, phase) / phase.depths.len().max(1) as u32;
    let every = interval(whole.max(Duration::from_secs(1)));
    let plans = plan(stage, phase, &loads, depth, system)?;
    let store_before = counters(scenario, phase, system);
    let cpu_before = CpuTimes::now();
    let clock = Clock::new(phase.warm_up.is_none());
    let pids = Mutex::new(system.pids());
    let threads = plans.len().min(std::thread::available_parallelism().map_or(2, usize::from).max(2));
    let mut parts: Vec<Vec<Plan<'a>>> = (0..threads).map(|_| Vec::new()).collect();
    for (i, plan) in plans.into_iter().enumerate() {
        parts[i % threads].push(plan);
    }
    let (barrier, running, sampled_enough) =
        (Barrier::new(threads + 1), AtomicUsize::new(threads), AtomicBool::new(false));
    let (mut steady, mut measured_from) = (None, Duration::ZERO);
    let disks = &stage.disks;
    let (finished, sampled, events) = std::thread::scope(|scope| {
        let mut conductor = Conductor::new(timeline(scenario, phase), &mut *system, &pids, disks);
        let (clock, barrier, running, count) = (&clock, &barrier, &running, loads.len());
        let workers: Vec<_> = parts
            .into_iter()
            .map(|plans| scope.spawn(move || work(plans, count, every, clock, barrier, running)))
            .collect();
        barrier.wait();
        clock.begun();
        let sampler =
            scope.spawn(|| sample(clock, &pids, every.max(Duration::from_millis(500)), &sampled_enough));
        (steady, measured_from) = warm_up(phase, every, clock, running, progress);
        if let Some(duration) = phase.duration {
            clock.end_at(measured_from + duration.0);
        }
        let duration = phase.duration.map_or_else(|| script_time(stage.scaled, phase), |d| d.0);
        let planned = Some(duration).filter(|d| !d.is_zero()).map(|d| measured_from + d);
        while running.load(Relaxed) > 0 {
            conductor.advance(scope, clock, measured_from);
            show(progress, phase, clock, planned);
            sleep(NAP);
        }
        conductor.finish(clock, measured_from);
        sampled_enough.store(true, Relaxed);
        let finished: Vec<Finished<'a>> = workers.into_iter().filter_map(|w| w.join().ok()).collect();
        (finished, sampler.join().ok(), conductor.into_records())
    });
    let end = clock.end().map_or_else(|| clock.elapsed(), |end| end - clock.begun()).min(clock.elapsed());
    let outcome = collect(stage, &loads, finished, measured_from, end, every);
    let failure = outcome.failure;
    progress.phase_done(whole);
    let complete = failure.is_none() && !interrupted();
    let (samples, server_cpu_s, client_cpu_s) = shifted(sampled, measured_from);
    let used = server_cpu_s / (clock.elapsed().as_secs_f64() * cores()).max(0.001) * 100.0;
    let server_known = !pids.lock().map_or(true, |p| p.is_empty()) || server_cpu_s > 0.0;
    let record = PhaseRecord {
        name: phase.name.get_ref().clone(),
        depth,
        interval_s: every.as_secs_f64(),
        warm_up_s: measured_from.as_secs_f64(),
        steady,
        measured_s: end.saturating_sub(measured_from).as_secs_f64(),
        complete,
        loads: outcome.loads,
        events,
        samples,
        server_cpu_s: server_known.then_some(server_cpu_s),
        client_cpu_s,
        others_percent: (cpu_before.others_percent() - used).max(0.0),
        store: counters(scenario, phase, system).and_then(|after| after.since(&store_before?)),
    };
    Ok((record, failure))
}

fn cores() -> f64 {
    std::thread::available_parallelism().map_or(1.0, |n| usize::from(n) as f64)
}

fn show(progress: &mut Progress, phase: &Phase, clock: &Clock, planned: Option<Duration>) {
    let elapsed = clock.elapsed();
    let rate = clock.answered.load(Relaxed) as f64 / elapsed.as_secs_f64().max(0.001);
    progress.phase(phase.name.get_ref(), elapsed, planned, rate);
}

fn shifted(sampled: Option<Sampled>, start: Duration) -> (Vec<Sample>, f64, f64) {
    let Some(mut sampled) = sampled else { return (Vec::new(), 0.0, 0.0) };
    sampled.samples.iter_mut().for_each(|s| s.t -= start.as_secs_f64());
    (sampled.samples, sampled.server_cpu_s, sampled.client_cpu_s)
}

/// Counters of the store; `None` in a phase in which they start again with the server.
fn counters(scenario: &Scenario, phase: &Phase, system: &dyn System) -> Option<StoreOps> {
    let ends_server = |e: &Event| e.action.disconnects() || e.action == Action::Upgrade;
    if scenario.events_of(phase).any(ends_server) { None } else { system.store() }
}

/// The streams of a phase.
fn plan<'a>(
    stage: &mut Stage<'a>,
    phase: &Phase,
    loads: &[&Load],
    depth: Option<u32>,
    system: &dyn System,
) -> Result<Vec<Plan<'a>>, RunError> {
    let scenario = &stage.scaled.scenario;
    let events: Vec<_> = scenario.events_of(phase).collect();
    let reconnect = events.iter().any(|e| e.action.disconnects());
    let away = events.iter().filter_map(|e| e.length).map(|l| l.0).max().unwrap_or_default();
    let mut plans = Vec::new();
    for (index, load) in loads.iter().enumerate() {
        let kind = load.disk.get_ref();
        let disks = stage.disks.get(kind).cloned().unwrap_or_default();
        for (n, disk) in (0..).zip(disks) {
            let place = system.place(kind, n)?;
            let name = disk.name.clone();
            let planned = match load.script {
                Some(script) => {
                    let desk = stage.desks.remove(&name);
                    let Some(family) = stage.family else { continue };
                    Planned::Script(
                        Box::new(desk),
                        (steps(stage.scaled, family, load, script), family),
                        place,
                        n,
                    )
                }
                None => {
                    let mut spec = stream(scenario, load, depth, stage.seed);
                    spec.seed ^= (index as u64) << 48 ^ u64::from(n) << 16 ^ u64::from(depth.unwrap_or(0));
                    (spec.reconnect, spec.patience) = (reconnect, PATIENCE + away);
                    Planned::Load(spec, place, disk)
                }
            };
            plans.push(Plan { load: index, disk: name, planned });
        }
    }
    Ok(plans)
}

fn steps<'a>(scaled_run: &Scaled, family: Family<'a>, load: &Load, script: Script) -> Steps<'a> {
    let scale = scaled_run.scale;
    let part = part(script);
    let divisor = divisor(scale);
    let row = scaled(guest(part, scaled_run.scenario.disk(load.disk.get_ref()).count), divisor);
    Steps::new(family.shape, part, &row, 1.0 / scale.time, divisor)
}

/// Returns the number of operations of a script of which one is made.
pub(super) fn divisor(scale: crate::scenario::Scale) -> u32 {
    (1.0 / (scale.rate * scale.time)).round().clamp(1.0, 1000.0) as u32
}

fn stream(scenario: &Scenario, load: &Load, depth: Option<u32>, seed: u64) -> StreamSpec {
    let size = scenario.size(load.disk.get_ref()).0;
    let many = scenario.disk(load.disk.get_ref()).count as usize;
    StreamSpec {
        blocks: load.blocks.iter().map(|(size, weight)| (size.0 as u32, u64::from(*weight))).collect(),
        random_percent: load.random_percent.0.into(),
        read_percent: load.read_percent.0.into(),
        rate: load.rate,
        depth: depth.unwrap_or(load.depth),
        flush: load.flush.map(|f| f.0),
        durable: load.durable,
        once: load.once,
        range: load.range(size),
        version: None,
        reconnect: false,
        patience: PATIENCE,
        read_back: (4 * READ_BACK / many.max(4)).max(16),
        seed,
    }
}

/// Runs one thread: opens its streams, then drives them.
fn work<'a>(
    plans: Vec<Plan<'a>>,
    loads: usize,
    every: Duration,
    clock: &Clock,
    barrier: &Barrier,
    running: &AtomicUsize,
) -> Finished<'a> {
    let mut finished = Finished {
        series: (0..loads).map(|_| Series::new(every)).collect(),
        desks: Vec::new(),
        failure: None,
    };
    let mut active = Vec::with_capacity(plans.len());
    for plan in plans {
        let (load, disk) = (plan.load, plan.disk.clone());
        match open(plan) {
            Ok(stream) => active.push(stream),
            Err(error) => {
                clock.halt.store(true, Relaxed);
                finished.failure.get_or_insert(Failure { load, disk, error });
            }
        }
    }
    barrier.wait();
    if finished.failure.is_none() {
        let mut shared = Shared { series: &mut finished.series, clock };
        if let Err((number, error)) = drive(&mut active, &mut shared) {
            clock.halt.store(true, Relaxed);
            let (load, disk) = (active[number].load, active[number].disk.clone());
            finished.failure = Some(Failure { load, disk, error });
        }
    }
    for a in active {
        match a.kind {
            Kind::Load(stream) => finished.series[a.load].end(stream.has_ended()),
            Kind::Script(script) => finished.desks.push((a.disk, script.desk)),
        }
    }
    running.fetch_sub(1, Relaxed);
    finished
}

fn open(plan: Plan<'_>) -> Result<Active<'_>, DeviceError> {
    let kind = match plan.planned {
        Planned::Load(spec, place, disk) => Kind::Load(Box::new(Stream::open(spec, place, disk)?)),
        Planned::Script(desk, (steps, family), place, number) => {
            let mut desk = match *desk {
                Some(desk) => desk,
                None => Desk::new(place.open(Needs::all(DEPTH, PATIENCE))?, family, number, 1),
            };
            desk.begin(steps);
            Kind::Script(Box::new(ScriptStream::new(desk)))
        }
    };
    Ok(Active { load: plan.load, disk: plan.disk, kind })
}

/// Waits for the end of the warm-up, if there is one. Returns whether the rate is steady, and the start of
/// the measured time.
fn warm_up(
    phase: &Phase,
    every: Duration,
    clock: &Clock,
    running: &AtomicUsize,
    progress: &mut Progress,
) -> (Option<bool>, Duration) {
    let Some(longest) = phase.warm_up else { return (None, Duration::ZERO) };
    let window = (longest.0 / WINDOWS).max(Duration::from_millis(500));
    let (mut counts, mut steady) = (Vec::new(), phase.steady_percent.map(|_| false));
    while running.load(Relaxed) > 0 && !clock.is_halted() {
        let elapsed = clock.elapsed();
        show(progress, phase, clock, Some(longest.0));
        if elapsed >= window * (counts.len() as u32 + 1) {
            counts.push(clock.answered.load(Relaxed));
        }
        if let Some(percent) = phase.steady_percent {
            steady = Some(is_steady(&counts, percent));
        }
        if elapsed >= longest.0 || steady == Some(true) {
            break;
        }
        sleep(NAP);
    }
    // At the boundary of an interval, so that no interval is partly warm-up.
    let intervals = (clock.elapsed().as_secs_f64() / every.as_secs_f64()).ceil() as u32;
    let start = every * intervals;
    clock.measure_from(start);
    (steady, start)
}

/// Whether the last two windows differ by at most this, from the counts at the ends of all windows.
fn is_steady(counts: &[u64], percent: f64) -> bool {
    let [.., a, b, c] = counts else { return false };
    let (before, last) = ((b - a) as f64, (c - b) as f64);
    last > 0.0 && (last - before).abs() <= last * percent / 100.0
}

struct Outcome {
    loads: Vec<LoadRecord>,
    failure: Option<String>,
}

/// Adds up the results of all threads.
fn collect<'a>(
    stage: &mut Stage<'a>,
    loads: &[&Load],
    finished: Vec<Finished<'a>>,
    start: Duration,
    end: Duration,
    every: Duration,
) -> Outcome {
    let mut all: Vec<Series> = loads.iter().map(|_| Series::new(every)).collect();
    let mut failure = None;
    for part in finished {
        all.iter_mut().zip(part.series).for_each(|(mine, theirs)| mine.add(theirs));
        stage.desks.extend(part.desks);
        if let Some(f) = part.failure {
            failure.get_or_insert_with(|| {
                format!("load '{}' on {}: {}", loads[f.load].name.get_ref(), f.disk, f.error)
            });
        }
    }
    let scenario = &stage.scaled.scenario;
    let seconds = end.saturating_sub(start).as_secs_f64().max(1e-9);
    let record = |(load, series): (&&Load, Series)| {
        let disks = scenario.disk(load.disk.get_ref()).count;
        let counts = series.counts;
        LoadRecord {
            name: load.name.get_ref().clone(),
            disks,
            target_rate: load.rate.map(|r| r * f64::from(disks)),
            reads: counts.reads,
            writes: counts.writes,
            bytes: counts.bytes(),
            flushes: counts.flushes,
            iops: counts.ops() as f64 / seconds,
            mib_s: counts.bytes() as f64 / seconds / f64::from(1 << 20),
            latency: series.latency(),
            percentiles: stage.percentiles.iter().map(|p| (*p, series.percentile_ms(*p))).collect(),
            unsent: series.unsent,
            errors: counts.errors,
            first_error: counts.first_error,
            unanswered: series.unanswered,
            reconnects: series.reconnects,
            conflicts: counts.conflicts,
            verified: counts.verified,
            wrong: counts.wrong,
            first_wrong: series.first_wrong.clone(),
            lost_unflushed: series.lost_unflushed,
            ended: (load.once || load.script.is_some()).then_some(series.ended.1 == 0),
            series: series.points(start, end),
        }
    };
    Outcome { loads: loads.iter().zip(all).map(record).collect(), failure }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_steady_when_two_windows_are_alike() {
        assert!(!is_steady(&[100, 200], 5.0), "one window");
        assert!(!is_steady(&[0, 100, 300], 5.0));
        assert!(is_steady(&[0, 100, 300, 504], 5.0));
        assert!(!is_steady(&[0, 0, 0], 5.0), "nothing is answered");
    }
}
