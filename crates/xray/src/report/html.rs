//! The report as one HTML file: style and charts are inside, and nothing is loaded.

use std::fmt::Write;

use super::chart::{Axis, Chart, Line, Mark, escape, number};
use super::rows::OTHERS_MAX_PERCENT;
use super::table::{Cell, Table, right};
use super::tables::{Of, figures};
use crate::run::band;
use crate::run::record::{LoadRecord, PhaseRecord, Point, RunRecord, TargetRecord, Verdict};

const STYLE: &str = include_str!("style.css");
/// Explains the word for checks that were not judged.
const OPEN: &str = "A check is <b>open</b> if it could not be judged: the target did not run to its end, or the phase has too \
                    few measurements. The reason is next to it.";
/// Explains the shaded part of a chart.
const BAND: &str = "<p class=\"soft\">95 % band: if requests arrive at random at the wanted rate, 95 of 100 intervals are inside. \
                    More points outside mean that the target did not keep the rate.</p>\n";
/// Number of colours.
const STYLES: usize = 8;

/// The page. Writing to a string cannot fail.
pub fn html(run: &RunRecord) -> String {
    let title = escape(&run.title);
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{title}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n<p>{}</p>\n",
        escape(&run.about.replace('\n', " "))
    );
    summary(&mut out, run);
    for (name, depths) in phases(run) {
        let _ = writeln!(out, "<section class=\"phase\">\n<h2>Phase '{}'</h2>", escape(&name));
        legend(&mut out, run);
        if depths {
            sweep(&mut out, run, &name);
        } else {
            over_time(&mut out, run, &name);
        }
        figures(&mut out, &of_phase(run, &name));
        out.push_str("</section>\n");
    }
    about(&mut out, run);
    out.push_str("</body>\n</html>\n");
    out
}

/// The phases of all targets, and whether they are sweeps over depths.
fn phases(run: &RunRecord) -> Vec<(String, bool)> {
    let mut found: Vec<(String, bool)> = Vec::new();
    for phase in run.targets.iter().flat_map(|t| &t.phases) {
        if !found.iter().any(|(name, _)| name == &phase.name) {
            found.push((phase.name.clone(), phase.depth.is_some()));
        }
    }
    found
}

fn summary(out: &mut String, run: &RunRecord) {
    if !run.complete {
        out.push_str(
            "<p class=\"banner\"><b>Partial results.</b> At least one target did not run to its end: see the state \
             of each below.</p>\n",
        );
    }
    if !run.scale.is_full() {
        let s = run.scale;
        let _ = writeln!(
            out,
            "<p class=\"banner\"><b>Scaled.</b> Sizes x {}, rates x {}, times x {}: see <a href=\"#scaled\">what was \
             scaled</a>. The figures are not those of the full scenario.</p>",
            number(s.size),
            number(s.rate),
            number(s.time)
        );
    }
    let others = run.targets.iter().flat_map(|t| &t.phases).map(|p| p.others_percent).fold(0.0, f64::max);
    if others > OTHERS_MAX_PERCENT {
        let _ = writeln!(
            out,
            "<p class=\"banner\"><b>The machine was not quiet.</b> Other processes used up to {others:.0} % of its CPU \
             during a phase: rates and latencies have little meaning.</p>"
        );
    }
    let _ = writeln!(out, "<p class=\"result\"><b>Result.</b> {}</p>", escape(&result(run)));
    legend(out, run);
    out.push_str("<h2>Summary</h2>\n");
    let mut table = Table::new(["target", "version", "state", "checks passed", "failed", "open"]);
    for target in &run.targets {
        let count = |pass| target.verdicts.iter().filter(|v| v.pass == pass).count();
        let failed = count(Some(false));
        table.add([
            Cell::new(&target.name),
            Cell::new(&target.version),
            Cell::new(&target.state),
            right(count(Some(true)).to_string()),
            right(failed.to_string()).class(if failed > 0 { "n fail" } else { "n" }),
            right(count(None).to_string()),
        ]);
    }
    out.push_str(&table.html());
    let title = "Results: requests per second, MiB/s, 95th percentile of the latency";
    of_targets(out, run, title, |table| results(table, run));
    of_targets(out, run, "Checks", |table| checks(table, run));
    let _ = writeln!(out, "<p class=\"soft\">{OPEN}</p>");
}

/// The result of a run in one sentence for each target.
fn result(run: &RunRecord) -> String {
    let sentences: Vec<String> =
        run.targets.iter().map(|target| result_of(&target.name, &target.verdicts)).collect();
    if sentences.is_empty() { "No target was measured.".to_owned() } else { sentences.join(" ") }
}

fn result_of(name: &str, verdicts: &[Verdict]) -> String {
    let count = |pass| verdicts.iter().filter(|v| v.pass == pass).count();
    let (all, failed, open) = (verdicts.len(), count(Some(false)), count(None));
    let unknown = if open > 0 { format!("; {open} could not be judged") } else { String::new() };
    match verdicts.iter().find(|v| v.pass == Some(false)) {
        _ if all == 0 => format!("{name} has no checks: compare the figures."),
        None if open == 0 => format!("{name} passed all {all} checks."),
        None => format!("{name} failed none of {all} checks{unknown}."),
        Some(first) => format!("{name} failed {failed} of {all} checks{unknown}. The first: {}.", first.what),
    }
}

/// A table with a column for each target.
fn of_targets(out: &mut String, run: &RunRecord, title: &str, add: impl FnOnce(&mut Table)) {
    let mut table = Table::new([""].into_iter().chain(run.targets.iter().map(|t| t.name.as_str())));
    add(&mut table);
    let _ = write!(out, "<h3>{title}</h3>\n{}", table.html());
}

/// Adds one line for each load of each phase; of a sweep, the depth with the highest rate.
fn results(table: &mut Table, run: &RunRecord) {
    for (name, _) in phases(run) {
        for load in load_names(&of_phase(run, &name)) {
            let best = |target: &TargetRecord| {
                let phases = target.phases.iter().filter(|p| p.name == name);
                let found = phases.filter_map(|p| Some((p, p.loads.iter().find(|l| l.name == load)?)));
                let Some((p, l)) = found.max_by(|a, b| a.1.iops.total_cmp(&b.1.iops)) else {
                    return Cell::new("not measured");
                };
                let latency = if l.reads + l.writes > 0 { number(l.latency.p95) } else { "no".to_owned() };
                let (iops, mib) = (number(l.iops), number(l.mib_s));
                Cell::new(format!("{iops}/s, {mib} MiB/s, {latency} ms{}", p.at_depth()))
            };
            table.add([Cell::new(format!("{name}: {load}"))].into_iter().chain(run.targets.iter().map(best)));
        }
    }
}

fn checks(table: &mut Table, run: &RunRecord) {
    let mut checks: Vec<&str> = Vec::new();
    for verdict in run.targets.iter().flat_map(|t| &t.verdicts) {
        if !checks.contains(&verdict.what.as_str()) {
            checks.push(&verdict.what);
        }
    }
    for what in checks {
        let cell = |target: &TargetRecord| match target.verdicts.iter().find(|v| v.what == what) {
            Some(verdict) => {
                let class = verdict.pass.map_or("none", |pass| if pass { "pass" } else { "fail" });
                Cell::new(&verdict.reason).badge(class, verdict.word())
            }
            None => Cell::new("").badge("none", "open"),
        };
        table.add([Cell::new(what)].into_iter().chain(run.targets.iter().map(cell)));
    }
}

fn legend(out: &mut String, run: &RunRecord) {
    out.push_str("<div class=\"legend\">");
    for (i, target) in run.targets.iter().enumerate() {
        let _ = write!(
            out,
            "<span><svg viewBox=\"0 0 34 10\"><path class=\"line c{}\" d=\"M0 5H34\"/></svg>{}</span>",
            i % STYLES,
            escape(&target.name)
        );
    }
    out.push_str("</div>\n");
}

/// The records of a phase: the number of the target's style, and the phase.
fn of_phase<'a>(run: &'a RunRecord, name: &str) -> Vec<Of<'a>> {
    let targets = run.targets.iter().enumerate();
    targets
        .flat_map(|(i, t)| t.phases.iter().filter(|p| p.name == name).map(move |p| (i % STYLES, t, p)))
        .collect()
}

fn load_names(records: &[Of<'_>]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for load in records.iter().flat_map(|(_, _, p)| &p.loads) {
        if !names.contains(&load.name) {
            names.push(load.name.clone());
        }
    }
    names
}

fn over_time(out: &mut String, run: &RunRecord, name: &str) {
    let records = of_phase(run, name);
    let longest = |of: fn(&PhaseRecord) -> f64| records.iter().map(|(_, _, p)| of(p)).fold(0.0, f64::max);
    let span = Some((-longest(|p| p.warm_up_s), longest(|p| p.measured_s)));
    for load in load_names(&records) {
        let of = |p: &PhaseRecord| p.loads.iter().find(|l| l.name == load).cloned();
        let found: Vec<(usize, &PhaseRecord, LoadRecord)> =
            records.iter().filter_map(|(i, _, p)| Some((*i, *p, of(p)?))).collect();
        let line = |value: fn(&Point, f64) -> Option<f64>, thin: bool| -> Vec<Line> {
            let points = |(_, phase, load): &(usize, &PhaseRecord, LoadRecord)| -> Vec<Option<(f64, f64)>> {
                // The last interval may be partial, and is not comparable with the others.
                let (each, end) = (phase.interval_s, phase.measured_s + 0.01);
                let whole = load.series.iter().filter(|p| p.t + each <= end);
                whole.map(|p| value(p, each).map(|v| (p.t + each / 2.0, v))).collect()
            };
            let line = |f: &(usize, &PhaseRecord, LoadRecord)| Line {
                style: f.0,
                thin,
                points: points(f),
                labels: Vec::new(),
            };
            found.iter().map(line).collect()
        };
        let rate = found.iter().find_map(|(_, p, l)| Some((l.target_rate?, p.interval_s)));
        let chart = |title: String, unit, lines, band, log| Chart {
            title,
            unit,
            horizontal: "time since the start of the measurement; before 0: warm-up",
            axis: Axis::Time,
            span,
            lines,
            band,
            marks: marks(&records),
            log,
        };
        let with_band = if rate.is_some() { "; shaded: the 95 % band of the wanted rate" } else { "" };
        let rates = chart(
            format!("{load}: requests per second{with_band}"),
            "1/s",
            line(|p, each| Some(p.ops as f64 / each), false),
            rate.map(|(rate, each)| band(rate, each)),
            false,
        );
        let median = |p: &Point, _: f64| Some(p.p50).filter(|v| *v > 0.0);
        let mut latencies = line(|p, _| Some(p.p95).filter(|v| *v > 0.0), false);
        latencies.extend(line(median, true));
        let latency =
            chart(format!("{load}: latency, 95th percentile, thin: median"), "ms", latencies, None, true);
        let tail = chart(
            format!("{load}: latency, 99th percentile"),
            "ms",
            line(|p, _| Some(p.p99).filter(|v| *v > 0.0), false),
            None,
            true,
        );
        out.push_str(&rates.svg().unwrap_or_default());
        if rate.is_some() {
            out.push_str(BAND);
        }
        for chart in [latency, tail] {
            out.push_str(&chart.svg().unwrap_or_default());
        }
    }
    processes(out, &records, span);
}

fn processes(out: &mut String, records: &[Of<'_>], span: Option<(f64, f64)>) {
    let known: Vec<_> = records.iter().filter(|(_, _, p)| p.server_cpu_s.is_some()).collect();
    if known.is_empty() {
        return;
    }
    let line = |(style, _, phase): &&Of<'_>| Line {
        style: *style,
        thin: false,
        // The last sample includes what follows the measured time.
        points: phase
            .samples
            .iter()
            .filter(|s| s.t <= phase.measured_s)
            .map(|s| Some((s.t, s.server_cores)))
            .collect(),
        labels: Vec::new(),
    };
    let chart = Chart {
        title: "CPU of the server's processes".to_owned(),
        unit: "cores",
        horizontal: "time since the start of the measurement; before 0: warm-up",
        axis: Axis::Time,
        span,
        lines: known.iter().map(line).collect(),
        band: None,
        marks: Vec::new(),
        log: false,
    };
    out.push_str(&chart.svg().unwrap_or_default());
}

fn marks(records: &[Of<'_>]) -> Vec<Mark> {
    let mut marks = Vec::new();
    for (style, _, phase) in records {
        for event in &phase.events {
            let failed = if event.error.is_some() { " failed" } else { "" };
            let label = format!("{}{failed}", event.action.replace('_', " "));
            marks.push(Mark { style: *style, from: event.start_s, to: event.end_s, label });
        }
    }
    marks.sort_by(|a, b| a.from.total_cmp(&b.from));
    marks
}

/// Latency over throughput, a point for each depth.
fn sweep(out: &mut String, run: &RunRecord, name: &str) {
    let records = of_phase(run, name);
    for load in load_names(&records) {
        let mut lines: Vec<Line> = Vec::new();
        for (i, target) in run.targets.iter().enumerate() {
            let phases = target.phases.iter().filter(|p| p.name == name);
            let found: Vec<(u32, &LoadRecord)> = phases
                .filter_map(|p| Some((p.depth?, p.loads.iter().find(|l| l.name == load)?)))
                .filter(|(_, l)| l.latency.p50 > 0.0)
                .collect();
            let points =
                |of: fn(&LoadRecord) -> f64| found.iter().map(|(_, l)| Some((l.iops, of(l)))).collect();
            let labels = found.iter().map(|(depth, _)| depth.to_string()).collect();
            lines.push(Line { style: i % STYLES, thin: false, points: points(|l| l.latency.p50), labels });
            lines.push(Line {
                style: i % STYLES,
                thin: true,
                points: points(|l| l.latency.p99),
                labels: Vec::new(),
            });
        }
        let chart = Chart {
            title: format!(
                "{load}: median latency over throughput, thin: 99th percentile; numbers: depth of each disk"
            ),
            unit: "ms",
            horizontal: "requests per second",
            axis: Axis::Number,
            span: None,
            lines,
            band: None,
            marks: Vec::new(),
            log: true,
        };
        out.push_str(&chart.svg().unwrap_or_default());
    }
}

fn about(out: &mut String, run: &RunRecord) {
    out.push_str("<section class=\"phase\">\n<h2 id=\"scaled\">What was scaled</h2>\n");
    if run.changes.is_empty() {
        out.push_str("<p>Nothing: sizes, rates and times are those of the scenario.</p>\n");
    } else {
        out.push_str("<ul>\n");
        for change in &run.changes {
            let _ = writeln!(out, "<li>{}</li>", escape(change));
        }
        out.push_str("</ul>\n<p>Block sizes, depths, numbers of disks and events, and the bounds of checks are not scaled.</p>\n");
    }
    let _ = writeln!(
        out,
        "<h2>About this run</h2>\n<p class=\"soft\">Machine: {}. forebay-xray {}, scenario '{}', seed {}.{}</p>",
        escape(&run.machine),
        escape(&run.version),
        escape(&run.scenario),
        run.seed,
        run.source.as_ref().map_or_else(String::new, |s| format!(" Source of the figures: {}.", escape(s)))
    );
    let _ = writeln!(
        out,
        "<details><summary>The scenario's file</summary>\n<pre>{}</pre>\n</details>\n</section>",
        escape(&run.text)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_result_is_one_sentence() {
        let verdict = |what: &str, pass| Verdict { what: what.into(), pass, reason: String::new() };
        let (good, bad, open) =
            (verdict("rate", Some(true)), verdict("latency", Some(false)), verdict("trend", None));
        let of = |verdicts: &[&Verdict]| {
            result_of("forebay", &verdicts.iter().map(|v| (*v).clone()).collect::<Vec<_>>())
        };
        assert_eq!(of(&[&good, &good]), "forebay passed all 2 checks.");
        assert_eq!(of(&[&good, &open]), "forebay failed none of 2 checks; 1 could not be judged.");
        assert_eq!(of(&[&good, &bad]), "forebay failed 1 of 2 checks. The first: latency.");
        assert_eq!(of(&[]), "forebay has no checks: compare the figures.");
    }
}
