//! Logins that wait until a server can serve them: their number and their time are bounded, and addresses
//! share the places.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use forebay_wire::iscsi::reply::LoginStatus;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::plane::network;

/// Maximum time for which a login waits for an owner.
pub(super) const HOLD: Duration = Duration::from_secs(15);
/// Maximum number of logins that wait. At this number, a further login takes the place of a login from the
/// address with most waiting logins; it is refused if its own address is such an address.
pub(super) const MAX_HELD: usize = 256;

/// The logins that wait.
#[derive(Default)]
pub(super) struct WaitingLogins(Mutex<Waiting>);

impl WaitingLogins {
    /// Waits for the answer to a login from `peer`, at most [`HOLD`].
    ///
    /// # Errors
    /// Those of the answer; [`LoginStatus::ServiceUnavailable`] if the time has passed, if there is no place
    /// for the login, or if another login has taken its place.
    pub async fn hold<T>(
        &self,
        peer: IpAddr,
        answer: impl Future<Output = Result<T, LoginStatus>>,
    ) -> Result<T, LoginStatus> {
        let mut held = self.enter(network(peer))?;
        tokio::select! {
            biased;
            answer = tokio::time::timeout(HOLD, answer) => {
                answer.unwrap_or(Err(LoginStatus::ServiceUnavailable))
            }
            // The sender is dropped when another login takes this place.
            _ = &mut held.taken => Err(LoginStatus::ServiceUnavailable),
        }
    }

    /// Number of logins that wait.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.lock().logins
    }

    fn enter(&self, peer: IpAddr) -> Result<Held<'_>, LoginStatus> {
        let mut waiting = self.0.lock();
        if waiting.logins >= MAX_HELD && !waiting.displace(peer) {
            return Err(LoginStatus::ServiceUnavailable);
        }
        let (place, taken) = oneshot::channel();
        waiting.logins += 1;
        waiting.last += 1;
        let number = waiting.last;
        waiting.by_address.entry(peer).or_default().insert(number, place);
        Ok(Held { waiting: &self.0, peer, number, taken })
    }
}

/// The logins that wait, by address. Each has a number, and a value that is dropped when the login loses its
/// place.
#[derive(Default)]
struct Waiting {
    by_address: BTreeMap<IpAddr, BTreeMap<u64, oneshot::Sender<()>>>,
    logins: usize,
    last: u64,
}

impl Waiting {
    /// Ends the last login of the address with most waiting logins, if a login from `peer` may take its
    /// place.
    fn displace(&mut self, peer: IpAddr) -> bool {
        let own = self.by_address.get(&peer).map_or(0, BTreeMap::len);
        let most = self.by_address.iter_mut().max_by_key(|(_, logins)| logins.len());
        let Some((_, logins)) = most.filter(|(_, logins)| logins.len() > own + 1) else { return false };
        self.logins -= usize::from(logins.pop_last().is_some());
        true
    }

    fn leave(&mut self, peer: IpAddr, number: u64) {
        let Some(logins) = self.by_address.get_mut(&peer) else { return };
        self.logins -= usize::from(logins.remove(&number).is_some());
        if logins.is_empty() {
            self.by_address.remove(&peer);
        }
    }
}

/// The place of a login that may wait.
struct Held<'a> {
    waiting: &'a Mutex<Waiting>,
    peer: IpAddr,
    number: u64,
    taken: oneshot::Receiver<()>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.waiting.lock().leave(self.peer, self.number);
    }
}

/// Returns one of the portals, of the same address family if possible.
pub(super) fn portal_for(portals: &[SocketAddr], local: SocketAddr) -> Result<SocketAddr, LoginStatus> {
    let alike = portals.iter().find(|portal| portal.is_ipv4() == local.is_ipv4());
    alike.or(portals.first()).copied().ok_or(LoginStatus::ServiceUnavailable)
}
