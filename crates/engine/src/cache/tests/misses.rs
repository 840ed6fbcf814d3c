//! Tests the table of misses, step by step and in random interleavings.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, Wake, Waker};

use super::*;
use crate::cache::miss::Follower;
use crate::cache::{Leader, MissRole, MissTable};

/// Counts its wake-ups.
#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

fn poll<T: Clone>(follower: &mut Follower<T>, bell: &Arc<Bell>) -> Poll<Option<T>> {
    let waker = Waker::from(bell.clone());
    Pin::new(follower).poll(&mut Context::from_waker(&waker))
}

fn lead<T>(table: &MissTable<T>, n: u64) -> Leader<T> {
    match table.enter(address(n)) {
        MissRole::Leader(leader) => leader,
        MissRole::Follower(_) => panic!("{n} has a leader already"),
    }
}

fn follow<T>(table: &MissTable<T>, n: u64) -> Follower<T> {
    match table.enter(address(n)) {
        MissRole::Follower(follower) => follower,
        MissRole::Leader(_) => panic!("{n} has no leader"),
    }
}

#[test]
fn followers_get_what_the_leader_read() {
    let table = MissTable::default();
    let leader = lead(&table, 1);
    let (mut early, mut late) = (follow(&table, 1), follow(&table, 1));
    let (bell, unused) = (Arc::new(Bell::default()), Arc::new(Bell::default()));
    assert_eq!(poll(&mut early, &unused), Poll::Pending);
    assert_eq!(poll(&mut early, &bell), Poll::Pending);
    let other = lead(&table, 2);
    leader.complete(42);
    assert_eq!((bell.0.load(Relaxed), unused.0.load(Relaxed)), (1, 0));
    assert_eq!(poll(&mut early, &bell), Poll::Ready(Some(42)));
    assert_eq!(poll(&mut late, &bell), Poll::Ready(Some(42)));
    assert_eq!(table.len(), 1);
    drop(other);
    assert_eq!(table.len(), 0);
}

#[test]
fn a_leader_that_goes_away_sends_its_followers_back() {
    let table = MissTable::<u64>::default();
    let leader = lead(&table, 1);
    let mut follower = follow(&table, 1);
    let bell = Arc::new(Bell::default());
    assert_eq!(poll(&mut follower, &bell), Poll::Pending);
    drop(leader);
    assert_eq!(bell.0.load(Relaxed), 1);
    assert_eq!(poll(&mut follower, &bell), Poll::Ready(None));
    lead(&table, 1).complete(1);
}

#[test]
fn a_follower_that_goes_away_is_not_woken() {
    let table = MissTable::default();
    let leader = lead(&table, 1);
    let bell = Arc::new(Bell::default());
    for _ in 0..100 {
        assert_eq!(poll(&mut follow(&table, 1), &bell), Poll::Pending);
    }
    leader.complete(());
    assert_eq!(bell.0.load(Relaxed), 0);
    assert_eq!(Arc::strong_count(&bell), 1);
}

/// A reader in the random test.
enum Reader {
    Idle,
    Leads(u64, Leader<u64>),
    Waits(u64, Follower<u64>, Arc<Bell>),
}

/// Readers that enter, complete, give up and are dropped in random order: an address has at most one leader;
/// every follower whose leader ended was woken and gets that leader's value or is sent back; no entry
/// remains.
#[test]
fn random_interleavings_leave_nobody_waiting() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let table = MissTable::default();
        let mut readers = (0..12).map(|_| Reader::Idle).collect::<Vec<_>>();
        let mut finished = std::collections::HashMap::<u64, Vec<u64>>::new();
        for step in 0..400_u64 {
            let at = random.below(12) as usize;
            let give_up = random.below(4) == 0;
            let next = match std::mem::replace(&mut readers[at], Reader::Idle) {
                Reader::Idle => {
                    let n = random.below(3);
                    match table.enter(address(n)) {
                        MissRole::Leader(leader) => Reader::Leads(n, leader),
                        MissRole::Follower(follower) => Reader::Waits(n, follower, Arc::default()),
                    }
                }
                Reader::Leads(n, leader) if !give_up => {
                    finished.entry(n).or_default().push(step);
                    leader.complete(step);
                    Reader::Idle
                }
                Reader::Leads(..) => Reader::Idle,
                Reader::Waits(n, mut follower, bell) if !give_up => {
                    let woken = bell.0.load(Relaxed) > 0;
                    match poll(&mut follower, &bell) {
                        Poll::Pending => {
                            assert!(!woken, "seed {seed}: woken without a result");
                            Reader::Waits(n, follower, bell)
                        }
                        Poll::Ready(None) => Reader::Idle,
                        Poll::Ready(Some(value)) => {
                            assert!(finished[&n].contains(&value), "seed {seed}: value of another miss");
                            Reader::Idle
                        }
                    }
                }
                Reader::Waits(..) => Reader::Idle,
            };
            readers[at] = next;
            let mut led =
                readers.iter().filter_map(|r| if let Reader::Leads(n, _) = r { Some(n) } else { None });
            let mut led = led.by_ref().collect::<Vec<_>>();
            led.sort_unstable();
            assert!(led.is_sorted_by(|a, b| a < b), "seed {seed}: two leaders");
            assert_eq!(table.len(), led.len());
        }
        readers.retain(|r| !matches!(r, Reader::Leads(..)));
        for reader in &mut readers {
            if let Reader::Waits(_, follower, bell) = reader {
                assert!(poll(follower, bell).is_ready(), "seed {seed}: a follower waits without a leader");
            }
        }
        assert_eq!(table.len(), 0);
    }
}

/// On several threads, each retrying until it has the value: no value is read twice at the same time.
#[test]
fn threads_coalesce() {
    let table = MissTable::default();
    let reading = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for seed in 0..4 {
            let (table, reading) = (&table, &reading);
            scope.spawn(move || {
                let mut random = Random(seed);
                let mut done = 0;
                while done < 500 {
                    match table.enter(address(1)) {
                        MissRole::Leader(leader) => {
                            assert_eq!(reading.fetch_add(1, Relaxed), 0);
                            std::thread::yield_now();
                            reading.fetch_sub(1, Relaxed);
                            if random.below(3) > 0 {
                                leader.complete(seed);
                                done += 1;
                            }
                        }
                        MissRole::Follower(follower) => {
                            done += u32::from(block_on(follower).is_some());
                        }
                    }
                }
            });
        }
    });
    assert_eq!(table.len(), 0);
}

fn block_on<T: Clone>(mut follower: Follower<T>) -> Option<T> {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        match Pin::new(&mut follower).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}
