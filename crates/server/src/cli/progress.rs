//! Progress display on standard error: a bar on a terminal, otherwise periodic lines. Standard output has
//! only the result.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Interval between progress lines without a terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// How the progress of a command is displayed.
#[derive(Clone)]
pub(super) enum Progress {
    Bar { bar: ProgressBar, template: &'static str },
    Lines { last: Instant },
    Off,
}

/// A report on the progress of a job.
pub(super) struct Step<'a> {
    /// Template of the bar (`indicatif` syntax).
    pub template: &'static str,
    pub done: u64,
    /// The total number of steps; `None` if it is not known.
    pub total: Option<u64>,
    /// What the server is doing.
    pub message: &'a str,
}

impl Progress {
    /// Creates a display for standard error; with `json`, nothing is shown.
    pub fn new(json: bool) -> Progress {
        match (json, std::io::stderr().is_terminal()) {
            (true, _) => Progress::Off,
            (false, true) => Progress::Bar { bar: ProgressBar::no_length(), template: "" },
            (false, false) => Progress::Lines { last: Instant::now() },
        }
    }

    /// Updates the bar, or prints `line` if the interval has passed.
    pub fn show(&mut self, step: &Step<'_>, line: impl FnOnce() -> String) {
        match self {
            Progress::Bar { bar, template } => {
                if *template != step.template {
                    *template = step.template;
                    // An invalid template is not an error: use the default bar.
                    let style = ProgressStyle::with_template(template);
                    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
                    bar.reset_eta();
                }
                step.total.into_iter().for_each(|total| bar.set_length(total));
                bar.set_position(step.done);
                bar.set_message(step.message.to_owned());
            }
            Progress::Lines { last } if last.elapsed() >= LINE_EVERY => {
                *last = Instant::now();
                eprintln!("{}", forebay_text::one_line(&line()));
            }
            Progress::Lines { .. } | Progress::Off => (),
        }
    }

    /// Removes the progress bar.
    pub fn clear(&self) {
        if let Progress::Bar { bar, .. } = self {
            bar.finish_and_clear();
        }
    }
}
