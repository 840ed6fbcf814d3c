//! Each operation once.

use crate::common::*;
use forebay_retained::*;

#[test]
fn what_is_published_is_found_after_a_kill() {
    let memory = heap();
    let retained = create(&memory);
    let mut room = retained.reserve(10, 2).unwrap();
    let first = put(&retained, Some(&mut room), block(1, 8), 100);
    let second = put(&retained, Some(&mut room), block(2, 9), 200);
    let gone = put(&retained, Some(&mut room), block(2, 10), 300);
    let zeroes = retained.range(Some(&mut room), range(3, 4, 1 << 40));
    let flag = retained.flag(5, 6);
    retained.set_cover(Cover { seq: 77, order: 2 });
    drop(gone);
    assert_eq!(room.left(), (7, 1));

    let (again, found) = reopen(&memory).unwrap();
    assert_eq!((again.id(), found.cover), (ID, Some(Cover { seq: 77, order: 2 })));
    let pages: Vec<_> = found.pages.iter().map(|(of, order, page)| (*of, *order, page.crc())).collect();
    assert_eq!(pages, [(block(1, 8), 0, first.crc()), (block(2, 9), 1, second.crc())]);
    assert_eq!((&*found.pages[0].2, &*found.pages[1].2), (&content(100), &content(200)));
    assert_eq!(found.ranges.len(), 1);
    assert_eq!((found.ranges[0].0, found.ranges[0].1), (range(3, 4, 1 << 40), 3));
    assert_eq!(found.flags.iter().map(|f| (f.0, f.1)).collect::<Vec<_>>(), [(5, 6)]);
    assert!(found.damaged.is_empty());
    assert_eq!((again.order(), retained.order()), (5, 5));

    // What was found can be dropped, and then is not found again.
    drop((found, first, second, zeroes, flag));
    assert!(again.is_empty() && retained.is_empty());
    let (_, found) = reopen(&memory).unwrap();
    assert!(found.pages.is_empty() && found.ranges.is_empty() && found.flags.is_empty());
}

/// Dropping pages and flags after a failure leaves the memory as a kill of the process does. Only a flag that
/// is not true any more can be removed.
#[test]
fn only_a_withdrawal_changes_a_frozen_memory() {
    let memory = heap();
    let retained = create(&memory);
    let page = put(&retained, None, block(1, 8), 100);
    let (dropped, withdrawn, late) = (retained.flag(1, 1), retained.flag(2, 1), retained.flag(3, 1));
    assert!(retained.set_cover(Cover { seq: 1, order: 1 }));
    retained.freeze();
    assert!(!retained.set_cover(Cover { seq: 2, order: 2 }));
    drop((page, dropped));
    withdrawn.withdraw();
    retained.leave();
    late.withdraw();
    let (_, found) = reopen(&memory).unwrap();
    assert_eq!((found.pages.len(), found.cover), (1, Some(Cover { seq: 1, order: 1 })));
    assert_eq!(found.flags.iter().map(|f| f.0).collect::<Vec<_>>(), [1, 3]);
}

#[test]
fn memory_that_is_kept_does_not_change() {
    let memory = heap();
    let retained = create(&memory);
    let mut room = retained.reserve(300, 2);
    let mut pages: Vec<_> = (0..300).map(|n| put(&retained, room.as_mut(), block(1, n), n)).collect();
    retained.set_cover(Cover { seq: 1, order: 2 });
    retained.leave();
    let kept = |what: &str| {
        let (_, found) = reopen(&memory).unwrap();
        let numbers: Vec<_> = found.pages.iter().map(|(of, order, _)| (of.block, *order)).collect();
        assert_eq!(numbers, (0..300).map(|n| (n, n)).collect::<Vec<_>>(), "{what}");
        assert_eq!((found.ranges.len(), found.flags.len()), (0, 0), "{what}");
        assert_eq!(found.cover, Some(Cover { seq: 1, order: 2 }), "{what}");
    };
    // Another owner may use the memory from now on, so late work of this one must not reach it.
    drop(retained.flag(7, 7));
    let flag = retained.flag(7, 7);
    kept("a flag");
    let late: Vec<_> = (0..600).map(|n| put(&retained, room.as_mut(), block(2, n), n)).collect();
    assert!(late.iter().all(|page| !page.is_retained() && page.len() == PAGE));
    kept("pages");
    let zeroes = retained.range(room.as_mut(), range(3, 4, 5));
    retained.set_cover(Cover { seq: 9, order: 9 });
    kept("a statement about the log");
    pages.truncate(10);
    retained.set_limit(0);
    kept("a smaller limit");
    drop((late, flag, zeroes, pages, room));
    drop(retained);
    kept("the end of the owner");
}
