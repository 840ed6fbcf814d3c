//! The `forebay` binary: everything is in the library, so that tests reach it.

use std::process::ExitCode;

fn main() -> ExitCode {
    forebay_server::cli::main()
}
