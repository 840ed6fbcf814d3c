//! The tables: guests beside what was published of guests, the store beside what was published of a store, and the
//! promises.

use comfy_table::{Cell, CellAlignment, Table, presets};
use serde::Serialize;

use super::figures::{Phase, STEADY_IOPS};
use super::fleet::{Cache, PhaseResult};
use crate::bench::machine::Machine;
use crate::bench::{Bound, Row, Unit, table, thousands, trust};

/// Whose figures were published.
const PEER: &str = "Citrix PVS 7.1, published";
/// Store operations for each of a guest's, at work.
const STEADY_SHARE: f64 = 0.05;
/// Store writes for each of the guests', while they boot.
const BOOT_WRITES: f64 = 0.01;
/// Store reads of a boot storm for each of one cold boot.
const STORM_READS: f64 = 1.05;

/// All of a run.
#[derive(Debug, Serialize)]
pub struct VdiReport {
    /// Where.
    pub machine: Machine,
    /// Whether it was the quick run.
    pub quick: bool,
    /// How much faster than published time went.
    pub speedup: f64,
    /// Size of the image.
    pub image_bytes: u64,
    /// What of it holds data.
    pub image_data_bytes: u64,
    /// What of it a boot reads.
    pub boot_touches_bytes: u64,
    /// The server's read cache.
    pub read_cache_bytes: u64,
    /// RAM for the writes of each desktop.
    pub write_cache_bytes: u64,
    /// RAM for the writes of all.
    pub desktop_memory_bytes: u64,
    /// How long the run took.
    pub seconds: f64,
    /// Share of the machine's CPU time in the run that went to others, in per cent.
    pub others_percent: f64,
    /// Every phase of every fleet.
    pub phases: Vec<PhaseResult>,
    /// The promises.
    pub rows: Vec<Row>,
    /// Blocks that were read again at the end of each day.
    pub audited_blocks: u64,
    /// Those that were wrong.
    pub audited_wrong: u64,
}

impl VdiReport {
    /// Blocks that were not what a desktop had written.
    pub fn wrong_blocks(&self) -> u64 {
        self.audited_wrong + self.phases.iter().map(|p| p.wrong_blocks).sum::<u64>()
    }

    /// What guests did, for each desktop.
    pub fn guest_table(&self) -> String {
        let mut table = new_table(&[
            "desktops",
            "phase",
            "ops",
            "published",
            "r/w",
            "published",
            "read KiB",
            "write KiB",
            "IOPS",
            "MiB",
            "took",
            "planned",
            "p50 ms",
            "p99 ms",
        ]);
        for p in &self.phases {
            let kib = |bytes: u64, ops: u64| format!("{:.1}", bytes as f64 / 1024.0 / ops.max(1) as f64);
            add(
                &mut table,
                p,
                [
                    thousands(p.guest_ops()),
                    published(p, thousands(p.guest.ops.into())),
                    mix(p.reads, p.writes),
                    published(p, format!("{} / {}", p.guest.read_percent, 100 - p.guest.read_percent)),
                    kib(p.read_bytes, p.reads),
                    kib(p.write_bytes, p.writes),
                    format!("{:.1}", p.guest_ops() / p.guest.seconds),
                    thousands(mib(p.each(p.read_bytes + p.write_bytes))),
                    format!("{:.1} s", p.seconds),
                    format!("{:.1} s", p.planned_seconds),
                    format!("{:.2}", p.p50_ms),
                    format!("{:.1}", p.p99_ms),
                ],
            );
        }
        format!("Guests, each (flushes are not among the operations)\n{table}")
    }

    /// What that cost the store, for each desktop.
    pub fn store_table(&self) -> String {
        let mut table = new_table(&[
            "desktops",
            "phase",
            "ops",
            "published",
            "r/w",
            "published",
            "IOPS",
            "published",
            "guest/store",
            "published",
            "syncs",
            "read MiB",
            "written MiB",
            "overflows",
            "in RAM, MiB",
        ]);
        for p in &self.phases {
            let s = &p.server;
            let peer = |f: &dyn Fn(&super::figures::StoreRow) -> String| {
                p.published.as_ref().map_or(String::new(), f)
            };
            let times = |ops: f64| if ops > 0.0 { thousands(p.guest_ops() / ops) } else { "all".to_owned() };
            add(
                &mut table,
                p,
                [
                    few(p.store_ops()),
                    peer(&|r| thousands(r.ops)),
                    mix(s.read_ops, s.write_ops),
                    peer(&|r| format!("{} / {}", r.read_percent, 100 - r.read_percent)),
                    format!("{:.3}", p.store_iops()),
                    peer(&|r| r.iops.to_string()),
                    times(p.store_ops()),
                    peer(&|r| times(r.ops)),
                    few(p.each(s.sync_ops)),
                    few(mib(p.each(s.read_bytes))),
                    few(mib(p.each(s.write_bytes))),
                    few(p.each(s.overflow_ops)),
                    thousands(mib(p.each(s.cached_bytes))),
                ],
            );
        }
        format!("The store, for each desktop (operations are reads and writes)\n{table}")
    }

    /// The promises.
    pub fn table(&self) -> String {
        table(&self.rows)
    }

    /// What else is to be known.
    pub fn notes(&self) -> Vec<String> {
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        let checked = self.audited_blocks + self.phases.iter().map(|p| p.checked_blocks).sum::<u64>();
        let memory = self.phases.iter().map(|p| p.server.memory_bytes).max().unwrap_or(0);
        vec![
            format!(
                "Image of {:.1} GiB, {:.1} GiB of data, of which a boot reads {:.2} GiB; read cache {:.1} GiB, write \
                 caches {} MiB each, {:.1} GiB in all; the server took {:.1} GiB at most.",
                gib(self.image_bytes),
                gib(self.image_data_bytes),
                gib(self.boot_touches_bytes),
                gib(self.read_cache_bytes),
                self.write_cache_bytes >> 20,
                gib(self.desktop_memory_bytes),
                gib(memory)
            ),
            format!("Time went {} times as fast; IOPS are those of the published time.", self.speedup),
            format!("{checked} blocks checked, {} WRONG.", self.wrong_blocks()),
            trust(self.others_percent),
        ]
    }
}

/// The promises about these phases.
pub fn rows(phases: &[PhaseResult]) -> Vec<Row> {
    let off = |p: &PhaseResult| (p.guest_ops() - f64::from(p.planned_ops)).abs();
    let most = phases.iter().map(off).fold(0.0, f64::max);
    let what = "guest ops in a phase, more or less than published";
    let mut rows = vec![Row::alone(what, Unit::Ops, Bound::AtMost(0.0), &[most])];
    for p in phases {
        let what = |text: &str| format!("{} {}, {}: {text}", p.desktops, p.cache.name(), p.phase.name());
        if let Some(peer) = &p.published {
            let bound = Bound::RatioAtMost(peer.share);
            rows.push(Row::compare(
                what("store ops"),
                Unit::Ops,
                bound,
                &[p.store_ops()],
                (PEER, &[peer.ops]),
            ));
        }
        if p.phase.is_steady() {
            let bound = Bound::AtMost(STEADY_IOPS);
            rows.push(Row::alone(what("store IOPS"), Unit::FewIops, bound, &[p.store_iops()]));
            let share = p.store_ops() / p.guest_ops().max(1.0);
            let bound = Bound::AtMost(STEADY_SHARE);
            rows.push(Row::alone(what("store by guest ops"), Unit::Ratio, bound, &[share]));
        }
        if p.phase == Phase::Boot {
            let share = p.server.write_ops as f64 / p.writes.max(1) as f64;
            let bound = Bound::AtMost(BOOT_WRITES);
            rows.push(Row::alone(what("store by guest writes"), Unit::Ratio, bound, &[share]));
        }
    }
    rows.extend(storms(phases));
    rows
}

/// The most memory that a server ever took, beside the budgets of what it keeps.
pub fn memory_row(desktops: u32, cache: Cache, budgets: u64, peak: u64) -> Row {
    let what = format!("{desktops} {}: peak memory, budgets {:.0} MiB", cache.name(), mib(budgets as f64));
    let limit = mib(budgets as f64 * 1.1) + 200.0;
    Row::alone(what, Unit::Mib, Bound::AtMost(limit), &[mib(peak as f64)])
}

/// Store reads of cold boots of many beside those of one that has no profile.
fn storms(phases: &[PhaseResult]) -> Vec<Row> {
    let boots = || phases.iter().filter(|p| p.phase == Phase::Boot && p.cache != Cache::Warm);
    let reads = |p: &PhaseResult| p.server.read_ops as f64;
    let Some(one) = boots().find(|p| p.desktops == 1 && p.cache == Cache::Cold) else { return Vec::new() };
    let row = |p: &PhaseResult| {
        let what =
            format!("{} {}, boot: store reads, beside one's without profile", p.desktops, p.cache.name());
        Row::compare(what, Unit::Ops, Bound::RatioAtMost(STORM_READS), &[reads(p)], ("one", &[reads(one)]))
    };
    boots().filter(|p| p.desktops > 1).map(row).collect()
}

fn new_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_FULL_CONDENSED);
    table.set_header(header);
    table
}

fn add<const N: usize>(table: &mut Table, p: &PhaseResult, cells: [String; N]) {
    let first = [format!("{} {}", p.desktops, p.cache.name()), p.phase.name().to_owned()];
    let right = |text| Cell::new(text).set_alignment(CellAlignment::Right);
    table.add_row(first.into_iter().map(Cell::new).chain(cells.into_iter().map(right)));
}

/// What was published of a guest; how many operations the copying of a profile takes it was not.
fn published(p: &PhaseResult, text: String) -> String {
    if p.phase == Phase::Profile { String::new() } else { text }
}

/// Shares in per cent.
fn mix(a: u64, b: u64) -> String {
    let percent = (100.0 * a as f64 / (a + b).max(1) as f64).round();
    if a + b == 0 { "-".to_owned() } else { format!("{percent} / {}", 100.0 - percent) }
}

/// A number that may be small.
fn few(v: f64) -> String {
    if v < 99.95 { format!("{v:.1}") } else { thousands(v) }
}

fn mib(bytes: f64) -> f64 {
    bytes / f64::from(1 << 20)
}
