//! The addresses of this machine, to which an import must not connect for a client on another machine.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

/// Returns whether an address belongs to this machine. An error means that this cannot be determined.
pub(super) type IsOwn = fn(IpAddr) -> io::Result<bool>;

/// Whether an address belongs to this machine: an interface has the address, or the kernel routes the address
/// to this machine.
pub(super) fn is_own(addr: IpAddr) -> io::Result<bool> {
    let addr = addr.to_canonical();
    Ok(interface_addresses()?.contains(&addr) || is_routed_here(addr)?)
}

/// Whether packets to an address stay on this machine, according to the kernel's routes: a local route can
/// have more addresses than the interfaces. The source address of such packets is their destination, or a
/// loopback address. Packets to a secondary address of an interface can have the primary address as their
/// source, so this check does not replace [`interface_addresses`].
fn is_routed_here(addr: IpAddr) -> io::Result<bool> {
    let unspecified: IpAddr = match addr {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((unspecified, 0))?;
    // `connect` chooses a route and sends nothing, so any port will do. Without a route, a connection would
    // fail too.
    if socket.connect((addr, 9)).is_err() {
        return Ok(false);
    }
    let source = socket.local_addr()?.ip().to_canonical();
    Ok(source == addr || source.is_loopback())
}

/// Returns the addresses of all interfaces.
fn interface_addresses() -> io::Result<Vec<IpAddr>> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: the pointer is valid for writing; on success it becomes a list, which is freed below.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut addresses = Vec::new();
    let mut next = first;
    // SAFETY: the entries of the list are valid until it is freed.
    while let Some(entry) = unsafe { next.as_ref() } {
        // SAFETY: the address of an entry is null, or valid until the list is freed.
        addresses.extend(unsafe { ip_address(entry.ifa_addr) });
        next = entry.ifa_next;
    }
    // SAFETY: the list is from `getifaddrs`, and nothing refers to it any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(addresses)
}

/// Returns the IP address of a socket address; `None` for another family.
///
/// # Safety
///
/// The pointer is null, or points to an address whose length corresponds to its family.
unsafe fn ip_address(addr: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller guarantees that the pointer is null or valid.
    let family = i32::from(unsafe { addr.as_ref() }?.sa_family);
    match family {
        libc::AF_INET => {
            // SAFETY: an address of this family has this type. It may be unaligned.
            let v4 = unsafe { addr.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(v4.sin_addr.s_addr.to_ne_bytes()).into())
        }
        libc::AF_INET6 => {
            // SAFETY: an address of this family has this type. It may be unaligned.
            let v6 = unsafe { addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(IpAddr::from(v6.sin6_addr.s6_addr).to_canonical())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_this_machine_are_recognized() {
        for text in ["127.0.0.1", "::ffff:127.0.0.1", "127.1.2.3"] {
            assert!(is_own(text.parse().unwrap()).unwrap(), "{text}");
        }
        let addresses = interface_addresses().unwrap();
        assert!(addresses.contains(&Ipv4Addr::LOCALHOST.into()), "{addresses:?}");
        for addr in addresses {
            assert!(is_own(addr).unwrap(), "{addr}");
        }
        // No machine has the limited broadcast address.
        assert!(!is_own(Ipv4Addr::BROADCAST.into()).unwrap());
    }
}
