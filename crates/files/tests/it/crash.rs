//! Random operations with crashes, compared with a model.
//!
//! After a crash the namespace and the data are those of one moment: after some operation that is not before
//! the last one whose answer promised durability. The operation that the crash has interrupted may have been
//! done in part, if it wrote data. A seed replays a run: `FOREBAY_SEED=n cargo test -p forebay-files crash`.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_files::*;
use forebay_store::{Crash, FaultyStore};

use super::support::{Rng, open_pool, run};

/// An object of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Object {
    Dir(BTreeMap<String, u32>),
    File(Vec<u8>),
    Link(Vec<u8>),
}

/// A namespace, by the numbers that the model gives to objects; 0 is the root.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Model(BTreeMap<u32, Object>);

/// A namespace as a list of paths with their contents. Objects with several names have the same number.
type Tree = BTreeMap<String, (u32, Vec<u8>)>;

impl Model {
    fn dir(&mut self, id: u32) -> &mut BTreeMap<String, u32> {
        match self.0.get_mut(&id) {
            Some(Object::Dir(names)) => names,
            other => panic!("{id} is {other:?}"),
        }
    }

    fn dirs(&self) -> Vec<u32> {
        self.0.iter().filter(|(_, object)| matches!(object, Object::Dir(_))).map(|(id, _)| *id).collect()
    }

    fn tree(&self) -> Tree {
        let (mut tree, mut numbers) = (Tree::new(), BTreeMap::new());
        let mut next = vec![(String::new(), 0)];
        while let Some((path, id)) = next.pop() {
            let Object::Dir(names) = &self.0[&id] else { panic!("a directory") };
            for (name, child) in names {
                let path = format!("{path}/{name}");
                let count = numbers.len() as u32;
                let number = *numbers.entry(*child).or_insert(count);
                let content = match &self.0[child] {
                    Object::Dir(_) => {
                        next.push((path.clone(), *child));
                        b"a directory".to_vec()
                    }
                    Object::File(data) => [b"file ", &data[..]].concat(),
                    Object::Link(target) => [b"link ", &target[..]].concat(),
                };
                tree.insert(path, (number, content));
            }
        }
        tree
    }

    fn is_within(&self, inner: u32, outer: u32) -> bool {
        inner == outer
            || match &self.0[&outer] {
                Object::Dir(names) => names.values().any(|child| self.is_within(inner, *child)),
                _ => false,
            }
    }

    /// Removes an object without a name.
    fn collect(&mut self) {
        let mut named: Vec<u32> = vec![0];
        for object in self.0.values() {
            if let Object::Dir(names) = object {
                named.extend(names.values());
            }
        }
        self.0.retain(|id, _| named.contains(id));
    }
}

/// The namespace, as [`Model::tree`] describes it.
async fn tree_of(files: &Files) -> Tree {
    let (mut tree, mut numbers) = (Tree::new(), BTreeMap::new());
    let mut next = vec![(String::new(), files.root())];
    while let Some((path, id)) = next.pop() {
        let mut entries = files.list(id, 2, usize::MAX, &Caller::root()).unwrap().entries;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        for entry in entries {
            let path = format!("{path}/{}", String::from_utf8(entry.name).unwrap());
            let child = entry.attributes.id;
            let count = numbers.len() as u32;
            let number = *numbers.entry(child).or_insert(count);
            let content = match entry.attributes.kind {
                Kind::Directory => {
                    next.push((path.clone(), child));
                    b"a directory".to_vec()
                }
                Kind::File => {
                    let reading = files.read(child, &Caller::root()).await.unwrap();
                    let mut data = vec![0; reading.attributes.size as usize];
                    let (disk, at) = reading.place(0);
                    disk.read(at, &mut data).await.unwrap();
                    [b"file ", &data[..]].concat()
                }
                Kind::Symlink => [b"link ", &files.target(child).await.unwrap().0[..]].concat(),
            };
            tree.insert(path, (number, content));
        }
    }
    tree
}

/// The state of a run.
struct Run {
    rng: Rng,
    model: Model,
    /// The identities of the model's objects.
    ids: BTreeMap<u32, FileId>,
    next: u32,
    /// The states that a crash may leave: after the last durable operation, and after each later one.
    allowed: Vec<Tree>,
    /// Further states, of an operation that was interrupted.
    partial: Vec<Tree>,
}

impl Run {
    fn pick(&mut self, from: &[u32]) -> u32 {
        from[self.rng.below(from.len() as u64) as usize]
    }

    fn name(&mut self) -> String {
        format!("n{}", self.rng.below(6))
    }

    /// Does one operation. Returns false if the pool has stopped.
    #[allow(clippy::too_many_lines, reason = "a flat table of operations")]
    async fn step(&mut self, files: &Files) -> bool {
        let caller = Caller::root();
        let by = (&caller, None);
        let dirs = self.model.dirs();
        let (one, two) = (self.pick(&dirs), self.pick(&dirs));
        let (name, other) = (self.name(), self.name());
        let (dir, to) = (self.ids[&one], self.ids[&two]);
        let mut model = self.model.clone();
        let existing = model.dir(one).get(&name).copied();
        let kind = self.rng.below(12);
        let none = SetAttributes::default();
        let mut partial = Vec::new();
        let (done, is_durable, expected): (Result<Option<FileId>>, bool, bool) = match kind {
            0 | 1 => {
                let made = files.create(dir, name.as_bytes(), Create::Guarded, &none, by).await;
                let ok = existing.is_none();
                if ok {
                    model.0.insert(self.next, Object::File(Vec::new()));
                    model.dir(one).insert(name, self.next);
                }
                (made.map(|made| Some(made.object.id)), true, ok)
            }
            2 => {
                let made = files.make_directory(dir, name.as_bytes(), &none, by).await;
                let ok = existing.is_none();
                if ok {
                    model.0.insert(self.next, Object::Dir(BTreeMap::new()));
                    model.dir(one).insert(name, self.next);
                }
                (made.map(|made| Some(made.object.id)), true, ok)
            }
            3 => {
                let target = format!("target{}", self.next).into_bytes();
                let made = files.make_link(dir, name.as_bytes(), &target, &none, by).await;
                let ok = existing.is_none();
                if ok {
                    model.0.insert(self.next, Object::Link(target));
                    model.dir(one).insert(name, self.next);
                }
                (made.map(|made| Some(made.object.id)), true, ok)
            }
            4 => {
                let done = files.remove(dir, name.as_bytes(), by).await;
                let ok = existing.is_some_and(|id| !matches!(model.0[&id], Object::Dir(_)));
                if ok {
                    model.dir(one).remove(&name);
                }
                (done.map(|_| None), true, ok)
            }
            5 => {
                let done = files.remove_directory(dir, name.as_bytes(), by).await;
                let is_empty = |id| matches!(&model.0[&id], Object::Dir(names) if names.is_empty());
                let ok = existing.is_some_and(is_empty);
                if ok {
                    model.dir(one).remove(&name);
                }
                (done.map(|_| None), true, ok)
            }
            6 => {
                let done = files.rename((dir, name.as_bytes()), (to, other.as_bytes()), by).await;
                let target = model.dir(two).get(&other).copied();
                let ok = existing.is_some_and(|moved| {
                    let is_dir = |id: u32| matches!(model.0[&id], Object::Dir(_));
                    let fits = target.is_none_or(|target| {
                        let is_empty = matches!(&model.0[&target], Object::Dir(names) if names.is_empty());
                        target == moved || (is_dir(moved) == is_dir(target) && (!is_dir(moved) || is_empty))
                    });
                    fits && (target == Some(moved) || !is_dir(moved) || !model.is_within(two, moved))
                });
                if let (true, Some(moved)) = (ok, existing)
                    && target != Some(moved)
                {
                    model.dir(one).remove(&name);
                    model.dir(two).insert(other, moved);
                }
                (done.map(|_| None), true, ok)
            }
            7 => {
                let Some(file) = existing else { return true };
                let done = files.link(self.ids[&file], to, other.as_bytes(), by).await;
                let is_dir = matches!(model.0[&file], Object::Dir(_));
                let ok = !is_dir && !model.dir(two).contains_key(&other);
                if ok {
                    model.dir(two).insert(other, file);
                }
                (done.map(|_| None), true, ok)
            }
            8 => {
                let Some(file) = existing else { return true };
                let Object::File(data) = &mut model.0.get_mut(&file).unwrap() else { return true };
                let size = self.rng.below(20_000);
                let set = SetAttributes { size: Some(size), ..none };
                let done = files.set_attributes(self.ids[&file], &set, None, by).await;
                // The end may be zero already while the file has its size.
                let mut zeroed = data.clone();
                zeroed[(size as usize).min(data.len())..].fill(0);
                data.resize(size as usize, 0);
                let mut between = self.model.clone();
                between.0.insert(file, Object::File(zeroed));
                partial.push(between.tree());
                (done.map(|_| None), true, true)
            }
            9 => {
                let Some(file) = existing else { return true };
                let Object::File(_) = model.0[&file] else { return true };
                let done = files.commit(self.ids[&file]).await;
                (done.map(|_| None), true, true)
            }
            _ => {
                let Some(file) = existing else { return true };
                let Object::File(data) = &mut model.0.get_mut(&file).unwrap() else { return true };
                let (at, len) = (self.rng.below(12_000) as usize, 1 + self.rng.below(9_000) as usize);
                let stable = self.rng.below(4) == 0;
                let new = vec![self.rng.below(255) as u8 + 1; len];
                let done = files.write(self.ids[&file], at as u64, &new, stable, &caller).await;
                let mut longer = data.clone();
                longer.resize(data.len().max(at + len), 0);
                // The data is written piece by piece, at block boundaries.
                for end in (0..=len).filter(|end| (at + end).is_multiple_of(4096) || *end == 0) {
                    let mut some = longer.clone();
                    some[at..at + end].copy_from_slice(&new[..end]);
                    let mut between = self.model.clone();
                    between.0.insert(file, Object::File(some));
                    partial.push(between.tree());
                }
                longer[at..at + len].copy_from_slice(&new);
                *data = longer;
                (done.map(|_| None), stable, true)
            }
        };
        model.collect();
        match done {
            Ok(made) => {
                assert!(expected, "operation {kind} has succeeded");
                if let Some(id) = made {
                    self.ids.insert(self.next, id);
                    self.next += 1;
                }
                self.model = model;
                if is_durable {
                    self.allowed.clear();
                }
                self.allowed.push(self.model.tree());
                true
            }
            Err(Error::Engine(_)) => {
                // The crash has interrupted it; it may have been done.
                self.partial = partial;
                if expected {
                    self.partial.push(model.tree());
                }
                false
            }
            Err(e) => {
                assert!(!expected, "operation {kind}: {e}");
                true
            }
        }
    }

    /// Finds the identities of the objects after a crash.
    fn adopt(&mut self, files: &Files) {
        let mut model = Model(BTreeMap::from([(0, Object::Dir(BTreeMap::new()))]));
        let (mut ids, mut numbers) = (BTreeMap::from([(0, files.root())]), BTreeMap::new());
        let mut next = vec![0];
        while let Some(dir) = next.pop() {
            for entry in files.list(ids[&dir], 2, usize::MAX, &Caller::root()).unwrap().entries {
                let id = entry.attributes.id;
                let number = *numbers.entry(id).or_insert_with(|| {
                    self.next += 1;
                    self.next
                });
                ids.insert(number, id);
                model.dir(dir).insert(String::from_utf8(entry.name).unwrap(), number);
                if entry.attributes.kind == Kind::Directory {
                    model.0.insert(number, Object::Dir(BTreeMap::new()));
                    next.push(number);
                } else {
                    // The content is set below.
                    model.0.insert(number, Object::File(Vec::new()));
                }
            }
        }
        self.next += 1;
        self.model = model;
        self.ids = ids;
    }
}

async fn one_run(seed: u64) {
    let mut rng = Rng(seed);
    let mut store = FaultyStore::new(seed);
    store.set_delay(3);
    let root = Model(BTreeMap::from([(0, Object::Dir(BTreeMap::new()))]));
    let mut run = Run {
        rng: Rng(seed ^ 0xabcd),
        allowed: vec![root.tree()],
        model: root,
        ids: BTreeMap::new(),
        next: 1,
        partial: Vec::new(),
    };
    for round in 0..6 {
        let kind = if rng.below(2) == 0 { Crash::Kill } else { Crash::PowerLoss };
        let ops = store.ops() + 5 + rng.below(150);
        let pool = match open_pool(store.clone(), seed + round).await {
            Ok(pool) => pool,
            Err(e) => panic!("seed {seed}, round {round}: {e}"),
        };
        let files = Files::open(pool.clone()).await.unwrap();
        let found = tree_of(&files).await;
        let is_allowed = run.allowed.contains(&found) || run.partial.contains(&found);
        if !is_allowed {
            let last = run.allowed.last().unwrap();
            let differ: Vec<_> =
                found.iter().filter(|(path, of)| last.get(*path) != Some(*of)).map(|(p, _)| p).collect();
            let missing: Vec<_> = last.keys().filter(|path| !found.contains_key(*path)).collect();
            panic!("seed {seed}, round {round}: no allowed state; differ: {differ:?}, missing: {missing:?}");
        }
        run.adopt(&files);
        // The contents that were found, by path.
        fill(&mut run, &found);
        run.allowed = vec![found];
        run.partial.clear();
        store.crash_at(ops, kind);
        for _ in 0..400 {
            if !run.step(&files).await {
                break;
            }
        }
        drop(files);
        store.crash(kind);
        drop(pool);
        // Tasks of the pool that has stopped end.
        tokio::time::sleep(std::time::Duration::from_secs(3)).await;
        store = store.reopen();
    }
}

/// Fills the contents of files and links into an adopted model.
fn fill(run: &mut Run, found: &Tree) {
    let mut next = vec![(String::new(), 0)];
    while let Some((path, id)) = next.pop() {
        let Object::Dir(names) = run.model.0[&id].clone() else { panic!("a directory") };
        for (name, child) in names {
            let path = format!("{path}/{name}");
            let content = &found[&path].1;
            if let Some(data) = content.strip_prefix(b"file ") {
                run.model.0.insert(child, Object::File(data.to_vec()));
            } else if let Some(target) = content.strip_prefix(b"link ") {
                run.model.0.insert(child, Object::Link(target.to_vec()));
            } else {
                next.push((path, child));
            }
        }
    }
    assert!(run.model.tree() == *found);
}

#[test]
fn after_a_crash_names_and_data_are_those_of_one_moment() {
    let seeds = match std::env::var("FOREBAY_SEED") {
        Ok(seed) => {
            let seed: u64 = seed.parse().unwrap();
            seed..seed + 1
        }
        Err(_) => 0..16,
    };
    for seed in seeds {
        run(one_run(seed));
    }
}

/// A pool whose process is killed between two blocks of a change, with retained memory, is simulated by
/// taking back some of the blocks that follow the record of the journal.
#[test]
fn a_change_of_which_only_the_journal_was_written_is_completed() {
    use forebay_engine::Pool;
    const BLOCK: u64 = 4096;
    run(async {
        let store = Arc::new(forebay_store::MemoryStore::new());
        let mut seed = 0;
        for taken_back in 0..8_u64 {
            let pool = open_pool(store.clone(), 1).await.unwrap();
            let files = Files::open(pool.clone()).await.unwrap();
            let caller = Caller::root();
            let none = SetAttributes::default();
            let name = format!("d{taken_back}");
            let dir = files.make_directory(files.root(), name.as_bytes(), &none, (&caller, None));
            let dir = dir.await.unwrap().object.id;
            for n in 0..30 {
                let name = format!("f{n}");
                files.create(dir, name.as_bytes(), Create::Guarded, &none, (&caller, None)).await.unwrap();
            }
            // The blocks of the superblock, the first inodes and entries, before the last change.
            let id = pool.internal_disks("files")[0];
            let blocks = [0, 1 << 12, (1 << 12) + 1, (1 << 12) + 2, 1 << 18, (1 << 18) + 1, (1 << 18) + 2];
            let table = pool.open_internal(id).unwrap();
            let mut before = Vec::new();
            for block in blocks {
                let mut content = vec![0; BLOCK as usize];
                table.read(block * BLOCK, &mut content).await.unwrap();
                before.push((block, content));
            }
            files.rename((dir, b"f3"), (files.root(), b"moved"), (&caller, None)).await.unwrap();
            let expected = tree_of(&files).await;
            drop(files);
            for (n, (block, content)) in before.iter().enumerate() {
                if taken_back & (1 << (n % 3)) != 0 {
                    table.write(block * BLOCK, content, false).await.unwrap();
                }
            }
            drop(table);
            pool.close().await.unwrap();
            let pool: Arc<Pool> = open_pool(store.clone(), 1).await.unwrap();
            let files = Files::open(pool.clone()).await.unwrap();
            assert_eq!(tree_of(&files).await, expected, "{taken_back}");
            files.remove(files.root(), b"moved", (&caller, None)).await.unwrap();
            seed += 1;
            drop(files);
            pool.close().await.unwrap();
        }
        assert_eq!(seed, 8);
    });
}
