//! Checks on any text file: length, blanks, leftovers, paths of one machine, and the head of a Rust module.

use super::Finding;

/// Files at or below this many lines need no thought.
const GOOD_LINES: usize = 500;
/// No file is longer.
const MAX_LINES: usize = 1000;

/// What may not stand in any file. Split, so that this one does not hold them either.
const LEFTOVERS: [(&str, &str); 4] = [
    (concat!("to", "do!("), "unfinished code"),
    (concat!("FIX", "ME"), "a note to oneself: do it, or write an issue"),
    (concat!("XX", "X"), "a note to oneself: do it, or write an issue"),
    (concat!("db", "g!("), "debugging output"),
];
const MACHINE_PATHS: [&str; 2] = [concat!("/wo", "rk/"), concat!("/ho", "me/")];

/// Machine-written, so neither length nor content is ours.
fn is_generated(path: &str) -> bool {
    path.ends_with("Cargo.lock")
}

/// The number of lines of a file that grows long but is not too long yet.
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
    if lines > MAX_LINES {
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
        found.push(Finding::new(path, 1, "a module opens with //! and what a reader must know first"));
    }
    found
}

/// Rust sources of the crates; a test's sibling file needs no head, its module says what is tested.
fn is_module(path: &str) -> bool {
    path.ends_with(".rs") && path.contains("src/") && !path.contains("tests")
}

#[cfg(test)]
mod tests {
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
