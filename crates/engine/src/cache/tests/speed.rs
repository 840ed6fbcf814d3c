//! A measurement, not a test: `cargo test --release -p forebay-engine cache -- --ignored --nocapture`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use super::*;
use crate::cache::ReadCache;

const ROUNDS: u64 = 2_000_000;

fn each(what: &str, ops: u64, took: Duration) {
    println!("{what}: {:.0} ns each", took.as_nanos() as f64 / ops as f64);
}

/// Resident bytes of this process.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("a number") * 4096
}

#[test]
#[ignore = "measures, and checks nothing"]
fn measure() {
    for budget in [16_u64 << 20, 512 << 20] {
        let before = resident();
        let cache = ReadCache::new(budget);
        let plain = block(1);
        let fit = budget / (BLOCK as u64 + 64);
        let begin = Instant::now();
        (0..fit).for_each(|n| cache.insert(address(n), &plain));
        println!("--- {} MiB, {} blocks", budget >> 20, cache.len());
        each("insert into free room", fit, begin.elapsed());
        let begin = Instant::now();
        (fit..3 * fit).for_each(|n| cache.insert(address(n), &plain));
        each("insert with eviction", 2 * fit, begin.elapsed());
        println!("resident for each byte of budget: {:.3}", (resident() - before) as f64 / budget as f64);

        let held = (0..3 * fit).filter(|n| cache.contains(address(*n))).collect::<Vec<_>>();
        let mut random = Random(1);
        let asked = (0..ROUNDS).map(|_| held[random.below(held.len() as u64) as usize]).collect::<Vec<_>>();
        let mut out = [0; BLOCK];
        let begin = Instant::now();
        for n in &asked {
            assert!(cache.get(address(*n), 0, &mut out));
            black_box(&mut out);
        }
        each("hit, 4 KiB", ROUNDS, begin.elapsed());
        let begin = Instant::now();
        for n in &asked {
            assert!(cache.get(address(*n), 512, &mut out[..512]));
            black_box(&mut out);
        }
        each("hit, 512 bytes", ROUNDS, begin.elapsed());
        let begin = Instant::now();
        for n in &asked {
            black_box(cache.contains(address(*n + (1 << 40 >> 16))));
        }
        each("miss", ROUNDS, begin.elapsed());
        let begin = Instant::now();
        cache.set_budget(budget / 2);
        println!(
            "budget halved in {:?}, resident {:.3}",
            begin.elapsed(),
            (resident() - before) as f64 / budget as f64
        );
    }
}
