//! Superblocks that are damaged, of another format or forged, and the choice between two copies.

use crate::common::*;
use crate::hostile::{forged, value};
use forebay_format::*;

#[test]
fn superblock_fields_out_of_bounds_are_refused() {
    let good = superblock().encode();
    let refused = |at, bytes: &[u8]| Superblock::decode(&forged(good.clone(), at, bytes)).unwrap_err();
    assert_eq!(refused(8, &[0]), value("superblock", "version"));
    assert_eq!(refused(88, &[0; 4]), value("superblock", "segment_bytes"));
    assert_eq!(refused(88, &[0xff; 4]), value("superblock", "segment_bytes"));
    assert_eq!(refused(92, &[129]), value("superblock", "blob_count"));
    assert_eq!(refused(92, &[0xff; 4]), value("superblock", "blob_count"));
    // A piece that is empty, without a segment, or beyond the largest segment.
    assert_eq!(refused(92, &[4]), value("superblock", "blobs"));
    assert_eq!(refused(128, &[0; 4]), value("superblock", "blobs"));
    assert_eq!(refused(132, &[0xff; 8]), value("superblock", "blobs"));
}

#[test]
fn the_newer_valid_superblock_is_chosen() {
    let (old, new) = (superblock(), Superblock { generation: 42, ..superblock() });
    let (a, b) = (new.encode(), old.encode());
    assert_eq!(Superblock::choose([Some(&a), Some(&b)]), Ok(new.clone()));
    assert_eq!(Superblock::choose([None, Some(&b)]), Ok(old.clone()));
    assert_eq!(Superblock::choose([None, None]), Err(FormatError::Truncated("superblock")));

    // The highest possible generation is valid.
    let last = Superblock { generation: u64::MAX, ..superblock() };
    assert_eq!(Superblock::choose([Some(&last.encode()), Some(&a)]), Ok(last));

    // A damaged copy does not make the other unusable, whichever byte is damaged, including the version.
    for at in [0, 8, 9, 40, 4000, 4095] {
        let mut damaged = a.clone();
        damaged[at] ^= 0xff;
        assert_eq!(Superblock::choose([Some(&damaged), Some(&b)]), Ok(old.clone()), "byte {at}");
        assert_eq!(Superblock::choose([Some(&b), Some(&damaged)]), Ok(old.clone()), "byte {at}");
        assert_eq!(Superblock::choose([Some(&a[..at]), Some(&b)]), Ok(old.clone()));
    }
    // Copies of different pools are refused.
    let other = Superblock { pool: PoolId([1; 16]), ..old };
    let foreign = Superblock::choose([Some(&a), Some(&other.encode())]);
    assert!(matches!(foreign, Err(FormatError::Foreign { .. })));
    // Of two invalid copies, the more specific error is returned: an unwritten copy is less specific.
    let mut damaged = a.clone();
    damaged[50] ^= 1;
    for copies in [[Some(&damaged[..]), Some(&[0; BLOCK][..])], [Some(&[0; BLOCK][..]), Some(&damaged[..])]] {
        assert_eq!(Superblock::choose(copies), Err(FormatError::Checksum("superblock")));
    }
}

/// The error names the version and what to do. A copy of another version takes precedence if its checksum is
/// correct, so that a pool is not reverted to an old state; otherwise the other copy is used.
#[test]
fn superblocks_of_other_versions_are_refused_by_name() {
    let (good, other) = (superblock().encode(), Superblock { generation: 42, ..superblock() }.encode());
    for version in [1, 2, 3, 5, u32::MAX] {
        let forged = forged(good.clone(), 8, &version.to_le_bytes());
        let refused = Superblock::decode(&forged).unwrap_err();
        let expected = match version {
            ..4 => FormatError::Older { found: version },
            _ => FormatError::Newer { found: version },
        };
        assert_eq!(refused, expected);
        let text = refused.to_string();
        let remedy = if version < 4 { "copy the disks to a new pool" } else { "upgrade forebay" };
        assert!(text.contains(&format!("format version {version}")) && text.contains(remedy), "{text}");
        assert!(!text.contains('\n'), "{text}");

        let mut damaged = good.clone();
        damaged[8..12].copy_from_slice(&version.to_le_bytes());
        for (copies, chosen) in [
            ([Some(&forged[..]), Some(&other[..])], Err(expected.clone())),
            ([Some(&other), Some(&forged)], Err(expected.clone())),
            ([Some(&forged), None], Err(expected.clone())),
            ([None, Some(&damaged)], Err(expected)),
            ([Some(&damaged), Some(&other)], Superblock::decode(&other)),
            ([Some(&other), Some(&damaged)], Superblock::decode(&other)),
        ] {
            assert_eq!(Superblock::choose(copies), chosen, "version {version}");
        }
    }
}

/// Superblocks with these bits in the words of compatible, read-only compatible and incompatible features.
fn with_features(words: [u64; 3]) -> Vec<u8> {
    let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    forged(superblock().encode(), 3200, &words)
}

/// An unknown feature is ignored, refused by writers, or refused by all, and the error names its bit.
#[test]
fn unknown_features_are_refused_by_their_kind() {
    let decode = |words| Superblock::decode(&with_features(words));
    for bit in [0, 17, 63] {
        let word = 1 << bit;
        let compatible = decode([word, 0, 0]).unwrap();
        assert_eq!(compatible.features, Features { compatible: word, ..Features::default() });
        assert_eq!(compatible.check_writable(), Ok(()));
        let read_only = decode([0, word, 0]).unwrap();
        let refused = read_only.check_writable().unwrap_err();
        assert_eq!(
            refused.to_string(),
            format!(
                "the pool has read-only compatible features that this release does not know (bit {bit}): upgrade \
                 forebay; this release can only check and inspect it"
            )
        );
        let refused = decode([0, 0, word]).unwrap_err();
        assert!(refused.is_unsupported());
        assert_eq!(
            refused.to_string(),
            format!(
                "the pool has incompatible features that this release does not know (bit {bit}): upgrade forebay"
            )
        );
        // The words are kept.
        for read in [compatible, read_only] {
            assert_eq!(Superblock::decode(&read.encode()), Ok(read));
        }
    }
    let several = decode([1, 2, 0x8000_0000_0000_0005]).unwrap_err().to_string();
    assert!(several.contains("(bits 0, 2, 63)"), "{several}");
    // A damaged word is not a feature.
    let mut damaged = superblock().encode();
    damaged[3216] = 1;
    assert_eq!(Superblock::decode(&damaged), Err(FormatError::Checksum("superblock")));
}

/// A feature of either copy is a feature of the pool.
#[test]
fn the_features_of_both_superblock_copies_count() {
    let newest = Superblock { generation: 42, ..superblock() }.encode();
    for swapped in [false, true] {
        let choose = |words| {
            let other = with_features(words);
            let copies =
                if swapped { [Some(&newest[..]), Some(&other)] } else { [Some(&other[..]), Some(&newest)] };
            Superblock::choose(copies)
        };
        let chosen = choose([1, 2, 0]).unwrap();
        assert_eq!(chosen.generation, 42);
        assert_eq!(chosen.features, Features { compatible: 1, read_only: 2, incompatible: 0 });
        assert!(matches!(choose([0, 0, 4]), Err(FormatError::Features(UnknownFeatures { bits: 4, .. }))));
    }
}
