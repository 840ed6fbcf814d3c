//! Patterns with `*`, for names of disks and other texts.

use std::fmt;
use std::str::FromStr;

/// A pattern in which `*` matches any characters, also none, and every other character matches itself.
///
/// Clients of the API send patterns, and one is compared with every disk. So consecutive stars are kept as
/// one, and a text that is shorter than the other characters of the pattern is not compared with it: the cost
/// of a comparison is linear in the length of the text, and does not depend on the pattern.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Glob {
    text: String,
    /// Number of bytes that are no star.
    literal: usize,
}

impl Glob {
    /// Takes any text as a pattern.
    pub fn new(pattern: &str) -> Glob {
        let mut text = String::with_capacity(pattern.len());
        for c in pattern.chars() {
            if c != '*' || !text.ends_with('*') {
                text.push(c);
            }
        }
        let literal = text.bytes().filter(|byte| *byte != b'*').count();
        Glob { text, literal }
    }

    /// Whether the pattern matches the whole text.
    pub fn matches(&self, text: &str) -> bool {
        if text.len() < self.literal {
            return false;
        }
        let Some((first, rest)) = self.text.split_once('*') else { return self.text == text };
        let Some(mut text) = text.strip_prefix(first) else { return false };
        let (middle, last) = rest.rsplit_once('*').unwrap_or(("", rest));
        // The leftmost match suffices: it leaves the longest rest for the following parts.
        for part in middle.split('*') {
            match text.find(part) {
                Some(at) => text = &text[at + part.len()..],
                None => return false,
            }
        }
        text.ends_with(last)
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A text that is no pattern for names of disks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a pattern for exports; write NAME, VOLUME@SNAPSHOT, or either with '*'")]
pub struct BadPattern(String);

/// A pattern for the names of disks: `NAME` or `VOLUME@SNAPSHOT`, where `*` matches any characters.
///
/// Without `@` it matches a disk and all its snapshots; with `@` only snapshots.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct NamePattern {
    disk: Glob,
    snapshot: Option<Glob>,
}

impl NamePattern {
    /// A pattern that matches all disks.
    pub fn all() -> NamePattern {
        NamePattern { disk: Glob::new("*"), snapshot: None }
    }

    /// Whether the pattern matches a disk.
    pub fn matches(&self, disk: &str) -> bool {
        match (disk.split_once('@'), &self.snapshot) {
            (None, None) => self.disk.matches(disk),
            (None, Some(_)) => false,
            (Some((volume, snapshot)), pattern) => {
                self.disk.matches(volume) && pattern.as_ref().is_none_or(|p| p.matches(snapshot))
            }
        }
    }

    /// Whether the pattern matches every disk whose name begins with `prefix`.
    pub fn matches_all_beginning_with(&self, prefix: &str) -> bool {
        // A final star matches whatever follows a text that the pattern matches.
        self.snapshot.is_none() && self.disk.text.ends_with('*') && self.disk.matches(prefix)
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.disk.fmt(f)?;
        self.snapshot.as_ref().map_or(Ok(()), |snapshot| write!(f, "@{snapshot}"))
    }
}

impl From<NamePattern> for String {
    fn from(pattern: NamePattern) -> String {
        pattern.to_string()
    }
}

impl FromStr for NamePattern {
    type Err = BadPattern;

    fn from_str(text: &str) -> Result<NamePattern, BadPattern> {
        let (disk, snapshot) = match text.split_once('@') {
            Some((disk, snapshot)) => (disk, Some(snapshot)),
            None => (text, None),
        };
        let bad =
            |part: &str| part.is_empty() || part.contains(['/', '@']) || part.chars().any(char::is_control);
        if bad(disk) || snapshot.is_some_and(bad) {
            return Err(BadPattern(text.to_owned()));
        }
        Ok(NamePattern { disk: Glob::new(disk), snapshot: snapshot.map(Glob::new) })
    }
}

impl TryFrom<String> for NamePattern {
    type Error = BadPattern;

    fn try_from(text: String) -> Result<NamePattern, BadPattern> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, export: &str) -> bool {
        pattern.parse::<NamePattern>().unwrap().matches(export)
    }

    #[test]
    fn a_star_matches_any_characters() {
        for (pattern, name) in [
            ("a", "a"),
            ("*", ""),
            ("*", "anything at all"),
            ("tenant-a-*", "tenant-a-"),
            ("tenant-a-*", "tenant-a-disk"),
            ("*-disk", "x-disk"),
            ("a*b*c", "abc"),
            ("a*b*c", "a-b-b-c"),
            ("*b*", "abc"),
            ("a**c", "ac"),
            ("a?", "a?"),
        ] {
            assert!(Glob::new(pattern).matches(name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("a", "ab"),
            ("a", ""),
            ("tenant-a-*", "tenant-b-disk"),
            ("tenant-a-*", "x-tenant-a-disk"),
            ("*-disk", "x-disk2"),
            ("a*a", "a"),
            ("ab*ba", "aba"),
            ("a*b*c", "acb"),
            ("a?", "ab"),
            ("a.c", "abc"),
        ] {
            assert!(!Glob::new(pattern).matches(name), "{pattern} {name}");
        }
    }

    #[test]
    fn the_cost_of_a_pattern_is_bounded_by_the_text() {
        let stars = Glob::new(&format!("a{}b", "*".repeat(30_000)));
        assert_eq!((stars.text.as_str(), stars.literal), ("a*b", 2));
        assert!(stars.matches("ab") && stars.matches("a-b") && !stars.matches("ba"));
        let alternating = Glob::new(&"a*".repeat(10_000));
        assert_eq!(alternating.literal, 10_000);
        assert!(!alternating.matches(&"a".repeat(255)) && alternating.matches(&"a".repeat(10_000)));
        // Equal patterns are shown in the same way.
        assert_eq!(stars, Glob::new("a*b"));
    }

    #[test]
    fn a_pattern_without_snapshot_matches_all_snapshots() {
        assert!(matches("vol", "vol") && matches("vol", "vol@monday"));
        assert!(matches("*", "vol@monday"));
        assert!(matches("img@*", "img@s") && !matches("img@*", "img") && !matches("img@*", "img2@s"));
        assert!(matches("img@v*", "img@v1") && !matches("img@v*", "img@w1"));
        assert!(!matches("vol*day", "vol@monday"), "a star does not match across '@'");
        for bad in ["", "@", "a@", "@s", "a@b@c", "a/b", "a\nb"] {
            assert!(bad.parse::<NamePattern>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_pattern_with_a_final_star_matches_all_names_with_a_prefix() {
        let all = |pattern: &str| pattern.parse::<NamePattern>().unwrap().matches_all_beginning_with("web-");
        assert!(all("*") && all("web-*") && all("w*-*") && all("web*"));
        for pattern in ["web-", "web-1*", "web-*1", "*-001", "web-*@s"] {
            assert!(!all(pattern), "{pattern}");
        }
    }
}
