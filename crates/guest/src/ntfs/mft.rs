//! The master file table (MFT): opened by its first record, which describes the table itself.

use super::boot::Geometry;
use super::file::File;
use super::record::{DATA, Record};
use super::stream::Stream;
use super::{Fault, Result, Tolerate, Volume};

/// Bytes of the master file table that one read returns.
const CHUNK: usize = 256 << 10;

/// The master file table.
#[derive(Debug)]
pub(super) struct Mft {
    pub geometry: Geometry,
    stream: Stream,
}

impl Mft {
    /// Reads the first record, or its copy in `$MFTMirr`, and the runs of the table.
    /// | The runs of a fragmented table are in several records, which are in the table themselves: the runs
    /// of the previous records locate the next record.
    pub fn open(volume: &mut Volume, geometry: Geometry) -> Result<Mft> {
        for lcn in geometry.mft {
            let offset = lcn.saturating_mul(geometry.cluster);
            let Some(bytes) = volume.read_vec(offset, geometry.record).tolerate()? else { continue };
            let Some(first) = Record::parse(&bytes).filter(|r| r.base.is_none()) else { continue };
            let mut mft = Mft { geometry, stream: Stream::new(geometry.cluster, 0, Vec::new()) };
            let mut file = File::from_base(0, first);
            mft.stream = file.stream(volume, &mft, DATA, &[])?.ok_or(Fault::Invalid)?;
            // Ends when no runs are added, because a table whose records are inconsistent would loop
            // otherwise.
            loop {
                file = File::reload(volume, &mft, file)?;
                let stream = file.stream(volume, &mft, DATA, &[])?.ok_or(Fault::Invalid)?;
                if stream.runs.len() <= mft.stream.runs.len() {
                    return Ok(mft);
                }
                mft.stream = stream;
            }
        }
        Err(Fault::Invalid)
    }

    /// Reads a record that is in use.
    pub fn read(&self, volume: &mut Volume, number: u64) -> Result<Record> {
        volume.disk.work(1)?;
        let mut bytes = vec![0; self.geometry.record];
        let offset = number.saturating_mul(self.geometry.record as u64);
        super::ensure(offset < self.stream.size)?;
        self.stream.read(volume, offset, &mut bytes)?;
        Record::parse(&bytes).ok_or(Fault::Invalid)
    }

    /// Passes every base record in use to `each`, in order.
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
