//! Standard output: text and tables, or JSON.

use std::io::{self, Write};

use clap::CommandFactory;
use clap_complete::Shell;
use comfy_table::{CellAlignment, Table, presets};
use forebay_api::{DiskView, Kind, LimitSet, Reset, SyncPolicy};
use forebay_host::clock::unix_ms;
use forebay_text as text;
use forebay_text::Size;
use serde::Serialize;

use super::args::Cli;
use super::{CliError, complete};

/// Moves the cursor to the top left and clears to the end of the screen (ECMA-48, CUP and ED).
const CLEAR_SCREEN: &str = "\x1b[H\x1b[J";

/// Prints a value as JSON, on one line.
pub(super) fn json(value: &impl Serialize) -> Result<(), CliError> {
    let text = serde_json::to_string(value).map_err(|e| CliError::Output(e.into()))?;
    print("", &text::json(&text))
}

/// Prints a value as JSON if `as_json` is set, otherwise as `text` renders it.
pub(super) fn print_result<T: Serialize>(
    value: &T,
    as_json: bool,
    text: impl FnOnce(&T) -> String,
) -> Result<(), CliError> {
    if as_json { json(value) } else { line(&text(value)) }
}

/// Prints a text and a newline; prints nothing for an empty text. Escapes control characters, which names can
/// contain.
pub(super) fn line(text: &str) -> Result<(), CliError> {
    if text.is_empty() { Ok(()) } else { print("", &text::lines(text)) }
}

/// Renders a share in percent.
pub(super) fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |s| format!("{:.1} %", s * 100.0))
}

/// Renders the share of guests' requests that needed no store operation. If it is negative, because other
/// work caused more store operations, it is shown as 0 %.
pub(super) fn offload(share: Option<f64>) -> String {
    percent(share.map(|s| s.max(0.0)))
}

/// Clears the terminal and prints a text.
pub(super) fn screen(text: &str) -> Result<(), CliError> {
    print(CLEAR_SCREEN, &text::lines(text))
}

fn print(control: &str, text: &str) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    writeln!(out, "{control}{text}").and_then(|()| out.flush()).map_err(CliError::Output)
}

/// Creates a table without borders, readable by people and by `awk`.
pub(super) fn table(header: &[&str], right: &[usize]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    if !header.is_empty() {
        table.set_header(header);
    }
    for &index in right {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Renders a table without trailing blanks.
pub(super) fn render(mut table: Table) -> String {
    table.column_iter_mut().for_each(|column| _ = column.set_padding((0, 2)));
    let text = table.to_string();
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

/// Shown instead of a figure of a disk that the server has not measured yet.
const NOT_MEASURED: &str = "not measured yet";

/// Renders what a disk uses: the data that its origin does not have.
pub(super) fn used(d: &DiskView) -> String {
    d.used_bytes.map_or_else(|| NOT_MEASURED.to_owned(), |bytes| Size(bytes).to_string())
}

/// Renders what deleting a disk would free, and how old that figure is.
pub(super) fn freed_by_deleting(d: &DiskView, now_ms: u64) -> String {
    match (d.exclusive_bytes, d.exclusive_as_of_ms) {
        (Some(bytes), Some(then)) => format!("{} ({} ago)", Size(bytes), age(now_ms, then)),
        _ => NOT_MEASURED.to_owned(),
    }
}

/// Renders `image list`, `volume list` and `snapshot list`.
pub(super) fn disk_table(disks: &[DiskView], kind: Kind) -> String {
    let now = unix_ms();
    let space = ["NAME", "SIZE", "USED", "FREED BY DELETING"];
    let more: &[&str] = match kind {
        Kind::Image | Kind::Snapshot => &["CLONES", "AGE"],
        Kind::Volume => &["SYNC", "SNAPSHOTS", "CLIENTS", "AGE", "ORIGIN"],
    };
    let right: &[usize] = match kind {
        Kind::Volume => &[1, 2, 3, 5, 6, 7],
        Kind::Image | Kind::Snapshot => &[1, 2, 3, 4, 5],
    };
    let mut t = table(&[&space[..], more].concat(), right);
    for d in disks {
        let age = age(now, d.created_ms);
        let mut row =
            vec![d.name.clone(), Size(d.size_bytes).to_string(), used(d), freed_by_deleting(d, now)];
        match kind {
            Kind::Image | Kind::Snapshot => row.extend([d.clones.to_string(), age]),
            Kind::Volume => row.extend([
                sync_text(d),
                d.snapshots.to_string(),
                d.clients.to_string(),
                age,
                d.origin.clone().unwrap_or_default(),
            ]),
        }
        t.add_row(row);
    }
    let lost: Vec<&str> = disks.iter().filter(|d| d.memory_lost).map(|d| &*d.name).collect();
    let render = |t| match lost.is_empty() {
        true => render(t),
        false => format!("{}\nLost writes: {}; run 'forebay volume show NAME'", render(t), lost.join(", ")),
    };
    let damaged: Vec<&str> = disks.iter().filter(|d| d.map_damaged).map(|d| &*d.name).collect();
    match damaged.is_empty() {
        true => render(t),
        false => format!("{}\nDamaged block maps: {}; run 'forebay check'", render(t), damaged.join(", ")),
    }
}

/// Renders `image show` and `volume show`.
pub(super) fn disk_details(d: &DiskView) -> String {
    let mut t = table(&[], &[]);
    let kind = match d.kind {
        Kind::Volume => "volume",
        Kind::Snapshot => "snapshot",
        Kind::Image => "image",
    };
    let mut row = |name: &str, value: String| {
        t.add_row([name.to_owned(), value]);
    };
    row("name", d.name.clone());
    row("kind", kind.into());
    row("size", format!("{} ({} bytes)", Size(d.size_bytes), d.size_bytes));
    row("used", used(d));
    row("freed by deleting", freed_by_deleting(d, unix_ms()));
    if d.kind == Kind::Volume {
        row("sync", sync_text(d));
        if let Some(bytes) = d.write_cache_bytes {
            row("write cache", format!("{} of RAM (desktop)", Size(bytes)));
            if d.reset == Some(Reset::Disconnect) {
                row("reset", "when the client disconnects".into());
            }
        }
        row("snapshots", d.snapshots.to_string());
    }
    row("clones", d.clones.to_string());
    row("clients", d.clients.to_string());
    if let Some(origin) = &d.origin {
        row("origin", origin.clone());
    }
    row("dedup domain", d.dedup_domain.to_string());
    if let Some(tenant) = &d.tenant {
        row("tenant", tenant.clone());
    }
    if *d.limits != LimitSet::default() {
        row("limits", d.limits.to_string());
    }
    if d.map_damaged {
        row("block map", "damaged: run 'forebay check'".into());
    }
    if d.memory_lost {
        let command = if d.write_cache_bytes.is_some() { "reset" } else { "resume" };
        let what = format!("lost: stop its clients, then run 'forebay volume {command} {}'", d.name);
        row("acknowledged writes", what);
    }
    row("uuid", d.uuid.clone());
    row("age", age(unix_ms(), d.created_ms));
    render(t)
}

fn sync_text(d: &DiskView) -> String {
    match d.sync {
        _ if d.write_cache_bytes.is_some() => "desktop",
        SyncPolicy::Flush => "flush",
        SyncPolicy::Always => "always",
        SyncPolicy::Never => "never",
    }
    .into()
}

/// Renders the time since `then_ms` in the largest whole unit.
pub(super) fn age(now_ms: u64, then_ms: u64) -> String {
    let s = now_ms.saturating_sub(then_ms) / 1000;
    match s {
        0..60 => format!("{s} s"),
        60..3600 => format!("{} min", s / 60),
        3600..86_400 => format!("{} h", s / 3600),
        _ => format!("{} d", s / 86_400),
    }
}

/// Prints a shell completion script.
pub(super) fn completions(shell: Shell) -> Result<(), CliError> {
    write_all(&complete::script(shell))
}

/// Prints the manual page: the program, then a section for each command.
pub(super) fn man() -> Result<(), CliError> {
    let mut command = Cli::command();
    command.build();
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut page).map_err(CliError::Output)?;
    man_commands(&command, "forebay", &mut page).map_err(CliError::Output)?;
    write_all(&page)
}

/// Writes a section with synopsis and options for each command without subcommands.
fn man_commands(parent: &clap::Command, prefix: &str, page: &mut Vec<u8>) -> io::Result<()> {
    for command in parent.get_subcommands().filter(|c| !c.is_hide_set()) {
        let name = format!("{prefix} {}", command.get_name());
        if command.has_subcommands() {
            man_commands(command, &name, page)?;
            continue;
        }
        writeln!(page, ".SH \"{}\"", name.to_uppercase())?;
        let man = clap_mangen::Man::new(command.clone());
        man.render_description_section(page)?;
        man.render_synopsis_section(page)?;
        man.render_options_section(page)?;
    }
    Ok(())
}

pub(super) fn write_all(bytes: &[u8]) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(CliError::Output)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> DiskView {
        let json = r#"{"name": "v", "kind": "volume", "size_bytes": 4096, "sync": "flush", "created_ms": 0, "origin": null,
            "snapshots": 0, "clones": 0, "clients": 0, "uuid": "", "dedup_domain": 0, "map_damaged": false,
            "memory_lost": false, "write_cache_bytes": null, "reset": null}"#;
        serde_json::from_str(json).expect("a disk")
    }

    #[test]
    fn the_space_of_a_disk_is_shown_with_its_age_or_as_not_measured() {
        let measured = DiskView {
            used_bytes: Some(3 << 20),
            exclusive_bytes: Some(1 << 20),
            exclusive_as_of_ms: Some(0),
            ..disk()
        };
        assert_eq!(
            (used(&measured), freed_by_deleting(&measured, 180_000)),
            ("3 MiB".into(), "1 MiB (3 min ago)".into())
        );
        for kind in [Kind::Volume, Kind::Image, Kind::Snapshot] {
            let list = disk_table(&[disk()], kind);
            assert_eq!(list.matches("not measured yet").count(), 2, "{list}");
        }
    }

    #[test]
    fn damaged_block_maps_and_lost_writes_are_shown() {
        let sound = disk();
        let damaged = DiskView { name: "w".into(), map_damaged: true, ..sound.clone() };
        let list = disk_table(&[sound.clone(), damaged.clone()], Kind::Volume);
        assert!(list.ends_with("\nDamaged block maps: w; run 'forebay check'"), "{list}");
        assert!(disk_details(&damaged).contains("damaged: run 'forebay check'"));
        let lost = DiskView { memory_lost: true, ..sound.clone() };
        let desktop = DiskView { write_cache_bytes: Some(1), ..lost.clone() };
        let list = disk_table(&[lost.clone(), damaged], Kind::Volume);
        assert!(
            list.contains("\nLost writes: v; run 'forebay volume show NAME'\nDamaged block maps: w;"),
            "{list}"
        );
        assert!(disk_details(&lost).contains("'forebay volume resume v'"));
        assert!(disk_details(&desktop).contains("'forebay volume reset v'"));
        let sound = disk_table(std::slice::from_ref(&sound), Kind::Volume) + &disk_details(&sound);
        assert!(!sound.contains("amaged") && !sound.contains("ost"), "{sound}");
    }

    #[test]
    fn an_age_has_the_largest_whole_unit() {
        for (s, text) in [(0, "0 s"), (59, "59 s"), (60, "1 min"), (7200, "2 h"), (86_400 * 400, "400 d")] {
            assert_eq!(age(s * 1000, 0), text);
        }
        assert_eq!(age(0, 5000), "0 s", "after the clock was set back");
    }
}
