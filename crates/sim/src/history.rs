//! Cells with a history: the possible contents of a block or a name at each time.
//!
//! Time is counted in *stamps*: each begin and each end of an operation gets the next number. An operation
//! takes effect at some unknown moment between its begin and its end. An operation that never ended, or that
//! failed, takes effect at any moment after its begin, or never. A version of a cell is *definitely after*
//! another if it began when the other had certainly taken effect. Therefore a version may be seen at time T
//! exactly if it had begun by T, and no version that is definitely after it had certainly taken effect by T:
//! its *window* is one interval, and the times at which some content may be seen are the union of the windows
//! of the versions with that content.
//!
//! The result of a read reduces the uncertainty: the version that the read saw had taken effect when the read
//! ended, and the versions after this version had not taken effect when the read began.

use std::fmt;

/// A moment of a run, as a number that only increases.
pub type Stamp = u64;
/// A moment later than all other moments.
pub const NEVER: Stamp = u64::MAX;

/// A set of moments: disjoint ascending intervals that include their ends.
#[derive(Clone, PartialEq, Eq)]
pub struct TimeSet(Vec<(Stamp, Stamp)>);

impl TimeSet {
    /// The empty set.
    pub fn empty() -> TimeSet {
        TimeSet(Vec::new())
    }
    /// The moments from `first` to `last`.
    pub fn span(first: Stamp, last: Stamp) -> TimeSet {
        TimeSet(if first <= last { vec![(first, last)] } else { Vec::new() })
    }
    /// All moments.
    pub fn all() -> TimeSet {
        TimeSet::span(0, NEVER)
    }
    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// The earliest moment.
    pub fn first(&self) -> Option<Stamp> {
        self.0.first().map(|s| s.0)
    }
    /// The latest moment.
    pub fn last(&self) -> Option<Stamp> {
        self.0.last().map(|s| s.1)
    }
    /// The moments that are in both sets.
    pub fn and(&self, other: &TimeSet) -> TimeSet {
        let mut out = Vec::new();
        let (mut i, mut j) = (0, 0);
        while let (Some(a), Some(b)) = (self.0.get(i), other.0.get(j)) {
            let (first, last) = (a.0.max(b.0), a.1.min(b.1));
            if first <= last {
                out.push((first, last));
            }
            if a.1 < b.1 { i += 1 } else { j += 1 }
        }
        TimeSet(out)
    }
    /// The moments that are in either set.
    pub fn or(&self, other: &TimeSet) -> TimeSet {
        let mut spans: Vec<_> = self.0.iter().chain(&other.0).copied().collect();
        spans.sort_unstable();
        let mut out: Vec<(Stamp, Stamp)> = Vec::new();
        for (first, last) in spans {
            match out.last_mut() {
                Some(o) if first <= o.1.saturating_add(1) => o.1 = o.1.max(last),
                _ => out.push((first, last)),
            }
        }
        TimeSet(out)
    }
}

impl fmt::Debug for TimeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let one = |&(a, b): &(Stamp, Stamp)| match b {
            NEVER => format!("{a}.."),
            _ => format!("{a}..={b}"),
        };
        write!(f, "{{{}}}", self.0.iter().map(one).collect::<Vec<_>>().join(" "))
    }
}

/// How an operation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The operation has not ended.
    Pending,
    /// The operation failed: it may have taken effect partially, or not at all; it has no effect later.
    Failed {
        /// When the operation failed.
        at: Stamp,
    },
    /// The operation was acknowledged.
    Acknowledged {
        /// When the operation was acknowledged.
        at: Stamp,
        /// Whether the acknowledgement promised durability.
        durable: bool,
    },
}

/// An operation of the workload, with its begin and its end.
#[derive(Debug, Clone, Copy)]
pub struct Op {
    /// When the operation began.
    pub begin: Stamp,
    /// How the operation ended.
    pub end: End,
}

/// Number of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub usize);

/// All operations since the last recovery; number 0 is that recovery.
pub type Ops = Vec<Op>;

/// One value of a cell.
#[derive(Debug, Clone)]
pub struct Version<T> {
    /// The operation that made the version.
    pub op: OpId,
    /// The value of the version.
    pub value: T,
    /// Latest end of a read that saw the version.
    pub seen: Stamp,
    /// Latest begin of a read that saw an older version.
    pub after: Stamp,
    /// The version is durable independently of its operation: a snapshot contains it, or a read showed it to
    /// a client whose writes are durable when they are answered.
    pub durable: bool,
    /// No operation made the version: a read observed a state that other versions left. No flush makes a
    /// promise about it.
    pub observed: bool,
    /// The version can be in the log before reads return it. So a read of an older version does not prove
    /// that this version is later in history.
    pub late: bool,
}

/// A cell with a history. The first version is its value at the last recovery, or when its disk began.
#[derive(Debug, Clone)]
pub struct Cell<T> {
    /// Versions, ordered by the begin of their operations.
    pub versions: Vec<Version<T>>,
}

impl<T> Cell<T> {
    /// A cell that held `value` from `op` on.
    pub fn new(op: OpId, value: T) -> Cell<T> {
        let mut cell = Cell { versions: Vec::new() };
        cell.push(op, value);
        cell
    }

    /// Adds the version that `op`, which has just begun, makes.
    pub fn push(&mut self, op: OpId, value: T) {
        self.versions.push(Version {
            op,
            value,
            seen: NEVER,
            after: 0,
            durable: false,
            observed: false,
            late: false,
        });
    }

    /// Adds the version that the read `op` observed.
    pub fn push_observed(&mut self, op: OpId, value: T) {
        self.push(op, value);
        let last = self.versions.len() - 1;
        self.versions[last].observed = true;
    }

    /// Works like [`Cell::push`], for a version that a copy made.
    pub fn push_late(&mut self, op: OpId, value: T) {
        self.push(op, value);
        let last = self.versions.len() - 1;
        self.versions[last].late = true;
    }

    /// When version `i` had certainly taken effect.
    fn certain(&self, ops: &Ops, i: usize) -> Stamp {
        let v = &self.versions[i];
        match ops[v.op.0].end {
            End::Acknowledged { at, .. } => at.min(v.seen),
            End::Pending | End::Failed { .. } => v.seen,
        }
    }

    /// When version `i` had taken effect or could no longer take effect.
    fn over(&self, ops: &Ops, i: usize) -> Stamp {
        let v = &self.versions[i];
        match ops[v.op.0].end {
            End::Acknowledged { at, .. } | End::Failed { at } => at.min(v.seen),
            End::Pending => v.seen,
        }
    }

    fn is_after(&self, ops: &Ops, later: usize, earlier: usize) -> bool {
        self.over(ops, earlier) < ops[self.versions[later].op.0].begin
    }

    fn is_durable(&self, ops: &Ops, i: usize, flushed: Stamp) -> bool {
        let v = &self.versions[i];
        match ops[v.op.0].end {
            End::Acknowledged { at, durable } => durable || v.durable || at <= flushed && !v.observed,
            End::Pending | End::Failed { .. } => v.durable,
        }
    }

    /// When version `i` may be seen by a read.
    pub fn window(&self, ops: &Ops, i: usize) -> TimeSet {
        let v = &self.versions[i];
        let mut last = NEVER;
        for j in (0..self.versions.len()).filter(|&j| self.is_after(ops, j, i)) {
            last = last.min(self.certain(ops, j).saturating_sub(u64::from(self.certain(ops, j) != NEVER)));
        }
        TimeSet::span(ops[v.op.0].begin.max(v.after), last)
    }

    /// At which cuts of history a crash may leave version `i`: as [`Cell::window`], and never if a version
    /// that is definitely after it was promised to be durable, by its operation or by a flush that covered
    /// all changes acknowledged until `flushed`.
    pub fn cut_window(&self, ops: &Ops, i: usize, flushed: Stamp) -> TimeSet {
        let lost = |j: usize| self.is_durable(ops, j, flushed) && self.is_after(ops, j, i);
        if (0..self.versions.len()).any(lost) { TimeSet::empty() } else { self.window(ops, i) }
    }

    /// The versions that may be seen within `span`.
    pub fn possible(&self, ops: &Ops, span: &TimeSet) -> Vec<usize> {
        (0..self.versions.len()).filter(|&i| !self.window(ops, i).and(span).is_empty()).collect()
    }

    /// Records that a read from `begin` to `end` saw version `i` and cannot have seen any other version.
    pub fn saw(&mut self, ops: &Ops, i: usize, begin: Stamp, end: Stamp) {
        let is_later = |&j: &usize| !self.versions[j].late && self.is_after(ops, j, i);
        let later: Vec<_> = (0..self.versions.len()).filter(is_later).collect();
        for j in later {
            self.versions[j].after = self.versions[j].after.max(begin);
        }
        self.versions[i].seen = self.versions[i].seen.min(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(begin: Stamp, end: Stamp) -> Op {
        Op { begin, end: End::Acknowledged { at: end, durable: false } }
    }

    #[test]
    fn set_operations_on_moments() {
        let a = TimeSet::span(1, 5).or(&TimeSet::span(10, 20)).or(&TimeSet::span(6, 7));
        assert_eq!(format!("{a:?}"), "{1..=7 10..=20}");
        assert_eq!(format!("{:?}", a.and(&TimeSet::span(5, 12))), "{5..=7 10..=12}");
        assert!(a.and(&TimeSet::span(8, 9)).is_empty());
        assert!(TimeSet::span(3, 2).is_empty());
    }

    #[test]
    fn a_version_is_visible_from_its_begin_until_the_next_has_certainly_taken_effect() {
        let ops = vec![op(0, 0), op(2, 5), op(7, 9)];
        let mut cell = Cell::new(OpId(0), 'a');
        cell.push(OpId(1), 'b');
        cell.push(OpId(2), 'c');
        assert_eq!(cell.window(&ops, 0), TimeSet::span(0, 4));
        assert_eq!(cell.window(&ops, 1), TimeSet::span(2, 8));
        assert_eq!(cell.window(&ops, 2), TimeSet::span(7, NEVER));
    }

    #[test]
    fn either_of_two_concurrent_writes_may_be_last() {
        let ops = vec![op(0, 0), op(2, 5), op(3, 4)];
        let mut cell = Cell::new(OpId(0), 'a');
        cell.push(OpId(1), 'b');
        cell.push(OpId(2), 'c');
        assert_eq!(cell.window(&ops, 0), TimeSet::span(0, 3));
        assert_eq!(cell.window(&ops, 1), TimeSet::span(2, NEVER));
        assert_eq!(cell.window(&ops, 2), TimeSet::span(3, NEVER));
    }

    #[test]
    fn an_unanswered_write_may_be_seen_or_not() {
        let ops = vec![op(0, 0), Op { begin: 2, end: End::Pending }];
        let mut cell = Cell::new(OpId(0), 'a');
        cell.push(OpId(1), 'b');
        assert_eq!(cell.window(&ops, 0), TimeSet::all());
        assert_eq!(cell.window(&ops, 1), TimeSet::span(2, NEVER));
        cell.saw(&ops, 1, 4, 6);
        assert_eq!(cell.window(&ops, 0), TimeSet::span(0, 5));
    }

    #[test]
    fn a_failed_write_takes_no_effect_later() {
        let ops = vec![op(0, 0), Op { begin: 2, end: End::Failed { at: 4 } }, op(6, 8)];
        let mut cell = Cell::new(OpId(0), 'a');
        cell.push(OpId(1), 'b');
        cell.push(OpId(2), 'c');
        assert_eq!(cell.window(&ops, 0), TimeSet::span(0, 7));
        assert_eq!(cell.window(&ops, 1), TimeSet::span(2, 7));
        assert_eq!(cell.window(&ops, 2), TimeSet::span(6, NEVER));
    }

    #[test]
    fn a_durable_version_excludes_the_ones_before() {
        let durable = Op { begin: 2, end: End::Acknowledged { at: 5, durable: true } };
        let ops = vec![op(0, 0), durable];
        let mut cell = Cell::new(OpId(0), 'a');
        cell.push(OpId(1), 'b');
        assert!(cell.cut_window(&ops, 0, 0).is_empty());
        assert_eq!(cell.cut_window(&ops, 1, 0), TimeSet::span(2, NEVER));
    }

    #[test]
    fn a_read_of_the_old_value_moves_the_new_one_after_it() {
        let ops = vec![op(0, 0), op(2, 9)];
        let mut cell = Cell::new(OpId(0), 'a');
        cell.push(OpId(1), 'b');
        cell.saw(&ops, 0, 4, 5);
        assert_eq!(cell.window(&ops, 1), TimeSet::span(4, NEVER));
    }
}
