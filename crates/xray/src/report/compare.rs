//! Two runs of one scenario: what became faster or slower, and which checks changed.

use super::chart::number;
use super::table::{Cell, Table, right};
use crate::run::record::{LoadRecord, RunRecord, TargetRecord};

/// Why two runs cannot be compared.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CompareError {
    /// The runs are of different scenarios.
    #[error("the runs are of different scenarios: '{0}' and '{1}'")]
    Scenario(String, String),
    /// The runs were scaled differently.
    #[error("the runs were scaled differently")]
    Scale,
    /// The runs have no target in common.
    #[error("the runs have no target in common")]
    Targets,
}

/// The result of a comparison.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// A line for each load.
    pub table: String,
    /// Changes of verdicts.
    pub changes: Vec<String>,
    /// What became worse by more than the threshold.
    pub regressions: Vec<String>,
}

/// Compares two runs; `threshold` is in percent.
pub fn compare(a: &RunRecord, b: &RunRecord, threshold: f64) -> Result<Comparison, CompareError> {
    if a.scenario != b.scenario {
        return Err(CompareError::Scenario(a.scenario.clone(), b.scenario.clone()));
    }
    if a.scale != b.scale {
        return Err(CompareError::Scale);
    }
    let pairs = pairs(a, b);
    if pairs.is_empty() {
        return Err(CompareError::Targets);
    }
    let mut table =
        Table::new(["target", "phase", "load", "requests/s", "was", "change", "p95 ms", "was", "change"]);
    let mut result = Comparison { table: String::new(), changes: Vec::new(), regressions: Vec::new() };
    for (x, y) in pairs {
        for (place, was, now) in loads(x, y) {
            let rate = change(was.iops, now.iops);
            let latency = change(was.latency.p95, now.latency.p95);
            let percent = |c: Option<f64>| c.map_or_else(String::new, |c| format!("{c:+.1} %"));
            table.add([
                Cell::new(&y.name),
                Cell::new(&place),
                Cell::new(&now.name),
                right(number(now.iops)),
                right(number(was.iops)),
                right(percent(rate)),
                right(number(now.latency.p95)),
                right(number(was.latency.p95)),
                right(percent(latency)),
            ]);
            let what = format!("{}, {place}, {}", y.name, now.name);
            if let Some(c) = rate.filter(|c| *c < -threshold) {
                result.regressions.push(format!("{what}: rate {c:+.1} %"));
            }
            if let Some(c) = latency.filter(|c| *c > threshold) {
                result.regressions.push(format!("{what}: p95 latency {c:+.1} %"));
            }
        }
        for verdict in &y.verdicts {
            let was = x.verdicts.iter().find(|v| v.what == verdict.what);
            let Some(was) = was.filter(|was| was.pass != verdict.pass) else { continue };
            let change = format!("{}: {}: {} was {}", y.name, verdict.what, verdict.word(), was.word());
            if verdict.pass == Some(false) {
                result.regressions.push(change.clone());
            }
            result.changes.push(change);
        }
    }
    result.table = table.to_string();
    Ok(result)
}

/// Targets with the same name; if each run has one target, these two.
fn pairs<'a>(a: &'a RunRecord, b: &'a RunRecord) -> Vec<(&'a TargetRecord, &'a TargetRecord)> {
    if let ([x], [y]) = (&a.targets[..], &b.targets[..]) {
        return vec![(x, y)];
    }
    let same = |y: &'a TargetRecord| Some((a.targets.iter().find(|x| x.name == y.name)?, y));
    b.targets.iter().filter_map(same).collect()
}

fn loads<'a>(x: &'a TargetRecord, y: &'a TargetRecord) -> Vec<(String, &'a LoadRecord, &'a LoadRecord)> {
    let mut found = Vec::new();
    for phase in &y.phases {
        let before = x.phases.iter().find(|p| (&p.name, p.depth) == (&phase.name, phase.depth));
        for load in &phase.loads {
            let was = before.and_then(|p| p.loads.iter().find(|l| l.name == load.name));
            if let Some(was) = was {
                found.push((format!("{}{}", phase.name, phase.at_depth()), was, load));
            }
        }
    }
    found
}

/// The change from `was` to `now` in percent.
fn change(was: f64, now: f64) -> Option<f64> {
    (was > 0.0 && now > 0.0).then(|| (now / was - 1.0) * 100.0)
}
