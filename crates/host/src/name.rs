//! The name of the host.

/// The name of the host, for people; empty if the kernel does not report it.
pub fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}
