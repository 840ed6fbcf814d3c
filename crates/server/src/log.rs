//! The log: events on standard error, as text or as JSON, one line each.
//!
//! `FOREBAY_LOG` sets the filter; without it, `[logging] filter` does, which can change while the server
//! runs.

use std::io::{self, Write};
use std::sync::OnceLock;

use forebay_text::{json, one_line};
use serde::Deserialize;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt, reload};

/// The environment variable that sets the filter.
pub const FILTER_VARIABLE: &str = "FOREBAY_LOG";
/// The filter without any setting.
pub const DEFAULT_FILTER: &str = "info";

/// Form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Lines for people
    #[default]
    Text,
    /// One JSON object for each event
    Json,
}

/// Configuration of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogConfig {
    /// Form.
    pub format: LogFormat,
    /// Filter, such as `warn` or `info,forebay_engine=debug`.
    pub filter: String,
}

impl Default for LogConfig {
    fn default() -> LogConfig {
        LogConfig { format: LogFormat::Text, filter: DEFAULT_FILTER.to_owned() }
    }
}

/// Replaces the filter of the process's log.
static FILTER: OnceLock<reload::Handle<EnvFilter, Registry>> = OnceLock::new();

/// Whether a filter is valid: each part is a level, or a module with its level. A word that is no level would
/// select a module of that name, which does not exist.
pub fn is_filter(text: &str) -> bool {
    let is_level =
        |word: &str| !word.is_empty() && word.parse::<tracing_subscriber::filter::LevelFilter>().is_ok();
    let level_of = |part: &'_ str| part.rsplit_once('=').map_or(part, |(_, level)| level).trim().to_owned();
    text.split(',').all(|part| is_level(&level_of(part))) && EnvFilter::try_new(text).is_ok()
}

/// Starts the log of this process.
pub(crate) fn init(config: &LogConfig) {
    let filter = EnvFilter::try_from_env(FILTER_VARIABLE).unwrap_or_else(|_| EnvFilter::new(&config.filter));
    let (filter, handle) = reload::Layer::new(filter);
    let layer = match config.format {
        LogFormat::Text => fmt::layer().with_writer(|| LogWriter::Text).boxed(),
        LogFormat::Json => fmt::layer().json().flatten_event(true).with_writer(|| LogWriter::Json).boxed(),
    };
    match tracing_subscriber::registry().with(filter).with(layer).try_init() {
        // The first log of the process; there is no other.
        Ok(()) => drop(FILTER.set(handle)),
        Err(e) => eprintln!("forebay: {}", one_line(&e.to_string())),
    }
}

/// Replaces the filter. Returns whether it is in effect: `FOREBAY_LOG` precedes the configuration.
pub(crate) fn set_filter(filter: &str) -> bool {
    if std::env::var_os(FILTER_VARIABLE).is_some() {
        return false;
    }
    let (Some(handle), Ok(filter)) = (FILTER.get(), EnvFilter::try_new(filter)) else { return false };
    handle.reload(filter).is_ok()
}

/// Standard error for the log: each call of `write` is one event including its line end, and becomes one
/// line.
#[derive(Debug, Clone, Copy)]
pub(crate) enum LogWriter {
    /// Events are plain lines.
    Text,
    /// Events are JSON objects.
    Json,
}

impl Write for LogWriter {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let line = text.strip_suffix('\n').unwrap_or(&text);
        let mut line = match self {
            LogWriter::Text => one_line(line),
            LogWriter::Json => json(line),
        }
        .into_owned();
        line.push('\n');
        io::stderr().lock().write_all(line.as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().lock().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_checked() {
        assert!(is_filter("warn") && is_filter("info,forebay_engine=debug"));
        assert!(!is_filter("") && !is_filter("loud") && !is_filter("forebay=noise") && !is_filter("a=b=c"));
    }
}
