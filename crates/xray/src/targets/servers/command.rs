//! Programs that end by themselves.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::error::{During, Error, Result};

/// Runs a command that must succeed.
pub fn run(command: &mut Command) -> Result<Output> {
    let output =
        command.output().during(|| format!("cannot run {}", command.get_program().to_string_lossy()))?;
    if output.status.success() {
        return Ok(output);
    }
    let stderr = String::from_utf8_lossy(&output.stderr).trim().replace('\n', " | ");
    Err(Error::Command { command: shown(command), stderr })
}

/// The error for output that is not in the expected format.
pub fn unusable(command: &Command, wanted: &'static str) -> Error {
    Error::Output { command: shown(command), wanted }
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

/// The first line of the output of `program --version`.
pub fn version(program: &'static str, package: &'static str) -> Result<String> {
    version_of(Path::new(program)).map_err(|_| Error::Missing { program, package })
}

/// The same for any program.
pub fn version_of(program: &Path) -> Result<String> {
    let output = Command::new(program).arg("--version").output();
    let output = output.during(|| format!("cannot run {}", program.display()))?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().trim().to_owned())
}

/// Finds a program in PATH.
pub fn program(name: &str) -> Option<PathBuf> {
    let paths = std::env::var_os("PATH")?;
    let mut found = std::env::split_paths(&paths).chain(["/usr/sbin".into(), "/sbin".into()]);
    found.find_map(|dir| Some(dir.join(name)).filter(|path| path.is_file()))
}
