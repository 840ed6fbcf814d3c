//! Style as a test: what a reviewer would otherwise have to say again and again.
//!
//! Every file that git knows or would take is read once and passed to each check. A check is a function from a
//! file to findings, so that each has a test on text of its own; nothing is fixed automatically.

mod licences;
mod links;
mod manifest;
mod text;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Something to change.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    path: String,
    line: usize,
    what: String,
}

impl Finding {
    fn new(path: &str, line: usize, what: impl Into<String>) -> Finding {
        Finding { path: path.to_owned(), line, what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// What a run found.
#[derive(Debug, Default)]
pub struct Report {
    /// How many files were read.
    pub files: usize,
    /// Files that grow long, with their lines; not an error yet.
    pub long_files: Vec<String>,
    /// What is wrong.
    pub findings: Vec<Finding>,
}

/// Checks the repository at `root`. Fails only where it cannot be read.
pub fn check(root: &Path) -> io::Result<Report> {
    let mut report = Report::default();
    for path in tracked_files(root)? {
        let full = root.join(&path);
        // Deleted but not yet committed, or a link to nowhere: nothing to read.
        if !full.is_file() {
            continue;
        }
        report.files += 1;
        if is_bytes(&path) {
            continue;
        }
        let Ok(content) = String::from_utf8(std::fs::read(&full)?) else { continue };
        check_file(root, &path, &content, &mut report);
    }
    report.findings.extend(licences::check(root)?);
    Ok(report)
}

/// Golden files and fuzz corpora, even where they could be read as text.
fn is_bytes(path: &str) -> bool {
    path.starts_with("fuzz/corpus/") || path.contains("/tests/golden/")
}

fn check_file(root: &Path, path: &str, content: &str, report: &mut Report) {
    report.findings.extend(text::check(path, content));
    if let Some(lines) = text::long(path, content) {
        report.long_files.push(format!("{path} ({lines} lines)"));
    }
    if path.ends_with(".md") {
        let exists = |target: &Path| root.join(target).exists();
        report.findings.extend(links::check(path, content, exists));
    }
    if path.ends_with("Cargo.toml") {
        report.findings.extend(manifest::check(path, content));
    }
}

/// Paths of all files that are tracked or would be with `git add`, relative to `root`.
fn tracked_files(root: &Path) -> io::Result<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()?;
    if output.status.success() {
        let names = output.stdout.split(|b| *b == 0).filter(|n| !n.is_empty());
        return Ok(names.map(|n| String::from_utf8_lossy(n).into_owned()).collect());
    }
    // A source archive has no git; then every file counts but those that a build makes.
    let mut files = Vec::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(dir) = pending.pop() {
        for entry in std::fs::read_dir(root.join(&dir))? {
            let entry = entry?;
            let path = dir.join(entry.file_name());
            match entry.file_type()? {
                t if t.is_dir() && !is_build_output(&path) => pending.push(path),
                t if t.is_file() => files.push(path.to_string_lossy().into_owned()),
                _ => (),
            }
        }
    }
    files.sort();
    Ok(files)
}

fn is_build_output(dir: &Path) -> bool {
    ["target", ".cache", ".git", "fuzz/target"].iter().any(|name| dir == Path::new(name))
}

#[cfg(test)]
mod tests {
    #[test]
    fn this_repository_is_tidy() {
        let report = super::check(crate::root()).unwrap();
        assert!(report.files > 20, "only {} files were found", report.files);
        let all: Vec<_> = report.findings.iter().map(ToString::to_string).collect();
        assert!(all.is_empty(), "\n{}", all.join("\n"));
    }
}
