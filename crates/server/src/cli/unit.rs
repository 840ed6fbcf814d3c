//! The memory limit of the systemd unit that serves a configuration file.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::config::DEFAULT_CONFIG;
use crate::serve::{MemoryLimit, memory_limit_of_unit};

/// The unit of the package, and its instance units.
const UNIT: &str = "forebay.service";
const PROPERTIES: &str = "LoadState,MemoryMax,EffectiveMemoryMax";

/// The limit of the unit that serves `file`, or the RAM of the host if that is lower. `None` if systemd is
/// not running or does not know the unit.
pub(super) fn memory_limit(file: &Path) -> Option<MemoryLimit> {
    let unit = unit_of(file);
    let mut command = Command::new("systemctl");
    let asked = command.args(["show", "--property", PROPERTIES, &unit]).stdin(Stdio::null()).output().ok()?;
    let shown = String::from_utf8(asked.stdout).ok().filter(|_| asked.status.success())?;
    memory_limit_of_unit(unit, limit(&shown)?)
}

/// The unit of a configuration file. The unit of the package serves the default file, and an instance serves
/// each other file in the same directory. A file elsewhere counts as a draft of the default file.
fn unit_of(file: &Path) -> String {
    let default = Path::new(DEFAULT_CONFIG);
    let is_instance = file != default && file.parent() == default.parent();
    let instance = file.file_name().and_then(|name| name.to_str()?.strip_suffix(".toml"));
    match instance.filter(|_| is_instance) {
        Some(instance) => format!("forebay@{instance}.service"),
        None => UNIT.to_owned(),
    }
}

/// The limit in the properties of a unit; `Some(None)` if it has none, and `None` if the unit is not known.
fn limit(shown: &str) -> Option<Option<u64>> {
    let of = |key| shown.lines().filter_map(|line| line.split_once('=')).find(|(k, _)| *k == key);
    (of("LoadState")?.1 == "loaded").then_some(())?;
    // The effective limit includes the limits of slices, and only newer releases know it. If there is no
    // limit, it is "infinity", or the largest number.
    let bytes = ["MemoryMax", "EffectiveMemoryMax"].into_iter().filter_map(|key| of(key)?.1.parse().ok());
    Some(bytes.min().filter(|bytes| *bytes != u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_belong_to_the_units_of_the_package() {
        for (file, unit) in [
            ("/etc/forebay/forebay.toml", "forebay.service"),
            ("/etc/forebay/fast.toml", "forebay@fast.service"),
            ("/srv/fast.toml", "forebay.service"),
            ("forebay.toml", "forebay.service"),
        ] {
            assert_eq!(unit_of(Path::new(file)), unit, "{file}");
        }
    }

    #[test]
    fn the_lowest_limit_of_a_unit_counts() {
        assert_eq!(limit("LoadState=loaded\nMemoryMax=1048576\n"), Some(Some(1 << 20)));
        assert_eq!(limit("MemoryMax=4096\nLoadState=loaded\nEffectiveMemoryMax=1024\n"), Some(Some(1024)));
        assert_eq!(limit("MemoryMax=infinity\nLoadState=loaded\nEffectiveMemoryMax=1024"), Some(Some(1024)));
        assert_eq!(limit("LoadState=loaded\nMemoryMax=infinity\n"), Some(None));
        assert_eq!(limit("LoadState=loaded\nMemoryMax=18446744073709551615\n"), Some(None));
        assert_eq!(limit("LoadState=not-found\nMemoryMax=infinity\n"), None);
        assert_eq!(limit(""), None);
    }
}
