//! Escaping of text from peers, files and damaged pools before it is displayed.
//!
//! A name may contain any characters: escape sequences that reprogram a terminal, line ends that forge log
//! lines, marks that reverse the writing direction. Text is escaped where it is output, not where it is used:
//! in the log writer ([`LogWriter`]) and in the output of the command line.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

/// Whether a name is a segment of a path that browsers and other clients resolve, also if it is encoded
/// (WHATWG URL, "single-dot" and "double-dot URL path segment").
pub fn is_relative_path(name: &str) -> bool {
    name == "." || name == ".."
}

/// Whether a character has an effect other than being displayed.
pub fn is_active(c: char) -> bool {
    c.is_control()
        || matches!(c,
                        // Marks and embeddings of the bidirectional algorithm (Unicode Standard Annex 9), and
                        // zero-width characters.
            '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
                        // Line and paragraph separators, and interlinear annotations.
            | '\u{2028}' | '\u{2029}' | '\u{fff9}'..='\u{fffb}'
                        // Tags, which are invisible.
            | '\u{e0000}'..='\u{e007f}')
}

fn replace<'a>(text: &'a str, keep: &[char], mut escape: impl FnMut(&mut String, char)) -> Cow<'a, str> {
    let is_replaced = |c: char| is_active(c) && !keep.contains(&c);
    if !text.chars().any(is_replaced) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_replaced(c) { escape(&mut out, c) } else { out.push(c) }
    }
    Cow::Owned(out)
}

/// Escapes text for one line: each active character becomes an escape such as `\n` or `\u{1b}`.
pub fn one_line(text: &str) -> Cow<'_, str> {
    replace(text, &[], |out, c| out.extend(c.escape_default()))
}

/// Like [`one_line`], but keeps line ends.
pub fn lines(text: &str) -> Cow<'_, str> {
    replace(text, &['\n'], |out, c| out.extend(c.escape_default()))
}

/// Like [`one_line`] for a JSON text, with the escapes of JSON (RFC 8259, section 7). Active characters occur
/// only inside its strings.
pub fn json(text: &str) -> Cow<'_, str> {
    replace(text, &[], |out, c| {
        for unit in c.encode_utf16(&mut [0; 2]) {
            // Writing to a string cannot fail.
            let _ = write!(out, "\\u{unit:04x}");
        }
    })
}

/// A name in single quotes, in which it cannot end early: a quote in the name is escaped.
pub fn quoted(name: &str) -> impl fmt::Display + '_ {
    struct Quoted<'a>(&'a str);
    impl fmt::Display for Quoted<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_char('\'')?;
            for part in self.0.split_inclusive(['\'', '\\']) {
                match part.strip_suffix(['\'', '\\']) {
                    None => f.write_str(part)?,
                    Some(plain) => write!(f, "{plain}\\{}", &part[plain.len()..])?,
                }
            }
            f.write_char('\'')
        }
    }
    Quoted(name)
}

/// The length of the longest beginning of a text that has at most `max` bytes.
fn end_within(text: &str, max: usize) -> usize {
    let max = max.min(text.len());
    (0..=max).rev().find(|&end| text.is_char_boundary(end)).unwrap_or_default()
}

/// The first `max` bytes of a text, and an ellipsis if it is longer.
pub fn shorten(text: &str, max: usize) -> Cow<'_, str> {
    match end_within(text, max) {
        end if end == text.len() => Cow::Borrowed(text),
        end => Cow::Owned(format!("{}…", &text[..end])),
    }
}

/// Like [`shorten`] for a value: no more than `max` bytes of the value are formatted.
pub fn shortened(value: fmt::Arguments<'_>, max: usize) -> String {
    struct Head {
        text: String,
        left: usize,
    }
    impl fmt::Write for Head {
        fn write_str(&mut self, part: &str) -> fmt::Result {
            let end = end_within(part, self.left);
            self.text.push_str(&part[..end]);
            self.left -= end;
            if end == part.len() { Ok(()) } else { Err(fmt::Error) }
        }
    }
    let mut head = Head { text: String::new(), left: max };
    if head.write_fmt(value).is_err() {
        head.text.push('…');
    }
    head.text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_control_a_terminal_are_escaped() {
        for (text, shown) in [
            ("plain, with ünïcödé and 日本語", "plain, with ünïcödé and 日本語"),
            ("a\x1b[2Jb", "a\\u{1b}[2Jb"),
            ("a\nforged line", "a\\nforged line"),
            ("a\r\tb\u{7f}", "a\\r\\tb\\u{7f}"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("abc\u{202e}gpj.exe", "abc\\u{202e}gpj.exe"),
            ("a\u{2066}b\u{2028}c\u{200b}d\u{feff}", "a\\u{2066}b\\u{2028}c\\u{200b}d\\u{feff}"),
        ] {
            assert_eq!(one_line(text), shown);
        }
        assert_eq!(lines("a\nb\x1bc"), "a\nb\\u{1b}c");
    }

    #[test]
    fn a_long_text_ends_at_a_character_with_an_ellipsis() {
        for (text, max, short) in [
            ("", 0, ""),
            ("abc", 3, "abc"),
            ("abcd", 3, "abc…"),
            ("aéb", 2, "a…"),
            ("aéb", 3, "aé…"),
            ("日本", 2, "…"),
        ] {
            assert_eq!(shorten(text, max), short);
            assert_eq!(shortened(format_args!("{text}"), max), short);
        }
        let names = vec!["n".repeat(1000); 800];
        assert_eq!(shortened(format_args!("{names:?}"), 1024).len(), 1024 + "…".len());
    }

    #[test]
    fn a_quoted_name_does_not_end_early() {
        for (name, shown) in
            [("a b", "'a b'"), ("", "''"), ("a'b", r"'a\'b'"), (r"a\", r"'a\\'"), ("é''", r"'é\'\''")]
        {
            assert_eq!(quoted(name).to_string(), shown);
        }
    }

    #[test]
    fn escaped_json_has_the_same_value() {
        let value = serde_json::json!({"name": "a\u{202e}\u{9b}\u{7f}\n\x1b\u{e0041}é"});
        let shown = json(&value.to_string()).into_owned();
        assert!(shown.chars().all(|c| !is_active(c)), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
    }
}
