//! The judgement of each check: what is compared with what, and the figures.
//!
//! **The band.** Arrivals of a Poisson process of rate r vary: in one second, 95 % of the counts are within
//! r ± 1.96 √r. That is the published band of X-Ray. Two conditions have to hold: the mean rate is within the
//! band, and so is the share of the points that chance explains, 95 % less three standard errors of that
//! share. Points shorter than a second have the band of their length, longer ones the published one.

use super::record::{EventRecord, LoadRecord, PhaseRecord, Point, State, TargetRecord, Verdict};
use crate::scenario::{Check, Judge, Scenario};

const Z_95: f64 = 1.96;
/// Difference that a check without `within_percent` permits.
const DEFAULT_PERCENT: f64 = 10.0;

/// The band of a rate for points of this length in seconds: lower and upper end.
pub fn band(rate: f64, interval_s: f64) -> (f64, f64) {
    let spread = Z_95 * (rate / interval_s.min(1.0)).sqrt();
    ((rate - spread).max(0.0), rate + spread)
}

/// Judges all checks of a scenario.
pub(super) fn judge(scenario: &Scenario, target: &TargetRecord) -> Vec<Verdict> {
    let mut verdicts: Vec<Verdict> =
        scenario.checks.iter().flat_map(|c| one(scenario, c.get_ref(), target)).collect();
    if target.state != State::Complete {
        for verdict in &mut verdicts {
            // Part of a run shows faults, not their absence.
            if verdict.pass == Some(true) {
                verdict.pass = None;
                verdict.reason = format!("the run is not complete; so far: {}", verdict.reason);
            }
        }
    }
    verdicts
}

/// The verdicts of a check: one for each load and phase that it concerns.
fn one(scenario: &Scenario, check: &Check, target: &TargetRecord) -> Vec<Verdict> {
    let wanted = check.phase.as_ref().map(|p| p.get_ref().as_str());
    let phases: Vec<&PhaseRecord> =
        target.phases.iter().filter(|p| wanted.is_none_or(|name| name == p.name)).collect();
    match check.is {
        Judge::Errors => vec![errors(check, &phases)],
        Judge::Verified => vec![verified(check, &phases)],
        _ => {
            let expected = scenario.phases.iter().filter(|p| {
                wanted.is_none_or(|name| name == p.name.get_ref())
                    && check.load.as_ref().is_none_or(|l| p.loads.iter().any(|n| n.get_ref() == l.get_ref()))
            });
            expected.flat_map(|p| of_phase(check, p.name.get_ref(), &phases, target)).collect()
        }
    }
}

fn loads<'a>(check: &Check, phase: &'a PhaseRecord) -> Vec<&'a LoadRecord> {
    let wanted = check.load.as_ref().map(|l| l.get_ref().as_str());
    phase.loads.iter().filter(|l| wanted.is_none_or(|name| name == l.name)).collect()
}

fn of_phase(check: &Check, name: &str, phases: &[&PhaseRecord], target: &TargetRecord) -> Vec<Verdict> {
    let found: Vec<&&PhaseRecord> = phases.iter().filter(|p| p.name == name).collect();
    if found.is_empty() {
        let what = format!("{} in phase '{name}'", title(check));
        return vec![Verdict { what, pass: None, reason: "the phase did not run".to_owned() }];
    }
    let mut verdicts = Vec::new();
    for phase in found {
        let depth = phase.depth.map_or_else(String::new, |d| format!(", depth {d}"));
        let place = |load: &str| format!("{}: '{load}' in phase '{name}'{depth}", title(check));
        match check.is {
            Judge::Events => {
                let (pass, reason) = events(check, &phase.events);
                verdicts.push(Verdict { what: format!("{} in phase '{name}'", title(check)), pass, reason });
            }
            _ => {
                for load in loads(check, phase) {
                    let (pass, reason) = of_load(check, load, phase, target);
                    if check.is != Judge::Complete || load.ended.is_some() {
                        verdicts.push(Verdict { what: place(&load.name), pass, reason });
                    }
                }
            }
        }
    }
    verdicts
}

fn title(check: &Check) -> String {
    match check.is {
        Judge::Band => "rate within the 95 % band".to_owned(),
        Judge::Latency => {
            let below = check.below.map_or_else(String::new, |b| b.to_string());
            format!("p{} latency below {below}", check.percentile.unwrap_or(0.0))
        }
        Judge::NoTrend => "no trend".to_owned(),
        Judge::Errors => "no request failed".to_owned(),
        Judge::Verified => "data verified".to_owned(),
        Judge::Back => format!("back within {}", check.within.map_or_else(String::new, |w| w.to_string())),
        Judge::SameRate => {
            format!("rate as in phase '{}'", check.as_phase.as_ref().map_or("", |p| p.get_ref().as_str()))
        }
        Judge::Events => match check.within {
            Some(within) => format!("events succeed, each within {within}"),
            None => "events succeed".to_owned(),
        },
        Judge::Complete => "comes to its end".to_owned(),
    }
}

type Judged = (Option<bool>, String);

fn of_load(check: &Check, load: &LoadRecord, phase: &PhaseRecord, target: &TargetRecord) -> Judged {
    let percent = check.within_percent.unwrap_or(DEFAULT_PERCENT);
    match check.is {
        Judge::Band => in_band(load, phase),
        Judge::Latency => latency(check, load),
        Judge::NoTrend => no_trend(load, phase, percent),
        Judge::Back => back(check, load, phase),
        Judge::SameRate => same_rate(check, load, target, percent),
        Judge::Complete => (load.ended, format!("{} reads and {} writes", load.reads, load.writes)),
        Judge::Errors | Judge::Verified | Judge::Events => (None, String::new()),
    }
}

/// The points of the measured time that are complete.
fn measured<'a>(load: &'a LoadRecord, phase: &PhaseRecord) -> Vec<&'a Point> {
    let end = phase.measured_s + 0.01;
    load.series.iter().filter(|p| p.t > -0.01 && p.t + phase.interval_s <= end).collect()
}

fn in_band(load: &LoadRecord, phase: &PhaseRecord) -> Judged {
    let Some(rate) = load.target_rate else { return (None, "the load has no rate".to_owned()) };
    let points = measured(load, phase);
    if points.is_empty() {
        return (None, "nothing was measured".to_owned());
    }
    let (low, high) = band(rate, phase.interval_s);
    let inside = |p: &&&Point| (low..=high).contains(&(p.ops as f64 / phase.interval_s));
    let share = points.iter().filter(inside).count() as f64 / points.len() as f64;
    let needed = (0.95 - 3.0 * (0.95 * 0.05 / points.len() as f64).sqrt()).max(0.0);
    let (mean_low, mean_high) = band(rate, 1.0);
    let pass = (mean_low..=mean_high).contains(&load.iops) && share >= needed;
    let reason = format!(
        "mean {:.1}/s of {rate:.1}, band {mean_low:.1} to {mean_high:.1}; {:.1} % of {} points within {low:.1} to \
         {high:.1}, at least {:.1} % needed",
        load.iops,
        share * 100.0,
        points.len(),
        needed * 100.0
    );
    (Some(pass), reason)
}

fn latency(check: &Check, load: &LoadRecord) -> Judged {
    let (Some(percentile), Some(below)) = (check.percentile, check.below) else {
        return (None, String::new());
    };
    if load.reads + load.writes + load.unsent == 0 {
        return (None, "no request was answered".to_owned());
    }
    let found = load.percentiles.iter().find(|(p, _)| *p == percentile);
    let Some((_, ms)) = found else { return (None, "the percentile was not recorded".to_owned()) };
    let bound = below.0.as_secs_f64() * 1e3;
    let unsent = if load.unsent > 0 {
        format!("; due and not sent by the end: {}", load.unsent)
    } else {
        String::new()
    };
    (Some(*ms < bound), format!("p{percentile} {ms:.2} ms{unsent}"))
}

fn no_trend(load: &LoadRecord, phase: &PhaseRecord, percent: f64) -> Judged {
    let points = measured(load, phase);
    let quarter = points.len() / 4;
    if quarter < 2 {
        return (None, format!("{} points are too few for a trend", points.len()));
    }
    let (first, last) = (&points[..quarter], &points[points.len() - quarter..]);
    let rate = |points: &[&Point]| points.iter().map(|p| p.ops).sum::<u64>() as f64 / points.len() as f64;
    let median = |points: &[&Point]| {
        let mut values: Vec<f64> = points.iter().filter(|p| p.ops > 0).map(|p| p.p50).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(0.0)
    };
    let growth = |a: f64, b: f64| if a > 0.0 { (b / a - 1.0) * 100.0 } else { 0.0 };
    let rates = growth(rate(first), rate(last));
    let latencies = growth(median(first), median(last));
    // A load without a rate may become faster; the median may become shorter.
    let pass = rates >= -percent && latencies <= percent;
    let reason = format!(
        "from the first quarter to the last: rate {rates:+.1} %, median latency {latencies:+.1} %; at most {percent} % \
         worse permitted"
    );
    (Some(pass), reason)
}

fn back(check: &Check, load: &LoadRecord, phase: &PhaseRecord) -> Judged {
    let Some(within) = check.within.map(|w| w.0.as_secs_f64()) else { return (None, String::new()) };
    if phase.events.is_empty() {
        return (None, "no event happened".to_owned());
    }
    let mut longest: f64 = 0.0;
    for event in &phase.events {
        if let Some(error) = &event.error {
            return (Some(false), format!("{} failed: {error}", event.action));
        }
        // Answers that arrived after the start of the event, until all that waited for it can have arrived.
        let until = event.end_s + within + phase.interval_s;
        let after: Vec<&Point> = load
            .series
            .iter()
            .filter(|p| p.t + phase.interval_s > event.start_s && p.t < until && p.ops > 0)
            .collect();
        if event.end_s + phase.interval_s > phase.measured_s {
            return (None, format!("{} ended after the measured time", event.action));
        }
        if !load.series.iter().any(|p| p.t >= event.end_s && p.ops > 0) {
            return (Some(false), format!("no request was answered after {}", event.action));
        }
        longest = after.iter().map(|p| p.max / 1e3).fold(longest, f64::max);
    }
    if load.unanswered > 0 {
        return (Some(false), format!("{} requests were never answered", load.unanswered));
    }
    if load.unsent > 0 {
        // These requests waited until the end of the phase, which is part of the latency of the load.
        longest = longest.max(load.latency.max / 1e3);
    }
    (Some(longest <= within), format!("the longest request took {longest:.2} s"))
}

fn same_rate(check: &Check, load: &LoadRecord, target: &TargetRecord, percent: f64) -> Judged {
    let name = check.as_phase.as_ref().map_or("", |p| p.get_ref().as_str());
    let before = target.phases.iter().find(|p| p.name == name);
    let before = before.and_then(|p| p.loads.iter().find(|l| l.name == load.name));
    let Some(before) = before.filter(|l| l.iops > 0.0) else {
        return (None, format!("the phase '{name}' has no rate of this load"));
    };
    let change = (load.iops / before.iops - 1.0) * 100.0;
    let reason = format!(
        "{:.1}/s after {:.1}/s: {change:+.1} %, at most {percent} % permitted",
        load.iops, before.iops
    );
    // Chance alone makes short runs differ: three standard errors of the difference of two counts are
    // permitted.
    let chance = |l: &LoadRecord| 1.0 / ((l.reads + l.writes).max(1) as f64);
    let allowed = percent.max(300.0 * (chance(load) + chance(before)).sqrt());
    (Some(change.abs() <= allowed), reason)
}

fn events(check: &Check, events: &[EventRecord]) -> Judged {
    if events.is_empty() {
        return (None, "no event happened".to_owned());
    }
    if let Some(failed) = events.iter().find(|e| e.error.is_some()) {
        let error = failed.error.as_deref().unwrap_or_default();
        return (Some(false), format!("{} at {:.1} s failed: {error}", failed.action, failed.start_s));
    }
    let longest = events.iter().map(|e| e.end_s - e.start_s).fold(0.0, f64::max);
    let pass = check.within.is_none_or(|w| longest <= w.0.as_secs_f64());
    (Some(pass), format!("{} events, the longest took {longest:.2} s", events.len()))
}

fn errors(check: &Check, phases: &[&PhaseRecord]) -> Verdict {
    let all: Vec<&LoadRecord> = phases.iter().flat_map(|p| loads(check, p)).collect();
    let (errors, unanswered) = all.iter().fold((0, 0), |(e, u), l| (e + l.errors, u + l.unanswered));
    let requests: u64 = all.iter().map(|l| l.reads + l.writes).sum();
    let first = all.iter().find_map(|l| l.first_error);
    let reason = match first {
        Some(code) => {
            format!("{errors} failed, the first with error {code}{}", super::prepare::explain(code))
        }
        None if unanswered > 0 => format!("{unanswered} requests were never answered"),
        None => format!("{requests} requests were answered"),
    };
    let pass = (!all.is_empty()).then_some(errors == 0 && unanswered == 0);
    Verdict { what: title(check), pass, reason }
}

fn verified(check: &Check, phases: &[&PhaseRecord]) -> Verdict {
    let all: Vec<&LoadRecord> = phases.iter().flat_map(|p| loads(check, p)).collect();
    let sum = |f: fn(&LoadRecord) -> u64| all.iter().map(|l| f(l)).sum::<u64>();
    let (blocks, wrong, lost) = (sum(|l| l.verified), sum(|l| l.wrong), sum(|l| l.lost_unflushed));
    let mut reason = format!("{blocks} blocks verified, {wrong} wrong");
    if let Some(first) = all.iter().find_map(|l| l.first_wrong.as_deref()) {
        reason += &format!(", the first: {first}");
    }
    if lost > 0 {
        reason += &format!(
            "; {lost} had an earlier version, which is permitted: no flush had covered the last one"
        );
    }
    let pass = if wrong > 0 { Some(false) } else { (blocks > 0).then_some(true) };
    Verdict { what: title(check), pass, reason }
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
