//! Log pages (Base 5.16.1).

use super::*;

/// Bytes of the header of the discovery log page, and of each of its entries.
const DISCOVERY_ENTRY: usize = 1024;
/// Maximum namespaces in the list of changed ones.
const CHANGED_MAX: usize = 1024;

/// A command that failed, in the error log (Base 5.16.1.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorEntry {
    /// Number of the error, from 1 on.
    pub count: u64,
    /// Identifier of the queue.
    pub queue: u16,
    /// Identifier of the command.
    pub command: u16,
    /// Why it failed.
    pub status: Status,
    /// The namespace of the command.
    pub namespace: u32,
    /// The first block of the command.
    pub block: u64,
}

/// The error log; `newest` yields the newest entry first.
pub fn errors(newest: impl Iterator<Item = ErrorEntry>) -> Vec<u8> {
    const ENTRY: usize = 64;
    let mut data = vec![0; ENTRY * usize::from(identify::ERRORS_MAX)];
    for (out, entry) in data.chunks_exact_mut(ENTRY).zip(newest) {
        put(out, 0, entry.count.to_le_bytes());
        put(out, 8, entry.queue.to_le_bytes());
        put(out, 10, entry.command.to_le_bytes());
        put(out, 12, entry.status.encode().to_le_bytes());
        put(out, 14, u16::MAX.to_le_bytes()); // No single field is at fault.
        put(out, 16, entry.block.to_le_bytes());
        put(out, 24, entry.namespace.to_le_bytes());
        out[29] = 3; // Transport type: TCP.
    }
    data
}

/// The SMART log (Base 5.16.1.3): a volume neither wears out nor has a temperature.
pub fn health(errors: u64) -> Vec<u8> {
    let mut data = vec![0; 512];
    data[3] = 100;
    put(&mut data, 176, errors.to_le_bytes());
    data
}

/// The firmware slot log (Base 5.16.1.4).
pub fn firmware(revision: &str) -> Vec<u8> {
    let mut data = vec![0; 512];
    data[0] = 1;
    put_text(&mut data, 8, 8, revision, b' ');
    data
}

/// The list of changed namespaces (Base 5.16.1.5).
pub fn changed(namespaces: impl ExactSizeIterator<Item = u32>) -> Vec<u8> {
    let mut data = vec![0; CHANGED_MAX * 4];
    if namespaces.len() > CHANGED_MAX {
        put(&mut data, 0, ALL_NAMESPACES.to_le_bytes());
        return data;
    }
    for (n, id) in namespaces.enumerate() {
        put(&mut data, n * 4, id.to_le_bytes());
    }
    data
}

/// The commands supported and effects log (Base 5.16.1.6).
pub fn effects(is_discovery: bool) -> Vec<u8> {
    const SUPPORTED: u32 = 1;
    /// The command can change blocks (LBCC).
    const CHANGES: u32 = 2;
    let mut data = vec![0; 4096];
    for opcode in [0x02, 0x06, 0x08, 0x09, 0x0a, 0x0c, 0x18] {
        put(&mut data, opcode * 4, SUPPORTED.to_le_bytes());
    }
    if !is_discovery {
        for (opcode, changes) in
            [(0x00, 0), (0x01, CHANGES), (0x02, 0), (0x05, 0), (0x0c, 0), (0x0d, 0), (0x0e, 0)]
        {
            put(&mut data, 1024 + opcode * 4, (SUPPORTED | changes).to_le_bytes());
        }
        for opcode in [0x11, 0x15] {
            put(&mut data, 1024 + opcode * 4, SUPPORTED.to_le_bytes());
        }
        for opcode in [0x08, 0x09] {
            put(&mut data, 1024 + opcode * 4, (SUPPORTED | CHANGES).to_le_bytes());
        }
    }
    data
}

/// A port of a subsystem.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Portal<'a> {
    /// Name of the subsystem.
    pub subsystem: &'a str,
    /// Its address.
    pub address: std::net::SocketAddr,
}

/// The discovery log page (Base 5.16.1.23). `generation` changes with the contents.
pub fn discovery(generation: u64, portals: &[Portal<'_>]) -> Vec<u8> {
    let mut data = vec![0; DISCOVERY_ENTRY * (1 + portals.len())];
    put(&mut data, 0, generation.to_le_bytes());
    put(&mut data, 8, (portals.len() as u64).to_le_bytes());
    for (n, portal) in portals.iter().enumerate() {
        let out = &mut data[DISCOVERY_ENTRY * (n + 1)..][..DISCOVERY_ENTRY];
        // TRTYPE: TCP; ADRFAM: IPv4 or IPv6; SUBTYPE: an NVM subsystem; TREQ: no secure channel.
        out[..4].copy_from_slice(&[3, if portal.address.is_ipv4() { 1 } else { 2 }, 2, 2]);
        put(out, 4, 1u16.to_le_bytes());
        put(out, 6, u16::MAX.to_le_bytes()); // CNTLID: any controller.
        put(out, 8, 32u16.to_le_bytes());
        put_text(out, 32, 32, &portal.address.port().to_string(), b' ');
        put_text(out, 256, NQN_FIELD, portal.subsystem, 0);
        put_text(out, 512, 256, &portal.address.ip().to_string(), b' ');
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discovery_lists_ports() {
        let address = "192.0.2.1:4420".parse().unwrap();
        let data = discovery(5, &[Portal { subsystem: "nqn.2026-01.org.example:a", address }]);
        assert_eq!((data.len(), get64(&data, 0), get64(&data, 8)), (2048, 5, 1));
        assert_eq!(data[1024..1028], [3, 1, 2, 2]);
        assert_eq!(&data[1056..1061], b"4420 ");
        assert_eq!(&data[1536..1546], b"192.0.2.1 ");
    }

    #[test]
    fn changed_namespaces_are_listed() {
        let data = changed([4u32, 9].into_iter());
        assert_eq!([get32(&data, 0), get32(&data, 4), get32(&data, 8)], [4, 9, 0]);
    }
}
