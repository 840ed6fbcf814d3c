//! NTFS, as Windows and ntfs-3g lay it out.
//!
//! Everything is a file, and every file has a record in the master file table, itself a file. Two sweeps over that
//! table: the first remembers the directories, so that the second can tell where each file stands, and claims its
//! clusters. Nothing is remembered of files, of which there are ten times as many. Last, what `$Bitmap` says is free.
//!
//! The volume is in use. A record that is being written fails its fixups and is left out; a record that was used
//! again has another sequence number than who refers to it expects, and is left out too. Two files may seem to have
//! the same cluster, or a file one that is free: the builder of the map resolves that to what needs most care.

mod boot;
mod file;
mod mft;
mod record;
mod runs;
mod stream;
mod tree;

use crate::bitmap;
use crate::class::Class;
use crate::disk::{Fault, Result, Tolerate, Volume, sane};
use crate::paths::Patterns;
use file::File;
use mft::Mft;
use record::DATA;
use tree::Tree;

/// Records of files that every volume has; the numbers below are reserved for them.
const BITMAP: u64 = 6;
const ROOT: u64 = 5;
const EXTEND: u64 = 11;
const FIRST_USER: u64 = 24;

/// Bytes of a bitmap that are read at once.
const CHUNK: usize = 64 << 10;

/// Finds what an NTFS volume holds. `Bad` where it is none.
pub(crate) fn scan(volume: &mut Volume, patterns: &Patterns) -> Result<()> {
    let geometry = boot::read(volume)?;
    // The copy of the boot sector stands behind the last cluster.
    volume.claim(geometry.copy_of_boot, geometry.sector, Class::Metadata);
    let mft = Mft::open(volume, geometry)?;
    let tree = Tree::read(volume, &mft)?;
    let mut places = tree::Places::new(&tree, patterns);
    mft.sweep(volume, |volume, number, record| {
        let Some(file) = File::gather(volume, &mft, number, record).tolerate()? else { return Ok(()) };
        file.claim(volume, &mft, &mut places)
    })?;
    free(volume, &mft).tolerate()?;
    Ok(())
}

/// Claims what `$Bitmap` says is free.
fn free(volume: &mut Volume, mft: &Mft) -> Result<()> {
    let record = mft.read(volume, BITMAP)?;
    let file = File::gather(volume, mft, BITMAP, record)?;
    let stream = file.stream(volume, mft, DATA, &[])?.ok_or(Fault::Bad)?;
    let clusters = mft.geometry.clusters;
    let cluster = mft.geometry.cluster;
    let mut buffer = vec![0; CHUNK];
    let mut offset = 0;
    while offset < stream.size && offset * 8 < clusters {
        volume.disk.work(1)?;
        let part = &mut buffer[..CHUNK.min((stream.size - offset) as usize)];
        // What cannot be read is not known to be free.
        if stream.read(volume, offset, part).tolerate()?.is_some() {
            let bits = (clusters - offset * 8).min(CHUNK as u64 * 8) as usize;
            for run in bitmap::clear_runs(part, bits) {
                volume.disk.work(1)?;
                let first = offset * 8 + run.start as u64;
                volume.claim(first * cluster, run.len() as u64 * cluster, Class::Free);
            }
        }
        offset += CHUNK as u64;
    }
    Ok(())
}
