//! What the figures were measured on.

use std::fs;

use serde::Serialize;

/// The machine.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// Cores that this process may use.
    pub cores: usize,
    /// CPU model.
    pub cpu: String,
    /// Kernel release.
    pub kernel: String,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Whether it is a virtual machine.
    pub virtualised: bool,
    /// Load average over a minute before the start.
    pub load_before: f64,
}

impl Machine {
    /// This machine, now. What cannot be found out is empty.
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

    /// One line.
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

    /// Whether something else was running.
    pub fn busy(&self) -> bool {
        self.load_before > 0.5 * self.cores as f64
    }
}
