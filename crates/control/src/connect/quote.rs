//! Quoting of names for the places where they are inserted.

use forebay_api::client::SEGMENT;
use percent_encoding::{AsciiSet, utf8_percent_encode};

/// Characters that are escaped in a path: those of a segment, without the separator.
const PATH: &AsciiSet = &SEGMENT.remove(b'/');

/// A name in a URI: everything but the unreserved characters (RFC 3986, section 2.3) is percent-encoded.
pub fn uri(name: &str) -> String {
    utf8_percent_encode(name, SEGMENT).to_string()
}

/// A path in a URI.
pub fn uri_path(path: &str) -> String {
    utf8_percent_encode(path, PATH).to_string()
}

/// A value of an option of QEMU, in which a comma is doubled.
pub fn qemu(value: &str) -> String {
    value.replace(',', ",,")
}

/// The value of an attribute in XML.
pub fn xml(value: &str) -> String {
    let escape = [('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('\'', "&apos;"), ('"', "&quot;")];
    escape.into_iter().fold(value.to_owned(), |text, (c, escaped)| text.replace(c, escaped))
}

/// One word of a POSIX shell. A word that looks like an option is quoted too, so that it is noticed.
pub fn shell(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._~/:=,@%+".contains(c);
    match !word.is_empty() && !word.starts_with('-') && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}
