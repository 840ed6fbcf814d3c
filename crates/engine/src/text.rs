//! Names and numbers in messages.

/// The ending of a noun after a number.
pub(crate) fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// A name shortened to a length suitable for a message.
pub(crate) fn shorten(name: &str) -> String {
    const SHOWN: usize = 64;
    let mut shown: String = name.chars().map(|c| if c.is_control() { '?' } else { c }).take(SHOWN).collect();
    if name.chars().count() > SHOWN {
        shown.push('…');
    }
    shown
}
