//! Rows about clones to which the same files are added: at different positions, but stored once.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Bench, Pace};
use crate::error::{During, Error, Result};
use crate::files::{self, Package, Recipe};
use crate::nbd;
use crate::report::{Bound, Row, Unit};
use crate::targets::servers::{Forebay, ForebayConfig, run};

const MIB: f64 = 1_048_576.0;
/// Bytes compared and written at a time.
const CHUNK: usize = 1 << 20;
const BLOCK: usize = 4096;

/// Clones of one image, to each of which the same package set is added.
pub fn clones(bench: &Bench, pace: &Pace, binary: &Path, packages: &mut Vec<Package>) -> Result<Vec<Row>> {
    let (count, set) = (pace.clones, pace.package_bytes);
    bench.say(&format!("{count} clones with the same {} MiB of files", set >> 20));
    let base = bench.dir.data("clone-base.raw");
    let system = files::take(packages, set / 2);
    let recipe = Recipe {
        packages: system.iter().collect(),
        order: 7,
        patch_one_of: 0,
        free: set * 5 / 4 + (32 << 20),
    };
    files::ext4(&base, &recipe)?;
    let added = files::take(packages, set);
    let added = files::files(&added);
    let forebay = Forebay::start(&bench.dir, binary, &ForebayConfig::new("same-files", 64 << 20))?;
    forebay.import("base", &base)?;
    let clones = forebay.clone_disks("base", "pc", count, &[])?;
    let stored = || -> Result<f64> {
        forebay.gc()?;
        Ok(forebay.stat("/stored_bytes")? as f64 / MIB)
    };
    let before = stored()?;
    let mut one = 0.0;
    let mut written = 0;
    for (n, clone) in (1..).zip(&clones) {
        let work = updated(&base, &added, n)?;
        written += write_changes(&forebay, clone, &base, &work)?;
        if n == 1 {
            one = stored()? - before;
        }
    }
    let all = stored()? - before;
    let what =
        format!("stored by {count} clones with the same files ({:.0} MiB written)", written as f64 / MIB);
    Ok(vec![Row::compare(what, Unit::Mib, Bound::RatioAtMost(1.1), &[all], ("by one clone", &[one]))])
}

/// A copy of the image with the files added, in an order that depends on the clone.
fn updated(base: &Path, added: &[(String, PathBuf)], n: u32) -> Result<PathBuf> {
    let work = base.with_extension("work");
    run(Command::new("cp").args(["--sparse=always", "--reflink=auto"]).arg(base).arg(&work))?;
    files::install(&work, added, u64::from(n) + 100)?;
    Ok(work)
}

/// Writes the blocks in which `work` differs from `base`, as a guest would. Returns the number of bytes.
fn write_changes(forebay: &Forebay, export: &str, base: &Path, work: &Path) -> Result<u64> {
    let failed = |source: nbd::NbdError| Error::request("forebay", source);
    let open = |path: &Path| File::open(path).during(|| format!("cannot open {}", path.display()));
    let (old, new) = (open(base)?, open(work)?);
    let mut disk = nbd::Disk::open(&forebay.server.target(), export).map_err(failed)?;
    let (mut a, mut b) = (vec![0; CHUNK], vec![0; CHUNK]);
    let (mut offset, mut written) = (0, 0);
    loop {
        let n = new.read_at(&mut b, offset).during(|| format!("cannot read {}", work.display()))?;
        if n == 0 {
            disk.flush().map_err(failed)?;
            return Ok(written);
        }
        old.read_exact_at(&mut a[..n], offset).during(|| format!("cannot read {}", base.display()))?;
        if a[..n] != b[..n] {
            for (at, len) in changed_runs(&a[..n], &b[..n]) {
                disk.write(offset + at as u64, &b[at..at + len]).map_err(failed)?;
                written += len as u64;
            }
        }
        offset += n as u64;
    }
}

/// Runs of blocks that differ: start and length.
fn changed_runs(old: &[u8], new: &[u8]) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for (i, (o, n)) in old.chunks(BLOCK).zip(new.chunks(BLOCK)).enumerate() {
        if o == n {
            continue;
        }
        match runs.last_mut() {
            Some((at, len)) if *at + *len == i * BLOCK => *len += n.len(),
            _ => runs.push((i * BLOCK, n.len())),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changed_blocks_are_written() {
        let old = vec![0; 5 * BLOCK];
        let mut new = old.clone();
        assert!(changed_runs(&old, &new).is_empty());
        for block in [0, 2, 3] {
            new[block * BLOCK + 7] = 1;
        }
        assert_eq!(changed_runs(&old, &new), [(0, BLOCK), (2 * BLOCK, 2 * BLOCK)]);
    }
}
