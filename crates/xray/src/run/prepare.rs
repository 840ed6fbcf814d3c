//! Before the first phase: the disks of a scenario, and what they contain.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::clock::Clock;
use super::disk::{DiskState, PREFILLED};
use super::drive::{Active, Kind, Shared};
use super::progress::Progress;
use super::series::Series;
use super::stream::{Stream, StreamSpec};
use super::{RunError, interrupted};
use crate::device::{Needs, RECEIVE_BYTES, drive, turn};
use crate::load::Fill;
use crate::scenario::{Disk, Scenario};
use crate::targets::{Place, System, TargetError, Wanted};
use crate::vdi::content::{BLOCK, Origin};
use crate::vdi::desk::Family;
use crate::vdi::shape::CELL;

/// The disks of each kind.
pub(super) type Disks = BTreeMap<String, Vec<Arc<DiskState>>>;

const PATIENCE: Duration = Duration::from_secs(60);
const CHUNK: u32 = 1 << 20;
const DEPTH: usize = 4;

/// Creates and fills the disks of a scenario. `family` is the image of desktops.
pub(super) fn prepare(
    scenario: &Scenario,
    system: &mut dyn System,
    seed: u64,
    family: Option<Family<'_>>,
    progress: &mut Progress,
) -> Result<Disks, RunError> {
    let wanted =
        |d: &Disk| Wanted { kind: d.name.get_ref().clone(), count: d.count, size: d.size.map_or(0, |s| s.0) };
    let (clones, origins): (Vec<&Disk>, Vec<&Disk>) =
        scenario.disks.iter().partition(|d| d.clone_of.is_some());
    system.create(&origins.iter().map(|d| wanted(d)).collect::<Vec<_>>())?;
    let mut disks = Disks::new();
    for disk in &origins {
        let kind = disk.name.get_ref();
        let states: Vec<Arc<DiskState>> =
            (0..disk.count).map(|n| Arc::new(state(scenario, kind, seed, n, 0))).collect();
        for (state, n) in states.iter().zip(0..) {
            let place = system.place(kind, n)?;
            if disk.prefill {
                progress.say(&format!("writing {}, {}", state.name, crate::scenario::Size(state.size)));
                write_all(&place, state)?;
            }
            if let (true, Some(family)) = (disk.desktop_image, family) {
                progress.say(&format!("writing the image of desktops to {}", state.name));
                write_image(&place, family)?;
            }
        }
        disks.insert(kind.clone(), states);
    }
    for disk in clones {
        let kind = disk.name.get_ref();
        let Some(of) = disk.clone_of.as_ref().map(|of| of.get_ref().as_str()) else { continue };
        progress.say(&format!("making {} clones of {of}", disk.count));
        system.clones(of, kind, disk.count)?;
        let filled = scenario.disk(of).prefill;
        let clone = |n: u32| {
            let state = state(scenario, kind, seed, 0, n + 1);
            if filled {
                state.set_prefilled();
            }
            Arc::new(state)
        };
        disks.insert(kind.clone(), (0..disk.count).map(clone).collect());
    }
    Ok(disks)
}

/// The state of disk `n` of a kind; of clone number `clone`, if that is not 0.
fn state(scenario: &Scenario, kind: &str, seed: u64, n: u32, clone: u32) -> DiskState {
    let origin = scenario.origin(kind).name.get_ref().clone();
    let family = |name: &str| scenario.origin(name).name.get_ref() == &origin;
    let loads: Vec<_> =
        scenario.loads.iter().filter(|l| l.script.is_none() && family(l.disk.get_ref())).collect();
    let grain = loads.iter().map(|l| l.grain()).min().unwrap_or(4096);
    // The shares are properties of the disk, since any load can read what another one wrote.
    let zero_percent = loads.iter().map(|l| l.compressible_percent.0).max().unwrap_or(0);
    let duplicate_percent = loads.iter().map(|l| l.duplicate_percent.0).max().unwrap_or(0);
    let fill = Fill::Shaped { zero_percent, duplicate_percent };
    let kind_seed = origin.bytes().fold(seed, |s, b| s.wrapping_mul(31).wrapping_add(b.into()));
    let number = if clone > 0 { clone - 1 } else { n };
    let name = format!("{kind}-{number}");
    DiskState::new(name, scenario.size(kind).0, grain, &fill, kind_seed ^ u64::from(n) << 40, clone)
}

/// Writes a disk from end to end.
pub(super) fn write_all(place: &Place, disk: &Arc<DiskState>) -> Result<(), RunError> {
    let spec = StreamSpec {
        blocks: vec![(CHUNK.max(disk.grain as u32), 1)],
        random_percent: 0,
        read_percent: 0,
        rate: None,
        depth: DEPTH as u32,
        flush: Some(Duration::from_secs(1)),
        durable: false,
        once: true,
        range: (0, disk.size),
        version: Some(PREFILLED),
        reconnect: false,
        patience: PATIENCE,
        read_back: 0,
        seed: 1,
    };
    let clock = Clock::new(false);
    let failed = |error: String| RunError::Prepare { disk: disk.name.clone(), error };
    let stream = Stream::open(spec, place.clone(), disk.clone()).map_err(|e| failed(e.to_string()))?;
    let mut active = [Active { load: 0, disk: disk.name.clone(), kind: Kind::Load(Box::new(stream)) }];
    let mut series = [Series::new(Duration::from_secs(1))];
    let done = drive(&mut active, &mut Shared { series: &mut series, clock: &clock });
    if interrupted() {
        return Err(RunError::Interrupted);
    }
    done.map_err(|(_, error)| failed(error.to_string()))?;
    match series[0].counts.first_error {
        Some(code) => Err(failed(format!("a write failed with error {code}{}", explain(code)))),
        None => Ok(()),
    }
}

/// What an error number that NBD and files share means, if it is a full disk.
pub(super) fn explain(code: u32) -> &'static str {
    if code == libc::ENOSPC as u32 { " (no space left)" } else { "" }
}

/// Writes the image of desktops.
fn write_image(place: &Place, family: Family<'_>) -> Result<(), RunError> {
    let failed =
        |source| RunError::Target(TargetError::Device { endpoint: place.endpoint.to_string(), source });
    let mut device = place.open(Needs::all(DEPTH, PATIENCE)).map_err(failed)?;
    let mut buffer = vec![0; RECEIVE_BYTES];
    let mut cells = family.shape.data.iter();
    let mut flushed = false;
    loop {
        if interrupted() {
            return Err(RunError::Interrupted);
        }
        let now = Instant::now();
        while device.has_room()
            && let Some(cell) = cells.next()
        {
            let first = cell * CELL;
            let mut fill = |data: &mut [u8]| {
                for (block, out) in (first..).zip(data.chunks_exact_mut(BLOCK)) {
                    family.content.fill(Origin::Image(block), out);
                }
            };
            device.queue_write(
                place.base + u64::from(first) * BLOCK as u64,
                CELL * BLOCK as u32,
                now,
                &mut fill,
            );
        }
        if device.under_way() == 0 {
            if flushed {
                return Ok(());
            }
            flushed = true;
            device.queue_flush(now);
        }
        turn(device.as_mut(), &mut buffer, None, PATIENCE).map_err(failed)?;
        while let Some(done) = device.next_done() {
            if let Some(code) = done.error {
                let error = format!("a write failed with error {code}{}", explain(code));
                return Err(RunError::Prepare { disk: place.endpoint.to_string(), error });
            }
        }
    }
}
