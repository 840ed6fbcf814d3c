//! The boot sector: sizes of clusters and file records, and the location of the master file table (MFT).

use super::{Fault, Result, Tolerate, Volume};
use crate::bytes::{le16, le64};

/// The geometry of an NTFS volume.
#[derive(Debug, Clone, Copy)]
pub(super) struct Geometry {
    /// Sector size in bytes.
    pub sector: u64,
    /// Cluster size in bytes.
    pub cluster: u64,
    /// Number of clusters of the file system.
    pub clusters: u64,
    /// Size of a file record in bytes.
    pub record: usize,
    /// First clusters of `$MFT` and `$MFTMirr`.
    pub mft: [u64; 2],
    /// Offset of the backup boot sector.
    pub copy_of_boot: u64,
}

/// Reads the geometry from the boot sector, or from its backup in the last sector of the volume.
pub fn read(volume: &mut Volume) -> Result<Geometry> {
    let mut sector = [0; 512];
    if volume.read(0, &mut sector).tolerate()?.is_some()
        && let Some(geometry) = parse(&sector, volume.len())
    {
        return Ok(geometry);
    }
    let last = volume.len().checked_sub(512).ok_or(Fault::Invalid)?;
    volume.read(last, &mut sector)?;
    parse(&sector, volume.len()).ok_or(Fault::Invalid)
}

fn parse(sector: &[u8], volume_len: u64) -> Option<Geometry> {
    if sector.get(3..11)? != b"NTFS    " {
        return None;
    }
    let bytes: u64 = le16(sector, 11)?.into();
    // Values above 128 are the negative binary logarithm.
    let sectors: u64 = match *sector.get(13)? {
        n @ 0..=128 => n.into(),
        n => 1_u64.checked_shl(u32::from(n).abs_diff(256))?,
    };
    let cluster = bytes.checked_mul(sectors)?;
    let record = match *sector.get(64)? as i8 {
        n @ 1..=127 => cluster.checked_mul(n as u64)?,
        n => 1_u64.checked_shl(n.unsigned_abs().into())?,
    };
    let total = le64(sector, 40)?.checked_mul(bytes)?;
    let mft = [le64(sector, 48)?, le64(sector, 56)?];
    let plausible = (bytes.is_power_of_two() && (256..=4096).contains(&bytes))
        && (cluster.is_power_of_two() && (512..=2 << 20).contains(&cluster))
        && (record.is_power_of_two() && (512..=4096).contains(&record));
    plausible.then(|| Geometry {
        sector: bytes,
        cluster,
        clusters: total.min(volume_len) / cluster,
        record: record as usize,
        mft,
        copy_of_boot: total,
    })
}
