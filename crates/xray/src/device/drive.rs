//! Drives many clients from one thread: sends what is due, receives what has arrived, and never waits for one
//! client while another one can make progress.

use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use super::{DeviceError, RECEIVE_BYTES};
use crate::socket;

/// Maximum sleep: an end or an interruption may arrive.
const NAP: Duration = Duration::from_millis(20);

/// A client of a disk that shares its thread, and `S`, with other clients.
pub trait Client<S> {
    /// Whether the client has nothing left to do.
    fn is_over(&self) -> bool;
    /// Queues and sends what is due. Returns when the next request is due, unless the client waits for
    /// answers, and whether requests remain unsent.
    fn fill(&mut self, now: Instant, shared: &mut S) -> Result<(Option<Instant>, bool), DeviceError>;
    /// The descriptor on which answers arrive, while the client is connected.
    fn descriptor(&self) -> Option<RawFd>;
    /// Receives the answers that have arrived.
    fn receive(&mut self, buffer: &mut [u8], shared: &mut S) -> Result<(), DeviceError>;
}

/// Runs all clients to their ends. The first failure ends all, and is returned with the client's number.
pub fn drive<S, C: Client<S>>(clients: &mut [C], shared: &mut S) -> Result<(), (usize, DeviceError)> {
    let mut buffer = vec![0; RECEIVE_BYTES];
    let mut polls: Vec<libc::pollfd> = Vec::with_capacity(clients.len());
    let mut owners: Vec<usize> = Vec::with_capacity(clients.len());
    while !clients.iter().all(Client::is_over) {
        let now = Instant::now();
        let mut until = now + NAP;
        polls.clear();
        owners.clear();
        for (i, client) in clients.iter_mut().enumerate() {
            let (due, blocked) = client.fill(now, shared).map_err(|error| (i, error))?;
            until = due.map_or(until, |due| due.min(until));
            if let Some(fd) = client.descriptor() {
                polls.push(socket::poll(fd, blocked));
                owners.push(i);
            }
        }
        let left = until.saturating_duration_since(Instant::now());
        if !socket::wait(&mut polls, left).map_err(|error| (0, error.into()))? {
            continue;
        }
        for (_, i) in polls.iter().zip(&owners).filter(|(p, _)| p.revents & !libc::POLLOUT != 0) {
            clients[*i].receive(&mut buffer, shared).map_err(|error| (*i, error))?;
        }
    }
    Ok(())
}
