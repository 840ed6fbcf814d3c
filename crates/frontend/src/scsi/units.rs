//! The open logical units of a server.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Weak};

use forebay_engine::{Client, Pool, Result};

use super::handover::{ResumedUnits, UnitState};
use super::tokens::Tokens;
use super::unit::LogicalUnit;

/// The logical units of a server.
#[derive(Default)]
pub struct Units {
    /// The open units. The lock is held while a unit is opened or its reservations are changed, both of which
    /// can wait for the store.
    units: tokio::sync::Mutex<OpenUnits>,
    tokens: Arc<Tokens>,
}

/// Open units, by the name of the disk.
#[derive(Default)]
pub(super) struct OpenUnits(HashMap<String, Weak<LogicalUnit>>);

impl OpenUnits {
    pub fn find(&self, disk: &str) -> Option<Arc<LogicalUnit>> {
        self.0.get(disk).and_then(Weak::upgrade)
    }
}

impl Units {
    /// Makes the table without open units.
    pub fn new() -> Units {
        Units::default()
    }

    /// Returns the unit of a disk; opens it unless it is open already.
    ///
    /// # Errors
    /// Those of [`Pool::attach_visible`], and of reading the stored reservations.
    pub async fn open(&self, pool: &Arc<Pool>, disk: &str) -> Result<Arc<LogicalUnit>> {
        let mut units = self.units.lock().await;
        if let Some(unit) = units.find(disk) {
            // The unit may have been released while it was not mapped.
            unit.hold_while_registered();
            return Ok(unit);
        }
        let unit = Arc::new(
            LogicalUnit::open(pool.attach_visible(disk, Client::Remote)?, self.tokens.clone()).await?,
        );
        unit.hold_while_registered();
        // Entries are removed only when the table would grow: otherwise, opening many units would take time
        // quadratic in their number.
        if units.0.len() == units.0.capacity() {
            units.0.retain(|_, unit| unit.strong_count() > 0);
        }
        units.0.insert(disk.to_owned(), Arc::downgrade(&unit));
        Ok(unit)
    }

    /// The state of all open units, while none of their sessions has a command under way.
    pub async fn hand_over(&self) -> Vec<UnitState> {
        let open = self.units.lock().await;
        open.0.values().filter_map(Weak::upgrade).map(|unit| UnitState::of(&unit)).collect()
    }

    /// Opens units with the state of another process. They stay open at least as long as the returned value.
    ///
    /// # Errors
    /// A unit cannot be opened, or its state is invalid.
    pub async fn resume(&self, pool: &Arc<Pool>, states: &[UnitState]) -> Result<ResumedUnits> {
        let mut resumed = ResumedUnits::default();
        for state in states {
            let unit = self.open(pool, &state.disk).await?;
            state.install(&unit)?;
            resumed.0.push(unit);
        }
        Ok(resumed)
    }

    /// Locks the open units: no unit is opened until the guard is dropped.
    pub(super) async fn lock(&self) -> tokio::sync::MutexGuard<'_, OpenUnits> {
        self.units.lock().await
    }

    /// Releases the units of all disks that are not `mapped`: registrations no longer hold them open. A unit
    /// whose last commands have not ended stays open, so that a disk never has two. `mapped` is called while
    /// no unit can be opened.
    pub async fn keep(&self, mapped: impl FnOnce() -> HashSet<String>) {
        let mut units = self.units.lock().await;
        let mapped = mapped();
        units.0.retain(|disk, unit| {
            if !mapped.contains(disk)
                && let Some(unit) = unit.upgrade()
            {
                unit.release_hold();
            }
            unit.strong_count() > 0
        });
    }
}

impl Drop for Units {
    fn drop(&mut self) {
        self.units.get_mut().0.values().filter_map(Weak::upgrade).for_each(|unit| unit.release_hold());
    }
}
