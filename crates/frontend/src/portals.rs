//! The addresses at which a client that is connected to this server reaches the listeners of a front end.

use std::net::{IpAddr, SocketAddr};

use crate::plane::ListenAddr;

/// The addresses of `listeners`, with `local` in place of an unspecified address of its family. `local` is
/// the address of this server to which the client is connected; it is the answer if there is no other.
pub(crate) fn reachable(listeners: &[ListenAddr], local: SocketAddr) -> Vec<SocketAddr> {
    let mut portals = Vec::new();
    for listen in listeners {
        let ListenAddr::Tcp(address) = listen else { continue };
        let Ok(address) = address.parse::<SocketAddr>() else { continue };
        let portal = match address.ip() {
            ip if !ip.is_unspecified() => address,
            IpAddr::V4(_) if local.is_ipv4() => SocketAddr::new(local.ip(), address.port()),
            IpAddr::V6(_) if local.is_ipv6() => SocketAddr::new(local.ip(), address.port()),
            _ => continue,
        };
        if !portals.contains(&portal) {
            portals.push(portal);
        }
    }
    if portals.is_empty() {
        portals.push(local);
    }
    portals
}
