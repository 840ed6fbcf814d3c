//! Rounds on a damaged medium: each read returns the right data or an error, and only data covered by the
//! damage is lost.

use std::collections::BTreeSet;
use std::sync::Arc;

use forebay_engine::{Pool, check};
use forebay_store::FaultyStore;

use crate::ctx::Tolerance;
use crate::hostile::provable;
use crate::note;
use crate::rng::Rng;
use crate::round::{Inject, Round};
use crate::verify::read_damaged;

/// The damage to the medium in the last life but one.
#[derive(Clone, Copy, Default)]
pub struct Harm {
    /// Harm before the life, while no pool is open.
    pub at_rest: Option<Inject>,
    /// Harm during the life, as faults.
    pub under_way: Option<Inject>,
    /// Whether it ends with a crash; otherwise the pool is closed.
    pub crash: bool,
}

impl Round {
    fn all_lives(&mut self) -> Arc<Pool> {
        for _ in 0..self.plan.lives {
            self.live();
        }
        let pool = self.open();
        self.judge(&pool);
        pool
    }

    fn close_in_order(&mut self, pool: Arc<Pool>) {
        let closing = pool.clone();
        let closed = self.exec.finish(async move { closing.close().await });
        closed.unwrap_or_else(|e| panic!("close failed: {e}"));
        drop(pool);
        self.medium.release();
        self.exec.kill_tasks();
    }

    /// Opens the pool once. `None` if it is refused.
    fn try_open(&mut self) -> Option<Arc<Pool>> {
        let (store, host, config) = (self.store(), self.exec.host(), self.plan.pool.clone());
        match self.exec.finish(Pool::open(store, host, config)) {
            Ok(pool) => Some(pool),
            Err(e) => {
                note!("the pool does not open: {e}");
                None
            }
        }
    }

    /// The disks that a check of the pool reports as damaged; `None` if it cannot be checked.
    fn named_by_check(&mut self) -> Option<BTreeSet<String>> {
        let (store, host) = (self.store(), self.exec.host());
        let report = self.exec.finish(async move { check(store, host, |_| {}).await }).ok()?;
        note!("check: {:?}", report.problems);
        Some(report.problems.into_iter().flat_map(|p| p.disks).collect())
    }

    /// Runs the pool through all its openings, closes it, applies `damage` to the medium, and opens the pool
    /// again. Asserts that every later read returns the right data or an error, and that a check has named
    /// the disk of each error. The opening may fail as well. With `all`, no data may be lost. Returns whether
    /// the damage was detected.
    pub fn rot(mut self, damage: Inject, all: bool) -> bool {
        let pool = self.all_lives();
        self.close_in_order(pool);
        damage(self.medium.faults(), &mut self.rng);
        let named = self.named_by_check();
        self.medium.release();
        let Some(pool) = self.try_open() else {
            assert!(!all, "the pool does not open");
            return true;
        };
        if all {
            self.judge(&pool);
            return false;
        }
        let model = self.model.clone();
        let bad = match self.exec.finish(async move { read_damaged(&pool, &model).await }) {
            Ok(bad) => bad,
            Err(why) => panic!("{why}"),
        };
        let named = named.expect("a pool that opens can be checked");
        assert!(bad.is_subset(&named), "blocks of {bad:?} cannot be read, and a check named {named:?}");
        !bad.is_empty()
    }

    /// Lives, continues on a medium that is damaged during the life, then opens again. Every read at any time
    /// returns the right data or an error. Returns whether the pool opened at the end.
    pub fn harmed(mut self, harm: Harm) -> bool {
        let mut pool = self.all_lives();
        if let Some(damage) = harm.at_rest {
            self.close_in_order(pool);
            damage(self.medium.faults(), &mut self.rng);
            match self.try_open() {
                Some(opened) => pool = opened,
                None => return false,
            }
        }
        note!("the life with harm");
        self.tolerance = Tolerance { unreadable: true, ..self.tolerance };
        self.faults = harm.under_way;
        self.plan.crashes = if harm.crash { 100 } else { 0 };
        self.live_on(pool);
        self.faults = None;
        let Some(pool) = self.try_open() else { return false };
        self.damaged = true;
        self.judge(&pool);
        true
    }

    /// Lives, crashes, and loses bits of the log in front of a complete group. The pool does not open, or
    /// lacks only data for which reads return errors. Returns whether it was refused; `None` if there was no
    /// batch to damage.
    pub fn rot_in_log(mut self) -> Option<bool> {
        self.plan.crashes = 100;
        self.plan.pool.checkpoint_bytes = 1 << 30;
        for _ in 0..self.plan.lives {
            self.live();
        }
        let batches = provable(&self.medium.faults().image());
        if batches.is_empty() {
            return None;
        }
        let (segment, range) = self.rng.pick(&batches).clone();
        let at = range.start + self.rng.below((range.end - range.start) as u64) as usize;
        note!("a bit or sector of segment {segment} at {at}, in the batch at {range:?}");
        let (medium, at) = (self.medium.faults(), at as u64);
        match self.rng.below(16) {
            bit @ 0..8 => _ = medium.flip_bit(segment, at, bit as u8),
            _ => medium.break_sectors(segment, at..at + 1),
        }
        let Some(pool) = self.try_open() else { return Some(true) };
        self.damaged = true;
        self.judge(&pool);
        Some(false)
    }
}

/// Flips random bits of the objects.
pub fn flip_bits(store: &FaultyStore, rng: &mut Rng) {
    for _ in 0..rng.range(1, 30) {
        store.flip_any_bit();
    }
}
