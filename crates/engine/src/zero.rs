//! Detection of zeroes.

/// Whether all bytes are zero. Most data fails the test in its first bytes. Further bytes are tested in long
/// lines without branches, which the compiler vectorises.
pub fn is_zero(bytes: &[u8]) -> bool {
    let (lines, rest) = bytes.as_chunks::<128>();
    bytes.iter().take(16).all(|b| *b == 0)
        && lines.iter().all(|line| line.iter().fold(0, |a, b| a | b) == 0)
        && rest.iter().all(|b| *b == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_counts() {
        for len in [1, 15, 100, 128, 512, 4096, 4100] {
            assert!(is_zero(&vec![0; len]), "{len}");
            for at in 0..len {
                let mut bytes = vec![0; len];
                bytes[at] = 0x80;
                assert!(!is_zero(&bytes), "{at} of {len}");
            }
        }
        assert!(is_zero(&[]));
    }
}
