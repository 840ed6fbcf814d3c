//! The tables: guests and store next to published figures, and the promises.

use serde::Serialize;

use super::figures::{Phase, STEADY_IOPS, StoreRow};
use super::fleet::{Cache, PhaseResult};
use crate::report::{Bound, Cell, Details, Row, Table, Unit, right, thousands};

/// The source of the published figures.
const PEER: &str = "PVS 7.1, published";
/// Promised store operations per guest operation in a steady phase.
const STEADY_SHARE: f64 = 0.05;
/// Promised store writes per guest write during boot.
const BOOT_WRITES: f64 = 0.01;
/// Promised store reads of a boot storm per store read of one cold boot.
const STORM_READS: f64 = 1.05;

/// The days of all fleets.
#[derive(Debug, Serialize)]
pub struct Days {
    /// Factor by which time ran faster than published.
    pub speedup: f64,
    /// Size of the image.
    pub image_bytes: u64,
    /// Bytes of the image that contain data.
    pub image_data_bytes: u64,
    /// Bytes of the image that a boot reads.
    pub boot_touches_bytes: u64,
    /// The server's read cache.
    pub read_cache_bytes: u64,
    /// RAM for the writes of each desktop.
    pub write_cache_bytes: u64,
    /// RAM for the writes of all desktops together.
    pub desktop_memory_bytes: u64,
    /// Every phase of every fleet.
    pub phases: Vec<PhaseResult>,
    /// Blocks that were read back at the end of each day.
    pub audited_blocks: u64,
    /// Number of these blocks with wrong content.
    pub audited_wrong: u64,
}

impl Days {
    /// Blocks whose content was not the content that a desktop had written.
    pub fn wrong_blocks(&self) -> u64 {
        self.audited_wrong + self.phases.iter().map(|p| p.wrong_blocks).sum::<u64>()
    }
}

impl Details for Days {
    /// The operations per desktop, of the guests and of the store.
    fn tables(&self) -> Vec<String> {
        guest_tables(&self.phases).into_iter().chain(store_tables(&self.phases)).collect()
    }

    fn is_sound(&self) -> bool {
        self.wrong_blocks() == 0
    }

    /// Settings of the run.
    fn notes(&self) -> Vec<String> {
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        let checked = self.audited_blocks + self.phases.iter().map(|p| p.checked_blocks).sum::<u64>();
        let memory = self.phases.iter().map(|p| p.server.memory_bytes).max().unwrap_or(0);
        vec![
            format!(
                "Image: {:.1} GiB, {:.1} GiB of data, {:.2} GiB read by a boot.",
                gib(self.image_bytes),
                gib(self.image_data_bytes),
                gib(self.boot_touches_bytes),
            ),
            format!(
                "Read cache {:.1} GiB; write caches {} MiB each, {:.1} GiB in total; peak server memory {:.1} GiB.",
                gib(self.read_cache_bytes),
                self.write_cache_bytes >> 20,
                gib(self.desktop_memory_bytes),
                gib(memory)
            ),
            format!(
                "Time ran {} times as fast as published; IOPS refer to the published time.",
                self.speedup
            ),
            format!("{checked} blocks checked, {} WRONG.", self.wrong_blocks()),
        ]
    }
}

/// Operations of the guests next to the published ones; sizes, and times.
fn guest_tables(phases: &[PhaseResult]) -> [String; 2] {
    let mut ops = phase_table(&["ops", "publ.", "r/w %", "publ.", "KiB/read", "KiB/write", "MiB"]);
    let mut times = phase_table(&["IOPS", "took", "planned", "p50 ms", "p99 ms"]);
    for p in phases {
        let kib = |bytes: u64, ops: u64| format!("{:.1}", bytes as f64 / 1024.0 / ops.max(1) as f64);
        let cells = [
            thousands(p.guest_ops()),
            published(p, thousands(p.guest.ops.into())),
            mix(p.reads, p.writes),
            published(p, format!("{} / {}", p.guest.read_percent, 100 - p.guest.read_percent)),
            kib(p.read_bytes, p.reads),
            kib(p.write_bytes, p.writes),
            thousands(mib(p.each(p.read_bytes + p.write_bytes))),
        ];
        add(&mut ops, p, cells);
        let cells = [
            format!("{:.1}", p.guest_ops() / p.guest.seconds),
            format!("{:.1} s", p.seconds),
            format!("{:.1} s", p.planned_seconds),
            format!("{:.2}", p.p50_ms),
            format!("{:.1}", p.p99_ms),
        ];
        add(&mut times, p, cells);
    }
    [
        format!("Guests, per desktop: reads and writes, without flushes (publ.: published figures)\n{ops}"),
        format!("Guests, per desktop: rates and latencies\n{times}"),
    ]
}

/// Operations of the store next to the published ones; and the other costs.
fn store_tables(phases: &[PhaseResult]) -> [String; 2] {
    let mut ops = phase_table(&["ops", "publ.", "r/w %", "publ.", "IOPS", "publ.", "guest/store", "publ."]);
    let mut costs = phase_table(&["syncs", "MiB read", "MiB written", "overflows", "MiB in RAM"]);
    for p in phases {
        let s = &p.server;
        let peer = |f: &dyn Fn(&StoreRow) -> String| p.published.as_ref().map_or(String::new(), f);
        let times = |ops: f64| if ops > 0.0 { thousands(p.guest_ops() / ops) } else { "all".to_owned() };
        let cells = [
            few(p.store_ops()),
            peer(&|r| thousands(r.ops)),
            mix(s.read_ops, s.write_ops),
            peer(&|r| format!("{} / {}", r.read_percent, 100 - r.read_percent)),
            format!("{:.3}", p.store_iops()),
            peer(&|r| r.iops.to_string()),
            times(p.store_ops()),
            peer(&|r| times(r.ops)),
        ];
        add(&mut ops, p, cells);
        let cells = [
            few(p.each(s.sync_ops)),
            few(mib(p.each(s.read_bytes))),
            few(mib(p.each(s.write_bytes))),
            few(p.each(s.overflow_ops)),
            thousands(mib(p.each(s.cached_bytes))),
        ];
        add(&mut costs, p, cells);
    }
    [
        format!("Store, per desktop: reads and writes (guest/store: guest ops per store op)\n{ops}"),
        format!("Store, per desktop: other costs\n{costs}"),
    ]
}

/// The promises about these phases.
pub fn rows(phases: &[PhaseResult]) -> Vec<Row> {
    let off = |p: &PhaseResult| (p.guest_ops() - f64::from(p.planned_ops)).abs();
    let most = phases.iter().map(off).fold(0.0, f64::max);
    let what = "largest difference between guest ops and published ops of a phase";
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
            rows.push(Row::alone(what("store ops per guest op"), Unit::Ratio, bound, &[share]));
        }
        if p.phase == Phase::Boot {
            let share = p.server.write_ops as f64 / p.writes.max(1) as f64;
            let bound = Bound::AtMost(BOOT_WRITES);
            rows.push(Row::alone(what("store writes per guest write"), Unit::Ratio, bound, &[share]));
        }
    }
    rows.extend(storms(phases));
    rows
}

/// Store reads of cold boots of many desktops compared with those of one desktop without a profile.
fn storms(phases: &[PhaseResult]) -> Vec<Row> {
    let boots = || phases.iter().filter(|p| p.phase == Phase::Boot && p.cache != Cache::Warm);
    let reads = |p: &PhaseResult| p.server.read_ops as f64;
    let Some(one) = boots().find(|p| p.desktops == 1 && p.cache == Cache::Cold) else { return Vec::new() };
    let row = |p: &PhaseResult| {
        let what = format!("{} {}, boot: store reads", p.desktops, p.cache.name());
        let peer = ("1 cold, boot", &[reads(one)][..]);
        Row::compare(what, Unit::Ops, Bound::RatioAtMost(STORM_READS), &[reads(p)], peer)
    };
    boots().filter(|p| p.desktops > 1).map(row).collect()
}

fn phase_table(header: &[&str]) -> Table {
    Table::new(["desktops", "phase"].iter().chain(header))
}

fn add<const N: usize>(table: &mut Table, p: &PhaseResult, cells: [String; N]) {
    let first = [format!("{} {}", p.desktops, p.cache.name()), p.phase.name().to_owned()];
    table.add(first.into_iter().map(Cell::new).chain(cells.into_iter().map(right)));
}

/// The published figure of a guest; the number of operations that copy a profile was not published.
fn published(p: &PhaseResult, text: String) -> String {
    if p.phase == Phase::Profile { String::new() } else { text }
}

/// Returns shares in percent as text.
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

#[cfg(test)]
mod tests {
    use super::super::counters::Counters;
    use super::super::figures::GuestRow;
    use super::*;
    use crate::report::{assert_fits, table};

    /// A phase of a large fleet with figures of more digits than a real run has.
    fn wide(phase: Phase) -> PhaseResult {
        let desktops = 900;
        let of_all = |each: u64| each * u64::from(desktops);
        PhaseResult {
            phase,
            desktops,
            cache: Cache::Profiled,
            guest: GuestRow { ops: 9_999_999, read_percent: 50, seconds: 10.0 },
            published: Some(StoreRow { ops: 99_999.0, iops: 100.25, read_percent: 50, share: 0.25 }),
            reads: of_all(4_999_999),
            writes: of_all(5_000_000),
            read_bytes: of_all(9_999_999 << 20),
            write_bytes: of_all(9_999_999 << 20),
            flushes: of_all(9_999_999),
            seconds: 99_999.0,
            planned_ops: 9_999_998,
            planned_seconds: 99_999.0,
            p50_ms: 99_999.0,
            p99_ms: 99_999.0,
            checked_blocks: 1,
            wrong_blocks: 0,
            server: Counters {
                read_ops: of_all(499_999),
                write_ops: of_all(500_000),
                sync_ops: of_all(9_999_999),
                read_bytes: of_all(9_999_999 << 20),
                write_bytes: of_all(9_999_999 << 20),
                overflow_ops: of_all(9_999_999),
                cached_bytes: of_all(9_999_999 << 20),
                ..Counters::default()
            },
        }
    }

    #[test]
    fn all_tables_fit_a_terminal_of_120_columns() {
        let phases =
            [Phase::Boot, Phase::Logon, Phase::Steady, Phase::Profile, Phase::ProfileSteady].map(wide);
        for text in guest_tables(&phases).iter().chain(&store_tables(&phases)) {
            assert_fits(text, phases.len(), false);
        }
        let rows = [rows(&phases), vec![Row::memory("900 profiled: peak memory", 1 << 44, 1 << 45)]].concat();
        assert_fits(&table(&rows), rows.len(), true);
    }
}
