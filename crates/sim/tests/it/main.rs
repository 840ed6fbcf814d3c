//! Simulated worlds, each replayed from its seed. `hostile.rs` is another binary: it counts allocations.

#![allow(clippy::unwrap_used, reason = "a test that meets an error has failed")]

mod clean;
mod faults;
mod hidden_quota;
mod live;
mod memory;
mod names;
mod one_disk;
mod rados;
mod restarts;
mod room;
mod rounds;
mod world;

use forebay_engine::Mutation;
use forebay_sim::{Round, attempt};

/// Asserts that a world with this defect of the engine fails for one of the first `within` seeds.
fn detects(mutation: Mutation, within: u64, world: fn(u64, Option<u64>) -> Round) {
    let caught = (0..within).find(|seed| {
        let mut round = world(*seed, None);
        round.plan.pool.mutation = mutation;
        // Separate syncs have more steps, between which more can go wrong.
        round.medium.faults().set_syncs_appends(false);
        attempt(*seed, || round.run()).is_err()
    });
    println!("{mutation:?} was detected by seed {caught:?}");
    assert!(caught.is_some(), "{mutation:?}: {within} rounds, and no data was lost");
}
