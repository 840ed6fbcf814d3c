//! Mapping pairs, which encode the runs of a non-resident attribute.
//!
//! Each pair is a length, and the distance of its first cluster from the first cluster of the previous pair;
//! without a distance, the run is sparse. The byte before a pair contains the sizes of both fields.

/// A run: clusters of a stream that are contiguous on the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    /// First cluster in the stream (VCN).
    pub vcn: u64,
    pub len: u64,
    /// First cluster on the volume (LCN); `None` for a sparse run.
    pub lcn: Option<u64>,
}

/// Decodes the runs of an extent that begins at `first_vcn`, on a volume of `clusters` clusters. Returns
/// `None` if any run is invalid, because the other runs cannot be trusted then.
pub(super) fn decode(mut pairs: &[u8], first_vcn: u64, clusters: u64) -> Option<Vec<Run>> {
    let (mut vcn, mut lcn) = (first_vcn, 0_i64);
    let mut runs = Vec::new();
    loop {
        let (head, rest) = pairs.split_first()?;
        if *head == 0 {
            return Some(runs);
        }
        let (len_bytes, lcn_bytes) = (usize::from(head & 15), usize::from(head >> 4));
        let len = u64::try_from(number(rest.get(..len_bytes)?)?).ok()?;
        let distance = rest.get(len_bytes..len_bytes + lcn_bytes)?;
        pairs = &rest[len_bytes + lcn_bytes..];
        let first_lcn = if distance.is_empty() {
            None
        } else {
            lcn = lcn.checked_add(number(distance)?)?;
            let first = u64::try_from(lcn).ok()?;
            (first.checked_add(len)? <= clusters).then_some(())?;
            Some(first)
        };
        (len != 0).then_some(())?;
        runs.push(Run { vcn, len, lcn: first_lcn });
        vcn = vcn.checked_add(len)?;
    }
}

/// A signed little-endian number of 1 to 8 bytes.
fn number(bytes: &[u8]) -> Option<i64> {
    let sign = if bytes.last()? & 0x80 == 0 { 0 } else { -1 };
    (bytes.len() <= 8).then(|| bytes.iter().rev().fold(sign, |n, byte| n << 8 | i64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_pairs_are_decoded_and_invalid_ones_refused() {
        let run = |vcn, len, lcn| Run { vcn, len, lcn };
        let bytes = [0x21, 0x18, 0x34, 0x56, 0x01, 0x05, 0x11, 0x08, 0xf0, 0];
        let expected = [run(7, 0x18, Some(0x5634)), run(31, 5, None), run(36, 8, Some(0x5624))];
        assert_eq!(decode(&bytes, 7, 1 << 20).unwrap(), expected);
        assert_eq!(decode(&[0], 0, 0), Some(vec![]));
        for bad in [&bytes[..9], &[], &[0x01, 0x00, 0], &[0x11, 0x01, 0xff, 0], &[0xf1, 1], &[0x10, 1, 0]] {
            assert_eq!(decode(bad, 0, 1 << 20), None, "{bad:?}");
        }
        assert_eq!(decode(&bytes, 0, 0x5634), None);
        assert_eq!(decode(&bytes, u64::MAX - 3, 1 << 20), None);
    }
}
