//! Workflows of the CI: an action of another repository is named by the hash of its commit, since the owner
//! of that repository, or a thief of the owner's account, can move a tag.

use super::Finding;

/// Checks one workflow.
pub fn check(path: &str, content: &str) -> Vec<Finding> {
    let action = |line: &str| {
        let step = line.trim_start();
        let used = step.strip_prefix("- ").unwrap_or(step).strip_prefix("uses:")?;
        used.split_whitespace().next().map(|name| name.trim_matches(['"', '\'']).to_owned())
    };
    let lines = content.lines().enumerate().filter_map(|(n, line)| Some((n + 1, action(line)?)));
    lines
        .filter(|(_, action)| !action.starts_with("./") && !is_pinned(action))
        .map(|(n, action)| {
            Finding::new(path, n, format!("{action}: name the action by the hash of a commit"))
        })
        .collect()
}

fn is_pinned(action: &str) -> bool {
    let hash = action.split_once('@').map_or("", |(_, hash)| hash);
    hash.len() == 40 && hash.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn actions_are_named_by_hashes() {
        let hash = "0123456789abcdef0123456789abcdef01234567";
        let good = format!(
            "steps:\n  - uses: a/b@{hash} # v1\n  - name: x\n    uses: \"a/c@{hash}\"\n  - uses: ./local\n"
        );
        assert!(check("ci.yml", &good).is_empty());
        for bad in ["v1", "main", &hash[1..]] {
            let found = check("ci.yml", &good.replace(&format!("a/b@{hash}"), &format!("a/b@{bad}")));
            assert_eq!((found.len(), found[0].line), (1, 2), "{bad}");
        }
        assert_eq!(check("ci.yml", "      - uses: a/b\n").len(), 1);
    }
}
