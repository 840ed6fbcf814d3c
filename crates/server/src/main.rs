//! The `forebay` binary. All code is in the library, so that tests can call it.

use std::process::ExitCode;

use forebay_frontend::plane::{is_contained, may_report_contained};

fn main() -> ExitCode {
    abort_on_panics();
    forebay_server::cli::main()
}

/// Aborts the process on a panic, which means that an invariant is broken. If only the panicking thread
/// ended, its clients would wait forever, and other threads would continue with state that is half updated;
/// the log is designed for a sudden end. A panic that is contained to one connection ends only that
/// connection ([`forebay_frontend::plane::is_contained`]).
fn abort_on_panics() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let is_contained = is_contained(panic.location());
        if !is_contained || may_report_contained() {
            report(panic);
        }
        if !is_contained {
            std::process::abort();
        }
    }));
}
