//! Plain technical English: words of `words.txt` in comments, documentation and messages.

use super::Finding;
use super::comments::{Line, Prose};

const TABLE: &str = include_str!("words.txt");
/// Maximum number of words of the table in 1,000 lines of comments.
const MAX_PER_THOUSAND: f64 = 3.0;

/// A word or phrase, in lower case, and the ones to write instead.
#[derive(Debug, PartialEq, Eq)]
struct Word {
    form: String,
    instead: String,
    /// Each use is a finding; otherwise only their number is limited.
    never: bool,
}

/// The table, ready to use.
#[derive(Debug)]
pub struct Words(Vec<Word>);

/// How many words were found in how many lines.
#[derive(Debug, Default, Clone, Copy)]
pub struct Count {
    pub lines: usize,
    pub words: usize,
}

impl Count {
    /// Words of the table in 1,000 lines.
    pub fn per_thousand(self) -> f64 {
        self.words as f64 * 1000.0 / self.lines.max(1) as f64
    }

    /// A finding if there are too many.
    pub fn check(self) -> Option<Finding> {
        (self.per_thousand() > MAX_PER_THOUSAND).then(|| {
            let many = format!(
                "{:.1} odd words per 1,000 comment lines: at most {MAX_PER_THOUSAND}",
                self.per_thousand()
            );
            Finding::new("xtask/src/tidy/words.txt", 1, many)
        })
    }
}

impl Words {
    /// The table of this repository.
    pub fn new() -> Words {
        Words(parse(TABLE))
    }

    /// Checks one file. Words that are only rare are findings if `all`.
    pub fn check(&self, path: &str, prose: &Prose, all: bool, count: &mut Count) -> Vec<Finding> {
        let mut found = Vec::new();
        for block in blocks(&prose.comments) {
            for (line, word) in self.find(block) {
                count.words += 1;
                if word.never || all {
                    found.push(finding(path, line, word));
                }
            }
        }
        count.lines += prose.comments.iter().filter(|l| !l.text.is_empty()).count();
        for string in &prose.strings {
            let uses = self.find(std::slice::from_ref(string));
            found.extend(
                uses.into_iter().filter(|(_, word)| word.never).map(|(line, word)| finding(path, line, word)),
            );
        }
        found
    }

    /// The words in lines that belong together, so that a phrase may be broken over two.
    fn find(&self, block: &[Line]) -> Vec<(usize, &Word)> {
        let mut text = String::new();
        let mut starts = Vec::new();
        for line in block {
            starts.push((text.len(), line.number));
            text.push_str(&line.text.to_lowercase());
            text.push(' ');
        }
        let text = without_code(&text);
        let mut found = Vec::new();
        for word in &self.0 {
            for (at, _) in text.match_indices(&word.form) {
                let before = text[..at].chars().next_back();
                let after = text[at + word.form.len()..].chars().next();
                let ends = |c: Option<char>| c.is_none_or(|c| !c.is_alphanumeric() && c != '_' && c != '-');
                if ends(before) && ends(after) {
                    let line =
                        starts.iter().rev().find(|(start, _)| *start <= at).map_or(0, |(_, line)| *line);
                    found.push((line, word));
                }
            }
        }
        found
    }
}

fn finding(path: &str, line: usize, word: &Word) -> Finding {
    Finding::new(path, line, format!("'{}': write instead: {}", word.form, word.instead))
}

fn parse(table: &str) -> Vec<Word> {
    let mut never = true;
    let mut words = Vec::new();
    for line in table.lines().filter(|l| !l.is_empty() && !l.starts_with('#')) {
        if let Some((forms, instead)) = line.split_once(" = ") {
            let word = |form: &str| Word { form: form.trim().to_owned(), instead: instead.to_owned(), never };
            words.extend(forms.split(',').map(word));
        } else {
            never = line == "[never]";
        }
    }
    words
}

/// Runs of lines without a gap or an empty line in between.
fn blocks(lines: &[Line]) -> impl Iterator<Item = &[Line]> {
    lines.chunk_by(|a, b| a.number + 1 == b.number && !b.trailing && !a.text.is_empty() && !b.text.is_empty())
}

/// Blanks out what is between backticks, keeping the length.
fn without_code(text: &str) -> String {
    if text.matches('`').count() % 2 == 1 {
        return text.replace('`', " ");
    }
    let parts = text.split('`').enumerate();
    let blanked =
        parts.map(|(index, part)| if index % 2 == 1 { "\u{0}".repeat(part.len()) } else { part.to_owned() });
    blanked.collect::<Vec<_>>().join("_")
}

#[cfg(test)]
mod tests {
    use super::super::comments;
    use super::*;

    fn found(path: &str, content: &str) -> Vec<String> {
        let mut count = Count::default();
        let prose = comments::read(path, content);
        Words::new()
            .check(path, &prose, false, &mut count)
            .iter()
            .map(|f| format!("{}: {}", f.line, f.what))
            .collect()
    }

    #[test]
    fn listed_words_are_found_with_their_replacement() {
        assert_eq!(
            found("a.rs", "// Somebody\n"),
            ["1: 'somebody': write instead: the actor: client, initiator, caller"]
        );
        assert_eq!(found("a.py", "x = 1  # anew\n"), ["1: 'anew': write instead: again"]);
        assert_eq!(found("a.md", "Text.\n\nOnce more.\n"), ["3: 'once more': write instead: again"]);
        assert_eq!(found("a.rs", "fn f() {\n    panic!(\"in vain\");\n}\n").len(), 1);
    }

    #[test]
    fn phrases_are_found_over_two_lines_of_one_comment() {
        assert_eq!(found("a.rs", "/// A file of its\n/// own.\n").len(), 1);
        assert!(found("a.rs", "/// A file of its\nfn f() {} // own\n").is_empty());
    }

    #[test]
    fn code_and_parts_of_words_are_left_alone() {
        assert!(found("a.rs", "// `nobody` maps to uid 65534; dearth; `of its` own\n").is_empty());
        assert!(found("a.rs", "let nobody = 1;\n").is_empty());
        assert!(found("a.md", "```\nnobody\n```\n").is_empty());
    }

    #[test]
    fn too_many_words_are_a_finding() {
        assert!(Count { lines: 1000, words: 3 }.check().is_none());
        assert!(Count { lines: 1000, words: 4 }.check().is_some());
        let mut count = Count::default();
        let words = Words::new();
        let prose = comments::read("a.rs", "// It says so.\n// x\n");
        assert!(words.check("a.rs", &prose, false, &mut count).is_empty());
        assert_eq!((count.lines, count.words), (2, 1));
        assert_eq!(words.check("a.rs", &prose, true, &mut count).len(), 1);
    }

    #[test]
    fn the_table_is_well_formed() {
        let words = parse(TABLE);
        assert!(words.iter().any(|w| w.never) && words.iter().any(|w| !w.never));
        for word in &words {
            assert!(!word.form.is_empty() && word.form == word.form.to_lowercase(), "{word:?}");
            assert_eq!(words.iter().filter(|w| w.form == word.form).count(), 1, "{word:?} is listed twice");
        }
    }
}
