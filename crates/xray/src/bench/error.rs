//! Errors that stop a benchmark. A missed promise does not.

use std::io;

use crate::device::DeviceError;
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
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// The attempted action.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// A server ended early, or was not ready in time.
    #[error("{server} {what}; the end of its log: {log}")]
    Server {
        /// The server.
        server: &'static str,
        /// What happened.
        what: &'static str,
        /// The end of its log.
        log: String,
    },
    /// A command failed.
    #[error("{command} failed: {stderr}")]
    Command {
        /// The command line.
        command: String,
        /// Its output to standard error.
        stderr: String,
    },
    /// The output of a program is not in the expected format.
    #[error("no usable {wanted} in the output of {command}")]
    Output {
        /// The command line.
        command: String,
        /// The missing part.
        wanted: &'static str,
    },
    /// A load could not be run.
    #[error("the load on {server} failed: {source}")]
    Load {
        /// The server.
        server: &'static str,
        /// The cause.
        source: LoadError,
    },
    /// A single request failed.
    #[error("a request to {server} failed: {source}")]
    Nbd {
        /// The server.
        server: &'static str,
        /// The cause.
        source: NbdError,
    },
    /// A disk failed.
    #[error("a disk of {server} failed: {source}")]
    Device {
        /// The server.
        server: &'static str,
        /// The cause.
        source: DeviceError,
    },
    /// A server answered requests with errors.
    #[error("{server} answered {count} requests with errors, the first with NBD error {code}")]
    Errors {
        /// The server.
        server: &'static str,
        /// Number of errors.
        count: u64,
        /// The first error.
        code: u32,
    },
    /// A session with a target failed.
    #[error("the session with {server} failed: {source}")]
    Iscsi {
        /// The target.
        server: &'static str,
        /// The cause.
        source: IscsiError,
    },
    /// A target answered commands with errors.
    #[error(
        "{server} answered {count} commands with errors, the first with {code:#08x} (sense data or status)"
    )]
    Scsi {
        /// The target.
        server: &'static str,
        /// Number of errors.
        count: u64,
        /// The first error.
        code: u32,
    },
}

/// Adds the attempted action to a system error.
pub(crate) trait During<T> {
    /// `what`: "cannot …".
    fn during(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T> During<T> for io::Result<T> {
    fn during(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| BenchError::Io { what: what(), source })
    }
}
