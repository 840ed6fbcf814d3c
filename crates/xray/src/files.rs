//! Real data: disk images made of files of this machine, without root and without a network.
//!
//! A directory of files represents a package, whose files are added together. `mke2fs -d` and `ntfscp` fill
//! the file systems of the images, so files are laid out as in a guest.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{During, Error, Result};
use crate::rng::Rng;
use crate::targets::servers::run;

/// Directories in which files are searched.
const ROOTS: [&str; 4] = ["/usr/lib", "/usr/share", "/usr/bin", "/lib/modules"];
/// Larger files would make the sets uneven.
const MAX_FILE: u64 = 16 << 20;
/// Stops the search when there are enough files.
const MAX_DIRECTORIES: usize = 30_000;

/// The files of one directory.
pub struct Package {
    /// Name of the directory in an image.
    name: String,
    files: Vec<PathBuf>,
    bytes: u64,
}

/// All packages, in an order that is the same in every run on the same machine.
pub fn packages() -> Vec<Package> {
    let mut found = Vec::new();
    let mut todo: Vec<PathBuf> = ROOTS.iter().rev().map(PathBuf::from).collect();
    while let Some(directory) = todo.pop() {
        let Ok(entries) = fs::read_dir(&directory) else { continue };
        let mut package = Package { name: String::new(), files: Vec::new(), bytes: 0 };
        let mut below = Vec::new();
        for entry in entries.flatten() {
            let Ok(kind) = entry.metadata() else { continue };
            if kind.is_dir() {
                below.push(entry.path());
            } else if kind.is_file() && (1..MAX_FILE).contains(&kind.len()) {
                package.bytes += kind.len();
                package.files.push(entry.path());
            }
        }
        package.files.sort();
        below.sort();
        todo.extend(below);
        if !package.files.is_empty() {
            let leaf = directory.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            package.name = leaf.chars().filter(char::is_ascii_alphanumeric).take(20).collect();
            found.push(package);
        }
        if found.len() >= MAX_DIRECTORIES {
            break;
        }
    }
    shuffle(&mut found, 1);
    found
}

/// Removes packages of about `bytes` from `left` and returns them.
pub fn take(left: &mut Vec<Package>, bytes: u64) -> Vec<Package> {
    let mut taken = Vec::new();
    let mut total = 0;
    while total < bytes {
        let Some(package) = left.pop() else { break };
        // A package that is much too large would be most of the set.
        if package.bytes < bytes / 4 {
            total += package.bytes;
            taken.push(package);
        }
    }
    taken
}

/// The concatenated files of packages, up to `bytes`.
pub fn bytes_of(packages: &[Package], bytes: usize) -> Vec<u8> {
    let mut all = Vec::with_capacity(bytes);
    for file in packages.iter().flat_map(|p| &p.files) {
        if all.len() >= bytes {
            break;
        }
        all.extend(fs::read(file).unwrap_or_default());
    }
    all.truncate(bytes);
    all
}

/// Every file of packages, with a unique name.
pub fn files<'a>(packages: impl IntoIterator<Item = &'a Package>) -> Vec<(String, PathBuf)> {
    let all = packages.into_iter().flat_map(|p| &p.files).enumerate();
    all.map(|(i, path)| (format!("f{i:05}"), path.clone())).collect()
}

/// The content of an image.
pub struct Recipe<'a> {
    /// The packages that the image contains.
    pub packages: Vec<&'a Package>,
    /// Seed of the order in which files are written.
    pub order: u64,
    /// Number of files of which one is modified; 0 stands for none.
    pub patch_one_of: u64,
    /// Bytes of free space in the image.
    pub free: u64,
}

/// Creates an ext4 image at `image`.
pub fn ext4(image: &Path, recipe: &Recipe<'_>) -> Result<()> {
    let tree = image.with_extension("tree");
    let mut bytes = 0;
    let mut rng = Rng::new(recipe.order);
    for package in &recipe.packages {
        // mke2fs reads directories in the order of the hashes of their names, which a number prefix changes.
        let directory = tree.join(format!("{:04x}-{}", rng.below(1 << 16), package.name));
        fs::create_dir_all(&directory).during(|| format!("cannot create {}", directory.display()))?;
        for (i, file) in package.files.iter().enumerate() {
            let to = directory.join(format!("{i}"));
            if recipe.patch_one_of != 0 && rng.below(recipe.patch_one_of) == 0 {
                patch(file, &to, &mut rng)?;
            } else if fs::hard_link(file, &to).is_err() && fs::copy(file, &to).is_err() {
                // Files that this user may not read are skipped.
                let _ = fs::remove_file(&to);
            }
        }
        bytes += package.bytes + package.files.len() as u64 * 4096;
    }
    let size = (bytes + bytes / 16 + recipe.free + (32 << 20)).next_multiple_of(1 << 20);
    let mut command = Command::new("mke2fs");
    command.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-i", "4096", "-d"]);
    command.arg(&tree).arg(image).arg(format!("{}K", size >> 10));
    installed(run(&mut command), "mke2fs", "e2fsprogs")?;
    fs::remove_dir_all(&tree).during(|| format!("cannot remove {}", tree.display()))
}

/// A copy of a file with an insertion and a modification, as in a new release.
fn patch(from: &Path, to: &Path, rng: &mut Rng) -> Result<()> {
    let mut data = fs::read(from).unwrap_or_default();
    let at = rng.below(data.len() as u64 + 1) as usize;
    let mut news = [0; 64];
    rng.fill(&mut news);
    data.splice(at..at, news);
    fs::write(to, data).during(|| format!("cannot write {}", to.display()))
}

/// Creates an NTFS image at `image` with these files, in this order.
pub fn ntfs(image: &Path, files: &[PathBuf]) -> Result<()> {
    let what = || format!("cannot create {}", image.display());
    let bytes: u64 = files.iter().filter_map(|f| fs::metadata(f).ok()).map(|m| m.len()).sum();
    let file = File::create(image).during(what)?;
    file.set_len((bytes * 5 / 4 + (32 << 20)).next_multiple_of(1 << 20)).during(what)?;
    drop(file);
    installed(run(Command::new("mkntfs").args(["-q", "-F", "-Q"]).arg(image)), "mkntfs", "ntfs-3g")?;
    for (i, file) in files.iter().enumerate() {
        run(Command::new("ntfscp").arg("-q").arg(image).arg(file).arg(format!("/{i}.dll")))?;
    }
    Ok(())
}

/// Windows programs and libraries, for example those of Wine.
pub fn windows_files(packages: &[Package], bytes: u64) -> Vec<PathBuf> {
    let is_dll = |f: &&PathBuf| f.extension().is_some_and(|e| e.eq_ignore_ascii_case("dll") || e == "exe");
    let mut total = 0;
    let all = packages.iter().flat_map(|p| &p.files).filter(is_dll);
    all.take_while(|f| {
        total += fs::metadata(f).map_or(0, |m| m.len());
        total < bytes
    })
    .cloned()
    .collect()
}

/// Writes `files` into the root of the ext4 image at `image`, in an order that depends on `order`.
pub fn install(image: &Path, files: &[(String, PathBuf)], order: u64) -> Result<()> {
    let mut shuffled: Vec<_> = files.iter().collect();
    shuffle(&mut shuffled, order);
    // debugfs has no quoting: paths that it could not parse are skipped.
    let usable = shuffled.iter().filter(|(_, path)| path.to_str().is_some_and(|p| !p.contains([' ', '"'])));
    let script: String = usable.map(|(name, path)| format!("write {} {name}\n", path.display())).collect();
    let at = image.with_extension("script");
    fs::write(&at, script).during(|| format!("cannot write {}", at.display()))?;
    let mut command = Command::new("debugfs");
    installed(run(command.arg("-w").arg("-f").arg(&at).arg(image)), "debugfs", "e2fsprogs").map(drop)
}

/// A random order (Fisher and Yates), the same for the same seed.
pub fn shuffle<T>(items: &mut [T], seed: u64) {
    let mut rng = Rng::new(seed);
    for i in (1..items.len()).rev() {
        items.swap(i, rng.below(i as u64 + 1) as usize);
    }
}

/// Turns a missing program into an error that names its package.
fn installed<T>(result: Result<T>, program: &'static str, package: &'static str) -> Result<T> {
    match result {
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            Err(Error::Missing { program, package })
        }
        other => other,
    }
}
