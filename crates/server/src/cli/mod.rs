//! The command line: parses and runs a command, and reports every failure as one line and an exit status.
//!
//! Exit status, a stable contract for scripts: 0 success, 1 failure, 2 usage error.

mod args;
mod classes;

mod clients;
mod cluster;
mod complete;
mod config;
mod connect;
mod diff;
mod export;
mod file;
mod gc;
mod import;
mod job;
mod limit;
mod memory;
mod nearest;
mod nfs;
mod nvme;
mod offline;
mod output;
mod pool;
mod profile;
mod progress;
mod remove;
mod reset;
mod run;
mod sizing;
mod space;
mod stats;
mod status;
mod target;
mod token;
mod top;
mod transfer;
mod unit;
mod upload;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches};
use forebay_text::Size;

pub use args::{
    CephArgs, ChapArgs, Cli, Command, ConfigCommand, Global, ImageCommand, JobCommand, LunCommand, NewSize,
    PoolArgs, PoolCommand, RemoveArgs, ServeArgs, SizeArgs, SnapshotCommand, StatsArgs, TargetCommand,
    TokenCommand, VolumeCommand,
};
pub use file::FileCommand;
pub use forebay_api::client::{Client, ClientError, Lines};
pub use memory::MemoryCommand;
pub use offline::OfflineError;

/// Exit status of a failure.
const FAILED: u8 = 1;
/// Exit status of a usage error.
const USAGE: u8 = 2;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The server returned an error, or is unreachable.
    #[error("{0}")]
    Client(#[from] ClientError),
    /// The configuration is invalid.
    #[error("{0}")]
    Config(#[from] crate::config::ConfigError),
    /// The server could not run.
    #[error("{0}")]
    Serve(#[from] crate::serve::ServeError),
    /// The node could not run, or its cluster cannot be used.
    #[error("{0}")]
    Node(#[from] crate::node::NodeError),
    /// A pool without a running server cannot be read, or is damaged.
    #[error("{0}")]
    Offline(#[from] offline::OfflineError),
    /// The user pressed Ctrl-C.
    #[error("interrupted; the server {0}")]
    Interrupted(&'static str),
    /// A relative path cannot be made absolute, or a file cannot be read.
    #[error("cannot use the file '{0}': {1}")]
    FileName(String, String),
    /// A file exists that the command would replace.
    #[error("'{0}' exists; repeat with --force to replace it")]
    FileExists(String),
    /// A secret cannot be read.
    #[error("cannot read the secret in '{}': {}", .0.display(), .1)]
    Secret(std::path::PathBuf, std::io::Error),
    /// The new size of a volume is smaller.
    #[error("'{0}' is {1}; {2} is smaller and discards the data beyond it: repeat with --shrink")]
    Shrinks(String, Size, Size),
    /// The new size of a volume exceeds 64 bits.
    #[error("'{0}' cannot grow by so much: the new size exceeds 64 bits")]
    GrowsTooFar(String),
    /// The command would remove several objects that it does not name, and nothing confirms their removal.
    #[error("{0}: repeat with --yes to remove them")]
    Unconfirmed(String),
    /// The server answers, and reports a problem.
    #[error("the server has a problem: {0}")]
    Unhealthy(String),
    /// No client of the requested kind can use the disk.
    #[error("no client of this kind can use '{0}' yet: {1}")]
    NoWay(String, String),
    /// The user did not confirm.
    #[error("nothing was removed")]
    Declined,
    /// Some disks were not removed; the reasons were reported.
    #[error("{failed} of {total} {noun} were not removed")]
    NotAllRemoved {
        /// Number of disks that were not removed.
        failed: usize,
        /// Number of all disks, and of patterns without a match.
        total: usize,
        /// Noun for the objects that are to be removed.
        noun: &'static str,
    },
    /// Both secrets were to be read from standard input.
    #[error("only one secret can be read from standard input; put the other one into a file")]
    TwoSecrets,
    /// The files of retained memory cannot be listed.
    #[error("cannot list the directory {}: {}", .0.display(), .1)]
    MemoryDirectory(std::path::PathBuf, std::io::Error),
    /// A server has measured too little.
    #[error("{0}")]
    Sizing(String),
    /// Standard output cannot be written.
    #[error("cannot write the output: {0}")]
    Output(std::io::Error),
    /// The operating system refuses a resource, such as a thread.
    #[error("cannot start: {0}")]
    System(std::io::Error),
}

impl CliError {
    /// A stable code for programs. For an error of the server, it is the code of the API.
    fn code(&self) -> &str {
        match self {
            CliError::Client(ClientError::Refused { code, .. }) => code,
            CliError::Client(ClientError::Unreachable { .. } | ClientError::NoServer(_)) => "unreachable",
            CliError::Client(ClientError::Broken(_) | ClientError::Foreign(_)) => "bad_response",
            CliError::Config(_) => "bad_config",
            CliError::Serve(_) => "not_served",
            CliError::Node(_) => "cluster",
            CliError::Offline(_) => "offline",
            CliError::Interrupted(_) => "interrupted",
            CliError::FileName(..) => "bad_file_name",
            CliError::FileExists(_) => "file_exists",
            CliError::Secret(..) | CliError::TwoSecrets => "bad_secret",
            CliError::Shrinks(..) => "shrinks",
            CliError::GrowsTooFar(_) => "bad_size",
            CliError::Unconfirmed(_) => "unconfirmed",
            CliError::Unhealthy(_) => "unhealthy",
            CliError::NoWay(..) => "no_way",
            CliError::Declined => "declined",
            CliError::NotAllRemoved { .. } => "not_all_removed",
            CliError::MemoryDirectory(..) => "memory_directory",
            CliError::Sizing(_) => "sizing",
            CliError::Output(_) => "output",
            CliError::System(_) => "system",
        }
    }

    fn exit_status(&self) -> u8 {
        match self {
            CliError::Unconfirmed(_) => USAGE,
            _ => FAILED,
        }
    }
}

/// Runs the program with the arguments of the process.
pub fn main() -> ExitCode {
    ignore_excess_of_file_size();
    let cli = match parse(std::env::args_os()) {
        Ok(cli) => cli,
        // The argument was not parsed.
        Err(e) => return usage(&e, std::env::args_os().any(|arg| arg == "--json")),
    };
    let json = cli.global.json;
    match run::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of the output closed the pipe (`forebay volume list | head`).
        Err(CliError::Output(e)) if e.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{}", failure(&e, json));
            ExitCode::from(e.exit_status())
        }
    }
}

/// The line on standard error for a failure: text, or the object `{"error": {"code", "message", "remedy"}}`.
fn failure(e: &CliError, json: bool) -> String {
    let remedy = match e {
        CliError::Client(ClientError::Refused { remedy, .. }) => remedy.as_deref(),
        _ => None,
    };
    error_line(e.code(), &one_line(&e.to_string()), remedy, json)
}

fn error_line(code: &str, message: &str, remedy: Option<&str>, json: bool) -> String {
    if !json {
        return format!("forebay: {message}");
    }
    let mut error = serde_json::json!({"code": code, "message": message});
    if let Some(remedy) = remedy {
        error["remedy"] = remedy.into();
    }
    forebay_text::json(&serde_json::json!({"error": error}).to_string()).into_owned()
}

/// Makes a write beyond the limit of the size of files (RLIMIT_FSIZE) fail, instead of ending the process.
fn ignore_excess_of_file_size() {
    // SAFETY: no signal handler is installed.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
    }
}

/// Parses a command line.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let matches = Cli::command().try_get_matches_from(args)?;
    Cli::from_arg_matches(&matches)
}

/// Prints help and version to standard output, and a usage error as one line to standard error.
fn usage(e: &clap::Error, json: bool) -> ExitCode {
    if matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        let mut out = std::io::stdout().lock();
        let _ = write!(out, "{}", e.render()).and_then(|()| out.flush());
        return ExitCode::SUCCESS;
    }
    eprintln!("{}", error_line("usage", &usage_line(e), None, json));
    ExitCode::from(USAGE)
}

/// Describes a usage error in one line that points to the help.
fn usage_line(e: &clap::Error) -> String {
    if matches!(e.kind(), ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand)
    {
        return "missing command; 'forebay --help' lists the commands".into();
    }
    let usage = e.get(ContextKind::Usage).map(|u| one_line(&u.to_string()));
    let command =
        usage.as_deref().and_then(|u| u.strip_prefix("Usage: ")).map_or("forebay".to_owned(), |u| {
            let words = u.split(' ').take_while(|w| w.bytes().all(|b| b.is_ascii_lowercase()));
            words.collect::<Vec<_>>().join(" ")
        });
    if let Some(ContextValue::String(unknown)) = e.get(ContextKind::InvalidSubcommand)
        && let Some(meant) = nearest_command(&command, unknown)
    {
        let error =
            format!("unrecognized subcommand '{unknown}'; did you mean '{meant}'? see '{command} --help'");
        return one_line(&error);
    }
    let text = e.render().to_string();
    // clap separates the error, an optional tip, the usage and the pointer to --help by empty lines.
    let mut parts = text.split("\n\n").map(one_line);
    let error = parts.next().unwrap_or_default();
    let error = error.strip_prefix("error: ").unwrap_or(&error).to_owned();
    let tip = parts.map(|p| p.trim().to_owned()).find(|p| p.starts_with("tip: "));
    let tip = tip.map_or_else(String::new, |t| format!(" ({})", &t["tip: ".len()..]));
    format!("{error}{tip}; see '{command} --help'")
}

/// The subcommand of `command` that was probably meant; never an alias.
fn nearest_command(command: &str, unknown: &str) -> Option<String> {
    let mut parent = &Cli::command();
    for word in command.split(' ').skip(1) {
        parent = parent.find_subcommand(word)?;
    }
    let shown = || parent.get_subcommands().filter(|c| !c.is_hide_set());
    let names = shown().flat_map(|c| std::iter::once(c.get_name()).chain(c.get_all_aliases()));
    let meant = crate::config::nearest::nearest(unknown, names)?;
    let is_meant =
        |c: &&clap::Command| c.get_name() == meant || c.get_all_aliases().any(|alias| alias == meant);
    shown().find(is_meant).map(|c| c.get_name().to_owned())
}

/// Joins a text into one line and escapes all characters that are not plain text.
fn one_line(text: &str) -> String {
    forebay_text::one_line(&text.split_whitespace().collect::<Vec<_>>().join(" ")).into_owned()
}

#[cfg(test)]
mod tests;
