//! Rows about reduction: its cost per write, its savings on real data, and the duplicates that a bounded
//! index finds.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use super::rounds::{Figure, generate, in_turns};
use super::{Bench, Pace};
use crate::error::{During, Result};
use crate::files::{self, Package, Recipe};
use crate::load::{Fill, Stop};
use crate::report::{Bound, Row, Unit};
use crate::targets::servers::{Forebay, ForebayConfig, random_image, run};

const MIB: f64 = 1_048_576.0;
/// The range that is overwritten repeatedly.
const RANGE: u64 = 256 << 20;
/// Neither compression nor an index.
const PLAIN: &str = "[reduce]\ncompress = false\n[dedup]\nindex = 0\n";
/// "At most 100 MB for each TB stored."
const INDEX_PART: u64 = 10_000;

/// Server CPU of a write with and without reduction, compared with `qemu-nbd`.
pub fn cpu(bench: &Bench, pace: &Pace, binary: &Path, arena: &Arc<Vec<u8>>) -> Result<Vec<Row>> {
    let start = |name, settings: &str| -> Result<Forebay> {
        let forebay = Forebay::start(&bench.dir, binary, &ForebayConfig::new(name, RANGE).with(settings))?;
        forebay.create("cpu", RANGE)?;
        Ok(forebay)
    };
    let (reduced, plain) = (start("cpu-reduced", "")?, start("cpu-plain", PLAIN)?);
    let disks = [reduced.disk("cpu"), plain.disk("cpu"), bench.qemu_writes.disk("")].map(Some);
    let contents = [
        ("that do not compress", Fill::Noise),
        ("of real data, no two alike", Fill::Stamped(arena.clone())),
        ("of real data, stored already", Fill::Repeated(arena.clone())),
    ];
    let mut rows = Vec::new();
    for (what, fill) in contents {
        bench.say(&format!("CPU of writes {what}"));
        // The first pass allocates blocks and stores every block of the repeated content once.
        for disk in disks.iter().flatten() {
            generate(disk, |spec| {
                spec.pass(true, 1 << 20, 4);
                spec.range = Some(0..RANGE);
                spec.fill = fill.clone();
            })?;
        }
        let [with, without, qemu] = in_turns(&disks, pace.rounds, |disk, round| {
            generate(disk, |spec| {
                spec.read_percent = 0;
                spec.range = Some(0..RANGE);
                spec.flush_each = Some(Duration::from_secs(1));
                spec.seed = u64::from(round) + 1;
                spec.fill = fill.clone();
                spec.stop = Stop::Requests(pace.reduce_writes);
            })
        })?;
        let what = format!("server CPU of 4 KiB random writes {what}");
        rows.push(with.row(what, Figure::Cpu, Bound::RatioAtMost(0.5), &qemu));
        let (what, without) =
            ("  compared with no compression and no index", without.named("forebay without"));
        rows.push(with.row(what, Figure::Cpu, Bound::Nothing, &without));
    }
    Ok(rows)
}

/// A file to import.
struct Import {
    what: String,
    file: PathBuf,
    bound: Bound,
}

impl Import {
    fn new(what: impl Into<String>, file: PathBuf, bound: Bound) -> Import {
        Import { what: what.into(), file, bound }
    }
}

/// Counters of a pool.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    stored: u64,
    /// Blocks that were not zero.
    blocks: u64,
    duplicates: u64,
}

impl Counts {
    /// The counters after garbage was freed and images were packed.
    fn packed(forebay: &Forebay) -> Result<Counts> {
        forebay.gc()?;
        let stats = forebay.stats()?;
        let duplicates = stats.get("/reduction/duplicate_blocks")?;
        let others = stats.get("/reduction/new_blocks")? + stats.get("/reduction/unchanged_blocks")?;
        Ok(Counts { stored: stats.get("/stored_bytes")?, blocks: others + duplicates, duplicates })
    }
}

/// Imports of real data: the growth of the store by each; and the same with an index of the promised size.
pub fn real_data(
    bench: &Bench,
    pace: &Pace,
    binary: &Path,
    packages: &mut Vec<Package>,
    notes: &mut Vec<String>,
) -> Result<Vec<Row>> {
    bench.say("creating images of real files");
    let imports = images(bench, pace, packages, notes)?;
    bench.say("importing them");
    let all = Forebay::start(&bench.dir, binary, &ForebayConfig::new("real", 64 << 20))?;
    let mut rows = Vec::new();
    let begin = Counts::packed(&all)?;
    let mut before = begin;
    for (i, import) in imports.iter().enumerate() {
        all.import(&format!("i{i}"), &import.file)?;
        let now = Counts::packed(&all)?;
        let stored = (now.stored - before.stored) as f64 / MIB;
        let data = (now.blocks - before.blocks) as f64 * 4096.0 / MIB;
        let what = format!("stored by an import: {}", import.what);
        rows.push(Row::compare(what, Unit::Mib, import.bound, &[stored], ("its data", &[data])));
        before = now;
    }
    let stored = before.stored - begin.stored;
    let data = (before.blocks - begin.blocks) * 4096;
    let times = data as f64 / stored.max(1) as f64;
    rows.push(Row::alone("  reduction of all of them", Unit::Times, Bound::Nothing, &[times]));
    rows.extend(packed_by_qemu(&imports, &rows)?);
    drop(all);
    rows.extend(bounded(bench, binary, &imports, before, stored)?);
    Ok(rows)
}

/// The first image compared with a qcow2 with compressed clusters, the alternative in Debian's user space.
fn packed_by_qemu(imports: &[Import], rows: &[Row]) -> Result<Option<Row>> {
    let (Some(import), Some(ours)) = (imports.first(), rows.first().and_then(|r| r.ours)) else {
        return Ok(None);
    };
    let packed = import.file.with_extension("packed");
    let mut command = Command::new("qemu-img");
    command.args(["convert", "-c", "-W", "-O", "qcow2", "-o", "compression_type=zstd"]);
    run(command.arg(&import.file).arg(&packed))?;
    let bytes = std::fs::metadata(&packed).map_or(0, |m| m.len());
    let peer = bytes as f64 / MIB;
    let what = "  the first one, compared with a compressed qcow2 (zstd, read-only)";
    Ok(Some(Row::compare(what, Unit::Mib, Bound::Nothing, &[ours], ("qemu-img convert -c", &[peer]))))
}

/// Makes the same imports with an index of a ten-thousandth of the stored bytes.
fn bounded(
    bench: &Bench,
    binary: &Path,
    imports: &[Import],
    unbounded: Counts,
    stored: u64,
) -> Result<Vec<Row>> {
    bench.say("importing them with a bounded index");
    let budget = stored / INDEX_PART;
    let config = ForebayConfig::new("bounded", 64 << 20).with(format!("[dedup]\nindex = {budget}\n"));
    let forebay = Forebay::start(&bench.dir, binary, &config)?;
    for (i, import) in imports.iter().enumerate() {
        forebay.import(&format!("i{i}"), &import.file)?;
        Counts::packed(&forebay)?;
    }
    let found = Counts::packed(&forebay)?;
    let share = 100.0 * found.duplicates as f64 / unbounded.duplicates.max(1) as f64;
    let memory = forebay.stat("/reduction/index/bytes")? as f64 / found.stored.max(1) as f64;
    let (kib, per_tb) = (budget >> 10, memory * 1e12 / MIB);
    Ok(vec![
        Row::alone(
            format!("duplicates found with an index of {kib} KiB, relative to an unlimited index"),
            Unit::Percent,
            Bound::AtLeast(97.0),
            &[share],
        ),
        Row::alone(
            "  its memory per TB stored",
            Unit::Mib,
            Bound::AtMost(1e12 / INDEX_PART as f64 / MIB),
            &[per_tb],
        ),
    ])
}

/// Makes all images, in the order in which they are imported.
fn images(
    bench: &Bench,
    pace: &Pace,
    packages: &mut Vec<Package>,
    notes: &mut Vec<String>,
) -> Result<Vec<Import>> {
    let file = |name: &str| bench.dir.data(name);
    let (common, one, other) = (
        files::take(packages, pace.image_bytes * 4 / 5),
        files::take(packages, pace.image_bytes / 5),
        files::take(packages, pace.image_bytes / 5),
    );
    let ext4 = |name: &str, own: &[Package], order, patch_one_of| -> Result<PathBuf> {
        let packages = common.iter().chain(own).collect();
        let recipe = Recipe { packages, order, patch_one_of, free: 16 << 20 };
        files::ext4(&file(name), &recipe).map(|()| file(name))
    };
    let first = ext4("first.raw", &one, 1, 0)?;
    let mut imports = vec![
        Import::new("a system of this machine's files, on ext4", first.clone(), Bound::Nothing),
        Import::new("the same image again", first, Bound::RatioAtMost(0.02)),
        Import::new(
            "other packages, 4/5 shared, other positions",
            ext4("second.raw", &other, 2, 0)?,
            Bound::Nothing,
        ),
        Import::new(
            "a point release: 1 of 15 files changed",
            ext4("release-1.raw", &one, 1, 15)?,
            Bound::Nothing,
        ),
        Import::new(
            "the next one, in a different order",
            ext4("release-2.raw", &one, 3, 15)?,
            Bound::Nothing,
        ),
    ];
    match guest_image() {
        Some(image) => imports.push(Import::new("the Debian guest of the demo", image, Bound::Nothing)),
        None => notes.push("No Debian guest image: run 'make demo' to build one and include it.".into()),
    }
    let mut windows = files::windows_files(packages, pace.image_bytes / 4);
    if windows.len() < 20 {
        notes.push("Too few Windows programs on this machine: install wine to include them on NTFS.".into());
    } else {
        for (name, order) in [("ntfs-1.raw", 1), ("ntfs-2.raw", 2)] {
            files::shuffle(&mut windows, order);
            files::ntfs(&file(name), &windows)?;
        }
        imports.push(Import::new("Windows programs of Wine, on NTFS", file("ntfs-1.raw"), Bound::Nothing));
        imports.push(Import::new("the same, other positions", file("ntfs-2.raw"), Bound::Nothing));
    }
    random_image(&file("random.raw"), pace.image_bytes / 4)?;
    imports.push(Import::new("random bytes", file("random.raw"), Bound::RatioAtMost(1.03)));
    zeroes(&file("zero.raw"), pace.image_bytes / 4)?;
    imports.push(Import::new("zeroes", file("zero.raw"), Bound::AtMost(1.0)));
    Ok(imports)
}

/// Zeroes that are written, not holes.
fn zeroes(path: &Path, bytes: u64) -> Result<()> {
    std::fs::write(path, vec![0; bytes as usize]).during(|| format!("cannot write {}", path.display()))
}

/// The image that `demo/build-image.sh` has built.
fn guest_image() -> Option<PathBuf> {
    let cache = std::env::var_os("FOREBAY_CACHE").map_or_else(|| PathBuf::from(".cache"), PathBuf::from);
    let made = std::fs::read_dir(cache).ok()?.flatten().map(|e| e.path().join("disk.qcow2"));
    made.filter(|image| image.exists()).last()
}
