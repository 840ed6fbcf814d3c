//! Tests the policy by tables: the state of a store, and the resulting decision.

use super::*;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A store of 3.2 GiB with a reserve of 200 MiB: short below 300 MiB, tight below 600 MiB.
fn free(mib: u64) -> Situation {
    Situation {
        free: mib * MIB,
        total: 3200 * MIB,
        reserve: 200 * MIB,
        full: mib < 200,
        segment: 16 * MIB,
        stored: 2 * GIB,
        appended: 0,
        written: 0,
        discarded: 0,
        due: false,
        cleaning: false,
        last: Outcome { gained: 0, exhausted: true },
        patience: PATIENCE,
    }
}

#[test]
fn levels_follow_the_room_above_the_reserve() {
    for (mib, level) in [
        (1000, Level::Plenty),
        (600, Level::Plenty),
        (599, Level::Tight),
        (300, Level::Tight),
        (299, Level::Short),
        (200, Level::Short),
        (199, Level::Full),
    ] {
        assert_eq!(free(mib).level(), level, "{mib} MiB free");
    }
    assert_eq!(Situation { full: true, ..free(1000) }.level(), Level::Full, "the store refused data");
}

#[test]
fn writers_of_a_full_store_wait_unless_nothing_is_left_to_clean() {
    let full = free(100);
    let sufficient = Outcome { gained: 4 * MIB, exhausted: true };
    let cut_short = Outcome { gained: 0, exhausted: false };
    let table = [
        ("nothing to clean, nothing changed since the mark", full, false),
        ("a reclaim is under way", Situation { cleaning: true, ..full }, true),
        ("guests overwrote since the mark", Situation { written: 4 * MIB, ..full }, true),
        ("guests overwrote less than the minimum", Situation { written: 4 * MIB - 1, ..full }, false),
        ("guests discarded since the mark", Situation { discarded: 4 * MIB, ..full }, true),
        ("a disk was deleted since the mark", Situation { due: true, ..full }, true),
        ("the last reclaim gained", Situation { last: sufficient, ..full }, true),
        ("the last reclaim left work to do", Situation { last: cut_short, ..full }, true),
        (
            "none of several reclaims gained enough, and one is under way",
            Situation { cleaning: true, patience: 0, ..full },
            false,
        ),
        (
            "none of several reclaims gained enough, and there is garbage",
            Situation { written: GIB, patience: 0, ..full },
            false,
        ),
        (
            "none of several reclaims gained enough, then a deletion",
            Situation { due: true, patience: 1, ..full },
            true,
        ),
    ];
    for (case, situation, waits) in table {
        assert_eq!(situation.reclaim_may_help(), waits, "{case}");
        if waits {
            // A writer never waits for a reclaim that no condition triggers.
            assert!(situation.cleaning || situation.wants_reclaim(), "{case}");
            assert_eq!(
                situation.pause(Duration::from_secs(10), Duration::from_secs(3)),
                Duration::ZERO,
                "{case}"
            );
        }
    }
}

#[test]
fn a_reclaim_begins_sooner_the_less_room_there_is() {
    let written = |mib, by| Situation { written: by * MIB, appended: by * MIB, ..free(mib) };
    for (mib, enough) in [(1000, 256), (500, 100), (250, 64), (100, 4)] {
        assert!(!written(mib, enough - 1).wants_reclaim(), "{mib} MiB free, {} MiB written", enough - 1);
        assert!(written(mib, enough).wants_reclaim(), "{mib} MiB free, {enough} MiB written");
    }
    assert!(Situation { due: true, ..free(1000) }.wants_reclaim(), "after a deletion");
    assert!(!free(250).wants_reclaim(), "nothing has changed: an idle pool does not reclaim");
}

#[test]
fn pauses_shorten_as_the_room_shrinks() {
    let (configured, took) = (Duration::from_secs(10), Duration::from_secs(4));
    let pause = |mib| free(mib).pause(configured, took).as_millis();
    assert_eq!([1000, 500, 275, 225].map(pause), [16_000, 8_000, 3_000, 1_000]);
}

#[test]
fn the_write_rate_decreases_gradually_to_the_rate_of_freeing() {
    let rate = |mib, freed| free(mib).write_rate(freed * MIB).map(|r| r / MIB);
    assert_eq!(rate(300, 50), None);
    let rates: Vec<u64> = [290, 266, 250, 233, 210, 201].map(|mib| rate(mib, 50).unwrap()).into();
    assert_eq!(rates, [900, 194, 100, 49, 11, 4], "with 50 MiB/s freed");
    assert!(rate(290, 0).unwrap() > 200, "while the rate of freeing is unknown");
}

#[test]
fn the_cleaner_runs_all_the_time_when_half_of_the_margin_is_used() {
    assert_eq!(
        [400, 300, 275, 250, 210, 100].map(|mib| free(mib).clean_duty(25)),
        [25, 25, 62, 100, 100, 100]
    );
}

#[test]
fn the_buffer_budget_is_limited_by_the_free_room() {
    assert_eq!([1000, 230, 203, 100].map(|mib| free(mib).buffer_budget(64 * MIB) / MIB), [64, 30, 4, 4]);
}
