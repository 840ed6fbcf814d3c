//! The health of the server: one state for the command line, the dashboard and scripts.

use std::collections::BTreeMap;

use forebay_api::{ConditionView, HealthState, HealthView};
use forebay_engine::{Affected, PoolHealth, Room};
use forebay_host::clock::unix_ms;
use forebay_text::counted;
use parking_lot::Mutex;

use super::Control;

/// The remedy for too little room.
const MAKE_ROOM: &str = "remove disks that are not needed and run 'forebay gc', or add space";

/// When each present condition was noticed, by code, in Unix milliseconds.
#[derive(Debug, Default)]
pub(super) struct Noticed(Mutex<BTreeMap<String, u64>>);

impl Control {
    /// The health of the server.
    pub async fn health(&self) -> HealthView {
        self.notice(&self.pool().health().await)
    }

    /// The health of the server with a pool in this state. The server calls this every few seconds, so that
    /// the time since when a condition exists is known.
    pub fn notice(&self, pool: &PoolHealth) -> HealthView {
        let mut conditions = conditions(pool);
        let mut noticed = self.inner.noticed.0.lock();
        noticed.retain(|code, _| conditions.iter().any(|condition| condition.code == *code));
        for condition in &mut conditions {
            condition.since_ms = *noticed.entry(condition.code.clone()).or_insert_with(unix_ms);
        }
        HealthView { state: conditions.first().map_or(HealthState::Ok, |first| first.state), conditions }
    }
}

/// The conditions of a pool, the most urgent first.
fn conditions(pool: &PoolHealth) -> Vec<ConditionView> {
    use HealthState::{Problem, Warning};
    let mut found = Vec::new();
    let mut add = |code: &str, state, message: String, remedy: &str, disks: &[String]| {
        found.push(ConditionView {
            code: code.to_owned(),
            state,
            message,
            remedy: remedy.to_owned(),
            since_ms: 0,
            disks: disks.to_vec(),
        });
    };
    if let Some(why) = &pool.failure {
        let message = format!("the pool accepts no changes, because the store has failed: {why}");
        let remedy = "repair the store, then restart the server: acknowledged writes are kept in memory";
        add("failed", Problem, message, remedy, &[]);
    }
    match pool.room {
        Room::Ok => {}
        Room::Low => add("low", Warning, "the free space of the store is low".into(), MAKE_ROOM, &[]),
        Room::Full => {
            add(
                "full",
                Problem,
                "the store has no room for data: writes wait or fail".into(),
                MAKE_ROOM,
                &[],
            );
        }
    }
    if pool.lost.count > 0 {
        let message = format!(
            "{} lost acknowledged writes with the memory of the server; their clients are refused",
            disks(&pool.lost)
        );
        let remedy = "stop the clients, then run 'forebay volume resume NAME', or reset the desktop";
        add("memory_lost", Problem, message, remedy, &pool.lost.names);
    }
    if pool.damaged.count > 0 {
        let message = format!("the block map of {} is damaged: some reads fail", disks(&pool.damaged));
        let remedy = "stop the server and run 'forebay check', then restore these disks from a copy";
        add("damaged_map", Problem, message, remedy, &pool.damaged.names);
    }
    if pool.damaged_places > 0 {
        let message = format!(
            "places of the store that were found damaged since the server was started: {}",
            pool.damaged_places
        );
        let remedy = "check the devices of the store; 'forebay check' lists the damage";
        add("damaged_blocks", Problem, message, remedy, &[]);
    }
    found.sort_by_key(|condition| std::cmp::Reverse(condition.state));
    found
}

/// A number of disks in words.
fn disks(affected: &Affected) -> String {
    counted(affected.count, "disk")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_urgent_condition_is_first() {
        assert!(conditions(&PoolHealth::default()).is_empty());
        let lost = Affected { count: 30, names: vec!["pc-00".into(), "pc-01".into()] };
        let pool = PoolHealth { room: Room::Low, lost, ..PoolHealth::default() };
        let found = conditions(&pool);
        let codes: Vec<_> = found.iter().map(|c| (c.code.as_str(), c.state)).collect();
        assert_eq!(codes, [("memory_lost", HealthState::Problem), ("low", HealthState::Warning)]);
        assert!(found[0].message.starts_with("30 disks lost"), "{}", found[0].message);
        assert_eq!(found[0].disks, ["pc-00", "pc-01"]);
    }

    #[test]
    fn a_pool_that_has_failed_names_the_reason() {
        let failure = Some("write of segment 7 failed: Input/output error".to_owned());
        let found = conditions(&PoolHealth { failure, room: Room::Full, ..PoolHealth::default() });
        assert_eq!(found.iter().map(|c| c.code.as_str()).collect::<Vec<_>>(), ["failed", "full"]);
        assert!(found[0].message.ends_with("Input/output error"), "{}", found[0].message);
    }
}
