//! `forebay config`: check a configuration file, and show the values in effect. Neither needs a server.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use forebay_text::Size;
use serde::Serialize;

use super::args::{ConfigCommand, Global};
use super::{CliError, output, unit};
use crate::config::{ConfigFile, DEFAULT_CONFIG, Overrides, ServeConfig, Setting, lines_of_keys, settings};
use crate::serve::{Measured, MemoryLimit};

/// A value in effect.
#[derive(Debug, Serialize)]
struct Shown {
    key: &'static str,
    /// In the syntax of the file; `null` if it has no value.
    value: Option<String>,
    /// `default`, `option`, or the file and line.
    source: String,
}

pub(super) fn run(command: ConfigCommand, global: &Global) -> Result<(), CliError> {
    match command {
        ConfigCommand::Check { file } => check(&path(file), global),
        ConfigCommand::Show { file, args } => {
            let args = *args;
            let path = path(args.config.clone().or(file));
            let (parsed, text) = ConfigFile::load_with_text(&path)?;
            let memory_limit = limit_for(&path).map(|limit| limit.bytes);
            let flags = Overrides { memory_limit, ..super::run::overrides(global, args) };
            let with = ServeConfig::resolve(parsed.clone(), flags.clone())?;
            // The data directory has no default.
            let data = flags.data.clone();
            let without =
                ServeConfig::resolve(parsed, Overrides { data, memory_limit, ..Overrides::default() })?;
            let shown = shown(&path, &text, &settings(&with), &settings(&without), flags.data.is_some());
            output::print_result(&shown, global.json, |shown| table(shown))
        }
    }
}

fn path(file: Option<PathBuf>) -> PathBuf {
    file.unwrap_or_else(|| PathBuf::from(DEFAULT_CONFIG))
}

/// The memory limit of the unit that serves a file, or of this command.
fn limit_for(path: &Path) -> Option<MemoryLimit> {
    unit::memory_limit(path).or_else(crate::serve::memory_limit)
}

/// Checks everything that does not depend on the pool.
fn check(path: &Path, global: &Global) -> Result<(), CliError> {
    let (file, limit) = (ConfigFile::load(path)?, limit_for(path));
    let flags = Overrides {
        data: global.data.clone(),
        socket: global.socket.clone(),
        memory_limit: limit.as_ref().map(|limit| limit.bytes),
        ..Overrides::default()
    };
    let config = ServeConfig::resolve(file, flags)?;
    crate::serve::check(&config)?;
    let warnings = crate::serve::warnings(&config, limit.as_ref(), Measured::ByCommand);
    if !global.json {
        for warning in &warnings {
            eprintln!("forebay: warning: {}", forebay_text::one_line(warning));
        }
    }
    let result =
        serde_json::json!({"file": path, "valid": true, "warnings": warnings, "memory_limit": limit});
    output::print_result(&result, global.json, |_| valid_text(path, limit.as_ref()))
}

/// Without a unit, a limit of the control group is that of the command, which may run outside of the service.
fn valid_text(path: &Path, limit: Option<&MemoryLimit>) -> String {
    let valid = format!("{} is valid", path.display());
    let Some(limit) = limit.filter(|limit| !limit.is_host) else { return valid };
    let whose = match &limit.unit {
        Some(unit) => format!("MemoryMax of {unit}"),
        None => "limit of the control group of this command".to_owned(),
    };
    format!("{valid}; its memory was compared with {}, the {whose}", Size(limit.bytes))
}

/// The settings with their sources: `with` the options of the command line, and `without`.
fn shown(path: &Path, text: &str, with: &[Setting], without: &[Setting], has_data: bool) -> Vec<Shown> {
    let lines = lines_of_keys(text);
    let plain: BTreeMap<_, _> = without.iter().map(|s| (s.key, &s.value)).collect();
    let source = |s: &Setting| {
        if plain.get(s.key) != Some(&&s.value) || (s.key == "data" && has_data) {
            return "option or environment".to_owned();
        }
        match lines.get(s.key) {
            Some(line) => format!("{}, line {line}", path.display()),
            None => "default".to_owned(),
        }
    };
    with.iter().map(|s| Shown { key: s.key, value: s.value.clone(), source: source(s) }).collect()
}

fn table(shown: &[Shown]) -> String {
    let mut t = output::table(&["KEY", "VALUE", "FROM"], &[]);
    for s in shown {
        let value = s.value.as_deref().unwrap_or("-");
        t.add_row([s.key, value, &s.source]);
    }
    output::render(t)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_that_was_measured_is_named_unless_it_is_that_of_the_host() {
        let text = |is_host, unit: Option<&str>| {
            let limit = MemoryLimit { bytes: 2 << 30, is_host, unit: unit.map(str::to_owned) };
            valid_text(Path::new("f"), Some(&limit))
        };
        assert_eq!(text(true, None), "f is valid");
        assert_eq!(valid_text(Path::new("f"), None), "f is valid");
        let end = "compared with 2 GiB, the limit of the control group of this command";
        assert!(text(false, None).ends_with(end));
        assert!(text(false, Some("forebay.service")).ends_with("2 GiB, the MemoryMax of forebay.service"));
    }
}
