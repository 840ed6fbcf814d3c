//! The load generator next to fio, on the same server: `make xray-fio`.
//!
//! The server is `nbdkit memory` with a fixed delay, so that its latency is the same for both and much
//! longer than what a generator adds. Both are measured in turns; the medians over the rounds are compared,
//! since a single round on a shared machine means little. Rates may differ by 3 %, percentiles by 5 %.
//!
//! The number of arrivals of a Poisson process varies by its square root. The rates of open loops are those
//! of all rounds together, each with another seed: 28,000 requests each, which differ by 3 % by chance once
//! in 2,500 runs.
//!
//! fio waits until nothing is in flight before it sleeps until the next arrival, and then sends all requests
//! that are due at once (`io_submit_mode=offload` would not, but its engine for NBD does not support it). Its
//! depths show this: of 1,000 requests a second, 20 are in flight on average, and less than 8 practically
//! never; fio reported less than 8 in 31 % of cases. Requests of a burst wait for each other, and fio's 95th
//! percentile was 5 % longer than ours. Hence a lower rate, with bursts of 10.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

const ROUNDS: usize = 7;

/// Parameters of a load.
#[derive(Clone, Copy)]
struct Shape {
    depth: u32,
    /// Requests per second of an open loop.
    rate: Option<u32>,
    seconds: u32,
}

/// A closed loop, and an open one. In that one, 10 requests are in flight on average, and practically none
/// waits for one of 64 slots: fio measures from sending, this program from when a request is due.
const SHAPES: [Shape; 2] =
    [Shape { depth: 8, rate: None, seconds: 4 }, Shape { depth: 64, rate: Some(500), seconds: 8 }];
/// Of each request, in milliseconds.
const DELAY_MS: u32 = 20;

struct Nbdkit(Child);

impl Nbdkit {
    fn start(socket: &Path) -> Nbdkit {
        let delay = format!("rdelay={DELAY_MS}ms");
        let mut command = Command::new("nbdkit");
        command.args(["--foreground", "--threads", "64", "--filter=delay", "--unix"]).arg(socket);
        let child = command.args(["memory", "256M", &delay]).stdout(Stdio::null()).spawn().expect("starts");
        let begun = Instant::now();
        while std::os::unix::net::UnixStream::connect(socket).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(30), "nbdkit starts");
            std::thread::sleep(Duration::from_millis(10));
        }
        Nbdkit(child)
    }
}

impl Drop for Nbdkit {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Requests per second, and three percentiles in milliseconds.
type Figures = [f64; 4];

fn fio(socket: &Path, shape: Shape, round: usize) -> Figures {
    let Shape { depth, rate, seconds } = shape;
    let mut command = Command::new("fio");
    let uri = format!("--uri=nbd+unix:///?socket={}", socket.display());
    command.args([
        "--name=x",
        "--ioengine=nbd",
        "--rw=randread",
        "--bs=4k",
        &format!("--iodepth={depth}"),
        &format!("--randseed={}", round + 1),
        "--time_based",
        &uri,
    ]);
    command.args([&format!("--runtime={seconds}"), "--ramp_time=1", "--output-format=json"]);
    command.arg("--percentile_list=50:95:99");
    if let Some(rate) = rate {
        command.args(["--rate_process=poisson", &format!("--rate_iops={rate}")]);
    }
    let output = command.output().expect("fio runs");
    // Messages precede the report.
    let start = output.stdout.iter().position(|b| *b == b'{').expect("fio reports");
    let report: Value = serde_json::from_slice(&output.stdout[start..]).expect("fio reports");
    let read = &report["jobs"][0]["read"];
    let ms = |p: &str| read["clat_ns"]["percentile"][p].as_f64().expect("a percentile") / 1e6;
    [read["iops"].as_f64().expect("a rate"), ms("50.000000"), ms("95.000000"), ms("99.000000")]
}

fn xray(dir: &Path, socket: &Path, shape: Shape, round: usize) -> Figures {
    let Shape { depth, rate, seconds } = shape;
    let rate = rate.map_or_else(String::new, |r| format!("rate = {r}\n"));
    let scenario = format!(
        "format = 1\nname = \"fio\"\ntitle = \"fio\"\nabout = \"fio\"\n[[disk]]\nname = \"d\"\nsize = \"256MiB\"\n\
         [[load]]\nname = \"l\"\ndisk = \"d\"\nrandom_percent = 100\nread_percent = 100\nblocks = {{ \"4KiB\" = 1 }}\n\
         depth = {depth}\n{rate}[[phase]]\nname = \"p\"\nloads = [\"l\"]\nwarm_up = \"1s\"\nduration = \"{seconds}s\"\n"
    );
    let file = dir.join("fio.toml");
    std::fs::write(&file, scenario).expect("writes");
    let run = dir.join(format!("run-{}-{round}", rate.len()));
    let uri = format!("nbd+unix:///?socket={}", socket.display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay-xray"));
    command.arg("run").arg(&file).arg("--dir").arg(&run).args(["--quiet", "--overwrite", "--target", &uri]);
    command.args(["--seed", &(round + 1).to_string()]);
    assert!(command.output().expect("runs").status.success());
    let bytes = std::fs::read(run.join("report.json")).expect("a report");
    let report: forebay_xray::run::record::RunRecord = serde_json::from_slice(&bytes).expect("is a report");
    let load = &report.targets[0].phases[0].loads[0];
    [load.iops, load.latency.p50, load.latency.p95, load.latency.p99]
}

fn mean(values: Vec<f64>) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
#[ignore = "takes four minutes, and needs a quiet machine: make xray-fio"]
fn rates_and_percentiles_are_those_of_fio() {
    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("s");
    let _server = Nbdkit::start(&socket);
    for shape in SHAPES {
        let rate = shape.rate;
        let (mut theirs, mut ours) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            if round % 2 == 0 {
                theirs.push(fio(&socket, shape, round));
            }
            ours.push(xray(dir.path(), &socket, shape, round));
            if round % 2 == 1 {
                theirs.push(fio(&socket, shape, round));
            }
        }
        for (i, (name, percent)) in
            [("requests/s", 3.0), ("p50 ms", 5.0), ("p95 ms", 5.0), ("p99 ms", 5.0)].into_iter().enumerate()
        {
            let average = if i == 0 && rate.is_some() { mean } else { median };
            let of = |all: &[Figures]| average(all.iter().map(|f| f[i]).collect());
            let (fio, xray) = (of(&theirs), of(&ours));
            let difference = (xray / fio - 1.0) * 100.0;
            println!("rate {rate:?}, {name}: fio {fio:.3}, xray {xray:.3}, {difference:+.1} %");
            assert!(difference.abs() <= percent, "{name}: fio {fio}, xray {xray}");
        }
    }
}
