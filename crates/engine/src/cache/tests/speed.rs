//! A benchmark, not a test: `cargo test --release -p forebay-engine cache -- --ignored --nocapture`.

use std::hint::black_box;
use std::time::Duration;

use super::*;
use crate::cache::{Owner, ReadCache};

const ROUNDS: u64 = 2_000_000;

fn each(what: &str, ops: u64, took: Duration) {
    println!("{what}: {:.0} ns each", took.as_nanos() as f64 / ops as f64);
}

/// CPU time of this thread: other load on the machine does not count.
fn cpu() -> Duration {
    let line = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    Duration::from_nanos(line.split(' ').next().and_then(|ns| ns.parse().ok()).expect("a number"))
}

/// Resident bytes of this process.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("a number") * 4096
}

#[test]
#[ignore = "measures, and checks nothing"]
fn measure() {
    for budget in [1_u64 << 20, 16 << 20, 512 << 20] {
        let before = resident();
        let cache = ReadCache::new(budget);
        let plain = block(1);
        let fit = budget / (BLOCK as u64 + 64);
        let begin = cpu();
        (0..fit).for_each(|n| cache.insert(address(n), &plain));
        println!("--- {} MiB, {} blocks", budget >> 20, cache.len());
        each("insert into free room", fit, cpu() - begin);
        let begin = cpu();
        (fit..3 * fit).for_each(|n| cache.insert(address(n), &plain));
        each("insert with eviction", 2 * fit, cpu() - begin);
        println!("resident for each byte of budget: {:.3}", (resident() - before) as f64 / budget as f64);

        let held = (0..3 * fit).filter(|n| cache.contains(address(*n))).collect::<Vec<_>>();
        let mut random = Random(1);
        let asked = (0..ROUNDS).map(|_| held[random.below(held.len() as u64) as usize]).collect::<Vec<_>>();
        let mut out = [0; BLOCK];
        let memory = vec![1_u8; fit as usize * BLOCK];
        let begin = cpu();
        for _ in 0..ROUNDS {
            let at = random.below(fit) as usize * BLOCK;
            out.copy_from_slice(&memory[at..at + BLOCK]);
            black_box(&mut out);
        }
        each("for comparison, a plain copy of a random 4 KiB", ROUNDS, cpu() - begin);
        drop(memory);
        let begin = cpu();
        for n in &asked {
            assert!(cache.get(address(*n), 0, &mut out, Owner::SHARED));
            black_box(&mut out);
        }
        each("hit, 4 KiB", ROUNDS, cpu() - begin);
        let begin = cpu();
        for n in &asked {
            assert!(cache.get(address(*n), 512, &mut out[..512], Owner::SHARED));
            black_box(&mut out);
        }
        each("hit, 512 bytes", ROUNDS, cpu() - begin);
        let begin = cpu();
        for n in &asked {
            black_box(cache.contains(address(*n + (1 << 40 >> 16))));
        }
        each("miss", ROUNDS, cpu() - begin);
        let begin = cpu();
        cache.set_budget(budget / 2);
        println!(
            "budget halved in {:?}, resident {:.3}",
            cpu() - begin,
            (resident() - before) as f64 / budget as f64
        );
    }
}
