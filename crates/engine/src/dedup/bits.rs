//! The bits of a fingerprint, a uniformly distributed hash, for use as separate hashes.

use forebay_format::Fingerprint;

fn word(fingerprint: &Fingerprint, first: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| fingerprint.0[first + i]))
}

/// The bits of a fingerprint that determine its place in a table.
pub(super) fn place_bits(fingerprint: &Fingerprint) -> u64 {
    word(fingerprint, 0)
}

/// The bits of a fingerprint that determine whether it is sampled.
pub(super) fn sample_bits(fingerprint: &Fingerprint) -> u64 {
    word(fingerprint, 8)
}
