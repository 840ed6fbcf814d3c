//! Comments and string literals of a file, with their lines.
//!
//! In Rust, comments are tokens, so `//` in a string is no comment. In other languages a comment begins with
//! `#` and a blank; a docstring that begins a line of Python counts as well. In Markdown all text outside
//! code counts.

use crate::rust::{self, Kind};

/// One line of text, without the marks of the comment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    pub number: usize,
    pub text: String,
    /// Code precedes it on its line, so it does not continue the line above.
    pub trailing: bool,
}

/// The prose of one file.
#[derive(Debug, Default)]
pub struct Prose {
    /// Lines of comments; of a Markdown page, of text.
    pub comments: Vec<Line>,
    /// String literals of Rust code outside test modules, by their first line.
    pub strings: Vec<Line>,
}

/// Reads the prose of a file; it is empty if the language is not supported.
pub fn read(path: &str, content: &str) -> Prose {
    let name = path.rsplit('/').next().unwrap_or(path);
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    let mut prose = Prose::default();
    match (name, extension) {
        (_, "rs") => read_rust(content, &mut prose),
        (_, "md") => prose.comments = markdown(content),
        (_, "py") => prose.comments = hashed(content, true),
        ("Makefile", _) | (_, "sh" | "toml" | "yml" | "yaml") => prose.comments = hashed(content, false),
        _ => {}
    }
    prose
}

fn markdown(content: &str) -> Vec<Line> {
    let mut code = false;
    let mut lines = Vec::new();
    for (index, line) in content.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            code = !code;
        } else if !code && !line.trim().is_empty() {
            lines.push(Line { number: index + 1, text: without_link_targets(line), trailing: false });
        }
    }
    lines
}

/// `[text](target)` without the target.
fn without_link_targets(line: &str) -> String {
    let mut out = String::new();
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("](") {
        out.push_str(before);
        out.push_str("] ");
        rest = after.split_once(')').map_or("", |(_, rest)| rest);
    }
    out + rest
}

/// Comments that begin with `#`, and docstrings.
fn hashed(content: &str, docstrings: bool) -> Vec<Line> {
    const QUOTES: &str = "\"\"\"";
    let mut lines = Vec::new();
    let mut in_docstring = false;
    for (index, line) in content.lines().enumerate() {
        let mut add = |text: &str, trailing| {
            lines.push(Line { number: index + 1, text: text.trim().to_owned(), trailing });
        };
        let trimmed = line.trim_start();
        if in_docstring {
            let (text, ended) = trimmed.split_once(QUOTES).map_or((trimmed, false), |(text, _)| (text, true));
            in_docstring = !ended;
            add(text, false);
        } else if docstrings && let Some(rest) = trimmed.strip_prefix(QUOTES) {
            let (text, ended) = rest.split_once(QUOTES).map_or((rest, false), |(text, _)| (text, true));
            in_docstring = !ended;
            add(text, false);
        } else if let Some(text) = trimmed.strip_prefix("# ") {
            add(text, false);
        } else if let Some((_, text)) = line.split_once(" # ").or_else(|| line.split_once(" ## ")) {
            add(text, true);
        }
    }
    lines
}

fn read_rust(content: &str, prose: &mut Prose) {
    let tests =
        content.find("#[cfg(test)]\nmod tests {").map_or(usize::MAX, |at| content[..at].lines().count());
    let mut fenced = false;
    let mut code_line = 0;
    for token in rust::tokens(content) {
        if token.kind != Kind::Comment {
            code_line = token.line;
        }
        match token.kind {
            Kind::Comment => {
                for (index, text) in token.text.lines().enumerate() {
                    let text = text.trim_start_matches(['/', '!', '*']).trim().to_owned();
                    let fence = text.starts_with("```");
                    fenced ^= fence;
                    if !fenced && !fence {
                        let number = token.line + index;
                        prose.comments.push(Line { number, text, trailing: number == code_line });
                    }
                }
            }
            Kind::String if token.line <= tests => {
                prose.strings.push(Line { number: token.line, text: token.text.to_owned(), trailing: true });
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(lines: &[Line]) -> Vec<String> {
        lines.iter().map(|l| format!("{}: {}", l.number, l.text)).collect()
    }

    #[test]
    fn rust_comments_are_told_from_strings() {
        let source = "//! Head.\nlet a = \"x // no\\\" comment\"; // one\nlet b = r#\"y \" // no\n\"#;\n/* two\n   three */\n\
                      let c = '\"'; let d: &'static str = b\"z\"; // four\nlet e = '\\''; // five\n";
        let prose = read("a.rs", source);
        assert_eq!(
            texts(&prose.comments),
            ["1: Head.", "2: one", "5: two", "6: three */", "7: four", "8: five"]
        );
        assert_eq!(texts(&prose.strings), ["2: x // no\\\" comment", "3: y \" // no\n", "7: z"]);
    }

    #[test]
    fn code_in_documentation_and_strings_of_tests_are_left_out() {
        let source = "/// ```\n/// code\n/// ```\n/// Text.\nfn f() {}\n#[cfg(test)]\nmod tests {\n    const A: &str = \"a\";\n}\n";
        let prose = read("a.rs", source);
        assert_eq!(texts(&prose.comments), ["4: Text."]);
        assert!(prose.strings.is_empty());
    }

    #[test]
    fn other_languages_have_their_comments() {
        let python = "\"\"\"Head.\n\nMore.\"\"\"\nx = 1  # one\ny = '#2'\n";
        assert_eq!(texts(&read("a.py", python).comments), ["1: Head.", "2: ", "3: More.", "4: one"]);
        assert_eq!(texts(&read("a.sh", "#!/bin/sh\n# one\necho a#b\n").comments), ["2: one"]);
        assert_eq!(texts(&read("Makefile", "all: x ## one\n").comments), ["1: one"]);
        let page = "# Head\n\n```\ncode\n```\n[a](b.md) text\n";
        assert_eq!(texts(&read("a.md", page).comments), ["1: # Head", "6: [a]  text"]);
        assert!(read("a.bin", "# no\n").comments.is_empty());
    }
}
