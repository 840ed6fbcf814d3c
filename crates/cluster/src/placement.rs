//! Which node is to have which shard.
//!
//! Each shard has a *home*, the node that is to own it. Homes are part of the map ([`crate::map`]): the
//! change of the map that adds, removes or excludes a node also moves the homes that have to move
//! ([`homes`]). So all nodes know the same homes, and a shard moves only for a reason:
//!
//! 1. *Even*: a node is the home of its share of the shards by weight, rounded up or down.
//! 2. *Stable*: a home moves only if its node cannot have shards any more, or if the shares would be uneven.
//! 3. *Spread*: the shards of a node that fails go to many nodes, not to one.
//!
//! The nodes of a shard are *ranked* by weighted rendezvous hashing (Schindelhauer and Schomaker, "Weighted
//! distributed hash tables", SPAA 2005): a node's score is its weight divided by the negative logarithm of a
//! hash of node and shard, as a number between 0 and 1. Where a home has to be chosen, the first node of the
//! ranking is chosen that has room below its share. The home followed by this ranking is also the order in
//! which nodes take over a shard whose owner has died ([`ranking`]).
//!
//! Homes that follow from the ranking alone, with a bound for each node, were measured first: with shares
//! rounded up, the failure of one of 100 nodes moved 84 of 400 shards instead of 4, because each shard that
//! finds its node full displaces another shard; with bounds that are wide enough to prevent this, some nodes
//! had twice their share.

use std::collections::BTreeMap;

use crate::hash::hash;

/// A node that can own shards.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Number of the node.
    pub node: u32,
    /// Its share of the shards, relative to other nodes. Greater than 0.
    pub weight: f64,
}

/// The score of a node for a shard.
fn score(candidate: Candidate, shard: u32) -> f64 {
    let mut key = [0; 8];
    key[..4].copy_from_slice(&candidate.node.to_le_bytes());
    key[4..].copy_from_slice(&shard.to_le_bytes());
    // 53 bits, the precision of the number; never 0 and never 1.
    let unit = ((hash(&key) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    candidate.weight / -unit.ln()
}

/// The order in which nodes take a shard: its home, if that is a candidate, and the others by their scores.
pub fn ranking(shard: u32, home: Option<u32>, candidates: &[Candidate]) -> Vec<u32> {
    let mut scored: Vec<_> = candidates.iter().map(|c| (score(*c, shard), c.node)).collect();
    scored.sort_by(|a, b| {
        let by_home = (Some(b.1) == home).cmp(&(Some(a.1) == home));
        by_home.then(b.0.total_cmp(&a.0)).then(a.1.cmp(&b.1))
    });
    scored.into_iter().map(|(_, node)| node).collect()
}

/// The place of a node in the ranking of a shard, without the ranking of the others; `None` for a node that
/// is no candidate.
pub fn place(shard: u32, home: Option<u32>, node: u32, candidates: &[Candidate]) -> Option<usize> {
    let own = candidates.iter().find(|candidate| candidate.node == node)?;
    if home == Some(node) {
        return Some(0);
    }
    let own_score = score(*own, shard);
    let is_before = |other: &&Candidate| {
        let by_score = score(**other, shard).total_cmp(&own_score);
        Some(other.node) == home || by_score.then(node.cmp(&other.node)).is_gt()
    };
    Some(candidates.iter().filter(is_before).count())
}

/// The present home of a shard, and the node that an administrator has chosen for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Place {
    /// The present home.
    pub home: Option<u32>,
    /// The home that an administrator has chosen.
    pub pin: Option<u32>,
}

/// The shards of each node while homes are chosen.
struct Load<'a> {
    candidates: &'a [Candidate],
    /// The number of shards that each node can have without a fraction, and the fraction.
    shares: BTreeMap<u32, f64>,
    homes: BTreeMap<u32, u32>,
    counts: BTreeMap<u32, usize>,
}

impl Load<'_> {
    /// How many shards a node has above its share; negative below.
    fn excess(&self, node: u32) -> f64 {
        self.counts[&node] as f64 - self.shares[&node]
    }

    fn assign(&mut self, shard: u32, node: u32) {
        if let Some(before) = self.homes.insert(shard, node) {
            self.counts.entry(before).and_modify(|count| *count -= 1);
        }
        self.counts.entry(node).and_modify(|count| *count += 1);
    }

    /// The first node of a shard's ranking that is at least one shard below its share, rounded up.
    fn choose(&self, shard: u32) -> Option<u32> {
        let ranking = ranking(shard, None, self.candidates);
        ranking.iter().find(|node| self.excess(**node) < 0.0).or(ranking.first()).copied()
    }
}

/// The homes of shards. Homes of nodes that are no candidates move; as few others as evenness requires.
pub fn homes(shards: &BTreeMap<u32, Place>, candidates: &[Candidate]) -> BTreeMap<u32, u32> {
    let total: f64 = candidates.iter().map(|candidate| candidate.weight).sum();
    let share = |weight: f64| shards.len() as f64 * weight / total;
    let mut load = Load {
        candidates,
        shares: candidates.iter().map(|c| (c.node, share(c.weight))).collect(),
        homes: BTreeMap::new(),
        counts: candidates.iter().map(|c| (c.node, 0)).collect(),
    };
    let is_candidate = |node: &u32| load.shares.contains_key(node);
    let kept = |place: &Place| place.pin.filter(is_candidate).or(place.home.filter(is_candidate));
    let (kept, homeless): (Vec<_>, Vec<_>) =
        shards.iter().map(|(shard, place)| (*shard, kept(place))).partition(|(_, kept)| kept.is_some());
    for (shard, home) in kept {
        home.into_iter().for_each(|home| load.assign(shard, home));
    }
    for (shard, _) in homeless {
        load.choose(shard).into_iter().for_each(|home| load.assign(shard, home));
    }
    let is_pinned = |shard: &u32| shards[shard].pin.is_some_and(|pin| load.shares.contains_key(&pin));
    let mut movable: Vec<u32> = load.homes.keys().filter(|shard| !is_pinned(shard)).copied().collect();
    loop {
        let by_excess = |a: &&Candidate, b: &&Candidate| load.excess(a.node).total_cmp(&load.excess(b.node));
        let Some(to) = candidates.iter().min_by(by_excess) else { break };
        // The shard of the most loaded node that ranks the least loaded one highest.
        let gain = |shard: &u32| load.excess(load.homes[shard]) - load.excess(to.node);
        let best = movable
            .iter()
            .copied()
            .max_by(|a, b| gain(a).total_cmp(&gain(b)).then(score(*to, *a).total_cmp(&score(*to, *b))));
        // A move is worth it if it makes the larger excess smaller; without a tolerance, two nodes whose
        // excess differs by one would exchange a shard for ever.
        let Some(shard) = best.filter(|shard| gain(shard) > 1.0 + 1e-6) else { break };
        load.assign(shard, to.node);
        movable.retain(|other| *other != shard);
    }
    load.homes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_a_node_is_that_in_the_ranking() {
        for shard in 0..50 {
            for home in [None, Some(3), Some(99)] {
                let ranking = ranking(shard, home, &nodes(20));
                for node in 0..25 {
                    let expected = ranking.iter().position(|other| *other == node);
                    assert_eq!(place(shard, home, node, &nodes(20)), expected, "shard {shard}, node {node}");
                }
            }
        }
    }

    fn nodes(count: u32) -> Vec<Candidate> {
        (1..=count).map(|node| Candidate { node, weight: 1.0 }).collect()
    }

    fn places(shards: u32) -> BTreeMap<u32, Place> {
        (1..=shards).map(|shard| (shard, Place::default())).collect()
    }

    fn with_homes(homes: &BTreeMap<u32, u32>) -> BTreeMap<u32, Place> {
        homes.iter().map(|(shard, home)| (*shard, Place { home: Some(*home), pin: None })).collect()
    }

    fn count(homes: &BTreeMap<u32, u32>, node: u32) -> usize {
        homes.values().filter(|home| **home == node).count()
    }

    fn moved(before: &BTreeMap<u32, u32>, after: &BTreeMap<u32, u32>) -> usize {
        before.iter().filter(|(shard, home)| after[*shard] != **home).count()
    }

    #[test]
    fn each_node_has_its_share() {
        for (shards, all) in [(12, 3), (16, 3), (16, 1), (400, 100), (7, 10)] {
            let homes = homes(&places(shards), &nodes(all));
            let share = f64::from(shards) / f64::from(all);
            for node in 1..=all {
                let count = count(&homes, node) as f64;
                assert!(
                    count >= share.floor() && count <= share.ceil(),
                    "{shards} shards, {all} nodes: {count}"
                );
            }
        }
        let mut weighted = nodes(3);
        weighted[0].weight = 2.0;
        let homes = homes(&places(400), &weighted);
        assert_eq!([1, 2, 3].map(|node| count(&homes, node)), [200, 100, 100]);
    }

    #[test]
    fn only_the_shards_that_have_to_move_do() {
        for all in [3, 10, 100] {
            let before = homes(&places(4 * all), &nodes(all));
            let joined = homes(&with_homes(&before), &nodes(all + 1));
            assert_eq!(moved(&before, &joined), count(&joined, all + 1), "only to the new node");
            assert!(count(&joined, all + 1) >= 3, "its share");
            let failed = homes(&with_homes(&before), &nodes(all)[1..]);
            assert_eq!(moved(&before, &failed), count(&before, 1), "only those of the node that has failed");
            assert_eq!(homes(&with_homes(&failed), &nodes(all)[1..]), failed, "nothing is left to move");
        }
    }

    #[test]
    fn the_shards_of_a_node_that_fails_are_spread() {
        let all = nodes(100);
        let before = homes(&places(400), &all);
        for failed in 1..=100 {
            let rest: Vec<_> = all.iter().filter(|c| c.node != failed).copied().collect();
            let after = homes(&with_homes(&before), &rest);
            let most = rest.iter().map(|c| count(&after, c.node)).max();
            assert!(most <= Some(6), "{most:?} shards at one node");
        }
    }

    #[test]
    fn a_pin_decides_while_its_node_is_a_candidate() {
        let mut places = places(12);
        for (shard, pin) in [(1, 2), (2, 2), (3, 9)] {
            places.entry(shard).and_modify(|place| place.pin = Some(pin));
        }
        let homes_of = |candidates: &[Candidate]| homes(&places, candidates);
        let homes = homes_of(&nodes(3));
        assert_eq!((homes[&1], homes[&2], count(&homes, 2)), (2, 2, 4));
        assert!(homes[&3] <= 3);
        assert_eq!(homes_of(&nodes(1))[&1], 1);
        assert!(homes_of(&[]).is_empty());
    }

    #[test]
    fn the_ranking_begins_with_the_home() {
        let all = nodes(5);
        let plain = ranking(7, None, &all);
        let home = plain[3];
        let ranked = ranking(7, Some(home), &all);
        assert_eq!((ranked[0], ranked.len()), (home, 5));
        assert_eq!(ranked[1..], plain.iter().copied().filter(|node| *node != home).collect::<Vec<_>>());
        assert_eq!(ranking(7, Some(9), &all), plain, "a home that is no candidate");
    }
}
