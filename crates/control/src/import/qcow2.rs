//! qcow2, the format of QEMU, versions 2 and 3 (QEMU, docs/interop/qcow2.rst).
//!
//! A two-level table maps guest clusters to host clusters, which are the clusters of the file. An L1 entry
//! refers to an L2 table, and an L2 entry refers to a cluster, which is uncompressed, compressed or zero.
//! Unallocated clusters are zero, because a file with a backing file is refused. Internal snapshots are
//! ignored: the active state of the disk is imported. Reference counts are not needed to read.

use super::compress::{Compression, decompress};
use super::error::Remedy;
use super::file::ImageFile;
use super::file::bytes::{be32, be64};
use super::{Image, Result, Run};

/// The first bytes of a qcow2 file.
pub(super) const MAGIC: &[u8] = b"QFI\xfb";
/// Header length of version 2; the header of version 3 is longer ([`HEADER_V3`]).
const HEADER_V2: usize = 72;
/// Bytes of the header of version 3 that are read.
const HEADER_V3: usize = 112;
/// Maximum length of the L1 table, the same as in QEMU.
const MAX_L1_BYTES: u64 = 32 << 20;
/// Bits of a table entry that are an offset in the file.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
/// Flag of an L2 entry: the cluster is compressed.
const COMPRESSED: u64 = 1 << 62;
/// Flag of an L2 entry: the cluster is zero (version 3, without subclusters).
const ZERO: u64 = 1;
/// Subclusters per cluster with extended L2 entries.
const SUBCLUSTERS: u64 = 32;

/// Remedies: for a file that needs further files or has too much compressed data, and for a file of a later
/// release of QEMU.
const FLATTEN: Remedy = Remedy::Convert { from: "qcow2" };
const NEWER: Remedy = Remedy::Say("convert it to raw with the release of QEMU that made it");

/// Incompatible features of a qcow2 file (header, byte 72).
mod feature {
    /// Reference counts may be inconsistent; irrelevant for reading.
    pub const DIRTY: u64 = 1;
    /// QEMU has detected damage of the file.
    pub const CORRUPT: u64 = 2;
    /// The data is in an external data file.
    pub const DATA_FILE: u64 = 4;
    /// Byte 104 is the compression type.
    pub const COMPRESSION: u64 = 8;
    /// L2 entries have 16 bytes.
    pub const EXTENDED_L2: u64 = 16;
}

/// The location of a range of the disk in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Location {
    Zero,
    /// The cluster is uncompressed, at this offset of the file.
    Plain(u64),
    /// The data is in the compressed cluster at `at..at + len` of the file, which begins at guest offset
    /// `cluster`.
    Compressed {
        at: u64,
        len: u64,
        cluster: u64,
    },
}

/// A range of the disk and its location.
#[derive(Debug, Clone, Copy)]
struct Mapping {
    start: u64,
    end: u64,
    location: Location,
}

/// An open qcow2 file.
pub(super) struct Qcow2 {
    file: ImageFile,
    size: u64,
    cluster_bits: u32,
    compression: Compression,
    extended_l2: bool,
    version: u32,
    l1: Vec<u64>,
    /// The cached L2 table: its offset in the file and its bytes. One is enough, because reads are
    /// sequential.
    l2: (u64, Vec<u8>),
    /// The mapping that was looked up last.
    mapping: Option<Mapping>,
    /// The cached decompressed cluster: its guest offset and its bytes.
    decompressed: (Option<u64>, Vec<u8>),
    /// Buffer for the compressed data of a cluster.
    compressed: Vec<u8>,
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
            // A version 3 header has at least 104 bytes, and at least eight bytes of extensions follow it.
            3 => header = file.read_vec(0, HEADER_V3 as u64)?,
            1 => return file.unsupported("is a qcow file of version 1", Remedy::Convert { from: "qcow" }),
            _ => return file.unsupported("is a qcow2 file of a version after 3", NEWER),
        }
        let (compression, extended_l2) = check_features(&file, &header, version)?;
        let cluster_bits = be32(&header, 20);
        if !(9..=21).contains(&cluster_bits) || (extended_l2 && cluster_bits < 14) {
            return file.damaged("its cluster size is out of range");
        }
        let size = be64(&header, 24);
        let l1_entries = u64::from(be32(&header, 36));
        let entry_bits = if extended_l2 { 4 } else { 3 };
        let l2_bits = cluster_bits - entry_bits;
        let needed = size.div_ceil(1 << (cluster_bits + l2_bits));
        if l1_entries < needed || l1_entries * 8 > MAX_L1_BYTES {
            return file.damaged("the length of its L1 table does not match its size");
        }
        let l1 = file.read_vec(be64(&header, 40), needed * 8)?;
        let l1 = l1.chunks_exact(8).map(|e| be64(e, 0) & OFFSET).collect();
        Ok(Qcow2 {
            file,
            size,
            cluster_bits,
            compression,
            extended_l2,
            version,
            l1,
            l2: (0, Vec::new()),
            mapping: None,
            decompressed: (None, Vec::new()),
            compressed: Vec::new(),
        })
    }

    fn cluster_size(&self) -> u64 {
        1 << self.cluster_bits
    }

    /// Number of guest offset bits that one L2 table covers.
    fn l2_span_bits(&self) -> u32 {
        self.cluster_bits + self.cluster_bits - if self.extended_l2 { 4 } else { 3 }
    }

    /// Looks up the mapping of the cluster or subcluster at `offset`.
    fn lookup(&mut self, offset: u64) -> Result<Mapping> {
        let span = self.l2_span_bits();
        // `open` has checked that the L1 table covers all offsets of the disk.
        let table = self.l1[(offset >> span) as usize];
        if table == 0 {
            let start = offset >> span << span;
            return Ok(Mapping { start, end: start + (1 << span), location: Location::Zero });
        }
        self.load_l2(table)?;
        let start = offset & !(self.cluster_size() - 1);
        let index = ((offset >> self.cluster_bits) & ((1 << (span - self.cluster_bits)) - 1)) as usize;
        let entry_size = if self.extended_l2 { 16 } else { 8 };
        let entry = be64(&self.l2.1, index * entry_size);
        let end = start + self.cluster_size();
        if entry & COMPRESSED != 0 {
            return Ok(Mapping { start, end, location: self.compressed_location(entry, start) });
        }
        let host = entry & OFFSET;
        if self.extended_l2 {
            return self.subcluster(offset, start, host, be64(&self.l2.1, index * 16 + 8));
        }
        if host == 0 || (entry & ZERO != 0 && self.version >= 3) {
            return Ok(Mapping { start, end, location: Location::Zero });
        }
        if host & (self.cluster_size() - 1) != 0 {
            return self.file.damaged("the offset of a cluster is not aligned");
        }
        Ok(Mapping { start, end, location: Location::Plain(host) })
    }

    /// Looks up a subcluster of an extended L2 entry. In its bitmap, bit n of the low half means that
    /// subcluster n is allocated, and bit n of the high half that it is zero.
    fn subcluster(&self, offset: u64, cluster: u64, host: u64, bitmap: u64) -> Result<Mapping> {
        let size = self.cluster_size() / SUBCLUSTERS;
        let index = (offset - cluster) / size;
        let start = cluster + index * size;
        let allocated = bitmap >> index & 1 != 0;
        let zero = bitmap >> (index + SUBCLUSTERS) & 1 != 0;
        if allocated && (zero || host == 0 || host & (self.cluster_size() - 1) != 0) {
            return self.file.damaged("a subcluster has an invalid state");
        }
        let location = if allocated { Location::Plain(host + index * size) } else { Location::Zero };
        Ok(Mapping { start, end: start + size, location })
    }

    /// Decodes the entry of a compressed cluster: the low bits are the offset, the bits above it the number
    /// of additional sectors.
    fn compressed_location(&self, entry: u64, cluster: u64) -> Location {
        let offset_bits = 62 - (self.cluster_bits - 8);
        let at = entry & ((1 << offset_bits) - 1);
        let sectors = (entry & (COMPRESSED - 1)) >> offset_bits;
        Location::Compressed { at, len: (sectors + 1) * 512 - at % 512, cluster }
    }

    fn load_l2(&mut self, table: u64) -> Result<()> {
        if self.l2.0 != table {
            if table & (self.cluster_size() - 1) != 0 {
                return self.file.damaged("the offset of an L2 table is not aligned");
            }
            self.l2 = (table, self.file.read_vec(table, self.cluster_size())?);
        }
        Ok(())
    }

    /// Returns the mapping at `offset`, merged with subsequent mappings that continue it.
    fn map(&mut self, offset: u64) -> Result<Mapping> {
        if let Some(m) = self.mapping
            && (m.start..m.end).contains(&offset)
        {
            return Ok(m);
        }
        let mut m = self.lookup(offset)?;
        // Merging gives long reads. The limit lets the caller report progress.
        let limit = m.start.saturating_add(64 << 20).min(self.size);
        while m.end < limit {
            let next = self.lookup(m.end)?;
            let continues = match (m.location, next.location) {
                (Location::Zero, Location::Zero) => true,
                (Location::Plain(host), Location::Plain(next_host)) => host + (m.end - m.start) == next_host,
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

    /// Decompresses a cluster, unless it is cached.
    fn load_compressed(&mut self, at: u64, len: u64, cluster: u64) -> Result<()> {
        if self.decompressed.0 == Some(cluster) {
            return Ok(());
        }
        self.decompressed.0 = None;
        // The length is in sectors, so it can exceed the end of the file.
        let len = len.min(self.file.len().saturating_sub(at));
        self.compressed.resize(len as usize, 0);
        self.file.read_at(at, &mut self.compressed)?;
        self.file.charge_decompressed(self.cluster_size(), FLATTEN)?;
        self.decompressed.1.resize(1 << self.cluster_bits, 0);
        match decompress(self.compression, &self.compressed, &mut self.decompressed.1) {
            Ok(used) => self.file.charge(used as u64)?,
            Err(_) => return self.file.damaged("a compressed cluster cannot be decompressed"),
        }
        self.decompressed.0 = Some(cluster);
        Ok(())
    }
}

/// Checks the features of the header. Returns the compression type and whether L2 entries are extended.
fn check_features(file: &ImageFile, header: &[u8], version: u32) -> Result<(Compression, bool)> {
    if be64(header, 8) != 0 {
        return file.unsupported("has a backing file, which is not supported", FLATTEN);
    }
    if be32(header, 32) != 0 {
        return file.unsupported("is encrypted", Remedy::Say("decrypt it first"));
    }
    let features = if version >= 3 { be64(header, 72) } else { 0 };
    if features & feature::CORRUPT != 0 {
        return file.unsupported("is damaged: QEMU has marked it as corrupt", Remedy::Repair);
    }
    if features & feature::DATA_FILE != 0 {
        return file.unsupported("stores its data in another file", FLATTEN);
    }
    let known = feature::DIRTY | feature::COMPRESSION | feature::EXTENDED_L2;
    if features & !known != 0 {
        return file.unsupported("uses an unknown qcow2 feature", NEWER);
    }
    let compression = match (features & feature::COMPRESSION != 0, header[104]) {
        (false, _) | (true, 0) => Compression::Deflate,
        (true, 1) => Compression::Zstd,
        _ => return file.unsupported("uses an unknown compression type", NEWER),
    };
    Ok((compression, features & feature::EXTENDED_L2 != 0))
}

impl Image for Qcow2 {
    fn size(&self) -> u64 {
        self.size
    }

    fn run(&mut self, offset: u64) -> Result<Run> {
        let m = self.map(offset)?;
        Ok(Run { len: m.end - offset, data: m.location != Location::Zero })
    }

    fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        let m = self.map(offset)?;
        let skip = offset - m.start;
        match m.location {
            Location::Zero => out.fill(0),
            Location::Plain(host) => self.file.read_contents(host.saturating_add(skip), out)?,
            Location::Compressed { at, len, cluster } => {
                self.load_compressed(at, len, cluster)?;
                let skip = (offset - cluster) as usize;
                out.copy_from_slice(&self.decompressed.1[skip..skip + out.len()]);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    const CLUSTER: u64 = 64 << 10;

    /// A file whose clusters are compressed with Zstandard. Each cluster refers to the same 10 bytes.
    fn compressed(clusters: u64) -> (tempfile::NamedTempFile, Qcow2) {
        let [l1_at, l2_at, data_at] = [4096, CLUSTER, 2 * CLUSTER];
        let mut header = [0; HEADER_V3];
        header[..4].copy_from_slice(MAGIC);
        header[4..8].copy_from_slice(&3u32.to_be_bytes());
        header[20..24].copy_from_slice(&16u32.to_be_bytes());
        header[24..32].copy_from_slice(&(clusters * CLUSTER).to_be_bytes());
        header[36..40].copy_from_slice(&1u32.to_be_bytes());
        header[40..48].copy_from_slice(&l1_at.to_be_bytes());
        header[72..80].copy_from_slice(&feature::COMPRESSION.to_be_bytes());
        header[104] = 1;
        // A window of 64 KiB, and a run of 64 KiB that is the last block.
        let run = (CLUSTER as u32) << 3 | 1 << 1 | 1;
        let frame = [&[0x28, 0xb5, 0x2f, 0xfd, 0, 6 << 3][..], &run.to_le_bytes()[..3], &[7]].concat();
        let file = tempfile::NamedTempFile::new().unwrap();
        let put = |at: u64, bytes: &[u8]| file.as_file().write_all_at(bytes, at).unwrap();
        put(0, &header);
        put(l1_at, &l2_at.to_be_bytes());
        put(l2_at, &(COMPRESSED | data_at).to_be_bytes().repeat(clusters as usize));
        put(data_at, &frame);
        let image = Qcow2::open(ImageFile::open(file.path()).unwrap()).unwrap();
        (file, image)
    }

    #[test]
    fn decompressed_bytes_are_limited_by_the_length_of_the_file() {
        let (_file, mut image) = compressed(8);
        let limit = 1032 * image.file.len() + (1 << 30);
        image.file.charge_decompressed(limit - 4 * CLUSTER, FLATTEN).unwrap();
        let mut out = vec![0; CLUSTER as usize / 2];
        for half in 0..8 {
            out.fill(0);
            image.read(half * CLUSTER / 2, &mut out).unwrap();
            assert!(out.iter().all(|b| *b == 7));
        }
        let refused = image.read(4 * CLUSTER, &mut out).unwrap_err().to_string();
        assert!(refused.contains("1032 times its length; convert it first: qemu-img"), "{refused}");
    }
}
