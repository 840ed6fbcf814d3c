//! Errors of starting and measuring servers, which stop a benchmark. A missed promise does not.

use std::io;

use crate::device::DeviceError;
use crate::load::LoadError;

/// Result of a step.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a benchmark ended early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program is not installed.
    #[error("{program} is not installed: run apt-get install {package}")]
    Missing {
        /// Name of the program.
        program: &'static str,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// The action that was attempted.
        what: String,
        /// The error that the system reported.
        source: io::Error,
    },
    /// A server ended early, or was not ready in time.
    #[error("{server} {what}; the end of its log: {log}")]
    Server {
        /// Name of the server.
        server: &'static str,
        /// What happened to the server.
        what: &'static str,
        /// The end of the server's log.
        log: String,
    },
    /// A command failed.
    #[error("{command} failed: {stderr}")]
    Command {
        /// The command line.
        command: String,
        /// The command's output to standard error.
        stderr: String,
    },
    /// The output of a program is not in the expected format.
    #[error("no usable {wanted} in the output of {command}")]
    Output {
        /// The command line.
        command: String,
        /// The part of the output that is missing.
        wanted: &'static str,
    },
    /// A load could not be run, or a request of a client failed.
    #[error("the load on {server} failed: {source}")]
    Load {
        /// Name of the server.
        server: &'static str,
        /// Why the load failed.
        source: LoadError,
    },
    /// A server answered requests with errors.
    #[error("{server} answered {count} requests with errors, the first with {code} ({code:#08x})")]
    Errors {
        /// Name of the server.
        server: &'static str,
        /// Number of errors.
        count: u64,
        /// The first error, as a number of the protocol.
        code: u32,
    },
}

impl Error {
    /// A failed request to a server.
    pub fn request(server: &'static str, source: impl Into<DeviceError>) -> Error {
        Error::Load { server, source: source.into().into() }
    }

    /// A panic of a thread that loads a server.
    pub fn panicked(server: &'static str) -> Error {
        Error::Load { server, source: LoadError::Panicked }
    }
}

/// Adds the attempted action to a system error.
pub(crate) trait During<T> {
    /// Adds to an error what was attempted: `what` returns a text such as "cannot …".
    fn during(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T> During<T> for io::Result<T> {
    fn during(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Io { what: what(), source })
    }
}
