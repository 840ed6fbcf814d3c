//! Memory pressure: the caches shrink before the host swaps or the kernel's OOM killer acts, and grow back
//! later.
//!
//! Checked each half second: the available memory of the host and of every control group that contains the
//! server (cgroup v2, or the memory controller of v1), and how long tasks were stalled on memory (PSI). When
//! little memory is available or tasks were stalled, the read cache shrinks first, because its contents are
//! also on the store; then the write caches of desktops, which overflow to the store. When memory has been
//! plentiful for [`CALM`], both grow back in steps, up to the configured budgets.
//!
//! Between two checks, a burst can fill a budget. So no budget exceeds the sum of the memory that it uses and
//! the room above the reserve, also if more is configured.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_engine::Pool;
use tokio::sync::watch;
use tokio::time::Instant;

/// Time between two checks of the memory.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Time without memory pressure before caches grow again.
const CALM: Duration = Duration::from_secs(10);
/// Caches shrink when tasks were stalled for more than this share of the time.
const STALLED: f64 = 0.05;
/// Bytes freed between two checks from which on free memory is returned to the system immediately.
const GIVE_BACK: u64 = 64 << 20;
/// Lower bounds of the budgets of the read cache and of desktops.
const LEAST_CACHE: u64 = 16 << 20;
const LEAST_DESKTOPS: u64 = 64 << 20;

/// Memory of the host or of the control group with the least available memory.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Memory {
    total: u64,
    available: u64,
    /// Share of the time in which tasks waited for memory.
    stalled: f64,
}

/// Budgets or memory in use, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::serve) struct Budgets {
    pub read_cache: u64,
    pub desktops: u64,
}

impl Budgets {
    /// The budgets of a pool.
    pub fn of(pool: &Pool) -> Budgets {
        let memory = pool.memory();
        Budgets { read_cache: memory.read_cache_budget, desktops: memory.desktops_budget }
    }

    fn is_below(self, other: Budgets) -> bool {
        self.read_cache < other.read_cache || self.desktops < other.desktops
    }
}

/// Memory that should stay available, which leaves time to react.
fn reserve(total: u64) -> u64 {
    (total / 16).clamp(64 << 20, 1 << 30)
}

impl Memory {
    /// Whether caches have to shrink.
    fn is_short(&self) -> bool {
        self.available < reserve(self.total) || self.stalled > STALLED
    }

    /// Available memory above the reserve.
    fn room(&self) -> u64 {
        self.available.saturating_sub(reserve(self.total))
    }

    /// Memory that can be used for a short time without pressure.
    fn spare(&self) -> u64 {
        self.available.saturating_sub(2 * reserve(self.total))
    }
}

/// The budgets of the next half second. `calm` is whether there was no pressure for [`CALM`].
fn next(now: Budgets, used: Budgets, configured: Budgets, memory: &Memory, calm: bool) -> Budgets {
    let least = Budgets {
        read_cache: LEAST_CACHE.min(configured.read_cache),
        desktops: LEAST_DESKTOPS.min(configured.desktops),
    };
    if memory.is_short() {
        let missing = (2 * reserve(memory.total)).saturating_sub(memory.available).max(used.read_cache / 8);
        // Reducing a budget frees no memory until it is below the memory in use.
        let read_cache = used.read_cache.saturating_sub(missing).max(least.read_cache);
        let still = missing.saturating_sub(used.read_cache.saturating_sub(read_cache));
        let desktops = used.desktops.saturating_sub(still).max(least.desktops);
        return Budgets {
            read_cache: read_cache.min(now.read_cache),
            desktops: if still > 0 { desktops.min(now.desktops) } else { now.desktops },
        };
    }
    let (room, spare) = (memory.room(), memory.spare());
    let next = |now: u64, used: u64, configured: u64, least: u64| {
        let step = if calm { (configured / 16).max(1 << 20).min(spare / 4) } else { 0 };
        configured.min(now + step).min((used + room).max(least))
    };
    Budgets {
        read_cache: next(now.read_cache, used.read_cache, configured.read_cache, least.read_cache),
        desktops: next(now.desktops, used.desktops, configured.desktops, least.desktops),
    }
}

/// The spare memory; 0 if it is not known.
pub(in crate::serve) fn spare() -> u64 {
    Source::default().look().map_or(0, |memory| memory.spare())
}

/// The RAM of the host in bytes.
pub(in crate::serve) fn ram() -> Option<u64> {
    host(&std::fs::read_to_string("/proc/meminfo").ok()?).map(|(total, _)| total)
}

/// The RAM of the host, or the lowest limit of the control groups if that is less; and whether it is the RAM
/// of the host.
pub(in crate::serve) fn total() -> Option<(u64, bool)> {
    let total = ram()?;
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = groups(&own, Path::new("/sys/fs/cgroup")).into_iter().filter_map(|group| group.look());
    let lowest = limits.map(|(limit, _)| limit).min().filter(|limit| *limit < total);
    Some(lowest.map_or((total, true), |limit| (limit, false)))
}

/// Adapts the budgets of a pool, forever. `budgets` has the configured budgets, which can change.
pub(in crate::serve) async fn watch(pool: Arc<Pool>, mut budgets: watch::Receiver<Budgets>) {
    let mut configured = *budgets.borrow_and_update();
    let (mut now, mut short) = (configured, Instant::now() - CALM);
    let (mut source, mut before) = (Source::default(), 0);
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    loop {
        ticks.tick().await;
        let Some(memory) = source.look() else { continue };
        let uses = pool.memory();
        let used = Budgets { read_cache: uses.read_cache, desktops: uses.desktops };
        // Resetting desktops frees much memory at once, which the allocator keeps.
        if used.desktops + GIVE_BACK < before {
            give_back();
        }
        before = used.desktops;
        if budgets.has_changed().unwrap_or(false) {
            // New budgets apply at once; if memory is short, the following checks shrink them.
            configured = *budgets.borrow_and_update();
            let target = Arc::clone(&pool);
            let Budgets { read_cache, desktops } = configured;
            let done = tokio::task::spawn_blocking(move || target.set_memory(read_cache, desktops)).await;
            if done.is_err() {
                return;
            }
            now = configured;
            give_back();
        }
        let wanted = next(now, used, configured, &memory, short.elapsed() >= CALM);
        if wanted == now {
            continue;
        }
        let shrinks = memory.is_short() && wanted.is_below(now);
        if shrinks {
            short = Instant::now();
        }
        let Memory { available, stalled, .. } = memory;
        let (read_cache, desktops) = (wanted.read_cache, wanted.desktops);
        if shrinks || wanted == configured {
            tracing::info!(
                available,
                stalled,
                read_cache,
                desktops,
                "cache budgets adapted to the available memory"
            );
        }
        now = wanted;
        let target = Arc::clone(&pool);
        // Shrinking a large cache takes long.
        let done = tokio::task::spawn_blocking(move || target.set_memory(read_cache, desktops)).await;
        if done.is_err() {
            return;
        }
        if wanted.is_below(used) {
            give_back();
        }
    }
}

/// Makes the allocator return free pages to the system.
fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: callable from any thread; the argument 0 is valid.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Reads the figures from the kernel.
#[derive(Default)]
struct Source {
    stalled: Option<(Instant, u64)>,
}

/// A control group of the kernel.
struct Group {
    dir: PathBuf,
    /// Whether it is a group of cgroup v2.
    unified: bool,
}

impl Source {
    fn look(&mut self) -> Option<Memory> {
        let host = host(&std::fs::read_to_string("/proc/meminfo").ok()?)?;
        // Read each time, because a process can be moved to another group.
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let groups = groups(&own, Path::new("/sys/fs/cgroup"));
        let left = groups.iter().filter_map(Group::look);
        let (total, available) = left.fold(host, |a, b| if b.1 < a.1 { b } else { a });
        Some(Memory { total, available, stalled: self.stalled(&groups) })
    }

    /// The share of the time since the last check in which tasks were stalled.
    fn stalled(&mut self, groups: &[Group]) -> f64 {
        let unified = groups.iter().find(|g| g.unified).map(|g| g.dir.join("memory.pressure"));
        let read = |path: &Path| stalled_us(&std::fs::read_to_string(path).ok()?);
        let own = unified.as_deref().and_then(read);
        let Some(us) = own.or_else(|| read(Path::new("/proc/pressure/memory"))) else { return 0.0 };
        let now = Instant::now();
        let share = self.stalled.map_or(0.0, |(then, before)| {
            us.saturating_sub(before) as f64 / (now - then).as_micros().max(1) as f64
        });
        self.stalled = Some((now, us));
        share
    }
}

/// The control groups that limit this process, from the text of `/proc/self/cgroup`: the group of the process
/// and all ancestors of this group.
fn groups(own: &str, root: &Path) -> Vec<Group> {
    let mut found = Vec::new();
    for line in own.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let (base, unified) = match controllers {
            "" => (root.to_owned(), true),
            c if c.split(',').any(|c| c == "memory") => (root.join("memory"), false),
            _ => continue,
        };
        for part in Path::new(path.trim_start_matches('/')).ancestors() {
            found.push(Group { dir: base.join(part), unified });
        }
    }
    found
}

impl Group {
    /// The limit of the group and the available part of it; `None` without a limit.
    fn look(&self) -> Option<(u64, u64)> {
        let read = |name: &str| std::fs::read_to_string(self.dir.join(name)).ok();
        let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
        let (limit, usage, inactive) = if self.unified {
            let limit = ["memory.max", "memory.high"].into_iter().filter_map(number).min()?;
            (limit, number("memory.current")?, "inactive_file")
        } else {
            let limit = number("memory.limit_in_bytes").filter(|limit| *limit < 1 << 60)?;
            (limit, number("memory.usage_in_bytes")?, "total_inactive_file")
        };
        // Inactive page cache is reclaimed without effort, so it counts as available.
        let cached = read("memory.stat").and_then(|stat| field(&stat, inactive)).unwrap_or(0);
        Some((limit, limit.saturating_sub(usage.saturating_sub(cached))))
    }
}

/// The number that follows a name at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix([' ', ':']))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Total and available bytes of the host, from `/proc/meminfo`.
fn host(meminfo: &str) -> Option<(u64, u64)> {
    Some((field(meminfo, "MemTotal")? << 10, field(meminfo, "MemAvailable")? << 10))
}

/// Microseconds in which at least one task waited for memory, from a PSI file.
fn stalled_us(psi: &str) -> Option<u64> {
    let some = psi.lines().find(|line| line.starts_with("some "))?;
    some.split_whitespace().find_map(|part| part.strip_prefix("total=")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const FULL: Budgets = Budgets { read_cache: 1024 * MIB, desktops: 2048 * MIB };

    fn memory(available: u64, stalled: f64) -> Memory {
        Memory { total: 4096 * MIB, available: available * MIB, stalled }
    }

    #[test]
    fn the_read_cache_shrinks_before_desktops() {
        // 256 MiB should stay available.
        let after = next(FULL, FULL, FULL, &memory(200, 0.0), false);
        assert_eq!(after, Budgets { read_cache: 712 * MIB, ..FULL });
        let little = Budgets { read_cache: 20 * MIB, ..FULL };
        let after = next(little, little, FULL, &memory(0, 0.0), false);
        assert_eq!(after, Budgets { read_cache: 16 * MIB, desktops: (2048 - 508) * MIB });
        // Unused budget frees no memory.
        let used = Budgets { read_cache: 100 * MIB, desktops: 300 * MIB };
        let after = next(FULL, used, FULL, &memory(100, 0.0), false);
        assert_eq!(after, Budgets { read_cache: 16 * MIB, desktops: 64 * MIB });
        let after = next(FULL, FULL, FULL, &memory(3000, 0.5), false);
        assert_eq!(after.read_cache, 896 * MIB, "stalled tasks shrink caches even with memory available");
    }

    #[test]
    fn budgets_grow_back_after_a_time_without_pressure() {
        let small = Budgets { read_cache: 64 * MIB, desktops: 64 * MIB };
        assert_eq!(next(small, small, FULL, &memory(3000, 0.0), false), small);
        assert_eq!(next(small, small, FULL, &memory(400, 0.0), true), small);
        let mut now = small;
        for _ in 0..16 {
            now = next(now, small, FULL, &memory(3000, 0.0), true);
        }
        assert_eq!(now, FULL);
    }

    #[test]
    fn a_budget_never_exceeds_the_memory_in_use_and_the_room_above_the_reserve() {
        // 256 MiB are kept.
        let used = Budgets { read_cache: 200 * MIB, desktops: 0 };
        let after = next(FULL, used, FULL, &memory(356, 0.0), true);
        assert_eq!(after, Budgets { read_cache: 300 * MIB, desktops: 100 * MIB });
        // The memory that one check permits is filled before the next check: the budget stays.
        let used = Budgets { read_cache: 290 * MIB, desktops: 0 };
        assert_eq!(next(after, used, FULL, &memory(266, 0.0), true).read_cache, 300 * MIB);
        let after = next(FULL, Budgets { read_cache: 0, desktops: 0 }, FULL, &memory(260, 0.0), true);
        assert_eq!(after, Budgets { read_cache: LEAST_CACHE, desktops: LEAST_DESKTOPS });
    }

    #[test]
    fn figures_are_parsed_in_the_formats_of_the_kernel() {
        let meminfo = "MemTotal:       24689340 kB\nMemFree:          500 kB\nMemAvailable:   1048576 kB\n";
        assert_eq!(host(meminfo), Some((24_689_340 << 10, 1 << 30)));
        let psi = "some avg10=0.00 avg60=0.00 avg300=0.00 total=4711\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1\n";
        assert_eq!(stalled_us(psi), Some(4711));
        assert_eq!(stalled_us("nothing of the kind"), None);
        let own = "9:name=systemd:/\n4:cpu,memory:/a/b\n0::/x.slice/y\n";
        let dirs: Vec<_> = groups(own, Path::new("/c")).into_iter().map(|g| (g.dir, g.unified)).collect();
        let wanted = [
            ("/c/memory/a/b", false),
            ("/c/memory/a", false),
            ("/c/memory", false),
            ("/c/x.slice/y", true),
            ("/c/x.slice", true),
            ("/c", true),
        ];
        assert_eq!(dirs, wanted.map(|(dir, unified)| (PathBuf::from(dir).components().collect(), unified)));
    }

    #[test]
    fn inactive_page_cache_of_a_group_counts_as_available() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        let group = |unified| Group { dir: dir.path().to_owned(), unified };
        assert_eq!(group(true).look(), None);
        write("memory.max", "max\n");
        write("memory.high", "1000\n");
        write("memory.current", "900\n");
        write("memory.stat", "anon 500\ninactive_file 300\nactive_file 1\n");
        assert_eq!(group(true).look(), Some((1000, 400)));
        write("memory.limit_in_bytes", "9223372036854771712\n");
        write("memory.usage_in_bytes", "900\n");
        assert_eq!(group(false).look(), None, "the value of cgroup v1 for no limit");
        write("memory.limit_in_bytes", "1000\n");
        write("memory.stat", "total_inactive_file 800\n");
        assert_eq!(group(false).look(), Some((1000, 900)));
    }
}
