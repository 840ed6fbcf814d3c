//! The classes of blocks.

use serde::{Deserialize, Serialize};

/// Bytes of a block: what a class is given to.
pub const BLOCK: u64 = 4096;

/// What a block holds, as far as the guest's file system tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Class {
    /// All that is not known to be something else: files' data, unknown file systems, gaps between partitions.
    Other = 0,
    /// Page, swap and hibernation files, and swap partitions.
    Page = 1,
    /// Temporary files and caches of browsers.
    Temporary = 2,
    /// Programs and libraries: PE and ELF files.
    Code = 3,
    /// What the file system keeps for itself; partition tables.
    Metadata = 4,
    /// Not allocated.
    Free = 5,
}

impl Class {
    /// How many there are.
    pub const COUNT: usize = 6;
    /// Each of them, in the order of their numbers.
    pub const ALL: [Class; Class::COUNT] =
        [Class::Other, Class::Page, Class::Temporary, Class::Code, Class::Metadata, Class::Free];

    /// The class with this number.
    pub fn from_number(number: u8) -> Option<Class> {
        Class::ALL.get(usize::from(number)).copied()
    }
}

/// Classes that claim parts of one block, or the same part of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Claims(u8);

impl Claims {
    pub fn add(&mut self, class: Class) {
        self.0 |= 1 << class as u8;
    }

    pub fn join(&mut self, other: Claims) {
        self.0 |= other.0;
    }

    /// The precedence, in one place: claims that agree decide. Where they differ the block is code if any of it
    /// is, else metadata if any of it is, else other: it is treated with the care that its most precious part
    /// needs. So a block is `Page`, `Temporary` or `Free` only if the whole of it is, and nobody disputes it.
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
    fn precedence() {
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
