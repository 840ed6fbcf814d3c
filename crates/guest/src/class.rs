//! The classes of blocks.

use serde::{Deserialize, Serialize};

/// Bytes per block, the unit of classification.
pub const BLOCK: u64 = 4096;

/// The use of a block by the guest's file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Class {
    /// Blocks that belong to no other class: ordinary file data, unknown file systems, gaps between
    /// partitions.
    Other = 0,
    /// Page, swap and hibernation files, and swap partitions.
    Page = 1,
    /// Temporary files and caches of browsers.
    Temporary = 2,
    /// Programs and libraries: PE and ELF files.
    Code = 3,
    /// File system metadata and partition tables.
    Metadata = 4,
    /// Blocks that the file system has not allocated.
    Free = 5,
}

impl Class {
    /// Number of block classes.
    pub const COUNT: usize = 6;
    /// All classes, in the order of their numbers.
    pub const ALL: [Class; Class::COUNT] =
        [Class::Other, Class::Page, Class::Temporary, Class::Code, Class::Metadata, Class::Free];

    /// Returns the class with this number.
    pub fn from_number(number: u8) -> Option<Class> {
        Class::ALL.get(usize::from(number)).copied()
    }

    /// Name of the class in configuration, output and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Class::Other => "other",
            Class::Page => "page",
            Class::Temporary => "temporary",
            Class::Code => "code",
            Class::Metadata => "metadata",
            Class::Free => "free",
        }
    }
}

/// The set of classes that claim a block or parts of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Claims(u8);

impl Claims {
    pub fn add(&mut self, class: Class) {
        self.0 |= 1 << class as u8;
    }

    pub fn join(&mut self, other: Claims) {
        self.0 |= other.0;
    }

    /// Resolves the claims to one class. A single class is the result. Several classes resolve to `Code` if
    /// it is among them, otherwise to `Metadata` if it is among them, otherwise to `Other`: the part that
    /// needs most care determines the treatment. So a block is `Page`, `Temporary` or `Free` only if all of
    /// it is, without a conflicting claim.
    pub fn resolve(self) -> Class {
        let has = |class: Class| self.0 & (1 << class as u8) != 0;
        if self.0.count_ones() == 1 {
            return Class::from_number(self.0.trailing_zeros() as u8).unwrap_or(Class::Other);
        }
        match () {
            () if has(Class::Code) => Class::Code,
            () if has(Class::Metadata) => Class::Metadata,
            () => Class::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(classes: &[Class]) -> Class {
        let mut claims = Claims::default();
        classes.iter().for_each(|c| claims.add(*c));
        claims.resolve()
    }

    #[test]
    fn conflicting_claims_resolve_by_precedence() {
        assert_eq!(resolve(&[]), Class::Other);
        for class in Class::ALL {
            assert_eq!(resolve(&[class, class]), class);
            assert_eq!(Class::from_number(class as u8), Some(class));
            assert_eq!(resolve(&[class, Class::Code]), Class::Code);
        }
        assert_eq!(resolve(&[Class::Metadata, Class::Page]), Class::Metadata);
        for pair in [[Class::Page, Class::Free], [Class::Page, Class::Other], [Class::Temporary, Class::Free]]
        {
            assert_eq!(resolve(&pair), Class::Other);
        }
    }
}
