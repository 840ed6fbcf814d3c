//! The structure of the code: circles of files, files that extend `Pool`, and the order of modules.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use super::Finding;
use crate::circles::{self, Use};
use crate::rust::{self, Tree};

/// Folders within which no files depend on each other in a circle.
const WITHOUT_CIRCLES: [&str; 4] =
    ["crates/engine/src", "crates/frontend/src/nbd", "crates/frontend/src/iscsi", "crates/frontend/src/scsi"];
/// Most files of the engine with an inherent `impl Pool`.
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
