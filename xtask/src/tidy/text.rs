//! Checks of any text file: length, blanks, unfinished code, paths of one machine, and the head of a Rust
//! module.

use super::Finding;
use super::comments::Prose;

/// Longer files are reported as candidates for a split.
const GOOD_LINES: usize = 500;
/// Longer files are a finding.
const MAX_LINES: usize = 1000;

/// Wider comments are a finding.
const MAX_COLUMNS: usize = 110;

/// Texts that no file may contain. Each is written in two parts, so that this file does not contain it.
const LEFTOVERS: [(&str, &str); 4] = [
    (concat!("to", "do!("), "unfinished code"),
    (concat!("FIX", "ME"), "do it now, or open an issue"),
    (concat!("XX", "X"), "do it now, or open an issue"),
    (concat!("db", "g!("), "debugging output"),
];
const MACHINE_PATHS: [&str; 2] = [concat!("/wo", "rk/"), concat!("/ho", "me/")];

/// Whether a file is generated: neither its length nor its content is checked.
fn is_generated(path: &str) -> bool {
    ["Cargo.lock", "docs/openapi.json", "packaging/monitoring/forebay-dashboard.json"]
        .iter()
        .any(|file| path.ends_with(file))
}

/// Whether most of a page is generated, so that its length has no limit.
fn is_reference(path: &str) -> bool {
    path.ends_with("docs/cli.md")
}

/// The number of lines of a file that is long but below the limit.
pub fn long(path: &str, content: &str) -> Option<usize> {
    let lines = content.lines().count();
    (lines > GOOD_LINES && lines <= MAX_LINES && !is_generated(path)).then_some(lines)
}

/// Checks one file.
pub fn check(path: &str, content: &str) -> Vec<Finding> {
    if is_generated(path) || content.is_empty() {
        return Vec::new();
    }
    let mut found = Vec::new();
    let lines = content.lines().count();
    if lines > MAX_LINES && !is_reference(path) {
        found.push(Finding::new(path, lines, format!("more than {MAX_LINES} lines: split it")));
    }
    if !content.ends_with('\n') {
        found.push(Finding::new(path, lines, "no newline at the end"));
    }
    if content.ends_with("\n\n") {
        found.push(Finding::new(path, lines, "empty lines at the end"));
    }
    let makefile = path.ends_with("Makefile");
    for (index, line) in content.split('\n').enumerate() {
        let mut add = |what: String| found.push(Finding::new(path, index + 1, what));
        if line.ends_with([' ', '\t', '\r']) {
            add("blanks at the end of the line".into());
        }
        if line.contains('\t') && !makefile {
            add("a tab".into());
        }
        for (leftover, why) in LEFTOVERS {
            if line.contains(leftover) {
                add(format!("'{}': {why}", leftover.trim_end_matches('(')));
            }
        }
        if MACHINE_PATHS.iter().any(|p| line.contains(p)) {
            add("a path of one machine".into());
        }
    }
    if is_module(path) && !content.starts_with("//!") {
        found.push(Finding::new(path, 1, "a module begins with a //! comment that introduces it"));
    }
    found
}

/// Checks the width of comments. Tables and addresses cannot be broken; Markdown is not checked.
pub fn check_comments(path: &str, content: &str, prose: &Prose) -> Vec<Finding> {
    if path.ends_with(".md") {
        return Vec::new();
    }
    let lines: Vec<&str> = content.lines().collect();
    let mut found = Vec::new();
    for comment in &prose.comments {
        let columns = lines.get(comment.number - 1).map_or(0, |line| line.chars().count());
        let unbreakable = comment.text.starts_with('|') || comment.text.contains("://");
        if columns > MAX_COLUMNS && !unbreakable {
            let what = format!("a comment of {columns} columns, at most {MAX_COLUMNS}");
            found.push(Finding::new(path, comment.number, what));
        }
    }
    found
}

/// Whether a file is a Rust source that needs a head. Tests in a sibling file need none: their module has
/// one.
fn is_module(path: &str) -> bool {
    path.ends_with(".rs") && path.contains("src/") && !path.contains("tests")
}

#[cfg(test)]
mod tests {
    use super::super::comments;
    use super::*;

    fn findings(path: &str, content: &str) -> Vec<String> {
        check(path, content).into_iter().map(|f| format!("{}: {}", f.line, f.what)).collect()
    }

    #[test]
    fn clean_text_passes() {
        assert!(findings("a.md", "# A\n\nText.\n").is_empty());
        assert!(findings("crates/a/src/lib.rs", "//! A.\n").is_empty());
        assert!(findings("Makefile", "all:\n\techo\n").is_empty());
        assert!(findings("empty", "").is_empty());
    }

    #[test]
    fn blanks_and_line_ends_are_found() {
        assert_eq!(findings("a", "x \n"), ["1: blanks at the end of the line"]);
        assert_eq!(findings("a", "x\r\n"), ["1: blanks at the end of the line"]);
        assert_eq!(findings("a", "x\n\ty\n"), ["2: a tab"]);
        assert_eq!(findings("a", "x"), ["1: no newline at the end"]);
        assert_eq!(findings("a", "x\n\n"), ["2: empty lines at the end"]);
    }

    #[test]
    fn leftovers_are_found() {
        for (leftover, _) in LEFTOVERS {
            assert_eq!(findings("a", &format!("x {leftover}\n")).len(), 1, "{leftover}");
        }
        for path in MACHINE_PATHS {
            assert_eq!(findings("a", &format!("x {path}y\n")), ["1: a path of one machine"]);
        }
    }

    #[test]
    fn wide_comments_are_found() {
        let wide = |content: &str| check_comments("a.rs", content, &comments::read("a.rs", content)).len();
        assert_eq!(wide(&format!("//! {}\n", "x".repeat(106))), 0);
        assert_eq!(wide(&format!("//! {}\n", "x".repeat(107))), 1);
        assert_eq!(wide(&format!("let a = \"{}\";\n", "x".repeat(110))), 0);
        assert_eq!(wide(&format!("// https://example.org/{}\n", "x".repeat(110))), 0);
        assert!(check_comments("a.md", "x\n", &comments::read("a.md", &"x ".repeat(60))).is_empty());
    }

    #[test]
    fn a_module_without_a_head_is_found() {
        assert_eq!(findings("crates/a/src/b.rs", "use c;\n").len(), 1);
        assert!(findings("crates/a/src/b/tests.rs", "use c;\n").is_empty());
        assert!(findings("crates/a/build.rs", "use c;\n").is_empty());
    }

    #[test]
    fn long_files_are_named_and_longer_ones_refused() {
        assert_eq!(long("a", &"x\n".repeat(GOOD_LINES)), None);
        assert_eq!(long("a", &"x\n".repeat(GOOD_LINES + 1)), Some(GOOD_LINES + 1));
        assert!(findings("a", &"x\n".repeat(MAX_LINES)).is_empty());
        assert_eq!(findings("a", &"x\n".repeat(MAX_LINES + 1)).len(), 1);
        assert!(findings("Cargo.lock", &"x\n".repeat(MAX_LINES + 1)).is_empty());
    }
}
