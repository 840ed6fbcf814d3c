//! The lines of a configuration file to which errors of its values belong.

use std::fmt;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{ConfigError, ConfigFile, IscsiSection, Overrides, ServeConfig, line_of, lines_of_keys};

/// The text of a configuration file.
#[derive(Clone, PartialEq, Eq)]
pub struct Source {
    path: String,
    text: String,
}

/// Without the text, which may have secrets.
impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("path", &self.path).finish_non_exhaustive()
    }
}

impl ConfigFile {
    /// Whether the cause of an error is a value in the file and not an option. `alone` is the configuration
    /// without the options that override values.
    pub(super) fn causes(&self, error: &ConfigError, alone: Overrides) -> bool {
        if matches!(error, ConfigError::Target { .. } | ConfigError::Listener { .. }) {
            return true;
        }
        // Without targets, whose secrets would be read again.
        let iscsi = IscsiSection { target: Vec::new(), ..self.iscsi.clone() };
        let file = ConfigFile { iscsi, ..self.clone() };
        ServeConfig::merge(file, alone).is_err_and(|found| found == *error)
    }
}

impl Source {
    pub(super) fn new(path: &str, text: &str) -> Source {
        Source { path: path.to_owned(), text: text.to_owned() }
    }

    /// Adds file and line to an error of a value.
    pub(super) fn located(self, error: ConfigError) -> ConfigError {
        match self.line(&error) {
            Some(line) => ConfigError::At { path: self.path, line, error: Box::new(error) },
            None => error,
        }
    }

    /// Path of the configuration file.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Returns the first of these keys whose text, or one of whose list of texts, satisfies `wanted`; and the
    /// line of that text.
    pub(crate) fn line_of_text(
        &self,
        keys: &[&'static str],
        wanted: &dyn Fn(&str) -> bool,
    ) -> Option<(&'static str, usize)> {
        let file = DeTable::parse(&self.text).ok()?;
        keys.iter().find_map(|key| {
            let parts: Vec<&str> = key.split('.').collect();
            let start = start_in_table(file.get_ref(), &parts, wanted)?;
            Some((*key, line_of(&self.text, start)))
        })
    }

    fn line(&self, error: &ConfigError) -> Option<usize> {
        match error {
            ConfigError::Value { option, .. } | ConfigError::NotInCeph(option) => {
                let lines = lines_of_keys(&self.text);
                let words = option.split([' ', ',', '(', ')']);
                words.filter_map(|key| lines.get(key)).copied().next()
            }
            ConfigError::Listener { index, .. } => self.line_in("nbd", "listener", |at, _| at == *index),
            // If two targets have the same name, the later target is refused.
            ConfigError::Target { name, .. } => self.line_in("iscsi", "target", |_, table| {
                let given = table.get("name").map(|name| name.get_ref());
                matches!(given, Some(DeValue::String(given)) if given.eq_ignore_ascii_case(name.as_str()))
            }),
            _ => None,
        }
    }

    /// The line of the last table of an array for which `wanted` returns true.
    fn line_in(
        &self,
        section: &str,
        array: &str,
        wanted: impl Fn(usize, &DeTable<'_>) -> bool,
    ) -> Option<usize> {
        let file = DeTable::parse(&self.text).ok()?;
        let DeValue::Table(section) = file.get_ref().get(section)?.get_ref() else { return None };
        let DeValue::Array(tables) = section.get(array)?.get_ref() else { return None };
        let found = tables.iter().enumerate().filter_map(|(at, table)| match table.get_ref() {
            DeValue::Table(keys) if wanted(at, keys) => Some(table.span().start),
            _ => None,
        });
        found.last().map(|start| line_of(&self.text, start))
    }
}

fn start_in_table(table: &DeTable<'_>, key: &[&str], wanted: &dyn Fn(&str) -> bool) -> Option<usize> {
    let (first, rest) = key.split_first()?;
    start_in_value(table.get(*first)?, rest, wanted)
}

/// Returns where a text begins: the value itself, or the value of a key in it.
fn start_in_value(
    value: &Spanned<DeValue<'_>>,
    key: &[&str],
    wanted: &dyn Fn(&str) -> bool,
) -> Option<usize> {
    match value.get_ref() {
        DeValue::Table(table) => start_in_table(table, key, wanted),
        DeValue::Array(items) => items.iter().find_map(|item| start_in_value(item, key, wanted)),
        DeValue::String(text) if key.is_empty() && wanted(text) => Some(value.span().start),
        _ => None,
    }
}
