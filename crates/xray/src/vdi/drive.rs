//! All desktops at once, from one thread: what is due is sent, what has come is parsed, and nothing waits for one
//! desktop while another could go on.

use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use super::desk::Desk;
use crate::load::socket;
use crate::nbd::NbdError;

/// A server that answers nothing for so long is taken for dead.
const STALL: Duration = Duration::from_secs(120);
/// Enough for what a socket holds.
const RECEIVE_BYTES: usize = 512 << 10;

/// Runs what all have begun to its end; how long it took.
pub fn run(desks: &mut [Desk<'_>]) -> Result<Duration, NbdError> {
    let begun = Instant::now();
    let mut answered = begun;
    let mut buffer = vec![0; RECEIVE_BYTES];
    let mut polls: Vec<libc::pollfd> = desks
        .iter()
        .map(|d| libc::pollfd { fd: d.connection.as_raw_fd(), events: libc::POLLIN, revents: 0 })
        .collect();
    loop {
        let elapsed = begun.elapsed();
        let mut due = Duration::MAX;
        let mut done = true;
        for (desk, poll) in desks.iter_mut().zip(&mut polls) {
            due = due.min(desk.fill(begun, elapsed).unwrap_or(Duration::MAX));
            let mut blocked = false;
            while desk.unsent() && !blocked {
                let fd = poll.fd;
                blocked = !desk.send(|parts| socket::send(fd, parts))?;
            }
            poll.events = libc::POLLIN | if blocked { libc::POLLOUT } else { 0 };
            done &= desk.is_done();
        }
        if done {
            return Ok(begun.elapsed());
        }
        if !wait(&mut polls, due.saturating_sub(begun.elapsed()).min(STALL))? {
            if due == Duration::MAX && answered.elapsed() > STALL {
                return Err(NbdError::Stalled(STALL.as_secs()));
            }
            continue;
        }
        answered = Instant::now();
        for (desk, poll) in desks.iter_mut().zip(&polls).filter(|(_, p)| p.revents & !libc::POLLOUT != 0) {
            receive(desk, poll.fd, &mut buffer)?;
        }
    }
}

fn receive(desk: &mut Desk<'_>, fd: i32, buffer: &mut [u8]) -> Result<(), NbdError> {
    match socket::receive(fd, buffer, false)? {
        Some(0) => Err(NbdError::Closed(1)),
        Some(n) => {
            desk.now = Instant::now();
            let mut parser = std::mem::take(&mut desk.parser);
            let fed = parser.feed(&buffer[..n], desk);
            desk.parser = parser;
            fed
        }
        None => Ok(()),
    }
}

/// Waits until one of them can go on, or `timeout` has passed. Tells whether anything happened.
fn wait(polls: &mut [libc::pollfd], timeout: Duration) -> io::Result<bool> {
    let timeout =
        libc::timespec { tv_sec: timeout.as_secs() as libc::time_t, tv_nsec: timeout.subsec_nanos().into() };
    // SAFETY: the slice is of valid pollfds, and its length is given; the timeout is valid; no signal mask.
    let n =
        unsafe { libc::ppoll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, &timeout, std::ptr::null()) };
    if n >= 0 {
        return Ok(n > 0);
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::Interrupted { Ok(false) } else { Err(error) }
}
