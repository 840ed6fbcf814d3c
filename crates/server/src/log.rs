//! The log: events on standard error, as text or as JSON, one line each.
//!
//! `FOREBAY_LOG` sets the filter; without it, `[logging] filter` does, which can change while the server
//! runs.

use std::fmt;
use std::io::{self, Write};
use std::sync::OnceLock;

use forebay_text::{json, one_line};
use serde::Deserialize;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::format::{DefaultFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};

/// The environment variable that sets the filter.
pub const FILTER_VARIABLE: &str = "FOREBAY_LOG";
/// The filter that is used without any setting.
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
    /// Form of the log lines.
    pub format: LogFormat,
    /// Filter of the log, such as `warn` or `info,forebay_engine=debug`.
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
        LogFormat::Text => tracing_subscriber::fmt::layer()
            .event_format(Sentence)
            .fmt_fields(RequestId)
            .with_writer(|| LogWriter::Text)
            .boxed(),
        LogFormat::Json => {
            let layer = tracing_subscriber::fmt::layer().json().flatten_event(true);
            layer.with_writer(|| LogWriter::Json).boxed()
        }
    };
    match tracing_subscriber::registry().with(filter).with(layer).try_init() {
        // This is the first subscriber of the process, so there is no other filter.
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

/// Target of the audit log, and the name of its events on a terminal.
const AUDIT: &str = "audit";

/// The form of an event for people: time, level, sentence, fields, and the id of the request that the event
/// belongs to. Modules of Forebay are named only at the levels for developers.
struct Sentence;

impl<S, N> FormatEvent<S, N> for Sentence
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, cx: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let (level, target) = (*event.metadata().level(), event.metadata().target());
        SystemTime.format_time(&mut out)?;
        write!(out, " {level:>5} ")?;
        if !target.starts_with("forebay") || level > Level::INFO {
            write!(out, "{target}: ")?;
        }
        match target {
            // The sentence has its fields, except for the way in which the client was authenticated.
            AUDIT => event.record(&mut Only { name: "message", out: out.by_ref(), result: Ok(()) }),
            _ => DefaultFields::new().format_fields(out.by_ref(), event)?,
        }
        for span in cx.event_scope().into_iter().flatten() {
            let extensions = span.extensions();
            let id = extensions.get::<FormattedFields<N>>().filter(|id| !id.is_empty());
            id.map_or(Ok(()), |id| write!(out, " {}={id}", span.name()))?;
        }
        writeln!(out)
    }
}

/// The fields of a span for people: its id. The audit log has the method and path of each request that
/// changes something or is denied.
struct RequestId;

impl<'w> FormatFields<'w> for RequestId {
    fn format_fields<R: RecordFields>(&self, out: Writer<'w>, fields: R) -> fmt::Result {
        let mut only = Only { name: "id", out, result: Ok(()) };
        fields.record(&mut only);
        only.result
    }
}

/// Writes the value of one field.
struct Only<'w> {
    name: &'static str,
    out: Writer<'w>,
    result: fmt::Result,
}

impl Visit for Only<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == self.name && self.result.is_ok() {
            self.result = write!(self.out, "{value:?}");
        }
    }
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
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The lines that `work` logs, without their time.
    fn lines_of(work: impl FnOnce()) -> Vec<String> {
        let buffer = Buffer::default();
        let writer = buffer.clone();
        let layer = tracing_subscriber::fmt::layer().event_format(Sentence).fmt_fields(RequestId);
        let log = tracing_subscriber::registry().with(layer.with_writer(move || writer.clone()));
        tracing::subscriber::with_default(log, work);
        let text = String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap();
        text.lines().map(|line| line.split_once(' ').unwrap().1.to_owned()).collect()
    }

    #[test]
    fn events_are_sentences() {
        let lines = lines_of(|| {
            let span = tracing::info_span!("request", id = "r-1", method = "POST", path = "/api");
            span.in_scope(|| tracing::info!(by = "me", error = None::<&str>, "created volume 'a'"));
            tracing::info!(target: "audit", who = "me", status = 201, "'me': POST /api succeeded (201)");
            tracing::warn!("no room");
            tracing::info!(target: "other", "hello");
            tracing::debug!(target: "forebay_engine::log", "details");
        });
        let expected = [
            " INFO created volume 'a' by=\"me\" request=r-1",
            " INFO audit: 'me': POST /api succeeded (201)",
            " WARN no room",
            " INFO other: hello",
            "DEBUG forebay_engine::log: details",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn filters_are_checked() {
        assert!(is_filter("warn") && is_filter("info,forebay_engine=debug"));
        assert!(!is_filter("") && !is_filter("loud") && !is_filter("forebay=noise") && !is_filter("a=b=c"));
    }
}
