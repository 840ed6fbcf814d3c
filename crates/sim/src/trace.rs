//! The events of a run as text, for the report of a failure.

use std::cell::RefCell;
use std::collections::VecDeque;

const KEPT: usize = 4000;

thread_local! {
    static LINES: RefCell<VecDeque<String>> = const { RefCell::new(VecDeque::new()) };
}

/// Clears the trace.
pub fn clear() {
    LINES.with_borrow_mut(VecDeque::clear);
}

/// Adds a line and drops the oldest. With `FOREBAY_LIVE` it is printed immediately, for a round that does not
/// end.
pub fn note(line: String) {
    static LIVE: std::sync::LazyLock<bool> =
        std::sync::LazyLock::new(|| std::env::var_os("FOREBAY_LIVE").is_some());
    if *LIVE {
        eprintln!("{line}");
    }
    LINES.with_borrow_mut(|lines| {
        if lines.len() == KEPT {
            lines.pop_front();
        }
        lines.push_back(line);
    });
}

/// The last `n` lines.
pub fn tail(n: usize) -> String {
    LINES.with_borrow(|lines| {
        let from = lines.len().saturating_sub(n);
        lines.iter().skip(from).cloned().collect::<Vec<_>>().join("\n")
    })
}

/// Adds a formatted line to the trace.
#[macro_export]
macro_rules! note {
    ($($arg:tt)*) => { $crate::trace::note(format!($($arg)*)) };
}
