//! The lines of a configuration file to which errors of its values belong.

use toml::de::{DeTable, DeValue};

use super::{ConfigError, ConfigFile, IscsiSection, Overrides, ServeConfig, line_of, lines_of_keys};

/// The text of a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    path: String,
    text: String,
}

impl ConfigFile {
    /// Whether an error is that of a value in the file, rather than of an option: `alone` has no options that
    /// override values.
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

    fn line(&self, error: &ConfigError) -> Option<usize> {
        match error {
            ConfigError::Value { option, .. } | ConfigError::NotInCeph(option) => {
                let lines = lines_of_keys(&self.text);
                let words = option.split([' ', ',', '(', ')']);
                words.filter_map(|key| lines.get(key)).copied().next()
            }
            ConfigError::Listener { index, .. } => self.line_in("nbd", "listener", |at, _| at == *index),
            // The later one of two with the same name is the one that is refused.
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
