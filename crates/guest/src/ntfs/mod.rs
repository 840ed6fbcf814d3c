//! NTFS, as written by Windows and ntfs-3g.
//!
//! Everything is a file, and every file has a base record in the master file table (MFT), which is a file
//! too. The scan sweeps the MFT twice: the first sweep stores the directories, and the second one determines
//! the path and class of each file and claims its clusters. Files are not stored, because there are about ten
//! times as many of them as directories. Finally, `$Bitmap` provides the free clusters.
//!
//! The volume is in use during the scan. A record that is being written fails its fixups and is skipped. A
//! record that was reused has another sequence number than references to it expect, and is skipped too. Two
//! files may appear to share a cluster, or a file may appear to use a free one: the map builder resolves such
//! conflicts to the class that needs most care.

mod boot;
mod file;
mod mft;
mod record;
mod runs;
mod stream;
mod tree;

use crate::bitmap;
use crate::class::Class;
use crate::disk::{Fault, Result, Tolerate, Volume, ensure};
use crate::paths::Patterns;
use file::File;
use mft::Mft;
use record::DATA;
use tree::Tree;

/// Records of system files; numbers below [`FIRST_USER`] are reserved.
const BITMAP: u64 = 6;
const ROOT: u64 = 5;
const EXTEND: u64 = 11;
const FIRST_USER: u64 = 24;

/// Bytes of the bitmap that one read returns.
const CHUNK: usize = 64 << 10;

/// Scans an NTFS volume. Returns `Invalid` if it is none.
pub(crate) fn scan(volume: &mut Volume, patterns: &Patterns) -> Result<()> {
    let geometry = boot::read(volume)?;
    // The backup boot sector is after the last cluster.
    volume.claim(geometry.copy_of_boot, geometry.sector, Class::Metadata);
    let mft = Mft::open(volume, geometry)?;
    let tree = Tree::read(volume, &mft)?;
    let mut parents = tree::ParentLookup::new(&tree, patterns);
    mft.sweep(volume, |volume, number, record| {
        let Some(file) = File::load(volume, &mft, number, record).tolerate()? else { return Ok(()) };
        file.claim(volume, &mft, &mut parents)
    })?;
    free(volume, &mft).tolerate()?;
    Ok(())
}

/// Claims the clusters that are free in `$Bitmap`.
fn free(volume: &mut Volume, mft: &Mft) -> Result<()> {
    let record = mft.read(volume, BITMAP)?;
    let file = File::load(volume, mft, BITMAP, record)?;
    let stream = file.stream(volume, mft, DATA, &[])?.ok_or(Fault::Invalid)?;
    let clusters = mft.geometry.clusters;
    let cluster = mft.geometry.cluster;
    let mut buffer = vec![0; CHUNK];
    let mut offset = 0;
    while offset < stream.size && offset * 8 < clusters {
        volume.disk.work(1)?;
        let part = &mut buffer[..CHUNK.min((stream.size - offset) as usize)];
        // Unreadable parts of the bitmap are skipped: their clusters are not claimed as free.
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
