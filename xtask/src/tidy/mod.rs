//! The style of the repository, checked as a test.
//!
//! Each file that is tracked by git, or would be added, is read once and passed to each check. A check is a
//! function from a file to findings, so each has unit tests on small texts. Nothing is fixed automatically.

mod comments;
mod features;
mod links;
mod manifest;
mod structure;
mod text;
mod words;
mod workflows;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use words::{Count, Words};

/// A defect, and where it is.
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

/// The result of a run.
#[derive(Debug, Default)]
pub struct Report {
    /// How many files were read.
    pub files: usize,
    /// Files that grow long, with their lines; not an error yet.
    pub long_files: Vec<String>,
    /// Words that make comments hard to read.
    pub odd_words: Count,
    /// Defects to fix.
    pub findings: Vec<Finding>,
}

/// Checks the repository at `root`. With `all_words`, words that are only limited in number are findings as
/// well.
///
/// Errors are those of reading the files.
pub fn check(root: &Path, all_words: bool) -> io::Result<Report> {
    let mut report = Report::default();
    let words = Words::new();
    let files = tracked_files(root)?;
    for path in &files {
        let full = root.join(path);
        // Deleted but not committed, or a dangling link.
        if !full.is_file() {
            continue;
        }
        report.files += 1;
        if is_bytes(path) {
            continue;
        }
        let Ok(content) = String::from_utf8(std::fs::read(&full)?) else { continue };
        check_file(root, path, &content, &mut report);
        let prose = comments::read(path, &content);
        report.findings.extend(text::check_comments(path, &content, &prose));
        report.findings.extend(words.check(path, &prose, all_words, &mut report.odd_words));
    }
    report.findings.extend(report.odd_words.check());
    report.findings.extend(structure::check(root, &files)?);
    report.findings.extend(features::check()?);
    Ok(report)
}

/// Whether a file is a golden file or of a fuzz corpus: binary, even where it is valid UTF-8; or of another
/// project.
fn is_bytes(path: &str) -> bool {
    path.starts_with("fuzz/corpus/") || path.contains("/tests/golden/") || path.contains("/vendor/")
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
    if path.starts_with(".github/workflows/") {
        report.findings.extend(workflows::check(path, content));
    }
}

/// Paths, relative to `root`, of all files that are tracked or that `git add` would add.
fn tracked_files(root: &Path) -> io::Result<Vec<String>> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()?;
    if output.status.success() {
        let names = output.stdout.split(|b| *b == 0).filter(|n| !n.is_empty());
        return Ok(names.map(|n| String::from_utf8_lossy(n).into_owned()).collect());
    }
    // A source archive has no git: all files count, except build output.
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
