//! A server process: its output goes to a file, `/proc` is monitored, and it ends when dropped.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::error::{During, Error, Result};

const READY_WITHIN: Duration = Duration::from_secs(120);
const LOG_TAIL: usize = 400;

/// A child process.
pub struct Process {
    name: &'static str,
    child: Child,
    /// The process that has replaced the child, if it was upgraded.
    successor: Option<u32>,
    log: PathBuf,
}

/// Memory of a process in bytes.
#[derive(Debug, Clone, Copy)]
pub struct Memory {
    /// Resident memory now, in bytes.
    pub resident: u64,
    /// Peak of the resident memory, in bytes.
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
            // Ctrl-C at a terminal is for this process, which then ends its servers in order.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
            .during(|| format!("cannot start {}", command.get_program().to_string_lossy()))?;
        Ok(Process { name, child, successor: None, log: log.to_owned() })
    }

    /// Waits until `ready` holds.
    pub fn wait_until(&mut self, mut ready: impl FnMut() -> bool) -> Result<()> {
        let begun = Instant::now();
        while !ready() {
            if self.has_ended()? {
                return Err(self.failed("ended unexpectedly"));
            }
            if begun.elapsed() > READY_WITHIN {
                return Err(self.failed("is not ready in time"));
            }
            sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn failed(&self, what: &'static str) -> Error {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let start = text.char_indices().rev().take(LOG_TAIL).last().map_or(0, |(i, _)| i);
        Error::Server { server: self.name, what, log: text[start..].trim().replace('\n', " | ") }
    }

    /// CPU time of all threads of the process, including ended threads.
    pub fn cpu(&self) -> Result<Duration> {
        cpu_of(self.id())
    }

    /// Memory of the process.
    pub fn memory(&self) -> Result<Memory> {
        memory_of(self.id())
    }

    /// The name of its server in reports.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Number of the process.
    pub fn id(&self) -> u32 {
        self.successor.unwrap_or_else(|| self.child.id())
    }

    /// Continues with the process that replaces the child: it becomes a child of this process when the former
    /// one ends, because [`Process::expect_successor`] was called.
    pub fn adopt(&mut self, successor: u32) -> Result<()> {
        // The former one may itself be a successor, and may take a moment to end.
        self.wait_for_end("did not end after its upgrade")?;
        self.successor = Some(successor);
        Ok(())
    }

    /// Makes descendants whose parents end children of this process.
    pub fn expect_successor() -> Result<()> {
        // SAFETY: prctl with this option only sets an attribute of the process.
        match unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error())
                .during(|| "cannot become the parent of a successor".to_owned()),
        }
    }

    /// Whether the process has ended.
    pub fn has_ended(&mut self) -> Result<bool> {
        match self.successor {
            None => Ok(self.child.try_wait().during(|| format!("cannot watch {}", self.name))?.is_some()),
            Some(pid) => {
                let pid = libc::pid_t::try_from(pid).unwrap_or_default();
                // SAFETY: waitpid accepts a null status; it only collects an ended child.
                let ended = unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::WNOHANG) };
                // An error means that it has been collected, or that its parent has not ended yet.
                // SAFETY: signal 0 only tests whether the process exists.
                Ok(ended > 0 || ended < 0 && unsafe { libc::kill(pid, 0) } != 0)
            }
        }
    }

    fn signal(&self, signal: i32, what: &str) -> Result<()> {
        let pid = libc::pid_t::try_from(self.id()).unwrap_or_default();
        // SAFETY: the process has not been waited for, so the number is still its own.
        if pid <= 0 || unsafe { libc::kill(pid, signal) } != 0 {
            return Err(io::Error::last_os_error()).during(|| format!("cannot {what} {}", self.name));
        }
        Ok(())
    }

    /// Pauses the process with SIGSTOP.
    pub fn pause(&self) -> Result<()> {
        self.signal(libc::SIGSTOP, "pause")
    }

    /// Lets the process continue after a pause.
    pub fn resume(&self) -> Result<()> {
        self.signal(libc::SIGCONT, "continue")
    }

    /// Kills the process with SIGKILL: no handler runs.
    pub fn kill(&mut self) -> Result<()> {
        self.signal(libc::SIGKILL, "kill")?;
        self.wait_for_end("did not end after SIGKILL")
    }

    /// Sends SIGTERM to the process, and waits for its end.
    pub fn stop(&mut self) -> Result<()> {
        self.signal(libc::SIGTERM, "stop")?;
        self.wait_for_end("did not end after SIGTERM")
    }

    fn wait_for_end(&mut self, late: &'static str) -> Result<()> {
        let begun = Instant::now();
        while !self.has_ended()? {
            if begun.elapsed() > READY_WITHIN {
                return Err(self.failed(late));
            }
            sleep(Duration::from_millis(2));
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already; a number of a process that was waited for is not used.
        if matches!(self.has_ended(), Ok(false)) {
            let _ = self.kill();
        }
    }
}

/// CPU time of all threads of a process, including ended ones.
pub fn cpu_of(pid: u32) -> Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let text = fs::read_to_string(&path).during(|| format!("cannot read {path}"))?;
    let ticks = cpu_ticks(&text).ok_or(Error::Output { command: path, wanted: "CPU time" })?;
    // SAFETY: sysconf has no preconditions.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) }.max(1);
    Ok(Duration::from_secs_f64(ticks as f64 / per_second as f64))
}

/// Memory of a process.
pub fn memory_of(pid: u32) -> Result<Memory> {
    let path = format!("/proc/{pid}/status");
    let text = fs::read_to_string(&path).during(|| format!("cannot read {path}"))?;
    let field = |name| {
        status_kib(&text, name)
            .map(|kib| kib << 10)
            .ok_or_else(|| Error::Output { command: path.clone(), wanted: "memory" })
    };
    Ok(Memory { resident: field("VmRSS:")?, peak: field("VmHWM:")? })
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
            Err(Error::Server { server: "sh", log, .. }) => assert_eq!(log, "no such device"),
            other => panic!("{other:?}"),
        }
    }
}
