//! `forebay top`: rates of the pool and of its busiest disks.
//!
//! Each interval is the difference of two samples. A counter that became smaller belongs to a pool that was
//! opened again in between: it then counts from zero.

use std::collections::HashMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use clap::Args;
use forebay_api::client::Client;
use forebay_api::{ActivityView, CountView, GuestView, StatsView};
use forebay_host::clock::unix_ms;
use forebay_text::Size;
use serde::Serialize;

use super::{CliError, output};

/// Options of `top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Seconds of each interval
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = parse_interval)]
    pub interval: f64,
    /// Show one interval and exit
    #[arg(long)]
    pub once: bool,
    /// Order of the disks
    #[arg(long, value_enum, default_value_t)]
    pub sort: TopOrder,
    /// Most disks that are shown
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub lines: usize,
}

/// `--sort`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum TopOrder {
    /// Operations per second, the highest first
    #[default]
    Ops,
    /// Bytes per second, the highest first
    Bytes,
    /// Name
    Name,
}

fn parse_interval(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|s| (0.1..=3600.0).contains(s));
    seconds.ok_or_else(|| format!("'{text}' is not an interval; use 0.1 to 3600 seconds"))
}

/// A sample of all counters.
struct Sample {
    at: Instant,
    stats: StatsView,
    disks: Vec<ActivityView>,
}

/// Operations and bytes per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
struct Rates {
    read_ops: f64,
    read_bytes: f64,
    write_ops: f64,
    write_bytes: f64,
    discard_ops: f64,
    flush_ops: f64,
}

impl Rates {
    fn between(before: &GuestView, now: &GuestView, seconds: f64) -> Rates {
        let per_second = |before, now| rate(before, now, seconds);
        Rates {
            read_ops: per_second(before.read.ops, now.read.ops),
            read_bytes: per_second(before.read.bytes, now.read.bytes),
            write_ops: per_second(before.write.ops, now.write.ops),
            write_bytes: per_second(before.write.bytes, now.write.bytes),
            discard_ops: per_second(before.discard.ops, now.discard.ops),
            flush_ops: per_second(before.flush_ops, now.flush_ops),
        }
    }

    fn ops(&self) -> f64 {
        self.read_ops + self.write_ops + self.discard_ops + self.flush_ops
    }

    fn bytes(&self) -> f64 {
        self.read_bytes + self.write_bytes
    }
}

fn rate(before: u64, now: u64, seconds: f64) -> f64 {
    let moved = if now < before { now } else { now - before };
    moved as f64 / seconds
}

/// A disk in one interval.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct DiskRates {
    name: String,
    clients: usize,
    #[serde(flatten)]
    rates: Rates,
}

/// The figures of one interval.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Interval {
    time_ms: u64,
    seconds: f64,
    guest: Rates,
    store_read_ops: f64,
    store_read_bytes: f64,
    store_write_ops: f64,
    store_write_bytes: f64,
    /// Share of guest reads and writes without a separate store operation, in this interval. Negative if the
    /// store executed more operations than guests requested.
    offload: Option<f64>,
    /// Share of look-ups of the read cache that were hits, in this interval.
    read_cache_hit_rate: Option<f64>,
    dirty_bytes: u64,
    store_free_bytes: u64,
    /// Number of disks that a client has open, or that were used.
    active: usize,
    disks: Vec<DiskRates>,
}

impl Interval {
    fn between(before: &Sample, now: &Sample, order: TopOrder, limit: usize) -> Interval {
        let seconds = (now.at - before.at).as_secs_f64().max(0.001);
        let old: HashMap<&str, &ActivityView> = before.disks.iter().map(|d| (d.name.as_str(), d)).collect();
        let none = GuestView::default();
        let of = |d: &ActivityView| DiskRates {
            name: d.name.clone(),
            clients: d.clients,
            rates: Rates::between(old.get(d.name.as_str()).map_or(&none, |o| &o.guest), &d.guest, seconds),
        };
        let mut disks: Vec<_> = now.disks.iter().map(of).collect();
        disks.retain(|d| d.clients > 0 || d.rates.ops() > 0.0);
        let active = disks.len();
        disks.sort_by(|a, b| match order {
            TopOrder::Ops => b.rates.ops().total_cmp(&a.rates.ops()).then_with(|| a.name.cmp(&b.name)),
            TopOrder::Bytes => b.rates.bytes().total_cmp(&a.rates.bytes()).then_with(|| a.name.cmp(&b.name)),
            TopOrder::Name => a.name.cmp(&b.name),
        });
        disks.truncate(limit);
        let (a, b) = (&before.stats, &now.stats);
        let guest = Rates::between(&a.guest, &b.guest, seconds);
        let ops = |x: CountView, y: CountView| rate(x.ops, y.ops, seconds);
        let bytes = |x: CountView, y: CountView| rate(x.bytes, y.bytes, seconds);
        let (reads, writes) = (ops(a.store.read, b.store.read), ops(a.store.write, b.store.write));
        let requests = guest.read_ops + guest.write_ops;
        let hits = rate(a.read_cache.hits, b.read_cache.hits, 1.0);
        let looked = hits + rate(a.read_cache.misses, b.read_cache.misses, 1.0);
        Interval {
            time_ms: unix_ms(),
            seconds,
            guest,
            store_read_ops: reads,
            store_read_bytes: bytes(a.store.read, b.store.read),
            store_write_ops: writes,
            store_write_bytes: bytes(a.store.write, b.store.write),
            offload: (requests > 0.0).then(|| (1.0 - (reads + writes) / requests).max(0.0)),
            read_cache_hit_rate: (looked > 0.0).then(|| hits / looked),
            dirty_bytes: b.dirty_bytes,
            store_free_bytes: b.store_free_bytes,
            active,
            disks,
        }
    }

    fn text(&self) -> String {
        let size = |bytes: f64| Size(bytes as u64).to_string();
        let pool = format!(
            "guests {:.0} ops/s, {}/s read, {}/s written; store {:.0} ops/s, {}/s read, {}/s written\noffload {}, read \
             cache {} hits, {} not durable, {} free, {} active disks",
            self.guest.ops(),
            size(self.guest.read_bytes),
            size(self.guest.write_bytes),
            self.store_read_ops + self.store_write_ops,
            size(self.store_read_bytes),
            size(self.store_write_bytes),
            output::offload(self.offload),
            output::percent(self.read_cache_hit_rate),
            Size(self.dirty_bytes),
            Size(self.store_free_bytes),
            self.active,
        );
        let header =
            ["NAME", "READ/S", "WRITE/S", "FLUSH/S", "DISCARD/S", "READ B/S", "WRITE B/S", "CLIENTS"];
        let mut t = output::table(&header, &[1, 2, 3, 4, 5, 6, 7]);
        for DiskRates { name, clients, rates: r } in &self.disks {
            let number = |n: f64| format!("{n:.0}");
            t.add_row([
                name.clone(),
                number(r.read_ops),
                number(r.write_ops),
                number(r.flush_ops),
                number(r.discard_ops),
                size(r.read_bytes),
                size(r.write_bytes),
                clients.to_string(),
            ]);
        }
        format!("{pool}\n\n{}", output::render(t))
    }
}

async fn sample(client: &Client) -> Result<Sample, CliError> {
    let stats = client.get(&["stats"]).await?;
    let disks = client.get(&["activity"]).await?;
    Ok(Sample { at: Instant::now(), stats, disks })
}

/// Lines of the terminal that are left for disks.
fn terminal_lines() -> Option<usize> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: `size` is a valid structure for the call to fill.
    let failed = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size) } != 0;
    (!failed && size.ws_row > 0).then(|| usize::from(size.ws_row).saturating_sub(5).max(1))
}

/// Shows the rates of each interval, or with `once` of a single one.
pub(super) async fn run(client: &Client, args: &TopArgs, json: bool) -> Result<(), CliError> {
    let redraw = !json && !args.once && std::io::stdout().is_terminal();
    let mut before = sample(client).await?;
    loop {
        // After a sample that took long, the interval is not shorter.
        tokio::time::sleep(Duration::from_secs_f64(args.interval)).await;
        let now = sample(client).await?;
        let limit =
            if redraw { terminal_lines().map_or(args.lines, |n| n.min(args.lines)) } else { args.lines };
        let interval = Interval::between(&before, &now, args.sort, limit);
        match (json, redraw) {
            (true, _) => output::json(&interval)?,
            (false, true) => output::screen(&interval.text())?,
            (false, false) => output::line(&format!("{}\n", interval.text()))?,
        }
        if args.once {
            return Ok(());
        }
        before = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at: Instant, disks: &[(&str, usize, u64)]) -> Sample {
        let count = |n| CountView { ops: n, bytes: 4096 * n };
        let guest = |n| GuestView { read: count(n), ..GuestView::default() };
        let disk = |(name, clients, n): &(&str, usize, u64)| ActivityView {
            name: (*name).to_owned(),
            clients: *clients,
            guest: guest(*n),
            cached_bytes: 0,
        };
        let total = disks.iter().map(|d| d.2).sum();
        let stats = StatsView { guest: guest(total), ..StatsView::default() };
        Sample { at, stats, disks: disks.iter().map(disk).collect() }
    }

    #[test]
    fn rates_are_sorted_and_idle_disks_are_omitted() {
        let (begun, two) = (Instant::now(), Duration::from_secs(2));
        let before = sample(begun, &[("slow", 0, 10), ("idle", 0, 7), ("fast", 1, 0), ("open", 1, 1)]);
        let now = sample(
            begun + two,
            &[("slow", 0, 20), ("idle", 0, 7), ("fast", 1, 400), ("open", 1, 1), ("new", 0, 8)],
        );
        let found = Interval::between(&before, &now, TopOrder::Ops, 3);
        let names: Vec<_> = found.disks.iter().map(|d| (d.name.as_str(), d.rates.read_ops)).collect();
        assert_eq!(names, [("fast", 200.0), ("slow", 5.0), ("new", 4.0)]);
        assert_eq!((found.active, found.offload), (4, Some(1.0)));
        assert!(found.text().contains("836 KiB/s read"), "{}", found.text());
    }

    #[test]
    fn counters_of_a_pool_that_was_opened_again_begin_at_zero() {
        assert_eq!((rate(100, 30, 2.0), rate(30, 100, 2.0)), (15.0, 35.0));
    }
}
