//! The clocks of the system.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970; 0 if the clock is set earlier.
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Milliseconds since the boot of the host, including time asleep: the clock on which the kernel records the
/// start of processes.
pub fn boot_ms() -> u64 {
    /// A time that is later than the start of any process.
    const NEVER: u64 = 1 << 60;
    read(libc::CLOCK_BOOTTIME).map_or(NEVER, |time| time.as_secs() * 1000 + u64::from(time.subsec_millis()))
}

/// The time of a clock of the system; `None` if it cannot be read.
pub fn read(clock: libc::clockid_t) -> Option<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec for the call to write.
    let done = unsafe { libc::clock_gettime(clock, &raw mut time) };
    let (s, ns) = (u64::try_from(time.tv_sec).ok()?, u32::try_from(time.tv_nsec).ok()?);
    (done == 0).then(|| Duration::new(s, ns))
}

/// Unit in which the kernel reports times of processes.
pub fn ticks_per_second() -> u64 {
    // SAFETY: sysconf has no preconditions.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    u64::try_from(ticks).ok().filter(|ticks| *ticks > 0).unwrap_or(100)
}

/// Identity of the present boot. Without it, all boots count as one boot: the clients of an earlier boot are
/// not assumed to have died.
pub(crate) fn boot_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    parse_uuid(text.trim()).unwrap_or_default()
}

/// The bytes of a UUID in text form.
fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let hex: String = text.chars().filter(|c| *c != '-').collect();
    let is_hex = hex.len() == 32 && hex.bytes().all(|b| b.is_ascii_hexdigit());
    is_hex.then(|| u128::from_str_radix(&hex, 16).ok()).flatten().map(u128::to_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_id_is_a_uuid() {
        let found = parse_uuid("00010203-0405-0607-0809-0a0b0c0d0eff");
        assert_eq!(found, Some([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255]));
        for bad in ["", "00", "0001020304050607-0809-0a0b0c0d0ef", "+0010203-0405-0607-0809-0a0b0c0d0eff"] {
            assert_eq!(parse_uuid(bad), None, "{bad}");
        }
        assert_eq!(boot_id(), boot_id());
        assert_ne!(boot_id(), [0; 16]);
    }

    #[test]
    fn the_boot_clock_runs() {
        let before = boot_ms();
        std::thread::sleep(std::time::Duration::from_millis(5));
        assert!((before + 5..before + 600_000).contains(&boot_ms()));
        assert!(ticks_per_second() > 0);
    }
}
