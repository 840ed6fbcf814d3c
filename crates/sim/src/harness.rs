//! Runs many rounds, each from a separate seed, and reports a failure with the command that replays it.
//!
//! `FOREBAY_SEED=n` runs only that round, `FOREBAY_ROUNDS=n` that many instead of the default, both together
//! that many from that seed on. `FOREBAY_OPS=n` limits the operations in one life of the pool, which makes a
//! failure smaller; `FOREBAY_TRACE=n` shows the last `n` lines of the trace instead of 60.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use parking_lot::Mutex;

use crate::exec::STEPS;
use crate::trace;

thread_local! {
    static IN_ROUND: Cell<bool> = const { Cell::new(false) };
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
    static SEED: Cell<u64> = const { Cell::new(0) };
}

/// A number from the environment.
pub fn env(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value} is not a number")))
}

/// Records panics in a round for its report; a round that hangs ends the process.
fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |info| {
            if IN_ROUND.get() {
                // Expensive, so only for a single round.
                let single = std::env::var_os("FOREBAY_SEED").is_some();
                let trace = single.then(|| format!("\n{}", std::backtrace::Backtrace::capture()));
                PANIC.set(format!("{info}{}", trace.unwrap_or_default()));
            } else {
                before(info);
            }
        }));
        std::thread::spawn(|| {
            let mut last = STEPS.load(SeqCst);
            loop {
                std::thread::sleep(Duration::from_secs(90));
                let now = STEPS.load(SeqCst);
                if now == last && RUNNING.load(SeqCst) > 0 {
                    eprintln!("a round hangs within one poll; the seeds under way were named above");
                    std::process::abort();
                }
                last = now;
            }
        });
    });
}

static RUNNING: AtomicU64 = AtomicU64::new(0);

/// Runs one round; returns its failure as text.
pub fn attempt<T>(seed: u64, round: impl FnOnce() -> T) -> Result<T, String> {
    prepare();
    trace::clear();
    SEED.set(seed);
    IN_ROUND.set(true);
    RUNNING.fetch_add(1, SeqCst);
    let result = catch_unwind(AssertUnwindSafe(round));
    RUNNING.fetch_sub(1, SeqCst);
    IN_ROUND.set(false);
    result.map_err(|payload| {
        let kept = PANIC.take();
        if kept.is_empty() { message(payload.as_ref()) } else { kept }
    })
}

fn message(payload: &dyn Any) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    text.or(payload.downcast_ref::<&str>().copied()).unwrap_or("a panic").to_owned()
}

/// Runs rounds `first_seed..` on all cores, and panics with a report if one fails. `round` gets the seed and
/// the maximum number of operations in a life.
pub fn rounds(test: &str, first_seed: u64, count: u64, round: impl Fn(u64, Option<u64>) + Sync) {
    let ops = env("FOREBAY_OPS");
    let (first, count) = match (env("FOREBAY_SEED"), env("FOREBAY_ROUNDS")) {
        (Some(seed), rounds) => (seed, rounds.unwrap_or(1)),
        (None, rounds) => (first_seed, rounds.unwrap_or(count)),
    };
    let next = AtomicU64::new(first);
    let failed = Mutex::new(None::<(u64, String)>);
    let work = || {
        loop {
            let seed = next.fetch_add(1, SeqCst);
            if seed >= first + count || failed.lock().is_some() {
                return;
            }
            let Err(why) = attempt(seed, || round(seed, ops)) else { continue };
            let tail = trace::tail(shown());
            let (ops, why, tail) = smaller(seed, ops, &round).unwrap_or((ops, why, tail));
            let ops = ops.map_or(String::new(), |n| format!("FOREBAY_OPS={n} "));
            let report = format!(
                "\n{tail}\n\n{why}\n\nto replay: FOREBAY_SEED={seed} {ops}cargo test -p forebay-sim {test}\n"
            );
            let mut failed = failed.lock();
            if failed.as_ref().is_none_or(|(other, _)| seed < *other) {
                *failed = Some((seed, report));
            }
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(count as usize);
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    if let Some((_, report)) = failed.into_inner() {
        panic!("{report}");
    }
}

/// Lines of the trace in a report.
fn shown() -> usize {
    env("FOREBAY_TRACE").unwrap_or(60) as usize
}

/// Searches for a smaller number of operations with which the round fails too.
fn smaller(
    seed: u64,
    ops: Option<u64>,
    round: &impl Fn(u64, Option<u64>),
) -> Option<(Option<u64>, String, String)> {
    let tried = [1, 2, 3, 4, 6, 8, 11, 15, 20, 30, 45, 60, 90, 120];
    tried.into_iter().filter(|n| ops.is_none_or(|o| *n < o)).find_map(|n| {
        let why = attempt(seed, || round(seed, Some(n))).err()?;
        Some((Some(n), why, trace::tail(shown())))
    })
}
