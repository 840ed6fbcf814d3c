//! Reading a scenario file: a mistake is reported with its line, and with the nearest name that is valid.

use super::check;
use super::file::Scenario;

/// A mistake in a scenario file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}, line {line}: {what}")]
pub struct ScenarioError {
    /// The file, or the name of a built-in scenario.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The mistake, and what to do.
    pub what: String,
}

/// Parses and checks a scenario.
pub fn parse(file: &str, text: &str) -> Result<Scenario, ScenarioError> {
    let wrong = |at: usize, what| ScenarioError { file: file.to_owned(), line: line_of(text, at), what };
    let scenario: Scenario = toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        wrong(at, explain(error.message()))
    })?;
    check::check(&scenario).map_err(|mistake| wrong(mistake.at, mistake.what))?;
    Ok(scenario)
}

fn line_of(text: &str, at: usize) -> usize {
    let before = text.as_bytes().get(..at).unwrap_or_default();
    before.iter().filter(|b| **b == b'\n').count() + 1
}

/// The parser's message in one line, with the nearest of the names that it expected.
fn explain(message: &str) -> String {
    let message = message.trim().replace('\n', " ");
    let Some((head, expected)) = message.split_once(", expected ") else { return message };
    let wrong = quoted(head).next();
    let names: Vec<&str> = quoted(expected).collect();
    match wrong {
        Some(wrong) if !names.is_empty() => unknown(head, wrong, names.iter().copied()),
        _ => message,
    }
}

/// The names between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// `head`, and the nearest name; all of them if none is near.
pub(super) fn unknown<'a>(head: &str, wrong: &str, names: impl Iterator<Item = &'a str> + Clone) -> String {
    let nearest = names.clone().min_by_key(|name| distance(wrong, name));
    match nearest {
        Some(name) if distance(wrong, name) <= wrong.chars().count().div_ceil(3).max(2) => {
            format!("{head}: did you mean '{name}'?")
        }
        _ => format!("{head}: use one of {}", names.collect::<Vec<_>>().join(", ")),
    }
}

/// Characters to insert, remove or replace to get from one word to the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_count_edits() {
        for (a, b, d) in [("", "abc", 3), ("phase", "pahse", 2), ("rate", "rate", 0), ("disc", "disk", 1)] {
            assert_eq!(distance(a, b), d, "{a} {b}");
        }
    }
}
