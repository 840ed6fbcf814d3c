//! The results of a nexus's third-party copies, kept until the initiator reads them.

use std::collections::VecDeque;

use forebay_wire::scsi::{CopyOutcome, TokenOutcome};

/// Maximum number of results of each kind that a nexus keeps; the oldest results are dropped.
const OUTCOMES_MAX: usize = 64;

/// Results of third-party copies, by their list identifiers. They are dropped with the nexus.
#[derive(Default)]
pub(super) struct Outcomes {
    /// Results of EXTENDED COPY commands.
    pub copies: OutcomeList<u8, CopyOutcome>,
    /// Results of POPULATE TOKEN and WRITE USING TOKEN.
    pub tokens: OutcomeList<u32, TokenOutcome>,
}

/// The results of one kind of command, oldest first.
pub(super) struct OutcomeList<K, V>(VecDeque<(K, V)>);

impl<K, V> Default for OutcomeList<K, V> {
    fn default() -> Self {
        OutcomeList(VecDeque::new())
    }
}

impl<K: PartialEq, V> OutcomeList<K, V> {
    /// Adds a result, which replaces an earlier result with the same key.
    pub fn insert(&mut self, key: K, outcome: V) {
        self.0.retain(|(other, _)| *other != key);
        if self.0.len() >= OUTCOMES_MAX {
            self.0.pop_front();
        }
        self.0.push_back((key, outcome));
    }

    pub fn get(&self, key: K) -> Option<&V> {
        self.0.iter().find(|(other, _)| *other == key).map(|(_, outcome)| outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_bounded_and_replaced() {
        let mut outcomes = OutcomeList::default();
        for n in 0..100 {
            outcomes.insert(n, 'a');
        }
        outcomes.insert(50, 'b');
        let OutcomeList(kept) = &outcomes;
        assert_eq!((kept.len(), kept.front(), kept.back()), (64, Some(&(36, 'a')), Some(&(50, 'b'))));
        assert_eq!((outcomes.get(50), outcomes.get(35)), (Some(&'b'), None));
    }
}
