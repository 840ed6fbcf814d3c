//! Bringing a controller up: its queues, its properties, and what the load has to know of the namespace.

use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use super::pdu::{BLOCK, CAPSULE, Entry, HEADER, INIT, Kind, Reply, init_request};
use super::{Namespace, NvmeError, Status};

const FABRICS: u8 = 0x7f;
const IDENTIFY: u8 = 0x06;
/// Bytes of the data of a Connect.
const CONNECT_DATA: usize = 1024;
/// Controller configuration: enabled, with entries of 64 and 16 bytes.
const ENABLED: u64 = 0x0046_0001;
/// Bytes of an identify structure.
const STRUCTURE: usize = 4096;

/// An initialized connection.
pub(super) struct Link {
    pub stream: TcpStream,
    /// Maximum bytes of data in one PDU.
    pub max_data: u32,
}

/// A controller that is ready, with one I/O queue.
pub(super) struct Controller {
    /// The connection of the admin queue: the controller ends with it.
    _admin: Link,
    pub io: Link,
    /// Maximum bytes of data in a capsule of an I/O queue.
    pub in_capsule: u32,
    /// Size of the namespace in bytes.
    pub size: u64,
}

/// The result of an admin command: dword 0 of its completion, and its data.
type Answer = (u32, Vec<u8>);

impl Link {
    fn open(portal: &str, patience: Duration) -> Result<Link, NvmeError> {
        let mut last = None;
        for address in portal.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, patience) {
                Ok(stream) => return Link::initialize(stream, patience),
                Err(error) => last = Some(error),
            }
        }
        Err(last.map_or(NvmeError::Protocol("no address"), NvmeError::Io))
    }

    fn initialize(mut stream: TcpStream, patience: Duration) -> Result<Link, NvmeError> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        stream.write_all(&init_request())?;
        let mut response = [0; INIT];
        stream.read_exact(&mut response)?;
        if response[0] != 1 || response[11] != 0 {
            return Err(NvmeError::Protocol("no response to the initialization, or one with digests"));
        }
        let max_data = u32::from_le_bytes([response[12], response[13], response[14], response[15]]);
        if max_data < 4096 {
            return Err(NvmeError::Protocol("too little data in one PDU"));
        }
        Ok(Link { stream, max_data })
    }

    /// Executes one command that must succeed, while no other is in progress.
    fn execute(&mut self, what: &'static str, entry: &Entry, data: &[u8]) -> Result<Answer, NvmeError> {
        let mut sent = Vec::with_capacity(CAPSULE + data.len());
        sent.extend_from_slice(&entry.capsule(data.len()));
        sent.extend_from_slice(data);
        self.stream.write_all(&sent)?;
        let mut received = Vec::new();
        loop {
            let mut header = [0; HEADER];
            self.stream.read_exact(&mut header)?;
            let reply = Reply(header);
            let kind = reply.kind()?;
            if reply.data_len() > STRUCTURE {
                return Err(NvmeError::Protocol("more data than requested"));
            }
            let mut body = vec![0; reply.padding() + reply.data_len()];
            self.stream.read_exact(&mut body)?;
            match kind {
                Kind::Response { status: Status::GOOD, result, .. } => return Ok((result, received)),
                Kind::Response { status, .. } => return Err(NvmeError::Failed { what, status }),
                Kind::Data { is_success, .. } => {
                    received = body.split_off(reply.padding());
                    if is_success {
                        return Ok((0, received));
                    }
                }
                Kind::Request { .. } => return Err(NvmeError::Protocol("a request for data")),
            }
        }
    }

    /// Connects a queue with `entries` entries. Returns the identifier of the controller.
    fn connect(
        &mut self,
        queue: u16,
        entries: u16,
        controller: u16,
        (namespace, host): (&Namespace, u32),
    ) -> Result<u16, NvmeError> {
        let name = format!("nqn.2026-01.org.example:xray-{host}");
        let mut data = vec![0; CONNECT_DATA];
        data[..4].copy_from_slice(&host.to_le_bytes());
        data[4..8].copy_from_slice(b"xray");
        data[16..18].copy_from_slice(&controller.to_le_bytes());
        for (at, text) in [(256, &namespace.subsystem), (512, &name)] {
            let Some(field) = data.get_mut(at..at + text.len()).filter(|field| field.len() < 224) else {
                return Err(NvmeError::Protocol("a name that is too long"));
            };
            field.copy_from_slice(text.as_bytes());
        }
        let mut entry = Entry::new(FABRICS, 0, 1).with_data(CONNECT_DATA as u32, true);
        entry.put(42, &queue.to_le_bytes());
        entry.put(44, &(entries - 1).to_le_bytes());
        Ok(self.execute("Connect", &entry, &data)?.0 as u16)
    }

    fn identify(&mut self, structure: u8, namespace: u32) -> Result<Vec<u8>, NvmeError> {
        let mut entry = Entry::new(IDENTIFY, 0, namespace).with_data(STRUCTURE as u32, false);
        entry.put(40, &[structure]);
        let data = self.execute("Identify", &entry, &[])?.1;
        if data.len() == STRUCTURE {
            Ok(data)
        } else {
            Err(NvmeError::Protocol("a structure that is too short"))
        }
    }

    fn set_property(&mut self, offset: u32, value: u64) -> Result<(), NvmeError> {
        let mut entry = Entry::new(FABRICS, 0, 0);
        entry.put(44, &offset.to_le_bytes());
        entry.put(48, &value.to_le_bytes());
        self.execute("Property Set", &entry, &[]).map(drop)
    }

    fn property(&mut self, offset: u32) -> Result<u32, NvmeError> {
        let mut entry = Entry::new(FABRICS, 0, 4);
        entry.put(44, &offset.to_le_bytes());
        Ok(self.execute("Property Get", &entry, &[])?.0)
    }
}

fn word(data: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]])
}

/// Brings a controller up for the host number `host`, with one I/O queue of `entries` entries.
pub(super) fn bring_up(
    namespace: &Namespace,
    host: u32,
    entries: u16,
    patience: Duration,
) -> Result<Controller, NvmeError> {
    let mut admin = Link::open(&namespace.portal, patience)?;
    let controller = admin.connect(0, 32, u16::MAX, (namespace, host))?;
    admin.set_property(0x14, ENABLED)?;
    while admin.property(0x1c)? & 1 == 0 {
        std::thread::yield_now();
    }
    let described = admin.identify(1, 0)?;
    let in_capsule = (word(&described, 1792) * 16).saturating_sub(64);
    let found = admin.identify(0, namespace.number)?;
    let blocks = u64::from(word(&found, 0)) | u64::from(word(&found, 4)) << 32;
    // The format in use (FLBAS) has to be that of blocks of 512 bytes.
    let format = 128 + 4 * usize::from(found[26] & 0xf);
    if blocks == 0 || found[format + 2] != BLOCK.trailing_zeros() as u8 {
        return Err(NvmeError::Protocol("no such namespace, or a block length other than 512"));
    }
    let mut io = Link::open(&namespace.portal, patience)?;
    io.connect(1, entries, controller, (namespace, host))?;
    Ok(Controller { _admin: admin, io, in_capsule, size: blocks.saturating_mul(BLOCK) })
}
