//! `forebay config`: check a configuration file, and show the values in effect. Neither needs a server.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use forebay_text::Size;
use serde::Serialize;

use super::args::{ConfigCommand, Global};
use super::{CliError, output, unit};
use crate::config::{
    ClusterFlags, ConfigFile, DEFAULT_CONFIG, DEFAULT_DATA, Overrides, ServeConfig, Setting, lines_of_keys,
    settings,
};
use crate::serve::{Measured, MemoryLimit};

/// A value in effect.
#[derive(Debug, Serialize)]
struct Shown {
    key: &'static str,
    /// The value in the syntax of the file; `null` if the key has no value.
    value: Option<String>,
    /// Source of the value: `default`, `option`, or the file and line.
    source: String,
}

pub(super) fn run(command: ConfigCommand, global: &Global) -> Result<(), CliError> {
    match command {
        ConfigCommand::Check { file } => check(&path(file), global),
        ConfigCommand::Show { file, args } => {
            let args = *args;
            let given = args.config.clone().or(file);
            let shown = show(given, super::run::overrides(global, args), Path::new(DEFAULT_CONFIG))?;
            output::print_result(&shown, global.json, |shown| table(shown))
        }
    }
}

/// The values in effect with the file that is `given`, or with the `default` file if it exists.
fn show(given: Option<PathBuf>, flags: Overrides, default: &Path) -> Result<Vec<Shown>, CliError> {
    let is_absent = given.is_none() && !default.try_exists().unwrap_or(true);
    let path = given.unwrap_or_else(|| default.to_owned());
    let (parsed, text) = if is_absent { Default::default() } else { ConfigFile::load_with_text(&path)? };
    let memory_limit = limit_for(&path).map(|limit| limit.bytes);
    let mut flags = Overrides { memory_limit, ..flags };
    // The data directory has no default. Without a file, the values are shown for the usual directory.
    let has_no_data = is_absent && flags.data.is_none();
    if has_no_data {
        flags.data = Some(PathBuf::from(DEFAULT_DATA));
    }
    let with = ServeConfig::resolve(parsed.clone(), flags.clone())?;
    let data = flags.data.clone();
    let without = ServeConfig::resolve(parsed, Overrides { data, memory_limit, ..Overrides::default() })?;
    let mut shown = shown(&path, &text, &settings(&with), &settings(&without), flags.data.is_some());
    if has_no_data {
        let data = shown.iter_mut().filter(|s| s.key == "data");
        data.for_each(|s| s.source = "example: serve needs --data, or a file".to_owned());
    }
    Ok(shown)
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
    file.node(Some(path), ClusterFlags::default(), flags.clone())?;
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

/// Without a unit, the limit of the control group is that of the command itself, which may run outside of the
/// service.
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
    fn defaults_are_shown_without_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("forebay.toml");
        let shown = show(None, Overrides::default(), &file).unwrap();
        let source = |shown: &[Shown], key| shown.iter().find(|s| s.key == key).unwrap().source.clone();
        assert_eq!(source(&shown, "logging.filter"), "default");
        assert!(source(&shown, "data").starts_with("example"), "{shown:?}");
        let flags = Overrides { data: Some("/d".into()), ..Overrides::default() };
        let shown = show(None, flags, &file).unwrap();
        assert_eq!(source(&shown, "data"), "option or environment");
        assert!(show(Some(file.clone()), Overrides::default(), &file).is_err(), "a file that is given");
        std::fs::write(&file, "data = '/d'\n[logging]\nfilter = 'warn'\n").unwrap();
        let shown = show(None, Overrides::default(), &file).unwrap();
        assert_eq!(source(&shown, "logging.filter"), format!("{}, line 3", file.display()));
    }

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
