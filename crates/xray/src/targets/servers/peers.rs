//! The servers that are compared with Forebay: `nbdkit`, `qemu-nbd`, and `tgtd`, Debian's iSCSI target in
//! user space.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Disk, Process, Server, WorkDir, run};
use crate::device::Endpoint;
use crate::error::Result;
use crate::iscsi::Address;

/// `nbdkit memory`: a disk in RAM, an upper bound for general NBD servers.
pub fn nbdkit(dir: &WorkDir, size: u64) -> Result<Server> {
    nbdkit_plugin(dir, "nbdkit memory", ["memory".to_owned(), size.to_string()])
}

/// `nbdkit file`: the files of a directory, each an export with its name.
pub fn nbdkit_files(dir: &WorkDir, files: &Path) -> Result<Server> {
    nbdkit_plugin(dir, "nbdkit file", ["file".to_owned(), format!("dir={}", files.display())])
}

fn nbdkit_plugin(dir: &WorkDir, label: &'static str, plugin: [String; 2]) -> Result<Server> {
    let socket = dir.socket("nbdkit");
    let mut command = Command::new("nbdkit");
    command.args(["--foreground", "--unix"]).arg(&socket).args(plugin);
    Server::start(label, command, socket, &dir.data("nbdkit.log"))
}

/// `qemu-nbd` on a qcow2 clone of the raw image `base`, the way a KVM host would export it.
pub fn qemu_nbd(dir: &WorkDir, base: &Path, name: &str) -> Result<Server> {
    let clone = dir.data(&format!("{name}.qcow2"));
    run(Command::new("qemu-img")
        .args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b"])
        .arg(base)
        .arg(&clone))?;
    serve_by_qemu(dir, "qemu-nbd qcow2", name, "qcow2", clone.as_os_str())
}

/// `qemu-nbd` on an image, which is a file or a URL; `name` is the name of the socket.
pub fn serve_by_qemu(
    dir: &WorkDir,
    label: &'static str,
    name: &str,
    format: &str,
    image: &OsStr,
) -> Result<Server> {
    let socket = dir.socket(name);
    let mut command = Command::new("qemu-nbd");
    command
        .args(["--persistent", "--shared=16", "--cache=writeback", "--discard=unmap", "--aio=threads"])
        .args(["--format", format, "--export-name=", "--socket"])
        .arg(&socket)
        .arg(image);
    Server::start(label, command, socket, &dir.data(&format!("{name}.log")))
}

/// A separate `tgtd`, independent of other `tgtd` processes on this machine.
pub struct Tgtd {
    /// The process of `tgtd`.
    pub process: Process,
    portal: String,
}

/// A logical unit of `tgtd`: a raw file.
pub struct Unit {
    /// The unit's number, from 1: `tgtd` reserves unit 0.
    pub lun: u8,
    /// The file that the unit exports.
    pub file: PathBuf,
    /// Whether writes are answered before they are durable.
    pub write_cache: bool,
}

const TARGET: &str = "iqn.2026-01.org.example:tgtd";
/// The number of the control socket of `tgtd`.
const CONTROL: &str = "1";
/// The mode page that disables the write cache: byte 2, bit 2 of the caching page.
const NO_WRITE_CACHE: &str =
    "mode_page=8:0:18:0x10:0:0xff:0xff:0:0:0xff:0xff:0xff:0xff:0x80:0x14:0:0:0:0:0:0";

impl Tgtd {
    /// Starts `tgtd` with these units on its default backing store `rdwr`, with limits not below Forebay's.
    pub fn start(dir: &WorkDir, portal: &str, units: &[Unit]) -> Result<Tgtd> {
        let ipc = dir.socket("tgtd");
        let mut command = Command::new("tgtd");
        command
            .args(["-f", "-C", CONTROL, "--iscsi", &format!("portal={portal}")])
            .env("TGT_IPC_SOCKET", &ipc);
        let mut process = Process::start("tgtd", command, &dir.data("tgtd.log"))?;
        let admin = |args: &[&str]| {
            let mut command = Command::new("tgtadm");
            run(command.args(["-C", CONTROL, "--lld", "iscsi"]).args(args).env("TGT_IPC_SOCKET", &ipc))
                .map(drop)
        };
        process.wait_until(|| admin(&["--mode", "system", "--op", "show"]).is_ok())?;
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
        Ok(Tgtd { process, portal: portal.to_owned() })
    }

    /// Returns a unit of the target.
    pub fn disk(&self, lun: u8) -> Disk<'_> {
        let address = Address { portal: self.portal.clone(), target: TARGET.to_owned(), lun };
        Disk { process: &self.process, endpoint: Endpoint::Iscsi(address) }
    }
}
