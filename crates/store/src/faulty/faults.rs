//! Which operations fail, how, and when.

use super::random::Random;

/// The operations that can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultyOp {
    /// [`Store::append`](crate::Store::append).
    Append,
    /// Of these, the ones that create an object.
    Create,
    /// [`Store::sync`](crate::Store::sync).
    Sync,
    /// [`Store::read`](crate::Store::read).
    Read,
    /// [`Store::delete`](crate::Store::delete).
    Delete,
    /// [`Store::swap_superblock`](crate::Store::swap_superblock).
    Swap,
    /// [`Store::list`](crate::Store::list).
    List,
    /// [`Store::capacity`](crate::Store::capacity).
    Capacity,
}

impl FaultyOp {
    /// All of them.
    pub const ALL: [FaultyOp; 8] = [
        FaultyOp::Append,
        FaultyOp::Create,
        FaultyOp::Sync,
        FaultyOp::Read,
        FaultyOp::Delete,
        FaultyOp::Swap,
        FaultyOp::List,
        FaultyOp::Capacity,
    ];
}

/// How an operation fails. What an append, sync, delete or swap has done by then is left to chance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// [`StoreError::Io`](crate::StoreError::Io).
    Io,
    /// [`StoreError::Io`](crate::StoreError::Io) with EMFILE: the process has no descriptor left. Nothing
    /// was done.
    NoFiles,
    /// [`StoreError::Full`](crate::StoreError::Full). Of an append, a proper part of the data is written at most.
    Full,
    /// Of an append: a proper part of the data is written, from its start; then as [`Fault::Io`]. Of other
    /// operations the same as that.
    Short,
    /// Of an append: it is acknowledged, and what lay there before is there still. Of other operations nothing.
    Lost,
    /// Of an append: as [`Fault::Lost`], and the data lies over what some object holds. Of other operations nothing.
    Misdirected,
    /// Of a read: it succeeds, but before it a bit that it covers flips on the medium, for good. Of other
    /// operations nothing.
    Rot,
}

/// When a fault strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Once: lets so many operations pass, and strikes the next.
    After(u32),
    /// For good: lets this many operations pass, and strikes all others.
    From(u32),
    /// Each so-many-th operation; not 0.
    Every(u32),
    /// Each operation with so many chances in a million.
    PerMillion(u32),
}

struct Rule {
    op: FaultyOp,
    fault: Fault,
    when: When,
    seen: u32,
}

impl Fault {
    /// Whether the operation reports it, and has not done what it was asked to.
    pub(super) fn is_reported(self) -> bool {
        !matches!(self, Fault::Rot | Fault::Lost | Fault::Misdirected)
    }
}

/// The rules in force; where several strike at once, the oldest counts.
#[derive(Default)]
pub(super) struct Faults(Vec<Rule>);

impl Faults {
    pub(super) fn add(&mut self, op: FaultyOp, fault: Fault, when: When) {
        assert!(when != When::Every(0), "every 0th operation is none");
        self.0.push(Rule { op, fault, when, seen: 0 });
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// What happens to an operation that begins now.
    pub(super) fn strike(&mut self, op: FaultyOp, random: &mut Random) -> Option<Fault> {
        let mut struck = None;
        self.0.retain_mut(|rule| {
            if rule.op != op {
                return true;
            }
            rule.seen = rule.seen.saturating_add(1);
            let (hit, keep) = match rule.when {
                When::After(n) => (rule.seen > n, rule.seen <= n),
                When::From(n) => (rule.seen > n, true),
                When::Every(n) => (rule.seen.is_multiple_of(n), true),
                When::PerMillion(n) => (random.below(1_000_000) < u64::from(n), true),
            };
            if hit && struck.is_none() {
                struck = Some(rule.fault);
            }
            keep
        });
        struck
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strikes(when: When) -> Vec<bool> {
        let (mut faults, mut random) = (Faults::default(), Random::new(1));
        faults.add(FaultyOp::Sync, Fault::Io, when);
        assert_eq!(faults.strike(FaultyOp::Read, &mut random), None);
        (0..6).map(|_| faults.strike(FaultyOp::Sync, &mut random).is_some()).collect()
    }

    #[test]
    fn rules_strike_when_they_say() {
        assert_eq!(strikes(When::After(0)), [true, false, false, false, false, false]);
        assert_eq!(strikes(When::After(2)), [false, false, true, false, false, false]);
        assert_eq!(strikes(When::From(4)), [false, false, false, false, true, true]);
        assert_eq!(strikes(When::Every(3)), [false, false, true, false, false, true]);
        assert_eq!(strikes(When::PerMillion(1_000_000)), [true; 6]);
        assert_eq!(strikes(When::PerMillion(0)), [false; 6]);
    }
}
