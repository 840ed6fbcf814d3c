//! Handing a pool in Ceph over when this host has lost the network of its clients (`[store]
//! client_interfaces`).
//!
//! An owner that reaches the cluster and not its clients renews its heartbeat, so no standby takes the pool.
//! If all configured interfaces have been without a link for [`PATIENCE`], the server hands the pool over to
//! a standby, as the command does. It repeats that while there is no standby, or the handover fails.
//!
//! A link counts as lost only if it was there since this server serves the pool. So neither a wrong name nor
//! a network that is dead on all hosts makes servers pass the pool back and forth.

use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_api::Handover;
use forebay_control::operations::Control;
use tokio::time::Instant;

/// Directory with the state of network interfaces.
const INTERFACES: &str = "/sys/class/net";
/// Interval of looks at the interfaces.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Time without a link before a handover: a switch that negotiates again takes up to three seconds.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time between two attempts.
const RETRY: Duration = Duration::from_secs(30);
/// Name of the client to which the job of the handover belongs.
const OWNER: &str = "loss of the client network";

/// What a look at the links has seen.
#[derive(Default)]
struct Seen {
    was_up: bool,
    down_since: Option<Instant>,
    next_try: Option<Instant>,
}

impl Seen {
    /// Notes the state of the links. Returns whether to hand the pool over now.
    fn note(&mut self, is_up: bool, now: Instant) -> bool {
        if is_up {
            *self = Seen { was_up: true, ..Seen::default() };
        }
        if is_up || !self.was_up {
            return false;
        }
        let since = *self.down_since.get_or_insert(now);
        let is_due = now - since >= PATIENCE && self.next_try.is_none_or(|next| now >= next);
        if is_due {
            self.next_try = Some(now + RETRY);
        }
        is_due
    }
}

/// Whether an interface can carry packets (`operstate` of Linux, RFC 2863). Drivers without a link state,
/// such as drivers of tunnels, report `unknown`.
fn is_up(interfaces: &Path, name: &str) -> bool {
    let state = std::fs::read_to_string(interfaces.join(name).join("operstate"));
    state.is_ok_and(|state| matches!(state.trim_end(), "up" | "unknown"))
}

/// Watches the interfaces until it is aborted.
pub(in crate::serve) async fn watch(names: Vec<String>, control: Control) {
    let (interfaces, mut seen, mut failure) = (PathBuf::from(INTERFACES), Seen::default(), None);
    loop {
        let is_up = names.iter().any(|name| is_up(&interfaces, name));
        if seen.note(is_up, Instant::now()) {
            tracing::warn!(interfaces = ?names, "the network of the clients is down: handing the pool over");
            if let Err(e) = control.hand_over(Handover { to: None }, OWNER).await {
                let error = Some(e.message);
                if error != failure {
                    tracing::warn!(again_in = ?RETRY, "{}", error.as_deref().unwrap_or_default());
                }
                failure = error;
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn a_lost_link_leads_to_a_handover_that_is_repeated() {
        let (mut seen, begun) = (Seen::default(), Instant::now());
        let mut at = |second: u32, is_up| seen.note(is_up, begun + second * S);
        assert!(!at(0, false) && !at(60, false), "there was no link before");
        assert!(!at(61, true) && !at(62, false) && !at(66, false));
        assert!(at(67, false), "for five seconds");
        assert!(!at(68, false) && !at(96, false) && at(97, false));
        assert!(!at(98, true) && !at(99, false) && !at(103, false) && at(104, false));
    }

    #[test]
    fn a_link_that_flaps_is_there() {
        let (mut seen, begun) = (Seen::default(), Instant::now());
        assert!((0..100).all(|second| !seen.note(second % 4 == 0, begun + second * S)));
    }

    #[test]
    fn the_state_of_an_interface_is_that_of_the_kernel() {
        let directory = tempfile::tempdir().unwrap();
        for (name, state) in [("a", "up\n"), ("b", "unknown\n"), ("c", "down\n"), ("d", "lowerlayerdown\n")] {
            std::fs::create_dir(directory.path().join(name)).unwrap();
            std::fs::write(directory.path().join(name).join("operstate"), state).unwrap();
        }
        let states = ["a", "b", "c", "d", "missing"].map(|name| is_up(directory.path(), name));
        assert_eq!(states, [true, true, false, false, false]);
        assert!(is_up(Path::new(INTERFACES), "lo"));
    }
}
