//! Errors of the TOML parser, as an administrator reads them: key, value given, and what is allowed.

use std::ops::Range;

use toml::de::{DeTable, DeValue};

use super::{nearest, settings};
use crate::config::{ConfigFile, Overrides, ServeConfig};

/// Maximum length of a value in a message, in characters.
const MAX_VALUE: usize = 60;

/// The message for an error of the parser in a text.
pub(super) fn explain(text: &str, error: &toml::de::Error) -> String {
    let message = error.message().replace('\n', "; ");
    let span = error.span().unwrap_or(0..0);
    let key = key_at(text, &span);
    let key = key.as_deref();
    let value = shortened(text.get(span.clone()).unwrap_or_default());
    if let Some(unknown) = message.strip_prefix("unknown field `").and_then(|rest| rest.split('`').next()) {
        return match section_of(unknown) {
            Some(section) if key.is_none_or(|key| !key.contains('.')) => {
                format!("unknown key '{unknown}'; it belongs in [{section}]")
            }
            _ => nearest::explain(&message),
        };
    }
    if let Some(missing) = message.strip_prefix("missing field `") {
        let table = key.map_or_else(|| "the file".to_owned(), |key| format!("'{key}'"));
        return format!("missing key '{}' in {table}", missing.trim_end_matches('`'));
    }
    if message == "duplicate key" {
        return format!("'{value}' is set more than once: keep one");
    }
    let Some(key) = key else { return syntax(text, &span, &message) };
    let invalid = |allowed: &str| format!("invalid value {value} for {key}: use {allowed}");
    if message.starts_with("unknown variant `") {
        return invalid(&alternatives(&message));
    }
    if let Some((_, expected)) = message.split_once(", expected ")
        && (message.starts_with("invalid type: ") || message.starts_with("invalid value: "))
    {
        return invalid(&allowed(key, expected, value.starts_with('[')));
    }
    match message.as_str() {
        "wanted string or table" => invalid("a text in quotes"),
        "invalid socket address syntax" => invalid("ADDRESS:PORT, such as 10.0.0.11:3260"),
        // A message of a type of this server, which names value and syntax.
        _ => format!("{key}: {message}"),
    }
}

/// The values that a type of the server allows.
fn allowed(key: &str, expected: &str, is_header: bool) -> String {
    match expected {
        "u8" | "u16" | "u32" => {
            let most = match expected {
                "u8" => u64::from(u8::MAX),
                "u16" => u64::from(u16::MAX),
                _ => u64::from(u32::MAX),
            };
            format!("a whole number from 0 to {most}, without quotes")
        }
        "u64" | "usize" => "a whole number, without quotes".into(),
        "a boolean" => "true or false, without quotes".into(),
        "a string" | "path string" => "a text in quotes".into(),
        "a sequence" if is_header => format!("[[{key}]], with two brackets"),
        "a sequence" => "a list in brackets".into(),
        _ if expected.starts_with("struct ") || expected.contains("map") => {
            format!("a table: [{key}] in a separate line, and its keys below")
        }
        other => other.replace('`', "'"),
    }
}

/// Returns the valid values in a message about an unknown value, in quotes.
fn alternatives(message: &str) -> String {
    let words = message.split('`').skip(3).step_by(2);
    let words: Vec<String> = words.map(|word| format!("\"{word}\"")).collect();
    match words.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
        None => "another one".into(),
    }
}

/// Returns the section that has a key of this name; `None` if several sections have such a key.
fn section_of(unknown: &str) -> Option<String> {
    let flags = Overrides { data: Some("/".into()), ..Overrides::default() };
    let config = ServeConfig::resolve(ConfigFile::default(), flags).ok()?;
    let all = settings(&config);
    let mut found = all.iter().filter_map(|s| s.key.rsplit_once('.')).filter(|(_, key)| *key == unknown);
    match (found.next(), found.next()) {
        (Some((section, _)), None) => Some(section.to_owned()),
        _ => None,
    }
}

/// The message for a text that is not TOML.
fn syntax(text: &str, span: &Range<usize>, message: &str) -> String {
    let at = span.start.min(text.len());
    let (before, after) = (text.get(..at).unwrap_or_default(), text.get(at..).unwrap_or_default());
    let begin = before.rsplit('\n').next().unwrap_or_default();
    let rest = after.split('\n').next().unwrap_or_default();
    let line = format!("{begin}{rest}");
    let (what, expected) = message.split_once(", expected ").unwrap_or((message, ""));
    if let Some(message) = bare_value(&line, what) {
        return message;
    }
    match what {
        "unexpected key or value" => "unexpected text after a value: write one setting in a line".into(),
        "key with no value" => {
            format!("'{}' is no setting: write KEY = VALUE", shortened(line.trim()))
        }
        "unquoted keys cannot be empty" => "missing key before '='".into(),
        "unclosed table" => "missing ']' after the name of a section".into(),
        "unclosed array" => "missing ']' at the end of a list".into(),
        "missing comma between array elements" => "missing comma between two values of a list".into(),
        "invalid basic string" | "invalid literal string" => "missing quote at the end of a text".into(),
        "missing escaped value" => {
            "unknown escape sequence: write \\\\ for a backslash, or put the text in single quotes".into()
        }
        "unexpected leading zero" => "a number has no leading zero".into(),
        _ if expected.is_empty() => format!("not valid TOML: {}", message.replace('`', "'")),
        _ => format!("not valid TOML: {what}; expected {}", expected.replace('`', "'")),
    }
}

/// The message for a value without quotes that is no number, and not `true` or `false`.
fn bare_value(line: &str, what: &str) -> Option<String> {
    let (key, value) = line.split_once('=')?;
    let (key, value) = (key.trim(), value.split('#').next().unwrap_or_default().trim());
    let is_scalar = what == "string values must be quoted"
        || what == "integer number overflowed"
        || what == "`_` may only go between digits"
        || ["boolean", "float", "date", "time", "fraction", "mantissa", "exponent"]
            .iter()
            .any(|kind| what.strip_prefix("invalid ").is_some_and(|of| of.starts_with(kind)));
    if !is_scalar || value.starts_with(['"', '\'', '[', '{']) {
        return None;
    }
    Some(match shortened(value) {
        value if value.is_empty() => format!("'{key}' has no value"),
        value => format!("invalid value {value} for {key}: a text needs quotes, such as \"{value}\""),
    })
}

fn shortened(value: &str) -> String {
    let line = value.split('\n').next().unwrap_or_default();
    if line.len() == value.len() && line.chars().count() <= MAX_VALUE {
        return line.to_owned();
    }
    format!("{}...", line.chars().take(MAX_VALUE).collect::<String>())
}

/// The key whose value or table begins at a position, such as `memory.read_cache`. `None` if the text is not
/// TOML.
fn key_at(text: &str, span: &Range<usize>) -> Option<String> {
    let table = DeTable::parse(text).ok()?;
    in_table(table.get_ref(), "", span)
}

fn in_table(table: &DeTable<'_>, prefix: &str, span: &Range<usize>) -> Option<String> {
    table.iter().find_map(|(key, value)| {
        let name = joined(prefix, key.get_ref());
        let is_here = value.span().start == span.start || key.span().start == span.start;
        in_value(value.get_ref(), &name, span).or(is_here.then_some(name))
    })
}

fn in_value(value: &DeValue<'_>, name: &str, span: &Range<usize>) -> Option<String> {
    match value {
        DeValue::Table(table) => in_table(table, name, span),
        DeValue::Array(items) => items.iter().find_map(|item| {
            let is_here = item.span().start == span.start;
            in_value(item.get_ref(), name, span).or(is_here.then(|| name.to_owned()))
        }),
        _ => None,
    }
}

/// The name of a key in a table with this name.
pub(super) fn joined(prefix: &str, key: &str) -> String {
    match prefix {
        "" => key.to_owned(),
        prefix => format!("{prefix}.{key}"),
    }
}
