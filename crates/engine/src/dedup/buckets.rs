//! A hash table in bounded memory that grows with its contents.
//!
//! The table consists of sets of `WAYS` entries. While more than three in ten entries are used, each
//! insertion adds a set and splits an existing set into it, up to the limit. (This is linear hashing: sets
//! that have not been split yet hold twice as much as split sets.) At the limit all sets are alike again.
//! Memory therefore follows the number of entries, and no insertion takes long. In a full set an insertion
//! displaces another entry.
//!
//! The entries of a set are at its beginning, in any order. A search therefore ends at the first empty entry:
//! most sets are a third full, and reading a set from memory is most of the cost of a search.

/// Bytes of a cache line of the processor.
const CACHE_LINE: usize = 64;

/// An entry in a set of the index.
pub(super) trait Entry: Copy {
    const EMPTY: Self;

    fn is_empty(&self) -> bool;

    /// The hash by which the entry was inserted, or a number that is equal to it modulo `first * 2^n` for
    /// every size that the table may have. `set` is the entry's present set.
    fn hash(&self, set: usize, first: usize) -> usize;
}

/// A hash table of entries; see the module documentation.
pub(super) struct Buckets<E, const WAYS: usize> {
    /// At least `base` sets, but fewer than twice as many: the sets from `base` on were split off from the
    /// first sets. Draining removes sets from the end, without changing to which set a hash belongs.
    sets: Vec<[E; WAYS]>,
    count: usize,
    base: usize,
    first: usize,
    most: usize,
    len: usize,
}

impl<E: Entry, const WAYS: usize> Buckets<E, WAYS> {
    /// An empty table of `first` sets, which grows to `first * 2^doublings` sets.
    pub fn new(first: usize, doublings: u32) -> Buckets<E, WAYS> {
        let most = first << doublings;
        Buckets { sets: vec![[E::EMPTY; WAYS]; first], count: first, base: first, first, most, len: 0 }
    }

    /// The number of sets with which the table began.
    pub fn first(&self) -> usize {
        self.first
    }

    /// Returns the index of the set to which a hash belongs.
    fn index(&self, hash: usize) -> usize {
        let index = hash % (2 * self.base);
        if index < self.count { index } else { index - self.base }
    }

    /// The entries of the set to which a hash belongs.
    pub fn of(&self, hash: usize) -> impl Iterator<Item = &E> {
        self.sets.get(self.index(hash)).into_iter().flatten().take_while(|e| !e.is_empty())
    }

    /// Loads the sets of these hashes from memory into the processor's caches. These loads do not depend on
    /// each other, so they overlap; the loads of searches hardly do.
    pub fn fetch(&self, hashes: impl Iterator<Item = usize>) {
        let mut empty = 0;
        for hash in hashes {
            if let Some(set) = self.sets.get(self.index(hash)) {
                // One entry in each cache line of the part that is usually occupied.
                let step = (CACHE_LINE / size_of::<E>()).clamp(1, WAYS / 2);
                empty += set[..=WAYS / 2].iter().step_by(step).filter(|e| e.is_empty()).count();
            }
        }
        std::hint::black_box(empty);
    }

    /// Inserts an entry. It replaces the entry that `is_same` accepts, if it exists. Returns an entry that
    /// was displaced from a full set; `random` chooses it.
    pub fn insert(
        &mut self,
        hash: usize,
        entry: E,
        random: usize,
        is_same: impl Fn(&E) -> bool,
    ) -> Option<E> {
        let index = self.index(hash);
        let set = self.sets.get_mut(index)?;
        let Some(place) = set.iter_mut().find(|e| e.is_empty() || is_same(e)) else {
            return Some(std::mem::replace(&mut set[random % WAYS], entry));
        };
        if !std::mem::replace(place, entry).is_empty() {
            return None;
        }
        self.len += 1;
        if self.count < self.most && self.len > self.count * WAYS / 10 * 3 {
            self.split();
        }
        None
    }

    /// Adds a set, and moves into it the entries of an older set that now belong to the new set.
    fn split(&mut self) {
        let (new, old) = (self.count, self.count - self.base);
        self.sets.push([E::EMPTY; WAYS]);
        self.count += 1;
        let set = std::mem::replace(&mut self.sets[old], [E::EMPTY; WAYS]);
        let mut used = [0; 2];
        for entry in set.into_iter().take_while(|e| !e.is_empty()) {
            let moves = self.index(entry.hash(old, self.first)) == new;
            let way = &mut used[usize::from(moves)];
            self.sets[if moves { new } else { old }][*way] = entry;
            *way += 1;
        }
        if self.count == 2 * self.base {
            self.base *= 2;
        }
    }

    /// Whether the table has its largest size, and more than three quarters of its entries are used.
    pub fn is_full(&self) -> bool {
        self.count == self.most && self.len > self.count * WAYS / 4 * 3
    }

    /// Removes the entries of a hash that `is` accepts.
    pub fn remove(&mut self, hash: usize, is: impl Fn(&E) -> bool) {
        let index = self.index(hash);
        self.retain(index, |e| !is(e));
    }

    /// Removes the entries of a set that `keep` rejects. Returns false if there is no such set.
    pub fn retain(&mut self, set: usize, keep: impl Fn(&E) -> bool) -> bool {
        let Some(set) = self.sets.get_mut(set) else { return false };
        let mut kept = 0;
        for way in 0..WAYS {
            let entry = std::mem::replace(&mut set[way], E::EMPTY);
            if entry.is_empty() {
                break;
            }
            if keep(&entry) {
                set[kept] = entry;
                kept += 1;
            } else {
                self.len -= 1;
            }
        }
        true
    }

    /// Takes the entries of one set out of the table, and frees the memory of the set; `None` if no set is
    /// left. After this call nothing may be inserted.
    pub fn drain(&mut self) -> Option<impl Iterator<Item = E> + use<E, WAYS>> {
        let set = self.sets.pop()?;
        if self.sets.len() <= self.sets.capacity() / 2 {
            self.sets.shrink_to_fit();
        }
        let used = set.into_iter().filter(|e| !e.is_empty());
        self.len -= used.clone().count();
        Some(used)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Memory of the table in bytes.
    pub fn bytes(&self) -> u64 {
        size_of_val(&self.sets[..]) as u64
    }
}
