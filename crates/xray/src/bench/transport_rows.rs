//! What a small request costs over each transport: NVMe/TCP, NBD over TCP, and iSCSI, at one server, on the
//! same volume, in turns.

use std::path::Path;
use std::time::Duration;

use super::rounds::{Figure, generate, in_turns};
use super::{Bench, CACHED_IMAGES, Pace};
use crate::device::Endpoint;
use crate::error::Result;
use crate::iscsi::Address;
use crate::load::Stop;
use crate::nbd::Target;
use crate::nvme::Namespace;
use crate::report::{Bound, Row};
use crate::targets::servers::{Disk, Forebay, ForebayConfig, portal};

const IQN: &str = "iqn.2026-01.org.example:transports";
const NQN: &str = "nqn.2026-01.org.example:transports";
/// Name of the volume that is read and written.
const VOLUME: &str = "shared";
const MIB: u32 = 1 << 20;
/// Rounds of each row: the figures differ little, and rounds are short.
const ROUNDS_FACTOR: u32 = 3;

/// Latency and server CPU of 4 KiB reads and writes at depths 1, 4 and 16.
pub fn transports(bench: &Bench, pace: &Pace, binary: &Path) -> Result<Vec<Row>> {
    let (nbd, iscsi, nvme) = (portal()?, portal()?, portal()?);
    let settings = format!(
        "[iscsi]\nlisten = [\"{iscsi}\"]\n[nvme]\nlisten = [\"{nvme}\"]\n[durability]\nremote_answers = \"memory\"\n"
    );
    let mut config = ForebayConfig::new("transports", CACHED_IMAGES * bench.size).with(settings);
    config.options.extend(["--nbd".to_owned(), nbd.clone()]);
    let forebay = Forebay::start(&bench.dir, binary, &config)?;
    forebay.import("base", &bench.dir.data("base.raw"))?;
    forebay.clone_disk("base", VOLUME)?;
    forebay.cli(&["target", "create", IQN, "--open"])?;
    forebay.cli(&["lun", "map", IQN, VOLUME, "--lun", "0", "--write-back"])?;
    let disk = |endpoint| Disk { process: &forebay.server.process, endpoint };
    let disks = [
        Endpoint::Nvme(Namespace { portal: nvme, subsystem: NQN.to_owned(), number: 1 }),
        Endpoint::Nbd(Target::Tcp(nbd), VOLUME.to_owned()),
        Endpoint::Iscsi(Address { portal: iscsi, target: IQN.to_owned(), lun: 0 }),
    ]
    .map(|endpoint| Some(disk(endpoint)));
    // All blocks are allocated and cached, whatever the transport is.
    for disk in disks.iter().flatten().take(1) {
        generate(disk, |spec| {
            spec.pass(true, MIB, 4);
            spec.flush_each = Some(Duration::from_secs(1));
        })?;
        generate(disk, |spec| spec.pass(false, MIB, 4))?;
    }
    let mut rows = Vec::new();
    for (what, read_percent) in [("reads", 100), ("writes", 0)] {
        for depth in [1, 4, 16] {
            let title = format!("4 KiB random {what} over NVMe/TCP, depth {depth}: median latency");
            bench.say(&title);
            let [nvme, nbd, iscsi] = in_turns(&disks, pace.rounds * ROUNDS_FACTOR, |disk, round| {
                generate(disk, |spec| {
                    (spec.read_percent, spec.depth, spec.seed) = (read_percent, depth, u64::from(round) + 1);
                    spec.stop = Stop::After(pace.read);
                    if read_percent == 0 {
                        spec.flush_each = Some(Duration::from_secs(1));
                    }
                })
            })?;
            let (nvme, nbd, iscsi) =
                (nvme.named("NVMe/TCP"), nbd.named("NBD over TCP"), iscsi.named("iSCSI"));
            let at_most = Bound::RatioAtMost;
            let of_iscsi = if depth == 4 { at_most(0.85) } else { Bound::Nothing };
            rows.push(nvme.row(&title, Figure::Latency, at_most(1.1), &nbd));
            rows.push(nvme.cpu_row(at_most(1.1), &nbd));
            rows.push(nvme.row("  the same, compared with iSCSI", Figure::Latency, of_iscsi, &iscsi));
            rows.push(nvme.cpu_row(of_iscsi, &iscsi));
        }
    }
    Ok(rows)
}
