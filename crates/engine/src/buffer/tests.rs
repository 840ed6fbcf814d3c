//! Tests write buffers against models.

use std::cell::RefCell;
use std::rc::Rc;

use proptest::prelude::*;

use forebay_retained::{Identity, set_hook};

use super::*;
use crate::memory::heap;

const BLOCKS: u64 = 8;

/// Separate memory for one disk.
fn retained() -> Arc<Retained> {
    let identity = Identity { pool: [1; 16], boot: [2; 16] };
    Retained::create(Arc::new(heap(4 << 20)), &identity, 1, 4 << 20).expect("memory")
}

fn buffers() -> Buffers {
    Buffers::new(retained(), DiskId(1))
}

/// A buffer that is never frozen.
fn plain() -> WriteBuffer {
    WriteBuffer::new(Home { retained: retained(), disk: DiskId(1), generation: 0 })
}

/// A write of sectors, or blocks that become zero.
#[derive(Debug, Clone)]
enum Op {
    Write { block: u64, from: usize, sectors: usize, byte: u8 },
    Zero { from: u64, count: u64, allocated: bool },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (0..BLOCKS, 0..8usize, 1..=8usize, 1..=255u8).prop_map(|(block, from, n, byte)| Op::Write {
            block,
            from,
            sectors: n.min(8 - from),
            byte
        }),
        (0..BLOCKS, 1..4u64, any::<bool>()).prop_map(|(from, n, allocated)| Op::Zero {
            from,
            count: n.min(BLOCKS - from),
            allocated
        }),
    ]
}

fn apply(buffer: &mut WriteBuffer, op: &Op) {
    match *op {
        Op::Write { block, from, sectors, byte } => {
            let within = from * SECTOR..(from + sectors) * SECTOR;
            buffer.write(block, within.clone(), &vec![byte; within.len()], None);
        }
        Op::Zero { from, count, allocated } => buffer.zero(from..from + count, allocated, None),
    }
}

#[test]
fn a_fingerprint_is_that_of_the_last_write() {
    let mut buffer = plain();
    let fingerprint = Some(Fingerprint([7; 16]));
    let found = |buffer: &WriteBuffer, block| buffer.blocks.get(&block).and_then(|dirty| dirty.fingerprint);
    for block in 0..3 {
        buffer.write_whole(block, &[1; BLOCK], fingerprint, None);
    }
    assert_eq!(found(&buffer, 0), fingerprint);
    buffer.write(0, 512..1024, &[2; 512], None);
    buffer.write(1, 0..BLOCK, &[2; BLOCK], None);
    buffer.zero(2..3, true, None);
    assert_eq!([0, 1, 2].map(|block| found(&buffer, block)), [None; 3]);
}

/// For each block, its buffered content and mask, and the kind of the zeroed range beneath.
fn seen(buffer: &WriteBuffer) -> Vec<(Vec<u8>, u8, Option<bool>)> {
    let zeroed = |b| buffer.zeroes().find(|(range, _)| range.contains(&b)).map(|(_, allocated)| allocated);
    let block = |b| {
        let mut out = vec![0xee; BLOCK];
        let have = buffer.overlay(b, &(0..BLOCK), 0, &mut out);
        (out, have, zeroed(b))
    };
    (0..BLOCKS).map(block).collect()
}

proptest! {
    /// For any writes before and after a cancelled freeze, the buffer equals one that was never frozen.
    #[test]
    fn a_freeze_that_is_given_up_leaves_no_trace(
        before in prop::collection::vec(op(), 1..12),
        after in prop::collection::vec(op(), 0..12),
    ) {
        let (mut plain, mut buffers) = (plain(), buffers());
        let change = |buffers: &mut Buffers, op: &Op| buffers.change(0..BLOCKS, |b| apply(b, op));
        let mut cost: i64 = before.iter().map(|op| change(&mut buffers, op)).sum();
        let frozen = buffers.freeze().expect("something was written");
        cost += after.iter().map(|op| change(&mut buffers, op)).sum::<i64>();
        cost -= buffers.unfreeze(frozen);
        before.iter().chain(&after).for_each(|op| apply(&mut plain, op));
        prop_assert_eq!(seen(buffers.active()), seen(&plain));
        prop_assert_eq!(cost, buffers.active().cost() as i64);
    }
}

/// A change of the buffers of a disk, or what a commit does to them.
#[derive(Debug, Clone)]
enum Step {
    Change(Op),
    Freeze,
    FreezeColdest(usize),
    /// The commit is complete.
    Thaw,
    /// The commit is given up.
    Unfreeze,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => op().prop_map(Step::Change),
        2 => Just(Step::Freeze),
        1 => (0..BLOCKS as usize).prop_map(Step::FreezeColdest),
        1 => Just(Step::Thaw),
        2 => Just(Step::Unfreeze),
    ]
}

fn take_step(buffers: &mut Buffers, step: &Step) {
    match step {
        Step::Change(op) => drop(buffers.change(0..BLOCKS, |b| apply(b, op))),
        Step::Freeze if !buffers.is_committing() => drop(buffers.freeze()),
        Step::FreezeColdest(count) if !buffers.is_committing() => drop(buffers.freeze_coldest(*count)),
        Step::Freeze | Step::FreezeColdest(_) => {}
        Step::Thaw => drop(buffers.thaw()),
        Step::Unfreeze => {
            if let Some(frozen) = buffers.thaw() {
                buffers.unfreeze(frozen);
            }
        }
    }
}

/// For each block, the sectors that both layers give, and their bytes.
fn read(buffers: &Buffers) -> Vec<(u8, Vec<u8>)> {
    let block = |b| {
        let mut out = vec![0xee; BLOCK];
        let have = buffers.overlay(b, &(0..BLOCK), &mut out);
        (have, out)
    };
    (0..BLOCKS).map(block).collect()
}

proptest! {
    /// The memory that a killed process leaves gives the contents of its buffers, after any history, also if
    /// the next process is killed in turn.
    #[test]
    fn buffers_survive_the_process(
        lives in prop::collection::vec(prop::collection::vec(step(), 1..24), 1..4),
    ) {
        const LIMIT: u64 = 4 << 20;
        let identity = Identity { pool: [1; 16], boot: [2; 16] };
        let mut memory = Arc::new(heap(LIMIT));
        let retained = Retained::create(memory.clone(), &identity, 1, LIMIT).expect("memory");
        let mut buffers = Buffers::new(retained, DiskId(1));
        for life in &lives {
            life.iter().for_each(|step| take_step(&mut buffers, step));
            let expected = read(&buffers);
            memory = Arc::new(memory.snapshot());
            let (retained, contents) =
                Retained::open(memory.clone(), &identity, LIMIT).expect("its contents are sound");
            let records = DiskRecords {
                blocks: contents.pages.into_iter().map(|(of, _, page)| (of, page)).collect(),
                ranges: contents.ranges,
            };
            let mut next = Buffers::new(retained, DiskId(1));
            let cost = next.adopt(records);
            prop_assert_eq!(cost, next.active().cost());
            prop_assert_eq!(read(&next), expected);
            buffers = next;
        }
    }
}

/// Returns all blocks as readers see them: the contents in the map, with the buffers above them.
fn read_over(map: &[Vec<u8>], overlay: impl Fn(u64, &mut [u8]) -> u8) -> Vec<Vec<u8>> {
    let block = |(b, base): (usize, &Vec<u8>)| {
        let mut out = base.clone();
        overlay(b as u64, &mut out);
        out
    };
    map.iter().enumerate().map(block).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// A process may be killed while it drops a buffer that was committed: what remains of its records gives
    /// the same contents over the map.
    #[test]
    fn a_committed_buffer_is_dropped_in_an_order_that_changes_nothing(
        before in prop::collection::vec(op(), 1..12),
        count in 0..=BLOCKS as usize,
        after in prop::collection::vec(op(), 0..6),
    ) {
        const LIMIT: u64 = 4 << 20;
        let identity = Identity { pool: [1; 16], boot: [2; 16] };
        let memory = Arc::new(heap(LIMIT));
        let retained = Retained::create(memory.clone(), &identity, 1, LIMIT).expect("memory");
        let mut buffers = Buffers::new(retained, DiskId(1));
        for op in &before {
            buffers.change(0..BLOCKS, |b| apply(b, op));
        }
        let frozen = buffers.freeze_coldest(count);
        let map = read_over(&vec![vec![0xee; BLOCK]; BLOCKS as usize], |b, out| {
            frozen.overlay(b, &(0..BLOCK), 0, out)
        });
        for op in &after {
            buffers.change(0..BLOCKS, |b| apply(b, op));
        }
        let expected = read_over(&map, |b, out| buffers.overlay(b, &(0..BLOCK), out));
        drop(frozen);
        let kills = Rc::new(RefCell::new(Vec::new()));
        let (killed, copied) = (kills.clone(), memory.clone());
        set_hook(Some(Box::new(move || killed.borrow_mut().push(copied.snapshot()))));
        drop(buffers.thaw());
        set_hook(None);
        for memory in kills.take() {
            let (retained, contents) =
                Retained::open(Arc::new(memory), &identity, LIMIT).expect("its contents are sound");
            let blocks = contents.pages.into_iter().map(|(of, _, page)| (of, page)).collect();
            let mut next = Buffers::new(retained, DiskId(1));
            next.adopt(DiskRecords { blocks, ranges: contents.ranges });
            let found = read_over(&map, |b, out| next.overlay(b, &(0..BLOCK), out));
            prop_assert!(found == expected, "the contents have changed");
        }
    }
}

/// The kind that a list of runs gives for each of `count` blocks.
fn by_block(runs: &[(Range<u64>, Option<bool>)], count: u64) -> Vec<Option<Option<bool>>> {
    assert!(runs.is_sorted_by(|a, b| a.0.end <= b.0.start), "{runs:?}");
    (0..count).map(|b| runs.iter().find(|(run, _)| run.contains(&b)).map(|(_, kind)| *kind)).collect()
}

proptest! {
    /// The merged runs of two layers agree with a lookup of each block.
    #[test]
    fn runs_are_those_of_the_blocks(
        before in prop::collection::vec(op(), 1..12),
        after in prop::collection::vec(op(), 0..12),
    ) {
        let mut buffers = buffers();
        let change = |op: &Op, b: &mut Buffers| b.change(0..BLOCKS, |buffer| apply(buffer, op));
        before.iter().for_each(|op| _ = change(op, &mut buffers));
        buffers.freeze();
        after.iter().for_each(|op| _ = change(op, &mut buffers));
        let layers = [Some(&buffers.active), buffers.frozen.as_deref()];
        let of_block = |block: u64| {
            layers.into_iter().flatten().find_map(|layer| {
                let zeroes = || layer.zeroes().find(|(range, _)| range.contains(&block));
                let written = layer.blocks.contains_key(&block).then_some(None);
                written.or_else(|| zeroes().map(|(_, allocated)| Some(allocated)))
            })
        };
        let wanted: Vec<_> = (0..BLOCKS).map(of_block).collect();
        prop_assert_eq!(by_block(&buffers.runs(0..BLOCKS), BLOCKS), wanted);
    }

    /// The taken and the remaining blocks together have the original content, and the remaining ones are
    /// younger.
    #[test]
    fn the_coldest_are_taken(ops in prop::collection::vec(op(), 1..24), count in 0..BLOCKS as usize) {
        let (mut plain, mut buffers) = (plain(), buffers());
        for op in &ops {
            apply(&mut plain, op);
            buffers.change(0..BLOCKS, |b| apply(b, op));
        }
        let taken = buffers.freeze_coldest(count);
        let youngest = taken.blocks.values().map(|d| d.stamp).max();
        prop_assert!(buffers.active.blocks.values().all(|d| youngest.is_none_or(|y| d.stamp > y)));
        prop_assert_eq!(taken.blocks.len(), count.min(plain.blocks.len()));
        prop_assert_eq!(buffers.active().cost() + taken.cost(), plain.cost());
        buffers.thaw();
        buffers.unfreeze(taken);
        prop_assert_eq!(seen(buffers.active()), seen(&plain));
    }
}
