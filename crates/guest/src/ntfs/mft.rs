//! The master file table: found by way of its own first record, and swept.

use super::boot::Geometry;
use super::file::File;
use super::record::{DATA, Record};
use super::stream::Stream;
use super::{Fault, Result, Tolerate, Volume};

/// Bytes of the table that are read at once.
const CHUNK: usize = 256 << 10;

/// The table.
#[derive(Debug)]
pub(super) struct Mft {
    pub geometry: Geometry,
    stream: Stream,
}

impl Mft {
    /// Reads the first record, or its copy, and what it says of the table.
    ///
    /// A table in many pieces has them listed in more records than one, which are in the table: each is found by way
    /// of those before it.
    pub fn open(volume: &mut Volume, geometry: Geometry) -> Result<Mft> {
        for lcn in geometry.mft {
            let offset = lcn.saturating_mul(geometry.cluster);
            let Some(bytes) = volume.read_vec(offset, geometry.record).tolerate()? else { continue };
            let Some(first) = Record::parse(&bytes).filter(|r| r.base.is_none()) else { continue };
            let mut mft = Mft { geometry, stream: Stream::new(geometry.cluster, 0, Vec::new()) };
            let mut file = File::alone(0, first);
            mft.stream = file.stream(volume, &mft, DATA, &[])?.ok_or(Fault::Bad)?;
            // What makes it no longer is the end, or a table that says now this and now that would go on and on.
            loop {
                file = File::gather_from(volume, &mft, file)?;
                let stream = file.stream(volume, &mft, DATA, &[])?.ok_or(Fault::Bad)?;
                if stream.runs.len() <= mft.stream.runs.len() {
                    return Ok(mft);
                }
                mft.stream = stream;
            }
        }
        Err(Fault::Bad)
    }

    /// One record, if it is in use.
    pub fn read(&self, volume: &mut Volume, number: u64) -> Result<Record> {
        volume.disk.work(1)?;
        let mut bytes = vec![0; self.geometry.record];
        let offset = number.saturating_mul(self.geometry.record as u64);
        super::sane(offset < self.stream.size)?;
        self.stream.read(volume, offset, &mut bytes)?;
        Record::parse(&bytes).ok_or(Fault::Bad)
    }

    /// Hands every record in use that is not a part of another to `each`, in order.
    pub fn sweep(
        &self,
        volume: &mut Volume,
        mut each: impl FnMut(&mut Volume, u64, Record) -> Result<()>,
    ) -> Result<()> {
        let record = self.geometry.record;
        let mut buffer = vec![0; CHUNK];
        let mut offset = 0;
        while offset < self.stream.size {
            volume.disk.work(1)?;
            let part = &mut buffer[..CHUNK.min((self.stream.size - offset) as usize)];
            if self.stream.read(volume, offset, part).tolerate()?.is_some() {
                for (i, bytes) in part.chunks_exact(record).enumerate() {
                    volume.disk.work(1)?;
                    if let Some(parsed) = Record::parse(bytes).filter(|r| r.base.is_none()) {
                        each(volume, offset / record as u64 + i as u64, parsed)?;
                    }
                }
            }
            offset += CHUNK as u64;
        }
        Ok(())
    }
}
