//! Compares the map with an array that has one entry per block.

use forebay_guest::{BLOCK, Class, ClassMap, DecodeError};
use proptest::prelude::*;

fn classes() -> impl Strategy<Value = Vec<Class>> {
    let run = (1_usize..20, 0_u8..Class::COUNT as u8);
    prop::collection::vec(run, 0..30).prop_map(|runs| {
        runs.into_iter().flat_map(|(len, n)| vec![Class::from_number(n).unwrap(); len]).collect()
    })
}

fn map_of(classes: &[Class]) -> ClassMap {
    let ranges = classes.iter().enumerate().map(|(i, class)| (i as u64..i as u64 + 1, *class));
    ClassMap::from_ranges(classes.len() as u64, ranges)
}

fn expand(runs: impl Iterator<Item = (std::ops::Range<u64>, Class)>) -> Vec<(u64, Class)> {
    runs.flat_map(|(range, class)| range.map(move |block| (block, class))).collect()
}

proptest! {
    #[test]
    fn look_ups_runs_and_sums_match_a_reference(model in classes(), from in 0_u64..400, len in 0_u64..400) {
        let map = map_of(&model);
        let naive: Vec<_> = model.iter().enumerate().map(|(i, c)| (i as u64, *c)).collect();
        for (block, class) in &naive {
            prop_assert_eq!(map.class_of(*block), *class);
        }
        prop_assert_eq!(map.class_of(model.len() as u64), Class::Other);
        prop_assert_eq!(&expand(map.runs()), &naive);
        let inside: Vec<_> = naive.iter().copied().filter(|(b, _)| (from..from + len).contains(b)).collect();
        prop_assert_eq!(expand(map.runs_in(from..from + len)), inside);
        let changes = model.windows(2).filter(|pair| pair[0] != pair[1]).count();
        prop_assert_eq!(map.len(), changes + usize::from(!model.is_empty()));
        for class in Class::ALL {
            let count = model.iter().filter(|c| **c == class).count() as u64;
            prop_assert_eq!(map.bytes_per_class()[class as usize], count * BLOCK);
        }
    }

    #[test]
    fn encoding_round_trips_and_detects_damage(model in classes(), cut in any::<prop::sample::Index>(), flip in any::<prop::sample::Index>()) {
        let map = map_of(&model);
        let bytes = map.encode();
        prop_assert!(bytes.len() <= 28 + 2 * map.len());
        prop_assert_eq!(ClassMap::decode(&bytes).unwrap(), map);
        prop_assert!(ClassMap::decode(&bytes[..cut.index(bytes.len())]).is_err());
        let mut damaged = bytes.clone();
        damaged[flip.index(bytes.len())] ^= 0x10;
        prop_assert!(ClassMap::decode(&damaged).is_err());
    }

    #[test]
    fn decoding_accepts_arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        forebay_guest::fuzzing::class_map(&bytes);
    }
}

#[test]
fn overlapping_ranges_are_clipped() {
    use Class::{Code, Free, Other, Page};
    let map =
        ClassMap::from_ranges(10, [(2..5, Page), (4..6, Code), (3..4, Free), (9..20, Free), (30..31, Page)]);
    let runs: Vec<_> = map.runs().collect();
    assert_eq!(runs, [(0..2, Other), (2..5, Page), (5..6, Code), (6..9, Other), (9..10, Free)]);
    assert_eq!(map.class_of(u64::MAX), Other);
    assert!(ClassMap::new(0).is_empty());
}

#[test]
fn the_stored_layout_is_stable() {
    let map = ClassMap::from_ranges(1000, [(0..1, Class::Metadata), (300..1000, Class::Free)]);
    let bytes = map.encode();
    let runs = [0x0c, 0xd8, 0x12, 0xe5, 0x2b];
    assert_eq!(bytes[..8], *b"FBCM\x01\0\0\0");
    assert_eq!(
        (bytes[8..16].to_vec(), bytes[16..24].to_vec()),
        ([0xe8, 3, 0, 0, 0, 0, 0, 0].into(), [3, 0, 0, 0, 0, 0, 0, 0].into())
    );
    assert_eq!(bytes[24..29], runs);
    let newer = [b"FBCM\x02", &bytes[5..]].concat();
    assert_eq!(ClassMap::decode(&newer), Err(DecodeError::Version(2)));
}
