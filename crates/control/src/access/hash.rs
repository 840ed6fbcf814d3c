//! Secrets of 256 random bits in hexadecimal digits, and their hashes.

use sha2::{Digest, Sha256};

/// SHA-256 of a secret.
pub(super) type Hash = [u8; 32];

pub(super) fn hash(secret: &str) -> Hash {
    Sha256::digest(secret.as_bytes()).into()
}

/// 256 random bits in hexadecimal digits.
///
/// # Errors
/// The system has no random numbers.
pub(super) fn random() -> Result<String, getrandom::Error> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)?;
    Ok(hex(&bytes))
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Parses a hash; only lowercase digits, which [`hex`] writes.
pub(super) fn parse(text: &str) -> Option<Hash> {
    let is_hex = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
    if text.len() != 64 || !text.bytes().all(is_hex) {
        return None;
    }
    let mut out = [0; 32];
    for (byte, digits) in out.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_that_of_fips_180_and_survives_its_text_form() {
        let of_abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hex(&hash("abc")), of_abc);
        assert_eq!(parse(of_abc), Some(hash("abc")));
        for bad in ["", &of_abc[1..], &of_abc.to_uppercase(), &of_abc.replace('b', "é")] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        assert_ne!(random().unwrap(), random().unwrap());
    }
}
