//! Isolation between guests, in virtual time: with concurrent load of any kind, a guest's flush and read have
//! a bounded latency. The store executes one operation at a time, so a guest waits for its neighbours' share
//! of it, but not longer.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use crate::one_disk::{BLOCK, MIB, World, Writer};
use forebay_engine::{CloneRequest, Error, Host, SyncMode};
use forebay_sim::{Rng, SimHost};

/// Twice the write buffer (one group is written while the next one is collected), and the operations in
/// progress of the cleaner, a checkpoint or an overflow: about 6 MiB at 16 MiB/s.
const FLUSH_BOUND: Duration = Duration::from_millis(500);
/// One piece of a group, of a relocation, or of another guest's read.
const READ_BOUND: Duration = Duration::from_millis(100);
/// Duration of the neighbours' load.
const TIME: Duration = Duration::from_secs(8);
/// Delay before each request of a neighbour.
const PACE: Duration = Duration::from_micros(100);

/// Runs a guest that writes, flushes and reads concurrently with neighbours. `prepare` prepares the
/// neighbours, and returns the function that runs them until a given time.
fn check_latency<N: FnOnce(&mut World, Duration)>(name: &str, prepare: impl FnOnce(&mut World) -> N) {
    let mut world = World::new(3);
    // Times are measured here: no task is late.
    world.exec.hasty_clock = 0;
    let mut guest = world.volume(9, 4 * MIB / BLOCK);
    let neighbours = prepare(&mut world);
    let until = world.exec.now() + TIME;
    neighbours(&mut world, until);
    let slowest = Rc::new((Cell::new(Duration::ZERO), Cell::new(Duration::ZERO)));
    let (host, seen) = (world.exec.host(), slowest.clone());
    let guest = world.long(async move {
        let mut page = vec![0; BLOCK as usize];
        while host.now() < until {
            let block = guest.rng.below(1000);
            guest.write(block, 1).await.expect("there is room");
            let begin = host.now();
            guest.disk.flush().await.expect("there is room");
            seen.0.set(seen.0.get().max(host.now() - begin));
            let block = guest.rng.below(1000);
            let begin = host.now();
            guest.disk.read(block * BLOCK, &mut page).await.expect("a sound store");
            seen.1.set(seen.1.get().max(host.now() - begin));
            host.sleep(Duration::from_millis(20)).await;
        }
        // The neighbours' operations in progress end.
        host.sleep(Duration::from_secs(3)).await;
        guest
    });
    world.long(async move { guest.verify().await });
    let (flush, read) = (slowest.0.get(), slowest.1.get());
    println!("{name}: slowest flush {flush:?}, slowest read {read:?}");
    assert!(!flush.is_zero() && flush < FLUSH_BOUND, "{name}: a flush took {flush:?}");
    assert!(read < READ_BOUND, "{name}: a read took {read:?}");
    world.check();
}

/// Guests that write at random to separate volumes.
fn writers(world: &mut World, count: u64) -> Vec<Writer> {
    (0..count).map(|n| world.volume(n, 8 * MIB / BLOCK)).collect()
}

fn write(world: &mut World, writers: Vec<Writer>, until: Duration) {
    for mut writer in writers {
        world.exec.spawn("writer", async move { writer.overwrite(until).await.expect("there is room") });
    }
}

async fn arrive(host: &SimHost) {
    host.sleep(PACE).await;
}

#[test]
fn latency_is_bounded_with_guests_that_write() {
    check_latency("writers", |world| {
        let writers = writers(world, 3);
        |world: &mut World, until| write(world, writers, until)
    });
}

/// Each write needs a map node and a base that are not in memory.
#[test]
fn latency_is_bounded_with_scattered_partial_writes() {
    const BLOCKS: u64 = 48 * MIB / BLOCK;
    check_latency("scattered writes", |world| {
        let scattered = world.volume(0, BLOCKS);
        move |world: &mut World, until| {
            for seed in 0..8 {
                let (disk, host) = (scattered.disk.clone(), world.exec.host());
                world.exec.spawn("scattered", async move {
                    let mut rng = Rng::new(seed);
                    while host.now() < until {
                        arrive(&host).await;
                        let at = rng.below(BLOCKS) * BLOCK + 512;
                        disk.write(at, &[seed as u8; 512], false).await.expect("there is room");
                    }
                });
            }
        }
    });
}

#[test]
fn latency_is_bounded_with_discards_and_zeroes() {
    const SIZE: u64 = 4 << 30;
    check_latency("discards", |world| {
        let pool = world.pool.clone();
        let disk = world.long(async move {
            pool.create_volume("wide", SIZE, SyncMode::Flush, 0).await.expect("room for a name");
            pool.attach("wide").expect("it is there")
        });
        move |world: &mut World, until| {
            let host = world.exec.host();
            world.exec.spawn("discards", async move {
                let mut rng = Rng::new(1);
                while host.now() < until {
                    arrive(&host).await;
                    let at = rng.below(SIZE / MIB) * MIB;
                    disk.discard(at, MIB / 2, false).await.expect("it needs no room");
                    disk.write_zeroes(at, MIB / 4, rng.percent(50), false).await.expect("it needs little");
                }
            });
        }
    });
}

#[test]
fn latency_is_bounded_with_snapshots_and_the_cleaner() {
    check_latency("snapshots and the cleaner", |world| {
        let writers = writers(world, 2);
        |world: &mut World, until| {
            write(world, writers, until);
            world.snapshots(2, until, &Rc::default());
            let (pool, host) = (world.pool.clone(), world.exec.host());
            world.exec.spawn("cleaner", async move {
                while host.now() < until {
                    match pool.reclaim(&|_| ()).await {
                        Ok(_) | Err(Error::Closed) => {}
                        Err(e) => panic!("{e}"),
                    }
                    host.sleep(Duration::from_millis(200)).await;
                }
            });
        }
    });
}

#[test]
fn latency_is_bounded_with_desktops_that_overflow() {
    check_latency("desktops", |world| {
        let pool = world.pool.clone();
        let desktops = world.long(async move {
            let import = pool.begin_import("golden", 16 * MIB, 0).await.expect("room for a name");
            pool.finish_import(import).await.expect("room for an image");
            let request =
                |n| CloneRequest { name: format!("d{n}"), write_cache: MIB, ..CloneRequest::default() };
            pool.clone_disk("golden", &[request(0), request(1)]).await.expect("room for names");
            [0, 1].map(|n| pool.attach(&format!("d{n}")).expect("it is there"))
        });
        |world: &mut World, until| {
            for (n, disk) in (0..).zip(desktops) {
                let host = world.exec.host();
                world.exec.spawn("desktop", async move {
                    let mut rng = Rng::new(n);
                    let mut data = vec![0; 16 * BLOCK as usize];
                    while host.now() < until {
                        arrive(&host).await;
                        rng.fill(&mut data);
                        let at = rng.below(16 * MIB / BLOCK - 16) * BLOCK;
                        disk.write(at, &data, false).await.expect("there is room");
                    }
                });
            }
        }
    });
}
