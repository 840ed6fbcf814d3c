//! Sizes and times as a scenario file writes them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Bytes, such as "4KiB" or "28GiB"; K, M, G and T without "iB" are powers of 1024 too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(pub u64);

/// A time, such as "250ms", "30s", "10min" or "1h".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

/// Text that is no quantity.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// No size.
    #[error("\"{0}\" is not a size: use a number of bytes, or one with KiB, MiB, GiB or TiB")]
    Size(String),
    /// No time.
    #[error("\"{0}\" is not a time: use a number with ms, s, min or h")]
    Span(String),
}

impl FromStr for Size {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Size, QuantityError> {
        let wrong = || QuantityError::Size(text.to_owned());
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
            "" | "b" => 0,
            "k" | "kib" => 10,
            "m" | "mib" => 20,
            "g" | "gib" => 30,
            "t" | "tib" => 40,
            _ => return Err(wrong()),
        };
        let number = digits.trim_end().parse::<u64>().ok().filter(|n| *n > 0);
        number.and_then(|n| n.checked_mul(1 << shift)).map(Size).ok_or_else(wrong)
    }
}

impl FromStr for Span {
    type Err = QuantityError;

    fn from_str(text: &str) -> Result<Span, QuantityError> {
        let wrong = || QuantityError::Span(text.to_owned());
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit_seconds = match &text[digits.len()..] {
            "ms" => 1e-3,
            "s" => 1.0,
            "min" => 60.0,
            "h" => 3600.0,
            _ => return Err(wrong()),
        };
        let seconds = digits.trim_end().parse::<f64>().map_err(|_| wrong())? * unit_seconds;
        Duration::try_from_secs_f64(seconds).map(Span).map_err(|_| wrong())
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (shift, unit) in [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")] {
            if self.0 >= 1 << shift {
                let value = self.0 as f64 / (1u64 << shift) as f64;
                let decimals = if self.0.is_multiple_of(1 << shift) { 0 } else { 1 };
                return write!(f, "{value:.decimals$} {unit}");
            }
        }
        write!(f, "{} bytes", self.0)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = self.0.as_secs_f64();
        let short = |v: f64| {
            let text = format!("{v:.1}");
            text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
        };
        match s {
            _ if s >= 7200.0 => write!(f, "{} h", short(s / 3600.0)),
            _ if s >= 120.0 => write!(f, "{} min", short(s / 60.0)),
            _ if s >= 1.0 => write!(f, "{} s", short(s)),
            _ => write!(f, "{} ms", short(s * 1e3)),
        }
    }
}

macro_rules! as_text {
    ($type:ty) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<$type, D::Error> {
                String::deserialize(d)?.parse().map_err(de::Error::custom)
            }
        }
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }
    };
}
as_text!(Size);
as_text!(Span);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_and_shown() {
        assert_eq!("28GiB".parse(), Ok(Size(28 << 30)));
        assert_eq!("8k".parse(), Ok(Size(8192)));
        assert_eq!("1 MiB".parse(), Ok(Size(1 << 20)));
        for bad in ["", "0", "GiB", "-1", "1.5G", "4x", "99999999999T"] {
            assert!(bad.parse::<Size>().is_err(), "{bad}");
        }
        let shown = [1 << 30, 3 << 19, 512].map(|n| Size(n).to_string());
        assert_eq!(shown, ["1 GiB", "1.5 MiB", "512 bytes"]);
    }

    #[test]
    fn times_are_parsed_and_shown() {
        assert_eq!("250ms".parse(), Ok(Span(Duration::from_millis(250))));
        assert_eq!("1.5h".parse(), Ok(Span(Duration::from_secs(5400))));
        for bad in ["", "1", "s", "-1s", "1d", "xs", "infs"] {
            assert!(bad.parse::<Span>().is_err(), "{bad}");
        }
        let shown = [7200.0, 300.0, 2.5, 0.25].map(|s| Span(Duration::from_secs_f64(s)).to_string());
        assert_eq!(shown, ["2 h", "5 min", "2.5 s", "250 ms"]);
    }
}
