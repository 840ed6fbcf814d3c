//! The scenarios that belong to the program.
//!
//! Their figures are those of the open scenarios of X-Ray (nutanix/curie 3.3.1), and published measurements
//! of desktops; each file names its source. Scenarios that differ only in numbers share a template.

/// A scenario that belongs to the program.
#[derive(Debug, Clone, Copy)]
pub struct Builtin {
    /// Name of the scenario.
    pub name: &'static str,
    template: &'static str,
    values: &'static [(&'static str, &'static str)],
}

/// Parts that several templates contain.
const PARTS: &[(&str, &str)] = &[("oltp", include_str!("builtin/part-oltp.toml"))];

const OLTP: &str = include_str!("builtin/oltp.toml");
const VDI: &str = include_str!("builtin/vdi.toml");
const STORM: &str = include_str!("builtin/storm.toml");
const SNAPSHOTS: &str = include_str!("builtin/snapshot-impact.toml");

/// What the part "oltp" needs: requests of each data disk and each log, and their sizes.
macro_rules! oltp {
    ($rate:literal, $log:literal, $size:literal, $log_size:literal $(, $key:literal = $value:literal)*) => {
        &[("rate", $rate), ("log-rate", $log), ("size", $size), ("log-size", $log_size) $(, ($key, $value))*]
    };
}

macro_rules! small_oltp {
    ($($key:literal = $value:literal),*) => { oltp!("1000", "100", "28GiB", "2GiB" $(, $key = $value)*) };
}

/// A scenario with the small database, in a file of its name.
macro_rules! beside_oltp {
    ($name:literal) => {
        Builtin {
            name: $name,
            template: include_str!(concat!("builtin/", $name, ".toml")),
            values: small_oltp!(),
        }
    };
}

macro_rules! vdi {
    ($worker:literal, $rate:literal, $count:literal) => {
        Builtin {
            name: concat!("vdi-", $worker, "-", $count),
            template: VDI,
            values: &[("worker", $worker), ("rate", $rate), ("count", $count)],
        }
    };
}

const ALL: &[Builtin] = &[
    plain("four-corners", include_str!("builtin/four-corners.toml")),
    Builtin { name: "oltp-small", template: OLTP, values: small_oltp!("which" = "small") },
    Builtin {
        name: "oltp-medium",
        template: OLTP,
        values: oltp!("1500", "150", "140GiB", "4GiB", "which" = "medium"),
    },
    Builtin {
        name: "oltp-high",
        template: OLTP,
        values: oltp!("1500", "200", "28GiB", "2GiB", "which" = "high"),
    },
    plain("dss", include_str!("builtin/dss.toml")),
    beside_oltp!("database-colocation"),
    vdi!("task", "4", "25"),
    vdi!("task", "4", "50"),
    vdi!("task", "4", "100"),
    vdi!("knowledge", "6", "25"),
    vdi!("knowledge", "6", "50"),
    vdi!("knowledge", "6", "100"),
    vdi!("power", "13", "25"),
    vdi!("power", "13", "50"),
    vdi!("power", "13", "100"),
    Builtin { name: "boot-storm", template: STORM, values: &[("script", "boot"), ("count", "50")] },
    Builtin { name: "logon-storm", template: STORM, values: &[("script", "logon"), ("count", "50")] },
    Builtin {
        name: "snapshot-impact-standard",
        template: SNAPSHOTS,
        values: small_oltp!(
            "which" = "standard",
            "times" = "12",
            "every" = "60min",
            "duration" = "13h",
            "total" = "4,200"
        ),
    },
    Builtin {
        name: "snapshot-impact-high",
        template: SNAPSHOTS,
        values: oltp!(
            "1500",
            "200",
            "28GiB",
            "2GiB",
            "which" = "high",
            "times" = "16",
            "every" = "30min",
            "duration" = "510min",
            "total" = "6,400"
        ),
    },
    beside_oltp!("clone-impact"),
    plain("ingestion", include_str!("builtin/ingestion.toml")),
    beside_oltp!("hci-workflow"),
    beside_oltp!("server-killed"),
    beside_oltp!("server-paused"),
    beside_oltp!("server-upgraded"),
    beside_oltp!("power-loss"),
    beside_oltp!("osd-lost"),
    beside_oltp!("node-failure"),
    beside_oltp!("sequential-node-failure"),
    plain("extended-node-failure", include_str!("builtin/extended-node-failure.toml")),
    beside_oltp!("vm-high-availability"),
    beside_oltp!("rolling-upgrade"),
    beside_oltp!("live-migration"),
    plain("shared-volume", include_str!("builtin/shared-volume.toml")),
    plain("shared-volume-reserve", include_str!("builtin/shared-volume-reserve.toml")),
];

const fn plain(name: &'static str, template: &'static str) -> Builtin {
    Builtin { name, template, values: &[] }
}

/// Returns all built-in scenarios.
pub fn all() -> &'static [Builtin] {
    ALL
}

/// Returns the scenario with this name.
pub fn find(name: &str) -> Option<&'static Builtin> {
    ALL.iter().find(|b| b.name == name)
}

/// Returns the text of the scenario's file.
pub fn text(builtin: &Builtin) -> String {
    let mut text = builtin.template.to_owned();
    for (part, content) in PARTS {
        text = text.replace(&format!("#@{part}@\n"), content);
    }
    for (key, value) in builtin.values {
        text = text.replace(&format!("@{key}@"), value);
    }
    text
}
