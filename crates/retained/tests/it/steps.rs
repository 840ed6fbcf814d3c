//! A kill after every store: at every moment, records that are published and not dropped are found, and
//! dropped records are not found.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use crate::common::*;
use forebay_retained::*;

/// Contents by order: pages by disk, block and seed; ranges; flags.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Item {
    Page(BlockRecord, u64),
    Range(RangeRecord),
    Flag(u32, u8),
}

/// What must be found, and what may be found as well, because a call is about to publish or clear it.
#[derive(Default, Clone)]
struct Expected {
    items: Vec<Item>,
    maybe: Vec<Item>,
    covers: Vec<Option<Cover>>,
}

fn items(found: &Contents) -> Vec<Item> {
    assert!(found.damaged.is_empty() && found.damaged_pages.is_empty());
    let mut all = Vec::new();
    for (of, _, page) in &found.pages {
        let seed = u64::from_le_bytes(page[..8].try_into().unwrap()).wrapping_mul(INVERSE);
        assert!(**page == content(seed), "the page is as it was published");
        all.push(Item::Page(*of, seed));
    }
    all.extend(found.ranges.iter().map(|(of, ..)| Item::Range(*of)));
    all.extend(found.flags.iter().map(|(disk, kind, _)| Item::Flag(*disk, *kind)));
    all
}

/// The inverse of the factor in `content`.
const INVERSE: u64 = {
    // Newton's iteration doubles the number of correct bits.
    let (factor, mut inverse, mut round) = (0x9e37_79b9_7f4a_7c15_u64, 1_u64, 0);
    while round < 6 {
        inverse = inverse.wrapping_mul(2_u64.wrapping_sub(factor.wrapping_mul(inverse)));
        round += 1;
    }
    inverse
};

impl Expected {
    fn check(&self, found: &Contents) {
        let mut rest = items(found);
        for item in &self.items {
            let at = rest.iter().position(|i| i == item);
            rest.swap_remove(at.unwrap_or_else(|| panic!("{item:?} is lost")));
        }
        for item in rest {
            assert!(self.maybe.contains(&item), "{item:?} is found, and was never published or is dropped");
        }
        assert!(self.covers.contains(&found.cover), "{:?} instead of {:?}", found.cover, self.covers);
    }
}

/// A memory with a hook that kills it in thought after each store.
struct World {
    memory: Arc<HeapMemory>,
    expected: Rc<RefCell<Expected>>,
    steps: Rc<Cell<usize>>,
}

impl World {
    fn new() -> World {
        let (memory, steps) = (heap(), Rc::new(Cell::new(0)));
        let expected = Rc::new(RefCell::new(Expected { covers: vec![None], ..Expected::default() }));
        World { memory, expected, steps }
    }

    fn watch(&self) {
        let (memory, expected, steps) = (self.memory.clone(), self.expected.clone(), self.steps.clone());
        set_hook(Some(Box::new(move || {
            steps.set(steps.get() + 1);
            let (_again, found) = reopen(&memory).expect("a kill leaves the memory sound");
            expected.borrow().check(&found);
        })));
    }

    /// Runs a call that may publish `new`, which then is published.
    fn publish<T>(&self, new: Item, call: impl FnOnce() -> T) -> T {
        self.expected.borrow_mut().maybe.push(new.clone());
        let made = call();
        let mut expected = self.expected.borrow_mut();
        expected.maybe.clear();
        expected.items.push(new);
        made
    }

    /// Drops what `old` stands for.
    fn clear<T>(&self, old: &Item, value: T) {
        {
            let mut expected = self.expected.borrow_mut();
            let at = expected.items.iter().position(|i| i == old).unwrap();
            let item = expected.items.swap_remove(at);
            expected.maybe.push(item);
        }
        drop(value);
        self.expected.borrow_mut().maybe.clear();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        set_hook(None);
    }
}

#[test]
fn a_kill_at_any_store_loses_nothing() {
    let world = World::new();
    let retained = create(&world.memory);
    world.watch();
    let mut room = retained.reserve(4, 1).unwrap();
    let mut live: BTreeMap<u64, (Item, Page)> = BTreeMap::new();
    for seed in 0..12_u64 {
        let of = BlockRecord { generation: seed, ..block(1, seed % 4) };
        let item = Item::Page(of, seed);
        let page = world.publish(item.clone(), || put(&retained, Some(&mut room), of, seed));
        // An overwrite publishes the new page, then drops the old one.
        if let Some((item, page)) = live.insert(seed % 4, (item, page)) {
            world.clear(&item, page);
        }
        let cover = Cover { seq: seed, order: retained.order() };
        world.expected.borrow_mut().covers.push(Some(cover));
        retained.set_cover(cover);
        world.expected.borrow_mut().covers = vec![Some(cover)];
    }
    let of = range(4, 7, 9);
    let zeroes = world.publish(Item::Range(of), || retained.range(Some(&mut room), of));
    let flag = world.publish(Item::Flag(9, 1), || retained.flag(9, 1));
    world.clear(&Item::Range(of), zeroes);
    world.clear(&Item::Flag(9, 1), flag);
    for (item, page) in live.into_values() {
        world.clear(&item, page);
    }
    assert!(world.steps.get() > 150, "{} steps", world.steps.get());
    assert!(retained.is_empty());
}

#[test]
fn a_kill_while_chunks_are_added_and_released_loses_nothing() {
    let world = World::new();
    let retained = create(&world.memory);
    // Six chunks of pages: more than are kept when they are empty.
    let count = 6 * 252;
    let pages: Vec<_> = (0..count).map(|n| put(&retained, None, block(1, n), n)).collect();
    world.expected.borrow_mut().items = (0..count).map(|n| Item::Page(block(1, n), n)).collect();
    let before = retained.stats();
    assert_eq!((before.unretained_total, before.bytes), (0, (2 + 6) << 20));
    // Only the last pages, with which the release begins.
    let mut pages = pages.into_iter().enumerate().collect::<Vec<_>>();
    while let Some((n, page)) = pages.pop() {
        if n == 255 {
            world.watch();
        }
        if n <= 250 {
            // One snapshot for each page is enough after the first chunks.
            set_hook(None);
        }
        world.clear(&Item::Page(block(1, n as u64), n as u64), page);
    }
    assert!(world.steps.get() > 3, "{} steps", world.steps.get());
    let emptied = retained.stats();
    assert!(emptied.bytes < before.bytes, "{emptied:?}");

    // And growing again, with a reservation.
    world.watch();
    world.steps.set(0);
    let room = retained.reserve(2000, 17_000).unwrap();
    assert!(world.steps.get() > 6, "{} steps", world.steps.get());
    assert!(retained.stats().bytes > before.bytes);
    drop(room);
}

#[test]
fn a_kill_while_the_memory_is_formatted_leaves_the_old_contents_or_none() {
    let memory = heap();
    let old = create(&memory);
    let pages: Vec<_> = (0..300).map(|n| put(&old, None, block(1, n), n)).collect();
    old.set_cover(Cover { seq: 1, order: 2 });
    old.leave();
    drop((pages, old));
    let steps = Rc::new(Cell::new(0));
    let (counted, watched) = (steps.clone(), memory.clone());
    set_hook(Some(Box::new(move || {
        counted.set(counted.get() + 1);
        match reopen(&watched) {
            Err(Lost::Empty) => {}
            Ok((retained, found)) => {
                assert_eq!((retained.id(), found.cover), (99, None));
                assert!(items(&found).is_empty());
            }
            Err(e) => panic!("{e}"),
        }
    })));
    let new = Retained::create(memory.clone(), &IDENTITY, 99, LIMIT).unwrap();
    set_hook(None);
    assert!(steps.get() > 12, "{} steps", steps.get());
    assert!(new.is_empty());
}

#[test]
fn a_kill_while_the_memory_is_opened_loses_nothing() {
    let memory = heap();
    let first = create(&memory);
    let pages: Vec<_> = (0..300).map(|n| put(&first, None, block(1, n), n)).collect();
    first.leave();
    drop((pages, first));
    // A chunk that was being added when its process was killed.
    memory.add(40).unwrap();
    let watched = memory.clone();
    let steps = Rc::new(Cell::new(0));
    let counted = steps.clone();
    set_hook(Some(Box::new(move || {
        counted.set(counted.get() + 1);
        assert_eq!(reopen(&watched).unwrap().1.pages.len(), 300);
    })));
    let (_again, found) = Retained::open(memory.clone(), &IDENTITY, LIMIT).unwrap();
    set_hook(None);
    assert_eq!((found.pages.len(), memory.is_present(40)), (300, false));
    assert!(steps.get() > 0);
}
