//! The command line: parses, runs, and turns every failure into one line and an exit status.
//!
//! 0: done. 1: failed. 2: wrong usage. Scripts rely on it.

mod args;
mod classes;
mod client;
mod gc;
mod import;
mod offline;
mod output;
mod profile;
mod progress;
mod run;
mod stats;
mod target;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::error::{ContextKind, ErrorKind};
use clap::{CommandFactory, FromArgMatches};

pub use args::{
    ChapArgs, Cli, Command, Global, ImageCommand, LunCommand, ServeArgs, SnapshotCommand, StatsArgs,
    TargetCommand, VolumeCommand,
};
pub use client::{Client, ClientError, Lines};
pub use offline::OfflineError;

/// Exit status of a failure.
const FAILED: u8 = 1;
/// Exit status of wrong usage.
const USAGE: u8 = 2;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The server said no, or did not answer.
    #[error("{0}")]
    Client(#[from] ClientError),
    /// The configuration cannot be used.
    #[error("{0}")]
    Config(#[from] crate::config::ConfigError),
    /// The server could not run.
    #[error("{0}")]
    Serve(#[from] crate::serve::ServeError),
    /// A pool that no server has open cannot be read, or is damaged.
    #[error("{0}")]
    Offline(#[from] offline::OfflineError),
    /// The user pressed Ctrl-C.
    #[error("interrupted; the server {0}")]
    Interrupted(&'static str),
    /// A file name that cannot be sent to the server.
    #[error("cannot use the file name '{0}': {1}")]
    FileName(String, String),
    /// A secret cannot be read.
    #[error("cannot read the secret in '{}': {}", .0.display(), .1)]
    Secret(std::path::PathBuf, std::io::Error),
    /// Standard input is read once.
    #[error("only one secret can come from standard input; put the other into a file")]
    TwoSecrets,
    /// Standard output is gone.
    #[error("cannot write the output: {0}")]
    Output(std::io::Error),
    /// The system refuses something basic.
    #[error("cannot start: {0}")]
    System(std::io::Error),
}

/// The whole program.
pub fn main() -> ExitCode {
    let cli = match parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(e) => return usage(&e),
    };
    match run::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads the output has seen enough (`forebay volume list | head`).
        Err(CliError::Output(e)) if e.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("forebay: {}", one_line(&e.to_string()));
            ExitCode::from(FAILED)
        }
    }
}

/// Parses a command line.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let matches = Cli::command().try_get_matches_from(args)?;
    Cli::from_arg_matches(&matches)
}

/// Help and version go to standard output; a mistake is said in one line.
fn usage(e: &clap::Error) -> ExitCode {
    if matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        let mut out = std::io::stdout().lock();
        let _ = write!(out, "{}", e.render()).and_then(|()| out.flush());
        return ExitCode::SUCCESS;
    }
    eprintln!("forebay: {}", usage_line(e));
    ExitCode::from(USAGE)
}

/// What is wrong with a command line, and where to read on.
fn usage_line(e: &clap::Error) -> String {
    if matches!(e.kind(), ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand)
    {
        return "a command is missing; run 'forebay --help' to see them".into();
    }
    let text = e.render().to_string();
    // The usage and the pointer to --help follow after empty lines, as does a tip if there is one.
    let mut parts = text.split("\n\n").map(one_line);
    let what = parts.next().unwrap_or_default();
    let what = what.strip_prefix("error: ").unwrap_or(&what).to_owned();
    let tip = parts.map(|p| p.trim().to_owned()).find(|p| p.starts_with("tip: "));
    let tip = tip.map_or_else(String::new, |t| format!(" ({})", &t["tip: ".len()..]));
    let usage = e.get(ContextKind::Usage).map(|u| one_line(&u.to_string()));
    let command =
        usage.as_deref().and_then(|u| u.strip_prefix("Usage: ")).map_or("forebay".to_owned(), |u| {
            let words = u.split(' ').take_while(|w| w.bytes().all(|b| b.is_ascii_lowercase()));
            words.collect::<Vec<_>>().join(" ")
        });
    format!("{what}{tip}; see '{command} --help'")
}

/// Whatever it is, on one line, with escapes for what is not plain text.
fn one_line(text: &str) -> String {
    crate::text::one_line(&text.split_whitespace().collect::<Vec<_>>().join(" ")).into_owned()
}

#[cfg(test)]
mod tests;
