//! The cost of a page, printed: `cargo test --release ... -- --ignored --nocapture cost_of_a_page`.

use std::sync::Arc;
use std::time::Instant;

use crate::common::*;
use forebay_retained::*;

const ROUNDS: u32 = 500_000;

/// Publishes and drops pages, of which the last 64 are kept.
fn publish(retained: &Arc<Retained>, disk: u32) {
    let source = content(disk.into());
    let mut kept: Vec<Option<Page>> = (0..64).map(|_| None).collect();
    for round in 0..ROUNDS / 64 {
        let mut room = retained.reserve(64, 0).unwrap();
        for (n, place) in kept.iter_mut().enumerate() {
            let of = block(disk, u64::from(round) * 64 + n as u64);
            *place = Some(retained.page(Some(&mut room), of, |page| page.copy_from_slice(&source)));
        }
    }
}

#[test]
#[ignore = "a measurement"]
fn cost_of_a_page() {
    let retained = create(&heap());
    publish(&retained, 0);
    for threads in [1, 2] {
        let begin = Instant::now();
        std::thread::scope(|scope| {
            for disk in 0..threads {
                let retained = &retained;
                scope.spawn(move || publish(retained, disk));
            }
        });
        let ns = begin.elapsed().as_nanos() / u128::from(ROUNDS);
        println!("{threads} threads: {ns} ns for each page of a thread, published and dropped");
    }
    let source = content(0);
    let begin = Instant::now();
    for _ in 0..ROUNDS {
        std::hint::black_box(forebay_format::crc32c(std::hint::black_box(&source)));
    }
    println!("checksum alone: {} ns", begin.elapsed().as_nanos() / u128::from(ROUNDS));
}
