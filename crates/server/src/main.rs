//! The `forebay` binary: everything is in the library, so that tests reach it.

use std::process::ExitCode;

use forebay_server::plane::is_contained;

fn main() -> ExitCode {
    abort_on_panics();
    forebay_server::cli::main()
}

/// Ends the process where an invariant does not hold. A thread that only ended itself would leave clients
/// waiting for ever, and others going on with what it left half done; the log is made for a sudden end. A connection
/// that fails by itself is ended alone ([`forebay_server::plane::is_contained`]).
fn abort_on_panics() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        if !is_contained(panic.location()) {
            std::process::abort();
        }
    }));
}
