//! The controllers of all threads.
//!
//! **Hosts that connect again.** When a host connects, its controllers at the same subsystem whose sockets
//! were closed by the host, or were lost, end first, and their commands with them. The check reads the state
//! of the sockets in the kernel, since a connection does not notice the end of its peer while it is
//! throttled. A host can have several connected controllers at a subsystem, which are its paths: these stay.
//!
//! **Limits.** Any host can create controllers at an open target. The number of controllers is limited in
//! total and for each address, so that one address cannot exclude other addresses.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use forebay_wire::nvme::Status;
use parking_lot::Mutex;

use super::context::ControllerLimits;
use super::controller::Controller;
use crate::plane::network;
use crate::targets::IqnName;

/// Time limit for the end of a controller whose host has connected again.
const END_TIME: Duration = Duration::from_secs(10);
/// The highest identifier of a controller; higher ones are reserved (Base 3.1.2).
const MAX_ID: u16 = 0xffef;

/// The controllers of all threads.
pub(super) struct Registry {
    controllers: Mutex<BTreeMap<u16, (IpAddr, Arc<Controller>)>>,
    limits: ControllerLimits,
}

/// A registered controller. The controller is no longer found when this is dropped.
pub(super) struct Registered {
    registry: Arc<Registry>,
    id: u16,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.registry.controllers.lock().remove(&self.id);
    }
}

impl Registry {
    pub fn new(limits: ControllerLimits) -> Arc<Registry> {
        Arc::new(Registry { controllers: Mutex::default(), limits })
    }

    /// The controller with an identifier.
    pub fn find(&self, id: u16) -> Option<Arc<Controller>> {
        self.controllers.lock().get(&id).map(|(_, controller)| controller.clone())
    }

    /// Registers the controller that `make` creates for an identifier.
    ///
    /// # Errors
    /// A limit is reached.
    pub fn begin(
        self: &Arc<Self>,
        peer: IpAddr,
        make: impl FnOnce(u16) -> Controller,
    ) -> Result<(Registered, Arc<Controller>), Status> {
        let address = network(peer);
        let mut controllers = self.controllers.lock();
        let of_address = controllers.values().filter(|(other, _)| *other == address).count();
        if controllers.len() >= self.limits.all || of_address >= self.limits.per_address {
            return Err(Status::CONNECT_BUSY);
        }
        let last = controllers.last_key_value().map_or(0, |(id, _)| *id);
        // Identifiers are not reused soon: a host may still use that of its former controller.
        let next = if last < MAX_ID { Some(last + 1) } else { None };
        let id = next.or_else(|| (1..=MAX_ID).find(|id| !controllers.contains_key(id)));
        let id = id.ok_or(Status::CONNECT_BUSY)?;
        let controller = Arc::new(make(id));
        controllers.insert(id, (address, controller.clone()));
        Ok((Registered { registry: self.clone(), id }, controller))
    }

    /// Ends the controllers of a host at a subsystem whose sockets are closed, and waits for their commands.
    ///
    /// # Errors
    /// The commands did not end in time.
    pub async fn end_gone(&self, host: &IqnName, host_id: [u8; 16], subsystem: &str) -> Result<(), Status> {
        let is_meant = |c: &Controller| c.is_of(host, host_id, subsystem) && c.has_hung_up();
        let gone: Vec<_> = {
            let controllers = self.controllers.lock();
            controllers.values().map(|(_, c)| c).filter(|c| is_meant(c)).cloned().collect()
        };
        for controller in &gone {
            controller.end("its host has closed a connection of it, and connects again");
        }
        let all = async {
            for controller in &gone {
                controller.gone().await;
            }
        };
        tokio::time::timeout(END_TIME, all).await.map_err(|_| Status::CONNECT_BUSY)
    }
}
