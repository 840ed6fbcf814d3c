//! Text segments: `key=value` pairs, each terminated by a zero byte (RFC 7143, 6.1).

/// Maximum bytes of the text of one side in a negotiation, over all its PDUs.
pub const MAX_TEXT: usize = 64 << 10;
/// Maximum length of a key in bytes.
const MAX_KEY: usize = 63;
/// Maximum number of keys in a text.
const MAX_KEYS: usize = 128;

/// Text that is not valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the text does not consist of key=value pairs")]
pub struct BadText;

/// The pairs of a text, in order.
pub fn parse(text: &[u8]) -> Result<Vec<(&str, &str)>, BadText> {
    let mut pairs = Vec::new();
    // Padding and a missing final zero are tolerated.
    for pair in text.split(|b| *b == 0).filter(|pair| !pair.is_empty()) {
        let pair = std::str::from_utf8(pair).map_err(|_| BadText)?;
        let (key, value) = pair.split_once('=').ok_or(BadText)?;
        if key.is_empty() || key.len() > MAX_KEY || pairs.len() == MAX_KEYS {
            return Err(BadText);
        }
        pairs.push((key, value));
    }
    Ok(pairs)
}

/// Appends a key with its value.
pub fn push(out: &mut Vec<u8>, key: &str, value: &str) {
    out.extend_from_slice(key.as_bytes());
    out.push(b'=');
    out.extend_from_slice(value.as_bytes());
    out.push(0);
}

/// A number in decimal or, with `0x`, hexadecimal digits (6.1, numerical-value).
pub fn number(value: &str) -> Option<u64> {
    match value.strip_prefix("0x").or_else(|| value.strip_prefix("0X")) {
        Some(digits) if digits.bytes().all(|b| b.is_ascii_hexdigit()) => u64::from_str_radix(digits, 16).ok(),
        Some(_) => None,
        None if value.bytes().all(|b| b.is_ascii_digit()) => value.parse().ok(),
        None => None,
    }
}

/// Bytes as hexadecimal digits after `0x` or base64 after `0b` (6.1, binary-value), at most `max`.
pub fn binary(value: &str, max: usize) -> Option<Vec<u8>> {
    let (form, digits) = value.split_at_checked(2)?;
    let bytes = match form {
        "0x" | "0X" => from_hex(digits, max)?,
        "0b" | "0B" => from_base64(digits, max)?,
        _ => return None,
    };
    (bytes.len() <= max).then_some(bytes)
}

/// Bytes as hexadecimal digits after `0x`.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::from("0x"), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

fn from_hex(digits: &str, max: usize) -> Option<Vec<u8>> {
    if digits.len() > 2 * max || digits.is_empty() {
        return None;
    }
    let nibble = |b: u8| (b as char).to_digit(16).map(|d| d as u8);
    // With an odd number of digits, the leading zero is missing.
    let digits: Vec<u8> = std::iter::repeat_n(b'0', digits.len() % 2).chain(digits.bytes()).collect();
    digits.chunks(2).map(|pair| Some(nibble(pair[0])? << 4 | nibble(pair[1])?)).collect()
}

fn from_base64(digits: &str, max: usize) -> Option<Vec<u8>> {
    let digits = digits.trim_end_matches('=');
    if digits.len() > max.div_ceil(3) * 4 || digits.len() % 4 == 1 {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    let (mut held, mut bits) = (0u32, 0);
    for digit in digits.bytes() {
        let six = match digit {
            b'A'..=b'Z' => digit - b'A',
            b'a'..=b'z' => digit - b'a' + 26,
            b'0'..=b'9' => digit - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        held = held << 6 | u32::from(six);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((held >> bits) as u8);
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs() {
        assert_eq!(parse(b"A=1\0B=\0\0\0").unwrap(), [("A", "1"), ("B", "")]);
        assert_eq!(parse(b"A=x=y").unwrap(), [("A", "x=y")]);
        for bad in [&b"A\0"[..], b"=1\0", b"\xff=1\0"] {
            assert_eq!(parse(bad), Err(BadText));
        }
        assert!(parse(&b"A=1\0".repeat(MAX_KEYS + 1)).is_err());
    }

    #[test]
    fn numbers_and_bytes() {
        assert_eq!(number("8192"), Some(8192));
        assert_eq!(number("0x2000"), Some(8192));
        for bad in ["", "-1", "1 ", "0xg", "99999999999999999999"] {
            assert_eq!(number(bad), None, "{bad}");
        }
        assert_eq!(binary("0xa1B2", 4), Some(vec![0xa1, 0xb2]));
        assert_eq!(binary("0xabc", 4), Some(vec![0x0a, 0xbc]));
        assert_eq!(binary("0bAQID", 3), Some(vec![1, 2, 3]));
        assert_eq!(binary("0bAQI=", 3), Some(vec![1, 2]));
        for bad in ["", "0x", "12", "0xgg", "0b!!!!", "0x0102030405", "0bAQIDBAUG"] {
            assert_eq!(binary(bad, 4), None, "{bad}");
        }
        assert_eq!(hex(&[1, 0xab]), "0x01ab");
    }
}
