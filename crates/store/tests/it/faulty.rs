//! The faulty store keeps exactly the guarantees of the contract through faults and crashes.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::common::{block_on, id, pattern, superblock};
use forebay_store::{Completion, Crash, Fault, FaultyOp, FaultyStore, IoBuf, Store, StoreError, When};

fn poll_once<T>(future: &mut Completion<T>) -> Poll<Result<T, StoreError>> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

fn has_crashed<T>(result: &Result<T, StoreError>) -> bool {
    matches!(result, Err(StoreError::Io { errno: libc::ESHUTDOWN, .. }))
}

fn injected<T>(result: &Result<T, StoreError>) -> bool {
    matches!(result, Err(StoreError::Io { errno: libc::EIO, .. }))
}

async fn contents(store: &FaultyStore, n: u32) -> Option<Vec<u8>> {
    store.read(id(n), 0, 1 << 20).await.ok().map(|read| read.to_vec())
}

#[test]
fn synced_bytes_survive_every_crash() {
    for seed in 0..300 {
        block_on(async {
            let mut store = FaultyStore::new(seed);
            let mut synced = Vec::new();
            store.append(id(1), 0, pattern(seed, 8192), 0).await.unwrap();
            store.sync(id(1)).await.unwrap();
            synced.extend_from_slice(&pattern(seed, 8192));
            store.append(id(1), 8192, pattern(seed + 1, 8192), 0).await.unwrap();
            store.swap_superblock(&superblock(1)).await.unwrap();
            for kind in [Crash::Kill, Crash::PowerLoss, Crash::PowerLoss] {
                store.crash(kind);
                assert!(has_crashed(&store.list().await));
                store = store.reopen();
                let now = contents(&store, 1).await.unwrap();
                assert!(now.starts_with(&synced), "seed {seed}");
                assert_eq!(store.read_superblock().await.unwrap(), [None, Some(superblock(1).encode())]);
                if kind == Crash::Kill {
                    assert!(now[8192..] == pattern(seed + 1, 8192)[..], "completed appends survive a kill");
                } else {
                    synced = now; // all surviving bytes are durable now
                }
            }
        });
    }
}

#[test]
fn a_synced_append_survives_a_power_loss() {
    for seed in 0..100 {
        block_on(async {
            let store = FaultyStore::new(seed);
            for n in 0..2 {
                store.append_synced(id(1), n * 8192, pattern(seed + n, 8192), 0).await.unwrap();
                store.sync(id(1)).await.unwrap();
            }
            store.crash(Crash::PowerLoss);
            let now = contents(&store.reopen(), 1).await.unwrap();
            assert_eq!(now, [&pattern(seed, 8192)[..], &pattern(seed + 1, 8192)[..]].concat(), "seed {seed}");
        });
    }
}

#[test]
fn a_kill_does_not_make_bytes_durable() {
    let lost = (0..100).filter(|seed| {
        block_on(async {
            let store = FaultyStore::new(*seed);
            store.append(id(1), 0, pattern(1, 8192), 0).await.unwrap();
            let store = store.reopen();
            assert_eq!(contents(&store, 1).await.unwrap()[..], pattern(1, 8192)[..]);
            store.crash(Crash::PowerLoss);
            contents(&store.reopen(), 1).await.is_none_or(|now| now[..] != pattern(1, 8192)[..])
        })
    });
    assert!(lost.count() > 50);
    for seed in 0..100 {
        block_on(async {
            let store = FaultyStore::new(seed);
            store.append(id(1), 0, pattern(1, 8192), 0).await.unwrap();
            let store = store.reopen();
            store.sync(id(1)).await.unwrap();
            store.crash(Crash::PowerLoss);
            assert_eq!(contents(&store.reopen(), 1).await.unwrap()[..], pattern(1, 8192)[..]);
        });
    }
}

#[test]
fn an_append_in_flight_leaves_a_prefix_when_the_process_is_killed() {
    let (mut none, mut part, mut whole) = (0, 0, 0);
    for seed in 0..200 {
        let store = FaultyStore::new(seed);
        store.set_delay(8);
        let mut append = store.append(id(1), 0, pattern(seed, 65536), 0);
        store.crash(Crash::Kill);
        assert!(matches!(poll_until_ready(&mut append), result if has_crashed(&result)));
        let survived = block_on(contents(&store.reopen(), 1)).unwrap_or_default();
        let data = pattern(seed, 65536);
        let reached = data.iter().zip(&survived).take_while(|(a, b)| a == b).count();
        assert!(survived[reached..].iter().all(|b| *b == 0), "seed {seed}: zeroes after the prefix");
        match reached {
            0 => none += 1,
            65536 => whole += 1,
            _ => part += 1,
        }
    }
    assert!(none > 20 && part > 20 && whole > 20, "{none} {part} {whole}");
}

fn poll_until_ready<T>(future: &mut Completion<T>) -> Result<T, StoreError> {
    loop {
        if let Poll::Ready(value) = poll_once(future) {
            return value;
        }
    }
}

#[test]
fn old_futures_cannot_touch_the_next_opening() {
    for seed in 0..100 {
        let old = FaultyStore::new(seed);
        old.set_delay(20);
        block_on(old.append(id(1), 0, pattern(1, 4096), 0)).unwrap();
        block_on(old.swap_superblock(&superblock(1))).unwrap();
        let mut append = old.append(id(1), 4096, pattern(2, 4096), 0);
        let mut delete = old.delete(id(1));
        let mut swap = old.swap_superblock(&superblock(2));
        let dropped_later = old.append(id(2), 0, pattern(3, 4096), 0);
        let new = old.reopen();
        let state =
            || block_on(async { (new.list().await, contents(&new, 1).await, new.read_superblock().await) });
        let before = state();
        assert!(has_crashed(&poll_until_ready(&mut append)));
        assert!(has_crashed(&poll_until_ready(&mut delete)));
        assert!(has_crashed(&poll_until_ready(&mut swap)));
        drop(dropped_later);
        old.crash(Crash::PowerLoss);
        assert!(has_crashed(&block_on(old.append(id(9), 0, IoBuf::zeroed(4096), 0))));
        assert!(old.has_crashed() && !new.has_crashed());
        assert!(state() == before, "seed {seed}");
    }
}

#[test]
fn a_failed_sync_is_not_repaired_by_the_next() {
    let lost = (0..100).filter(|seed| {
        block_on(async {
            let store = FaultyStore::new(*seed);
            store.append(id(1), 0, pattern(1, 16384), 0).await.unwrap();
            store.inject(FaultyOp::Sync, Fault::Io, When::After(0));
            assert!(injected(&store.sync(id(1)).await));
            // Like a kernel that has dropped the dirty pages: success without effect.
            store.sync(id(1)).await.unwrap();
            store.crash(Crash::PowerLoss);
            contents(&store.reopen(), 1).await.unwrap()[..] != pattern(1, 16384)[..]
        })
    });
    assert!(lost.count() > 90);
}

#[test]
fn failed_appends_leave_the_end_unknown() {
    for (fault, expected) in [(Fault::Full, Some(StoreError::Full)), (Fault::Io, None), (Fault::Short, None)]
    {
        for seed in 0..50 {
            block_on(async {
                let store = FaultyStore::new(seed);
                store.append(id(1), 0, pattern(1, 4096), 0).await.unwrap();
                store.sync(id(1)).await.unwrap();
                store.inject(FaultyOp::Append, fault, When::After(0));
                let failed = store.append(id(1), 4096, pattern(2, 8192), 0).await.map(|_| ()).unwrap_err();
                assert!(expected.as_ref().is_none_or(|e| *e == failed), "{failed}");
                assert!(injected(&store.append(id(1), 4096, pattern(2, 8192), 0).await));
                assert!(contents(&store, 1).await.unwrap().starts_with(&pattern(1, 4096)));
                // Other objects are not affected.
                store.append(id(2), 0, pattern(3, 4096), 0).await.unwrap();
            });
        }
    }
}

/// A lack of space in a sync, a swap or a deletion is a failure like any other.
#[test]
fn lack_of_space_in_a_sync_swap_or_deletion_has_the_effects_of_any_failure() {
    let (mut lost, mut torn, mut deleted) = (0, 0, 0);
    for seed in 0..100 {
        block_on(async {
            let store = FaultyStore::new(seed);
            store.append(id(1), 0, pattern(1, 16384), 0).await.unwrap();
            store.inject(FaultyOp::Sync, Fault::Full, When::After(0));
            assert_eq!(store.sync(id(1)).await, Err(StoreError::Full));
            for generation in 1..=3 {
                store.swap_superblock(&superblock(generation)).await.unwrap();
            }
            store.inject(FaultyOp::Swap, Fault::Full, When::After(0));
            assert_eq!(store.swap_superblock(&superblock(4)).await, Err(StoreError::Full));
            assert!(
                injected(&store.swap_superblock(&superblock(4)).await),
                "the state of its copy is unknown"
            );
            store.append(id(2), 0, pattern(2, 4096), 0).await.unwrap();
            store.inject(FaultyOp::Delete, Fault::Full, When::After(0));
            assert_eq!(store.delete(id(2)).await, Err(StoreError::Full));
            deleted += u64::from(contents(&store, 2).await.is_none());
            store.delete(id(2)).await.unwrap();
            store.crash(Crash::PowerLoss);
            let store = store.reopen();
            lost += u64::from(contents(&store, 1).await.is_none_or(|c| c[..] != pattern(1, 16384)[..]));
            let [even, odd] = store.read_superblock().await.unwrap();
            assert_eq!(odd, Some(superblock(3).encode()));
            torn += u64::from(![superblock(2).encode(), superblock(4).encode()].map(Some).contains(&even));
        });
    }
    assert!(lost > 10 && torn > 10 && deleted > 10, "{lost} {torn} {deleted}");
}

#[test]
fn a_swap_in_flight_leaves_the_other_copy_whole() {
    let (mut old, mut new, mut torn) = (0, 0, 0);
    for seed in 0..300 {
        let store = FaultyStore::new(seed);
        store.set_delay(5);
        for generation in 1..=3 {
            block_on(store.swap_superblock(&superblock(generation))).unwrap();
        }
        let swap = store.swap_superblock(&superblock(4));
        store.crash(Crash::PowerLoss);
        drop(swap);
        let [even, odd] = block_on(store.reopen().read_superblock()).unwrap();
        assert_eq!(odd, Some(superblock(3).encode()));
        match even {
            Some(copy) if copy == superblock(2).encode() => old += 1,
            Some(copy) if copy == superblock(4).encode() => new += 1,
            _ => torn += 1,
        }
    }
    assert!(old > 20 && new > 20 && torn > 20, "{old} {new} {torn}");
}

#[test]
fn a_flipped_bit_stays_flipped() {
    block_on(async {
        let store = FaultyStore::new(5);
        assert_eq!(store.flip_any_bit(), None);
        store.append(id(1), 0, pattern(1, 8192), 0).await.unwrap();
        store.sync(id(1)).await.unwrap();
        let differing = |read: &[u8]| {
            let whole = pattern(1, 8192);
            whole.iter().zip(read).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>()
        };
        assert!(store.flip_bit(id(1), 100, 3) && !store.flip_bit(id(1), 8192, 0));
        assert_eq!(differing(&contents(&store, 1).await.unwrap()), 1);
        let (_, at) = store.flip_any_bit().unwrap();
        assert!(at < 8192);
        store.inject(FaultyOp::Read, Fault::Rot, When::After(0));
        let rotten = differing(&store.read(id(1), 0, 8192).await.unwrap());
        store.crash(Crash::PowerLoss);
        assert_eq!(differing(&contents(&store.reopen(), 1).await.unwrap()), rotten);
        assert!(rotten == 3 || rotten == 1, "two faults may have flipped the same bit: {rotten}");
    });
}

#[test]
fn the_machine_stops_at_the_given_operation() {
    block_on(async {
        let store = FaultyStore::new(1);
        store.append(id(1), 0, pattern(1, 4096), 0).await.unwrap();
        store.crash_at(store.ops() + 2, Crash::PowerLoss);
        store.sync(id(1)).await.unwrap();
        assert!(!store.has_crashed());
        assert!(has_crashed(&store.append(id(2), 0, pattern(2, 4096), 0).await));
        assert!(store.has_crashed());
        assert_eq!(contents(&store.reopen(), 1).await.unwrap()[..], pattern(1, 4096)[..]);
    });
}

#[test]
fn delays_reorder_operations() {
    let overtaken = (0..50).filter(|seed| {
        let store = FaultyStore::new(*seed);
        store.set_delay(5);
        let mut first = store.append(id(1), 0, pattern(1, 4096), 0);
        let mut second = store.append(id(2), 0, pattern(2, 4096), 0);
        loop {
            let (first, second) = (poll_once(&mut first), poll_once(&mut second));
            if first.is_ready() || second.is_ready() {
                return first.is_pending();
            }
        }
    });
    assert!((5..45).contains(&overtaken.count()));
}

#[test]
fn a_run_is_reproducible_from_its_seed() {
    let run = |seed| {
        block_on(async {
            let mut store = FaultyStore::new(seed);
            let mut seen = Vec::new();
            store.set_delay(4);
            store.inject(FaultyOp::Append, Fault::Short, When::PerMillion(100_000));
            for round in 0..20 {
                let object = id(round + 1);
                seen.push(format!(
                    "{:?}",
                    store.append(object, 0, pattern(round.into(), 16384), 65536).await
                ));
                let old = store.clone();
                let in_flight = old.append(object, 16384, pattern(round.into(), 8192), 65536);
                store.crash(if round % 2 == 0 { Crash::PowerLoss } else { Crash::Kill });
                store = store.reopen();
                drop(in_flight);
                seen.push(format!("{:?} {:?}", store.list().await, contents(&store, round + 1).await));
            }
            seen
        })
    };
    assert!(run(3) == run(3));
    assert!(run(3) != run(4));
}

#[test]
fn space_runs_out_and_is_returned_by_deletes() {
    block_on(async {
        let store: Arc<FaultyStore> = FaultyStore::new(1);
        store.set_capacity(65536);
        store.append(id(1), 0, pattern(1, 4096), 40960).await.unwrap();
        assert_eq!(store.append(id(2), 0, pattern(1, 4096), 40960).await.map(|_| ()), Err(StoreError::Full));
        assert_eq!(store.capacity().await.unwrap().free, 65536 - 40960);
        store.delete(id(1)).await.unwrap();
        store.append(id(2), 0, pattern(1, 4096), 40960).await.unwrap();
    });
}
