//! Receives: what is received becomes visible as a whole or not at all, whatever fails.

use std::sync::Arc;

use forebay_engine::{Error, Pool, ReceiveError, ReceiveRequest, Receiving};
use forebay_store::{Crash, Fault, FaultyOp, FaultyStore, MemoryStore, When};

use crate::common::*;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 4 * MIB;

fn request(snapshot: &str, uuid: u8, parent: Option<u8>) -> ReceiveRequest {
    let parent = parent.map(|parent| [parent; 16]);
    ReceiveRequest { name: "v".into(), snapshot: Some(snapshot.into()), uuid: [uuid; 16], parent, size: SIZE }
}

/// Begins and fills a receive of the snapshot `a` with the identity 1.
async fn first(pool: &Pool) -> Result<Receiving, ReceiveError> {
    let receiving = pool.begin_receive(request("a", 1, None)).await?;
    receiving.write(0, &noise(1, 2 << 20)).await?;
    Ok(receiving)
}

/// Begins and fills a receive of the changes since `a`: the snapshot `b` with the identity 2.
async fn second(pool: &Pool) -> Result<Receiving, ReceiveError> {
    let receiving = pool.begin_receive(request("b", 2, Some(1))).await?;
    receiving.write(MIB, &noise(2, 1 << 20)).await?;
    receiving.zero(0, 4096).await?;
    Ok(receiving)
}

/// The contents after the first receive, and after the second one.
fn contents() -> (Vec<u8>, Vec<u8>) {
    let mut a = noise(1, 2 << 20);
    a.resize(SIZE as usize, 0);
    let mut b = a.clone();
    b[MIB as usize..2 * MIB as usize].copy_from_slice(&noise(2, 1 << 20));
    b[..4096].fill(0);
    (a, b)
}

async fn all(pool: &Pool, name: &str) -> Vec<u8> {
    read(&pool.attach(name).unwrap(), 0, SIZE as usize).await
}

fn names(pool: &Pool) -> Vec<String> {
    pool.disks().into_iter().map(|disk| disk.name).collect()
}

#[tokio::test]
async fn snapshots_are_received_one_after_the_other() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    let (a, b) = contents();
    let receiving = first(&pool).await.unwrap();
    assert_eq!(names(&pool), [""; 0]);
    assert_eq!(pool.finish_receive(receiving).await.unwrap().name, "v@a");
    let receiving = second(&pool).await.unwrap();
    assert!(all(&pool, "v").await == a);
    assert_eq!(pool.finish_receive(receiving).await.unwrap().uuid, [2; 16]);
    assert_eq!(names(&pool), ["v", "v@a", "v@b"]);
    assert!(all(&pool, "v@a").await == a && all(&pool, "v@b").await == b && all(&pool, "v").await == b);
    pool.reclaim(&|_| ()).await.unwrap();
    pool.close().await.unwrap();
    assert_eq!(check(&store).await, Vec::<String>::new());
    let pool = open(&store).await;
    assert!(all(&pool, "v@a").await == a && all(&pool, "v@b").await == b && all(&pool, "v").await == b);
    // The received snapshot is where the next stream starts, also after a checkpoint and another opening.
    let receiving = pool.begin_receive(request("c", 3, Some(2))).await.unwrap();
    pool.finish_receive(receiving).await.unwrap();
    assert!(all(&pool, "v@c").await == b);
}

#[tokio::test]
async fn a_volume_that_has_changed_is_not_replaced() {
    let pool = open(&Arc::new(MemoryStore::new())).await;
    pool.finish_receive(first(&pool).await.unwrap()).await.unwrap();
    let begun = second(&pool).await.unwrap();
    let v = pool.attach("v").unwrap();
    // A client may write until the end.
    assert!(matches!(second(&pool).await, Err(ReceiveError::Pool(Error::InUse { .. }))));
    assert!(matches!(pool.finish_receive(begun).await, Err(ReceiveError::Pool(Error::InUse { .. }))));
    drop(v);
    let begun = second(&pool).await.unwrap();
    let v = pool.attach("v").unwrap();
    v.write(3 * MIB, &noise(9, 4096), false).await.unwrap();
    drop(v);
    assert!(matches!(pool.finish_receive(begun).await, Err(ReceiveError::Changed { .. })));
    assert!(matches!(second(&pool).await, Err(ReceiveError::Changed { .. })));
    let mut expected = contents().0;
    expected[3 * MIB as usize..][..4096].copy_from_slice(&noise(9, 4096));
    assert!(all(&pool, "v").await == expected);
    assert_eq!(names(&pool), ["v", "v@a"]);

    // A snapshot that is gone, a size that differs, and names that are taken.
    pool.rollback("v", "a").await.unwrap();
    let begun = second(&pool).await.unwrap();
    pool.resize("v", 2 * SIZE).await.unwrap();
    assert!(matches!(pool.finish_receive(begun).await, Err(ReceiveError::Changed { .. })));
    pool.rollback("v", "a").await.unwrap();
    let begun = second(&pool).await.unwrap();
    pool.delete("v@a").await.unwrap();
    assert!(matches!(pool.finish_receive(begun).await, Err(ReceiveError::NoParent)));
    assert!(matches!(second(&pool).await, Err(ReceiveError::NoParent)));
    assert!(matches!(first(&pool).await, Err(ReceiveError::Pool(Error::Exists(_)))));
    pool.delete("v").await.unwrap();
    pool.finish_receive(first(&pool).await.unwrap()).await.unwrap();
    let again = ReceiveRequest { name: "w".into(), ..request("a", 1, None) };
    assert!(matches!(pool.begin_receive(again).await, Err(ReceiveError::Known(name)) if name == "v@a"));
    let other = ReceiveRequest { name: "w".into(), ..request("x", 7, None) };
    pool.finish_receive(pool.begin_receive(other).await.unwrap()).await.unwrap();
    let other = ReceiveRequest { name: "w".into(), ..request("b", 2, Some(1)) };
    assert!(matches!(pool.begin_receive(other).await, Err(ReceiveError::OtherParent { .. })));
}

/// A failure at each store operation of the end: after the next opening, everything is there, or nothing.
#[tokio::test]
async fn a_receive_is_complete_or_absent_after_a_failure_anywhere() {
    let (a, b) = contents();
    let mut outcomes = [0, 0];
    for (op, n) in [FaultyOp::Append, FaultyOp::Sync].into_iter().flat_map(|op| (0..12).map(move |n| (op, n)))
    {
        let store = FaultyStore::new(u64::from(n) + 1);
        let pool = open_with(&store, config()).await;
        pool.finish_receive(first(&pool).await.unwrap()).await.unwrap();
        let receiving = second(&pool).await.unwrap();
        store.inject(op, Fault::Io, When::From(n));
        let finished = pool.finish_receive(receiving).await;
        drop(pool);
        store.crash(Crash::PowerLoss);
        store.clear_faults();
        let pool = open_with(&store.reopen(), config()).await;
        let is_there = names(&pool).len() == 3;
        assert!(is_there || finished.is_err(), "a receive that was confirmed is lost: {op:?} {n}");
        outcomes[usize::from(is_there)] += 1;
        let (expected, disks): (_, &[&str]) =
            if is_there { (&b, &["v", "v@a", "v@b"]) } else { (&a, &["v", "v@a"]) };
        assert_eq!(names(&pool), disks);
        assert!(all(&pool, "v").await == *expected && all(&pool, "v@a").await == a, "{op:?} {n}");
        if !is_there {
            pool.finish_receive(second(&pool).await.unwrap()).await.unwrap();
            assert!(all(&pool, "v").await == b && all(&pool, "v@b").await == b, "{op:?} {n}");
        }
        pool.close().await.unwrap();
    }
    assert!(outcomes.iter().all(|count| *count > 0), "{outcomes:?}");
}

#[tokio::test]
async fn what_is_abandoned_leaves_nothing() {
    let store = Arc::new(MemoryStore::new());
    let pool = open(&store).await;
    pool.abandon_receive(first(&pool).await.unwrap()).await.unwrap();
    pool.finish_receive(first(&pool).await.unwrap()).await.unwrap();
    pool.abandon_receive(second(&pool).await.unwrap()).await.unwrap();
    // A crash during a receive.
    let receiving = second(&pool).await.unwrap();
    let crashed = open(&left_by_crash(&store).await).await;
    assert_eq!(names(&crashed), ["v", "v@a"]);
    crashed.finish_receive(second(&crashed).await.unwrap()).await.unwrap();
    pool.abandon_receive(receiving).await.unwrap();
    pool.close().await.unwrap();
    assert_eq!(check(&store).await, Vec::<String>::new());
}
