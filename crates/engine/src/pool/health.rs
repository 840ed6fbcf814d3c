//! Problems of a pool, for administrators.

use forebay_format::Mark;

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
    /// The disks whose acknowledged writes are lost.
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

impl Affected {
    fn add(&mut self, name: impl FnOnce() -> String) {
        self.count += 1;
        if self.names.len() < MAX_NAMED {
            self.names.push(name());
        }
    }
}

impl PoolHealth {
    /// Determines the problems of the pool with these components. Does not access the store.
    pub(super) fn of(components: &Components) -> PoolHealth {
        let (mut lost, mut damaged) = (Affected::default(), Affected::default());
        let catalogue = components.catalogue.read();
        for disk in catalogue.visible() {
            if matches!(disk.record().mark, Mark::Lost { .. }) {
                lost.add(|| catalogue.export_name(disk));
            }
            if disk.has_damaged_map() {
                damaged.add(|| catalogue.export_name(disk));
            }
        }
        PoolHealth {
            failure: components.cx.failure().map(str::to_owned),
            room: components.space.store.state(),
            damaged_places: components.reader.source.damaged_places(),
            lost,
            damaged,
        }
    }
}
