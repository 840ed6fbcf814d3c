//! Conversions between desktops and volumes: the part that changes the state of the commit.
//!
//! The caller holds the lock of the log, so neither a commit nor an overflow runs at the same time.

use std::sync::Arc;

use super::intake::Intake;
use crate::disk::Disk;

impl Intake {
    /// Moves the writes of a desktop to the ordinary commits.
    pub fn leave_desktops(&self, desktop: &Arc<Disk>) {
        let _gate = self.gate.write();
        let buffers = desktop.buffers.lock();
        let cached = desktop.leave_desktops();
        self.caches.move_to_volumes(cached);
        self.space.buffered(&desktop.writes, cached);
        if !buffers.active().is_empty() {
            self.disks.lock().push(desktop.clone());
        }
    }

    /// Reverts [`Intake::leave_desktops`].
    pub fn join_desktops(&self, disk: &Disk, write_cache: u64) {
        let _gate = self.gate.write();
        let buffers = disk.buffers.lock();
        let cached = buffers.active().cost() as i64;
        self.disks.lock().retain(|other| other.id() != disk.id());
        self.space.buffered(&disk.writes, -cached);
        self.caches.move_to_volumes(-cached);
        disk.join_desktops(write_cache, cached);
    }
}
