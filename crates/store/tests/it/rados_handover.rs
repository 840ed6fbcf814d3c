//! Handing a pool over in a simulated RADOS cluster, and what standbys do with their announcements.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{id, pattern};
use crate::rados::{LATE, Site, append, on_a_cluster};
use forebay_store::rados::{Claim, HandedOver, Heir, PoolConnection, RadosStore, SimulatedClient, Waiting};
use forebay_store::{Store, StoreError};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

type Opening = JoinHandle<Result<Arc<RadosStore>, StoreError>>;

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);

/// A server that waits for the pool.
fn stand_by(site: &Site, name: &'static str) -> (Arc<SimulatedClient>, Opening) {
    let client = site.rados.client();
    let opening = RadosStore::open_simulated(client.clone(), name, Claim::Wait);
    (client, tokio::spawn(opening))
}

/// An owner with data, and its second connection.
async fn owner(site: &Site) -> (Arc<SimulatedClient>, Arc<RadosStore>, PoolConnection) {
    let client = site.rados.client();
    let store = RadosStore::open_simulated(client.clone(), "first", Claim::IfFree).await.unwrap();
    append(&store, 1, 0, 1).await.unwrap();
    store.announce_serving();
    (client, store, PoolConnection::simulated(site.rados.client(), "first"))
}

async fn find(connection: &PoolConnection, to: &str) -> Heir {
    connection.find(Some(to)).await.unwrap().expect("it waits")
}

/// Releases the pool to an heir. Returns its term.
async fn release(client: &SimulatedClient, store: Arc<RadosStore>, heir: Heir) -> u64 {
    let term = store.term();
    store.invite(Some(&heir)).await.unwrap();
    sleep(300 * MS).await;
    store.release_to(heir);
    client.end_in_order();
    term
}

/// An heir that waits no more, and another standby.
async fn dead_heir(site: &Site, connection: &PoolConnection) -> (Heir, Arc<SimulatedClient>, Opening) {
    let (c, heir) = stand_by(site, "c");
    let (b, other) = stand_by(site, "b");
    sleep(3 * S).await;
    let chosen = find(connection, "c").await;
    site.rados.pause(c.number());
    heir.abort();
    (chosen, b, other)
}

async fn holds(store: &RadosStore) {
    assert_eq!(store.read(id(1), 0, 4096).await.unwrap()[..], pattern(1, 4096)[..]);
}

#[test]
fn an_heir_takes_the_pool_at_once_and_no_other_one_does() {
    on_a_cluster(async |site| {
        let (client, store, connection) = owner(&site).await;
        let (_b, other) = stand_by(&site, "b");
        let (_c, heir) = stand_by(&site, "c");
        sleep(3 * S).await;
        let term = release(&client, store, find(&connection, "c").await).await;
        let begun = Instant::now();
        let heir = heir.await.unwrap().unwrap();
        assert!(begun.elapsed() < 60 * MS, "{:?}", begun.elapsed());
        holds(&heir).await;
        heir.announce_serving();
        let outcome = connection.settled(term, &Waiting::NONE).await.unwrap();
        let HandedOver::To { owner, term: new, is_serving } = outcome else { panic!("taken back") };
        assert_eq!((owner.as_str(), new, is_serving), ("host c, process 1", term + 1, true));
        sleep(10 * S).await;
        assert!(!other.is_finished() && heir.ownership()(), "the heir keeps it");
    });
}

#[test]
fn an_heir_that_does_not_take_the_pool_loses_it_to_the_former_owner() {
    on_a_cluster(async |site| {
        let (client, store, connection) = owner(&site).await;
        let (chosen, _, other) = dead_heir(&site, &connection).await;
        let term = release(&client, store, chosen).await;
        let begun = Instant::now();
        let HandedOver::Back(back) = connection.settled(term, &Waiting::NONE).await.unwrap() else {
            panic!("it was taken by another server");
        };
        assert!(begun.elapsed() >= 2 * S && begun.elapsed() < 3 * S, "{:?}", begun.elapsed());
        assert_eq!(back.term(), term + 1);
        holds(&back).await;
        sleep(10 * S).await;
        assert!(!other.is_finished() && back.ownership()());
    });
}

#[test]
fn an_heir_that_dies_before_it_serves_loses_the_pool_to_the_former_owner() {
    on_a_cluster(async |site| {
        let (client, store, connection) = owner(&site).await;
        let (c, heir) = stand_by(&site, "c");
        sleep(3 * S).await;
        let term = release(&client, store, find(&connection, "c").await).await;
        let died = async {
            let taken = heir.await.unwrap().unwrap();
            site.rados.pause(c.number());
            drop(taken);
        };
        let (outcome, ()) = tokio::join!(connection.settled(term, &Waiting::NONE), died);
        let HandedOver::Back(back) = outcome.unwrap() else { panic!("it is dead") };
        assert_eq!(back.term(), term + 2);
        holds(&back).await;
    });
}

#[test]
fn a_server_that_reserves_the_pool_for_itself_keeps_it_from_others() {
    on_a_cluster(async |site| {
        let (client, store, connection) = owner(&site).await;
        let (_b, other) = stand_by(&site, "b");
        sleep(3 * S).await;
        let term = store.term();
        store.release_to(connection.as_heir());
        client.end_in_order();
        drop(store);
        sleep(3 * S).await;
        assert!(!other.is_finished(), "the pool is reserved");
        let back = site.open("first", Claim::Back { term }).await.unwrap();
        assert!(back.continues(term, None));
        holds(&back).await;
        assert_eq!(site.rados.taken_early(), 0);
    });
}

#[test]
fn a_former_owner_recognises_that_another_server_had_the_pool() {
    // The heir dies with the pool, or gives up and reserves it for itself.
    for gives_up in [false, true] {
        on_a_cluster(async |site| {
            let (client, store, connection) = owner(&site).await;
            let (c, heir) = stand_by(&site, "c");
            sleep(3 * S).await;
            let chosen = find(&connection, "c").await;
            let term = release(&client, store, chosen.clone()).await;
            let taken = heir.await.unwrap().unwrap();
            if gives_up {
                taken.release_to(chosen.clone());
                c.end_in_order();
            } else {
                site.rados.pause(c.number());
            }
            drop(taken);
            let back = site.open("first", Claim::Back { term }).await.unwrap();
            assert_eq!(back.term(), term + 2);
            assert!(back.continues(term, Some(&chosen)), "only the heir had it");
            assert!(!back.continues(term, None) && !back.continues(term, Some(&connection.as_heir())));
        });
    }
    // The heir takes nothing, and another standby has the pool for some time.
    on_a_cluster(async |site| {
        let (client, store, connection) = owner(&site).await;
        let (chosen, b, other) = dead_heir(&site, &connection).await;
        let term = release(&client, store, chosen.clone()).await;
        let served = other.await.unwrap().unwrap();
        b.end_in_order();
        drop(served);
        sleep(S).await;
        let back = site.open("first", Claim::Back { term }).await.unwrap();
        assert_eq!(back.term(), term + 2);
        assert!(!back.continues(term, Some(&chosen)), "another server had it");
    });
}

/// In an upgrade, this is another process of the same host.
#[test]
fn an_heir_that_hangs_is_noticed_before_another_server_takes_the_pool() {
    for takes in [false, true] {
        on_a_cluster(async |site| {
            let (client, store, connection) = owner(&site).await;
            let (c, heir) = stand_by(&site, "c");
            let (_b, other) = stand_by(&site, "b");
            sleep(3 * S).await;
            let chosen = find(&connection, "c").await;
            if !takes {
                site.rados.pause(c.number());
                heir.abort();
            }
            let term = release(&client, store, chosen.clone()).await;
            let mut taken = None;
            if takes {
                taken = Some(heir.await.unwrap().unwrap());
                let alive = tokio::time::timeout(10 * S, connection.abandoned(&Waiting::NONE)).await;
                assert!(alive.is_err(), "it sends heartbeats");
                site.rados.pause(c.number());
            }
            let begun = Instant::now();
            assert!(connection.abandoned(&Waiting::NONE).await);
            assert!(begun.elapsed() >= 2 * S && begun.elapsed() < 3 * S, "{:?}", begun.elapsed());
            assert!(!other.is_finished(), "another server has the pool");
            let cancelled = Waiting { is_cancelled: &|| true, ..Waiting::NONE };
            assert!(!connection.abandoned(&cancelled).await);
            if !takes {
                let back = site.open("first", Claim::Back { term }).await.unwrap();
                assert!(back.continues(term, Some(&chosen)));
            }
            drop(taken);
        });
    }
}

#[test]
fn a_reservation_ends_when_both_sides_have_died() {
    on_a_cluster(async |site| {
        let (client, store, connection) = owner(&site).await;
        let (chosen, _, other) = dead_heir(&site, &connection).await;
        release(&client, store, chosen).await;
        let begun = Instant::now();
        holds(&other.await.unwrap().unwrap()).await;
        assert!(begun.elapsed() >= 4 * S && begun.elapsed() < 6 * S, "{:?}", begun.elapsed());
    });
}

/// It has seen no heartbeat for almost long enough when the pool is reserved for another one.
#[test]
fn a_standby_that_waits_for_a_dead_owner_respects_a_reservation() {
    on_a_cluster(async |site| {
        let (client, store, connection) = owner(&site).await;
        let (c, heir) = stand_by(&site, "c");
        sleep(3 * S).await;
        let chosen = find(&connection, "c").await;
        site.rados.pause(c.number());
        let (_b, other) = stand_by(&site, "b");
        site.rados.pause(client.number());
        sleep(3_800 * MS).await;
        store.release_to(chosen);
        client.end_in_order();
        drop(store);
        site.rados.resume(client.number());
        sleep(3 * S).await;
        assert!(!other.is_finished(), "the pool is reserved");
        site.rados.resume(c.number());
        heir.await.unwrap().unwrap();
    });
}

#[test]
fn standbys_that_died_are_no_heirs_and_their_keys_are_removed() {
    on_a_cluster(async |site| {
        let (_client, store, connection) = owner(&site).await;
        let began = Instant::now();
        assert_eq!(connection.find(None).await.unwrap(), None);
        assert!(began.elapsed() < 2 * S);
        for name in ["x", "y", "z"] {
            let (client, opening) = stand_by(&site, name);
            sleep(2 * S).await;
            opening.abort();
            site.rados.pause(client.number());
        }
        assert_eq!(site.rados.standbys(), 3);
        let begun = Instant::now();
        assert_eq!(connection.find(None).await.unwrap(), None);
        assert!(begun.elapsed() >= 4 * S && begun.elapsed() < 5 * S);
        assert_eq!(site.rados.standbys(), 0);
        // A standby removes them as well.
        let (client, opening) = stand_by(&site, "x");
        sleep(2 * S).await;
        opening.abort();
        site.rados.pause(client.number());
        let (_b, _opening) = stand_by(&site, "b");
        sleep(10 * S).await;
        assert_eq!(site.rados.standbys(), 1);
        assert_eq!(connection.find(Some("x")).await.unwrap(), None);
        assert_eq!(find(&connection, "b").await.to_string(), "host b, process 1");
        drop(store);
    });
}

#[test]
fn the_number_of_announcements_is_bounded() {
    on_a_cluster(async |site| {
        let (_client, _store, _connection) = owner(&site).await;
        for n in 0..40 {
            stand_by(&site, Box::leak(format!("s{n}").into_boxed_str()));
            sleep(300 * MS).await;
        }
        sleep(3 * S).await;
        assert_eq!(site.rados.standbys(), 32);
    });
}

#[test]
fn a_long_fence_is_no_sign_of_death() {
    on_a_cluster(async |site| {
        let (client, store, _) = owner(&site).await;
        client.end_in_order();
        drop(store);
        sleep(S).await;
        // The read of the header, the swap, and the read by the fence; each with an answer; the heartbeat.
        let short = [MS; 7];
        site.delay_all(short.into_iter().chain([20 * S]));
        let begun = Instant::now();
        let second = site.open("second", Claim::Wait);
        let third = async {
            sleep(100 * MS).await;
            tokio::time::timeout(15 * S, site.open("third", Claim::Wait)).await.is_err()
        };
        let (second, waits) = tokio::join!(second, third);
        assert!(begun.elapsed() > 20 * S, "the fence took long: {:?}", begun.elapsed());
        assert!(waits, "the third one waits for the second one");
        assert!(second.unwrap().ownership()());
    });
}

#[test]
fn a_superseded_owner_that_meets_a_removed_segment_has_lost_the_pool() {
    on_a_cluster(async |site| {
        let (client, first, _) = owner(&site).await;
        assert_eq!(first.read(id(9), 0, 4096).await.map(drop), Err(StoreError::NotFound(id(9))));
        append(&first, 2, 0, 1).await.unwrap();
        site.rados.pause(client.number());
        let second = site.open("second", Claim::Wait).await.unwrap();
        second.delete(id(1)).await.unwrap();
        second.delete(id(2)).await.unwrap();
        site.rados.resume(client.number());
        let lost = first.lost();
        assert_eq!(first.read(id(1), 0, 4096).await.map(drop), Err(StoreError::Fenced));
        assert_eq!(append(&first, 2, 4096, 2).await, Err(StoreError::Fenced));
        tokio::time::timeout(LATE, lost).await.unwrap();
        assert_eq!(second.read(id(1), 0, 4096).await.map(drop), Err(StoreError::NotFound(id(1))));
    });
}
