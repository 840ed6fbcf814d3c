//! Notification of a service manager that the server is ready, is replaced, or stops, and to its watchdog
//! (sd_notify(3)).

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::Pool;
use forebay_frontend::plane::Probe;
use forebay_host::clock;

use super::abort_on_drop::AbortOnDrop;

/// Time limit for a service manager that does not read its socket. The caller's thread waits.
const SEND_TIME: Duration = Duration::from_secs(1);

/// Sends `state`, such as `READY=1`, to the service manager that `NOTIFY_SOCKET` names. If the service
/// manager cannot be reached, this is only logged.
pub fn notify(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(e) = send(&path, state) {
        tracing::warn!(error = %e, "cannot send '{state}' to the service manager");
    }
}

/// Reports that an upgrade begins; `READY=1` ends it.
pub fn reloading() {
    let us = clock::read(libc::CLOCK_MONOTONIC).unwrap_or_default().as_micros();
    notify(&format!("RELOADING=1\nMONOTONIC_USEC={us}"));
}

/// Reports that another process serves the clients. This process may exit afterwards.
pub fn replaced_by(pid: u32) {
    notify(&format!("MAINPID={pid}\nREADY=1"));
}

/// Reports that this process has taken over. The service manager accepts it from a process that it does not
/// know yet only with `NotifyAccess=all`; otherwise the report of the predecessor suffices.
pub fn taken_over() {
    replaced_by(std::process::id());
}

/// The time after which the service manager kills a process that does not report, if it does.
fn watchdog() -> Option<Duration> {
    let us: u64 = std::env::var("WATCHDOG_USEC").ok()?.parse().ok()?;
    (us > 0).then(|| Duration::from_micros(us))
}

/// Reports to the watchdog of the service manager while every data-plane thread answers, or makes a commit
/// for its client: a restart would not help against a store that does not answer. Never completes with a
/// watchdog.
pub async fn feed_watchdog(plane: Probe, pool: Arc<Pool>) {
    let Some(time) = watchdog() else { return };
    let mut ticks = tokio::time::interval(time / 3);
    loop {
        ticks.tick().await;
        plane.answered(|thread| pool.helper() == Some(thread)).await;
        notify("WATCHDOG=1");
    }
}

/// Reports to the watchdog, as long as the result exists, for a time in which there are no data-plane
/// threads: other processes and the store determine how long it is, and a restart would only disconnect the
/// clients that wait.
pub(in crate::serve) fn feed_meanwhile() -> Option<AbortOnDrop> {
    let feed = |time| async move {
        let mut ticks = tokio::time::interval(time / 3);
        loop {
            ticks.tick().await;
            notify("WATCHDOG=1");
        }
    };
    watchdog().map(|time| AbortOnDrop(tokio::spawn(feed(time))))
}

fn send(path: &OsStr, state: &str) -> io::Result<()> {
    let address = match path.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(path)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(SEND_TIME))?;
    socket.send_to_addr(state.as_bytes(), &address).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_sent_to_the_socket_of_the_service_manager() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("n");
        let receiver = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), "READY=1").unwrap();
        let mut buf = [0; 16];
        let n = receiver.recv(&mut buf).unwrap();
        assert_eq!(&buf[..n], b"READY=1");
    }

    #[test]
    fn a_service_manager_that_does_not_read_holds_up_the_server_for_a_limited_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("n");
        let receiver = UnixDatagram::bind(&path).unwrap();
        let full = UnixDatagram::unbound().unwrap();
        full.set_nonblocking(true).unwrap();
        while full.send_to(b"x", &path).is_ok() {}
        let refused = send(path.as_os_str(), "READY=1").unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        drop(receiver);
    }
}
