//! Feature words of the superblock: properties of a pool that some releases of its format version do not
//! support.
//!
//! A bit of a word is one feature. The word states what a release may do if it does not support the feature.
//! A pool gets a feature by a command only, and the command writes the bit to both superblock copies before
//! the pool uses the feature.

use std::fmt;

/// The words of feature bits in a superblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features {
    /// Features that a release may ignore.
    pub compatible: u64,
    /// Features with which a release may read the pool, but not change it.
    pub read_only: u64,
    /// Features that are needed to read the pool.
    pub incompatible: u64,
}

/// The features that this release supports. No feature is defined yet.
const KNOWN: Features = Features { compatible: 0, read_only: 0, incompatible: 0 };

/// What a release may do if it does not support a feature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeatureKind {
    /// This release may only check and inspect the pool.
    ReadOnly,
    /// This release may not use the pool.
    Incompatible,
}

/// Features that this release does not support, and that do not allow what was requested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownFeatures {
    /// What the features allow to a release that does not know them.
    pub kind: FeatureKind,
    /// Bits of the features.
    pub bits: u64,
}

impl Features {
    /// Whether this release can read the pool.
    pub(crate) fn check_readable(self) -> Result<(), UnknownFeatures> {
        check(FeatureKind::Incompatible, self.incompatible & !KNOWN.incompatible)
    }

    /// Whether this release can change the pool, if it can read it.
    pub(crate) fn check_writable(self) -> Result<(), UnknownFeatures> {
        check(FeatureKind::ReadOnly, self.read_only & !KNOWN.read_only)
    }

    /// Returns the features that either set contains.
    pub(crate) fn union(self, other: Features) -> Features {
        Features {
            compatible: self.compatible | other.compatible,
            read_only: self.read_only | other.read_only,
            incompatible: self.incompatible | other.incompatible,
        }
    }

    /// The numbers of the bits that are set in a word.
    pub fn bits(word: u64) -> impl Iterator<Item = u32> {
        (0..u64::BITS).filter(move |bit| word >> bit & 1 == 1)
    }
}

fn check(kind: FeatureKind, bits: u64) -> Result<(), UnknownFeatures> {
    if bits == 0 { Ok(()) } else { Err(UnknownFeatures { kind, bits }) }
}

impl fmt::Display for UnknownFeatures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, remedy) = match self.kind {
            FeatureKind::ReadOnly => ("read-only compatible", "; this release can only check and inspect it"),
            FeatureKind::Incompatible => ("incompatible", ""),
        };
        let bits: Vec<String> = Features::bits(self.bits).map(|bit| bit.to_string()).collect();
        let (noun, bits) = (if bits.len() == 1 { "bit" } else { "bits" }, bits.join(", "));
        write!(
            f,
            "the pool has {kind} features that this release does not know ({noun} {bits}): upgrade forebay{remedy}"
        )
    }
}
