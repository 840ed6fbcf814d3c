//! Sizes in human-readable form. All units are powers of two: `40G` and `40GiB` are the same.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// A number of bytes, parsed from text such as `40G`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// Reasons for which a text is not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// The text is not a number with a known unit.
    #[error("'{0}' is not a size; write bytes, or a number with K, M, G or T, such as 40G")]
    Syntax(String),
    /// The number exceeds 64 bits.
    #[error("'{0}' is too large for a size")]
    TooLarge(String),
}

/// Shift of each unit's power of two.
const UNITS: [(char, u32); 6] = [('K', 10), ('M', 20), ('G', 30), ('T', 40), ('P', 50), ('E', 60)];

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Size, SizeError> {
        let syntax = || SizeError::Syntax(text.chars().take(40).collect());
        let trimmed = text.trim();
        let digits_end = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
        let (digits, unit) = trimmed.split_at(digits_end);
        if digits.is_empty() {
            return Err(syntax());
        }
        let too_large = || SizeError::TooLarge(text.chars().take(40).collect());
        let number: u64 = digits.parse().map_err(|_| too_large())?;
        let shift = unit_shift(unit.trim_start()).ok_or_else(syntax)?;
        number.checked_mul(1 << shift).map(Size).ok_or_else(too_large)
    }
}

/// The power of two of a unit: nothing, `B`, `K`, `KB`, `KiB` and so on, in either case.
fn unit_shift(unit: &str) -> Option<u32> {
    let unit = unit.to_ascii_uppercase();
    if unit.is_empty() || unit == "B" {
        return Some(0);
    }
    let mut chars = unit.chars();
    let letter = chars.next()?;
    let shift = UNITS.iter().find(|(c, _)| *c == letter)?.1;
    matches!(chars.as_str(), "" | "B" | "IB").then_some(shift)
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = UNITS.iter().rev().find(|(_, shift)| self.0 >> shift != 0);
        match found {
            None => write!(f, "{} B", self.0),
            Some((letter, shift)) => {
                let whole = self.0 >> shift;
                if whole << shift == self.0 {
                    return write!(f, "{whole} {letter}iB");
                }
                // Truncated, not rounded: 1023.99 GiB must not read as 1024.0 GiB.
                let tenths = (u128::from(self.0) * 10) >> shift;
                write!(f, "{}.{} {letter}iB", tenths / 10, tenths % 10)
            }
        }
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        struct V;
        impl Visitor<'_> for V {
            type Value = Size;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size: bytes, or a text such as \"40G\"")
            }
            fn visit_u64<E: de::Error>(self, n: u64) -> Result<Size, E> {
                Ok(Size(n))
            }
            fn visit_i64<E: de::Error>(self, n: i64) -> Result<Size, E> {
                u64::try_from(n).map(Size).map_err(|_| E::custom("a size cannot be negative"))
            }
            fn visit_str<E: de::Error>(self, s: &str) -> Result<Size, E> {
                s.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(V)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_two() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("512M", 512 << 20),
            ("40G", 40 << 30),
            ("40GiB", 40 << 30),
            ("40 gib", 40 << 30),
            ("1kb", 1024),
            ("64T", 64 << 40),
            ("7B", 7),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn invalid_sizes_are_refused() {
        for text in ["", "G", "-1", "1.5G", "40X", "40GG", "40 G B", "0x10", "١"] {
            assert!(matches!(text.parse::<Size>(), Err(SizeError::Syntax(_))), "{text}");
        }
        for text in ["18446744073709551616", "16E", "99999999999T"] {
            assert!(matches!(text.parse::<Size>(), Err(SizeError::TooLarge(_))), "{text}");
        }
    }

    #[test]
    fn sizes_are_displayed_in_the_largest_unit() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (40 << 30, "40 GiB"),
            ((1 << 40) - 1, "1023.9 GiB"),
            (u64::MAX, "15.9 EiB"),
        ] {
            assert_eq!(Size(bytes).to_string(), text);
        }
    }
}
