//! Two hosts on one volume, and concurrent snapshots.
//!
//! Host A reads sequential data in 4 KiB commands at depth 8. Concurrently, either nothing happens; or host B
//! changes the volume's metadata, under RESERVE or under COMPARE AND WRITE; or snapshots of other volumes of
//! the pool are created and deleted. The benchmark compares the throughput of A.
//!
//! A host that meets a reservation retries after 0.5 to 1.5 ms. (Hosts of that time increased the delay at
//! each retry, and were slower still.)
//!
//! In one set of scenes, A requests a fixed rate far below the server's limit, and the concurrent load is not
//! limited: any loss of A is then due to locks. In the other set, A is not limited either. A and the server
//! then use all CPU time, and every concurrent load, with or without locks, takes some of it from A; so B
//! also runs at a fixed rate, and once without a lock.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::control::Control;
use super::servers::{BASE, Ours, SHARED};
use super::{Pace, say};
use crate::bench::rounds::{alternate, generate, sound};
use crate::error::{Error, Result};
use crate::iscsi::{Address, FIRST_RESERVED, IscsiError};
use crate::load::{self, Host, Lock, METADATA_BYTES, Rate, Spec, Stop};
use crate::report::{Bound, Row, Unit, median};

/// Queue depth of A.
const DEPTH: u16 = 8;
/// Delay before a host retries after a reservation conflict.
const BACKOFF: Duration = Duration::from_millis(1);
/// Reads per second that A requests in scenes with a rate.
const READS: f64 = 16_000.0;
/// Metadata updates per second in scenes with a rate: the updates of a thin disk that grows by 50 MiB/s in
/// steps of 1 MiB.
const UPDATES: f64 = 50.0;
/// Snapshots created and deleted per second in scenes with a rate: a backup of many volumes.
const SNAPSHOTS: f64 = 20.0;
/// Number of volumes whose snapshots are created.
const VOLUMES: usize = 10;
/// Initiator number of host B.
const HOST_B: u16 = FIRST_RESERVED;

/// The load concurrent with A: at most this many operations per second, or unlimited.
#[derive(Debug, Clone, Copy, PartialEq)]
enum OtherLoad {
    Nothing,
    /// Updates under a lock.
    Updates(Lock, Option<f64>),
    /// Snapshots created and deleted.
    Snapshots(Option<f64>),
}

impl OtherLoad {
    fn name(self) -> String {
        let (what, rate) = match self {
            OtherLoad::Nothing => return "alone".to_owned(),
            OtherLoad::Updates(Lock::None, rate) => ("updates without lock", rate),
            OtherLoad::Updates(Lock::Reserve, rate) => ("RESERVE", rate),
            OtherLoad::Updates(Lock::CompareAndWrite, rate) => ("COMPARE AND WRITE", rate),
            OtherLoad::Snapshots(rate) => ("snapshots", rate),
        };
        rate.map_or_else(|| format!("{what}, no limit"), |rate| format!("{what}, {rate:.0}/s"))
    }
}

/// The figures of one round.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Moment {
    /// Reads of A per second.
    pub data_iops: f64,
    /// 99th percentile of the read latency of A.
    pub data_p99_us: f64,
    /// RESERVATION CONFLICT responses to A, per second.
    pub data_conflicts: f64,
    /// Number of updates by host B, or of snapshots that were created and deleted, per second.
    pub operations: f64,
    /// Attempts of B per second that found the lock held.
    pub lock_conflicts: f64,
}

/// All rounds of a scene.
#[derive(Debug, Clone, Serialize)]
pub struct Scene {
    /// Rate that A requests per second; `None`: unlimited.
    pub data_rate: Option<f64>,
    /// The concurrent load.
    pub name: String,
    /// The figures of every round.
    pub rounds: Vec<Moment>,
}

impl Scene {
    /// One figure of every round.
    pub fn of(&self, figure: impl Fn(&Moment) -> f64) -> Vec<f64> {
        self.rounds.iter().map(figure).collect()
    }

    /// The median of one figure.
    pub fn median(&self, figure: impl Fn(&Moment) -> f64) -> f64 {
        median(&self.of(figure)).unwrap_or_default()
    }
}

/// Measures all scenes: first the scenes in which A has a rate. Returns them and the promises.
pub fn run(ours: &Ours, pace: &Pace) -> Result<(Vec<Scene>, Vec<Row>)> {
    use Lock::{CompareAndWrite, Reserve};
    use OtherLoad::{Nothing, Snapshots, Updates};
    prepare(ours)?;
    say("loads concurrent with a host that reads at a fixed rate");
    let paced = [Nothing, Updates(CompareAndWrite, None), Updates(Reserve, None), Snapshots(None)];
    let paced = measure(ours, pace, Some(READS), &paced)?;
    say("loads concurrent with a host that reads without limit");
    let flat_out = [
        Nothing,
        Updates(CompareAndWrite, Some(UPDATES)),
        Updates(CompareAndWrite, None),
        Updates(Lock::None, None),
        Updates(Reserve, Some(UPDATES)),
        Updates(Reserve, None),
        Snapshots(Some(SNAPSHOTS)),
        Snapshots(None),
    ];
    let flat_out = measure(ours, pace, None, &flat_out)?;

    let iops = |scene: &Scene| scene.of(|m| m.data_iops);
    let mut rows = Vec::new();
    for (scenes, at) in [(&paced, "at a rate"), (&flat_out, "without limit")] {
        let Some((alone, others)) = scenes.split_first() else { continue };
        for scene in others {
            let is_reserved = scene.name.starts_with("RESERVE");
            let bound = match scene.data_rate {
                Some(_) if is_reserved => Bound::RatioAtMost(0.25),
                Some(_) => Bound::RatioAtLeast(0.97),
                None => Bound::Nothing,
            };
            let what = format!("A {at}, with {}", scene.name);
            rows.push(Row::compare(what, Unit::Iops, bound, &iops(scene), ("A alone", &iops(alone))));
        }
    }
    Ok(([paced, flat_out].concat(), rows))
}

fn volume(n: usize) -> String {
    format!("vm-{n}")
}

/// Loads the data into the cache, releases the lock, and creates the volumes for snapshots.
fn prepare(ours: &Ours) -> Result<()> {
    generate(&ours.disk(SHARED), |load| load.pass(false, 64 << 10, 32))?;
    let host = Host::connect(&ours.unit(SHARED), HOST_B, Lock::Reserve, BACKOFF);
    host.and_then(|mut host| host.format()).map_err(failed)?;
    (0..VOLUMES).try_for_each(|n| ours.forebay.clone_disk(BASE, &volume(n)))
}

fn failed(source: IscsiError) -> Error {
    Error::request("forebay", source)
}

fn measure(ours: &Ours, pace: &Pace, data_rate: Option<f64>, what: &[OtherLoad]) -> Result<Vec<Scene>> {
    let rounds = alternate(what, pace.scene_rounds, |other, _| {
        moment(ours, pace.scene, pace.size, data_rate, *other)
    })?;
    let scene = |(other, rounds): (&OtherLoad, _)| Scene { data_rate, name: other.name(), rounds };
    Ok(what.iter().zip(rounds).map(scene).collect())
}

/// One round of a scene.
fn moment(
    ours: &Ours,
    time: Duration,
    size: u64,
    data_rate: Option<f64>,
    other_load: OtherLoad,
) -> Result<Moment> {
    let (unit, disk) = (ours.unit(SHARED), ours.disk(SHARED));
    let mut load = Spec::new(disk.endpoint.clone());
    load.rate = data_rate.map(Rate::Bursts);
    load.sequential(false, 4096, DEPTH);
    load.stop = Stop::After(time);
    load.backoff = Some(BACKOFF);
    load.range = Some(0..size - METADATA_BYTES);
    // A logs in before B reserves the unit: the reservation would reject the commands of a login.
    let ready = load::connect(&load).map_err(|source| Error::Load { server: "forebay", source })?;
    let halt = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| match other_load {
            OtherLoad::Nothing => Ok(Moment::default()),
            OtherLoad::Updates(lock, rate) => updates(&unit, lock, rate, &halt),
            OtherLoad::Snapshots(rate) => snapshots(ours, rate, &halt),
        });
        let report = sound(&disk, ready.run());
        halt.store(true, Relaxed);
        let other = other.join().unwrap_or_else(|_| Err(Error::panicked("forebay")))?;
        let report = report?;
        Ok(Moment {
            data_iops: report.iops,
            data_p99_us: report.latency.p99_us,
            data_conflicts: report.counts.conflicts as f64 / report.seconds,
            ..other
        })
    })
}

fn updates(unit: &Address, lock: Lock, rate: Option<f64>, halt: &AtomicBool) -> Result<Moment> {
    let host = Host::connect(unit, HOST_B, lock, BACKOFF).map_err(failed)?;
    let updates = host.run(rate, || halt.load(Relaxed)).map_err(failed)?;
    let each_second = |n: u64| n as f64 / updates.seconds;
    Ok(Moment {
        operations: each_second(updates.done),
        lock_conflicts: each_second(updates.conflicts),
        ..Moment::default()
    })
}

/// Creates and deletes snapshots of one volume after the other.
fn snapshots(ours: &Ours, rate: Option<f64>, halt: &AtomicBool) -> Result<Moment> {
    let mut control = Control::connect(ours.forebay.control())?;
    let began = Instant::now();
    let mut done = 0usize;
    while !halt.load(Relaxed) {
        let path = format!("/volumes/{}/snapshots", volume(done % VOLUMES));
        control.request("POST", &path, "{\"name\":\"now\"}")?;
        control.request("DELETE", &format!("{path}/now"), "")?;
        done += 1;
        if let Some(rate) = rate {
            let due = began + Duration::from_secs_f64(done as f64 / rate);
            sleep(due.saturating_duration_since(Instant::now()));
        }
    }
    let operations = done as f64 / began.elapsed().as_secs_f64();
    Ok(Moment { operations, ..Moment::default() })
}
