//! CPU and memory of the server's processes and of this process, over time.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::sleep;
use std::time::Duration;

use super::clock::Clock;
use super::record::Sample;
use crate::targets::servers::{cpu_of, memory_of};

/// The samples that were taken.
pub(super) struct Sampled {
    /// Samples; their times are since the start of the phase.
    pub samples: Vec<Sample>,
    pub server_cpu_s: f64,
    pub client_cpu_s: f64,
}

/// Samples until `stop`. `pids` changes when servers are started and killed.
pub(super) fn sample(
    clock: &Clock,
    pids: &Mutex<Vec<u32>>,
    interval: Duration,
    stop: &AtomicBool,
) -> Sampled {
    let mut known: BTreeMap<u32, f64> = BTreeMap::new();
    let own = || cpu_of(std::process::id()).map_or(0.0, |d| d.as_secs_f64());
    // The growth since the sample before; a process that is new has used nothing before.
    let mut servers = |first: bool| {
        let pids = pids.lock().map_or_else(|_| Vec::new(), |p| p.clone());
        let (mut cpu, mut bytes) = (0.0, 0);
        for pid in pids {
            let Ok(now) = cpu_of(pid).map(|d| d.as_secs_f64()) else { continue };
            let before = known.insert(pid, now).unwrap_or(if first { now } else { 0.0 });
            cpu += now - before;
            bytes += memory_of(pid).map_or(0, |m| m.resident);
        }
        (cpu, bytes)
    };
    servers(true);
    let begun = own();
    let (mut last, mut last_own) = (clock.elapsed(), begun);
    let mut result = Sampled { samples: Vec::new(), server_cpu_s: 0.0, client_cpu_s: 0.0 };
    loop {
        let over = stop.load(Relaxed);
        let now = clock.elapsed();
        let seconds = (now - last).as_secs_f64();
        if seconds >= interval.as_secs_f64() || over {
            let ((cpu, bytes), own_now) = (servers(false), own());
            result.server_cpu_s += cpu;
            if seconds > 0.05 {
                result.samples.push(Sample {
                    t: now.as_secs_f64(),
                    server_cores: cpu / seconds,
                    client_cores: (own_now - last_own) / seconds,
                    server_bytes: bytes,
                });
            }
            (last, last_own) = (now, own_now);
        }
        if over {
            result.client_cpu_s = last_own - begun;
            return result;
        }
        sleep(Duration::from_millis(20));
    }
}
