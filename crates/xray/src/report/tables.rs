//! The tables of a phase.

use std::fmt::Write;

use super::chart::{escape, number};
use super::table::{Cell, Table, right};
use crate::run::record::{PhaseRecord, TargetRecord};

/// The number of a target's style, the target, and its record of the phase.
pub(super) type Of<'a> = (usize, &'a TargetRecord, &'a PhaseRecord);

/// Adds all figures of a phase, and what it cost.
pub(super) fn figures(out: &mut String, records: &[Of<'_>]) {
    let mut table = Table::new([
        "target",
        "load",
        "requests/s",
        "MiB/s",
        "p50 ms",
        "p95 ms",
        "p99 ms",
        "p99.9 ms",
        "max ms",
        "errors",
        "verified",
        "wrong",
    ]);
    for (_, target, phase) in records {
        for l in &phase.loads {
            let (a, counts) = (l.latency, [l.errors, l.verified, l.wrong].map(|v| v as f64));
            let figures = [l.iops, l.mib_s, a.p50, a.p95, a.p99, a.p999, a.max].into_iter().chain(counts);
            let names = [target.name.clone(), format!("{}{}", l.name, phase.at_depth())];
            let names = names.into_iter().map(|name| Cell::new(name).class("k"));
            table.add(names.chain(figures.map(|v| right(number(v)))));
        }
    }
    out.push_str(&table.html());
    costs(out, records);
}

/// What a phase cost the server.
fn costs(out: &mut String, records: &[Of<'_>]) {
    let mut table = Table::new([
        "target",
        "measured s",
        "warm-up s",
        "server CPU us/request",
        "server MiB at most",
        "this program's cores",
        "other processes %",
        "store reads",
        "store writes",
        "syncs",
        "store MiB read",
        "written",
    ]);
    for (_, target, phase) in records {
        // CPU is that of the whole phase, so it is divided by all requests of it.
        let ops: u64 = phase.loads.iter().flat_map(|l| &l.series).map(|p| p.ops).sum();
        let cpu = phase.server_cpu_s.filter(|_| ops > 0).map(|s| s * 1e6 / ops as f64);
        let memory = phase.samples.iter().map(|s| s.server_bytes).max().filter(|b| *b > 0);
        let seconds = (phase.measured_s + phase.warm_up_s).max(1e-3);
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let steady = if phase.steady == Some(false) { ", not steady" } else { "" };
        let warm_up = right(number(phase.warm_up_s) + steady);
        let figures = [
            cpu,
            memory.map(mib),
            Some(phase.client_cpu_s / seconds),
            Some(phase.others_percent),
            phase.store.map(|s| s.read_ops as f64),
            phase.store.map(|s| s.write_ops as f64),
            phase.store.map(|s| s.sync_ops as f64),
            phase.store.map(|s| mib(s.read_bytes)),
            phase.store.map(|s| mib(s.write_bytes)),
        ];
        let figures = figures.map(|v| right(v.map_or_else(|| "unknown".to_owned(), number)));
        let name = Cell::new(format!("{}{}", target.name, phase.at_depth())).class("k");
        table.add([name, right(number(phase.measured_s)), warm_up].into_iter().chain(figures));
    }
    out.push_str(&table.html());
    notes(out, records);
}

/// What events did, and which of them failed.
fn notes(out: &mut String, records: &[Of<'_>]) {
    for (_, target, phase) in records {
        for load in phase.loads.iter().filter(|l| l.conflicts > 0) {
            let _ = writeln!(
                out,
                "<p class=\"soft\">{}: {} requests of '{}' met a reservation, and were sent again.</p>",
                escape(&target.name),
                number(load.conflicts as f64),
                escape(&load.name)
            );
        }
        for event in &phase.events {
            let Some(figures) = &event.figures else { continue };
            let name = event.action.replace('_', " ");
            let (target, name, figures) = (escape(&target.name), escape(&name), escape(figures));
            let _ = writeln!(
                out,
                "<p class=\"soft\">{target}: {name} at {} s: {figures}.</p>",
                number(event.start_s)
            );
        }
    }
    let events = records.iter().flat_map(|(_, t, p)| p.events.iter().map(move |e| (t, e)));
    for (target, event) in events.filter(|(_, e)| e.error.is_some()) {
        let _ = writeln!(
            out,
            "<p class=\"fail\">{}: {} at {:.1} s failed: {}</p>",
            escape(&target.name),
            escape(&event.action),
            event.start_s,
            escape(event.error.as_deref().unwrap_or_default())
        );
    }
}
