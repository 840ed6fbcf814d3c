//! Shares of a bounded table that clients fill. When the table is full, entries of the client with the
//! largest share give way, so a client that fills the table displaces only its own entries.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

/// How many entries of a table each owner has.
#[derive(Debug)]
pub struct Shares<K>(HashMap<K, usize>);

impl<K> Default for Shares<K> {
    fn default() -> Shares<K> {
        Shares(HashMap::new())
    }
}

impl<K: Eq + Hash> Shares<K> {
    /// Adds to the share of an owner.
    pub fn add(&mut self, owner: K, weight: usize) {
        *self.0.entry(owner).or_default() += weight;
    }

    /// Takes from the share of an owner.
    pub fn remove<Q: Eq + Hash + ?Sized>(&mut self, owner: &Q, weight: usize)
    where
        K: Borrow<Q>,
    {
        if let Some(share) = self.0.get_mut(owner) {
            *share = share.saturating_sub(weight);
        }
        if self.of(owner) == 0 {
            self.0.remove(owner);
        }
    }

    /// Size of the share of an owner.
    pub fn of<Q: Eq + Hash + ?Sized>(&self, owner: &Q) -> usize
    where
        K: Borrow<Q>,
    {
        self.0.get(owner).copied().unwrap_or(0)
    }

    /// Size of the largest share.
    pub fn largest(&self) -> usize {
        self.0.values().copied().max().unwrap_or(0)
    }
}

impl<K: Eq + Hash> FromIterator<(K, usize)> for Shares<K> {
    fn from_iter<I: IntoIterator<Item = (K, usize)>>(entries: I) -> Shares<K> {
        let mut shares = Shares::default();
        entries.into_iter().for_each(|(owner, weight)| shares.add(owner, weight));
        shares
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_sums_of_weights() {
        let mut shares: Shares<&str> = [("a", 2), ("b", 1), ("a", 3)].into_iter().collect();
        assert_eq!((shares.of("a"), shares.of("b"), shares.of("c"), shares.largest()), (5, 1, 0, 5));
        shares.remove("a", 5);
        assert_eq!((shares.of("a"), shares.largest()), (0, 1));
        shares.remove("b", 9);
        assert_eq!(shares.largest(), 0);
    }
}
