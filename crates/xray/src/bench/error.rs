//! What stops a benchmark. A figure that misses its promise does not.

use std::io;

use crate::iscsi::IscsiError;
use crate::load::LoadError;
use crate::nbd::NbdError;

/// Result of a step.
pub type Result<T> = std::result::Result<T, BenchError>;

/// Why the benchmarks ended early.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A program is not installed.
    #[error("{program} is not installed: run apt-get install {package}")]
    Missing {
        /// The program.
        program: &'static str,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// The system refused something.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// A server ended, or was not ready in time.
    #[error("{server} {what}; its last words: {log}")]
    Server {
        /// Which.
        server: &'static str,
        /// What happened.
        what: &'static str,
        /// The end of its output.
        log: String,
    },
    /// A command failed.
    #[error("{command} failed: {stderr}")]
    Command {
        /// The command line.
        command: String,
        /// What it wrote.
        stderr: String,
    },
    /// A program's output is not what it should be.
    #[error("{command} printed no usable {wanted}")]
    Output {
        /// The command line.
        command: String,
        /// What was looked for.
        wanted: &'static str,
    },
    /// A load could not be run.
    #[error("the load on {server} failed: {source}")]
    Load {
        /// On which server.
        server: &'static str,
        /// Why.
        source: LoadError,
    },
    /// A single request could not be made.
    #[error("a request to {server} failed: {source}")]
    Nbd {
        /// Which server.
        server: &'static str,
        /// Why.
        source: NbdError,
    },
    /// A server answered requests with errors.
    #[error("{server} answered {count} requests with errors, the first with NBD error {code}")]
    Errors {
        /// Which.
        server: &'static str,
        /// How many.
        count: u64,
        /// The first error.
        code: u32,
    },
    /// A session with a target went wrong.
    #[error("the initiator of {server} failed: {source}")]
    Iscsi {
        /// Whose target.
        server: &'static str,
        /// Why.
        source: IscsiError,
    },
    /// A target answered commands with errors.
    #[error("{server} answered {count} commands with errors, the first with {code:#08x} (sense, or status)")]
    Scsi {
        /// Which.
        server: &'static str,
        /// How many.
        count: u64,
        /// The first error.
        code: u32,
    },
}

/// Adds what was being done to an error of the system.
pub(crate) trait During<T> {
    /// `what`: "cannot …".
    fn during(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T> During<T> for io::Result<T> {
    fn during(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| BenchError::Io { what: what(), source })
    }
}
