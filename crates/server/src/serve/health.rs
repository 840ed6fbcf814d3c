//! The health of the pool, and events about it: free space, and damaged data.

use std::time::Duration;

use forebay_control::operations::{Control, Topic};
use forebay_engine::Room;
use serde_json::json;

const INTERVAL: Duration = Duration::from_secs(5);

/// Notices when conditions begin, and publishes changes, until it is aborted.
pub(super) async fn watch(control: Control) {
    let mut known: Option<(Room, u64)> = None;
    loop {
        tokio::time::sleep(INTERVAL).await;
        // An idle pool does not query its store, so it would not notice that other writers have filled the
        // file system.
        if let Err(error) = control.pool().check_room().await {
            tracing::debug!(%error, "cannot read the room of the store");
        }
        control.health();
        if !control.events().has_readers() {
            continue;
        }
        let stats = control.pool().stats().await;
        let (room, damaged) = (stats.room, stats.damaged_blocks);
        let (old_room, old_damaged) = known.replace((room, damaged)).unwrap_or((Room::Ok, damaged));
        if room != old_room {
            let what = match room {
                Room::Ok => "ok",
                Room::Low => "low",
                Room::Full => "full",
            };
            let data = json!({"free_bytes": stats.store_free_bytes, "total_bytes": stats.store_total_bytes});
            control.events().publish("", Topic::Capacity, what, Vec::new(), data);
        }
        if damaged > old_damaged {
            let data = json!({"damaged_blocks": damaged});
            control.events().publish("", Topic::Error, "damaged_blocks", Vec::new(), data);
        }
    }
}
