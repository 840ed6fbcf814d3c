//! The time-stamp counter of the processor, which continues to count while a hypervisor has paused this
//! machine.

/// The time-stamp counter, if it counts at a constant rate.
#[cfg(target_arch = "x86_64")]
pub(super) fn ticks() -> Option<u64> {
    use std::sync::LazyLock;

    static IS_CONSTANT: LazyLock<bool> = LazyLock::new(|| {
        let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        has_constant_counter(&processors)
    });
    // SAFETY: every x86-64 processor has the instruction, which accesses no memory.
    IS_CONSTANT.then(|| unsafe { std::arch::x86_64::_rdtsc() })
}

/// `None`: the counter of an ARM processor is the clock of the kernel.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn ticks() -> Option<u64> {
    None
}

/// Whether the first processor has the flag `constant_tsc` (proc_cpuinfo(5)).
#[cfg(target_arch = "x86_64")]
fn has_constant_counter(processors: &str) -> bool {
    let flags = processors.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|flags| flags.split_ascii_whitespace().any(|flag| flag == "constant_tsc"))
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn the_flag_of_a_constant_counter_is_found() {
        let with = |flag| format!("processor\t: 0\nflags\t\t: fpu {flag} lm\nbugs\t\t: constant_tsc\n");
        assert!(has_constant_counter(&with("constant_tsc")));
        assert!(!has_constant_counter(&with("tsc")) && !has_constant_counter(""));
    }

    #[test]
    fn the_counter_goes_on() {
        let Some(before) = ticks() else { return };
        std::thread::yield_now();
        assert!(ticks().is_some_and(|after| after > before));
    }
}
