//! The targets that are compared, with the same disks: Forebay, and `tgtd`, Debian's iSCSI target in user
//! space.

use std::net::TcpListener;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::bench::Result;
use crate::bench::error::{BenchError, During};
use crate::bench::process::Process;
use crate::bench::servers::{Forebay, ForebayConfig, run};
use crate::bench::workdir::{WorkDir, random_image};
use crate::iscsi::{Address, Load, Loaded};
use crate::load::Report;

/// Logical units, the same on both targets. `tgtd` reserves unit 0.
pub const READS: u8 = 1;
/// With a write cache: a write is answered when it is in RAM.
pub const WRITES: u8 = 2;
/// Without a write cache.
pub const DURABLE: u8 = 3;
/// The volume that hosts share, only on Forebay; configured as `DURABLE`.
pub const SHARED: u8 = 4;

const TARGET: &str = "iqn.2026-01.org.example:bench";
/// Name of the image from which all of Forebay's volumes are cloned.
pub const BASE: &str = "base";

/// A running target.
#[derive(Clone, Copy)]
pub struct Target<'a> {
    /// Its name in reports.
    pub name: &'static str,
    /// The process.
    pub process: &'a Process,
    portal: &'a str,
}

impl Target<'_> {
    /// A logical unit of it.
    pub fn unit(&self, lun: u8) -> Address {
        Address { portal: self.portal.to_owned(), target: TARGET.to_owned(), lun }
    }

    /// The URL of a logical unit in libiscsi's format.
    pub fn url(&self, lun: u8) -> String {
        format!("iscsi://{}/{TARGET}/{lun}", self.portal)
    }

    /// Runs a load whose commands must all succeed; `change` sets its parameters.
    pub fn load(&self, lun: u8, change: impl FnOnce(&mut Load<'_>)) -> Result<Report> {
        let mut load = Load::new(self.unit(lun));
        change(&mut load);
        self.sound(load.run()).map(|loaded| loaded.report)
    }

    /// The result of a load, or an error if one of its commands failed.
    pub fn sound(&self, loaded: std::result::Result<Loaded, crate::iscsi::IscsiError>) -> Result<Loaded> {
        let server = self.name;
        let loaded = loaded.map_err(|source| BenchError::Iscsi { server, source })?;
        match loaded.report.first_error {
            Some(code) => Err(BenchError::Scsi { server, count: loaded.report.errors, code }),
            None => Ok(loaded),
        }
    }
}

/// Ports of servers: below those that Linux gives to clients, so that a server that is started later, or
/// again, finds its port unused.
const PORTS: Range<u32> = 30_000..32_000;

/// An address of this machine with a free port.
pub fn portal() -> Result<String> {
    // Servers that do not listen yet have different ports, and so have those of other processes.
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    let first = std::process::id().wrapping_add(GIVEN.fetch_add(1, Relaxed));
    let count = PORTS.end - PORTS.start;
    let mut addresses = (0..count).map(|n| PORTS.start + first.wrapping_add(n) % count);
    let free = addresses.find_map(|port| {
        let address = format!("127.0.0.1:{port}");
        TcpListener::bind(&address).ok().map(|_| address)
    });
    let none = || std::io::Error::from(std::io::ErrorKind::AddrInUse);
    free.ok_or_else(none).during(|| "cannot find a free port".to_owned())
}

/// A Forebay server with the units.
pub struct Ours {
    /// The server.
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

    /// Its iSCSI target.
    pub fn target(&self) -> Target<'_> {
        Target { name: "forebay", process: &self.forebay.server.process, portal: &self.portal }
    }
}

/// A separate `tgtd`, independent of others on this machine.
pub struct Tgtd {
    /// The process.
    pub process: Process,
    portal: String,
    ipc: PathBuf,
}

/// A logical unit of `tgtd`: a raw file.
pub struct Unit {
    /// The unit's number, from 1.
    pub lun: u8,
    /// The file.
    pub file: PathBuf,
    /// Whether writes are answered before they are durable.
    pub write_cache: bool,
}

/// The number of its control socket.
const CONTROL: &str = "1";
/// The mode page that disables the write cache: byte 2, bit 2 of the caching page.
const NO_WRITE_CACHE: &str =
    "mode_page=8:0:18:0x10:0:0xff:0xff:0:0:0xff:0xff:0xff:0xff:0x80:0x14:0:0:0:0:0:0";

impl Tgtd {
    /// Starts `tgtd` with files of `size` random bytes next to Forebay's data.
    pub fn start(dir: &WorkDir, size: u64) -> Result<Tgtd> {
        let units = [READS, WRITES, DURABLE].map(|lun| Unit {
            lun,
            file: dir.data(&format!("tgtd-{lun}.raw")),
            write_cache: lun != DURABLE,
        });
        units.iter().try_for_each(|unit| random_image(&unit.file, size))?;
        Tgtd::serve(dir, &portal()?, &units)
    }

    /// Starts `tgtd` with these units on its default backing store `rdwr`, with limits not below Forebay's.
    pub fn serve(dir: &WorkDir, portal: &str, units: &[Unit]) -> Result<Tgtd> {
        let (portal, ipc) = (portal.to_owned(), dir.socket("tgtd"));
        let mut command = Command::new("tgtd");
        command
            .args(["-f", "-C", CONTROL, "--iscsi", &format!("portal={portal}")])
            .env("TGT_IPC_SOCKET", &ipc);
        let process = Process::start("tgtd", command, &dir.data("tgtd.log"))?;
        let mut tgtd = Tgtd { process, portal, ipc };
        let admin = tgtd.admin();
        tgtd.process.wait_until(|| admin(&["--mode", "system", "--op", "show"]).is_ok())?;
        admin(&["--mode", "target", "--op", "new", "--tid", "1", "-T", TARGET])?;
        for (name, value) in [
            ("MaxRecvDataSegmentLength", "262144"),
            ("MaxXmitDataSegmentLength", "262144"),
            ("FirstBurstLength", "262144"),
            ("MaxBurstLength", "1048576"),
            ("InitialR2T", "No"),
        ] {
            admin(&["--mode", "target", "--op", "update", "--tid", "1", "-n", name, "-v", value])?;
        }
        for Unit { lun, file, write_cache } in units {
            let lun = lun.to_string();
            let unit = ["--mode", "logicalunit", "--tid", "1", "--lun", &lun];
            admin(&[&unit[..], &["--op", "new", "-b", &file.to_string_lossy()]].concat())?;
            if !write_cache {
                admin(&[&unit[..], &["--op", "update", "--params", NO_WRITE_CACHE]].concat())?;
            }
        }
        admin(&["--mode", "target", "--op", "bind", "--tid", "1", "-I", "ALL"])?;
        Ok(tgtd)
    }

    /// A command that runs `tgtadm`.
    fn admin(&self) -> impl Fn(&[&str]) -> Result<()> + use<> {
        let ipc = self.ipc.clone();
        move |args| {
            let mut command = Command::new("tgtadm");
            run(command.args(["-C", CONTROL, "--lld", "iscsi"]).args(args).env("TGT_IPC_SOCKET", &ipc))
                .map(drop)
        }
    }

    /// Its iSCSI target.
    pub fn target(&self) -> Target<'_> {
        Target { name: "tgtd", process: &self.process, portal: &self.portal }
    }
}
