//! How far something is: on a terminal a bar, otherwise a line now and then; both on standard error, so that
//! standard output has the result alone.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Where progress is shown.
#[derive(Clone)]
pub(super) enum Progress {
    Bar { bar: ProgressBar, template: &'static str },
    Lines { last: Instant },
    Nothing,
}

/// One look at something under way.
pub(super) struct Step<'a> {
    /// How the bar looks, in the language of `indicatif`.
    pub template: &'static str,
    pub done: u64,
    /// Where it ends, if that is known.
    pub total: Option<u64>,
    /// What is under way.
    pub message: &'a str,
}

impl Progress {
    /// Nothing is shown to those who asked for JSON.
    pub fn new(json: bool) -> Progress {
        match (json, std::io::stderr().is_terminal()) {
            (true, _) => Progress::Nothing,
            (false, true) => Progress::Bar { bar: ProgressBar::no_length(), template: "" },
            (false, false) => Progress::Lines { last: Instant::now() },
        }
    }

    /// Shows a step; as a line, if it is time for one, in the words of `line`.
    pub fn show(&mut self, step: &Step<'_>, line: impl FnOnce() -> String) {
        match self {
            Progress::Bar { bar, template } => {
                if *template != step.template {
                    *template = step.template;
                    // A template that indicatif does not like is no reason to fail: a plain bar it is then.
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
                eprintln!("{}", crate::text::one_line(&line()));
            }
            Progress::Lines { .. } | Progress::Nothing => (),
        }
    }

    /// Takes the bar away.
    pub fn clear(&self) {
        if let Progress::Bar { bar, .. } = self {
            bar.finish_and_clear();
        }
    }
}
