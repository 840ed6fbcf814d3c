//! The server that owns a pool, as the header names it.
//!
//! The text has five words: host, process, the host's boot, the namespace of processes, and the start time of
//! the process. A server on the same boot and in the same namespace can determine at once whether that
//! process still runs; others observe the heartbeat.

use std::fmt;

/// A server process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Owner {
    host: String,
    process: u32,
    boot: String,
    namespace: String,
    started: String,
}

/// The word that stands for a fact that could not be read.
const UNKNOWN: &str = "-";

fn word(text: std::io::Result<String>) -> String {
    let text = text.unwrap_or_default();
    let word: String = text.trim().chars().filter(|c| c.is_ascii_graphic()).take(64).collect();
    if word.is_empty() { UNKNOWN.to_owned() } else { word }
}

/// The start time of a process in clock ticks since the boot; `None` if the process has ended, even if its
/// parent has not waited for it.
fn started(process: u32) -> std::io::Result<Option<String>> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The name of the program, in parentheses, may contain anything.
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let state = after_name.split_whitespace().next();
    if matches!(state, Some("Z" | "X")) {
        return Ok(None);
    }
    let time = after_name.split_whitespace().nth(19).ok_or(std::io::ErrorKind::InvalidData)?;
    Ok(Some(time.to_owned()))
}

/// Whether a process that was started at `begun` has ended. A process that cannot be inspected, because it
/// belongs to another user, counts as running.
fn is_over(process: u32, begun: &str) -> bool {
    let Ok(pid) = libc::pid_t::try_from(process) else { return false };
    // SAFETY: signal 0 only checks whether the process exists; the call accesses no memory.
    let missing = unsafe { libc::kill(pid, 0) } < 0
        && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
    missing || started(process).is_ok_and(|now| now.as_deref() != Some(begun))
}

impl Owner {
    /// This process as an owner.
    pub fn this() -> Owner {
        let process = std::process::id();
        let namespace =
            std::fs::read_link("/proc/self/ns/pid").map(|link| link.to_string_lossy().into_owned());
        Owner {
            host: word(std::fs::read_to_string("/proc/sys/kernel/hostname")),
            process,
            boot: word(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")),
            namespace: word(namespace),
            started: word(started(process).map(Option::unwrap_or_default)),
        }
    }

    /// A simulated server process.
    #[cfg(feature = "test-util")]
    pub fn simulated(name: &str) -> Owner {
        let unknown = || UNKNOWN.to_owned();
        Owner { host: name.to_owned(), process: 1, boot: unknown(), namespace: unknown(), started: unknown() }
    }

    /// Parses the text of a header; `None` if the text has another form.
    pub fn parse(text: &str) -> Option<Owner> {
        let words: Vec<&str> = text.split(' ').collect();
        let [host, process, boot, namespace, started] = words.try_into().ok()?;
        let [host, boot, namespace, started] = [host, boot, namespace, started].map(str::to_owned);
        Some(Owner { host, process: process.parse().ok()?, boot, namespace, started })
    }

    /// The text of this server for the header.
    pub fn text(&self) -> String {
        format!("{} {} {} {} {}", self.host, self.process, self.boot, self.namespace, self.started)
    }

    /// Whether a user means this server by `HOST` or `HOST:PROCESS`.
    pub fn is_called(&self, name: &str) -> bool {
        name == self.host || name.strip_prefix(&self.host) == Some(&format!(":{}", self.process))
    }

    /// The first term of a pool that this server creates: the time in milliseconds. A pool that was created
    /// again under the same name therefore has other terms than the former pool.
    pub fn first_term(&self) -> u64 {
        if self.boot == UNKNOWN {
            return 1;
        }
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(1, |now| now.as_millis() as u64)
    }

    /// Whether this server is known to have ended. False if that cannot be determined on this host.
    pub fn has_ended(&self, here: &Owner) -> bool {
        let known = [&self.boot, &self.namespace, &self.started].iter().all(|fact| *fact != UNKNOWN);
        let can_tell = known && (&self.boot, &self.namespace) == (&here.boot, &here.namespace);
        can_tell && is_over(self.process, &self.started)
    }
}

/// The name of the server for messages.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host {}, process {}", self.host, self.process)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_recognized_until_it_ends() {
        let here = Owner::this();
        assert_eq!(Owner::parse(&here.text()), Some(here.clone()));
        assert!(!here.has_ended(&here), "this process runs");
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let ended = Owner { process: child.id(), started: "1".into(), ..here.clone() };
        child.wait().unwrap();
        assert!(ended.has_ended(&here));
        assert!(here.is_called(&here.host) && here.is_called(&format!("{}:{}", here.host, here.process)));
        assert!(!here.is_called(&format!("{}:0", here.host)) && !here.is_called("x"));
        let elsewhere = Owner { boot: "another".into(), ..ended.clone() };
        assert!(!elsewhere.has_ended(&here), "cannot be determined here");
        let unknown = Owner { started: UNKNOWN.into(), ..ended };
        assert!(!unknown.has_ended(&here));
    }

    #[test]
    fn other_texts_are_no_owners() {
        for text in ["", "host", "host x boot ns 1", "a 1 b c d e"] {
            assert_eq!(Owner::parse(text), None, "{text:?}");
        }
    }
}
