//! Clients whose owners are lost.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use forebay_gateway::nbd::{End, Gateway, Settings};
use forebay_wire::nbd::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::task::JoinHandle;

use super::driver::{Client, Plan, SECTOR, Signs, drive, reply_part, request_bytes};
use super::fake::{Fake, SIZE};
use super::random::Random;

/// A client's end of a connection that a gateway serves, and the result of serving it.
fn connect(
    fake: &Arc<Fake>,
    settings: Settings,
) -> (DuplexStream, Arc<Gateway>, JoinHandle<Result<(), End>>) {
    let gateway = Gateway::new("node", fake.clone(), settings);
    let (near, far) = tokio::io::duplex(64 << 10);
    let serving = gateway.clone();
    (near, gateway, tokio::spawn(async move { serving.serve(far, &Signs::default(), "client").await }))
}

async fn open(fake: &Arc<Fake>) -> (Client<DuplexStream>, Arc<Gateway>, JoinHandle<Result<(), End>>) {
    let (stream, gateway, served) = connect(fake, Settings::default());
    let mut client = Client::greet(stream).await;
    client.go("a", &[]).await.unwrap();
    (client, gateway, served)
}

fn plan(seed: u64) -> Plan {
    Plan {
        seed,
        export: "a",
        requests: 300,
        depth: 64,
        sectors: 64,
        longest: 24,
        structured: seed.is_multiple_of(2),
    }
}

/// Runs a client while connections to the owner break. Returns how often it was connected again, and why its
/// history is not possible.
async fn run(seed: u64, prepare: impl FnOnce(&Fake)) -> (u64, u64, Option<String>) {
    let fake = Fake::new(seed);
    prepare(&fake);
    let (stream, gateway, served) = connect(&fake, Settings::default());
    let driver = tokio::spawn(drive(stream, plan(seed)));
    let end = served.await.unwrap();
    assert!(end.is_ok(), "seed {seed}: {end:?}");
    let report = driver.await.unwrap();
    assert_eq!((report.size, report.errors), (SIZE, 0));
    assert_ne!(report.flags & FLAG_HAS_FLAGS, 0);
    let counters = gateway.counters();
    (counters.reconnected.load(Relaxed), counters.repeated.load(Relaxed), report.violation)
}

/// Seeds of a test. `FOREBAY_GATEWAY_SEEDS=FROM..TO` chooses others.
fn seeds(count: u64) -> std::ops::Range<u64> {
    let Ok(range) = std::env::var("FOREBAY_GATEWAY_SEEDS") else { return 0..count };
    let (from, to) = range.split_once("..").unwrap();
    from.parse().unwrap()..to.parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_client_does_not_notice_that_connections_to_the_owner_break() {
    let (mut reconnected, mut repeated) = (0, 0);
    for seed in seeds(150) {
        let (times, requests, violation) = run(seed, |fake| {
            fake.faults.cut.store(30_000 + Random(seed).below(60_000), Relaxed);
            fake.faults.refuse.store([0, 2, 3, 5][seed as usize % 4], Relaxed);
            fake.faults.stop.store((seed % 3) * 50, Relaxed);
        })
        .await;
        assert_eq!(violation, None, "seed {seed}");
        (reconnected, repeated) = (reconnected + times, repeated + requests);
    }
    assert!(reconnected > 150 && repeated > 1000, "{reconnected} times, {repeated} requests");
}

#[tokio::test(start_paused = true)]
async fn the_check_finds_requests_of_earlier_connections_that_take_effect_late() {
    let mut found = 0;
    for seed in 0..60 {
        let (.., violation) = run(seed, |fake| {
            fake.faults.cut.store(20_000, Relaxed);
            fake.faults.is_unfenced.store(true, Relaxed);
        })
        .await;
        found += usize::from(violation.is_some());
    }
    assert!(found > 0);
}

#[tokio::test(start_paused = true)]
async fn each_connection_to_an_owner_has_a_higher_generation() {
    let fake = Fake::new(1);
    fake.faults.cut.store(10_000, Relaxed);
    let (stream, _, served) = connect(&fake, Settings::default());
    drive(stream, plan(2)).await;
    served.await.unwrap().unwrap();
    let clients = fake.disk("a").clients.lock().unwrap().clone();
    let opened = clients.iter().position(|(_, generation)| *generation > 1).unwrap() - 1;
    assert!(clients[opened..].iter().all(|(id, _)| *id == clients[opened].0), "{clients:?}");
    assert!(clients[opened..].windows(2).all(|pair| pair[0].1 < pair[1].1), "{clients:?}");
    assert_eq!(fake.disk("a").disconnected.load(Relaxed), 1, "the owner learns that the client leaves");
}

/// Breaks the connection after a change of the disk, and returns how the client's connection ends.
async fn after(change: impl FnOnce(&Fake)) -> Result<(), End> {
    let fake = Fake::new(3);
    let (mut client, _gateway, served) = open(&fake).await;
    assert_eq!(client.request(CMD_WRITE, 0, 512, &[7; 512]).await, (0, vec![]));
    change(&fake);
    fake.faults.stop.store(1, Relaxed);
    client.stream.write_all(&request_bytes(0, CMD_READ, 5, 0, 512)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(10)).await;
    fake.faults.stop.store(0, Relaxed);
    let answered = client.stream.read_u32().await;
    match answered {
        Ok(magic) => {
            assert_eq!(magic, SIMPLE_REPLY_MAGIC);
            drop(client);
            served.await.unwrap()
        }
        Err(_) => served.await.unwrap(),
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_is_disconnected_if_the_export_is_not_the_same_after_an_outage() {
    after(|_| {}).await.unwrap();
    after(|fake| fake.disk("a").size.store(SIZE + 512, Relaxed)).await.unwrap();
    let smaller = after(|fake| fake.disk("a").size.store(SIZE - 512, Relaxed)).await;
    assert!(matches!(smaller, Err(End::Changed { .. })), "{smaller:?}");
    let other = after(|fake| fake.disk("a").info.lock().unwrap().uuid = [9; 16]).await;
    assert!(matches!(other, Err(End::Changed { .. })), "{other:?}");
    let refused = (REP_ERR_POLICY, "run 'forebay volume resume a'".to_owned());
    let lost = after(|fake| *fake.disk("a").refused.lock().unwrap() = Some(refused)).await.unwrap_err();
    assert!(lost.to_string().contains("volume resume"), "{lost}");
    // The contents were replaced by the same owner, or by another one.
    for (opening, replacements, is_changed) in [(1, 4, true), (2, 1, true), (2, 3, true), (2, 0, false)] {
        let end = after(|fake| {
            let mut info = fake.disk("a").info.lock().unwrap();
            (info.opening, info.replacements) = (opening, replacements);
        });
        let end = end.await;
        assert_eq!(matches!(end, Err(End::Changed { .. })), is_changed, "{opening} {replacements}: {end:?}");
    }
    // The memory of another server matters only if answers are not durable.
    after(|fake| fake.disk("a").info.lock().unwrap().memory = 2).await.unwrap();
    let memory = after(|fake| {
        let mut info = fake.disk("a").info.lock().unwrap();
        (info.memory, info.is_durable) = (2, false);
    });
    assert!(matches!(memory.await, Err(End::Changed { .. })));
}

#[tokio::test(start_paused = true)]
async fn an_outage_ends_after_a_time_limit() {
    let refused = (REP_ERR_SHUTDOWN, "try again".to_owned());
    let begin = tokio::time::Instant::now();
    let end = after(|fake| *fake.disk("a").refused.lock().unwrap() = Some(refused)).await;
    assert!(matches!(end, Err(End::Outage { .. })), "{end:?}");
    assert!((119..=121).contains(&begin.elapsed().as_secs()), "{:?}", begin.elapsed());
}

/// A client that sends a write of 7s, or a part of it, of which the owner executes nothing before it is lost.
/// Returns the disk's first byte 10 s later, and whether the client was asked for a sign.
async fn moved(
    sent: usize,
    is_silent: bool,
    change: impl FnOnce(&mut RelayInfo),
) -> (u8, bool, Option<Result<(), End>>) {
    let fake = Fake::new(4);
    let signs = Arc::new(Signs::default());
    signs.is_silent.store(is_silent, Relaxed);
    let gateway = Gateway::new("node", fake.clone(), Settings::default());
    let (near, far) = tokio::io::duplex(64 << 10);
    let presence = signs.clone();
    let mut served = tokio::spawn(async move { gateway.serve(far, &*presence, "client").await });
    let mut client = Client::greet(near).await;
    client.go("a", &[]).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(client.request(CMD_FLUSH, 0, 0, &[]).await.0, 0);
    tokio::time::sleep(Duration::from_secs(2)).await;
    fake.faults.stop.store(1, Relaxed);
    let flush = request_bytes(0, CMD_FLUSH, 4, 0, 0);
    let write = [&request_bytes(0, CMD_WRITE, 5, 0, 512)[..], &[7; 512]].concat();
    client.stream.write_all(&[&flush, &write[..sent]].concat()).await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    change(&mut fake.disk("a").info.lock().unwrap());
    fake.faults.stop.store(0, Relaxed);
    // A client that is connected only later is not told from a client whose packets are late.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let _ = client.stream.write_all(&write[sent..]).await;
    let end = tokio::time::timeout(Duration::from_secs(6), &mut served).await.ok().map(Result::unwrap);
    assert!(!signs.is_asked.load(Relaxed));
    assert_eq!(fake.disk("a").ages_ms.lock().unwrap().last().unwrap() / 1000, 62);
    let first = fake.disk("a").contents.lock().unwrap()[0];
    (first, signs.was_asked.load(Relaxed), end)
}

#[tokio::test(start_paused = true)]
async fn a_client_that_may_have_moved_proves_that_it_is_connected_before_its_changes_are_repeated() {
    let (all, half, header) = (REQUEST_HEADER + 512, REQUEST_HEADER + 100, REQUEST_HEADER - 1);
    for sent in [all, half, header] {
        let newer = |info: &mut RelayInfo| info.newer_client_ms = Some(0);
        let reopened = |info: &mut RelayInfo| (info.opening, info.replacements) = (2, 0);
        for change in [&newer as &dyn Fn(&mut RelayInfo), &reopened] {
            let (first, was_asked, end) = moved(sent, false, change).await;
            assert!(first == 7 && was_asked && end.is_none(), "{sent}: {first} {was_asked} {end:?}");
            let (first, was_asked, end) = moved(sent, true, change).await;
            assert!(first == 0 && was_asked, "{sent}: {first} {was_asked}");
            assert!(matches!(end, Some(Err(End::Moved { .. }))), "{sent}: {end:?}");
        }
        // The other client opened the disk before the owner answered last.
        let older = |info: &mut RelayInfo| info.newer_client_ms = Some(3000);
        let (first, was_asked, end) = moved(sent, true, older).await;
        assert!(first == 7 && !was_asked && end.is_none(), "{sent}: {first} {was_asked} {end:?}");
    }
    // The client has no changes.
    let reopened = |info: &mut RelayInfo| (info.opening, info.replacements) = (2, 0);
    let (_, was_asked, end) = moved(0, true, reopened).await;
    assert!(!was_asked && end.is_none(), "{was_asked} {end:?}");
}

#[tokio::test(start_paused = true)]
async fn an_administrator_can_disconnect_a_client() {
    let fake = Fake::new(5);
    let (mut client, _gateway, served) = open(&fake).await;
    assert_eq!(client.request(CMD_FLUSH, 0, 0, &[]).await.0, 0);
    fake.dismiss.send_replace(true);
    assert!(client.stream.read_u8().await.is_err());
    assert!(matches!(served.await.unwrap(), Err(End::Disconnected)));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_only_closes_its_sending_side_gets_its_replies() {
    let fake = Fake::new(6);
    let (mut client, _gateway, served) = open(&fake).await;
    for n in 0..20 {
        client.stream.write_all(&request_bytes(0, CMD_READ, n, n * SECTOR, 512)).await.unwrap();
    }
    client.stream.shutdown().await.unwrap();
    for _ in 0..20 {
        reply_part(&mut client.stream, false, |_| (CMD_READ, 0, 512)).await.unwrap();
    }
    assert!(client.stream.read_u8().await.is_err());
    served.await.unwrap().unwrap();
    assert_eq!(fake.disk("a").disconnected.load(Relaxed), 0);
}

/// A client that disconnects in order need not wait for its replies, also if its owner is being replaced.
#[tokio::test(start_paused = true)]
async fn requests_before_a_disconnect_are_executed_after_an_outage() {
    let fake = Fake::new(10);
    let (mut client, _gateway, served) = open(&fake).await;
    // The client does not receive the whole reply.
    client.stream.write_all(&request_bytes(0, CMD_READ, 1, 0, 200 << 10)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    *fake.disk("a").refused.lock().unwrap() = Some((REP_ERR_SHUTDOWN, "try again".to_owned()));
    fake.faults.stop.store(1, Relaxed);
    let disconnect = request_bytes(0, CMD_DISC, 0, 0, 0);
    let write = [&request_bytes(0, CMD_WRITE, 5, 0, 512)[..], &[7; 512], &disconnect].concat();
    client.stream.write_all(&write).await.unwrap();
    drop(client);
    tokio::time::sleep(Duration::from_secs(3)).await;
    fake.faults.stop.store(0, Relaxed);
    *fake.disk("a").refused.lock().unwrap() = None;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(fake.disk("a").contents.lock().unwrap()[0], 7);
    served.await.unwrap().unwrap();
}

/// The owner closes nothing without being asked, and has received all requests.
#[tokio::test(start_paused = true)]
async fn the_stream_to_the_owner_ends_soon_after_a_client_that_is_gone() {
    let fake = Fake::new(11);
    fake.faults.is_silent.store(true, Relaxed);
    let (mut client, _gateway, served) = open(&fake).await;
    let write = [&request_bytes(0, CMD_WRITE, 5, 0, 512)[..], &[7; 512]].concat();
    client.stream.write_all(&write).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    drop(client);
    let served = tokio::time::timeout(Duration::from_millis(150), served).await;
    served.expect("the stream to the owner is still open").unwrap().unwrap();
}

/// A client that sends requests and does not receive replies holds a bounded amount of memory.
#[tokio::test(start_paused = true)]
async fn requests_of_a_client_that_does_not_receive_are_bounded() {
    let fake = Fake::new(7);
    fake.faults.is_silent.store(true, Relaxed);
    // Buffers between the client and the gateway, and input of the gateway.
    let before = (64 << 10) + (32 << 10);
    for (kind, len) in [(CMD_WRITE, 256 << 10), (CMD_READ, 1 << 20), (CMD_FLUSH, 0), (CMD_WRITE, 0)] {
        let (mut client, ..) = open(&fake).await;
        let payload = if kind == CMD_WRITE { vec![1; len as usize] } else { Vec::new() };
        let message = [request_bytes(0, kind, 1, 0, len), payload].concat();
        let mut accepted = 0_usize;
        let accept = async {
            loop {
                client.stream.write_all(&message).await.unwrap();
                accepted += 1;
            }
        };
        assert!(tokio::time::timeout(Duration::from_secs(5), accept).await.is_err());
        let served = accepted - accepted.min(before / message.len());
        assert!(served <= 1024 && served * len as usize <= 33 << 20, "{accepted} requests of {len} bytes");
        assert!(served >= 16, "{accepted} requests of {len} bytes");
    }
}

/// The memory of all connections together is bounded, and clients that hold it are disconnected if they make
/// no progress while others wait.
#[tokio::test(start_paused = true)]
async fn clients_that_make_no_progress_do_not_keep_the_memory_of_others() {
    let fake = Fake::new(8);
    let gateway = Gateway::new("node", fake.clone(), Settings { memory: 0, ..Settings::default() });
    let connect = async || {
        let (near, far) = tokio::io::duplex(64 << 10);
        let serving = gateway.clone();
        let served = tokio::spawn(async move { serving.serve(far, &Signs::default(), "client").await });
        let mut client = Client::greet(near).await;
        client.go("a", &[]).await.unwrap();
        (client, served)
    };
    let mut hostile = Vec::new();
    // Some send a part of a long write, and others do not receive the reply to a long read.
    for n in 0..8 {
        let (mut client, served) = connect().await;
        if n % 2 == 0 {
            client.stream.write_all(&request_bytes(0, CMD_WRITE, 1, 0, 24 << 20)).await.unwrap();
            client.stream.write_all(&[1; 1000]).await.unwrap();
        } else {
            for cookie in 0..64 {
                client.stream.write_all(&request_bytes(0, CMD_READ, cookie, 0, 1 << 20)).await.unwrap();
            }
        }
        hostile.push((client, served));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(gateway.held_memory() <= 80 << 20, "{}", gateway.held_memory());
    }
    // Small requests need no shared memory.
    let begin = tokio::time::Instant::now();
    let (mut client, served) = connect().await;
    assert_eq!(client.request(CMD_WRITE, 0, 4096, &[7; 4096]).await.0, 0);
    assert_eq!(client.request(CMD_READ, 0, 4096, &[]).await, (0, vec![7; 4096]));
    assert!(begin.elapsed() < Duration::from_secs(1));
    // A long request waits until the others are disconnected.
    assert_eq!(client.request(CMD_WRITE, 0, 1 << 20, &vec![7; 1 << 20]).await.0, 0);
    assert!(begin.elapsed() < Duration::from_secs(240), "{:?}", begin.elapsed());
    let mut stalled = 0;
    for (client, served) in hostile {
        drop(client);
        stalled += usize::from(matches!(served.await.unwrap(), Err(End::Stalled(_))));
    }
    assert!(stalled > 0);
    drop(client);
    served.await.unwrap().unwrap();
    assert_eq!(gateway.held_memory(), 0);
}

/// Clients that share the least memory, with requests of all lengths, all finish.
#[tokio::test(start_paused = true)]
async fn clients_that_share_little_memory_all_finish() {
    let fake = Fake::new(9);
    fake.faults.cut.store(16 << 20, Relaxed);
    let gateway = Gateway::new("node", fake.clone(), Settings { memory: 0, ..Settings::default() });
    let clients: Vec<_> = (0..12)
        .map(|seed| {
            let (near, far) = tokio::io::duplex(64 << 10);
            let serving = gateway.clone();
            let served = tokio::spawn(async move { serving.serve(far, &Signs::default(), "client").await });
            let export = if seed % 2 == 0 { "a" } else { "b" };
            let plan = Plan { export, sectors: 2048, longest: 1024, requests: 100, ..plan(seed) };
            (tokio::spawn(drive(near, plan)), served)
        })
        .collect();
    for (driver, served) in clients {
        served.await.unwrap().unwrap();
        driver.await.unwrap();
    }
    assert_eq!(gateway.held_memory(), 0);
}
