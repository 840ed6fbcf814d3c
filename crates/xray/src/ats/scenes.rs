//! Two hosts on one volume, and snapshots beside them.
//!
//! Host A reads data, 4 KiB after 4 KiB, eight at a time. Beside it, nobody does anything; or host B changes the
//! volume's metadata, under RESERVE or under COMPARE AND WRITE; or snapshots of other volumes of the pool come and go.
//! What A gets through is compared.
//!
//! A host that meets a reservation tries again after a millisecond, half of it more or less. (Those of the time waited
//! longer and longer, and were slower still.)
//!
//! Once, A asks for a stated rate, far from what the server can do, and what is beside it goes as fast as it can: what A
//! loses, it loses to locks. Once, A goes as fast as it can as well. Then it and the server use all the CPU there is, and
//! whatever else is done, with locks or without, takes some of that from A; so B has a stated rate, too, beside the scene
//! in which it goes as fast as it can, and one in which it takes no lock at all.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::control::Control;
use super::servers::{BASE, Ours, SHARED};
use super::updates::{Host, Lock, METADATA_BYTES};
use super::{Pace, say};
use crate::bench::error::BenchError;
use crate::bench::report::median;
use crate::bench::rounds::alternate;
use crate::bench::{Bound, Result, Row, Unit};
use crate::iscsi::{Address, IscsiError, Load};
use crate::load::{Access, Stop};

/// Commands that A has under way.
const DEPTH: u16 = 8;
/// How long a host waits that met a reservation.
const BACKOFF: Duration = Duration::from_millis(1);
/// Reads a second that A asks for where it has a rate.
const READS: f64 = 16_000.0;
/// Metadata updates a second where they have a rate: those of a thin disk that grows by 50 MiB a second, 1 MiB at a time.
const UPDATES: f64 = 50.0;
/// Snapshots that are made, and removed, a second where they have a rate: a backup of many volumes.
const SNAPSHOTS: f64 = 20.0;
/// Volumes that snapshots are made of.
const VOLUMES: usize = 10;
/// Initiator numbers; those of A begin at 1.
const HOST_B: u16 = 100;

/// What happens beside A; at most so many times a second, or as fast as it can.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Beside {
    Nothing,
    /// Updates under a lock.
    Updates(Lock, Option<f64>),
    /// Snapshots made and removed.
    Snapshots(Option<f64>),
}

impl Beside {
    fn name(self) -> String {
        let (what, rate) = match self {
            Beside::Nothing => return "alone".to_owned(),
            Beside::Updates(Lock::None, rate) => ("updates without lock", rate),
            Beside::Updates(Lock::Reserve, rate) => ("RESERVE", rate),
            Beside::Updates(Lock::CompareAndWrite, rate) => ("COMPARE AND WRITE", rate),
            Beside::Snapshots(rate) => ("snapshots", rate),
        };
        rate.map_or_else(|| format!("{what}, flat out"), |rate| format!("{what}, {rate:.0}/s"))
    }
}

/// What was measured once.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Moment {
    /// Reads of A a second.
    pub data_iops: f64,
    /// 99 of 100 took no longer.
    pub data_p99_us: f64,
    /// Answers of RESERVATION CONFLICT to A, a second.
    pub data_conflicts: f64,
    /// Updates of B, or snapshots made and removed, a second.
    pub operations: f64,
    /// Times a second that B found the lock taken.
    pub lock_conflicts: f64,
}

/// All rounds of a scene.
#[derive(Debug, Clone, Serialize)]
pub struct Scene {
    /// What A asked for a second, if not all that it could get.
    pub data_rate: Option<f64>,
    /// What happened beside A.
    pub name: String,
    /// Every round.
    pub rounds: Vec<Moment>,
}

impl Scene {
    /// One figure of every round.
    pub fn of(&self, figure: impl Fn(&Moment) -> f64) -> Vec<f64> {
        self.rounds.iter().map(figure).collect()
    }

    /// The median of one.
    pub fn median(&self, figure: impl Fn(&Moment) -> f64) -> f64 {
        median(&self.of(figure)).unwrap_or_default()
    }
}

/// What was seen, and the promises.
pub struct Scenes {
    /// Those in which A has a rate, then the others.
    pub scenes: Vec<Scene>,
    /// The promises.
    pub rows: Vec<Row>,
}

/// Measures all scenes.
pub fn run(ours: &Ours, pace: &Pace) -> Result<Scenes> {
    use Beside::{Nothing, Snapshots, Updates};
    use Lock::{CompareAndWrite, Reserve};
    prepare(ours)?;
    say("beside a host that reads at a rate");
    let paced = [Nothing, Updates(CompareAndWrite, None), Updates(Reserve, None), Snapshots(None)];
    let paced = measure(ours, pace, Some(READS), &paced)?;
    say("beside a host that reads as fast as it can");
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
    for (scenes, at) in [(&paced, "at a rate"), (&flat_out, "flat out")] {
        let Some((alone, others)) = scenes.split_first() else { continue };
        for scene in others {
            let is_reserved = scene.name.starts_with("RESERVE");
            let bound = match scene.data_rate {
                Some(_) if is_reserved => Bound::RatioAtMost(0.25),
                Some(_) => Bound::RatioAtLeast(0.97),
                None => Bound::Nothing,
            };
            let what = format!("A {at} beside {}", scene.name);
            rows.push(Row::compare(what, Unit::Iops, bound, &iops(scene), ("A alone", &iops(alone))));
        }
    }
    Ok(Scenes { scenes: [paced, flat_out].concat(), rows })
}

fn volume(n: usize) -> String {
    format!("vm-{n}")
}

/// The data into the cache, a lock that nobody has, and volumes to make snapshots of.
fn prepare(ours: &Ours) -> Result<()> {
    ours.target().load(SHARED, |load| {
        load.access = Access::Sequential;
        load.block_bytes = 64 << 10;
        load.stop = Stop::OncePerBlock;
    })?;
    let host = Host::connect(&ours.target().unit(SHARED), HOST_B, Lock::Reserve, BACKOFF);
    host.and_then(|mut host| host.format()).map_err(failed)?;
    (0..VOLUMES).try_for_each(|n| ours.forebay.clone_disk(BASE, &volume(n)))
}

fn failed(source: IscsiError) -> BenchError {
    BenchError::Iscsi { server: "forebay", source }
}

fn measure(ours: &Ours, pace: &Pace, data_rate: Option<f64>, what: &[Beside]) -> Result<Vec<Scene>> {
    let rounds = alternate(what, pace.scene_rounds, |beside, _| {
        moment(ours, pace.scene, pace.size, data_rate, *beside)
    })?;
    let scene = |(beside, rounds): (&Beside, _)| Scene { data_rate, name: beside.name(), rounds };
    Ok(what.iter().zip(rounds).map(scene).collect())
}

/// One scene, once.
fn moment(ours: &Ours, time: Duration, size: u64, data_rate: Option<f64>, beside: Beside) -> Result<Moment> {
    let unit = ours.target().unit(SHARED);
    let mut load = Load::new(unit.clone());
    load.rate = data_rate;
    load.access = Access::Sequential;
    load.depth = DEPTH;
    load.stop = Stop::After(time);
    load.backoff = Some(BACKOFF);
    load.bytes = Some(size - METADATA_BYTES);
    // A is there before B reserves: nobody could log in and look around then.
    let ready = load.connect().map_err(failed)?;
    let halt = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| match beside {
            Beside::Nothing => Ok(Moment::default()),
            Beside::Updates(lock, rate) => updates(&unit, lock, rate, &halt),
            Beside::Snapshots(rate) => snapshots(ours, rate, &halt),
        });
        let loaded = ours.target().sound(ready.run());
        halt.store(true, Relaxed);
        let other = other.join().unwrap_or(Err(failed(IscsiError::Protocol("it made host B panic"))))?;
        let loaded = loaded?;
        Ok(Moment {
            data_iops: loaded.report.iops,
            data_p99_us: loaded.report.latency.p99_us,
            data_conflicts: loaded.conflicts as f64 / loaded.report.seconds,
            ..other
        })
    })
}

fn updates(unit: &Address, lock: Lock, rate: Option<f64>, halt: &AtomicBool) -> Result<Moment> {
    let host = Host::connect(unit, HOST_B, lock, BACKOFF).map_err(failed)?;
    let updates = host.run(rate, halt).map_err(failed)?;
    let each_second = |n: u64| n as f64 / updates.seconds;
    Ok(Moment {
        operations: each_second(updates.done),
        lock_conflicts: each_second(updates.conflicts),
        ..Moment::default()
    })
}

/// A snapshot of one volume after the other, each removed before the next one of the same volume.
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
