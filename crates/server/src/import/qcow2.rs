//! qcow2, QEMU's format, versions 2 and 3 (QEMU, docs/interop/qcow2.rst).
//!
//! A two-level table maps clusters of the disk to clusters of the file: an L1 entry names an L2 table, an L2
//! entry a cluster, which is plain, packed, or zero. What is not mapped is zero, because a file with a backing
//! file is refused. Internal snapshots are not read: what is imported is the disk as it is now. Reference
//! counts are of no use to a reader.

use super::compress::{Packing, unpack};
use super::file::ImageFile;
use super::file::bytes::{be32, be64};
use super::{Image, Result, Run};

/// The first bytes of a file.
pub(super) const MAGIC: &[u8] = b"QFI\xfb";
/// Bytes of the header of version 2; version 3 goes on to [`HEADER_V3`].
const HEADER_V2: usize = 72;
/// Bytes of the header of version 3 that are read.
const HEADER_V3: usize = 112;
/// Most bytes of the L1 table, as QEMU has it.
const MAX_L1_BYTES: u64 = 32 << 20;
/// Bits of a table entry that are an offset in the file.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
/// Of an L2 entry: the cluster is packed.
const COMPRESSED: u64 = 1 << 62;
/// Of an L2 entry: the cluster is zero (version 3, without subclusters).
const ZERO: u64 = 1;
/// Parts of a cluster with a state of their own, where L2 entries are extended.
const SUBCLUSTERS: u64 = 32;

/// Incompatible features (header, byte 72).
mod feature {
    /// Reference counts may be wrong; that is no matter to a reader.
    pub const DIRTY: u64 = 1;
    /// QEMU found damage.
    pub const CORRUPT: u64 = 2;
    /// The data is in another file.
    pub const DATA_FILE: u64 = 4;
    /// Byte 104 names the way in which clusters are packed.
    pub const COMPRESSION: u64 = 8;
    /// L2 entries have 16 bytes.
    pub const EXTENDED_L2: u64 = 16;
}

/// Where a part of the disk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Zero,
    /// At this offset of the file.
    Plain(u64),
    /// Packed, in this range of the file: the cluster which begins at `cluster` of the disk.
    Packed {
        at: u64,
        len: u64,
        cluster: u64,
    },
}

/// A part of the disk and its place.
#[derive(Debug, Clone, Copy)]
struct Mapping {
    start: u64,
    end: u64,
    place: Place,
}

/// An open qcow2 file.
pub(super) struct Qcow2 {
    file: ImageFile,
    size: u64,
    cluster_bits: u32,
    packing: Packing,
    extended: bool,
    version: u32,
    l1: Vec<u64>,
    /// The L2 table read last: its offset in the file and its bytes. Reads go in order, so one is enough.
    l2: (u64, Vec<u8>),
    /// The mapping found last.
    mapping: Option<Mapping>,
    /// The cluster unpacked last: where it begins on the disk, and its bytes.
    unpacked: (Option<u64>, Vec<u8>),
    packed: Vec<u8>,
}

impl Qcow2 {
    /// Reads the header and the L1 table.
    pub fn open(file: ImageFile) -> Result<Qcow2> {
        let mut header = file.read_vec(0, HEADER_V2 as u64)?;
        if !header.starts_with(MAGIC) {
            return file.damaged("it is not a qcow2 file");
        }
        let version = be32(&header, 4);
        match version {
            2 => header.resize(HEADER_V3, 0),
            // Every version 3 header is followed by at least eight bytes of extensions.
            3 => header = file.read_vec(0, HEADER_V3 as u64)?,
            _ => return file.unsupported("is a qcow file of another version than 2 and 3"),
        }
        let (packing, extended) = check_features(&file, &header, version)?;
        let cluster_bits = be32(&header, 20);
        if !(9..=21).contains(&cluster_bits) || (extended && cluster_bits < 14) {
            return file.damaged("its cluster size is out of range");
        }
        let size = be64(&header, 24);
        let l1_entries = u64::from(be32(&header, 36));
        let entry_bits = if extended { 4 } else { 3 };
        let l2_bits = cluster_bits - entry_bits;
        let needed = size.div_ceil(1 << (cluster_bits + l2_bits));
        if l1_entries < needed || l1_entries * 8 > MAX_L1_BYTES {
            return file.damaged("its first table does not fit its size");
        }
        let l1 = file.read_vec(be64(&header, 40), needed * 8)?;
        let l1 = l1.chunks_exact(8).map(|e| be64(e, 0) & OFFSET).collect();
        let (l2, unpacked) = ((0, Vec::new()), (None, Vec::new()));
        let packed = Vec::new();
        Ok(Qcow2 {
            file,
            size,
            cluster_bits,
            packing,
            extended,
            version,
            l1,
            l2,
            mapping: None,
            unpacked,
            packed,
        })
    }

    fn cluster_size(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Bits of a disk offset that one L2 table covers.
    fn l2_span_bits(&self) -> u32 {
        self.cluster_bits + self.cluster_bits - if self.extended { 4 } else { 3 }
    }

    /// The mapping of the cluster (or part of one) at `offset`.
    fn lookup(&mut self, offset: u64) -> Result<Mapping> {
        let span = self.l2_span_bits();
        // The table has an entry for every offset within the disk: `open` made sure.
        let table = self.l1[(offset >> span) as usize];
        if table == 0 {
            let start = offset >> span << span;
            return Ok(Mapping { start, end: start + (1 << span), place: Place::Zero });
        }
        self.load_l2(table)?;
        let start = offset & !(self.cluster_size() - 1);
        let index = ((offset >> self.cluster_bits) & ((1 << (span - self.cluster_bits)) - 1)) as usize;
        let entry_size = if self.extended { 16 } else { 8 };
        let entry = be64(&self.l2.1, index * entry_size);
        let end = start + self.cluster_size();
        if entry & COMPRESSED != 0 {
            return Ok(Mapping { start, end, place: self.packed_place(entry, start) });
        }
        let host = entry & OFFSET;
        if self.extended {
            return self.subcluster(offset, start, host, be64(&self.l2.1, index * 16 + 8));
        }
        if host == 0 || (entry & ZERO != 0 && self.version >= 3) {
            return Ok(Mapping { start, end, place: Place::Zero });
        }
        if host & (self.cluster_size() - 1) != 0 {
            return self.file.damaged("a cluster is not where clusters can be");
        }
        Ok(Mapping { start, end, place: Place::Plain(host) })
    }

    /// The part of a cluster, where L2 entries are extended: bit n of the low half says that part n is
    /// allocated, of the high half that it is zero.
    fn subcluster(&self, offset: u64, cluster: u64, host: u64, bitmap: u64) -> Result<Mapping> {
        let size = self.cluster_size() / SUBCLUSTERS;
        let index = (offset - cluster) / size;
        let start = cluster + index * size;
        let allocated = bitmap >> index & 1 != 0;
        let zero = bitmap >> (index + SUBCLUSTERS) & 1 != 0;
        if allocated && (zero || host == 0 || host & (self.cluster_size() - 1) != 0) {
            return self.file.damaged("a part of a cluster has an impossible state");
        }
        let place = if allocated { Place::Plain(host + index * size) } else { Place::Zero };
        Ok(Mapping { start, end: start + size, place })
    }

    /// A packed cluster: the offset has fewer bits than usual, and above it stands a count of sectors.
    fn packed_place(&self, entry: u64, cluster: u64) -> Place {
        let offset_bits = 62 - (self.cluster_bits - 8);
        let at = entry & ((1 << offset_bits) - 1);
        let sectors = (entry & (COMPRESSED - 1)) >> offset_bits;
        Place::Packed { at, len: (sectors + 1) * 512 - at % 512, cluster }
    }

    fn load_l2(&mut self, table: u64) -> Result<()> {
        if self.l2.0 != table {
            if table & (self.cluster_size() - 1) != 0 {
                return self.file.damaged("a table is not where tables can be");
            }
            self.l2 = (table, self.file.read_vec(table, self.cluster_size())?);
        }
        Ok(())
    }

    /// The mapping at `offset`, joined with those behind that continue it.
    fn map(&mut self, offset: u64) -> Result<Mapping> {
        if let Some(m) = self.mapping
            && (m.start..m.end).contains(&offset)
        {
            return Ok(m);
        }
        let mut m = self.lookup(offset)?;
        // One long read instead of many; not endless, so that a caller hears of progress.
        let limit = m.start.saturating_add(64 << 20).min(self.size);
        while m.end < limit {
            let next = self.lookup(m.end)?;
            let continues = match (m.place, next.place) {
                (Place::Zero, Place::Zero) => true,
                (Place::Plain(host), Place::Plain(next_host)) => host + (m.end - m.start) == next_host,
                _ => false,
            };
            if !continues {
                break;
            }
            m.end = next.end;
        }
        m.end = m.end.min(self.size);
        self.mapping = Some(m);
        Ok(m)
    }

    /// Unpacks a cluster, unless it is the one unpacked last.
    fn unpack(&mut self, at: u64, len: u64, cluster: u64) -> Result<()> {
        if self.unpacked.0 == Some(cluster) {
            return Ok(());
        }
        self.unpacked.0 = None;
        // The count of sectors may reach beyond the end of the file.
        let len = len.min(self.file.len().saturating_sub(at));
        self.packed.resize(len as usize, 0);
        self.file.read_at(at, &mut self.packed)?;
        self.unpacked.1.resize(1 << self.cluster_bits, 0);
        if unpack(self.packing, &self.packed, &mut self.unpacked.1).is_err() {
            return self.file.damaged("a packed cluster cannot be unpacked");
        }
        self.unpacked.0 = Some(cluster);
        Ok(())
    }
}

fn check_features(file: &ImageFile, header: &[u8], version: u32) -> Result<(Packing, bool)> {
    if be64(header, 8) != 0 {
        return file.unsupported("has a backing file, which is not followed");
    }
    if be32(header, 32) != 0 {
        return file.unsupported("is encrypted");
    }
    let features = if version >= 3 { be64(header, 72) } else { 0 };
    if features & feature::CORRUPT != 0 {
        return file.damaged("QEMU has marked it as corrupt");
    }
    if features & feature::DATA_FILE != 0 {
        return file.unsupported("keeps its data in another file");
    }
    let known = feature::DIRTY | feature::COMPRESSION | feature::EXTENDED_L2;
    if features & !known != 0 {
        return file.unsupported("uses a qcow2 feature that is not known here");
    }
    let packing = match (features & feature::COMPRESSION != 0, header[104]) {
        (false, _) | (true, 0) => Packing::Deflate,
        (true, 1) => Packing::Zstd,
        _ => return file.unsupported("is packed in a way that is not known here"),
    };
    Ok((packing, features & feature::EXTENDED_L2 != 0))
}

impl Image for Qcow2 {
    fn size(&self) -> u64 {
        self.size
    }

    fn run(&mut self, offset: u64) -> Result<Run> {
        let m = self.map(offset)?;
        Ok(Run { len: m.end - offset, data: m.place != Place::Zero })
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        let m = self.map(offset)?;
        let skip = offset - m.start;
        match m.place {
            Place::Zero => out.fill(0),
            Place::Plain(host) => self.file.read_at(host.saturating_add(skip), out)?,
            Place::Packed { at, len, cluster } => {
                self.unpack(at, len, cluster)?;
                let skip = (offset - cluster) as usize;
                out.copy_from_slice(&self.unpacked.1[skip..skip + out.len()]);
            }
        }
        Ok(())
    }
}
