//! The manifest of an OVF package: a checksum for each of its files (DMTF DSP0243, section 5.1).

use sha1::Sha1;
use sha2::{Digest, Sha256, Sha512};

/// A checksum that a manifest states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checksum {
    algorithm: Algorithm,
    /// Hexadecimal digits in lower case.
    digest: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Algorithm {
    Sha1,
    Sha256,
    Sha512,
}

/// A checksum that is being computed.
pub struct Computed {
    hash: Hash,
    digest: String,
}

enum Hash {
    Sha1(Sha1),
    Sha256(Sha256),
    Sha512(Sha512),
}

impl Checksum {
    /// Begins to compute the checksum of a file.
    pub fn begin(&self) -> Computed {
        let hash = match self.algorithm {
            Algorithm::Sha1 => Hash::Sha1(Sha1::new()),
            Algorithm::Sha256 => Hash::Sha256(Sha256::new()),
            Algorithm::Sha512 => Hash::Sha512(Sha512::new()),
        };
        Computed { hash, digest: self.digest.clone() }
    }

    /// Whether these bytes have the checksum.
    pub fn matches(&self, bytes: &[u8]) -> bool {
        let mut computed = self.begin();
        computed.update(bytes);
        computed.matches()
    }
}

impl Computed {
    /// Adds the next bytes of the file.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.hash {
            Hash::Sha1(hash) => hash.update(bytes),
            Hash::Sha256(hash) => hash.update(bytes),
            Hash::Sha512(hash) => hash.update(bytes),
        }
    }

    /// Whether the file has the checksum.
    pub fn matches(self) -> bool {
        let found = match self.hash {
            Hash::Sha1(hash) => hex(&hash.finalize()),
            Hash::Sha256(hash) => hex(&hash.finalize()),
            Hash::Sha512(hash) => hex(&hash.finalize()),
        };
        found == self.digest
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Reads the lines `ALGORITHM(FILE)= DIGEST`: the name of each file with its checksum. Lines with another
/// algorithm are skipped.
pub fn checksums(manifest: &[u8]) -> Vec<(String, Checksum)> {
    let text = String::from_utf8_lossy(manifest);
    text.lines().filter_map(checksum).collect()
}

fn checksum(line: &str) -> Option<(String, Checksum)> {
    let (algorithm, rest) = line.split_once('(')?;
    let (name, digest) = rest.rsplit_once(')')?;
    let digest = digest.trim_start().strip_prefix('=')?.trim().to_ascii_lowercase();
    let algorithm = match algorithm.trim().to_ascii_uppercase().as_str() {
        "SHA1" => Algorithm::Sha1,
        "SHA256" => Algorithm::Sha256,
        "SHA512" => Algorithm::Sha512,
        _ => return None,
    };
    Some((name.strip_prefix("./").unwrap_or(name).to_owned(), Checksum { algorithm, digest }))
}

#[cfg(test)]
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

#[cfg(test)]
pub fn sha1(bytes: &[u8]) -> String {
    hex(&Sha1::digest(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_all_programs_are_read() {
        // The digests of "abc" in FIPS 180-4.
        let sha256 = "BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD";
        let manifest = format!(
            "SHA1(a (1).vmdk)= a9993e364706816aba3e25717850c26c9cd0d89d\r\nsha256 (./b.ovf) = {sha256}\nSHA512(c)= \
             ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd454d4423\
             643ce80e2a9ac94fa54ca49f\nMD5(d)= 00\nnonsense\n(= \n"
        );
        let found = checksums(manifest.as_bytes());
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a (1).vmdk", "b.ovf", "c"]);
        for (name, checksum) in &found {
            assert!(checksum.matches(b"abc") && !checksum.matches(b"abd"), "{name}");
        }
    }
}
