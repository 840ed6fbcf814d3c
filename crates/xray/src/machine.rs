//! The machine on which the figures were measured.

use std::fs;

use serde::Serialize;

/// The machine on which a benchmark runs.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// Cores that this process may use.
    pub cores: usize,
    /// Model of the CPU.
    pub cpu: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Whether the machine is virtual.
    pub virtualised: bool,
    /// Load average of the minute before the start.
    pub load_before: f64,
}

impl Machine {
    /// The state of this machine now. Unknown values are empty.
    pub fn here() -> Machine {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let of = |text: &str, key: &str| {
            let line = text.lines().find(|line| line.starts_with(key))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let memory_kib = of(&read("/proc/meminfo"), "MemTotal")
            .and_then(|v| v.split_ascii_whitespace().next()?.parse::<u64>().ok());
        Machine {
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            cpu: of(&cpuinfo, "model name").unwrap_or_default(),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            memory_bytes: memory_kib.unwrap_or(0) << 10,
            virtualised: of(&cpuinfo, "flags").is_some_and(|f| f.split(' ').any(|f| f == "hypervisor")),
            load_before: read("/proc/loadavg")
                .split(' ')
                .next()
                .and_then(|v| v.parse().ok())
                .unwrap_or_default(),
        }
    }

    /// A summary in one line.
    pub fn line(&self) -> String {
        format!(
            "{} cores of {}{}, {:.0} GiB, Linux {}, load {:.2} before the start",
            self.cores,
            self.cpu,
            if self.virtualised { " (virtual)" } else { "" },
            self.memory_bytes as f64 / f64::from(1 << 30),
            self.kernel,
            self.load_before
        )
    }
}

/// Use of the machine's CPU time up to a moment, in clock ticks.
#[derive(Debug, Clone, Copy, Default)]
pub struct CpuTimes {
    total: u64,
    /// Ticks used by any process, or taken by the hypervisor for other machines.
    used: u64,
    /// Ticks taken by the hypervisor for other machines, or for its emulation of this machine.
    stolen: u64,
    /// Ticks used by this process and by children that it has waited for.
    own: u64,
}

impl CpuTimes {
    /// Returns the CPU times at this moment.
    pub fn now() -> CpuTimes {
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let (total, used, stolen) = machine_ticks(&stat);
        // SAFETY: an all-zero `tms` is valid, and `times` writes nothing else.
        let own = unsafe {
            let mut t: libc::tms = std::mem::zeroed();
            libc::times(&raw mut t);
            [t.tms_utime, t.tms_stime, t.tms_cutime, t.tms_cstime]
        };
        CpuTimes { total, used, stolen, own: own.iter().map(|t| t.unsigned_abs()).sum() }
    }

    /// Share of the machine's CPU time since then that other processes used, in percent. Children count as
    /// other processes until they have been waited for.
    pub fn others_percent(&self) -> f64 {
        let now = CpuTimes::now();
        let others = (now.used - self.used).saturating_sub(now.own - self.own);
        100.0 * others as f64 / (now.total - self.total).max(1) as f64
    }

    /// Share of the machine's CPU time since then that the hypervisor took, in percent. Nothing runs on
    /// that CPU then: if it is some percent, about as many requests wait for it, which p99 shows.
    pub fn stolen_percent(&self) -> f64 {
        let now = CpuTimes::now();
        100.0 * (now.stolen - self.stolen) as f64 / (now.total - self.total).max(1) as f64
    }
}

/// All ticks, the used, and the stolen ones, from the first line of proc_stat(5): user, nice, system, idle,
/// iowait, irq, softirq, steal. (The following fields are guest time, which user time includes.)
fn machine_ticks(stat: &str) -> (u64, u64, u64) {
    let fields = stat.lines().next().unwrap_or_default().split_ascii_whitespace().skip(1).take(8);
    let ticks: Vec<u64> = fields.map(|f| f.parse().unwrap_or(0)).collect();
    let total: u64 = ticks.iter().sum();
    let idle: u64 = ticks.iter().skip(3).take(2).sum();
    (total, total - idle, ticks.get(7).copied().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_and_iowait_ticks_are_not_used_ticks_and_stolen_ones_are() {
        let stat = "cpu  100 20 30 4000 500 6 7 8 90 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(machine_ticks(stat), (4671, 171, 8));
        assert_eq!(machine_ticks(""), (0, 0, 0));
    }
}
