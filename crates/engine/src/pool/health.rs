//! Problems of a pool, for administrators.

use forebay_format::Mark;
use tokio::task::yield_now;

use crate::Room;
use crate::components::Components;

/// The problems of a pool.
#[derive(Debug, Clone, Default)]
pub struct PoolHealth {
    /// Why the pool has stopped accepting changes: the store or a map has failed.
    pub failure: Option<String>,
    /// The state of free room in the store.
    pub room: Room,
    /// Places of the store that were found damaged or unreadable since the pool was opened.
    pub damaged_places: u64,
    /// How often damage was found since the pool was opened, the same place several times.
    pub damage_found: u64,
    /// The disks of which acknowledged writes are lost.
    pub lost: Affected,
    /// The disks with an unreadable node in their block map.
    pub damaged: Affected,
}

/// The disks that have the same problem.
#[derive(Debug, Clone, Default)]
pub struct Affected {
    /// Number of disks that have the problem.
    pub count: usize,
    /// Names of some of these disks.
    pub names: Vec<String>,
}

/// Maximum number of names in [`Affected`].
const MAX_NAMED: usize = 10;
/// Number of disks that are examined while the catalogue is locked.
const STRETCH: usize = 256;

impl Affected {
    fn add(&mut self, name: impl FnOnce() -> String) {
        self.count += 1;
        if self.names.len() < MAX_NAMED {
            self.names.push(name());
        }
    }
}

/// Adds the troubles of the disks whose names follow `last`, at most [`STRETCH`]. Returns the name of the
/// last examined disk, `None` after all of them.
fn examine(
    components: &Components,
    last: &str,
    (lost, damaged): (&mut Affected, &mut Affected),
) -> Option<String> {
    let (catalogue, mut examined) = (components.catalogue.read(), None);
    for (name, disk) in catalogue.after(last).take(STRETCH) {
        if matches!(disk.record().mark, Mark::Lost { .. }) {
            lost.add(|| name.clone());
        }
        if disk.has_damaged_map() {
            damaged.add(|| name.clone());
        }
        examined = Some(name);
    }
    examined.cloned()
}

impl PoolHealth {
    /// What is wrong with the pool of these components. Does not access the store. The catalogue is locked
    /// for [`STRETCH`] disks at a time, so that a pool with many disks serves others in between.
    pub(super) async fn of(components: &Components) -> PoolHealth {
        let (mut lost, mut damaged) = (Affected::default(), Affected::default());
        let mut last = String::new();
        while let Some(next) = examine(components, &last, (&mut lost, &mut damaged)) {
            last = next;
            yield_now().await;
        }
        PoolHealth {
            failure: components.cx.failure().map(str::to_owned),
            room: components.space.store.state(),
            damage_found: components.reader.source.damage.get().ops,
            damaged_places: components.reader.source.damaged_places(),
            lost,
            damaged,
        }
    }
}
