//! A hash that stays the same in all releases: the places of names and of shards follow from it.

/// FNV-1a of the bytes (Fowler, Noll, Vo), mixed by the finalizer of SplitMix64 (Steele, Lea, Flood, OOPSLA
/// 2014), because the higher bits of FNV-1a of similar texts are similar.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    let fnv = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let n = (fnv ^ (fnv >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_stays_the_same() {
        assert_eq!(hash(b""), 0xf52a_15e9_a9b5_e89b);
        assert_eq!(hash(b"win11"), hash(b"win11"));
        assert_ne!(hash(b"pc-001"), hash(b"pc-002"));
    }
}
