//! The structure of the code: circles of files and folders, files that extend `Pool`, the order of modules,
//! and the order of owners.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use super::Finding;
use crate::circles::{self, Use};
use crate::rust::{self, Tree};

/// Folders within which no files depend on each other in a circle.
const WITHOUT_CIRCLES: [&str; 4] =
    ["crates/engine/src", "crates/frontend/src/nbd", "crates/frontend/src/iscsi", "crates/frontend/src/scsi"];
/// Folders whose subfolders do not depend on each other in a circle.
const WITHOUT_FOLDER_CIRCLES: [&str; 11] = [
    "crates/api/src",
    "crates/control/src",
    "crates/engine/src",
    "crates/frontend/src",
    "crates/guest/src",
    "crates/host/src",
    "crates/retained/src",
    "crates/server/src",
    "crates/store/src",
    "crates/text/src",
    "crates/wire/src",
];
/// The page that lists the owners in the engine, lowest first.
const OWNERS_PAGE: &str = "ARCHITECTURE.md";
/// The heading of that list.
const OWNERS_HEADING: &str = "## The owners in the engine";
/// The sentence below the list that names what is lower than all owners.
const BELOW_OWNERS: &str = "Plain data structures are below all of these:";
/// Maximum number of files of the engine with an inherent `impl Pool`.
const MAX_POOL_FILES: usize = 3;
/// The phrase by which the head of a `lib.rs` claims an order, which is then checked.
const CLAIM: &str = "groups of modules, lowest first";
/// A phrase that claims an order which cannot be checked.
const VAGUE_CLAIM: &str = "in the order in which";

/// Checks all folders below `root`, of which `files` are the tracked paths.
pub fn check(root: &Path, files: &[String]) -> io::Result<Vec<Finding>> {
    let mut found = Vec::new();
    for folder in WITHOUT_CIRCLES {
        for circle in circles::find(root, folder)? {
            found.push(in_circle(&circle.files, &circle.uses, folder));
        }
    }
    for folder in WITHOUT_FOLDER_CIRCLES {
        for circle in circles::find_folders(root, folder)? {
            found.push(folders_in_circle(&circle.files, folder));
        }
    }
    let page = std::fs::read_to_string(root.join(OWNERS_PAGE))?;
    found.extend(owners_order(&page, "crates/engine/src", &circles::uses(root, "crates/engine/src")?));
    let mut pool_files = Vec::new();
    for path in files.iter().filter(|p| p.ends_with(".rs") && root.join(p).is_file()) {
        let content = std::fs::read_to_string(root.join(path))?;
        if path.starts_with("crates/engine/src/") && extends_pool(&content) {
            pool_files.push(path.as_str());
        }
        if let Some(folder) = path.strip_suffix("/lib.rs") {
            let claimed = claims(&content, CLAIM);
            let uses = if claimed { circles::uses(root, folder)? } else { BTreeSet::new() };
            found.extend(order(path, &content, folder, &uses));
        }
    }
    found.extend(too_many_pool_files(&pool_files));
    Ok(found)
}

fn in_circle(files: &[String], uses: &[Use], folder: &str) -> Finding {
    let names: Vec<&str> =
        files.iter().map(|f| f.strip_prefix(folder).unwrap_or(f).trim_start_matches('/')).collect();
    let line = uses.iter().find(|u| u.from == files[0]).map_or(1, |u| u.line);
    let what = format!(
        "a circle of {} files ({}); 'cargo run -p xtask -- circles {folder}' prints it",
        files.len(),
        names.join(", ")
    );
    Finding::new(&files[0], line, what)
}

fn folders_in_circle(names: &[String], folder: &str) -> Finding {
    let what = format!(
        "a circle of {} folders ({}); 'cargo run -p xtask -- circles {folder}' prints it",
        names.len(),
        names.join(", ")
    );
    Finding::new(folder, 1, what)
}

/// The folders and files that a page lists as owners, lowest first. The first entry is of the plain data
/// structures.
fn owners(page: &str) -> Vec<Vec<&str>> {
    let section = page.split_once(OWNERS_HEADING).map_or("", |(_, rest)| rest);
    let section = section.split("\n## ").next().unwrap_or(section);
    let plain = section.split_once(BELOW_OWNERS).map_or("", |(_, rest)| rest);
    let plain = plain.split("\n\n").next().unwrap_or(plain);
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let folders = rows.map(|row| quoted(row.split('|').nth(2).unwrap_or("")));
    std::iter::once(quoted(plain)).chain(folders).collect()
}

/// The names in backquotes, without a slash at the end.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).map(|name| name.trim_end_matches('/')).collect()
}

/// Checks that owners use only owners that the page lists above them, and that it lists every folder.
fn owners_order(page: &str, folder: &str, uses: &BTreeSet<Use>) -> Vec<Finding> {
    let owners = owners(page);
    let rank = |file: &str| owners.iter().position(|names| names.contains(&circles::top(file, folder)));
    let mut found = Vec::new();
    let mut unlisted = BTreeSet::new();
    for u in uses {
        let name = circles::top(&u.from, folder);
        match (rank(&u.from), rank(&u.to)) {
            (Some(from), Some(to)) if from < to => {
                let what =
                    format!("uses {} of {}, which {OWNERS_PAGE} lists as a higher owner", u.name, u.to);
                found.push(Finding::new(&u.from, u.line, what));
            }
            (None, _) if !name.ends_with(".rs") && unlisted.insert(name) => {
                let what = format!("{OWNERS_PAGE} does not list {name}/ under '{OWNERS_HEADING}'");
                found.push(Finding::new(&u.from, 1, what));
            }
            _ => {}
        }
    }
    found
}

/// Whether the file has an `impl Pool`, not of a trait.
fn extends_pool(content: &str) -> bool {
    let trees = rust::trees(content);
    trees.windows(3).any(|w| {
        let is_body = matches!(&w[2], Tree::Group { open: '{', .. });
        w[0].word() == Some("impl") && w[1].word() == Some("Pool") && is_body
    })
}

fn too_many_pool_files(files: &[&str]) -> Option<Finding> {
    (files.len() > MAX_POOL_FILES).then(|| {
        let names = files.join(", ");
        let what =
            format!("'impl Pool' in {} files, at most {MAX_POOL_FILES} may have it: {names}", files.len());
        Finding::new(files[0], 1, what)
    })
}

fn claims(lib: &str, claim: &str) -> bool {
    let head: Vec<&str> = lib.lines().map_while(|l| l.strip_prefix("//!")).map(str::trim).collect();
    head.join(" ").to_lowercase().contains(claim)
}

/// Checks that modules use only modules of their group or of groups above it, if the head of `lib.rs` claims
/// it.
fn order(path: &str, lib: &str, folder: &str, uses: &BTreeSet<Use>) -> Vec<Finding> {
    let mut found = Vec::new();
    if claims(lib, VAGUE_CLAIM) {
        found.push(Finding::new(
            path,
            1,
            format!("claims an order that cannot be checked: use '{CLAIM}', or no claim"),
        ));
    }
    if !claims(lib, CLAIM) {
        return found;
    }
    let groups = groups(lib);
    let group_of = |file: &str| {
        let below = file.strip_prefix(folder)?.trim_start_matches('/');
        let module = below.split('/').next()?.trim_end_matches(".rs");
        groups.iter().position(|g| g.contains(&module))
    };
    for u in uses {
        if let (Some(from), Some(to)) = (group_of(&u.from), group_of(&u.to))
            && from < to
        {
            let what = format!("uses {} of {}, which {path} lists in a higher group", u.name, u.to);
            found.push(Finding::new(&u.from, u.line, what));
        }
    }
    found
}

/// The modules that a `lib.rs` declares, in groups that empty lines separate.
fn groups(lib: &str) -> Vec<Vec<&str>> {
    let mut groups = vec![Vec::new()];
    for line in lib.lines() {
        let declared = line.trim_start_matches("pub ").strip_prefix("mod ").and_then(|l| l.strip_suffix(';'));
        match declared {
            Some(module) => groups.last_mut().expect("never empty").push(module),
            None if line.is_empty() => groups.push(Vec::new()),
            None => {}
        }
    }
    groups.retain(|g| !g.is_empty());
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(from: &str, to: &str) -> Use {
        Use { from: from.into(), to: to.into(), line: 7, name: "crate::x".into() }
    }

    #[test]
    fn a_circle_is_named_with_its_files() {
        let uses = [used("src/a.rs", "src/b/c.rs"), used("src/b/c.rs", "src/a.rs")];
        let finding = in_circle(&["src/a.rs".into(), "src/b/c.rs".into()], &uses, "src").to_string();
        assert!(finding.starts_with("src/a.rs:7: a circle of 2 files (a.rs, b/c.rs)"), "{finding}");
    }

    const PAGE: &str = "# A\n\n## The owners in the engine\n\n| owner | folder | owns |\n|---|---|---|\n\
                        | `A` | `a.rs` | x |\n| `B`, `C` | `b/` | y |\n| `D` | `d/` | `z` |\n\n\
                        Plain data structures are below all of these: `p/`,\n`q.rs`.\n\n`e/` is not.\n\n\
                        ## The rest\n\n| `f` | `f/` | |\n";

    #[test]
    fn owners_are_listed_lowest_first() {
        assert_eq!(owners(PAGE), [vec!["p", "q.rs"], vec!["a.rs"], vec!["b"], vec!["d"]]);
        assert_eq!(owners("# A\n"), [Vec::<&str>::new()]);
    }

    #[test]
    fn a_use_of_a_higher_owner_is_found() {
        let check = |from, to| owners_order(PAGE, "src", &[used(from, to)].into());
        assert!(check("src/d/e.rs", "src/b/mod.rs").is_empty());
        assert!(check("src/b/x.rs", "src/b/y.rs").is_empty());
        assert!(check("src/b/x.rs", "src/p/y.rs").is_empty());
        // Files that the page does not list have no order.
        assert!(check("src/other.rs", "src/d/e.rs").is_empty());
        let text = check("src/b/x.rs", "src/d/e.rs")[0].to_string();
        assert!(text.starts_with("src/b/x.rs:7: uses crate::x of src/d/e.rs"), "{text}");
        assert_eq!(check("src/p/y.rs", "src/a.rs").len(), 1);
        assert_eq!(check("src/new/y.rs", "src/a.rs").len(), 1, "a folder that the page does not list");
    }

    #[test]
    fn a_circle_of_folders_is_named() {
        let uses = [used("src/a/x.rs", "src/b/x.rs"), used("src/b/y.rs", "src/a/y.rs")].into();
        let circles = circles::circles_of_folders(&uses, "src");
        assert_eq!(circles.len(), 1);
        let text = folders_in_circle(&circles[0].files, "src").to_string();
        assert!(text.contains("a circle of 2 folders (a, b)"), "{text}");
        let uses = [used("src/a/x.rs", "src/b/x.rs"), used("src/b/x.rs", "src/c.rs")].into();
        assert!(circles::circles_of_folders(&uses, "src").is_empty());
    }

    #[test]
    fn files_that_extend_pool_are_counted() {
        assert!(extends_pool("//! A.\nimpl Pool {\n    fn f() {}\n}\n"));
        assert!(!extends_pool(
            "//! impl Pool {}\nimpl Drop for Pool {}\nimpl Pools {}\nimpl PoolConfig {}\n"
        ));
        assert!(too_many_pool_files(&["a", "b", "c"]).is_none());
        assert!(too_many_pool_files(&["a", "b", "c", "d"]).is_some());
    }

    #[test]
    fn a_use_of_a_higher_group_is_found() {
        let lib = "//! Groups of modules,\n//! lowest first.\nmod a;\npub mod b;\n\n#[cfg(x)]\nmod c;\n";
        assert_eq!(groups(lib), [vec!["a", "b"], vec!["c"]]);
        let check = |from, to| order("src/lib.rs", lib, "src", &[used(from, to)].into()).len();
        assert_eq!(check("src/c/d.rs", "src/a.rs"), 0);
        assert_eq!(check("src/a.rs", "src/b/mod.rs"), 0);
        assert_eq!(check("src/b/mod.rs", "src/c/d.rs"), 1);
    }

    #[test]
    fn an_order_that_no_program_can_check_is_found() {
        let lib = "//! In the order in which\n//! a byte meets them.\nmod a;\n";
        assert_eq!(order("src/lib.rs", lib, "src", &BTreeSet::new()).len(), 1);
    }
}
