//! Rules that state which operations fail, how, and when.

use super::random::Random;

/// The operations that can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultyOp {
    /// The operation is [`Store::append`](crate::Store::append).
    Append,
    /// The operation is an append that creates an object.
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
    /// All operations.
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

/// How an operation fails. How much of a failed append, sync, delete or swap takes effect is random.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The operation fails with [`StoreError::Io`](crate::StoreError::Io).
    Io,
    /// The operation fails with [`StoreError::Io`](crate::StoreError::Io) and EMFILE: the process has no
    /// descriptor left. It has no effect.
    NoFiles,
    /// The operation fails with [`StoreError::Full`](crate::StoreError::Full). Only a part of the data of an
    /// append is written, or none of it.
    Full,
    /// An append writes only the first part of its data, and then fails like [`Fault::Io`]. Other operations
    /// fail like [`Fault::Io`].
    Short,
    /// An append is acknowledged, but the old contents remain. Other operations are not affected.
    Lost,
    /// An append is acknowledged like [`Fault::Lost`], and its data overwrites other bytes of some object.
    /// Other operations are not affected.
    Misdirected,
    /// A read succeeds, but before it a bit in its range flips on the medium, permanently. Other operations
    /// are not affected.
    Rot,
}

/// When a fault occurs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// The fault occurs once: the next operation after this number of operations fails.
    After(u32),
    /// The fault is permanent: all operations after this number of operations fail.
    From(u32),
    /// Every n-th operation fails; n must not be 0.
    Every(u32),
    /// Each operation fails with this probability, in millionths.
    PerMillion(u32),
}

struct Rule {
    op: FaultyOp,
    fault: Fault,
    when: When,
    seen: u32,
}

impl Fault {
    /// Whether the fault makes the operation report an error.
    pub(super) fn is_reported(self) -> bool {
        !matches!(self, Fault::Rot | Fault::Lost | Fault::Misdirected)
    }
}

/// The active rules. If several rules apply to an operation, the oldest rule counts.
#[derive(Default)]
pub(super) struct Faults(Vec<Rule>);

impl Faults {
    pub(super) fn add(&mut self, op: FaultyOp, fault: Fault, when: When) {
        assert!(when != When::Every(0), "`Every` needs a number above 0");
        self.0.push(Rule { op, fault, when, seen: 0 });
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns the fault of an operation that begins now.
    pub(super) fn next_fault(&mut self, op: FaultyOp, random: &mut Random) -> Option<Fault> {
        let mut fault = None;
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
            if hit && fault.is_none() {
                fault = Some(rule.fault);
            }
            keep
        });
        fault
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(when: When) -> Vec<bool> {
        let (mut faults, mut random) = (Faults::default(), Random::new(1));
        faults.add(FaultyOp::Sync, Fault::Io, when);
        assert_eq!(faults.next_fault(FaultyOp::Read, &mut random), None);
        (0..6).map(|_| faults.next_fault(FaultyOp::Sync, &mut random).is_some()).collect()
    }

    #[test]
    fn rules_apply_at_their_times() {
        assert_eq!(faults(When::After(0)), [true, false, false, false, false, false]);
        assert_eq!(faults(When::After(2)), [false, false, true, false, false, false]);
        assert_eq!(faults(When::From(4)), [false, false, false, false, true, true]);
        assert_eq!(faults(When::Every(3)), [false, false, true, false, false, true]);
        assert_eq!(faults(When::PerMillion(1_000_000)), [true; 6]);
        assert_eq!(faults(When::PerMillion(0)), [false; 6]);
    }
}
