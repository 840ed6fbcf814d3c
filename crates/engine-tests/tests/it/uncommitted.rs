//! Clients whose writes are durable when they are answered do not read what a crash could undo.

use std::sync::Arc;
use std::time::Duration;

use forebay_engine::{Client, DiskHandle, Error, Fast, Pool, SyncMode};
use forebay_format::{BLOCK, SegmentId};
use forebay_store::{Completion, Fault, FaultyOp, FaultyStore, IoBuf, MemoryStore, Store, When};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::common::{config, noise, open_with, read};

/// Long enough for a read from RAM.
const SHORT: Duration = Duration::from_millis(50);
/// Only a read that hangs takes longer.
const HANG: Duration = Duration::from_secs(60);
/// A block that no test changes after its first write.
const OTHER: u64 = 64 << 10;

/// A store whose appends wait while it is closed.
struct Gated {
    store: Arc<MemoryStore>,
    is_open: watch::Sender<bool>,
}

impl Store for Gated {
    forebay_store::forward_store!(store; except append);

    fn append(&self, id: SegmentId, offset: u64, data: IoBuf, expected: u64) -> Completion<IoBuf> {
        let (store, mut is_open) = (self.store.clone(), self.is_open.subscribe());
        Completion::of(async move {
            is_open.wait_for(|is_open| *is_open).await.expect("the store exists");
            store.append(id, offset, data, expected).await
        })
    }
}

/// A volume with two blocks of noise 1 that are durable; a client of it on this host, and one over the
/// network.
async fn with_clients(pool: &Arc<Pool>) -> (Arc<DiskHandle>, Arc<DiskHandle>) {
    pool.create_volume("v", 4 << 20, SyncMode::Flush, 0).await.unwrap();
    let (local, remote) = (pool.attach("v").unwrap(), pool.attach_as("v", Client::Remote).unwrap());
    for at in [0, OTHER] {
        remote.write(at, &noise(1, BLOCK), false).await.unwrap();
    }
    (local, remote)
}

/// Waits until a block in the buffers has this content.
async fn until_visible(local: &DiskHandle, number: u64) {
    let seen = async {
        while read(local, 0, BLOCK).await != noise(number, BLOCK) {
            tokio::task::yield_now().await;
        }
    };
    timeout(HANG, seen).await.expect("clients on this host see it at once");
}

#[tokio::test]
async fn a_read_waits_for_the_commit_of_what_it_shows() {
    let store = Arc::new(Gated { store: Arc::default(), is_open: watch::Sender::new(true) });
    let pool = open_with(&store, config()).await;
    let (local, remote) = with_clients(&pool).await;
    store.is_open.send_replace(false);
    let writer = pool.attach_as("v", Client::Remote).unwrap();
    let write = tokio::spawn(async move { writer.write(0, &noise(2, BLOCK), false).await });
    until_visible(&local, 2).await;

    let mut quick = [0; BLOCK];
    assert_eq!(remote.try_read(0, &mut quick).unwrap(), Fast::Wait);
    let reading = tokio::spawn({
        let remote = remote.clone();
        async move { read(&remote, 0, 2 * BLOCK).await }
    });
    tokio::pin!(reading);
    assert!(timeout(SHORT, reading.as_mut()).await.is_err(), "it showed a write that a crash undoes");
    // A block that is not in the buffers is read at once, by the same client.
    assert_eq!(remote.try_read(OTHER, &mut quick).unwrap(), Fast::Done);
    assert!(quick[..] == noise(1, BLOCK));

    store.is_open.send_replace(true);
    write.await.unwrap().unwrap();
    let shown = timeout(HANG, reading).await.expect("the commit has ended").unwrap();
    assert!(shown[..BLOCK] == noise(2, BLOCK));
    assert_eq!(remote.try_read(0, &mut quick).unwrap(), Fast::Done);
}

/// While the store is full, reads show the refused write: it is committed when there is room. When the pool
/// has latched, it is not known what a restart finds.
#[tokio::test]
async fn a_read_whose_commit_fails_shows_nothing_that_changes_later() {
    for fault in [Fault::Full, Fault::Io] {
        let store = FaultyStore::new(1);
        let pool = open_with(&store, config()).await;
        let (local, remote) = with_clients(&pool).await;
        store.inject(FaultyOp::Append, fault, When::From(0));
        let failed = remote.write(0, &noise(2, BLOCK), false).await;
        match fault {
            Fault::Full => assert!(matches!(failed, Err(Error::NoSpace)), "{failed:?}"),
            _ => assert!(matches!(failed, Err(Error::Latched(_) | Error::Store(_))), "{failed:?}"),
        }
        assert!(read(&local, 0, BLOCK).await == noise(2, BLOCK), "it is in the buffers");
        let mut shown = vec![0; BLOCK];
        let read_now = timeout(HANG, remote.read(0, &mut shown)).await.expect("it does not wait for ever");
        if fault == Fault::Io {
            assert!(matches!(read_now, Err(Error::Latched(_))), "{read_now:?}");
            remote.read(OTHER, &mut shown).await.expect("a block that is not in the buffers");
        } else {
            read_now.unwrap();
            assert!(shown == noise(2, BLOCK));
            store.clear_faults();
            remote.flush().await.unwrap();
            assert!(read(&remote, 0, BLOCK).await == noise(2, BLOCK));
        }
    }
}
