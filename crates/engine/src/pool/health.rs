//! What is wrong with a pool, for administrators.

use forebay_format::Mark;

use crate::Room;
use crate::components::Components;

/// What is wrong with a pool.
#[derive(Debug, Clone, Default)]
pub struct PoolHealth {
    /// Why the pool has stopped accepting changes: the store or a map has failed.
    pub failure: Option<String>,
    /// The state of free room in the store.
    pub room: Room,
    /// Blocks that were read with a wrong checksum since the pool was opened.
    pub damaged_blocks: u64,
    /// Names of the disks of which acknowledged writes are lost.
    pub lost: Vec<String>,
    /// Names of the disks with an unreadable node in their block map.
    pub damaged: Vec<String>,
}

impl PoolHealth {
    /// What is wrong with the pool of these components. Does not access the store.
    pub(super) fn of(components: &Components) -> PoolHealth {
        let (mut lost, mut damaged) = (Vec::new(), Vec::new());
        let catalogue = components.catalogue.read();
        for disk in catalogue.visible() {
            if matches!(disk.record().mark, Mark::Lost { .. }) {
                lost.push(catalogue.export_name(disk));
            }
            if disk.has_damaged_map() {
                damaged.push(catalogue.export_name(disk));
            }
        }
        PoolHealth {
            failure: components.cx.failure().map(str::to_owned),
            room: components.space.store.state(),
            damaged_blocks: components.reader.source.damage.get().ops,
            lost,
            damaged,
        }
    }
}
