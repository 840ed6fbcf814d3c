//! Conversions of types of the engine and the front ends to types of the API. The API depends on neither of
//! them.

mod cache;
mod desktops;
mod space;

use cache::read_cache_view;
use forebay_api::{
    ActivityView, CommitView, CountView, DiskView, GcEvent, GcPhaseView, GuestView, Kind, Reclaimed, Reset,
    StandbyView, StatsView, StoreView, SyncPolicy,
};
use forebay_engine::{
    CommitStats, Count, DiskGuestStats, DiskInfo, GcPhase, GcProgress, GuestStats, PoolStats, Role, Room,
    SpaceStats, StoreStats, SyncMode,
};
use forebay_store::rados::Standby;
pub(crate) use space::disk_space_view;

/// A value of the engine or a front end that the API shows.
pub(crate) trait View {
    /// The type of the API that shows the value.
    type View;

    /// Returns the value as the API shows it.
    fn view(self) -> Self::View;
}

/// The sync mode of the engine for a policy of the API.
pub(crate) fn sync_mode(policy: SyncPolicy) -> SyncMode {
    match policy {
        SyncPolicy::Flush => SyncMode::Flush,
        SyncPolicy::Always => SyncMode::Always,
        SyncPolicy::Never => SyncMode::Never,
    }
}

impl View for SyncMode {
    type View = SyncPolicy;

    fn view(self) -> SyncPolicy {
        match self {
            SyncMode::Flush => SyncPolicy::Flush,
            SyncMode::Always => SyncPolicy::Always,
            SyncMode::Never => SyncPolicy::Never,
        }
    }
}

/// Creates the view of a disk; `None` for an internal disk.
pub(crate) fn disk_view(info: &DiskInfo) -> Option<DiskView> {
    let kind = match info.role {
        Role::Volume => Kind::Volume,
        Role::Snapshot => Kind::Snapshot,
        Role::Image => Kind::Image,
        Role::Import | Role::Metadata | Role::ClusterImage => return None,
    };
    Some(DiskView {
        shard: None,
        name: info.name.clone(),
        kind,
        size_bytes: info.size,
        sync: info.sync.view(),
        created_ms: info.created_ms,
        origin: info.origin.clone(),
        snapshots: info.snapshots,
        clones: info.clones,
        clients: info.clients,
        uuid: uuid_text(&info.uuid),
        dedup_domain: info.dedup_domain,
        map_damaged: info.map_damaged,
        memory_lost: info.memory_lost,
        write_cache_bytes: (info.write_cache > 0).then_some(info.write_cache),
        reset: (info.write_cache > 0).then_some(match info.reset_at_disconnect {
            true => Reset::Disconnect,
            false => Reset::Never,
        }),
        used_bytes: info.used,
        exclusive_bytes: info.space.map(|space| space.exclusive_bytes),
        exclusive_as_of_ms: info.space.map(|space| space.exclusive_as_of_ms),
        tenant: info.limits.tenant.clone(),
        limits: Box::new(info.limits.limits.view()),
    })
}

/// Formats a UUID with hyphens (RFC 9562, section 4).
fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|b| format!("{b:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

impl View for GcProgress {
    type View = GcEvent;

    fn view(self) -> GcEvent {
        let phase = match self.phase {
            GcPhase::Mark => GcPhaseView::Mark,
            GcPhase::Clean => GcPhaseView::Clean,
            GcPhase::Done => GcPhaseView::Done,
        };
        let so_far = Reclaimed { freed_bytes: self.freed_bytes, moved_bytes: self.moved_bytes };
        GcEvent::Progress { phase, done: self.done, total: self.total, so_far }
    }
}

impl View for Standby {
    type View = StandbyView;

    fn view(self) -> StandbyView {
        StandbyView { server: self.server, alive: self.alive }
    }
}

impl View for Count {
    type View = CountView;

    fn view(self) -> CountView {
        CountView { ops: self.ops, bytes: self.bytes }
    }
}

impl View for GuestStats {
    type View = GuestView;

    fn view(self) -> GuestView {
        GuestView {
            read: self.read.view(),
            write: self.write.view(),
            discard: self.discard.view(),
            flush_ops: self.flush,
        }
    }
}

impl View for StoreStats {
    type View = StoreView;

    fn view(self) -> StoreView {
        StoreView {
            read: self.read.view(),
            write: self.write.view(),
            sync_ops: self.sync,
            delete_ops: self.delete,
        }
    }
}

impl View for CommitStats {
    type View = CommitView;

    fn view(self) -> CommitView {
        CommitView {
            cost_us: self.cost_us,
            by_age: self.by_age,
            by_demand: self.by_demand,
            delayed_us: self.delayed_us,
            waiting: self.waiting,
        }
    }
}

impl View for DiskGuestStats {
    type View = ActivityView;

    fn view(self) -> ActivityView {
        let guest = self.guest.view();
        ActivityView { name: self.name, clients: self.clients, guest, cached_bytes: self.cached_bytes }
    }
}

/// Creates the view of a pool's counters; `memory_bytes` is the resident memory of the process. What
/// front ends count is not included.
pub(crate) fn stats_view(s: &PoolStats, memory_bytes: u64) -> StatsView {
    let guest_ops = s.guest.read.ops + s.guest.write.ops;
    let store_ops = s.store.read.ops + s.store.write.ops;
    StatsView {
        guest: s.guest.view(),
        store: s.store.view(),
        offload: ratio(store_ops, guest_ops).map(|cost| (1.0 - cost).max(0.0)),
        read_cache: read_cache_view(s),
        map_cache: s.map_cache.view(),
        dirty_bytes: s.dirty_bytes,
        memory_bytes,
        stored_bytes: s.stored_bytes,
        store_total_bytes: s.store_total_bytes,
        store_free_bytes: s.store_free_bytes,
        store_reserve_bytes: Some(s.store_reserve_bytes),
        store_in_use: in_use(s),
        disks: s.disks,
        segments: s.segments,
        seq: s.seq,
        commits: s.commits,
        commit: s.commit.view(),
        checkpoints: s.checkpoints,
        damaged_blocks: s.damaged_blocks,
        recovered_batches: s.recovered_batches,
        recovery_ms: s.recovery_ms,
        room: s.room.view(),
        reduction: s.reduction.view(),
        desktops: s.desktops.view(),
        // While a reclaim moves data, the live bytes are as of its mark, and the stored ones decrease.
        space: s.space.map(|space| {
            let live_bytes = space.live_bytes.min(s.stored_bytes);
            SpaceStats { live_bytes, ..space }.view()
        }),
        moved_bytes: s.moved_bytes,
        freed_bytes: s.freed_bytes,
        ..StatsView::default()
    }
}

/// The share of the usable space that is in use. Usable is the space without the reserve.
fn in_use(s: &PoolStats) -> Option<f64> {
    let usable = s.store_total_bytes.saturating_sub(s.store_reserve_bytes);
    let left = match s.room {
        Room::Full => 0,
        Room::Ok | Room::Low => s.store_free_bytes.saturating_sub(s.store_reserve_bytes),
    };
    ratio(usable.saturating_sub(left), usable)
}

/// Returns `part / whole`; `None` if `whole` is 0.
pub(crate) fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole != 0).then(|| part as f64 / whole as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_with_only_the_reserve_left_is_in_use_as_a_whole() {
        let stats = |free, room| PoolStats {
            store_total_bytes: 1000,
            store_free_bytes: free,
            store_reserve_bytes: 200,
            room,
            ..PoolStats::default()
        };
        let found = |s| stats_view(&s, 0).store_in_use;
        assert_eq!(found(stats(1000, Room::Ok)), Some(0.0));
        assert_eq!(found(stats(600, Room::Ok)), Some(0.5));
        assert_eq!(found(stats(200, Room::Low)), Some(1.0));
        assert_eq!(found(stats(150, Room::Full)), Some(1.0));
        // The file system refuses room that it reports as free.
        assert_eq!(found(stats(600, Room::Full)), Some(1.0));
        assert_eq!(found(PoolStats::default()), None);
    }

    #[test]
    fn the_offload_is_not_negative() {
        let mut stats = PoolStats::default();
        stats.guest.read.ops = 100;
        stats.store.write.ops = 373;
        assert_eq!(stats_view(&stats, 0).offload, Some(0.0));
        stats.store.write.ops = 25;
        assert_eq!(stats_view(&stats, 0).offload, Some(0.75));
    }
}
