//! The content of an attribute that lies in clusters.

use super::runs::Run;
use super::{Fault, Result, Volume};

/// Bytes of a hole that count as a unit of work.
const HOLE_WORK: u64 = 512;

/// A stream of bytes in clusters.
#[derive(Debug)]
pub(super) struct Stream {
    pub cluster: u64,
    pub size: u64,
    /// In rising order of their clusters in the stream; there may be gaps where parts are not known.
    pub runs: Vec<Run>,
}

impl Stream {
    /// A stream of parts in any order; overlapping ones are found wanting when they are read.
    pub fn new(cluster: u64, size: u64, mut runs: Vec<Run>) -> Stream {
        runs.sort_unstable_by_key(|run| (run.vcn, run.len));
        let end = runs.last().map_or(0, |run| run.vcn.saturating_add(run.len));
        Stream { cluster, size: size.min(end.saturating_mul(cluster)), runs }
    }

    /// Fills `out` with the bytes at `offset`; a hole is zeroes.
    pub fn read(&self, volume: &mut Volume, mut offset: u64, mut out: &mut [u8]) -> Result<()> {
        while !out.is_empty() {
            let vcn = offset / self.cluster;
            let after = self.runs.partition_point(|run| run.vcn <= vcn);
            let run = after.checked_sub(1).and_then(|i| self.runs.get(i)).ok_or(Fault::Bad)?;
            let within = offset - run.vcn * self.cluster;
            // A hole may be longer than any disk.
            let len = run.len.saturating_mul(self.cluster);
            let left = len.checked_sub(within).filter(|left| *left != 0).ok_or(Fault::Bad)?;
            let (part, rest) = out.split_at_mut((out.len() as u64).min(left) as usize);
            volume.disk.work(1)?;
            match run.lcn {
                Some(lcn) => volume.read(lcn * self.cluster + within, part)?,
                // Not read, so not paid for as a read is.
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
