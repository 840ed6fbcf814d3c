//! The targets that are compared, with the same disks: Forebay, and `tgtd`.

use std::path::Path;

use crate::device::Endpoint;
use crate::error::Result;
use crate::iscsi::Address;
use crate::targets::servers::{Disk, Forebay, ForebayConfig, Tgtd, Unit, WorkDir, portal, random_image};

/// Logical units, the same on both targets.
pub const READS: u8 = 1;
/// The unit with a write cache: a write is answered when it is in RAM.
pub const WRITES: u8 = 2;
/// Number of the unit without a write cache.
pub const DURABLE: u8 = 3;
/// The volume that hosts share, only on Forebay; configured as `DURABLE`.
pub const SHARED: u8 = 4;

const TARGET: &str = "iqn.2026-01.org.example:bench";
/// Name of the image from which all of Forebay's volumes are cloned.
pub const BASE: &str = "base";

/// A Forebay server with the units.
pub struct Ours {
    /// The server that is measured.
    pub forebay: Forebay,
    portal: String,
}

impl Ours {
    /// Starts a server whose units are clones of an image of `size` random bytes, with a read cache of three
    /// times that size.
    pub fn start(dir: &WorkDir, binary: &Path, size: u64) -> Result<Ours> {
        let portal = portal()?;
        let settings =
            format!("[iscsi]\nlisten = [\"{portal}\"]\n[durability]\nremote_answers = \"memory\"\n");
        let forebay = Forebay::start(dir, binary, &ForebayConfig::new("forebay", 3 * size).with(settings))?;
        let image = dir.data("base.raw");
        random_image(&image, size)?;
        forebay.import(BASE, &image)?;
        forebay.cli(&["target", "create", TARGET, "--open"])?;
        for (volume, lun, write_back) in [
            ("reads", READS, false),
            ("writes", WRITES, true),
            ("durable", DURABLE, false),
            ("shared", SHARED, false),
        ] {
            forebay.clone_disk(BASE, volume)?;
            let lun = lun.to_string();
            let map = ["lun", "map", TARGET, volume, "--lun", &lun, "--write-back"];
            forebay.cli(&map[..if write_back { 7 } else { 6 }])?;
        }
        Ok(Ours { forebay, portal })
    }

    /// Whether its read cache has reached its maximum.
    pub fn cache_is_full(&self) -> Result<bool> {
        let (bytes, budget) =
            (self.forebay.stat("/read_cache/bytes")?, self.forebay.stat("/read_cache/budget_bytes")?);
        Ok(bytes >= budget / 20 * 19)
    }

    /// The address of a unit.
    pub fn unit(&self, lun: u8) -> Address {
        Address { portal: self.portal.clone(), target: TARGET.to_owned(), lun }
    }

    /// Returns the unit with number `lun`.
    pub fn disk(&self, lun: u8) -> Disk<'_> {
        Disk { process: &self.forebay.server.process, endpoint: Endpoint::Iscsi(self.unit(lun)) }
    }
}

/// Starts `tgtd` with files of `size` random bytes next to Forebay's data.
pub fn tgtd(dir: &WorkDir, size: u64) -> Result<Tgtd> {
    let units = [READS, WRITES, DURABLE].map(|lun| Unit {
        lun,
        file: dir.data(&format!("tgtd-{lun}.raw")),
        write_cache: lun != DURABLE,
    });
    units.iter().try_for_each(|unit| random_image(&unit.file, size))?;
    Tgtd::start(dir, &portal()?, &units)
}
