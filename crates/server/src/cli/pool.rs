//! `forebay pool`: the pools in a Ceph cluster, and which servers hold them. No server has to run.

use forebay_store::rados::{Ownership, RadosAddress, list_pools, ownership};
use serde::Serialize;

use super::args::{CephArgs, PoolCommand};
use super::offline::{OfflineError, cannot_open};
use super::{CliError, output};
use crate::config::rados_options;

/// A pool in a list.
#[derive(Debug, Serialize)]
struct PoolName {
    name: String,
    /// What `--pool` expects.
    address: String,
}

/// A pool and its owner.
#[derive(Debug, Serialize)]
struct PoolView {
    address: String,
    /// The server that holds the pool.
    owner: Option<String>,
    /// Number of the claim: each server that takes the pool increases it.
    term: u64,
    /// Whether the owner is alive; `None` if this is unknown.
    alive: Option<bool>,
    /// Objects that the next owner has to fence.
    open_segments: usize,
}

pub(super) fn run(command: PoolCommand, json: bool) -> Result<(), CliError> {
    match command {
        PoolCommand::List { ceph_pool, ceph } => list(ceph_pool, ceph, json),
        PoolCommand::Show { pool, ceph } => show(pool, ceph, json),
    }
}

fn list(pool: String, ceph: CephArgs, json: bool) -> Result<(), CliError> {
    let options = rados_options(ceph.ceph_conf, ceph.ceph_user)?;
    let names = match list_pools(&pool, &options) {
        Ok(names) => names,
        Err(source) => return Err(OfflineError::List { pool, source }.into()),
    };
    let pools = names.into_iter().map(|name| {
        let address = RadosAddress { pool: pool.clone(), name: name.clone() }.to_string();
        PoolName { name, address }
    });
    output::print_result(&pools.collect::<Vec<_>>(), json, |pools| list_text(pools))
}

fn show(address: RadosAddress, ceph: CephArgs, json: bool) -> Result<(), CliError> {
    let options = rados_options(ceph.ceph_conf, ceph.ceph_user)?;
    let found = ownership(&address, &options).map_err(|source| cannot_open(&address, source))?;
    let Ownership { owner, term, alive, open_segments } = found;
    let view = PoolView { address: address.to_string(), owner, term, alive, open_segments };
    output::print_result(&view, json, show_text)
}

fn list_text(pools: &[PoolName]) -> String {
    let mut t = output::table(&["NAME", "ADDRESS"], &[]);
    for pool in pools {
        t.add_row([&pool.name, &pool.address]);
    }
    output::render(t)
}

fn show_text(pool: &PoolView) -> String {
    let mut t = output::table(&[], &[]);
    let alive = match (&pool.owner, pool.alive) {
        (None, _) => "-",
        (Some(_), Some(true)) => "yes",
        (Some(_), Some(false)) => "no: the next server that opens the pool takes it over",
        (Some(_), None) => "unknown",
    };
    t.add_row(["pool", &pool.address]);
    t.add_row(["owner", pool.owner.as_deref().unwrap_or("none: the pool is free")]);
    t.add_row(["alive", alive]);
    t.add_row(["term", &pool.term.to_string()]);
    t.add_row(["objects to fence", &pool.open_segments.to_string()]);
    output::render(t)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_are_listed_with_their_addresses() {
        let pools = [PoolName { name: "desktops".into(), address: "rados:vms/desktops".into() }];
        assert_eq!(list_text(&pools), "NAME      ADDRESS\ndesktops  rados:vms/desktops");
        let json = serde_json::to_value(pools).unwrap();
        assert_eq!(json, serde_json::json!([{"name": "desktops", "address": "rados:vms/desktops"}]));
    }

    #[test]
    fn an_owner_is_shown() {
        let pool = |owner: Option<&str>, alive| PoolView {
            address: "rados:vms/desktops".into(),
            owner: owner.map(Into::into),
            term: 17,
            alive,
            open_segments: 3,
        };
        let alive = show_text(&pool(Some("a (process 4711)"), Some(true)));
        assert_eq!(
            alive,
            "pool              rados:vms/desktops\nowner             a (process 4711)\nalive             yes\n\
             term              17\nobjects to fence  3"
        );
        let dead = show_text(&pool(Some("a"), Some(false)));
        assert!(dead.contains("no: the next server that opens the pool takes it over"), "{dead}");
        assert!(show_text(&pool(Some("a"), None)).contains("unknown"));
        assert!(show_text(&pool(None, None)).contains("none: the pool is free"));
        let json = serde_json::to_value(pool(None, None)).unwrap();
        assert_eq!((&json["owner"], &json["term"]), (&serde_json::Value::Null, &17.into()));
    }
}
