//! Circles of files: sets of files that depend on each other, directly or through others of the set.
//!
//! A file depends on another if an import or a path in it names an item that the other defines. A re-export
//! counts as the file that defines the item. Test code, comments and calls of methods are ignored.

mod resolve;
mod scan;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use resolve::Crate;
pub use resolve::Use;

/// A strongly connected component of more than one file.
#[derive(Debug)]
pub struct Circle {
    /// The files, sorted.
    pub files: Vec<String>,
    /// All uses between them.
    pub uses: Vec<Use>,
}

/// The uses between the files of `folder`, a path below `base` that is or is in a crate's `src`.
pub fn uses(base: &Path, folder: &str) -> io::Result<BTreeSet<Use>> {
    let folder = folder.trim_end_matches('/');
    let root = root_file(base, folder).ok_or_else(|| {
        io::Error::new(io::ErrorKind::NotFound, format!("{folder}: no lib.rs or main.rs above"))
    })?;
    let within = |file: &str| file.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'));
    let mut uses = Crate::read(base, &root)?.uses();
    uses.retain(|u| within(&u.from) && within(&u.to));
    Ok(uses)
}

/// The circles in `folder`.
pub fn find(base: &Path, folder: &str) -> io::Result<Vec<Circle>> {
    Ok(circles(&uses(base, folder)?))
}

/// The part of a file's path directly below `folder`: a folder, or the file itself.
pub fn top<'a>(file: &'a str, folder: &str) -> &'a str {
    let below = file.strip_prefix(folder).unwrap_or(file).trim_start_matches('/');
    below.split_once('/').map_or(below, |(first, _)| first)
}

/// The circles of folders directly below `folder`. A file that is in none of them counts as a folder.
pub fn find_folders(base: &Path, folder: &str) -> io::Result<Vec<Circle>> {
    Ok(circles_of_folders(&uses(base, folder)?, folder.trim_end_matches('/')))
}

/// As [`find_folders`], of these uses.
pub fn circles_of_folders(uses: &BTreeSet<Use>, folder: &str) -> Vec<Circle> {
    let name = |file: &str| top(file, folder).to_owned();
    let between = uses.iter().map(|u| Use { from: name(&u.from), to: name(&u.to), ..u.clone() });
    circles(&between.filter(|u| u.from != u.to).collect())
}

/// The nearest `lib.rs` or `main.rs` in `folder` or above.
fn root_file(base: &Path, folder: &str) -> Option<String> {
    let mut dir = folder;
    loop {
        for name in ["lib.rs", "main.rs"] {
            let file = format!("{dir}/{name}");
            if base.join(&file).is_file() {
                return Some(file);
            }
        }
        dir = dir.rsplit_once('/')?.0;
    }
}

/// The strongly connected components, by reachability: the graphs are small.
fn circles(uses: &BTreeSet<Use>) -> Vec<Circle> {
    let mut next: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for u in uses {
        next.entry(&u.from).or_default().insert(&u.to);
    }
    let reachable: BTreeMap<&str, BTreeSet<&str>> = next.keys().map(|&f| (f, reachable(&next, f))).collect();
    let reaches = |from: &str, to: &str| reachable.get(from).is_some_and(|r| r.contains(to));
    let mut done: BTreeSet<&str> = BTreeSet::new();
    let mut found = Vec::new();
    for &file in next.keys() {
        if done.contains(file) || !reaches(file, file) {
            continue;
        }
        let files: BTreeSet<&str> = reachable[file].iter().copied().filter(|f| reaches(f, file)).collect();
        done.extend(&files);
        let inside = |u: &&Use| files.contains(u.from.as_str()) && files.contains(u.to.as_str());
        found.push(Circle {
            uses: uses.iter().filter(inside).cloned().collect(),
            files: files.into_iter().map(str::to_owned).collect(),
        });
    }
    found
}

/// All files that `from` depends on, directly or over others.
fn reachable<'a>(next: &BTreeMap<&'a str, BTreeSet<&'a str>>, from: &'a str) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    let mut pending = vec![from];
    while let Some(file) = pending.pop() {
        for &to in next.get(file).into_iter().flatten() {
            if seen.insert(to) {
                pending.push(to);
            }
        }
    }
    seen
}

/// Prints the circles in a folder, with the uses that close them; returns their number.
pub fn print(base: &Path, folder: &str) -> io::Result<usize> {
    let circles = find(base, folder)?;
    print_all(&circles, "files");
    let of_folders = find_folders(base, folder)?;
    print_all(&of_folders, "folders");
    let files: usize = circles.iter().map(|c| c.files.len()).sum();
    let folders: usize = of_folders.iter().map(|c| c.files.len()).sum();
    println!(
        "{folder}: {} circles of files, {files} files in them; {} circles of folders, {folders} folders in them",
        circles.len(),
        of_folders.len()
    );
    Ok(circles.len() + of_folders.len())
}

fn print_all(circles: &[Circle], what: &str) {
    for circle in circles {
        println!("circle of {} {what}:", circle.files.len());
        for file in &circle.files {
            println!("  {file}");
            let mut names: BTreeMap<&str, Vec<String>> = BTreeMap::new();
            for u in circle.uses.iter().filter(|u| u.from == *file) {
                names.entry(&u.to).or_default().push(format!("{} ({})", u.name, u.line));
            }
            for (to, names) in names {
                println!("      -> {to}: {}", names.join(", "));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(edges: &[(&str, &str)]) -> Vec<Vec<String>> {
        let uses = edges
            .iter()
            .map(|(from, to)| Use { from: (*from).into(), to: (*to).into(), line: 1, name: "x".into() })
            .collect();
        circles(&uses).into_iter().map(|c| c.files).collect()
    }

    #[test]
    fn only_circles_are_found() {
        assert!(found(&[("a", "b"), ("b", "c"), ("a", "c")]).is_empty());
        assert_eq!(found(&[("a", "b"), ("b", "a")]), [["a", "b"]]);
        assert_eq!(found(&[("x", "a"), ("a", "b"), ("b", "c"), ("c", "a"), ("c", "y")]), [["a", "b", "c"]]);
        assert_eq!(found(&[("a", "b"), ("b", "a"), ("b", "c"), ("c", "d"), ("d", "c")]).len(), 2);
    }
}
