//! Random operations, compared with a model after a simulated kill.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;

use crate::common::*;
use forebay_retained::*;

#[derive(Debug, Clone)]
enum Op {
    /// Publishes a page of one of 20 blocks, with or without a reservation, and drops the block's old page.
    Write {
        block: u64,
        seed: u64,
        reserved: bool,
    },
    /// Publishes many pages, so that chunks are added.
    WriteMany {
        count: u64,
        seed: u64,
    },
    Discard {
        block: u64,
    },
    /// Drops every page.
    DiscardAll,
    Zero {
        start: u64,
        len: u64,
    },
    Unzero,
    Flag {
        disk: u32,
    },
    Unflag,
    Reserve {
        pages: u32,
        ranges: u32,
    },
    Unreserve,
    Cover {
        seq: u64,
    },
    SetLimit {
        chunks: u64,
    },
    /// A kill, and the next process.
    Kill,
    /// A stop that keeps the records, and the next process.
    Keep,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => (0..20_u64, any::<u64>(), any::<bool>())
            .prop_map(|(block, seed, reserved)| Op::Write { block, seed, reserved }),
        1 => (1..800_u64, any::<u64>()).prop_map(|(count, seed)| Op::WriteMany { count, seed }),
        4 => (0..20_u64).prop_map(|block| Op::Discard { block }),
        1 => Just(Op::DiscardAll),
        3 => (any::<u32>(), 1..100_u64).prop_map(|(start, len)| Op::Zero { start: start.into(), len }),
        2 => Just(Op::Unzero),
        2 => any::<u32>().prop_map(|disk| Op::Flag { disk }),
        1 => Just(Op::Unflag),
        2 => (0..300_u32, 0..200_u32).prop_map(|(pages, ranges)| Op::Reserve { pages, ranges }),
        1 => Just(Op::Unreserve),
        2 => any::<u32>().prop_map(|seq| Op::Cover { seq: seq.into() }),
        1 => (3..20_u64).prop_map(|chunks| Op::SetLimit { chunks }),
        2 => Just(Op::Kill),
        1 => Just(Op::Keep),
    ]
}

struct World {
    memory: Arc<HeapMemory>,
    retained: Arc<Retained>,
    pages: BTreeMap<u64, (u64, Page)>,
    ranges: Vec<(RangeRecord, Range)>,
    flags: Vec<(u32, Flag)>,
    room: Option<Reservation>,
    cover: Option<Cover>,
}

impl World {
    fn new() -> World {
        let memory = heap();
        let retained = create(&memory);
        World {
            memory,
            retained,
            pages: BTreeMap::new(),
            ranges: Vec::new(),
            flags: Vec::new(),
            room: None,
            cover: None,
        }
    }

    fn write(&mut self, number: u64, seed: u64, reserved: bool) {
        let of = block(2, number);
        let order = self.retained.order();
        let room = self.room.as_mut().filter(|_| reserved);
        let (left, is_reserved) = room.as_ref().map_or((0, false), |r| (r.left().0, r.left().0 > 0));
        let page = self.retained.page(room, of, |page| page.copy_from_slice(&content(seed)));
        assert!(page.order() >= order && page.order() < self.retained.order());
        assert!(*page == content(seed) && page.crc() == forebay_format::crc32c(&content(seed)));
        if is_reserved {
            assert!(page.is_retained(), "a reservation guarantees room");
            assert_eq!(self.room.as_ref().unwrap().left().0, left - 1);
        }
        self.pages.insert(number, (seed, page));
    }

    fn run(&mut self, op: Op) {
        match op {
            Op::Write { block, seed, reserved } => self.write(block, seed, reserved),
            Op::WriteMany { count, seed } => {
                (0..count).for_each(|n| self.write(1000 + n, seed ^ n, false));
            }
            Op::Discard { block } => drop(self.pages.remove(&block)),
            Op::DiscardAll => self.pages.clear(),
            Op::Zero { start, len } => {
                let of = range(3, start, start + len);
                let made = self.retained.range(self.room.as_mut(), of);
                assert_eq!(made.record(), of);
                self.ranges.push((of, made));
            }
            Op::Unzero => drop(self.ranges.pop()),
            Op::Flag { disk } => self.flags.push((disk, self.retained.flag(disk, 9))),
            Op::Unflag => drop(self.flags.pop()),
            Op::Reserve { pages, ranges } => {
                self.room = None;
                self.room = self.retained.reserve(pages, ranges);
                let stats = self.retained.stats();
                // 3 chunks that exist in any case, and 2 that the reservation may need.
                let enough = stats.limit >= (self.pages.len() as u64 / 252 + 6) << 20;
                assert!(self.room.is_some() || !enough, "{stats:?}");
            }
            Op::Unreserve => self.room = None,
            Op::Cover { seq } => {
                let cover = Cover { seq, order: self.retained.order() };
                self.retained.set_cover(cover);
                self.cover = Some(cover);
            }
            Op::SetLimit { chunks } => self.retained.set_limit(chunks << 20),
            Op::Kill => self.reopen(Arc::new(self.memory.snapshot())),
            Op::Keep => {
                self.retained.leave();
                self.reopen(self.memory.clone());
            }
        }
        let stats = self.retained.stats();
        let retained = self.pages.values().filter(|(_, page)| page.is_retained()).count() as u64;
        assert_eq!(stats.pages, retained);
        assert!(stats.unretained <= stats.unretained_total);
    }

    /// The process ends, and the next one opens `memory`. Only what was retained is found.
    fn reopen(&mut self, memory: Arc<HeapMemory>) {
        let order = self.retained.order();
        let mut pages = BTreeMap::new();
        for (number, (seed, page)) in std::mem::take(&mut self.pages) {
            if page.is_retained() {
                pages.insert(number, seed);
            }
        }
        let unretained = self.retained.stats().unretained_total > 0;
        let (ranges, flags) = (std::mem::take(&mut self.ranges), std::mem::take(&mut self.flags));
        let (ranges, flags): (Vec<_>, Vec<_>) =
            (ranges.into_iter().map(|r| r.0).collect(), flags.into_iter().map(|f| f.0).collect());
        self.room = None;
        // The old owner ends before the next one.
        self.retained = create(&heap());
        let (retained, found) = Retained::open(memory.clone(), &IDENTITY, LIMIT).unwrap();
        assert!(found.damaged.is_empty());
        assert_eq!(found.cover, self.cover);
        assert!(retained.order() <= order);
        assert!(found.pages.is_sorted_by_key(|(_, order, _)| *order));
        assert_eq!(found.pages.len(), pages.len());
        for (of, order, page) in found.pages {
            assert!(order < retained.order() && order == page.order());
            let seed = pages[&of.block];
            assert!(of == block(2, of.block) && *page == content(seed));
            self.pages.insert(of.block, (seed, page));
        }
        let found_ranges: Vec<_> = found.ranges.iter().map(|(of, ..)| *of).collect();
        let found_flags: Vec<_> = found.flags.iter().map(|(disk, ..)| *disk).collect();
        if !unretained {
            assert_eq!((&found_ranges, &found_flags), (&ranges, &flags));
        }
        self.ranges = found.ranges.into_iter().map(|(of, _, range)| (of, range)).collect();
        self.flags = found.flags.into_iter().map(|(disk, _, flag)| (disk, flag)).collect();
        (self.memory, self.retained) = (memory, retained);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn a_memory_agrees_with_the_model(ops in vec(op(), 1..60)) {
        let mut world = World::new();
        ops.into_iter().for_each(|op| world.run(op));
        world.run(Op::Kill);
        world.pages.clear();
        world.ranges.clear();
        world.flags.clear();
        prop_assert!(world.retained.is_empty());
        world.run(Op::Kill);
    }
}
