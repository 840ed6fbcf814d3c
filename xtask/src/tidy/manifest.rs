//! Manifests of the crates: each has a licence and inherits the workspace's lints.

use super::Finding;

/// Checks one `Cargo.toml`. All are formatted alike, so lines are compared as text.
pub fn check(path: &str, content: &str) -> Vec<Finding> {
    let has = |line: &str| content.lines().any(|l| l.trim() == line);
    let mut found = Vec::new();
    if !has("[package]") {
        return found;
    }
    if !content.lines().any(|l| l.starts_with("license")) {
        found.push(Finding::new(path, 1, "no licence: add 'license.workspace = true'"));
    }
    // The fuzz targets are a separate workspace, because they need another toolchain.
    let own_workspace = content.lines().any(|l| l.trim().starts_with("[workspace"));
    if !own_workspace && !content.contains("[lints]\nworkspace = true") {
        found.push(Finding::new(path, 1, "no lints: add '[lints]' with 'workspace = true'"));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn a_crate_needs_a_licence_and_lints() {
        let good = "[package]\nname = \"a\"\nlicense.workspace = true\n\n[lints]\nworkspace = true\n";
        assert!(check("Cargo.toml", good).is_empty());
        assert_eq!(check("Cargo.toml", &good.replace("license", "x")).len(), 1);
        assert_eq!(check("Cargo.toml", &good.replace("lints", "x")).len(), 1);
        assert!(check("Cargo.toml", "[workspace]\n").is_empty());
    }
}
