//! Features of the shipped server: none that are for tests.

use std::io;

use super::Finding;

/// Features for tests, as `cargo tree -e features` names them.
const FOR_TESTS: [&str; 9] = [
    r#"forebay-store feature "test-util""#,
    r#"forebay-retained feature "test-util""#,
    r#"forebay-retained feature "fuzzing""#,
    r#"forebay-engine feature "mutation""#,
    r#"forebay-format feature "fuzzing""#,
    r#"forebay-guest feature "fuzzing""#,
    r#"forebay-wire feature "fuzzing""#,
    r#"forebay-frontend feature "fuzzing""#,
    r#"forebay-control feature "fuzzing""#,
];

/// Checks the features with which `cargo build -p forebay-server` builds each crate.
pub fn check() -> io::Result<Option<Finding>> {
    let tree = [
        "tree",
        "--locked",
        "--offline",
        "-p",
        "forebay-server",
        "-e",
        "normal,build,features",
        "--prefix=none",
    ];
    let output = crate::cargo().args(tree).output()?;
    if !output.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&output.stderr).into_owned()));
    }
    Ok(in_tree(&String::from_utf8_lossy(&output.stdout)))
}

fn in_tree(tree: &str) -> Option<Finding> {
    let enabled = FOR_TESTS.into_iter().find(|f| tree.lines().any(|l| l.starts_with(f)))?;
    Some(Finding::new(
        "crates/server/Cargo.toml",
        1,
        format!("the server is built with {enabled}, which is for tests"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_for_tests_are_found() {
        assert!(in_tree("forebay-store feature \"default\"\nforebay-store v0.1.0\n").is_none());
        assert!(in_tree("forebay-server v0.1.0\nforebay-store feature \"test-util\"\n").is_some());
    }

    #[test]
    fn the_server_is_built_without_them() {
        assert_eq!(check().unwrap(), None);
    }
}
