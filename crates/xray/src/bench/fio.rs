//! fio's nbd engine as a second, independent client.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::device::Endpoint;
use crate::error::Result;
use crate::load::{Counts, Latency, Report};
use crate::targets::servers::{run, unusable};

/// 4 KiB random reads of the whole export.
pub fn random_reads(disk: &Endpoint, depth: u16, time: Duration, seed: u32) -> Result<Report> {
    let mut command = Command::new("fio");
    command.args(["--name=reads", "--ioengine=nbd", "--rw=randread", "--bs=4k", "--time_based"]);
    command.args(["--norandommap", "--output-format=json"]);
    command.arg(format!("--uri={disk}"));
    command.arg(format!("--iodepth={depth}"));
    command.arg(format!("--runtime={}ms", time.as_millis()));
    command.arg(format!("--randseed={}", seed + 1));
    let output = run(&mut command)?;
    // The nbd engine prints a line before the report.
    let start = output.stdout.iter().position(|b| *b == b'{').unwrap_or(0);
    let json: Option<Value> = serde_json::from_slice(&output.stdout[start..]).ok();
    json.as_ref().and_then(parse).ok_or_else(|| unusable(&command, "JSON report"))
}

fn parse(json: &Value) -> Option<Report> {
    let job = json.pointer("/jobs/0")?;
    let read = job.get("read")?;
    let ops = read.get("total_ios")?.as_u64()?;
    let nanos = |pointer| read.pointer(pointer).and_then(Value::as_f64).map(|ns| ns / 1e3);
    let errors = job.get("error")?.as_u64()?;
    Some(Report {
        ops,
        bytes: read.get("io_bytes")?.as_u64()?,
        counts: Counts {
            reads: ops,
            errors,
            first_error: u32::try_from(errors).ok().filter(|e| *e != 0),
            ..Counts::default()
        },
        seconds: read.get("runtime")?.as_f64()? / 1e3,
        iops: read.get("iops")?.as_f64()?,
        mib_s: read.get("bw_bytes")?.as_f64()? / f64::from(1 << 20),
        latency: Latency {
            mean_us: nanos("/clat_ns/mean")?,
            p50_us: nanos("/clat_ns/percentile/50.000000")?,
            p99_us: nanos("/clat_ns/percentile/99.000000")?,
            p999_us: nanos("/clat_ns/percentile/99.900000")?,
            max_us: nanos("/clat_ns/max")?,
        },
        ..Report::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_of_fio_is_parsed() {
        let json = serde_json::json!({"jobs": [{"error": 0, "read": {
            "io_bytes": 8192, "bw_bytes": 1_048_576, "iops": 256.5, "runtime": 2000, "total_ios": 2,
            "clat_ns": {"mean": 1500.0, "max": 9000, "percentile":
                {"50.000000": 1000, "99.000000": 2000, "99.900000": 3000}}}}]});
        let r = parse(&json).expect("is complete");
        assert_eq!((r.ops, r.iops, r.mib_s, r.seconds), (2, 256.5, 1.0, 2.0));
        assert_eq!((r.latency.p50_us, r.latency.max_us), (1.0, 9.0));
        assert!(parse(&serde_json::json!({"jobs": []})).is_none());
    }
}
