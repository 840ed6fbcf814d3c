//! Links of Markdown pages to files and headings: the target must exist.

use std::path::{Component, Path, PathBuf};

use super::Finding;

/// Checks the links of the page at `path`; `exists` returns whether the repository has a file.
pub fn check(path: &str, content: &str, exists: impl Fn(&Path) -> bool) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut in_code = false;
    for (index, line) in content.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        for target in targets(line) {
            if !resolves(path, content, target, &exists) {
                found.push(Finding::new(
                    path,
                    index + 1,
                    format!("the target of the link, '{target}', does not exist"),
                ));
            }
        }
    }
    found
}

/// The targets of the links on a line.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(target, _)| target.trim()))
}

fn resolves(page: &str, content: &str, target: &str, exists: impl Fn(&Path) -> bool) -> bool {
    if target.contains("://") || target.starts_with("mailto:") {
        return true;
    }
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    if file.is_empty() {
        return headings(content).any(|heading| heading == anchor);
    }
    let dir = Path::new(page).parent().unwrap_or(Path::new(""));
    normal(&dir.join(file)).is_some_and(|path| exists(&path))
}

/// The path without `.` and `..`; `None` if it leaves the repository.
fn normal(path: &Path) -> Option<PathBuf> {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => out.push(name),
            Component::CurDir => (),
            Component::ParentDir if out.pop() => (),
            _ => return None,
        }
    }
    Some(out)
}

/// The anchors of a page's headings, in the form that GitHub generates.
fn headings(content: &str) -> impl Iterator<Item = String> {
    content.lines().filter(|l| l.starts_with('#')).map(|line| {
        let text = line.trim_start_matches('#').trim().to_lowercase();
        let keep = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
        text.chars().filter(keep).map(|c| if c == ' ' { '-' } else { c }).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(content: &str) -> usize {
        check("docs/a.md", content, |p| p == Path::new("docs/b.md") || p == Path::new("README.md")).len()
    }

    #[test]
    fn links_are_followed_from_their_page() {
        assert_eq!(broken("[b](b.md), [r](../README.md) and [w](https://example.org)\n"), 0);
        assert_eq!(broken("[b](b.md#part)\n"), 0);
        assert_eq!(broken("[b](README.md)\n"), 1);
        assert_eq!(broken("[b](b.md) [c](c.md)\n"), 1);
        assert_eq!(broken("[b](../../README.md)\n"), 1);
    }

    #[test]
    fn anchors_of_the_same_page_are_checked() {
        assert_eq!(broken("# Two words, one\n[x](#two-words-one)\n"), 0);
        assert_eq!(broken("# Two words\n[x](#three)\n"), 1);
    }

    #[test]
    fn code_is_not_read_for_links() {
        assert_eq!(broken("```\na[i](x)\n```\n"), 0);
    }
}
