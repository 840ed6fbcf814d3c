//! The nearest known name, for messages about unknown keys, commands and disks.

/// Characters of a name for each of which one may be changed between a name and the name that was probably
/// meant.
const CHARS_PER_CHANGE: usize = 3;
/// Maximum number of changed characters between an unknown key and a suggested key.
const MAX_CHANGES: usize = 2;

/// The message of the parser about an unknown key, in our words; other messages stay as they are.
pub(super) fn explain(message: &str) -> String {
    let words: Vec<&str> = message.split('`').collect();
    let [start, unknown, expected, known @ ..] = words.as_slice() else { return message.to_owned() };
    if *start != "unknown field " || !(expected.contains("expected") || expected.contains("there are no")) {
        return message.to_owned();
    }
    let known: Vec<&str> = known.iter().copied().step_by(2).collect();
    match nearest(unknown, known.iter().copied()) {
        Some(key) => format!("unknown key '{unknown}'; did you mean '{key}'?"),
        None => format!("unknown key '{unknown}'; known here: {}", known.join(", ")),
    }
}

/// Returns the known name that was probably meant, if a known name is near enough.
pub(crate) fn nearest<'a>(unknown: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let (changes, name) = known.map(|name| (changes(unknown, name), name)).min()?;
    // Names of a fleet differ in their numbers: another number is another machine.
    let letters = |text: &str| text.chars().filter(|c| !c.is_ascii_digit()).collect::<String>();
    let is_near = changes <= MAX_CHANGES.min(unknown.chars().count() / CHARS_PER_CHANGE);
    (is_near && letters(unknown) != letters(name)).then_some(name)
}

/// The number of insertions, removals and replacements of characters between two texts (Levenshtein).
fn changes(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let (mut corner, mut left) = (i, i + 1);
        row[0] = left;
        for (j, y) in b.iter().enumerate() {
            let best = (corner + usize::from(x != *y)).min(left + 1).min(row[j + 1] + 1);
            (corner, left) = (row[j + 1], best);
            row[j + 1] = best;
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_key_is_named() {
        let message = "unknown field `read_cahce`, expected one of `read_cache`, `map_cache`, `mark`";
        assert_eq!(explain(message), "unknown key 'read_cahce'; did you mean 'read_cache'?");
        let message = "unknown field `colour`, expected `listen` or `hosts`";
        assert_eq!(explain(message), "unknown key 'colour'; known here: listen, hosts");
        assert_eq!(explain("invalid type: `x`"), "invalid type: `x`");
    }

    #[test]
    fn a_name_that_differs_in_its_number_is_another_machine() {
        let near = |unknown| nearest(unknown, ["pc-001", "database", "cl"].into_iter());
        assert_eq!(
            (near("pc-003"), near("pv-001"), near("databse")),
            (None, Some("pc-001"), Some("database"))
        );
        assert_eq!((near("race"), near("ab")), (None, None));
    }

    #[test]
    fn changes_are_counted() {
        let cases = [("", "abc", 3), ("abc", "abc", 0), ("kitten", "sitting", 3), ("ab", "ba", 2)];
        for (a, b, n) in cases {
            assert_eq!((changes(a, b), changes(b, a)), (n, n), "{a} {b}");
        }
    }
}
