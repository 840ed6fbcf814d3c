//! `forebay space`: the room of the store in one table. The figures are from `GET /stats`.

use forebay_api::client::Client;
use forebay_api::{RoomView, StatsView};
use forebay_host::clock::unix_ms;
use forebay_text::Size;
use serde::Serialize;

use super::{CliError, output};

/// The figures, named as in `GET /stats`.
#[derive(Debug, Serialize)]
struct Space {
    room: RoomView,
    store_total_bytes: u64,
    store_free_bytes: u64,
    /// Bytes of the reserve; `null` if the server does not report them.
    store_reserve_bytes: Option<u64>,
    stored_bytes: u64,
    /// Live bytes as of the last mark; `null` before the first mark.
    live_bytes: Option<u64>,
    reclaimable_bytes: Option<u64>,
    as_of_ms: Option<u64>,
}

impl From<&StatsView> for Space {
    fn from(s: &StatsView) -> Space {
        Space {
            room: s.room,
            store_total_bytes: s.store_total_bytes,
            store_free_bytes: s.store_free_bytes,
            store_reserve_bytes: s.store_reserve_bytes,
            stored_bytes: s.stored_bytes,
            live_bytes: s.space.map(|space| space.live_bytes),
            reclaimable_bytes: s.space.map(|space| space.reclaimable_bytes),
            as_of_ms: s.space.map(|space| space.as_of_ms),
        }
    }
}

pub(super) async fn run(client: &Client, json: bool) -> Result<(), CliError> {
    let stats: StatsView = client.get(&["stats"]).await?;
    output::print_result(&Space::from(&stats), json, |space| table(space, unix_ms()))
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
    let marked = match s.as_of_ms {
        None => "not yet known: run 'forebay gc'".to_owned(),
        Some(then) => format!("as of {} ago; 'forebay gc' frees it now", output::age(now_ms, then)),
    };
    row("capacity", Some(s.store_total_bytes), "");
    row("free", Some(s.store_free_bytes), state);
    row("reserve", s.store_reserve_bytes, "part of the free space: for deletions, checkpoints and reclaims");
    row("stored", Some(s.stored_bytes), "live data and garbage");
    row("live", s.live_bytes, "");
    row("reclaimable", s.reclaimable_bytes, &marked);
    output::render(t)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_room_is_shown_before_and_after_the_first_mark() {
        let mut s = Space::from(&StatsView { store_total_bytes: 10 << 30, ..StatsView::default() });
        let text = table(&s, 0);
        assert!(text.contains("10 GiB") && text.contains("not yet known: run 'forebay gc'"), "{text}");
        (s.room, s.reclaimable_bytes, s.as_of_ms) = (RoomView::Full, Some(2 << 20), Some(0));
        let text = table(&s, 180_000);
        assert!(text.contains("FULL: ") && text.contains("2 MiB"), "{text}");
        assert!(text.contains("as of 3 min ago"), "{text}");
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
