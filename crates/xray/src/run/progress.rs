//! Progress on standard error: a bar on a terminal, otherwise a line now and then.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::scenario::Span;

/// Interval between lines without a terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);
const TEMPLATE: &str = "{bar:24} {msg}";

/// The progress of a run; see the module documentation.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    quiet: bool,
    prefix: String,
    /// Planned time of all phases of all targets, and what is done.
    total: Duration,
    done: Duration,
    last: Instant,
}

impl Progress {
    pub fn new(quiet: bool, total: Duration) -> Progress {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new(1000);
            // An invalid template is not an error: use the default bar.
            bar.set_style(
                ProgressStyle::with_template(TEMPLATE).unwrap_or_else(|_| ProgressStyle::default_bar()),
            );
            bar
        });
        Progress { bar, quiet, prefix: String::new(), total, done: Duration::ZERO, last: Instant::now() }
    }

    /// The target of what follows.
    pub fn target(&mut self, name: &str) {
        self.prefix = name.to_owned();
    }

    /// Reports that a step begins.
    pub fn say(&mut self, what: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(format!("{}: {what}", self.prefix)),
            None if self.quiet => {}
            None => eprintln!("xray: {}: {what}", self.prefix),
        }
    }

    /// Reports how far a phase is.
    pub fn phase(&mut self, name: &str, elapsed: Duration, planned: Option<Duration>, rate: f64) {
        let left = planned.map(|planned| {
            let left = self.total.saturating_sub(self.done).saturating_sub(elapsed.min(planned));
            format!("; {} left in all", Span(Duration::from_secs(left.as_secs().max(1))))
        });
        let elapsed_text = Span(Duration::from_secs(elapsed.as_secs().max(1)));
        let of = planned.map_or_else(String::new, |p| format!(" of {}", Span(p)));
        let text = format!("{name}: {elapsed_text}{of}, {rate:.0} requests/s{}", left.unwrap_or_default());
        match &self.bar {
            Some(bar) => {
                let done = (self.done + elapsed).as_secs_f64() / self.total.as_secs_f64().max(0.001);
                bar.set_position((done * 1000.0).min(1000.0) as u64);
                bar.set_message(format!("{}: {text}", self.prefix));
            }
            None if self.quiet || self.last.elapsed() < LINE_EVERY => {}
            None => {
                self.last = Instant::now();
                eprintln!("xray: {}: {text}", self.prefix);
            }
        }
    }

    /// A phase is over that was planned to take this long.
    pub fn phase_done(&mut self, planned: Duration) {
        self.done += planned;
    }

    pub fn finish(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
