//! A small lexer for Rust: words, punctuation, groups, string literals and comments, with their lines.
//!
//! It is meant for code that compiles; for other text the tokens are arbitrary, but there is no error.

/// One token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token<'a> {
    pub kind: Kind,
    /// As written; of strings, their content.
    pub text: &'a str,
    /// The line on which it begins.
    pub line: usize,
}

/// The kinds of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An identifier, a keyword or a number.
    Word,
    Punctuation,
    String,
    /// A character, or the quote of a lifetime.
    Quote,
    Comment,
}

/// A token, or a group in brackets.
#[derive(Debug, Clone)]
pub enum Tree<'a> {
    Token(Token<'a>),
    Group { open: char, trees: Vec<Tree<'a>> },
}

impl Tree<'_> {
    /// The word, if this is one.
    pub fn word(&self) -> Option<&str> {
        match self {
            Tree::Token(t) if t.kind == Kind::Word => Some(t.text),
            _ => None,
        }
    }

    /// Whether this is the punctuation mark `c`.
    pub fn is(&self, c: char) -> bool {
        matches!(self, Tree::Token(t) if t.kind == Kind::Punctuation && t.text.starts_with(c))
    }
}

/// All tokens of a file.
pub fn tokens(content: &str) -> Vec<Token<'_>> {
    let mut lexer = Lexer { rest: content, line: 1 };
    std::iter::from_fn(|| lexer.next()).collect()
}

/// The tokens of a file without its comments, grouped by brackets.
pub fn trees(content: &str) -> Vec<Tree<'_>> {
    let mut tokens = tokens(content).into_iter().filter(|t| t.kind != Kind::Comment);
    group(&mut tokens)
}

/// The trees up to the next closing bracket.
fn group<'a>(tokens: &mut impl Iterator<Item = Token<'a>>) -> Vec<Tree<'a>> {
    let mut trees = Vec::new();
    while let Some(token) = tokens.next() {
        match (token.kind, token.text) {
            (Kind::Punctuation, "(" | "[" | "{") => {
                let open = token.text.chars().next().unwrap_or_default();
                trees.push(Tree::Group { open, trees: group(tokens) });
            }
            (Kind::Punctuation, ")" | "]" | "}") => break,
            _ => trees.push(Tree::Token(token)),
        }
    }
    trees
}

struct Lexer<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> Lexer<'a> {
    fn next(&mut self) -> Option<Token<'a>> {
        let blanks = self.rest.len() - self.rest.trim_start().len();
        self.take(blanks);
        let c = self.rest.chars().next()?;
        let line = self.line;
        let (kind, text) = if self.rest.starts_with("//") {
            (Kind::Comment, self.take(self.rest.find('\n').unwrap_or(self.rest.len())))
        } else if self.rest.starts_with("/*") {
            (Kind::Comment, self.block_comment())
        } else if let Some(text) = self.string() {
            (Kind::String, text)
        } else if c == '\'' {
            (Kind::Quote, self.quote())
        } else if is_word(c) {
            (Kind::Word, self.take(self.rest.find(|c| !is_word(c)).unwrap_or(self.rest.len())))
        } else {
            (Kind::Punctuation, self.take(c.len_utf8()))
        };
        Some(Token { kind, text, line })
    }

    fn take(&mut self, bytes: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(bytes);
        self.line += taken.matches('\n').count();
        self.rest = rest;
        taken
    }

    /// Takes a comment that may contain others.
    fn block_comment(&mut self) -> &'a str {
        let mut depth = 0;
        let mut at = 0;
        loop {
            let rest = &self.rest[at..];
            if rest.starts_with("/*") {
                depth += 1;
                at += 2;
            } else if rest.starts_with("*/") {
                depth -= 1;
                at += 2;
            } else if let Some(c) = rest.chars().next() {
                at += c.len_utf8();
            }
            if depth == 0 || at >= self.rest.len() {
                return self.take(at);
            }
        }
    }

    /// Takes a string literal, if one begins here; returns its content.
    fn string(&mut self) -> Option<&'a str> {
        let prefix = ["cr", "br", "r", "c", "b", ""].into_iter().find(|prefix| {
            let rest = self.rest.strip_prefix(prefix).unwrap_or("");
            let rest = if prefix.ends_with('r') { rest.trim_start_matches('#') } else { rest };
            rest.starts_with('"')
        })?;
        self.take(prefix.len());
        if prefix.ends_with('r') {
            let hashes = self.rest.len() - self.rest.trim_start_matches('#').len();
            self.take(hashes + 1);
            let end = format!("\"{}", "#".repeat(hashes));
            let text = self.take(self.rest.find(&end).unwrap_or(self.rest.len()));
            self.take(end.len().min(self.rest.len()));
            return Some(text);
        }
        self.take(1);
        let mut escaped = false;
        let end = self.rest.find(|c| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        let text = self.take(end.unwrap_or(self.rest.len()));
        self.take(1.min(self.rest.len()));
        Some(text)
    }

    /// Takes a character literal, or the quote of a lifetime.
    fn quote(&mut self) -> &'a str {
        let mut chars = self.rest.char_indices().skip(1);
        let end = match (chars.next(), chars.next()) {
            (Some((_, '\\')), Some((at, c))) => {
                let after = at + c.len_utf8();
                self.rest[after..].find('\'').map(|end| after + end + 1)
            }
            (Some(_), Some((at, '\''))) => Some(at + 1),
            _ => None,
        };
        self.take(end.unwrap_or(1))
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(content: &str) -> Vec<String> {
        tokens(content).iter().map(|t| format!("{} {:?} {}", t.line, t.kind, t.text)).collect()
    }

    #[test]
    fn comments_strings_and_characters_are_told_apart() {
        assert_eq!(read("\"a // \\\" b\" // c"), ["1 String a // \\\" b", "1 Comment // c"]);
        assert_eq!(read("r#\"x \" // y\n\"#\n// z"), ["1 String x \" // y\n", "3 Comment // z"]);
        assert_eq!(read("/* a /* b */\n */ c"), ["1 Comment /* a /* b */\n */", "2 Word c"]);
        assert_eq!(read("'\"' '\\'' '\\u{1}'"), ["1 Quote '\"'", "1 Quote '\\''", "1 Quote '\\u{1}'"]);
        assert_eq!(read("&'a b\"x\""), ["1 Punctuation &", "1 Quote '", "1 Word a", "1 String x"]);
    }

    #[test]
    fn brackets_make_groups() {
        let trees = trees("a(b[c]) // d)\n{ e }");
        assert_eq!(trees.len(), 3);
        assert_eq!(trees[0].word(), Some("a"));
        let Tree::Group { open: '(', trees: inner } = &trees[1] else { panic!("{trees:?}") };
        assert_eq!(inner.len(), 2);
        assert!(matches!(&trees[2], Tree::Group { open: '{', trees } if trees.len() == 1));
    }
}
