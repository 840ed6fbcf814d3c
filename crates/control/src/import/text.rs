//! Text, which is a descriptor of a VMDK or no disk at all.

use std::borrow::Cow;

/// The byte-order mark of UTF-8.
const UTF8_MARK: &[u8] = b"\xef\xbb\xbf";

/// Removes zeroes at the end.
pub(super) fn without_padding(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
    &bytes[..end]
}

/// Whether bytes are text in UTF-16 with a byte-order mark, or in any encoding that contains ASCII. Text
/// has no control characters except for positions and escapes. Sectors with numbers or code have more.
pub(super) fn is_text(bytes: &[u8]) -> bool {
    if let Some(units) = utf16_units(bytes) {
        return std::char::decode_utf16(units).all(|c| c.is_ok_and(|c| c == '\0' || is_printed(c)));
    }
    !bytes.is_empty() && bytes.iter().all(|b| is_printed(char::from(*b)))
}

/// Whether a character is displayed, or moves the position of printing. Each byte above ASCII is such a
/// character in one of the encodings.
fn is_printed(c: char) -> bool {
    !c.is_ascii_control() || matches!(c, '\x08'..='\x0d' | '\x1b')
}

/// Returns the text without a byte-order mark; UTF-16 is converted to UTF-8. Text in another encoding is
/// returned unchanged: it has the bytes of ASCII for ASCII characters.
pub(super) fn decoded(bytes: &[u8]) -> Cow<'_, [u8]> {
    match utf16_units(bytes) {
        Some(units) => {
            let text = std::char::decode_utf16(units).map(|c| c.unwrap_or(std::char::REPLACEMENT_CHARACTER));
            Cow::Owned(text.collect::<String>().into_bytes())
        }
        None => Cow::Borrowed(bytes.strip_prefix(UTF8_MARK).unwrap_or(bytes)),
    }
}

/// Returns the code units after the byte-order mark of UTF-16; `None` if there is no mark.
fn utf16_units(bytes: &[u8]) -> Option<impl Iterator<Item = u16>> {
    let unit: fn([u8; 2]) -> u16 = match bytes.get(..2)? {
        b"\xff\xfe" => u16::from_le_bytes,
        b"\xfe\xff" => u16::from_be_bytes,
        _ => return None,
    };
    // The last byte of a text of odd length may be the half of a unit that the caller has cut.
    Some(bytes[2..].chunks_exact(2).map(move |pair| unit([pair[0], pair[1]])))
}

/// Describes a text, as the predicate of a sentence.
pub(super) fn describe(bytes: &[u8]) -> &'static str {
    let start: Vec<u8> =
        decoded(bytes).trim_ascii_start().iter().take(64).map(u8::to_ascii_lowercase).collect();
    if start.starts_with(b"<!doctype html") || start.starts_with(b"<html") {
        "is a web page, perhaps the one of an error or a login"
    } else if start.starts_with(b"version https://git-lfs.") {
        "is a pointer of Git LFS, which stands for the real file"
    } else {
        "is a text file"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_any_encoding_is_text_and_sectors_are_not() {
        let utf16: Vec<u8> = "\u{feff}Größe\r\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
        let gbk = b"RW 8 FLAT \"\xce\xd2\xb5\xc4.vmdk\"\n";
        for text in [&b"root:x:0:0:\n"[..], UTF8_MARK, "Größe".as_bytes(), b"Gr\xf6\xdfe", &utf16, gbk] {
            assert!(is_text(text), "{text:?}");
        }
        let mut boot_sector = *b"\xeb\x63\x90text";
        assert!(is_text(&boot_sector[..1]) && is_text(&boot_sector));
        boot_sector[4] = 0;
        for sector in [&b""[..], &boot_sector, b"\0", b"\x7fELF", b"a\x01"] {
            assert!(!is_text(sector), "{sector:?}");
        }
        assert_eq!(without_padding(b"a\0b\0\0"), b"a\0b");
        assert_eq!(decoded(&utf16), "Größe\r\n".as_bytes());
    }
}
