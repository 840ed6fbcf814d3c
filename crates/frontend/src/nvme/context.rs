//! Starting the NVMe target, and the input of each connection.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use forebay_engine::Pool;

use super::connect::Serves;
use super::connection::Front;
use super::registry::Registry;
use crate::attempts::{Attempts, KnownHosts};
use crate::plane::{FrontEnd, ListenAddr, ListenError, Plane};
use crate::scsi::Units;
use crate::targets::ServedTargets;

/// Limits on controllers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControllerLimits {
    /// Maximum number of controllers.
    pub all: usize,
    /// Maximum number of controllers of one address, or one /64 network of IPv6.
    pub per_address: usize,
}

/// Settings of the NVMe target.
pub struct Settings<'a> {
    /// Addresses to listen on.
    pub addresses: &'a [ListenAddr],
    /// Addresses to listen on for hosts that discover subsystems only.
    pub discovery: &'a [ListenAddr],
    /// Whether other machines may use the addresses, although NVMe is not encrypted.
    pub allow_remote: bool,
    /// Limits on controllers.
    pub limits: ControllerLimits,
}

/// Why the NVMe target cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ListenFailed {
    /// An address cannot be used.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Other machines could use the address without authentication.
    #[error(
        "NVMe cannot be served on {listen} ({addr}): it is not encrypted, and hosts without keys \
         do not authenticate themselves; use a loopback address, or add --nvme-allow-remote"
    )]
    Remote {
        /// The address in the configuration.
        listen: ListenAddr,
        /// The socket address to which the configured address resolves.
        addr: SocketAddr,
    },
}

/// The input of each connection.
pub(super) struct Context {
    pub pool: Arc<Pool>,
    pub units: Arc<Units>,
    pub targets: Arc<ServedTargets>,
    pub registry: Arc<Registry>,
    pub attempts: Attempts,
    /// Addresses on which the server listens. Set before the first connection.
    pub portals: OnceLock<Vec<ListenAddr>>,
}

/// Checks that other machines cannot use the addresses, unless this is allowed.
///
/// # Errors
/// [`ListenFailed::Remote`], or an address without a host.
pub fn refuse_remote(settings: &Settings<'_>) -> Result<(), ListenFailed> {
    let all = settings.addresses.iter().chain(settings.discovery);
    for listen in all.filter(|_| !settings.allow_remote) {
        if let Some(addr) = listen.beyond_loopback()? {
            return Err(ListenFailed::Remote { listen: listen.clone(), addr });
        }
    }
    Ok(())
}

/// Binds the addresses and lets the data plane serve targets over NVMe/TCP. `known` has the addresses from
/// which hosts have proved their identity. Returns the addresses with the
/// actual ports.
///
/// # Errors
/// As [`refuse_remote`], or an address cannot be bound.
pub fn listen(
    plane: &mut Plane,
    (pool, units): (Arc<Pool>, Arc<Units>),
    (targets, known): (Arc<ServedTargets>, Arc<KnownHosts>),
    settings: &Settings<'_>,
) -> Result<Vec<ListenAddr>, ListenFailed> {
    refuse_remote(settings)?;
    let registry = Registry::new(settings.limits);
    let context = Arc::new(Context {
        pool,
        units,
        targets,
        registry,
        attempts: Attempts::new(known),
        portals: OnceLock::new(),
    });
    let front = |serves| -> Arc<dyn FrontEnd> { Arc::new(Front { context: context.clone(), serves }) };
    let bound = plane.listen(&front(Serves::All), settings.addresses)?;
    plane.listen(&front(Serves::Discovery), settings.discovery)?;
    // The portals are set only here. This precedes the first connection, since connections are served only
    // once the plane runs.
    let _ = context.portals.set(bound.clone());
    Ok(bound)
}
