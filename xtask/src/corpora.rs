//! The generated samples of the fuzz corpora.
//!
//! The tests named `corpus` of each crate with fuzz targets generate them from the same samples as other
//! tests, and fail if a stored one is not current. With `FOREBAY_WRITE_CORPUS` they write them instead.

use std::process::ExitCode;

/// Writes all generated samples to `fuzz/corpus`. Inputs that a fuzzer found are kept.
pub fn write() -> ExitCode {
    let status = crate::cargo()
        .args(["test", "--workspace", "--locked", "--test", "it", "--test", "sessions", "corpus"])
        .env("FOREBAY_WRITE_CORPUS", "1")
        .status();
    match status {
        Ok(status) if status.success() => {
            println!("corpora: written; 'git status fuzz/corpus' lists the changes");
            ExitCode::SUCCESS
        }
        Ok(_) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("corpora: cannot run cargo: {e}");
            ExitCode::FAILURE
        }
    }
}
