//! The `forebay` binary: everything is in the library, so that tests reach it.

use std::process::ExitCode;

fn main() -> ExitCode {
    abort_on_panic();
    forebay_server::cli::main()
}

/// Ends the process where an invariant does not hold. A thread that only ended itself would leave clients
/// waiting for ever, and others going on with what it left half done; the log is made for a sudden end.
fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
}
