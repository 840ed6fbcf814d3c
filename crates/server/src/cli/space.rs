//! `forebay space`: the room of the store in one table, and the largest disks. The figures are those of `GET
//! /stats` and of the lists of disks.

use std::cmp::Reverse;

use forebay_api::client::Client;
use forebay_api::{DiskView, Kind, RoomView, StatsView};
use forebay_host::clock::unix_ms;
use forebay_text::Size;
use serde::Serialize;

use super::args::SpaceArgs;
use super::{CliError, output};

/// The figures, named as in `GET /stats`.
#[derive(Debug, Serialize)]
struct Space {
    room: RoomView,
    store_total_bytes: u64,
    store_free_bytes: u64,
    /// Bytes of the reserve; `null` if the server does not report them.
    store_reserve_bytes: Option<u64>,
    /// The part in use of what writers can use; `null` from a server that does not report it.
    store_in_use: Option<f64>,
    stored_bytes: u64,
    /// Live bytes as of the last mark; `null` before the first mark.
    live_bytes: Option<u64>,
    reclaimable_bytes: Option<u64>,
    as_of_ms: Option<u64>,
    /// The largest disks, if they were requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    disks: Option<Vec<DiskView>>,
}

impl From<&StatsView> for Space {
    fn from(s: &StatsView) -> Space {
        Space {
            room: s.room,
            store_total_bytes: s.store_total_bytes,
            store_free_bytes: s.store_free_bytes,
            store_reserve_bytes: s.store_reserve_bytes,
            store_in_use: s.store_in_use,
            stored_bytes: s.stored_bytes,
            live_bytes: s.space.map(|space| space.live_bytes),
            reclaimable_bytes: s.space.map(|space| space.reclaimable_bytes),
            as_of_ms: s.space.map(|space| space.as_of_ms),
            disks: None,
        }
    }
}

pub(super) async fn run(client: &Client, args: &SpaceArgs, json: bool) -> Result<(), CliError> {
    let stats: StatsView = client.get(&["stats"]).await?;
    let mut space = Space::from(&stats);
    if let Some(most) = args.top {
        let mut disks: Vec<DiskView> = client.get(&["volumes"]).await?;
        disks.extend(client.get::<Vec<DiskView>>(&["images"]).await?);
        space.disks = Some(largest(disks, most));
    }
    output::print_result(&space, json, |space| {
        let now = unix_ms();
        let disks = space.disks.as_ref().map(|disks| format!("\n\n{}", disk_table(disks, now)));
        table(space, now) + &disks.unwrap_or_default()
    })
}

/// The disks that use most, at most `most` of them. Those that were not measured yet are last.
fn largest(mut disks: Vec<DiskView>, most: usize) -> Vec<DiskView> {
    disks.sort_by_cached_key(|d| (Reverse(d.used_bytes), Reverse(d.exclusive_bytes), d.name.clone()));
    disks.truncate(most);
    disks
}

fn disk_table(disks: &[DiskView], now_ms: u64) -> String {
    let mut t = output::table(&["NAME", "KIND", "USED", "FREED BY DELETING", "SNAPSHOTS"], &[2, 3, 4]);
    for d in disks {
        let kind = if d.kind == Kind::Image { "image" } else { "volume" };
        let (used, freed) = (output::used(d), output::freed_by_deleting(d, now_ms));
        t.add_row([d.name.clone(), kind.to_owned(), used, freed, d.snapshots.to_string()]);
    }
    output::render(t)
}

/// What writers can still use of the free room.
pub(super) fn free_for_writes(free: u64, reserve: Option<u64>) -> u64 {
    free.saturating_sub(reserve.unwrap_or(0))
}

fn table(s: &Space, now_ms: u64) -> String {
    let mut t = output::table(&[], &[1]);
    let mut row = |name: &str, bytes: Option<u64>, note: &str| {
        let bytes = bytes.map_or_else(|| "-".to_owned(), |bytes| Size(bytes).to_string());
        t.add_row([name, &bytes, note]);
    };
    let state = match s.room {
        RoomView::Ok => "",
        RoomView::Low => "LOW: remove unneeded disks, or add space",
        RoomView::Full => "FULL: writes fail; remove unneeded disks, or add space",
    };
    let marked = s.as_of_ms.map(|then| format!("as of {} ago", output::age(now_ms, then)));
    let unknown = || "not measured yet: run 'forebay gc'".to_owned();
    let reclaimable = match (&marked, s.reclaimable_bytes) {
        (Some(marked), Some(1..)) => format!("{marked}; 'forebay gc' frees it now"),
        (marked, _) => marked.clone().unwrap_or_else(unknown),
    };
    row("capacity", Some(s.store_total_bytes), "");
    let in_use =
        s.store_in_use.map_or_else(String::new, |share| format!("{} in use", output::percent(Some(share))));
    let note = [state, &in_use].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ");
    row("free for writes", Some(free_for_writes(s.store_free_bytes, s.store_reserve_bytes)), &note);
    row("reserve", s.store_reserve_bytes, "also free, but kept for deletions, checkpoints and reclaims");
    row("stored", Some(s.stored_bytes), "live data and garbage");
    row("live", s.live_bytes, &marked.unwrap_or_else(unknown));
    row("reclaimable", s.reclaimable_bytes, &reclaimable);
    output::render(t)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_room_is_shown_before_and_after_the_first_mark() {
        let mut s = Space::from(&StatsView { store_total_bytes: 10 << 30, ..StatsView::default() });
        let text = table(&s, 0);
        assert!(text.contains("10 GiB") && text.contains("not measured yet: run 'forebay gc'"), "{text}");
        (s.room, s.reclaimable_bytes, s.as_of_ms) = (RoomView::Full, Some(2 << 20), Some(0));
        let text = table(&s, 180_000);
        assert!(text.contains("FULL: ") && text.contains("2 MiB"), "{text}");
        assert!(text.contains("as of 3 min ago"), "{text}");
    }

    /// 10 GiB are free, and none of them for writers.
    #[test]
    fn the_reserve_is_not_free_for_writes() {
        let s = Space {
            store_free_bytes: 10 << 30,
            store_reserve_bytes: Some(10 << 30),
            store_in_use: Some(1.0),
            ..Space::from(&StatsView::default())
        };
        let text = table(&s, 0);
        let line = text.lines().find(|l| l.starts_with("free for writes")).unwrap();
        assert!(line.contains(" 0 B ") && line.contains("100.0 % in use"), "{text}");
    }

    #[test]
    fn the_largest_disks_come_first_and_those_that_were_not_measured_last() {
        let json = r#"{"name": "a", "kind": "image", "size_bytes": 4096, "sync": "flush", "created_ms": 0, "origin": null,
            "snapshots": 0, "clones": 0, "clients": 0, "uuid": "", "dedup_domain": 0, "map_damaged": false,
            "memory_lost": false, "write_cache_bytes": null, "reset": null}"#;
        let disk: DiskView = serde_json::from_str(json).unwrap();
        let of = |name: &str, used_bytes| DiskView { name: name.into(), used_bytes, ..disk.clone() };
        let disks =
            vec![of("a", None), of("b", Some(1)), of("c", Some(0)), of("d", Some(2)), of("e", Some(1))];
        let names = |most| largest(disks.clone(), most).into_iter().map(|d| d.name).collect::<String>();
        assert_eq!((names(3), names(9)), ("dbe".to_owned(), "dbeca".to_owned()));
        assert!(disk_table(&disks, 0).contains("not measured yet"));
    }

    #[test]
    fn what_a_server_does_not_report_is_not_shown_as_zero() {
        let mut of_older_server = serde_json::to_value(StatsView::default()).unwrap();
        of_older_server.as_object_mut().unwrap().remove("store_reserve_bytes");
        let stats: StatsView = serde_json::from_value(of_older_server).unwrap();
        let space = Space::from(&stats);
        let row = |s: &Space| table(s, 0).lines().find(|l| l.starts_with("reserve")).unwrap().to_owned();
        assert!(row(&space).split_whitespace().nth(1) == Some("-"), "{}", row(&space));
        assert_eq!(serde_json::to_value(&space).unwrap()["store_reserve_bytes"], serde_json::Value::Null);
        let stats = StatsView { store_reserve_bytes: Some(2 << 20), ..stats };
        assert!(row(&Space::from(&stats)).contains("2 MiB"));
    }
}
