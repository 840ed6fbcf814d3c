//! Licences of everything that is linked in: permissive ones only, the same list as in `deny.toml`.
//!
//! `cargo deny` checks more, but takes minutes to build; this check is cheap enough to be a test.

use std::io;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::Finding;

/// Checks the licence of every package in the dependency graph.
pub fn check(root: &Path) -> io::Result<Vec<Finding>> {
    let policy = std::fs::read_to_string(root.join("deny.toml"))?;
    let allowed = allowed(&policy);
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version=1", "--locked"])
        .current_dir(root)
        .output()?;
    if !output.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    let metadata: Value = serde_json::from_slice(&output.stdout)?;
    let packages = metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
    let mut found = Vec::new();
    for package in packages {
        let licence = package["license"].as_str().unwrap_or("");
        if !permitted(licence, &allowed) {
            let name = package["name"].as_str().unwrap_or("?");
            found.push(Finding::new(
                "Cargo.lock",
                1,
                format!("{name}: licence '{licence}' is not in deny.toml"),
            ));
        }
    }
    Ok(found)
}

/// The strings of the `allow` list of `[licenses]`.
fn allowed(policy: &str) -> Vec<&str> {
    let section = policy.split("[licenses]").nth(1).unwrap_or("");
    let list = section.split("allow = [").nth(1).and_then(|rest| rest.split(']').next()).unwrap_or("");
    list.split('"').skip(1).step_by(2).collect()
}

/// Whether an SPDX expression can be satisfied with allowed licences alone. `/` is the old way to write OR.
fn permitted(expression: &str, allowed: &[&str]) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = &words[..];
    let permitted = any(&mut rest, allowed);
    permitted && rest.is_empty()
}

/// `all { OR all }`
fn any(words: &mut &[&str], allowed: &[&str]) -> bool {
    let mut permitted = all(words, allowed);
    while let [first, rest @ ..] = *words
        && *first == "OR"
    {
        *words = rest;
        permitted |= all(words, allowed);
    }
    permitted
}

/// `one { AND one }`
fn all(words: &mut &[&str], allowed: &[&str]) -> bool {
    let mut permitted = one(words, allowed);
    while let [first, rest @ ..] = *words
        && *first == "AND"
    {
        *words = rest;
        permitted &= one(words, allowed);
    }
    permitted
}

/// A licence, perhaps `WITH` an exception (which only permits more), or an expression in parentheses.
fn one(words: &mut &[&str], allowed: &[&str]) -> bool {
    let [first, rest @ ..] = *words else { return false };
    *words = rest;
    if *first == "(" {
        let permitted = any(words, allowed);
        let [")", rest @ ..] = *words else { return false };
        *words = rest;
        return permitted;
    }
    if let ["WITH", _, rest @ ..] = *words {
        *words = rest;
    }
    allowed.contains(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWED: [&str; 3] = ["MIT", "Apache-2.0", "Unicode-3.0"];

    #[test]
    fn expressions_are_understood() {
        for good in [
            "MIT",
            "MIT/Apache-2.0",
            "GPL-3.0 OR MIT",
            "Apache-2.0 WITH LLVM-exception OR GPL-3.0",
            "(MIT OR GPL-3.0) AND Unicode-3.0",
        ] {
            assert!(permitted(good, &ALLOWED), "{good}");
        }
        for bad in ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT", "MIT)", "(GPL-3.0 OR BSL-1.0) AND MIT"] {
            assert!(!permitted(bad, &ALLOWED), "{bad}");
        }
    }

    #[test]
    fn the_list_is_read_from_the_policy() {
        let policy = "[bans]\nallow = [\"x\"]\n[licenses]\nallow = [\n  \"MIT\",\n  \"ISC\",\n]\n";
        assert_eq!(allowed(policy), ["MIT", "ISC"]);
    }
}
