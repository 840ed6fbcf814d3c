//! The series of a run as CSV: a line for each interval of each load.

use std::fmt::Write;

use crate::run::record::RunRecord;

/// Returns the results of a run as CSV.
pub fn csv(run: &RunRecord) -> String {
    let mut out = String::from(
        "target,phase,depth,load,t_s,interval_s,measured,requests,bytes,p50_ms,p95_ms,p99_ms,max_ms\n",
    );
    for target in &run.targets {
        for phase in &target.phases {
            let depth = phase.depth.map_or_else(String::new, |d| d.to_string());
            for load in &phase.loads {
                for p in &load.series {
                    // Writing to a string cannot fail.
                    let _ = writeln!(
                        out,
                        "{},{},{depth},{},{:.3},{},{},{},{},{:.4},{:.4},{:.4},{:.4}",
                        quoted(&target.name),
                        phase.name,
                        load.name,
                        p.t,
                        phase.interval_s,
                        p.t > -0.01,
                        p.ops,
                        p.bytes,
                        p.p50,
                        p.p95,
                        p.p99,
                        p.max
                    );
                }
            }
        }
    }
    out
}

/// Names of targets are the user's.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
