use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Instant;

use tokio::task::LocalSet;

use super::account::*;
use super::stall::PROGRESS_PART;
use super::*;

const MIB: usize = 1 << 20;

fn memory() -> Arc<Memory> {
    Memory::new(MemoryLimits { budget: 256 << 20, stall: Duration::from_millis(50) })
}

/// A connection to `what`.
fn joined(memory: &Arc<Memory>, what: &str) -> Rc<MemoryAccount> {
    let account = MemoryAccount::new(memory);
    account.join(what);
    account
}

/// Polls a claim once; returns its charge, or the waiting claim.
fn take(account: &Rc<MemoryAccount>, bytes: usize) -> Result<Charge, Claim> {
    let mut claim = account.claim(bytes, Kind::Work);
    poll(&mut claim).ok_or(claim)
}

fn poll(claim: &mut Claim) -> Option<Charge> {
    match claim.poll(Waker::noop()) {
        Poll::Ready(charge) => Some(charge),
        Poll::Pending => None,
    }
}

fn used(memory: &Memory) -> usize {
    memory.used.load(SeqCst)
}

async fn is_pending<T>(mut future: Pin<&mut impl Future<Output = T>>) -> bool {
    std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await
}

#[test]
fn dropped_charges_are_returned_to_the_budget() {
    let memory = memory();
    let account = MemoryAccount::new(&memory);
    assert_eq!(used(&memory), BASE);
    let within = account.force(BASE, Kind::Input);
    assert_eq!((used(&memory), account.held()), (BASE, BASE));
    let mut charge = account.force(5 * MIB, Kind::Work);
    charge.join(account.try_take(MIB, Kind::Input).unwrap());
    assert_eq!((used(&memory), account.work.get()), (BASE + 6 * MIB, 6 * MIB));
    charge.shrink(2 * MIB);
    let part = charge.split(MIB);
    assert_eq!((used(&memory), charge.bytes(), part.bytes()), (BASE + 2 * MIB, MIB, MIB));
    drop((charge, within, part));
    assert_eq!((used(&memory), account.held()), (BASE, 0));
    account.add_to_base(MIB);
    assert_eq!(used(&memory), BASE + MIB);
    drop(account);
    assert_eq!(used(&memory), 0);
}

#[test]
fn greedy_connections_leave_room_for_others() {
    let memory = memory();
    let greedy: Vec<_> = (0..500).map(|_| MemoryAccount::new(&memory)).collect();
    let (held, mut waiting): (Vec<_>, Vec<_>) =
        greedy.iter().map(|account| take(account, 32 * MIB)).partition(Result::is_ok);
    assert_eq!(held.len(), 6, "five of the budget, one of the reserve");
    let usual = MemoryAccount::new(&memory);
    let charge = take(&usual, 4 * MIB - BASE).ok().expect("a usual request does not wait for greedy clients");
    let small = MemoryAccount::new(&memory);
    assert!(take(&small, BASE).is_ok(), "a charge within the base never waits");
    assert!(used(&memory) + RESERVE <= 256 * MIB);
    // Other connections with larger claims precede the greedy ones.
    drop(charge);
    drop(held);
    let granted: Vec<_> = waiting.iter_mut().filter_map(|claim| poll(claim.as_mut().err()?)).collect();
    assert_eq!(granted.len(), 6, "all that fit are granted before they are polled");
    drop((waiting, granted));
    drop((greedy, usual, small));
    assert_eq!((used(&memory), memory.has_waiting_claims()), (0, false));
}

#[test]
fn many_claims_of_one_connection_do_not_precede_a_single_one() {
    let memory = memory();
    let account = || MemoryAccount::new(&memory);
    let (full, greedy, usual) = (account(), account(), account());
    let mut full = full.force(256 * MIB, Kind::Work);
    // The first of them has the reserve.
    let mut many: Vec<_> = (0..20).map(|_| take(&greedy, MIB)).collect();
    let mut single = take(&usual, 2 * MIB).err().expect("there is no room");
    full.shrink(256 * MIB - RESERVE - 5 * MIB);
    let granted = many.iter_mut().filter_map(|claim| poll(claim.as_mut().err()?)).count();
    assert_eq!((granted, poll(&mut single).is_some()), (3, true));
}

#[test]
fn a_party_leaves_memory_to_others_whatever_the_number_of_its_connections() {
    let memory = memory();
    let account = |what| joined(&memory, what);
    let greedy: Vec<_> = (0..1000).map(|_| account("slow")).collect();
    let claims = || greedy.iter().map(|account| take(account, MIB)).partition::<Vec<_>, _>(Result::is_ok);
    let (held, waiting) = claims();
    let of = |what| memory.party(what).held();
    let most = memory.total / PARTY.1 * PARTY.0;
    assert!((most - MIB..=most).contains(&of("slow")), "{} bytes", of("slow"));
    // Its claims wait before those of others, and do not hold them up.
    let other = account("other");
    let charges: Vec<_> = (0..8).map(|_| take(&other, 2 * MIB)).collect();
    assert!(charges.iter().all(Result::is_ok) && !memory.is_full());
    assert_eq!(of("other"), 16 * MIB - BASE);
    drop((held, waiting, charges));
    assert_eq!([of("slow"), of("other")], [0, 0]);
    let (again, waiting) = claims();
    assert!(again.len() * MIB > memory.total / 2);
    drop((again, waiting));
    assert!(!memory.has_waiting_claims());
}

#[test]
fn the_smallest_holder_is_granted_first_and_the_longest_waiter_gets_the_reserve() {
    let memory = memory();
    let account = || MemoryAccount::new(&memory);
    let mut all = account().force(300 * MIB, Kind::Work);
    let of_reserve =
        take(&account(), 20 * MIB).ok().expect("the claim that has waited longest gets the reserve");
    assert!(of_reserve.account.has_reserve());
    let [mut large, mut small] = [10, 1].map(|n| take(&account(), n * MIB).err().unwrap());
    // There is room for one of them.
    all.shrink(memory.total - 2 * MIB);
    assert!(poll(&mut large).is_none());
    let small = poll(&mut small).expect("the smaller claim is granted first");
    assert!(!small.account.has_reserve());
    drop(of_reserve);
    assert!(poll(&mut large).unwrap().account.has_reserve());
}

#[test]
fn connections_that_hold_and_wait_do_not_block_each_other() {
    let memory = memory();
    // Each connection holds a part of the memory that it needs; together they hold the whole budget.
    let parts: Vec<_> = (0..200)
        .map(|_| MemoryAccount::new(&memory))
        .map(|account| (account.force(2 * MIB, Kind::Input), account.claim(8 * MIB, Kind::Input)))
        .collect();
    let mut waiting: Vec<_> = parts.into_iter().map(|(part, claim)| (part, claim, None)).collect();
    // Claims that are granted finish, and return their memory.
    while !waiting.is_empty() {
        waiting.iter_mut().for_each(|(_, claim, charge)| *charge = poll(claim));
        let before = waiting.len();
        waiting.retain(|(_, _, charge)| charge.is_none());
        assert!(waiting.len() < before, "{before} connections block each other");
    }
    assert_eq!(used(&memory), 0);
}

#[test]
fn a_cancelled_claim_leaves_no_trace() {
    let memory = memory();
    let holder = MemoryAccount::new(&memory);
    let all = holder.force(300 * MIB, Kind::Work);
    let accounts = [(); 4].map(|()| MemoryAccount::new(&memory));
    let reserve = take(&accounts[3], MIB).ok().unwrap();
    let [first, second, mut third] = [0, 1, 2].map(|n| take(&accounts[n], 20 * MIB).err().unwrap());
    // One claim waits, and one is granted the reserve.
    drop(first);
    drop(reserve);
    drop(second);
    let charge = poll(&mut third).expect("the reserve was returned");
    drop((charge, third, all));
    assert_eq!(used(&memory), 5 * BASE);
    assert!(!memory.has_waiting_claims() && memory.queue.lock().grants() == 0);
}

#[tokio::test]
async fn jobs_of_a_connection_stay_within_its_share_except_for_a_single_larger_one() {
    let memory = memory();
    let account = MemoryAccount::new(&memory);
    let big = account.take_shared(33 * MIB).await;
    assert!(account.is_spent());
    let next = account.take_shared(MIB);
    tokio::pin!(next);
    assert!(
        is_pending(next.as_mut()).await && !memory.has_waiting_claims(),
        "the budget is not claimed before the share has room"
    );
    drop(big);
    let next = next.await;
    assert_eq!((account.held(), account.share.available_permits()), (MIB, SHARE - MIB));
    // A cancelled wait returns its share.
    let _all = MemoryAccount::new(&memory).force(300 * MIB, Kind::Work);
    let _reserve = take(&MemoryAccount::new(&memory), MIB).ok().unwrap();
    {
        let waits = account.take_shared(5 * MIB);
        tokio::pin!(waits);
        assert!(is_pending(waits.as_mut()).await && memory.has_waiting_claims());
    }
    drop(next);
    assert_eq!((account.share.available_permits(), memory.has_waiting_claims()), (SHARE, false));
}

#[tokio::test]
async fn threads_that_take_and_return_memory_at_random_all_finish() {
    let memory = memory();
    let threads: Vec<_> = (0..4)
        .map(|seed| {
            let memory = memory.clone();
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
                LocalSet::new().block_on(&runtime, async move {
                    let tasks: Vec<_> = (0..50_usize)
                        .map(|n| {
                            // Most are of one party, which uses up its part.
                            let account = joined(&memory, if n % 5 > 0 { "disk" } else { "other" });
                            tokio::task::spawn_local(async move {
                                for round in 0..20 {
                                    let bytes = (n * 7919 + round * 104_729 + seed * 31) % (30 * MIB);
                                    let held = account.force(bytes / 100, Kind::Input);
                                    let charge = account.take_shared(bytes).await;
                                    tokio::task::yield_now().await;
                                    drop((charge, held));
                                }
                            })
                        })
                        .collect();
                    for task in tasks {
                        task.await.unwrap();
                    }
                });
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!((used(&memory), memory.has_waiting_claims()), (0, false));
    assert!(!memory.queue.lock().reserve_is_taken);
}

/// Polls a stall until the client must be cut; its account holds `bytes`.
async fn stalls(memory: &Arc<Memory>, bytes: usize) {
    let account = MemoryAccount::new(memory);
    let _charge = account.force(bytes, Kind::Work);
    let mut stall = Stall::new(&account);
    std::future::poll_fn(|cx| if stall.poll(cx, true) { Poll::Ready(()) } else { Poll::Pending }).await;
}

#[tokio::test]
async fn stalled_clients_are_cut_only_while_others_wait() {
    let memory = memory();
    let local = LocalSet::new();
    let (stalled, idle) = (memory.clone(), memory.clone());
    let stalled = local.spawn_local(async move { stalls(&stalled, 250 * MIB).await });
    let idle = local.spawn_local(async move { stalls(&idle, BASE).await });
    local.run_until(tokio::time::sleep(Duration::from_millis(200))).await;
    assert!(!stalled.is_finished(), "no other client waits for memory");
    let newcomer = MemoryAccount::new(&memory);
    let reserve = take(&MemoryAccount::new(&memory), MIB).ok().unwrap();
    assert!(reserve.account.has_reserve());
    let charge = local.run_until(newcomer.take_shared(20 * MIB)).await;
    assert!(stalled.is_finished() && !idle.is_finished(), "a client that holds only its base is not cut");
    drop(charge);
}

#[tokio::test]
async fn a_client_that_makes_progress_is_not_stalled() {
    let memory = memory();
    let account = MemoryAccount::new(&memory);
    let _charge = account.force(256 * MIB, Kind::Work);
    let _reserve = take(&MemoryAccount::new(&memory), MIB).ok().unwrap();
    let _waits = take(&MemoryAccount::new(&memory), MIB).err().unwrap();
    let mut stall = Stall::new(&account);
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(200) {
        stall.moved(256 * MIB / PROGRESS_PART);
        let cut = std::future::poll_fn(|cx| Poll::Ready(stall.poll(cx, true))).await;
        assert!(!cut);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let cut = std::future::poll_fn(|cx| if stall.poll(cx, true) { Poll::Ready(()) } else { Poll::Pending });
    tokio::time::timeout(Duration::from_secs(20), cut).await.unwrap();
}

#[test]
fn a_client_is_not_cut_because_another_party_has_used_up_its_part() {
    let memory = memory();
    let account = |what| joined(&memory, what);
    let (greedy, another) = (account("slow"), account("slow"));
    let _all = greedy.force(memory.total / PARTY.1 * PARTY.0, Kind::Work);
    let _reserve = take(&account("third"), 300 * MIB).ok().expect("the reserve");
    let _waits = take(&another, MIB).err().expect("its party has used up its part");
    let other = account("other");
    let _held = other.force(MIB, Kind::Work);
    assert!(greedy.is_waited_for() && !other.is_waited_for());
    let _rest = other.force(memory.total, Kind::Work);
    let _claim = take(&account("third"), MIB).err().expect("there is no room");
    assert!(other.is_waited_for());
}
