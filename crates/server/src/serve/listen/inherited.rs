//! Listening sockets that a service manager opened (sd_listen_fds(3)).
//!
//! A socket belongs to the configured address to which it is bound. If it has one of the names `nbd`,
//! `iscsi`, `nvme`, `nfs`, `http` and `control` (`FileDescriptorName=` of systemd), it can only be used for
//! that service; other names do not matter. A socket that matches no configured address is an error: clients
//! that connect to it would wait forever.

use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{FromRawFd, OwnedFd};

use forebay_frontend::plane::{ListenAddr, Listener};

use crate::serve::ServeError;

/// Number of the first descriptor that systemd passes.
const FIRST: i32 = 3;
/// Maximum number of sockets that are accepted from systemd.
const MOST: i32 = 1024;
/// Names that bind a socket to a service.
const NAMES: [&str; 6] = ["nbd", "iscsi", "nvme", "nfs", "http", "control"];

/// Sockets that were passed to this process and are not in use yet.
#[derive(Default)]
pub(in crate::serve) struct Inherited(Vec<(String, Listener)>);

impl Inherited {
    /// The sockets that the environment names. Called once, before the process opens any descriptor.
    pub fn from_environment() -> Result<Inherited, ServeError> {
        let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<i32>().ok());
        let is_mine = number("LISTEN_PID").is_some_and(|pid| u32::try_from(pid) == Ok(std::process::id()));
        let Some(count) = number("LISTEN_FDS").filter(|_| is_mine) else { return Ok(Inherited::default()) };
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut names = names.split(':').map(str::to_owned);
        let mut sockets = Vec::new();
        for fd in FIRST..FIRST + count.clamp(0, MOST) {
            let name = names.next().unwrap_or_default();
            let failed = |error: std::io::Error| ServeError::Passed { name: name.clone(), error };
            // SAFETY: the call accesses no memory. It also fails for a descriptor that is not open.
            if unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
                return Err(failed(std::io::Error::last_os_error()));
            }
            // SAFETY: the descriptor is open, and was passed to this process, which does not use it
            // elsewhere.
            let socket = unsafe { OwnedFd::from_raw_fd(fd) };
            let listener = Listener::adopt(socket).map_err(failed)?;
            sockets.push((name, listener));
        }
        Ok(Inherited(sockets))
    }

    /// The sockets for an address of `service`; empty if none was passed.
    pub fn take(&mut self, service: &str, address: &ListenAddr) -> Vec<Listener> {
        let resolved: Vec<SocketAddr> = match address {
            ListenAddr::Unix(_) => Vec::new(),
            // An address that does not resolve fails when it is bound.
            ListenAddr::Tcp(host) => host.to_socket_addrs().map(Iterator::collect).unwrap_or_default(),
        };
        let is_meant = |name: &str, listener: &Listener| {
            let matches = match listener.address() {
                ListenAddr::Tcp(bound) => bound.parse().is_ok_and(|bound| resolved.contains(&bound)),
                unix @ ListenAddr::Unix(_) => unix == *address,
            };
            matches && (name == service || !NAMES.contains(&name))
        };
        let (taken, left) =
            std::mem::take(&mut self.0).into_iter().partition(|(name, listener)| is_meant(name, listener));
        self.0 = left;
        let taken: Vec<_> = taken;
        taken.into_iter().map(|(_, listener)| listener).collect()
    }

    /// Checks that all sockets are in use.
    pub fn finish(self) -> Result<(), ServeError> {
        match self.0.into_iter().next() {
            None => Ok(()),
            Some((name, listener)) => Err(ServeError::NotConfigured { name, address: listener.address() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_are_matched_by_address_and_name() {
        let bind = || Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap().remove(0);
        let (a, b, c) = (bind(), bind(), bind());
        let (at_a, at_b) = (a.address(), b.address());
        let passed = [("nbd", a), ("forebay.socket", b), ("http", c)];
        let mut inherited = Inherited(passed.map(|(name, l)| (name.to_owned(), l)).into());
        assert!(inherited.take("iscsi", &at_a).is_empty(), "its name is that of another service");
        assert_eq!(inherited.take("nbd", &at_a).len(), 1);
        assert_eq!(inherited.take("iscsi", &at_b).len(), 1, "its name does not matter");
        assert!(inherited.take("nbd", &at_a).is_empty(), "it is in use");
        assert!(matches!(inherited.finish(), Err(ServeError::NotConfigured { name, .. }) if name == "http"));
    }
}
