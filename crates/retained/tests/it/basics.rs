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
