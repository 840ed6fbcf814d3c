//! `forebay stats`: guest and store I/O, caches, data reduction and space.

use std::io::IsTerminal;
use std::time::Duration;

use forebay_api::client::Client;
use forebay_api::{
    CacheAdviceView, CacheView, CountView, DiskSpaceView, DiskStatsView, GuestView, ReadCacheView,
    ReductionView, RoomView, SpaceView, StatsView,
};
use forebay_host::clock::unix_ms;
use forebay_text::Size;

use super::args::StatsArgs;
use super::{CliError, output};

/// Interval of `--watch` between two refreshes.
const INTERVAL: Duration = Duration::from_secs(1);

/// Shows the counters once, or with `--watch` every second with their rates.
pub(super) async fn run(client: &Client, args: &StatsArgs, json: bool) -> Result<(), CliError> {
    match &args.volume {
        Some(name) => {
            let path = ["stats", name.as_str()];
            repeat(args.watch, json, async || client.get::<DiskStatsView>(&path).await, disk_text).await
        }
        None => repeat(args.watch, json, async || client.get::<StatsView>(&["stats"]).await, pool_text).await,
    }
}

/// Fetches and prints a sample; with `watch`, repeats this and passes the previous sample for the rates. On a
/// terminal a sample replaces the previous one. JSON always has the counters, one line for each sample.
async fn repeat<T: serde::Serialize>(
    watch: bool,
    json: bool,
    fetch: impl AsyncFn() -> forebay_api::client::Result<T>,
    text: impl Fn(&T, Option<&T>) -> String,
) -> Result<(), CliError> {
    let redraw = watch && !json && std::io::stdout().is_terminal();
    let mut before: Option<T> = None;
    let mut ticks = tokio::time::interval(INTERVAL);
    // After a sample that took long, the interval is not shorter: the rates are for one interval.
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let now = fetch().await?;
        if json {
            output::json(&now)?;
        } else {
            let text = text(&now, before.as_ref());
            if redraw { output::screen(&text)? } else { output::line(&text)? }
        }
        if !watch {
            return Ok(());
        }
        before = Some(now);
    }
}

/// Renders the pool's counters.
fn pool_text(s: &StatsView, before: Option<&StatsView>) -> String {
    let mut t = count_table(before.is_some());
    guest_rows(&mut t, "guest ", &s.guest, before.map(|b| &b.guest));
    let (store, old) = (&s.store, before.map(|b| &b.store));
    count_row(&mut t, "store reads", store.read, old.map(|o| o.read));
    count_row(&mut t, "store writes", store.write, old.map(|o| o.write));
    ops_row(&mut t, "store syncs", store.sync_ops, old.map(|o| o.sync_ops));
    ops_row(&mut t, "store deletes", store.delete_ops, old.map(|o| o.delete_ops));
    format!("{}\n\n{}\n\n{}", output::render(t), pool_facts(s), space_facts(s, unix_ms()))
}

/// A list of names and values.
#[derive(Default)]
struct Facts(Vec<[String; 2]>);

impl Facts {
    fn row(&mut self, name: &str, value: String) {
        self.0.push([name.to_owned(), value]);
    }

    fn text(self) -> String {
        let mut t = output::table(&[], &[]);
        for row in self.0 {
            t.add_row(row);
        }
        output::render(t)
    }
}

fn pool_facts(s: &StatsView) -> String {
    let mut facts = Facts::default();
    let mut row = |name: &str, value: String| facts.row(name, value);
    row("offload", offload_text(s.offload));
    let c = &s.read_cache;
    row("read cache", cache_text(c.hit_rate, c.bytes, c.budget_bytes));
    row("  more of it", advice_text(c));
    for r in c.classes.iter().filter(|r| r.hits + r.misses > 0) {
        row(
            &format!("  {}", r.class.name()),
            format!("{} hits of {} reads", output::percent(r.hit_rate), r.hits + r.misses),
        );
    }
    let CacheView { hit_rate, bytes, budget_bytes, .. } = s.map_cache;
    row("map cache", cache_text(hit_rate, bytes, budget_bytes));
    row("memory", Size(s.memory_bytes).to_string());
    if s.desktops.count != 0 {
        let (d, over) = (&s.desktops, s.desktops.overflow);
        let (held, budget, out) = (Size(d.cached_bytes), Size(d.budget_bytes), Size(over.bytes));
        row(
            "desktops",
            format!("{}, {held} of {budget} RAM used, {out} overflowed ({} times)", d.count, over.ops),
        );
    }
    row("not yet durable", Size(s.dirty_bytes).to_string());
    row("log", format!("batch {}, {} commits, {} checkpoints", s.seq, s.commits, s.checkpoints));
    let (c, ms) = (&s.commit, |us: u64| us as f64 / 1000.0);
    let (cost, delayed) = (ms(c.cost_us), ms(c.delayed_us));
    row(
        "commits",
        format!(
            "{cost:.1} ms each; {} by age, {} on demand ({:.1} waiters each), {delayed:.0} ms total delay",
            c.by_age, c.by_demand, c.waiting
        ),
    );
    row("recovery", format!("{} batches in {} ms", s.recovered_batches, s.recovery_ms));
    if s.damaged_blocks != 0 {
        row("DAMAGED BLOCKS", format!("{}: run 'forebay check'", s.damaged_blocks));
    }
    facts.text()
}

/// Renders space and data reduction.
fn space_facts(s: &StatsView, now_ms: u64) -> String {
    let mut facts = Facts::default();
    let room = format!("{} free of {}", Size(s.store_free_bytes), Size(s.store_total_bytes));
    facts.row(
        "store",
        match s.room {
            RoomView::Ok => room,
            RoomView::Low => format!("LOW, {room}: remove unneeded disks, or add space"),
            RoomView::Full => format!("FULL, {room}: writes fail; remove unneeded disks, or add space"),
        },
    );
    reduction_rows(&mut facts, &s.reduction);
    facts.row("stored", format!("{} in {} segments, {} disks", Size(s.stored_bytes), s.segments, s.disks));
    match &s.space {
        None => facts.row("space", UNKNOWN.to_owned()),
        Some(space) => space_rows(&mut facts, space, now_ms),
    }
    let (freed, moved) = (Size(s.freed_bytes), Size(s.moved_bytes));
    facts.row("reclaimed", format!("{freed} freed, {moved} moved"));
    facts.text()
}

/// Shown before the first mark, which determines the use of space.
const UNKNOWN: &str = "not yet known: run 'forebay gc'";

fn reduction_rows(facts: &mut Facts, r: &ReductionView) {
    let of = |n: u64| output::percent((r.blocks() != 0).then(|| n as f64 / r.blocks() as f64));
    facts.row(
        "written blocks",
        format!(
            "{}: {} new, {} duplicate, {} unchanged, {} zero",
            r.blocks(),
            of(r.new_blocks),
            of(r.duplicate_blocks),
            of(r.unchanged_blocks),
            of(r.zero_blocks)
        ),
    );
    let (new, all) = (times(r.compression_ratio), times(r.reduction_ratio));
    facts.row("  reduction", format!("{all}, new blocks {new} by compression"));
    let index = &r.index;
    let (held, budget) = (Size(index.bytes), Size(index.budget_bytes));
    let mut text = format!("{} fingerprints, {held} of {budget} in use", index.entries);
    if index.one_of > 1 {
        text += &format!(", 1 in {} sampled", index.one_of);
    }
    if index.segments_left > 0 {
        text += &format!(", {} segments left to load", index.segments_left);
    }
    facts.row("dedup index", text);
}

fn space_rows(facts: &mut Facts, s: &SpaceView, now_ms: u64) {
    facts.row("space", as_of(now_ms, s.as_of_ms));
    facts.row("  logical", Size(s.logical_bytes).to_string());
    facts.row("  mapped", Size(s.mapped_bytes).to_string());
    let shared = format!("{}, {} by sharing", Size(s.unique_bytes), times(s.dedup_ratio));
    facts.row("  unique", shared);
    let packed = format!("{}, {} by compression", Size(s.live_bytes), times(s.compression_ratio));
    facts.row("  live", packed);
    facts.row("  reduction", times(s.reduction_ratio));
    facts.row("  reclaimable", Size(s.reclaimable_bytes).to_string());
    if s.damaged_disks > 0 {
        facts.row(
            "  damaged",
            format!(
                "{} disks, which hold back older data: run 'forebay gc' for their names",
                s.damaged_disks
            ),
        );
    }
}

fn as_of(now_ms: u64, then_ms: u64) -> String {
    format!("as of {} ago", output::age(now_ms, then_ms))
}

/// Renders a disk's counters and space.
fn disk_text(s: &DiskStatsView, before: Option<&DiskStatsView>) -> String {
    let mut t = count_table(before.is_some());
    guest_rows(&mut t, "", &s.guest, before.map(|b| &b.guest));
    let mut facts = Facts::default();
    write_cache_rows(&mut facts, s);
    disk_space(&mut facts, s.space.as_ref(), unix_ms());
    format!("{}\n\n{}", output::render(t), facts.text())
}

/// The write cache of a desktop.
fn write_cache_rows(facts: &mut Facts, s: &DiskStatsView) {
    let Some(limit) = s.write_cache_bytes else { return };
    facts.row("writes in memory", format!("{} of {}", Size(s.cached_bytes), Size(limit)));
    let over = s.overflow.unwrap_or_default();
    facts.row("  overflowed", format!("{} ({} times)", Size(over.bytes), over.ops));
}

fn disk_space(facts: &mut Facts, space: Option<&DiskSpaceView>, now_ms: u64) {
    match space {
        None => facts.row("space", UNKNOWN.to_owned()),
        Some(s) => {
            facts.row("space", as_of(now_ms, s.as_of_ms));
            facts.row("  mapped", Size(s.mapped_bytes).to_string());
            let found = as_of(now_ms, s.exclusive_as_of_ms);
            facts.row("  freed by deleting", format!("{}, {found}", Size(s.exclusive_bytes)));
        }
    }
}

fn count_table(rates: bool) -> comfy_table::Table {
    if rates {
        output::table(&["", "OPERATIONS", "BYTES", "OPS/S", "BYTES/S"], &[1, 2, 3, 4])
    } else {
        output::table(&["", "OPERATIONS", "BYTES"], &[1, 2])
    }
}

fn guest_rows(t: &mut comfy_table::Table, prefix: &str, s: &GuestView, old: Option<&GuestView>) {
    count_row(t, &format!("{prefix}reads"), s.read, old.map(|o| o.read));
    count_row(t, &format!("{prefix}writes"), s.write, old.map(|o| o.write));
    count_row(t, &format!("{prefix}discards"), s.discard, old.map(|o| o.discard));
    ops_row(t, &format!("{prefix}flushes"), s.flush_ops, old.map(|o| o.flush_ops));
}

fn count_row(t: &mut comfy_table::Table, name: &str, now: CountView, old: Option<CountView>) {
    let mut row = vec![name.to_owned(), now.ops.to_string(), Size(now.bytes).to_string()];
    if let Some(old) = old {
        row.push(now.ops.saturating_sub(old.ops).to_string());
        row.push(Size(now.bytes.saturating_sub(old.bytes)).to_string());
    }
    t.add_row(row);
}

fn ops_row(t: &mut comfy_table::Table, name: &str, now: u64, old: Option<u64>) {
    let mut row = vec![name.to_owned(), now.to_string(), String::new()];
    if let Some(old) = old {
        row.push(now.saturating_sub(old).to_string());
        row.push(String::new());
    }
    t.add_row(row);
}

/// Renders a reduction ratio. A very large one says that nearly nothing is stored, not how well data is
/// reduced.
fn times(ratio: Option<f64>) -> String {
    match ratio {
        None => "-".to_owned(),
        Some(ratio) if ratio > 1000.0 => "over 1000x".to_owned(),
        Some(ratio) => format!("{ratio:.2}x"),
    }
}

fn cache_text(hit_rate: Option<f64>, bytes: u64, budget: u64) -> String {
    format!("{} hits, {} of {} in use", output::percent(hit_rate), Size(bytes), Size(budget))
}

/// The offload, with a note if work without requests of guests outweighs it.
fn offload_text(share: Option<f64>) -> String {
    let text = output::offload(share);
    match share {
        Some(share) if share <= 0.0 => {
            format!(
                "{text}: the store did as much as guests requested, or more (imports, reclaims, checkpoints)"
            )
        }
        _ => text,
    }
}

/// What larger read caches would save.
fn advice_text(c: &ReadCacheView) -> String {
    let of_size =
        |a: &CacheAdviceView| Some(format!("{} % saves {:.0}", a.more_percent, a.saved_reads_per_s?));
    match c.advice.iter().map(of_size).collect::<Option<Vec<_>>>() {
        Some(sizes) if !sizes.is_empty() => format!("{} block reads/s", sizes.join(", ")),
        _ if c.evictions == 0 => "a larger cache would not help yet".to_owned(),
        _ => "not known: too few reads yet, or a cache under 60 MiB".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_counters_are_shown_with_rates() {
        let count = |ops, bytes| CountView { ops, bytes };
        let guest =
            GuestView { read: count(100, 409_600), write: count(50, 204_800), ..GuestView::default() };
        let before = StatsView { guest, ..StatsView::default() };
        let mut now = before.clone();
        now.guest.read = count(150, 614_400);
        now.offload = Some(0.987);
        let text = pool_text(&now, Some(&before));
        let reads = text.lines().find(|l| l.starts_with("guest reads")).unwrap();
        let words: Vec<_> = reads.split_whitespace().collect();
        assert_eq!(words, ["guest", "reads", "150", "600", "KiB", "50", "200", "KiB"]);
        assert!(text.contains("98.7 %"), "{text}");
        assert!(!text.contains("DAMAGED"), "{text}");
        now.offload = Some(-4.06);
        let text = pool_text(&now, None);
        let offload = text.lines().find(|l| l.starts_with("offload")).unwrap();
        assert!(offload.contains(" 0.0 %: the store did as much as guests requested, or more"), "{offload}");
        now.damaged_blocks = 1;
        assert!(pool_text(&now, None).contains("DAMAGED"), "{text}");
    }

    #[test]
    fn advice_says_what_is_known() {
        let sized = |more_percent, saved_reads_per_s| CacheAdviceView {
            size_bytes: 1 << 30,
            more_percent,
            saved_reads: 1000,
            saved_reads_per_s,
        };
        let mut c = ReadCacheView::default();
        assert_eq!(advice_text(&c), "a larger cache would not help yet");
        c.evictions = 1;
        assert!(advice_text(&c).starts_with("not known: too few reads yet"));
        c.advice = vec![sized(10, None), sized(25, None)];
        assert!(advice_text(&c).starts_with("not known: too few reads yet"));
        c.advice = vec![sized(10, Some(11.6)), sized(25, Some(30.0))];
        assert_eq!(advice_text(&c), "10 % saves 12, 25 % saves 30 block reads/s");
    }

    fn line<'a>(text: &'a str, name: &str) -> &'a str {
        let found = text.lines().find(|l| l.trim_start().starts_with(name));
        found.unwrap_or_else(|| panic!("no {name} in\n{text}"))
    }

    #[test]
    fn space_is_unknown_before_the_first_mark() {
        let text = space_facts(&StatsView::default(), 0);
        assert!(line(&text, "space").ends_with("not yet known: run 'forebay gc'"), "{text}");
        assert!(!text.contains("NaN") && !text.contains("reclaimable"), "{text}");
        assert!(line(&text, "written blocks").contains("- new"), "{text}");
        assert!(space_of(None).contains("not yet known"));
    }

    #[test]
    fn space_and_reduction_are_shown() {
        use forebay_api::{IndexView, ReductionView, SpaceView};
        let space = SpaceView {
            as_of_ms: 0,
            logical_bytes: 10 << 30,
            mapped_bytes: 6 << 30,
            unique_bytes: 2 << 30,
            live_bytes: 1 << 30,
            reclaimable_bytes: 1 << 20,
            damaged_disks: 2,
            dedup_ratio: Some(3.0),
            compression_ratio: Some(2.0),
            reduction_ratio: Some(6.0),
        };
        let reduction = ReductionView {
            zero_blocks: 25,
            duplicate_blocks: 50,
            new_blocks: 25,
            new_bytes: 51_200,
            index: IndexView { one_of: 4, segments_left: 3, ..IndexView::default() },
            ..ReductionView::default()
        };
        let s = StatsView { space: Some(space), reduction, room: RoomView::Full, ..StatsView::default() };
        let text = space_facts(&s, 180_000);
        assert!(line(&text, "space").ends_with("as of 3 min ago"), "{text}");
        assert!(line(&text, "unique").ends_with("2 GiB, 3.00x by sharing"), "{text}");
        assert!(line(&text, "damaged").contains("2 disks"), "{text}");
        assert!(line(&text, "live").ends_with("1 GiB, 2.00x by compression"), "{text}");
        assert!(
            line(&text, "written")
                .ends_with("100: 25.0 % new, 50.0 % duplicate, 0.0 % unchanged, 25.0 % zero")
        );
        assert!(line(&text, "dedup index").ends_with("1 in 4 sampled, 3 segments left to load"), "{text}");
        assert!(line(&text, "store ").contains("FULL, "), "{text}");
        let disk = DiskSpaceView {
            as_of_ms: 0,
            mapped_bytes: 1 << 30,
            exclusive_bytes: 4096,
            exclusive_as_of_ms: 0,
        };
        assert!(line(&space_of(Some(&disk)), "freed by deleting").contains("4 KiB, as of 0 s ago"));
    }

    #[test]
    fn a_ratio_without_meaning_is_not_shown_with_digits() {
        let shown = [None, Some(2.5), Some(1000.0), Some(20180.0)].map(times);
        assert_eq!(shown, ["-", "2.50x", "1000.00x", "over 1000x"]);
    }

    fn space_of(disk: Option<&DiskSpaceView>) -> String {
        let mut facts = Facts::default();
        disk_space(&mut facts, disk, 0);
        facts.text()
    }

    #[test]
    fn the_write_cache_of_a_desktop_is_shown() {
        let volume = DiskStatsView::default();
        assert!(!disk_text(&volume, None).contains("writes in memory"));
        let desktop = DiskStatsView {
            cached_bytes: 3 << 20,
            write_cache_bytes: Some(256 << 20),
            overflow: Some(CountView { ops: 4, bytes: 8 << 20 }),
            ..volume
        };
        let text = disk_text(&desktop, None);
        assert!(line(&text, "writes in memory").ends_with("3 MiB of 256 MiB"), "{text}");
        assert!(line(&text, "overflowed").ends_with("8 MiB (4 times)"), "{text}");
    }
}
