//! All metrics. Their names are a contract with dashboards and alerts: a release may add metrics, but does
//! not remove or rename any.

use std::time::Duration;

use forebay_engine::{ClassReads, Count, DiskGuestStats, PoolStats, Role, Room};
use forebay_frontend::plane::{BOUNDS_NS, Front, Served};
use forebay_host::clock::{self, unix_ms};

use super::resident_memory;
use super::text::{Labels, Metric, NONE, Text, metrics, one, put};
use crate::operations::{Observed, VolumeSeries};

/// The input of one scrape.
pub(super) struct Sample<'a> {
    /// Statistics of the pool; `None` if the store did not report its free room in time.
    pub stats: Option<&'a PoolStats>,
    pub disks: Vec<DiskGuestStats>,
    pub sessions: (usize, usize),
    pub uptime: Duration,
    pub pool: &'a str,
    pub observed: &'a Observed,
}

metrics! {
    BUILD gauge "build_info" "Release of the server; always 1.";
    UPTIME gauge "uptime_seconds" "Time since the server became ready.";
    RESIDENT gauge "process_resident_memory_bytes" "Resident memory of the process.";
    CPU counter "process_cpu_seconds_total" "CPU time of the process.";
    POOL_ANSWERS gauge "pool_answers" "Whether the store reported its free room in time; without it, metrics of the pool are absent.";
    GUEST_OPS counter "guest_operations_total" "Operations of guests.";
    GUEST_BYTES counter "guest_bytes_total" "Bytes of operations of guests.";
    STORE_OPS counter "store_operations_total" "Operations on the store.";
    STORE_BYTES counter "store_bytes_total" "Bytes read from and appended to the store.";
    BLOCKS counter "written_blocks_total" "Blocks of 4096 bytes in commits, by what data reduction found.";
    REDUCED counter "stored_new_bytes_total" "Bytes of new blocks after compression.";
    CACHE_HITS counter "cache_hits_total" "Look-ups that hit.";
    CACHE_MISSES counter "cache_misses_total" "Look-ups that missed.";
    CACHE_BYTES gauge "cache_bytes" "Memory in use by a cache.";
    CACHE_BUDGET gauge "cache_budget_bytes" "Memory that a cache may use.";
    EVICTIONS counter "read_cache_evictions_total" "Blocks that were evicted from the read cache.";
    GHOST_HITS counter "read_cache_ghost_hits_total" "Misses of the read cache that a larger one, by the label size, would have had as hits; an estimate.";
    CLASS_HITS counter "class_read_hits_total" "Reads served from RAM, by class of their first block; estimated from one of 16.";
    CLASS_MISSES counter "class_read_misses_total" "Reads that waited for the store, by class of their first block; estimated from one of 16.";
    INDEX_ENTRIES gauge "dedup_index_entries" "Fingerprints in the deduplication index.";
    INDEX_BYTES gauge "dedup_index_bytes" "Memory in use by the deduplication index.";
    INDEX_BUDGET gauge "dedup_index_budget_bytes" "Memory that the deduplication index may use.";
    INDEX_SAMPLING gauge "dedup_index_sampling" "One of this many fingerprints is kept.";
    INDEX_LEFT gauge "dedup_index_segments_left" "Segments whose fingerprints were not loaded yet after the start.";
    DIRTY gauge "write_buffer_dirty_bytes" "Data in write buffers that is not durable.";
    DIRTY_BUDGET gauge "write_buffer_budget_bytes" "Size of the write buffers, above which writers wait.";
    DESKTOPS gauge "desktops" "Number of desktops.";
    DESKTOP_BYTES gauge "desktop_cache_bytes" "Writes of desktops in memory.";
    DESKTOP_BUDGET gauge "desktop_cache_budget_bytes" "Memory that writes of desktops may use.";
    OVERFLOWS counter "desktop_overflows_total" "Times that writes of a desktop overflowed to the store.";
    OVERFLOWED counter "desktop_overflowed_bytes_total" "Bytes that overflowed to the store.";
    COMMITS counter "commits_total" "Commits.";
    COMMIT_STARTS counter "commit_starts_total" "Commits by their reason: age of the data, or demand of a waiting guest.";
    COMMIT_DELAY counter "commit_delay_seconds_total" "Time for which commits were delayed so that more guests share them.";
    COMMIT_COST gauge "commit_cost_seconds" "Present duration of a commit on the store.";
    CHECKPOINTS counter "checkpoints_total" "Checkpoints.";
    SEQUENCE counter "log_batches_total" "Sequence number of the last durable batch of the log.";
    STORE_TOTAL gauge "store_capacity_bytes" "Capacity of the store.";
    STORE_FREE gauge "store_free_bytes" "Free room of the store.";
    ROOM gauge "room_state" "State of the free room: 1 for the present one.";
    STORED gauge "stored_bytes" "Bytes of all segments.";
    SEGMENTS gauge "segments" "Number of segments.";
    FREED counter "reclaim_freed_bytes_total" "Bytes that reclaims have freed.";
    MOVED counter "reclaim_moved_bytes_total" "Live bytes that reclaims have rewritten.";
    SPACE gauge "space_bytes" "Use of space as of the last mark.";
    SPACE_TIME gauge "space_marked_timestamp_seconds" "Time of the last mark.";
    DAMAGED_BLOCKS counter "damaged_blocks_total" "Blocks read with a wrong checksum.";
    RECOVERY gauge "recovery_seconds" "Duration of the recovery when the pool was opened.";
    RECOVERED gauge "recovered_batches" "Batches that were replayed when the pool was opened.";
    DISKS gauge "disks" "Number of disks by kind.";
    DISKS_IN_USE gauge "disks_in_use" "Disks that a client has open.";
    DISKS_DAMAGED gauge "disks_map_damaged" "Disks whose block map is partly unreadable.";
    DISKS_LOST gauge "disks_memory_lost" "Disks that lost acknowledged writes and refuse clients.";
    CONNECTIONS gauge "connections" "Connected clients, including those that are negotiating.";
    SESSIONS gauge "iscsi_sessions" "iSCSI sessions at targets.";
    CONTROLLERS gauge "nvme_controllers" "NVMe controllers of hosts at targets.";
    CLIENT_MEMORY gauge "client_memory_bytes" "Memory that the server holds for clients.";
    CLIENT_BUDGET gauge "client_memory_budget_bytes" "Memory that the server may hold for clients.";
    LATENCY histogram "request_duration_seconds" "Time from the receipt of a request until its reply was ready.";
    OWNER gauge "pool_owner_info" "The owner of a pool in Ceph; always 1.";
    TERM gauge "pool_term" "Number of the ownership of a pool in Ceph.";
    LEASE gauge "pool_lease_seconds" "Time for which this server is certain to own a pool in Ceph.";
    STANDBYS gauge "pool_standbys" "Servers that wait for a pool in Ceph, and are alive.";
    VOLUME_OPS counter "volume_operations_total" "Operations of the guest of a volume.";
    VOLUME_BYTES counter "volume_bytes_total" "Bytes of operations of the guest of a volume.";
    VOLUME_CLIENTS gauge "volume_clients" "Clients that have a volume open: NBD connections, iSCSI sessions and NVMe controllers.";
    VOLUME_CACHE gauge "volume_write_cache_bytes" "Writes of a desktop in memory.";
    VOLUMES_OMITTED gauge "volumes_omitted" "Volumes that match metrics.volumes, beyond metrics.max_volumes.";
}

/// Writes all metrics.
pub(super) fn write_all(s: &Sample<'_>) -> String {
    let mut text = Text::default();
    process(&mut text, s.uptime);
    one(&mut text, &POOL_ANSWERS, s.stats.is_some().into());
    if let Some(stats) = s.stats {
        io(&mut text, stats);
        memory(&mut text, stats, s.observed.write_buffer);
        log(&mut text, stats);
        space(&mut text, stats);
    }
    disks(&mut text, &s.disks);
    clients(&mut text, s);
    if let Some(held) = &s.observed.held {
        put(&mut text, &OWNER, &[(&[("pool", s.pool), ("owner", &held.owner)], 1.0)]);
        one(&mut text, &TERM, held.term);
        put(&mut text, &LEASE, &[(NONE, (held.lease_left)().as_secs_f64())]);
        if let Some(standbys) = &held.standbys {
            let alive = standbys.iter().filter(|standby| standby.alive).count();
            put(&mut text, &STANDBYS, &[(&[("pool", s.pool)], alive as f64)]);
        }
    }
    volumes(&mut text, &s.disks, &s.observed.series);
    text.finish()
}

/// Writes the metrics of this process, which has been ready for this time.
pub(super) fn process(text: &mut Text, uptime: Duration) {
    put(text, &BUILD, &[(&[("version", env!("CARGO_PKG_VERSION"))], 1.0)]);
    put(text, &UPTIME, &[(NONE, uptime.as_secs_f64())]);
    one(text, &RESIDENT, resident_memory());
    let cpu = clock::read(libc::CLOCK_PROCESS_CPUTIME_ID).unwrap_or_default();
    put(text, &CPU, &[(NONE, cpu.as_secs_f64())]);
}

fn io(text: &mut Text, s: &PoolStats) {
    let (read, write, discard): (Labels<'_>, Labels<'_>, Labels<'_>) =
        (&[("op", "read")], &[("op", "write")], &[("op", "discard")]);
    let ops = |c: Count| c.ops as f64;
    let bytes = |c: Count| c.bytes as f64;
    let (guest, store) = (&s.guest, &s.store);
    let flush = guest.flush as f64;
    put(
        text,
        &GUEST_OPS,
        &[
            (read, ops(guest.read)),
            (write, ops(guest.write)),
            (discard, ops(guest.discard)),
            (&[("op", "flush")], flush),
        ],
    );
    put(
        text,
        &GUEST_BYTES,
        &[(read, bytes(guest.read)), (write, bytes(guest.write)), (discard, bytes(guest.discard))],
    );
    put(
        text,
        &STORE_OPS,
        &[
            (read, ops(store.read)),
            (write, ops(store.write)),
            (&[("op", "sync")], store.sync as f64),
            (&[("op", "delete")], store.delete as f64),
        ],
    );
    put(text, &STORE_BYTES, &[(read, bytes(store.read)), (write, bytes(store.write))]);
    let r = &s.reduction;
    put(
        text,
        &BLOCKS,
        &[
            (&[("found", "new")], r.new_blocks as f64),
            (&[("found", "duplicate")], r.duplicate_blocks as f64),
            (&[("found", "unchanged")], r.unchanged_blocks as f64),
            (&[("found", "zero")], r.zero_blocks as f64),
        ],
    );
    one(text, &REDUCED, r.new_bytes);
    one(text, &DAMAGED_BLOCKS, s.damaged_blocks);
}

fn memory(text: &mut Text, s: &PoolStats, write_buffer: u64) {
    let (read, map): (Labels<'_>, Labels<'_>) = (&[("cache", "read")], &[("cache", "map")]);
    let mut both = |metric: &Metric, value: fn(&forebay_engine::CacheStats) -> u64| {
        put(text, metric, &[(read, value(&s.read_cache) as f64), (map, value(&s.map_cache) as f64)]);
    };
    both(&CACHE_HITS, |c| c.hits);
    both(&CACHE_MISSES, |c| c.misses);
    both(&CACHE_BYTES, |c| c.bytes);
    both(&CACHE_BUDGET, |c| c.budget);
    one(text, &EVICTIONS, s.read_cache_evictions);
    text.begin(&GHOST_HITS);
    for advice in &s.read_cache_advice {
        let size = format!("+{}%", advice.more_percent);
        text.series(GHOST_HITS.name, &[("size", &size)], advice.saved_reads as f64);
    }
    for (metric, value) in
        [(&CLASS_HITS, (|r| r.hits) as fn(&ClassReads) -> u64), (&CLASS_MISSES, |r| r.misses)]
    {
        text.begin(metric);
        for reads in &s.class_reads {
            text.series(metric.name, &[("class", reads.class.name())], value(reads) as f64);
        }
    }
    let r = &s.reduction;
    one(text, &INDEX_ENTRIES, r.index_entries);
    one(text, &INDEX_BYTES, r.index_bytes);
    one(text, &INDEX_BUDGET, r.index_budget);
    one(text, &INDEX_SAMPLING, 1 << r.index_sampling.min(63));
    one(text, &INDEX_LEFT, r.index_segments_left);
    one(text, &DIRTY, s.dirty_bytes);
    one(text, &DIRTY_BUDGET, write_buffer);
    one(text, &DESKTOPS, s.desktops.count);
    one(text, &DESKTOP_BYTES, s.desktops.cached_bytes);
    one(text, &DESKTOP_BUDGET, s.desktops.budget);
    one(text, &OVERFLOWS, s.desktops.overflow.ops);
    one(text, &OVERFLOWED, s.desktops.overflow.bytes);
}

fn log(text: &mut Text, s: &PoolStats) {
    one(text, &COMMITS, s.commits);
    let (age, demand) = (s.commit.by_age as f64, s.commit.by_demand as f64);
    put(text, &COMMIT_STARTS, &[(&[("reason", "age")], age), (&[("reason", "demand")], demand)]);
    put(text, &COMMIT_DELAY, &[(NONE, s.commit.delayed_us as f64 / 1e6)]);
    put(text, &COMMIT_COST, &[(NONE, s.commit.cost_us as f64 / 1e6)]);
    one(text, &CHECKPOINTS, s.checkpoints);
    one(text, &SEQUENCE, s.seq);
    put(text, &RECOVERY, &[(NONE, s.recovery_ms as f64 / 1e3)]);
    one(text, &RECOVERED, s.recovered_batches);
}

fn space(text: &mut Text, s: &PoolStats) {
    one(text, &STORE_TOTAL, s.store_total_bytes);
    one(text, &STORE_FREE, s.store_free_bytes);
    let is = |room| f64::from(u8::from(s.room == room));
    put(
        text,
        &ROOM,
        &[
            (&[("state", "ok")], is(Room::Ok)),
            (&[("state", "low")], is(Room::Low)),
            (&[("state", "full")], is(Room::Full)),
        ],
    );
    one(text, &STORED, s.stored_bytes);
    one(text, &SEGMENTS, s.segments);
    one(text, &FREED, s.freed_bytes);
    one(text, &MOVED, s.moved_bytes);
    if let Some(space) = &s.space {
        put(
            text,
            &SPACE,
            &[
                (&[("kind", "logical")], space.logical_bytes as f64),
                (&[("kind", "mapped")], space.mapped_bytes as f64),
                (&[("kind", "unique")], space.unique_bytes as f64),
                (&[("kind", "live")], space.live_bytes as f64),
                (&[("kind", "reclaimable")], space.reclaimable_bytes as f64),
            ],
        );
        put(text, &SPACE_TIME, &[(NONE, space.as_of_ms.min(unix_ms()) as f64 / 1e3)]);
    }
}

fn disks(text: &mut Text, disks: &[DiskGuestStats]) {
    let count = |is: &dyn Fn(&DiskGuestStats) -> bool| disks.iter().filter(|d| is(d)).count();
    let of = |role| count(&|d| d.role == role) as f64;
    put(
        text,
        &DISKS,
        &[
            (&[("kind", "volume")], of(Role::Volume)),
            (&[("kind", "snapshot")], of(Role::Snapshot)),
            (&[("kind", "image")], of(Role::Image)),
        ],
    );
    one(text, &DISKS_IN_USE, count(&|d| d.clients > 0) as u64);
    one(text, &DISKS_DAMAGED, count(&|d| d.map_damaged) as u64);
    one(text, &DISKS_LOST, count(&|d| d.memory_lost) as u64);
}

fn clients(text: &mut Text, s: &Sample<'_>) {
    let plane = &s.observed.plane;
    one(text, &CONNECTIONS, plane.connections() as u64);
    one(text, &SESSIONS, s.sessions.0 as u64);
    one(text, &CONTROLLERS, s.sessions.1 as u64);
    let (used, budget) = plane.memory();
    one(text, &CLIENT_MEMORY, used as u64);
    one(text, &CLIENT_BUDGET, budget as u64);
    text.begin(&LATENCY);
    let (bucket, sum, total) = (
        format!("{}_bucket", LATENCY.name),
        format!("{}_sum", LATENCY.name),
        format!("{}_count", LATENCY.name),
    );
    for (front, served) in Front::ALL.into_iter().flat_map(|f| Served::ALL.map(|s| (f, s))) {
        let counts = plane.latencies(front, served);
        let labels = [("front_end", front.name()), ("path", served.name())];
        let mut below = 0;
        for (n, bound) in counts.buckets.iter().zip(BOUNDS_NS.iter().map(Some).chain([None])) {
            below += n;
            let le = bound.map_or("+Inf".to_owned(), |ns| (*ns as f64 / 1e9).to_string());
            text.series(&bucket, &[labels[0], labels[1], ("le", &le)], below as f64);
        }
        text.series(&sum, &labels, counts.sum_ns as f64 / 1e9);
        text.series(&total, &labels, below as f64);
    }
}

fn volumes(text: &mut Text, disks: &[DiskGuestStats], wanted: &VolumeSeries) {
    let is_wanted = |d: &&DiskGuestStats| {
        d.role == Role::Volume && wanted.volumes.iter().any(|pattern| pattern.matches(&d.name))
    };
    let mut all: Vec<&DiskGuestStats> = disks.iter().filter(is_wanted).collect();
    // The order is fixed, so that each scrape has the same volumes even after others were removed.
    all.sort_by(|a, b| a.name.cmp(&b.name));
    one(text, &VOLUMES_OMITTED, all.len().saturating_sub(wanted.max) as u64);
    all.truncate(wanted.max);
    if all.is_empty() {
        return;
    }
    let mut each = |metric: &Metric, value: &dyn Fn(&DiskGuestStats) -> Vec<(&'static str, u64)>| {
        text.begin(metric);
        for disk in &all {
            for (op, value) in value(disk) {
                let labels = [("volume", disk.name.as_str()), ("op", op)];
                text.series(metric.name, if op.is_empty() { &labels[..1] } else { &labels }, value as f64);
            }
        }
    };
    each(&VOLUME_OPS, &|d| {
        let g = &d.guest;
        vec![("read", g.read.ops), ("write", g.write.ops), ("discard", g.discard.ops), ("flush", g.flush)]
    });
    each(&VOLUME_BYTES, &|d| {
        let g = &d.guest;
        vec![("read", g.read.bytes), ("write", g.write.bytes), ("discard", g.discard.bytes)]
    });
    each(&VOLUME_CLIENTS, &|d| vec![("", d.clients as u64)]);
    each(&VOLUME_CACHE, &|d| vec![("", d.cached_bytes)]);
}
