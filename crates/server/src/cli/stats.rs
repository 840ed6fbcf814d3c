//! `forebay stats`: what guests asked for and what it cost.

use std::io::IsTerminal;
use std::time::Duration;

use super::args::StatsArgs;
use super::client::Client;
use super::{CliError, output};
use crate::control::{CacheView, CountView, GuestView, StatsView};
use crate::size::Size;

/// Between two lines of `--watch`.
const INTERVAL: Duration = Duration::from_secs(1);

/// Shows the counters once, or what they gain each second.
pub(super) async fn run(client: &Client, args: &StatsArgs, json: bool) -> Result<(), CliError> {
    match &args.volume {
        Some(name) => {
            let path = ["stats", name.as_str()];
            repeat(args.watch, json, async || client.get::<GuestView>(&path).await, guest_text).await
        }
        None => repeat(args.watch, json, async || client.get::<StatsView>(&["stats"]).await, pool_text).await,
    }
}

/// Fetches and prints; with `watch`, again and again, with the sample before for the rates. On a terminal a
/// sample takes the place of the one before. JSON is always the counters, as a line for each sample.
async fn repeat<T: serde::Serialize>(
    watch: bool,
    json: bool,
    fetch: impl AsyncFn() -> super::client::Result<T>,
    text: impl Fn(&T, Option<&T>) -> String,
) -> Result<(), CliError> {
    let redraw = watch && !json && std::io::stdout().is_terminal();
    let mut before: Option<T> = None;
    let mut ticks = tokio::time::interval(INTERVAL);
    loop {
        ticks.tick().await;
        let now = fetch().await?;
        if json {
            output::json(&now)?;
        } else {
            // Home, then clear to the end of the screen.
            let clear = if redraw { "\x1b[H\x1b[J" } else { "" };
            output::line(&format!("{clear}{}", text(&now, before.as_ref())))?;
        }
        if !watch {
            return Ok(());
        }
        before = Some(now);
    }
}

/// The pool's counters.
fn pool_text(s: &StatsView, before: Option<&StatsView>) -> String {
    let mut t = count_table(before.is_some());
    guest_rows(&mut t, "guest ", &s.guest, before.map(|b| &b.guest));
    let (store, old) = (&s.store, before.map(|b| &b.store));
    count_row(&mut t, "store reads", store.read, old.map(|o| o.read));
    count_row(&mut t, "store writes", store.write, old.map(|o| o.write));
    ops_row(&mut t, "store syncs", store.sync_ops, old.map(|o| o.sync_ops));
    ops_row(&mut t, "store deletes", store.delete_ops, old.map(|o| o.delete_ops));
    format!("{}\n\n{}", output::render(&t), pool_facts(s))
}

fn pool_facts(s: &StatsView) -> String {
    let mut t = output::table(&[], &[]);
    let mut row = |name: &str, value: String| {
        t.add_row([name.to_owned(), value]);
    };
    row("offload", percent(s.offload));
    row("read cache", cache_text(&s.read_cache));
    row("map cache", cache_text(&s.map_cache));
    row("memory", Size(s.memory_bytes).to_string());
    row("not yet durable", Size(s.dirty_bytes).to_string());
    let stored = Size(s.stored_bytes);
    row("stored", format!("{stored} in {} segments, {} disks", s.segments, s.disks));
    row("room", format!("{} free of {}", Size(s.store_free_bytes), Size(s.store_total_bytes)));
    row("log", format!("batch {}, {} commits, {} checkpoints", s.seq, s.commits, s.checkpoints));
    row("recovery", format!("{} batches in {} ms", s.recovered_batches, s.recovery_ms));
    if s.damaged_blocks != 0 {
        row("DAMAGED BLOCKS", format!("{}: run 'forebay check'", s.damaged_blocks));
    }
    for column in t.column_iter_mut() {
        column.set_padding((0, 2));
    }
    output::render(&t)
}

/// One disk's counters.
fn guest_text(s: &GuestView, before: Option<&GuestView>) -> String {
    let mut t = count_table(before.is_some());
    guest_rows(&mut t, "", s, before);
    output::render(&t)
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

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |s| format!("{:.1} %", s * 100.0))
}

fn cache_text(c: &CacheView) -> String {
    let (held, budget) = (Size(c.bytes), Size(c.budget_bytes));
    format!("{} hits, {held} of {budget} in use", percent(c.hit_rate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_is_described() {
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
        now.damaged_blocks = 1;
        assert!(pool_text(&now, None).contains("DAMAGED"), "{text}");
    }
}
