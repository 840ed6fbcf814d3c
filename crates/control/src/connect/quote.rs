//! Quoting of names for the places where they are inserted.

use std::fmt::Write;

/// Percent-encodes everything except the unreserved characters of a URI (RFC 3986, section 2.3) and `also`.
pub fn uri(text: &str, also: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || also.as_bytes().contains(&byte) {
            true => encoded.push(byte.into()),
            // Writing to a string cannot fail.
            false => drop(write!(encoded, "%{byte:02X}")),
        }
    }
    encoded
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

/// One word of a POSIX shell. A word that could be taken for an option is quoted too, to be noticed.
pub fn shell(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._~/:=,@%+".contains(c);
    match !word.is_empty() && !word.starts_with('-') && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}
