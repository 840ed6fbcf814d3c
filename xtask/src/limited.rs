//! Runs a command with a time limit.
//!
//! The command gets its own process group, so that its own children are killed with it. A signal of the
//! terminal does not reach that group, so a handler kills all groups before this program ends.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, Once, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Interval at which a process that has closed its output is polled.
const POLL: Duration = Duration::from_millis(5);
/// How long the output of a killed group is awaited. A process that left the group may hold it open.
const AFTER_KILL: Duration = Duration::from_secs(2);
/// Maximum number of groups that exist at a time.
const MAX_GROUPS: usize = 256;

/// The groups that exist, for the signal handler; 0 marks an unused place.
static GROUPS: [AtomicI32; MAX_GROUPS] = [const { AtomicI32::new(0) }; MAX_GROUPS];

/// How a command ended.
#[derive(Debug)]
pub struct Ended {
    /// `None` if it was killed at its limit.
    pub status: Option<ExitStatus>,
    /// Standard output, as far as it was received.
    pub output: String,
    /// Standard error, likewise.
    pub errors: String,
}

/// Runs a command, and kills it with its process group if it has not ended and closed its output within the
/// limit.
///
/// # Errors
/// If it cannot be started.
pub fn run(command: &mut Command, limit: Duration) -> io::Result<Ended> {
    static HANDLER: Once = Once::new();
    HANDLER.call_once(kill_groups_on_signals);
    let deadline = Instant::now() + limit;
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut group = Group::new(command.process_group(0).spawn()?);
    let (ended, both_ended) = mpsc::channel();
    let output = group.child.stdout.take().map(|pipe| collect(pipe, ended.clone()));
    let errors = group.child.stderr.take().map(|pipe| collect(pipe, ended.clone()));
    drop(ended);
    let status = match wait_for_ends(&both_ended, deadline) {
        true => group.wait(deadline)?,
        false => None,
    };
    if status.is_none() {
        group.kill()?;
        wait_for_ends(&both_ended, Instant::now() + AFTER_KILL);
    }
    let text = |collected: Option<Arc<Mutex<Vec<u8>>>>| {
        let bytes = collected.map(|c| std::mem::take(&mut *c.lock().expect("no reader panics")));
        String::from_utf8_lossy(&bytes.unwrap_or_default()).into_owned()
    };
    Ok(Ended { status, output: text(output), errors: text(errors) })
}

/// Reads a pipe in a thread, and drops `ended` at its end.
fn collect(mut pipe: impl Read + Send + 'static, ended: mpsc::Sender<()>) -> Arc<Mutex<Vec<u8>>> {
    let collected = Arc::new(Mutex::new(Vec::new()));
    let to = collected.clone();
    thread::spawn(move || {
        let mut buffer = [0; 8192];
        while let Ok(n @ 1..) = pipe.read(&mut buffer) {
            to.lock().expect("no reader panics").extend_from_slice(&buffer[..n]);
        }
        drop(ended);
    });
    collected
}

/// Waits until all senders are dropped; false at the deadline.
fn wait_for_ends(ends: &mpsc::Receiver<()>, deadline: Instant) -> bool {
    let left = deadline.saturating_duration_since(Instant::now());
    ends.recv_timeout(left) == Err(mpsc::RecvTimeoutError::Disconnected)
}

/// A running command with its process group. Its number is not used again before the command is waited for.
struct Group {
    child: Child,
    listed: Option<&'static AtomicI32>,
}

impl Group {
    fn new(child: Child) -> Group {
        let number = child.id() as i32;
        let free = |place: &&AtomicI32| {
            place.compare_exchange(0, number, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        Group { child, listed: GROUPS.iter().find(free) }
    }

    /// Waits for the command; `None` at the deadline.
    fn wait(&mut self, deadline: Instant) -> io::Result<Option<ExitStatus>> {
        loop {
            if has_ended(&self.child)? {
                self.unlist();
                return self.child.wait().map(Some);
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            thread::sleep(POLL);
        }
    }

    fn kill(&mut self) -> io::Result<()> {
        kill_group(self.child.id() as i32);
        self.unlist();
        self.child.wait().map(drop)
    }

    fn unlist(&mut self) {
        if let Some(place) = self.listed.take() {
            place.store(0, Ordering::SeqCst);
        }
    }
}

/// Whether a child has ended. It is not waited for, so its number stays in use.
fn has_ended(child: &Child) -> io::Result<bool> {
    // SAFETY: a structure of integers, for which zero is a valid value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the structure is valid for the call.
    if unsafe { libc::waitid(libc::P_PID, child.id(), &raw mut info, options) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has filled the structure for a child that changed its state, or left it zeroed.
    Ok(unsafe { info.si_pid() } != 0)
}

/// Safe in a signal handler.
fn kill_group(number: i32) {
    // SAFETY: the call has no conditions.
    unsafe { libc::kill(-number, libc::SIGKILL) };
}

extern "C" fn on_signal(signal: libc::c_int) {
    for place in &GROUPS {
        match place.load(Ordering::SeqCst) {
            0 => {}
            number => kill_group(number),
        }
    }
    // SAFETY: both calls are permitted in a signal handler. The signal ends the process when this returns.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

fn kill_groups_on_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only uses calls and atomics that are permitted there.
        unsafe {
            let before = libc::signal(signal, on_signal as *const () as libc::sighandler_t);
            if before == libc::SIG_IGN {
                libc::signal(signal, libc::SIG_IGN);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_command_within_its_limit_is_not_touched() {
        let ended = run(&mut shell("echo out; echo error >&2; exit 3"), Duration::from_secs(600)).unwrap();
        assert_eq!(ended.status.and_then(|status| status.code()), Some(3));
        assert_eq!((ended.output.as_str(), ended.errors.as_str()), ("out\n", "error\n"));
    }

    /// The background process holds the output open: that it has ended is seen by its end.
    #[test]
    fn a_command_beyond_its_limit_is_killed_with_its_children() {
        for script in
            ["echo begun; sleep 600 & sleep 600", "echo begun; sleep 600 &", "exec >&- 2>&-; sleep 600"]
        {
            let start = Instant::now();
            let ended = run(&mut shell(script), Duration::from_secs(1)).unwrap();
            assert!(ended.status.is_none(), "{ended:?}");
            assert!(script.starts_with("exec") || ended.output == "begun\n", "{ended:?}");
            assert!(start.elapsed() < Duration::from_secs(300), "{:?}", start.elapsed());
        }
    }

    #[test]
    fn a_command_that_does_not_exist_is_an_error() {
        assert!(run(&mut Command::new("/nonexistent"), Duration::from_secs(600)).is_err());
    }
}
