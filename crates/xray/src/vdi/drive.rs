//! Drives all desktops from one thread: sends requests that are due, parses replies that have arrived, and
//! never waits for one desktop while another one can make progress.

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use super::desk::Desk;
use crate::device::{DeviceError, RECEIVE_BYTES};
use crate::socket;

/// A server that does not answer for this long counts as stalled.
const STALL: Duration = Duration::from_secs(120);

/// Runs the phase that all desktops have begun to its end. Returns how long it took.
pub fn run(desks: &mut [Desk<'_>]) -> Result<Duration, DeviceError> {
    let begun = Instant::now();
    let mut answered = begun;
    let mut buffer = vec![0; RECEIVE_BYTES];
    let mut polls: Vec<libc::pollfd> = Vec::with_capacity(desks.len());
    loop {
        let elapsed = begun.elapsed();
        let mut due = Duration::MAX;
        let mut done = true;
        polls.clear();
        for desk in desks.iter_mut() {
            due = due.min(desk.fill(begun, elapsed).unwrap_or(Duration::MAX));
            let blocked = desk.send()?;
            polls.push(socket::poll(desk.as_raw_fd(), blocked));
            done &= desk.is_done();
        }
        if done {
            return Ok(begun.elapsed());
        }
        if !socket::wait(&mut polls, due.saturating_sub(begun.elapsed()).min(STALL))? {
            if due == Duration::MAX && answered.elapsed() > STALL {
                return Err(DeviceError::Stalled(STALL.as_secs()));
            }
            continue;
        }
        answered = Instant::now();
        for (desk, _) in desks.iter_mut().zip(&polls).filter(|(_, p)| p.revents & !libc::POLLOUT != 0) {
            desk.receive(&mut buffer, &mut |_| ())?;
        }
    }
}
