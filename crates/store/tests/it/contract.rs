//! Tests of the store contract, run on every backend.

use std::sync::Arc;

use crate::common::{Backend, backends, block_on, id, pattern, superblock};
use forebay_store::{IoBuf, ObjectStat, Store, StoreError};
use proptest::prelude::*;

/// Whether `read` starts with `written`, followed by the zeroes of an object that is preallocated but not
/// written.
fn is_followed_by_zeroes(read: &[u8], written: &[u8]) -> bool {
    read.len() >= written.len() && read.starts_with(written) && read[written.len()..].iter().all(|b| *b == 0)
}

fn on_all(test: impl AsyncFn(&mut Backend)) {
    for mut backend in backends() {
        eprintln!("backend: {}", backend.name);
        block_on(test(&mut backend));
    }
}

#[test]
fn appended_bytes_are_read_back_and_survive_a_restart() {
    on_all(async |backend| {
        let (a, b) = (pattern(1, 8192), pattern(2, 4096));
        let whole = [&a[..], &b[..]].concat();
        for restarted in [false, true] {
            let store = backend.store();
            if !restarted {
                let back = store.append(id(1), 0, a.to_vec()[..].into(), 65536).await.unwrap();
                assert!(back.capacity() >= 8192, "the buffer is returned");
                store.append(id(1), 8192, IoBuf::from(&b[..]), 65536).await.unwrap();
                store.sync(id(1)).await.unwrap();
            }
            assert!(is_followed_by_zeroes(&store.read(id(1), 0, 1 << 20).await.unwrap(), &whole));
            assert_eq!(store.read(id(1), 4096, 4096).await.unwrap()[..], whole[4096..8192]);
            assert_eq!(store.read(id(1), 8192, 4096).await.unwrap()[..], b[..]);
            assert!(store.read(id(1), 1 << 30, 4096).await.unwrap().is_empty());
            backend.reopen();
        }
    });
}

#[test]
fn a_synced_append_is_an_append() {
    on_all(async |backend| {
        let whole = pattern(3, 5 * 4096);
        let part = |n: usize| IoBuf::from(&whole[n * 4096..(n + 1) * 4096]);
        let expected = whole.len() as u64;
        let store = backend.store();
        store.append_synced(id(1), 0, part(0), expected).await.unwrap();
        store.append_synced(id(1), 4096, part(1), expected).await.unwrap();
        store.append(id(1), 8192, part(2), expected).await.unwrap();
        store.sync(id(1)).await.unwrap();
        let back = store.append_synced(id(1), 12288, part(3), expected).await.unwrap();
        assert!(back.capacity() >= 4096, "the buffer is returned");
        store.append_synced(id(1), 16384, part(4), expected).await.unwrap();
        let missing = store.append_synced(id(5), 4096, part(0), expected).await;
        assert_eq!(missing.map(|_| ()), Err(StoreError::NotFound(id(5))));
        backend.reopen();
        assert_eq!(backend.store().read(id(1), 0, 1 << 20).await.unwrap()[..], whole[..]);
    });
}

#[test]
fn many_synced_appends_leave_their_data_and_zeroes_after_it() {
    on_all(async |backend| {
        let whole = pattern(4, 1 << 20);
        let store = backend.store();
        let mut at = 0;
        // Small ones, interrupted by larger and unsynced ones.
        for n in 0..90_usize {
            let len = if n % 40 == 39 { 128 << 10 } else { 4096 + 4096 * (n % 2) };
            let data = IoBuf::from(&whole[at..at + len]);
            let returned = match n % 25 {
                24 => store.append(id(1), at as u64, data, 1 << 20).await,
                _ => store.append_synced(id(1), at as u64, data, 1 << 20).await,
            };
            returned.unwrap();
            at += len;
        }
        store.sync(id(1)).await.unwrap();
        let read = store.read(id(1), 0, 1 << 20).await.unwrap();
        assert_eq!(read[..at], whole[..at]);
        assert!(read[at..].iter().all(|b| *b == 0));
        // The last append, which returns preallocated space.
        let end = at + 4096;
        store.append(id(1), at as u64, IoBuf::from(&whole[at..end]), end as u64).await.unwrap();
        backend.reopen();
        let read = backend.store().read(id(1), 0, 1 << 20).await.unwrap();
        assert_eq!(read[..end], whole[..end]);
        assert!(read[end..].iter().all(|b| *b == 0));
    });
}

#[test]
fn missing_objects_are_not_found() {
    on_all(async |backend| {
        let store = backend.store();
        let missing = Err(StoreError::NotFound(id(5)));
        assert_eq!(store.read(id(5), 0, 4096).await.map(|_| ()), missing);
        assert_eq!(store.sync(id(5)).await, missing);
        assert_eq!(store.append(id(5), 4096, IoBuf::zeroed(4096), 0).await.map(|_| ()), missing);
        assert_eq!(store.delete(id(5)).await, Ok(()));
        // None of these prevents its creation.
        store.append(id(5), 0, IoBuf::zeroed(4096), 0).await.unwrap();
    });
}

#[test]
fn objects_are_listed_in_order_and_deleted_permanently() {
    on_all(async |backend| {
        for n in [7, 1, 0xffff_ffff, 12] {
            backend.store().append(id(n), 0, pattern(n.into(), 4096), 4096).await.unwrap();
        }
        backend.store().read(id(7), 0, 4096).await.unwrap();
        backend.store().delete(id(7)).await.unwrap();
        let expected = [1, 12, 0xffff_ffff].map(|n| ObjectStat { id: id(n), len: 4096 });
        for _ in 0..2 {
            assert_eq!(backend.store().list().await.unwrap(), expected);
            assert_eq!(backend.store().read(id(7), 0, 4096).await.unwrap_err(), StoreError::NotFound(id(7)));
            backend.reopen();
        }
    });
}

#[test]
fn a_prepared_object_is_empty_until_its_first_append() {
    on_all(async |backend| {
        let store = backend.store();
        store.prepare(id(7), 65536).await.unwrap();
        assert!(is_followed_by_zeroes(&store.read(id(7), 0, 8192).await.unwrap(), &[]));
        store.append(id(7), 0, pattern(1, 4096), 65536).await.unwrap();
        store.append_synced(id(7), 4096, pattern(2, 4096), 65536).await.unwrap();
        store.sync(id(7)).await.unwrap();
        // Unused ones.
        for n in [8, 9] {
            store.prepare(id(n), 65536).await.unwrap();
        }
        store.delete(id(8)).await.unwrap();
        store.append(id(8), 0, pattern(3, 4096), 65536).await.unwrap();
        store.sync(id(8)).await.unwrap();
        backend.reopen();
        let store = backend.store();
        let whole = [&pattern(1, 4096)[..], &pattern(2, 4096)[..]].concat();
        assert!(is_followed_by_zeroes(&store.read(id(7), 0, 1 << 20).await.unwrap(), &whole));
        assert!(is_followed_by_zeroes(&store.read(id(8), 0, 1 << 20).await.unwrap(), &pattern(3, 4096)));
        store.delete(id(9)).await.unwrap();
    });
}

#[test]
fn the_tail_has_the_newest_objects_and_those_that_are_named() {
    on_all(async |backend| {
        assert_eq!(backend.store().tail(vec![id(1)], id(0)).await.unwrap(), [], "no pool has objects yet");
        for n in [1, 3, 4, 6, 9] {
            backend.store().append(id(n), 0, pattern(n.into(), 4096), 4096).await.unwrap();
            backend.store().sync(id(n)).await.unwrap();
        }
        backend.store().delete(id(6)).await.unwrap();
        for _ in 0..2 {
            let tail = async |named: &[u32], from| {
                let named = named.iter().map(|n| id(*n)).collect();
                let found = backend.store().tail(named, id(from)).await.unwrap();
                assert!(found.iter().all(|object| object.len == 4096), "{found:?}");
                found.iter().map(|object| object.id.0).collect::<Vec<_>>()
            };
            assert_eq!(tail(&[], 0).await, [1, 3, 4, 9]);
            assert_eq!(tail(&[2, 3], 4).await, [3, 4, 9]);
            assert_eq!(tail(&[9, 1, 4], 5).await, [1, 4, 9], "each once, in order");
            assert_eq!(tail(&[], 10).await, [0; 0]);
            backend.reopen();
        }
    });
}

#[test]
fn an_object_that_exists_is_not_created_again() {
    // In the same opening this violates an invariant of the caller and may panic; in the next one a damaged
    // pool may cause it.
    for mut backend in backends().into_iter().filter(|b| b.name != "memory") {
        block_on(async {
            backend.store().append(id(1), 0, pattern(1, 4096), 4096).await.unwrap();
            backend.reopen();
            backend.store().append(id(1), 0, pattern(2, 4096), 4096).await.unwrap_err();
            assert_eq!(backend.store().read(id(1), 0, 4096).await.unwrap()[..], pattern(1, 4096)[..]);
        });
    }
}

#[test]
fn the_superblock_is_compared_before_it_is_swapped() {
    on_all(async |backend| {
        assert_eq!(backend.store().read_superblock().await.unwrap(), [None, None]);
        assert_eq!(backend.store().swap_superblock(&superblock(2)).await, Err(StoreError::Fenced));
        for generation in 1..=4 {
            backend.store().swap_superblock(&superblock(generation)).await.unwrap();
            assert_eq!(
                backend.store().swap_superblock(&superblock(generation)).await,
                Err(StoreError::Fenced)
            );
            backend.reopen();
        }
        let expected = [Some(superblock(4).encode()), Some(superblock(3).encode())];
        assert_eq!(backend.store().read_superblock().await.unwrap(), expected);
        assert_eq!(backend.store().swap_superblock(&superblock(6)).await, Err(StoreError::Fenced));
        backend.store().swap_superblock(&superblock(5)).await.unwrap();
    });
}

#[test]
fn an_operation_completes_after_its_future_is_dropped() {
    on_all(async |backend| {
        for n in 1..=4 {
            backend.store().append(id(n), 0, pattern(n.into(), 1 << 20), 2 << 20).await.unwrap();
        }
        for n in 1..=8 {
            // A thread that ends immediately: its requests in the kernel must complete nevertheless.
            let (store, offset) = (backend.store().clone(), if n <= 4 { 1 << 20 } else { 0 });
            let data = pattern(100 + u64::from(n), 1 << 20);
            std::thread::spawn(move || drop(store.append(id(n), offset, data, 2 << 20))).join().unwrap();
        }
        // Closing waits for operations in flight.
        backend.reopen();
        for n in 1..=8 {
            let offset = if n <= 4 { 1 << 20 } else { 0 };
            let read = backend.store().read(id(n), offset, 1 << 20).await.unwrap();
            assert!(read[..] == pattern(100 + u64::from(n), 1 << 20)[..], "{n}");
        }
    });
}

#[test]
fn large_transfers_are_complete() {
    on_all(async |backend| {
        let data = pattern(5, 24 << 20);
        backend.store().append(id(1), 0, IoBuf::from(&data[..]), 32 << 20).await.unwrap();
        let read = backend.store().read(id(1), 4096, 32 << 20).await.unwrap();
        assert!(is_followed_by_zeroes(&read, &data[4096..]));
    });
}

#[test]
fn concurrent_readers_each_get_their_own_bytes() {
    on_all(async |backend| {
        for n in 1..=6 {
            backend.store().append(id(n), 0, pattern(n.into(), 256 << 10), 256 << 10).await.unwrap();
        }
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let store = backend.store();
                scope.spawn(move || block_on(read_randomly(store, thread)));
            }
        });
    });
}

async fn read_randomly(store: &Arc<dyn Store>, seed: u64) {
    let mut random = seed;
    for _ in 0..40 {
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        // Sixteen reads in flight, of more objects than the file cache keeps open.
        let wanted = (0..16).map(|_| (1 + next(6) as u32, next(64) * 4096, (1 + next(16)) as usize * 4096));
        let wanted = wanted.collect::<Vec<_>>();
        let reads = wanted.iter().map(|(n, at, len)| store.read(id(*n), *at, *len)).collect::<Vec<_>>();
        for (read, (n, at, len)) in reads.into_iter().zip(wanted) {
            let object = pattern(n.into(), 256 << 10);
            let end = (at as usize + len).min(object.len());
            assert!(read.await.unwrap()[..] == object[at as usize..end], "object {n} at {at}");
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Append { object: u32, pages: usize },
    Sync { object: u32 },
    Read { object: u32, page: u64, pages: usize },
    Delete { object: u32 },
    List,
    Swap,
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..5_u32, 1..20_usize).prop_map(|(object, pages)| Step::Append { object, pages }),
        2 => (0..5_u32).prop_map(|object| Step::Sync { object }),
        6 => (0..5_u32, 0..40_u64, 1..40_usize)
            .prop_map(|(object, page, pages)| Step::Read { object, page, pages }),
        1 => (0..5_u32).prop_map(|object| Step::Delete { object }),
        1 => Just(Step::List),
        1 => Just(Step::Swap),
        1 => Just(Step::Reopen),
    ]
}

/// The expected contents of the store: for each name its current object number, and its bytes.
#[derive(Default)]
struct Model {
    objects: [Option<(u32, Vec<u8>)>; 5],
    /// Objects up to this one were created by an earlier opening, and do not grow any more.
    closed: u32,
    next_id: u32,
    generation: u64,
}

async fn follow(backend: &mut Backend, steps: &[Step]) {
    let mut model = Model::default();
    for (n, step) in steps.iter().enumerate() {
        let store = backend.store().clone();
        match *step {
            Step::Append { object, pages } => {
                if model.objects[object as usize].as_ref().is_some_and(|(at, _)| *at <= model.closed) {
                    continue;
                }
                let data = pattern(n as u64, pages * 4096);
                let (at, bytes) = model.objects[object as usize].get_or_insert_with(|| {
                    model.next_id += 1; // never reused
                    (model.next_id, Vec::new())
                });
                let offset = bytes.len() as u64;
                bytes.extend_from_slice(&data);
                store.append(id(*at), offset, data, 40 * 4096).await.unwrap();
            }
            Step::Sync { object } => {
                if let Some((at, _)) = &model.objects[object as usize] {
                    store.sync(id(*at)).await.unwrap();
                }
            }
            Step::Read { object, page, pages } => {
                let Some((at, bytes)) = &model.objects[object as usize] else { continue };
                let read = store.read(id(*at), page * 4096, pages * 4096).await.unwrap();
                let start = bytes.len().min(page as usize * 4096);
                let end = bytes.len().min(start + pages * 4096);
                assert!(is_followed_by_zeroes(&read, &bytes[start..end]), "step {n}");
            }
            Step::Delete { object } => {
                if let Some((at, _)) = model.objects[object as usize].take() {
                    store.delete(id(at)).await.unwrap();
                }
            }
            Step::List => {
                let listed = store.list().await.unwrap();
                let mut expected = model.objects.iter().flatten().collect::<Vec<_>>();
                expected.sort();
                assert_eq!(listed.len(), expected.len());
                for (stat, (at, bytes)) in listed.iter().zip(expected) {
                    assert!(stat.id == id(*at) && stat.len >= bytes.len() as u64, "step {n}");
                }
            }
            Step::Swap => {
                model.generation += 1;
                store.swap_superblock(&superblock(model.generation)).await.unwrap();
            }
            Step::Reopen => {
                drop(store);
                backend.reopen();
                model.closed = model.next_id;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 16,
        failure_persistence: None,
        rng_seed: prop::test_runner::RngSeed::Fixed(0x0f0e_0bea),
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_backend_behaves_like_the_model(steps in prop::collection::vec(step(), 1..60)) {
        for mut backend in backends() {
            block_on(follow(&mut backend, &steps));
        }
    }
}
