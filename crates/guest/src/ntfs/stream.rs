//! The stream of a non-resident attribute.

use super::runs::Run;
use super::{Fault, Result, Volume};

/// Bytes of a sparse run that cost one unit of work.
const HOLE_WORK: u64 = 512;

/// The data of an NTFS attribute.
#[derive(Debug)]
pub(super) struct Stream {
    pub cluster: u64,
    pub size: u64,
    /// Runs in ascending order of their VCNs. There can be gaps, if records are missing.
    pub runs: Vec<Run>,
}

impl Stream {
    /// Creates a stream from runs in any order. Reads of overlapping runs fail.
    pub fn new(cluster: u64, size: u64, mut runs: Vec<Run>) -> Stream {
        runs.sort_unstable_by_key(|run| (run.vcn, run.len));
        let end = runs.last().map_or(0, |run| run.vcn.saturating_add(run.len));
        Stream { cluster, size: size.min(end.saturating_mul(cluster)), runs }
    }

    /// Fills `out` with the bytes at `offset`; sparse runs are zeroes.
    pub fn read(&self, volume: &mut Volume, mut offset: u64, mut out: &mut [u8]) -> Result<()> {
        while !out.is_empty() {
            let vcn = offset / self.cluster;
            let after = self.runs.partition_point(|run| run.vcn <= vcn);
            let run = after.checked_sub(1).and_then(|i| self.runs.get(i)).ok_or(Fault::Invalid)?;
            let within = offset - run.vcn * self.cluster;
            // A sparse run can be longer than any disk.
            let len = run.len.saturating_mul(self.cluster);
            let left = len.checked_sub(within).filter(|left| *left != 0).ok_or(Fault::Invalid)?;
            let (part, rest) = out.split_at_mut((out.len() as u64).min(left) as usize);
            volume.disk.work(1)?;
            match run.lcn {
                Some(lcn) => volume.read(lcn * self.cluster + within, part)?,
                // A sparse run is not charged as a read, so charge work.
                None => {
                    volume.disk.work(part.len() as u64 / HOLE_WORK)?;
                    part.fill(0);
                }
            }
            offset += part.len() as u64;
            out = rest;
        }
        Ok(())
    }
}
