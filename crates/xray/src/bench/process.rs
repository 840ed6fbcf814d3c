//! A server process: its output goes to a file, `/proc` is monitored, and it ends when dropped.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::error::{BenchError, During, Result};

const READY_WITHIN: Duration = Duration::from_secs(120);
const LOG_TAIL: usize = 400;

/// A child process.
pub struct Process {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

/// Memory of a process in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// Resident now.
    pub resident: u64,
    /// Peak of the resident memory.
    pub peak: u64,
}

impl Process {
    /// Starts `command`; its output goes to `log`.
    pub fn start(name: &'static str, mut command: Command, log: &Path) -> Result<Process> {
        let out = File::create(log).during(|| format!("cannot create {}", log.display()))?;
        let err = out.try_clone().during(|| format!("cannot share {}", log.display()))?;
        // SAFETY: prctl is only a system call, which is allowed between fork and exec.
        unsafe {
            command.pre_exec(|| {
                // The servers end if the benchmark is interrupted.
                match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                    0 => Ok(()),
                    _ => Err(io::Error::last_os_error()),
                }
            });
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
            .during(|| format!("cannot start {}", command.get_program().to_string_lossy()))?;
        Ok(Process { name, child, log: log.to_owned() })
    }

    /// Waits until `ready` holds.
    pub fn wait_until(&mut self, ready: impl Fn() -> bool) -> Result<()> {
        let begun = Instant::now();
        while !ready() {
            if self.child.try_wait().during(|| format!("cannot watch {}", self.name))?.is_some() {
                return Err(self.failed("ended unexpectedly"));
            }
            if begun.elapsed() > READY_WITHIN {
                return Err(self.failed("is not ready in time"));
            }
            sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn failed(&self, what: &'static str) -> BenchError {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let start = text.char_indices().rev().take(LOG_TAIL).last().map_or(0, |(i, _)| i);
        BenchError::Server { server: self.name, what, log: text[start..].trim().replace('\n', " | ") }
    }

    /// CPU time of all its threads, including ended ones.
    pub fn cpu(&self) -> Result<Duration> {
        let path = format!("/proc/{}/stat", self.child.id());
        let text = fs::read_to_string(&path).during(|| format!("cannot read {path}"))?;
        let ticks = cpu_ticks(&text).ok_or(BenchError::Output { command: path, wanted: "CPU time" })?;
        // SAFETY: sysconf has no preconditions.
        let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1);
        Ok(Duration::from_secs_f64(ticks as f64 / per_second as f64))
    }

    /// Its memory.
    pub fn memory(&self) -> Result<Memory> {
        let path = format!("/proc/{}/status", self.child.id());
        let text = fs::read_to_string(&path).during(|| format!("cannot read {path}"))?;
        let field = |name| {
            status_kib(&text, name)
                .map(|kib| kib << 10)
                .ok_or_else(|| BenchError::Output { command: path.clone(), wanted: "memory" })
        };
        Ok(Memory { resident: field("VmRSS:")?, peak: field("VmHWM:")? })
    }

    /// Kills it with SIGKILL: no handler runs.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill().during(|| format!("cannot kill {}", self.name))?;
        self.child.wait().during(|| format!("cannot wait for {}", self.name)).map(drop)
    }

    /// Sends SIGTERM and waits for the end.
    pub fn stop(&mut self) -> Result<()> {
        let pid = libc::pid_t::try_from(self.child.id()).unwrap_or_default();
        // SAFETY: the child has not been waited for, so the number is still its own.
        if pid <= 0 || unsafe { libc::kill(pid, libc::SIGTERM) } != 0 {
            return Err(io::Error::last_os_error()).during(|| format!("cannot stop {}", self.name));
        }
        let begun = Instant::now();
        while self.child.try_wait().during(|| format!("cannot wait for {}", self.name))?.is_none() {
            if begun.elapsed() > READY_WITHIN {
                return Err(self.failed("did not end after SIGTERM"));
            }
            sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// User and system time, fields 14 and 15 of proc_pid_stat(5). The process name before them can contain any
/// character, so fields are counted from its closing parenthesis.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

fn status_kib(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_parsed() {
        let stat = "42 (a) b) S 1 2 3 4 5 6 7 8 9 10 1500 27 0 0 20 0";
        assert_eq!(cpu_ticks(stat), Some(1527));
        assert_eq!(cpu_ticks("42 (x) S 1"), None);
        let status = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        assert_eq!((status_kib(status, "VmRSS:"), status_kib(status, "VmHWM:")), (Some(1024), Some(2048)));
        assert_eq!(status_kib(status, "VmSwap:"), None);
    }

    #[test]
    fn a_process_that_ends_early_is_reported_with_its_log() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut command = Command::new("sh");
        command.args(["-c", "echo no such device; exit 1"]);
        let mut process = Process::start("sh", command, &dir.path().join("log")).expect("starts");
        match process.wait_until(|| false) {
            Err(BenchError::Server { server: "sh", log, .. }) => assert_eq!(log, "no such device"),
            other => panic!("{other:?}"),
        }
    }
}
