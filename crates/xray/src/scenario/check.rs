//! What the types of a scenario file cannot express: references, ranges, and fields that belong together.

use toml::Spanned;

use super::file::{Action, Check, Disk, Event, FORMAT, Judge, Load, Phase, Scenario};
use super::parse::unknown;
use super::quantity::Size;
use crate::load::METADATA_BYTES;

/// A mistake, and its position in the text.
pub(super) struct Mistake {
    pub at: usize,
    pub what: String,
}

type Checked = Result<(), Mistake>;

fn wrong<T>(at: &Spanned<T>, what: impl Into<String>) -> Checked {
    Err(Mistake { at: at.span().start, what: what.into() })
}

fn ensure<T>(holds: bool, at: &Spanned<T>, what: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { wrong(at, what()) }
}

/// Maximum number of streams that run together: each is a connection, and threads poll all of them.
const MAX_STREAMS: u32 = 2000;
/// Maximum number of requests in flight on a disk.
const MAX_DEPTH: u32 = 1024;
const MAX_BLOCK: u64 = 32 << 20;

/// Checks a scenario that was parsed.
pub(super) fn check(s: &Scenario) -> Checked {
    ensure(*s.format.get_ref() == FORMAT, &s.format, || {
        format!("format {} is not supported: this version reads format {FORMAT}", s.format.get_ref())
    })?;
    name(&s.name)?;
    unique(s.disks.iter().map(|d| &d.name), "disk")?;
    unique(s.loads.iter().map(|l| &l.name), "load")?;
    unique(s.phases.iter().map(|p| &p.name), "phase")?;
    ensure(!s.phases.is_empty(), &s.name, || "a scenario needs at least one [[phase]]".to_owned())?;
    s.disks.iter().try_for_each(|d| disk(s, d))?;
    s.loads.iter().try_for_each(|l| load(s, l))?;
    s.phases.iter().try_for_each(|p| phase(s, p))?;
    s.events.iter().try_for_each(|e| event(s, e))?;
    s.checks.iter().try_for_each(|c| judge(s, c))
}

fn name(name: &Spanned<String>) -> Checked {
    let valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let text = name.get_ref();
    ensure(!text.is_empty() && text.len() <= 40 && text.chars().all(valid), name, || {
        format!("the name '{text}' is invalid: use at most 40 lower-case letters, digits and dashes")
    })
}

fn unique<'a>(names: impl Iterator<Item = &'a Spanned<String>> + Clone, kind: &str) -> Checked {
    for (i, n) in names.clone().enumerate() {
        name(n)?;
        ensure(names.clone().take(i).all(|earlier| earlier.get_ref() != n.get_ref()), n, || {
            format!("another {kind} has the name '{}'", n.get_ref())
        })?;
    }
    Ok(())
}

fn refers<'a>(
    to: &Spanned<String>,
    names: impl Iterator<Item = &'a Spanned<String>> + Clone,
    kind: &str,
) -> Checked {
    let (text, mut known) = (to.get_ref(), names.clone());
    ensure(known.any(|n| n.get_ref() == text), to, || {
        unknown(&format!("no {kind} has the name '{text}'"), text, names.map(|n| n.get_ref().as_str()))
    })
}

fn disk(s: &Scenario, d: &Disk) -> Checked {
    ensure((1..=MAX_STREAMS).contains(&d.count), &d.name, || format!("'count' must be 1 to {MAX_STREAMS}"))?;
    if let Some(of) = &d.clone_of {
        refers(of, s.disks.iter().map(|d| &d.name), "disk")?;
        let origin = s.disk(of.get_ref());
        ensure(origin.clone_of.is_none(), of, || {
            "'clone_of' must name a disk that is not a clone itself".to_owned()
        })?;
        return ensure(d.size.is_none() && !d.prefill && !d.desktop_image, &d.name, || {
            "a clone has size and content of its origin: remove 'size', 'prefill' and 'desktop_image'"
                .to_owned()
        });
    }
    ensure(d.size.is_some(), &d.name, || {
        format!("the disk '{}' needs 'size' or 'clone_of'", d.name.get_ref())
    })?;
    ensure(d.size.is_none_or(|s| s.0.is_multiple_of(4096)), &d.name, || {
        "'size' must be a multiple of 4 KiB".to_owned()
    })?;
    ensure(!(d.prefill && d.desktop_image), &d.name, || {
        "a desktop image is filled already: remove 'prefill'".to_owned()
    })
}

fn load(s: &Scenario, l: &Load) -> Checked {
    let at = &l.name;
    refers(&l.disk, s.disks.iter().map(|d| &d.name), "disk")?;
    if l.script.is_some() {
        let plain =
            l.blocks.is_empty() && l.rate.is_none() && !l.once && l.offset.is_none() && l.size.is_none();
        ensure(plain, at, || {
            "a script determines its requests: remove 'blocks', 'rate', 'once', 'offset' and 'size'"
                .to_owned()
        })?;
        let image = s.origin(l.disk.get_ref()).desktop_image;
        return ensure(image && s.disk(l.disk.get_ref()).clone_of.is_some(), &l.disk, || {
            "a script needs disks with 'clone_of' a disk with 'desktop_image = true'".to_owned()
        });
    }
    ensure(!l.blocks.is_empty(), at, || {
        format!("the load '{}' needs 'blocks', such as {{ \"8KiB\" = 90, \"32KiB\" = 10 }}", at.get_ref())
    })?;
    for (size, weight) in &l.blocks {
        let unit = if size.0 > 4096 { 4096 } else { 512 };
        ensure(size.0.is_multiple_of(unit) && size.0 <= MAX_BLOCK, at, || {
            format!(
                "the block size {size} must be a multiple of 512 bytes, of 4 KiB above that, and at most 32 MiB"
            )
        })?;
        ensure((1..=1_000_000).contains(weight), at, || {
            "the weight of a block size must be above 0".to_owned()
        })?;
    }
    let grain = l.grain();
    ensure(l.blocks.keys().all(|b| b.0.is_multiple_of(grain)), at, || {
        "all block sizes of a load must be multiples of its smallest one".to_owned()
    })?;
    ensure(l.rate.is_none_or(|r| r > 0.0 && r <= 1e7), at, || "'rate' must be above 0".to_owned())?;
    ensure((1..=MAX_DEPTH).contains(&l.depth), at, || format!("'depth' must be 1 to {MAX_DEPTH}"))?;
    ensure(l.flush.is_none_or(|f| !f.0.is_zero()), at, || "'flush' must be above 0".to_owned())?;
    ensure(!l.once || l.random_percent.0 == 0, at, || {
        "'once' needs 'random_percent = 0': a random order has no pass over the range".to_owned()
    })?;
    let size = s.size(l.disk.get_ref()).0;
    let (start, end) = l.range(size);
    ensure(start.is_multiple_of(grain) && end <= size && start < end, at, || {
        format!("the range from {} to {} is not within the disk of {}", Size(start), Size(end), Size(size))
    })
}

fn phase(s: &Scenario, p: &Phase) -> Checked {
    let at = &p.name;
    ensure(!p.loads.is_empty(), at, || "a phase needs at least one load".to_owned())?;
    p.loads.iter().try_for_each(|l| refers(l, s.loads.iter().map(|l| &l.name), "load"))?;
    let loads: Vec<&Load> = p.loads.iter().map(|l| s.load(l.get_ref())).collect();
    let ends = |l: &&Load| l.once || l.script.is_some();
    ensure(p.duration.is_some() || loads.iter().all(ends), at, || {
        "a phase needs 'duration' unless all its loads end: 'once', or a script".to_owned()
    })?;
    ensure(p.duration.is_none_or(|d| !d.0.is_zero()), at, || "'duration' must be above 0".to_owned())?;
    ensure(p.steady_percent.is_none() || p.warm_up.is_some(), at, || {
        "'steady_percent' needs 'warm_up', the longest time to wait for it".to_owned()
    })?;
    ensure(p.depths.iter().all(|d| (1..=MAX_DEPTH).contains(d)), at, || {
        format!("'depths' must be 1 to {MAX_DEPTH}")
    })?;
    let streams: u32 = loads.iter().map(|l| s.disk(l.disk.get_ref()).count).sum();
    ensure(streams <= MAX_STREAMS, at, || {
        format!("{streams} streams run together, at most {MAX_STREAMS} are supported")
    })?;
    for (i, a) in loads.iter().enumerate() {
        for b in &loads[..i] {
            ensure(!overlap(s, a, b), at, || {
                format!(
                    "the loads '{}' and '{}' share blocks, and one writes: reads could not be verified; \
                     separate them by 'offset' and 'size'",
                    b.name.get_ref(),
                    a.name.get_ref()
                )
            })?;
        }
    }
    Ok(())
}

/// Whether two loads access the same blocks and one of them writes.
fn overlap(s: &Scenario, a: &Load, b: &Load) -> bool {
    let size = s.size(a.disk.get_ref()).0;
    let (one, other) = (a.range(size), b.range(size));
    let writes = |l: &Load| l.read_percent.0 < 100 || l.script.is_some();
    let scripts = a.script.is_some() || b.script.is_some();
    a.disk.get_ref() == b.disk.get_ref()
        && (writes(a) || writes(b))
        && (scripts || one.0 < other.1 && other.0 < one.1)
}

fn event(s: &Scenario, spanned: &Spanned<Event>) -> Checked {
    let e = spanned.get_ref();
    refers(&e.phase, s.phases.iter().map(|p| &p.name), "phase")?;
    let phase = s.phase(e.phase.get_ref());
    ensure((1..=10_000).contains(&e.times), spanned, || "'times' must be 1 to 10000".to_owned())?;
    ensure(e.times == 1 || e.every.is_some_and(|d| !d.0.is_zero()), spanned, || {
        "'times' needs 'every', the interval between them".to_owned()
    })?;
    let last = e.at.0 + e.every.map_or_else(Default::default, |d| d.0) * (e.times - 1);
    ensure(phase.duration.is_none_or(|d| last < d.0), spanned, || {
        format!("the event is after the end of the phase '{}'", phase.name.get_ref())
    })?;
    if let Some(disk) = &e.disk {
        refers(disk, s.disks.iter().map(|d| &d.name), "disk")?;
    }
    let with_disk = matches!(e.action, Action::Snapshot | Action::Clone | Action::Fill) || e.action.locks();
    ensure(with_disk == e.disk.is_some(), spanned, || match with_disk {
        true => "the event needs 'disk'".to_owned(),
        false => "the event concerns the server: remove 'disk'".to_owned(),
    })?;
    ensure(e.action == Action::Clone || e.clones == 1, spanned, || {
        "'clones' belongs to 'do = \"clone\"'".to_owned()
    })?;
    ensure((1..=10_000).contains(&e.clones), spanned, || "'clones' must be 1 to 10000".to_owned())?;
    let lasts = matches!(e.action, Action::Kill | Action::Pause | Action::OsdKill) || e.action.locks();
    ensure(lasts || e.length.is_none(), spanned, || {
        "'for' belongs to 'kill', 'pause', 'osd_kill', 'reserve' and 'compare_and_write'".to_owned()
    })?;
    let killed = |other: &Event| other.action == Action::NodeKill && other.at.0 < e.at.0;
    ensure(e.action != Action::NodeStart || s.events_of(phase).any(killed), spanned, || {
        "'node_start' needs an earlier 'node_kill' in the same phase".to_owned()
    })?;
    let locked = e.disk.iter().filter(|_| e.action.locks());
    for disk in locked {
        let end = s.size(disk.get_ref()).0.saturating_sub(METADATA_BYTES);
        let loads = s.loads.iter().filter(|l| l.disk.get_ref() == disk.get_ref());
        let free = loads.clone().all(|l| l.range(s.size(disk.get_ref()).0).1 <= end);
        ensure(free, disk, || {
            "the last MiB of the disk has the metadata that the other host changes: give its loads a smaller 'size'"
                .to_owned()
        })?;
    }
    let filled = e.disk.iter().filter(|_| e.action == Action::Fill);
    for disk in filled {
        let used = phase.loads.iter().any(|l| s.load(l.get_ref()).disk.get_ref() == disk.get_ref());
        ensure(!used, disk, || "a disk with a load cannot be filled at the same time".to_owned())?;
    }
    Ok(())
}

fn judge(s: &Scenario, spanned: &Spanned<Check>) -> Checked {
    let c = spanned.get_ref();
    for phase in c.phase.iter().chain(&c.as_phase) {
        refers(phase, s.phases.iter().map(|p| &p.name), "phase")?;
    }
    if let Some(load) = &c.load {
        refers(load, s.loads.iter().map(|l| &l.name), "load")?;
        if let Some(phase) = &c.phase {
            let phase = s.phase(phase.get_ref());
            ensure(phase.loads.iter().any(|l| l.get_ref() == load.get_ref()), load, || {
                format!("the load '{}' is not in the phase '{}'", load.get_ref(), phase.name.get_ref())
            })?;
        }
        let rated = s.load(load.get_ref()).rate.is_some();
        ensure(c.is != Judge::Band || rated, load, || "'band' needs a load with 'rate'".to_owned())?;
    }
    ensure(c.percentile.is_none_or(|p| p > 0.0 && p <= 100.0), spanned, || {
        "'percentile' must be above 0 and at most 100".to_owned()
    })?;
    // For each kind: the fields that it needs, and the others that it may have.
    let (needs, may): (&[&str], &[&str]) = match c.is {
        Judge::Band => (&["load"], &[]),
        Judge::Latency => (&["percentile", "below"], &["load"]),
        Judge::NoTrend => (&["load"], &["within_percent"]),
        Judge::Errors | Judge::Verified | Judge::Complete => (&[], &["load"]),
        Judge::Back => (&["phase", "within"], &["load"]),
        Judge::SameRate => (&["phase", "as_phase", "load"], &["within_percent"]),
        Judge::Events => (&["phase"], &["within"]),
    };
    let given = [
        ("phase", c.phase.is_some()),
        ("load", c.load.is_some()),
        ("percentile", c.percentile.is_some()),
        ("below", c.below.is_some()),
        ("within", c.within.is_some()),
        ("within_percent", c.within_percent.is_some()),
        ("as_phase", c.as_phase.is_some()),
    ];
    for (field, is_given) in given {
        let needed = needs.contains(&field);
        ensure(is_given || !needed, spanned, || format!("the check needs '{field}'"))?;
        ensure(!is_given || needed || may.contains(&field) || field == "phase", spanned, || {
            format!("'{field}' does not belong to this check")
        })?;
    }
    Ok(())
}
