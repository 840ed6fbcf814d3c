//! `forebay pool`: the pools in a Ceph cluster, and which servers hold them, for which no server has to run;
//! and the handover of a pool by its server.

use forebay_api::client::Client;
use forebay_api::{Handover, NewOwner, StandbyView};
use forebay_store::rados::{Ownership, RadosAddress, list_pools, ownership};
use serde::Serialize;

use super::args::CephArgs;
use super::offline::{OfflineError, cannot_open};
use super::{CliError, output};
use crate::config::rados_options;

/// A pool in a list.
#[derive(Debug, Serialize)]
struct PoolName {
    name: String,
    /// The address that `--pool` expects.
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
    /// Whether the server that holds the pool serves clients.
    serving: bool,
    /// The standby to which the pool without an owner is being handed over.
    reserved_for: Option<String>,
    /// Number of objects that the next owner has to fence.
    open_segments: usize,
    /// Servers that wait for the pool.
    standbys: Vec<StandbyView>,
}

pub(super) fn list(pool: String, ceph: CephArgs, json: bool) -> Result<(), CliError> {
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

pub(super) fn show(address: RadosAddress, ceph: CephArgs, json: bool) -> Result<(), CliError> {
    let options = rados_options(ceph.ceph_conf, ceph.ceph_user)?;
    let found = ownership(&address, &options).map_err(|source| cannot_open(&address, source))?;
    let Ownership { owner, reserved_for, term, alive, is_serving, open_segments, standbys } = found;
    let standbys =
        standbys.into_iter().map(|it| StandbyView { server: it.server, alive: it.alive }).collect();
    let address = address.to_string();
    let view =
        PoolView { address, owner, reserved_for, term, alive, serving: is_serving, open_segments, standbys };
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
    let free = match &pool.reserved_for {
        Some(heir) => format!("none: the pool is being handed over to {heir}"),
        None => "none: the pool is free".to_owned(),
    };
    t.add_row(["owner", pool.owner.as_deref().unwrap_or(&free)]);
    t.add_row(["alive", alive]);
    t.add_row(["serves clients", if pool.serving { "yes" } else { "no" }]);
    t.add_row(["term", &pool.term.to_string()]);
    t.add_row(["objects to fence", &pool.open_segments.to_string()]);
    for StandbyView { server, alive } in &pool.standbys {
        let state = if *alive { "" } else { " (dead)" };
        t.add_row(["standby", &format!("{server}{state}")]);
    }
    if pool.standbys.is_empty() {
        t.add_row(["standby", "none"]);
    }
    output::render(t)
}

/// Requests the server to hand its pool over.
pub(super) async fn hand_over(client: &Client, request: Handover, json: bool) -> Result<(), CliError> {
    let done: NewOwner = client.post(&["pool", "handover"], &request).await?;
    output::print_result(&done, json, new_owner_text)
}

fn new_owner_text(done: &NewOwner) -> String {
    let NewOwner { owner, term, serving, pause_ms, closed } = done;
    let text = format!("handed over: {owner} has the pool, in term {term}");
    match serving {
        true => format!("{text}, and serves clients; pause {pause_ms} ms, {closed} connections were closed"),
        false => format!("{text}, and does not serve clients yet; {closed} connections were closed"),
    }
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
            reserved_for: None,
            term: 17,
            alive,
            serving: alive == Some(true),
            open_segments: 3,
            standbys: Vec::new(),
        };
        let standby = |server: &str, alive| StandbyView { server: server.into(), alive };
        let mut owned = pool(Some("a (process 4711)"), Some(true));
        owned.standbys = vec![standby("b", true), standby("c", false)];
        assert_eq!(
            show_text(&owned),
            "pool              rados:vms/desktops\nowner             a (process 4711)\nalive             yes\n\
             serves clients    yes\nterm              17\nobjects to fence  3\nstandby           b\n\
             standby           c (dead)"
        );
        let dead = show_text(&pool(Some("a"), Some(false)));
        assert!(dead.contains("no: the next server that opens the pool takes it over"), "{dead}");
        assert!(show_text(&pool(Some("a"), None)).contains("unknown"));
        let mut free = pool(None, None);
        assert!(show_text(&free).contains("none: the pool is free"));
        free.reserved_for = Some("b".into());
        assert!(show_text(&free).contains("none: the pool is being handed over to b"));
        let json = serde_json::to_value(pool(None, None)).unwrap();
        assert_eq!((&json["owner"], &json["term"]), (&serde_json::Value::Null, &17.into()));
    }
}
