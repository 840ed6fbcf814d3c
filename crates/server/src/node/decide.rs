//! What a node does about one shard: a function of what the node sees.
//!
//! The node that is first in the ranking of a shard, its *home*, is to own the shard. The other nodes take
//! the shard only if its owner has died. They do so one after another, so that usually only one process
//! starts:
//!
//! | the pool of the shard | the home | a node of rank r |
//! |---|---|---|
//! | does not exist | creates it | creates it after r times 10 s |
//! | is free | opens it at once | opens it after r times 2 s |
//! | has an owner that is silent | takes it over after 4 s | takes it over after 4 s and r times 0.5 s |
//! | has an owner that lives | starts a standby, to which the owner hands the pool over | nothing |
//!
//! All members have a rank, so a shard has an owner in the end if any node lives. The nodes of the first
//! ranks look at the pool each second, and the other nodes less often ([`RANKS`]).
//!
//! An owner that is not the home hands the pool over as soon as the standby of the home waits, but not before
//! the home has been a member that answers for a minute: a node that is restarted would otherwise cause two
//! moves of each of its shards. A node that drains does not wait.

use std::time::Duration;

use forebay_store::rados::{DEAD_AFTER, Sight, SignOfLife};

/// How much later each rank takes over from a dead owner.
const TAKEOVER_STEP: Duration = Duration::from_millis(500);
/// How much later each rank opens a pool without an owner. The home may be starting its process.
const FREE_STEP: Duration = Duration::from_secs(2);
/// How much later each rank creates a pool that does not exist.
const CREATION_STEP: Duration = Duration::from_secs(10);
/// Ranks that look at a pool each second.
pub(super) const RANKS: usize = 3;

/// How far the process of this node for a shard is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Process {
    /// No process runs.
    None,
    /// It does not serve clients: it opens the pool, or waits for it.
    Starting(Claim),
    /// It has the pool and serves clients. `standby` is whether another server waits for the pool.
    Serving { standby: bool },
}

/// What a node sees of a shard.
#[derive(Debug, Clone, Copy)]
pub(super) struct View<'a> {
    /// The place of this node in the ranking of the shard; `None` if the shard is none of this node's.
    pub rank: Option<usize>,
    /// The ownership of the pool; `None` if the pool does not exist.
    pub pool: Option<&'a Sight>,
    /// For how long the pool has not existed.
    pub missing_for: Duration,
    pub process: Process,
    /// Whether the home has been a member that answers for long enough, or this node drains.
    pub hands_over: bool,
}

/// What the process of a shard is to do with the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Claim {
    /// Open the pool, which has no owner.
    Free,
    /// Take the pool over from an owner that was silent for long enough, since this sign of life.
    Silent(SignOfLife),
    /// Wait until the owner hands the pool over.
    Standby,
}

/// What a node does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Nothing,
    /// Starts a process.
    Start(Claim),
    /// Stops the process, which waits for a pool that is to go to another node.
    Stop,
    /// Hands the pool over to the server that waits for it.
    HandOver,
}

pub(super) fn decide(view: &View<'_>) -> Action {
    let is_home = view.rank == Some(0);
    match view.process {
        Process::Serving { standby } => match !is_home && standby && view.hands_over {
            true => Action::HandOver,
            false => Action::Nothing,
        },
        Process::Starting(Claim::Standby) if !is_home => Action::Stop,
        Process::Starting(_) => match view.rank {
            // A node of another rank has found the pool without an owner.
            Some(_) => Action::Nothing,
            None => Action::Stop,
        },
        Process::None => view.rank.map_or(Action::Nothing, |rank| start(view, rank)),
    }
}

fn start(view: &View<'_>, rank: usize) -> Action {
    let steps = rank as u32;
    let Some(pool) = view.pool else {
        let is_due = view.missing_for >= CREATION_STEP * steps;
        return if is_due { Action::Start(Claim::Free) } else { Action::Nothing };
    };
    let is_silent_for = |time| pool.silent_for >= time;
    match (&pool.owner, pool.is_free) {
        (_, true) if rank == 0 || is_silent_for(FREE_STEP * steps) => Action::Start(Claim::Free),
        // It is reserved for a server that does not take it.
        (None, false) if is_silent_for(DEAD_AFTER + TAKEOVER_STEP * steps) => Action::Start(Claim::Free),
        (Some(_), false) if is_silent_for(DEAD_AFTER + TAKEOVER_STEP * steps) => {
            Action::Start(Claim::Silent(pool.sign))
        }
        (Some(_), false) if rank == 0 && pool.is_serving && pool.silent_for < DEAD_AFTER / 2 => {
            Action::Start(Claim::Standby)
        }
        _ => Action::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);
    const SIGN: SignOfLife = SignOfLife { term: 7, beat: 9 };

    fn pool(owner: bool, is_free: bool, silent_for: Duration) -> Sight {
        let owner = owner.then(|| "host a, process 1".to_owned());
        Sight { is_serving: owner.is_some(), owner, sign: SIGN, is_free, silent_for }
    }

    fn view(rank: Option<usize>, pool: Option<&Sight>, process: Process) -> View<'_> {
        View { rank, pool, missing_for: 10 * S, process, hands_over: true }
    }

    fn without_process(rank: usize, pool: Option<&Sight>) -> Action {
        decide(&view(Some(rank), pool, Process::None))
    }

    #[test]
    fn the_home_creates_and_opens_its_pools() {
        assert_eq!(without_process(0, None), Action::Start(Claim::Free));
        assert_eq!(without_process(1, None), Action::Start(Claim::Free));
        assert_eq!(without_process(2, None), Action::Nothing);
        let free = pool(false, true, Duration::ZERO);
        assert_eq!(without_process(0, Some(&free)), Action::Start(Claim::Free));
        assert_eq!(without_process(1, Some(&free)), Action::Nothing);
        assert_eq!(without_process(1, Some(&pool(false, true, 2 * S))), Action::Start(Claim::Free));
        assert_eq!(without_process(2, Some(&pool(false, true, 3 * S))), Action::Nothing);
        let ended = pool(true, true, Duration::ZERO);
        assert_eq!(without_process(0, Some(&ended)), Action::Start(Claim::Free));
    }

    #[test]
    fn nodes_take_over_from_a_dead_owner_one_after_another() {
        let after = |rank, ms| without_process(rank, Some(&pool(true, false, Duration::from_millis(ms))));
        for (rank, ms) in [(0, 4_000), (1, 4_500), (2, 5_000)] {
            assert_eq!(after(rank, ms - 1), Action::Nothing, "{rank}");
            assert_eq!(after(rank, ms), Action::Start(Claim::Silent(SIGN)), "{rank}");
        }
        let silent = pool(true, false, 60 * S);
        assert_eq!(decide(&view(None, Some(&silent), Process::None)), Action::Nothing);
        assert_eq!(without_process(40, Some(&silent)), Action::Start(Claim::Silent(SIGN)), "in the end");
        assert_eq!(
            without_process(0, Some(&pool(false, false, S))),
            Action::Nothing,
            "reserved for another one"
        );
        assert_eq!(without_process(0, Some(&pool(false, false, 4 * S))), Action::Start(Claim::Free));
    }

    #[test]
    fn a_pool_moves_to_its_home() {
        let alive = pool(true, false, Duration::ZERO);
        assert_eq!(without_process(0, Some(&alive)), Action::Start(Claim::Standby));
        assert_eq!(without_process(1, Some(&alive)), Action::Nothing);
        let opening = Sight { is_serving: false, ..alive.clone() };
        assert_eq!(
            without_process(0, Some(&opening)),
            Action::Nothing,
            "the owner may be the heir of another one"
        );
        let serving = |rank, standby, hands_over| {
            decide(&View { hands_over, ..view(rank, Some(&alive), Process::Serving { standby }) })
        };
        assert_eq!(serving(Some(1), true, true), Action::HandOver);
        assert_eq!(serving(None, true, true), Action::HandOver);
        assert_eq!(serving(Some(1), true, false), Action::Nothing, "the membership has just changed");
        assert_eq!(serving(Some(1), false, true), Action::Nothing, "nobody waits");
        assert_eq!(serving(Some(0), true, true), Action::Nothing);
        let starting = |rank, claim| decide(&view(rank, Some(&alive), Process::Starting(claim)));
        assert_eq!(starting(Some(0), Claim::Standby), Action::Nothing);
        assert_eq!(starting(Some(1), Claim::Standby), Action::Stop, "another node is the home now");
        assert_eq!(starting(Some(1), Claim::Free), Action::Nothing);
        assert_eq!(starting(None, Claim::Free), Action::Stop);
    }
}
