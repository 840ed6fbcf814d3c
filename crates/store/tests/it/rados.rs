//! Ownership of a pool in a simulated RADOS cluster: what operations of an earlier owner may do, whenever
//! they arrive.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{id, pattern, superblock};
use forebay_store::rados::{
    Broken, Claim, Cluster, MAX_NOTICE, NoticeBoard, PoolView, RadosStore, SimulatedClient, SimulatedRados,
    Step, WhenFull, World,
};
use forebay_store::{BoxFuture, Completion, IoBuf, ObjectStat, Store, StoreError};
use parking_lot::Mutex;

/// Virtual time of tokio; delays as set.
struct Paused {
    begun: tokio::time::Instant,
    delays: Mutex<VecDeque<Duration>>,
}

impl World for Paused {
    fn now(&self) -> Duration {
        // Never zero: time passes here.
        self.begun.elapsed() + Duration::from_millis(1)
    }
    fn sleep(&self, time: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(time))
    }
    fn spawn(&self, _: Option<u64>, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }
    fn delay(&self) -> Duration {
        self.delays.lock().pop_front().unwrap_or(Duration::from_micros(500))
    }
}

pub(super) struct Site {
    world: Arc<Paused>,
    pub rados: Arc<SimulatedRados>,
}

fn site() -> Site {
    let world = Arc::new(Paused { begun: tokio::time::Instant::now(), delays: Mutex::default() });
    Site { rados: SimulatedRados::new(world.clone()), world }
}

impl Site {
    pub async fn open(&self, name: &str, claim: Claim) -> Result<Arc<RadosStore>, StoreError> {
        RadosStore::open_simulated(self.rados.client(), name, claim).await
    }

    /// Requests and answers from now on.
    pub fn delay_all(&self, times: impl IntoIterator<Item = Duration>) {
        *self.world.delays.lock() = times.into_iter().collect();
    }

    /// The next request arrives after this time.
    pub fn delay_next(&self, time: Duration) {
        self.world.delays.lock().push_front(time);
    }
}

pub(super) fn on_a_cluster(test: impl AsyncFnOnce(Site)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime").block_on(async { test(site()).await });
}

pub(super) async fn append(store: &RadosStore, n: u32, offset: u64, seed: u64) -> Result<(), StoreError> {
    store.append(id(n), offset, pattern(seed, 4096), 1 << 20).await.map(drop)
}

pub(super) const LATE: Duration = Duration::from_secs(60);

#[test]
fn a_second_server_is_refused_while_the_first_one_lives() {
    on_a_cluster(async |site| {
        let first = site.open("first", Claim::IfFree).await.unwrap();
        append(&first, 1, 0, 1).await.unwrap();
        let refused = site.open("second", Claim::IfFree).await.map(drop);
        assert_eq!(refused, Err(StoreError::Busy(" (host first, process 1)".into())));
        assert!(first.ownership()());
        append(&first, 1, 4096, 2).await.unwrap();
    });
}

#[test]
fn a_standby_takes_over_when_the_owner_dies() {
    on_a_cluster(async |site| {
        let first = site.open("first", Claim::IfFree).await.unwrap();
        append(&first, 1, 0, 1).await.unwrap();
        drop(first);
        let begun = tokio::time::Instant::now();
        let second = site.open("second", Claim::Wait).await.unwrap();
        let took = begun.elapsed();
        assert!(took > Duration::from_secs(3) && took < Duration::from_secs(6), "{took:?}");
        assert_eq!(second.read(id(1), 0, 4096).await.unwrap()[..], pattern(1, 4096)[..]);
    });
}

#[test]
fn a_lease_ends_before_another_server_can_have_taken_over() {
    on_a_cluster(async |site| {
        let first = site.open("first", Claim::IfFree).await.unwrap();
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(first.ownership()());
        // Its heartbeats do not arrive any more.
        for _ in 0..40 {
            site.delay_next(LATE);
        }
        tokio::time::sleep(Duration::from_millis(1_100)).await;
        site.world.delays.lock().clear();
        let lost = first.lost();
        let second = site.open("second", Claim::Wait).await.unwrap();
        assert!(!first.ownership()());
        tokio::time::timeout(LATE, lost).await.expect("the late heartbeat tells it");
        assert_eq!(append(&first, 9, 0, 1).await, Err(StoreError::Fenced));
        append(&second, 9, 0, 1).await.unwrap();
    });
}

/// The first heartbeats of two owners must differ: a standby would not see that the second one lives.
#[test]
fn the_first_heartbeat_of_an_owner_is_seen() {
    on_a_cluster(async |site| {
        let first = site.open("first", Claim::IfFree).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        drop(first);
        let second = site.open("second", Claim::Wait);
        let third = async {
            while site.rados.term() < 2 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            // The second one needs some time to complete its claim, sends one heartbeat, and is cut off.
            site.rados.pause(2);
            let cut_off = async {
                tokio::time::sleep(Duration::from_millis(2_500)).await;
                site.rados.resume(2);
                tokio::time::sleep(Duration::from_millis(500)).await;
                site.rados.pause(2);
            };
            tokio::join!(site.open("third", Claim::Wait), cut_off).0
        };
        let (second, third) = tokio::join!(second, third);
        let (second, _third) = (second.unwrap(), third.unwrap());
        assert!(!second.ownership()(), "the third one has the pool");
    });
}

/// Begins an operation whose request arrives late, takes the pool over, and checks that it had no effect.
fn arrives_late(begin: impl Fn(&RadosStore) -> Completion<()>, requests_before: usize) {
    on_a_cluster(async |site| {
        let first = site.open("first", Claim::IfFree).await.unwrap();
        first.swap_superblock(&superblock(1)).await.unwrap();
        append(&first, 1, 0, 1).await.unwrap();
        append(&first, 2, 0, 2).await.unwrap();
        // A request and an answer each.
        site.world.delays.lock().extend([Duration::from_millis(1)].repeat(2 * requests_before));
        site.world.delays.lock().push_back(LATE);
        let late = begin(&first);
        // Its requests before the late one have arrived.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let client = site.rados.client();
        let second = take_by_force(&site, client).await;
        let list = second.list().await.unwrap();
        let copies = second.read_superblock().await.unwrap();
        append(&second, 3, 0, 3).await.unwrap();
        let before = site.rados.snapshot();
        // A deletion that the second server completed succeeds.
        let _ = late.await;
        let mut after = site.rados.snapshot();
        // An object without data may appear.
        after.retain(|name, bytes| before.contains_key(name) || !bytes.is_empty());
        assert!(before == after, "nothing has changed");
        assert_eq!(second.read_superblock().await.unwrap(), copies);
        for object in list {
            second.read(object.id, 0, 4096).await.unwrap();
        }
        // Numbers that the first one had begun to use are free.
        for n in 4..8 {
            append(&second, n, 0, n.into()).await.unwrap();
        }
    });
}

/// Takes a pool over from a server whose heartbeats do not arrive.
async fn take_by_force(site: &Site, client: Arc<SimulatedClient>) -> Arc<RadosStore> {
    site.rados.pause(1);
    let second = RadosStore::open_simulated(client, "second", Claim::Wait).await.unwrap();
    site.rados.resume(1);
    second
}

/// Discards the buffer of an append.
fn discard(append: Completion<IoBuf>) -> Completion<()> {
    Completion::of(async { append.await.map(drop) })
}

#[test]
fn a_late_append_has_no_effect() {
    arrives_late(|s| discard(s.append(id(1), 4096, pattern(9, 4096), 1 << 20)), 0);
}

#[test]
fn a_late_superblock_has_no_effect() {
    for requests_before in 0..2 {
        arrives_late(|s| s.swap_superblock(&superblock(2)), requests_before);
    }
}

#[test]
fn a_late_creation_has_no_effect() {
    for requests_before in 0..3 {
        arrives_late(|s| discard(s.append(id(4), 0, pattern(9, 4096), 1 << 20)), requests_before);
    }
}

#[test]
fn a_late_deletion_has_no_effect() {
    for requests_before in 0..2 {
        arrives_late(|s| s.delete(id(2)), requests_before);
    }
}

/// The successor uses the number of a removed segment again, and the removal arrives late. Returns whether
/// the new segment is there.
fn survives_a_late_removal(broken: Broken) -> bool {
    let survived = Arc::new(Mutex::new(false));
    let result = survived.clone();
    on_a_cluster(async move |site| {
        site.rados.set_broken(broken);
        let first = site.open("first", Claim::IfFree).await.unwrap();
        append(&first, 2, 0, 2).await.unwrap();
        // The entry in the header arrives in time, the removal does not.
        site.world.delays.lock().extend([Duration::from_millis(1), Duration::from_millis(1), LATE]);
        let late = first.delete(id(2));
        tokio::time::sleep(Duration::from_millis(50)).await;
        let second = take_by_force(&site, site.rados.client()).await;
        append(&second, 2, 0, 3).await.unwrap();
        let _ = late.await;
        let found = second.read(id(2), 0, 4096).await;
        *result.lock() = found.is_ok_and(|bytes| bytes[..] == pattern(3, 4096)[..]);
    });
    *survived.lock()
}

#[test]
fn a_late_removal_does_not_remove_the_next_segment_of_this_number() {
    assert!(survives_a_late_removal(Broken::None));
    assert!(!survives_a_late_removal(Broken::RequireAtMost), "the term prevents it");
}

#[test]
fn of_two_servers_that_race_one_wins() {
    on_a_cluster(async |site| {
        for round in 0..50_u32 {
            let open = || site.open("racer", Claim::IfFree);
            site.world
                .delays
                .lock()
                .extend([300, 700].map(|us| Duration::from_micros(us * u64::from(round))));
            let (a, b) = tokio::join!(open(), open());
            let winners = [&a, &b].into_iter().flatten().count();
            assert!(winners >= 1, "round {round}");
            let mut alive = 0;
            for store in [&a, &b].into_iter().flatten() {
                alive += u32::from(append(store, 100 + round, 0, 1).await.is_ok());
            }
            assert_eq!(alive, 1, "round {round}");
            drop((a, b));
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    });
}

#[test]
fn a_full_pool_refuses_appends_and_permits_deletions() {
    on_a_cluster(async |site| {
        let store = site.open("first", Claim::IfFree).await.unwrap();
        append(&store, 1, 0, 1).await.unwrap();
        store.swap_superblock(&superblock(1)).await.unwrap();
        // The object, and two copies of the superblock.
        site.rados.set_capacity(3 * 4096);
        assert_eq!(append(&store, 1, 4096, 2).await, Err(StoreError::Full));
        assert!(append(&store, 1, 4096, 2).await.is_err(), "its end is unknown");
        assert_eq!(append(&store, 2, 0, 2).await, Err(StoreError::Full));
        store.swap_superblock(&superblock(2)).await.unwrap();
        store.delete(id(1)).await.unwrap();
        store.append(id(3), 0, IoBuf::zeroed(4096), 4096).await.unwrap();
    });
}

/// What was admitted before Ceph noticed that the pool is full does not prevent what makes room.
#[test]
fn a_full_pool_accepts_an_allowance_and_reports_no_space() {
    on_a_cluster(async |site| {
        let store = site.open("first", Claim::IfFree).await.unwrap();
        append(&store, 1, 0, 1).await.unwrap();
        site.rados.set_capacity(4096);
        site.rados.set_allowance(2 * 4096);
        append(&store, 1, 4096, 2).await.unwrap();
        append(&store, 2, 0, 2).await.unwrap();
        assert_eq!(append(&store, 2, 4096, 2).await, Err(StoreError::Full));
        site.rados.set_capacity(1 << 20);
        assert_eq!(store.capacity().await.unwrap().free, 0, "guests must not use up the allowance");
        tokio::time::sleep(Duration::from_secs(9)).await;
        assert!(store.capacity().await.unwrap().free > 0);
        append(&store, 3, 0, 2).await.unwrap();
        site.rados.set_capacity(0);
        append(&store, 3, 4096, 2).await.unwrap();
    });
}

#[test]
fn a_notice_is_that_of_the_present_owner() {
    on_a_cluster(async |site| {
        let mut board = NoticeBoard::simulated(site.rados.client());
        assert_eq!(board.read().await, Ok(PoolView::default()), "there is no pool");
        assert_eq!(board.read_last().await, Ok(None), "there is no pool");
        let first = site.open("a", Claim::IfFree).await.unwrap();
        assert_eq!(board.read().await.unwrap().notice, None, "none was published");
        first.publish(1, b"of a").await.unwrap();
        board.announce(3, "of server 3").await.unwrap();
        let seen = board.read().await.unwrap();
        assert_eq!(seen.notice.unwrap()[..], *b"of a");
        assert_eq!(seen.groups, [(3, "of server 3".to_owned())]);
        first.publish(2, b"short").await.unwrap();
        first.publish(3, b"long enough").await.unwrap();
        first.publish(4, b"end").await.unwrap();
        assert_eq!(board.read().await.unwrap().notice.unwrap()[..], *b"end");
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_ne!(board.read().await.unwrap().sign_of_life, seen.sign_of_life, "the owner lives");

        // A paused owner, its successor, and what the former had begun.
        site.rados.pause(2);
        let late = first.publish(5, b"too late");
        let second = site.open("b", Claim::Wait).await.unwrap();
        assert_eq!(board.read().await.unwrap().notice, None, "of an earlier owner");
        let mut last = NoticeBoard::of(site.rados.client());
        assert_eq!(last.read_last().await.unwrap().unwrap()[..], *b"end", "the last one that was published");
        second.publish(1, b"of b").await.unwrap();
        site.rados.resume(2);
        assert_eq!(late.await, Err(StoreError::Fenced));
        assert_eq!(board.read().await.unwrap().notice.unwrap()[..], *b"of b");
        let read = last.read_last().await.unwrap().unwrap();
        assert_eq!(read[..], *b"of b");
        assert!(Arc::ptr_eq(&read, &last.read_last().await.unwrap().unwrap()), "it has not changed");

        for number in [0, 17] {
            assert!(matches!(
                board.announce(number, "x").await,
                Err(StoreError::Io { errno: libc::EINVAL, .. })
            ));
        }
        let long = second.publish(2, &vec![0; MAX_NOTICE + 1]).await;
        assert!(matches!(long, Err(StoreError::Io { errno: libc::EFBIG, .. })));
    });
}

/// The successor has created a segment with the number that the former owner is about to use.
#[test]
fn a_segment_of_the_next_owner_is_no_damage() {
    on_a_cluster(async |site| {
        let first = site.open("first", Claim::IfFree).await.unwrap();
        append(&first, 1, 0, 1).await.unwrap();
        let second = take_by_force(&site, site.rados.client()).await;
        append(&second, 2, 0, 2).await.unwrap();
        let lost = first.lost();
        assert_eq!(append(&first, 2, 0, 3).await, Err(StoreError::Fenced));
        assert_eq!(first.prepare(id(2), 1 << 20).await, Err(StoreError::Fenced));
        tokio::time::timeout(LATE, lost).await.expect("it has noticed");
        // An owner that finds its own segment reports it.
        let own = second.prepare(id(2), 1 << 20).await;
        assert!(matches!(own, Err(StoreError::Io { errno: libc::EEXIST, .. })), "{own:?}");
    });
}

/// A superblock copy with a number of another format: a version, or a feature word.
fn foreign_superblock(generation: u64, at: usize, number: u32) -> IoBuf {
    let mut bytes = superblock(generation).encode();
    bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
    let check = forebay_format::check64(&bytes[..4088]);
    bytes[4088..].copy_from_slice(&check.to_le_bytes());
    IoBuf::from(&bytes[..])
}

/// A pool of another version, with an unknown read-only compatible feature, and with an unknown incompatible
/// feature.
#[test]
fn a_standby_does_not_take_a_pool_that_it_cannot_serve() {
    let cases = [
        (8, forebay_format::VERSION + 1, "format version 5"),
        (8, 3, "format version 3"),
        (3208, 1 << 5, "read-only compatible features that this release does not know (bit 5)"),
        (3216, 1 << 5, "incompatible features that this release does not know (bit 5)"),
    ];
    cases.into_iter().for_each(|(at, number, expected)| does_not_take(at, number, expected));
}

fn does_not_take(at: usize, number: u32, expected: &'static str) {
    on_a_cluster(async move |site| {
        let first = site.open("first", Claim::IfFree).await.unwrap();
        first.swap_superblock(&superblock(1)).await.unwrap();
        let waiting = tokio::spawn(RadosStore::open_simulated(site.rados.client(), "second", Claim::Wait));
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!((site.rados.standbys(), waiting.is_finished()), (1, false));
        let steps = vec![Step::Write(0, Arc::new(foreign_superblock(2, at, number)))];
        site.rados.client().operate("pool", steps, WhenFull::Proceed).await.unwrap();

        let is_refused = |opened: Result<Arc<RadosStore>, StoreError>| match opened {
            Err(StoreError::Io { reason, .. }) => assert!(reason.contains(expected), "{reason}"),
            other => panic!("{:?}", other.map(drop)),
        };
        let waited = tokio::time::timeout(LATE, waiting).await.expect("it does not wait any more");
        is_refused(waited.unwrap());
        // Its announcement is removed without a wait.
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(site.rados.standbys(), 0, "it must not be chosen as heir");
        let term = site.rados.term();
        drop(first);
        for claim in [Claim::IfFree, Claim::Wait] {
            is_refused(site.open("third", claim).await);
        }
        assert_eq!((site.rados.term(), first_owner(&site)), (term, true), "the pool is as it was");
    });
}

fn first_owner(site: &Site) -> bool {
    site.rados.owner_and_heir().0.starts_with("first ")
}

/// A request and its answer take as long as the cluster is slow.
#[test]
fn a_slow_cluster_lengthens_the_detection_little() {
    on_a_cluster(async |site| {
        let first = site.open("first", Claim::IfFree).await.unwrap();
        site.delay_all([Duration::from_millis(200)].repeat(10_000));
        tokio::time::sleep(Duration::from_secs(5)).await;
        site.rados.pause(1);
        let begun = tokio::time::Instant::now();
        let second = site.open("second", Claim::Wait).await.unwrap();
        // The swap and the fence are slow, too.
        let took = begun.elapsed();
        assert!(took > Duration::from_secs(4) && took < Duration::from_secs(8), "{took:?}");
        assert!(!first.ownership()());
        drop(second);
    });
}

#[test]
fn a_living_owner_keeps_its_pool_in_a_cluster_that_answers_after_seconds() {
    on_a_cluster(async |site| {
        let first = site.open("first", Claim::IfFree).await.unwrap();
        for one_way in [250, 500, 1_000, 1_500] {
            site.delay_all([Duration::from_millis(one_way)].repeat(1_000));
            let waiting = site.open("second", Claim::Wait);
            let waited = tokio::time::timeout(Duration::from_secs(100), waiting).await;
            assert!(waited.is_err(), "{one_way} ms each way");
            site.delay_all([]);
        }
        append(&first, 1, 0, 1).await.unwrap();
    });
}

/// A listing would take time in proportion to all objects of the Ceph pool.
#[test]
fn the_newest_segments_are_found_without_listing_objects() {
    on_a_cluster(async |site| {
        let first = site.open("first", Claim::IfFree).await.unwrap();
        for n in [3, 5, 6] {
            append(&first, n, 0, 1).await.unwrap();
        }
        first.prepare(id(7), 1 << 20).await.unwrap();
        // Only a listing finds an object that its creator has not entered in the header. It is empty.
        let late = site.rados.client().operate("segment.00000008", vec![Step::Create], WhenFull::Fail).await;
        late.unwrap();
        drop(first);
        let second = site.open("second", Claim::Wait).await.unwrap();
        let numbers = |objects: Vec<ObjectStat>| objects.iter().map(|o| (o.id.0, o.len)).collect::<Vec<_>>();
        let tail = second.tail(vec![id(3), id(4)], id(6)).await.unwrap();
        assert_eq!(numbers(tail), [(3, 4096), (6, 4096), (7, 0)]);
        assert_eq!(numbers(second.list().await.unwrap()).len(), 5);
        // The number is used by an owner that found nothing under it.
        append(&second, 8, 0, 2).await.unwrap();
        assert_eq!(numbers(second.tail(vec![], id(8)).await.unwrap()), [(8, 4096)]);
    });
}

#[test]
fn a_prepared_segment_is_fenced_as_one_with_data_is() {
    on_a_cluster(async |site| {
        let first = site.open("first", Claim::IfFree).await.unwrap();
        first.prepare(id(1), 1 << 20).await.unwrap();
        site.delay_next(LATE);
        let late = tokio::spawn({
            let first = first.clone();
            async move { append(&first, 1, 0, 1).await }
        });
        tokio::time::sleep(Duration::from_millis(1)).await;
        site.rados.pause(1);
        let second = site.open("second", Claim::Wait).await.unwrap();
        site.rados.resume(1);
        assert_eq!(late.await.unwrap(), Err(StoreError::Fenced));
        assert!(second.read(id(1), 0, 4096).await.unwrap().is_empty());
    });
}

/// Its length may be unknown, when it is not reserved.
#[test]
fn a_prepared_segment_stays_open_after_its_first_append() {
    on_a_cluster(async |site| {
        let first = site.open("first", Claim::IfFree).await.unwrap();
        first.prepare(id(1), 0).await.unwrap();
        first.append(id(1), 0, pattern(1, 4096), 4096).await.unwrap();
        // Changes the header.
        first.prepare(id(2), 0).await.unwrap();
        site.delay_next(LATE);
        let late = tokio::spawn({
            let first = first.clone();
            async move { append(&first, 1, 4096, 2).await }
        });
        tokio::time::sleep(Duration::from_millis(1)).await;
        site.rados.pause(1);
        let second = site.open("second", Claim::Wait).await.unwrap();
        site.rados.resume(1);
        assert_eq!(late.await.unwrap(), Err(StoreError::Fenced));
        assert_eq!(second.read(id(1), 0, 8192).await.unwrap().len(), 4096);
    });
}

#[test]
fn an_append_is_overdue_while_the_header_answers() {
    on_a_cluster(async |site| {
        let store = site.open("first", Claim::IfFree).await.unwrap();
        append(&store, 1, 0, 1).await.unwrap();
        let begun = tokio::time::Instant::now();
        store.overdue(4096).await;
        assert!(begun.elapsed() < Duration::from_millis(500), "{:?}", begun.elapsed());
        let again = tokio::time::Instant::now();
        store.overdue(4096).await;
        assert!(again.elapsed() > begun.elapsed() / 2, "the time doubles");
        site.rados.set_hung([SimulatedRados::group_of_header()]);
        let waited = tokio::time::timeout(Duration::from_secs(30), store.overdue(4096)).await;
        assert!(waited.is_err(), "the whole cluster may be slow");
    });
}
