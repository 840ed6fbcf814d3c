//! Pools that belong to a cluster, and servers that do not.

use std::sync::Arc;
use std::time::Duration;

use crate::rados::{Site, append, on_a_cluster};
use forebay_store::StoreError;
use forebay_store::rados::{Claim, Membership, PoolConnection, RadosStore, Waiting};
use tokio::time::sleep;

const S: Duration = Duration::from_secs(1);

fn node_of(cluster: &str) -> Membership {
    Membership::ShardOf(cluster.to_owned())
}

/// A server's attempt to take the pool, which does not wait for another server.
async fn open(site: &Site, name: &str, membership: Membership) -> Result<Arc<RadosStore>, StoreError> {
    let connection = PoolConnection::simulated_as(site.rados.client(), name, membership);
    connection.claimed(Claim::IfFree, &Waiting::NONE).await
}

/// A pool with data that its server has released.
async fn released(site: &Site, membership: Membership) {
    let client = site.rados.client();
    let connection = PoolConnection::simulated_as(client.clone(), "first", membership);
    let store = connection.claimed(Claim::IfFree, &Waiting::NONE).await.unwrap();
    append(&store, store.term() as u32, 0, 1).await.unwrap();
    client.end_in_order();
    drop(store);
    sleep(S).await;
}

#[track_caller]
fn assert_refused(outcome: Result<Arc<RadosStore>, StoreError>, why: &str) {
    match outcome {
        Err(StoreError::Io { reason, errno: libc::EPERM, .. }) => {
            assert!(reason.contains(why), "{reason}");
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the pool was opened"),
    }
}

#[test]
fn a_shard_is_opened_by_nodes_of_its_cluster_only() {
    on_a_cluster(async |site| {
        released(&site, node_of("desktops")).await;
        assert_refused(open(&site, "single", Membership::Single).await, "serve --cluster");
        assert_refused(open(&site, "stranger", node_of("others")).await, "another cluster, 'desktops'");
        released(&site, Membership::Maintenance).await;
        assert_refused(open(&site, "single", Membership::Single).await, "desktops");
        open(&site, "node", node_of("desktops")).await.unwrap();
    });
}

#[test]
fn a_pool_of_a_single_server_becomes_a_shard_and_stays_one() {
    on_a_cluster(async |site| {
        released(&site, Membership::Single).await;
        let connection = PoolConnection::simulated(site.rados.client(), "admin");
        connection.entered("desktops").await.unwrap();
        connection.entered("desktops").await.unwrap();
        let other = connection.entered("others").await;
        assert!(matches!(other, Err(StoreError::Io { errno: libc::EPERM, .. })), "{other:?}");
        assert_refused(open(&site, "single", Membership::Single).await, "desktops");
        open(&site, "node", node_of("desktops")).await.unwrap();
    });
}

#[test]
fn a_pool_in_use_does_not_become_a_shard() {
    on_a_cluster(async |site| {
        let owner = open(&site, "single", Membership::Single).await.unwrap();
        let connection = PoolConnection::simulated(site.rados.client(), "admin");
        let entered = connection.entered("desktops").await;
        assert!(matches!(entered, Err(StoreError::Busy(_))), "{entered:?}");
        append(&owner, 1, 0, 1).await.unwrap();
    });
}

/// The standby was there before the pool became a shard: it would otherwise take the pool when a node
/// releases it, or dies.
#[test]
fn a_standby_of_a_former_single_server_gives_up() {
    on_a_cluster(async |site| {
        released(&site, Membership::Single).await;
        let node = open(&site, "node", node_of("desktops")).await.unwrap();
        let connection = PoolConnection::simulated(site.rados.client(), "standby");
        let waited = connection.claimed(Claim::Wait, &Waiting::NONE).await;
        assert_refused(waited, "desktops");
        append(&node, 2, 0, 1).await.unwrap();
    });
}
