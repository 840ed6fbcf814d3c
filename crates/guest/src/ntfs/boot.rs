//! The boot sector, which says how large clusters and records are and where the master file table begins.

use super::{Fault, Result, Tolerate, Volume};
use crate::bytes::{le16, le64};

/// What the boot sector says.
#[derive(Debug, Clone, Copy)]
pub(super) struct Geometry {
    /// Bytes of a sector.
    pub sector: u64,
    /// Bytes of a cluster.
    pub cluster: u64,
    /// Clusters of the volume.
    pub clusters: u64,
    /// Bytes of a record of the master file table.
    pub record: usize,
    /// First clusters of the table, and of the copy of its first records.
    pub mft: [u64; 2],
    /// Where the second boot sector is.
    pub copy_of_boot: u64,
}

/// The geometry, from the first sector or from the copy in the volume's last.
pub(super) fn read(volume: &mut Volume) -> Result<Geometry> {
    let mut sector = [0; 512];
    if volume.read(0, &mut sector).tolerate()?.is_some()
        && let Some(geometry) = parse(&sector, volume.len())
    {
        return Ok(geometry);
    }
    let last = volume.len().checked_sub(512).ok_or(Fault::Bad)?;
    volume.read(last, &mut sector)?;
    parse(&sector, volume.len()).ok_or(Fault::Bad)
}

fn parse(sector: &[u8], volume_len: u64) -> Option<Geometry> {
    if sector.get(3..11)? != b"NTFS    " {
        return None;
    }
    let bytes: u64 = le16(sector, 11)?.into();
    // Above 128 it is the negative exponent.
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
