//! The data structures of Identify (Base 5.17.2; NVM 4.1.5).

use super::*;

/// Bytes of each structure.
pub const BYTES: usize = 4096;
/// Maximum namespaces in one list.
const LIST_MAX: usize = BYTES / 4;
/// The command set of block devices (CSI).
pub const NVM_COMMAND_SET: u8 = 0;

/// Maximum Asynchronous Event Requests that wait.
pub const ASYNC_EVENTS_MAX: u8 = 4;
/// Maximum entries of the error log.
pub const ERRORS_MAX: u8 = 16;
/// Unit of the keep alive timer in milliseconds.
pub const KEEP_ALIVE_UNIT_MS: u32 = 100;

/// Blocks of a unit that is written as a whole: the engine maps 4096 bytes.
const ATOMIC_BLOCKS: u16 = 8;

/// Reservations can persist through power loss, and have all types; the key is ignored as of version 1.3
/// (RESCAP).
const RESERVATIONS: u8 = 0xff;

/// What a controller structure contains.
#[derive(Debug, Clone, Copy)]
pub struct Controller<'a> {
    /// Identifier of the controller.
    pub id: u16,
    /// Name of the subsystem.
    pub subsystem: &'a str,
    /// Serial number of the subsystem, at most 20 characters.
    pub serial: &'a str,
    /// Revision of the software, at most 8 characters.
    pub revision: &'a str,
    /// The controller is of the discovery subsystem.
    pub is_discovery: bool,
    /// A namespace has a volatile write cache.
    pub has_volatile_cache: bool,
}

/// The identify controller structure (Base 5.17.2.1).
pub fn controller(of: &Controller<'_>) -> Vec<u8> {
    let mut data = vec![0; BYTES];
    let out = &mut data[..];
    put_text(out, 4, 20, of.serial, b' ');
    put_text(out, 24, 40, "FOREBAY VOLUMES", b' ');
    put_text(out, 64, 8, of.revision, b' ');
    // CMIC: several ports and controllers.
    out[76] = 3;
    out[77] = MDTS;
    put(out, 78, of.id.to_le_bytes());
    put(out, 80, VERSION.to_le_bytes());
    let event = if of.is_discovery { AsyncEvent::DiscoveryChanged } else { AsyncEvent::NamespaceChanged };
    put(out, 92, event.bit().to_le_bytes());
    // CTRATT: host identifiers of 128 bits, and any command keeps the controller alive.
    put(out, 96, 0x41u32.to_le_bytes());
    out[111] = if of.is_discovery { 2 } else { 1 };
    out[258] = 3; // ACL: as many Abort commands as recommended.
    out[259] = ASYNC_EVENTS_MAX - 1;
    out[260] = 3; // FRMW: one firmware slot, which is read-only.
    out[261] = 6; // LPA: commands supported and effects; offsets of log pages.
    out[262] = ERRORS_MAX - 1;
    put(out, 320, 1u16.to_le_bytes()); // KAS, in units of 100 ms.
    put(out, 514, QUEUE_ENTRIES.to_le_bytes());
    put(out, 536, (1u32 | 1 << 20).to_le_bytes()); // SGLS: any alignment, and offsets.
    put_text(out, 768, 256, of.subsystem, 0);
    put(out, 1792, ((64 + IN_CAPSULE_MAX) / 16).to_le_bytes());
    put(out, 1796, 1u32.to_le_bytes());
    out[1803] = 1; // MSDBD
    put(out, 1804, 1u16.to_le_bytes()); // OFCS: Disconnect.
    if of.is_discovery {
        return data;
    }
    out[512..514].copy_from_slice(&[0x66, 0x44]);
    put(out, 516, NAMESPACES.to_le_bytes());
    // ONCS: Compare, Dataset Management, Write Zeroes, reservations, Verify.
    put(out, 520, 0xacu16.to_le_bytes());
    out[520] |= 0x01;
    out[522] = 1; // FUSES: Compare and Write.
    // VWC: a Flush of all namespaces at once is not supported.
    out[525] = 0b100 | u8::from(of.has_volatile_cache);
    // AWUN and AWUPF: one block at any place; namespaces state larger units with boundaries.
    put(out, 532, (COMPARE_AND_WRITE_MAX as u16 - 1).to_le_bytes());
    put(out, 540, NAMESPACES.to_le_bytes());
    data
}

/// What a namespace structure contains.
#[derive(Debug, Clone, Copy)]
pub struct Namespace {
    /// Number of blocks.
    pub blocks: u64,
    /// UUID of the disk, which the SCSI unit of the disk has, too.
    pub uuid: [u8; 16],
    /// Changes are refused.
    pub read_only: bool,
}

/// The identify namespace structure (NVM 4.1.5.1).
pub fn namespace(of: &Namespace) -> Vec<u8> {
    let mut data = vec![0; BYTES];
    let out = &mut data[..];
    for at in [0, 8, 16] {
        put(out, at, of.blocks.to_le_bytes());
    }
    // NSFEAT: the atomic units below apply (NSABP), and so do the preferred units (OPTPERF).
    out[24] = 0x12;
    out[30] = 1; // NMIC: shared by controllers.
    out[31] = RESERVATIONS;
    out[33] = 0x09; // DLFEAT: deallocated blocks are zero; Write Zeroes deallocates.
    let unit = (ATOMIC_BLOCKS - 1).to_le_bytes();
    // NAWUN and NAWUPF, within the boundaries NABSN and NABSPF, the first of which is at block 0 (NABO): a
    // write that crosses a boundary is atomic only for each block of the engine.
    for at in [34, 36, 40, 44] {
        put(out, at, unit);
    }
    put(out, 38, (COMPARE_AND_WRITE_MAX as u16 - 1).to_le_bytes());
    // NPWG, NPWA, NPDG, NPDA.
    for at in [64, 66, 68, 70] {
        put(out, at, unit);
    }
    out[99] = u8::from(of.read_only);
    put(out, 104, of.uuid);
    out[130] = BLOCK.trailing_zeros() as u8; // LBAF0: LBADS.
    data
}

/// The structure that does not depend on the command set (Base 5.17.2.8).
pub fn independent(of: &Namespace) -> Vec<u8> {
    let mut data = vec![0; BYTES];
    data[2] = RESERVATIONS;
    (data[1], data[8], data[14]) = (1, u8::from(of.read_only), 1);
    data
}

/// A list of namespaces (Base 4.4.2) that are greater than `after`; `all` is in ascending order.
pub fn list(all: impl Iterator<Item = u32>, after: u32) -> Vec<u8> {
    let mut data = vec![0; BYTES];
    for (n, id) in all.filter(|id| *id > after).take(LIST_MAX).enumerate() {
        put(&mut data, n * 4, id.to_le_bytes());
    }
    data
}

/// The list of descriptors of a namespace (Base 5.17.2.3): NGUID, UUID and command set.
pub fn descriptors(of: &Namespace) -> Vec<u8> {
    let mut data = Vec::with_capacity(BYTES);
    for (kind, id) in [(2, &of.uuid[..]), (3, &of.uuid), (4, &[NVM_COMMAND_SET])] {
        data.extend_from_slice(&[kind, id.len() as u8, 0, 0]);
        data.extend_from_slice(id);
    }
    data.resize(BYTES, 0);
    data
}

/// A structure without values: limits of the command set that are not reported.
pub fn empty() -> Vec<u8> {
    vec![0; BYTES]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_controller_states_its_limits() {
        let of = Controller {
            id: 7,
            subsystem: "nqn.2026-01.org.example:a",
            serial: "abc",
            revision: "1.0",
            is_discovery: false,
            has_volatile_cache: true,
        };
        let data = controller(&of);
        assert_eq!((data.len(), get16(&data, 78), data[525]), (BYTES, 7, 0b101));
        assert_eq!(get16(&data, 520), 0xad);
        assert_eq!(get32(&data, 1792) * 16, 64 + IN_CAPSULE_MAX);
        assert_eq!(&data[768..794], b"nqn.2026-01.org.example:a\0");
        let discovery = controller(&Controller { is_discovery: true, ..of });
        assert_eq!((discovery[111], get32(&discovery, 516)), (2, 0));
    }

    #[test]
    fn namespaces_have_the_identity_of_their_disk() {
        let of = Namespace { blocks: 100, uuid: [9; 16], read_only: true };
        let data = namespace(&of);
        assert_eq!((get64(&data, 0), data[99], data[130]), (100, 1, 9));
        assert_eq!(data[104..120], [9; 16]);
        let found = descriptors(&of);
        assert_eq!((found[0], found[1], &found[4..20]), (2, 16, &[9; 16][..]));
        assert_eq!((found[20], found[21], &found[24..40]), (3, 16, &[9; 16][..]));
        assert_eq!((found[40], found[41], found[44], found[45]), (4, 1, 0, 0));
    }

    #[test]
    fn lists_begin_after_a_namespace() {
        let data = list([1, 3, 9].into_iter(), 1);
        assert_eq!([get32(&data, 0), get32(&data, 4), get32(&data, 8)], [3, 9, 0]);
    }
}
