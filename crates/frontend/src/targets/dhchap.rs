//! Keys of DH-HMAC-CHAP, by which NVMe hosts and subsystems authenticate each other.
//!
//! A key has the text that `nvme gen-dhchap-key` prints: `DHHC-1:`, a hash function in hexadecimal, and in
//! base64 the key and its CRC-32 (Base 8.13.5.8). If a hash function is named, the key is not used itself:
//! the HMAC of the name of its owner is ([`DhChapKey::of_owner`]).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use forebay_text::Secret;
use forebay_wire::crc32;
use forebay_wire::nvme::auth::AuthHash;
use serde::{Deserialize, Serialize};

use super::TargetError;

/// The beginning of the text of each key.
const PREFIX: &str = "DHHC-1:";
/// Appended to the name of the owner of a key (Base 8.13.5.7).
const SUFFIX: &[u8] = b"NVMe-over-Fabrics";

/// A key, as administrators write it. [`DhChapKey::check`] refuses invalid texts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DhChapKey(Secret);

impl DhChapKey {
    /// Takes any text.
    pub fn new(text: Secret) -> DhChapKey {
        DhChapKey(text)
    }

    /// Checks that the text is a valid key.
    ///
    /// # Errors
    /// [`TargetError::DhChap`]
    pub fn check(&self) -> Result<(), TargetError> {
        self.parts().map(|_| ()).map_err(TargetError::DhChap)
    }

    /// The hash function of the transformation, if the key is transformed, and the key.
    fn parts(&self) -> Result<(Option<AuthHash>, Vec<u8>), &'static str> {
        let text = self.0.reveal().strip_prefix(PREFIX).ok_or("it does not begin with 'DHHC-1:'")?;
        let (hash, rest) = text.split_once(':').ok_or("it has no hash function")?;
        let encoded = rest.strip_suffix(':').ok_or("it does not end with a colon")?;
        let hash = match hash {
            "00" => None,
            "01" => Some(AuthHash::Sha256),
            "02" => Some(AuthHash::Sha384),
            "03" => Some(AuthHash::Sha512),
            _ => return Err("its hash function is none of 00, 01, 02 and 03"),
        };
        let mut key = STANDARD.decode(encoded).map_err(|_| "its key is not base64")?;
        let Some((len, sum)) = key.split_last_chunk::<4>().map(|(key, sum)| (key.len(), *sum)) else {
            return Err("its key is too short");
        };
        key.truncate(len);
        if sum != crc32(&key).to_le_bytes() {
            return Err("its checksum is wrong; copy the whole key");
        }
        match (hash, len) {
            (None, 32 | 48 | 64) => {}
            (Some(hash), len) if len == hash.len() => {}
            _ => return Err("its key has not as many bytes as its hash function"),
        }
        Ok((hash, key))
    }

    /// Whether both texts stand for the same key.
    pub(super) fn is_same(&self, other: &DhChapKey) -> bool {
        match (self.parts(), other.parts()) {
            (Ok((_, own)), Ok((_, other))) => own == other,
            _ => false,
        }
    }

    /// The key that the host or subsystem `name` uses; `None` if the text is invalid.
    pub(crate) fn of_owner(&self, name: &str) -> Option<Vec<u8>> {
        let (hash, key) = self.parts().ok()?;
        let Some(hash) = hash else { return Some(key) };
        let mut transformed = ring::hmac::Context::with_key(&ring::hmac::Key::new(hmac_of(hash), &key));
        transformed.update(name.as_bytes());
        transformed.update(SUFFIX);
        Some(transformed.sign().as_ref().to_vec())
    }
}

/// HMAC with a hash function.
pub(crate) fn hmac_of(hash: AuthHash) -> ring::hmac::Algorithm {
    match hash {
        AuthHash::Sha256 => ring::hmac::HMAC_SHA256,
        AuthHash::Sha384 => ring::hmac::HMAC_SHA384,
        AuthHash::Sha512 => ring::hmac::HMAC_SHA512,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Made by Python: base64, zlib.crc32 and hmac.
    const PLAIN: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
    const HASHED: &str = "DHHC-1:01:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";

    fn key(text: &str) -> DhChapKey {
        DhChapKey::new(Secret::new(text.into()))
    }

    #[test]
    fn a_key_is_used_itself_or_transformed() {
        let host = "nqn.2026-01.org.example:host";
        let own: Vec<u8> = (0..32).collect();
        assert_eq!(key(PLAIN).of_owner(host), Some(own));
        let transformed = key(HASHED).of_owner(host).unwrap();
        assert_eq!(forebay_wire::iscsi::text::hex(&transformed), TRANSFORMED);
        assert_ne!(key(HASHED).of_owner("nqn.2026-01.org.example:other"), Some(transformed));
        assert!(key(PLAIN).is_same(&key(HASHED)));
        assert!(!format!("{:?}", key(PLAIN)).contains("AAEC"));
    }

    const TRANSFORMED: &str = "0x0eb38f088b74fab6555551221abe3dbb2f39a30b7fdfd86deb0da8107240a91d";

    #[test]
    fn a_wrong_text_is_refused_with_its_reason() {
        for (text, why) in [
            ("secret", "begin with"),
            ("DHHC-1:00", "no hash function"),
            (&PLAIN[..PLAIN.len() - 1], "end with a colon"),
            (&PLAIN.replace(":00:", ":04:"), "none of"),
            (&PLAIN.replace(":00:", ":02:"), "as many bytes"),
            (&PLAIN.replace("AAEC", "AAED"), "checksum"),
            (&PLAIN.replace("AAEC", "A-EC"), "base64"),
            ("DHHC-1:00:AAA=:", "too short"),
        ] {
            let error = key(text).check().unwrap_err().to_string();
            assert!(error.contains(why) && !error.contains("AAE"), "{text}: {error}");
        }
        assert!(key(PLAIN).check().is_ok());
    }
}
