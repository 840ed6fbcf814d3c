//! The treatment of blocks by their class, as a table that the configuration can change.
//!
//! A policy may only save work or space. A class reflects the file system at the time of the scan, so a block
//! of any class may contain arbitrary data now: code that drops or skips something because of its class must
//! not lose flushed data.

use serde::{Deserialize, Serialize};

use crate::class::Class;

/// Priority in the read cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CachePriority {
    /// The block is not admitted to the read cache.
    Never,
    /// The block is evicted first.
    Low,
    /// The block has the default priority.
    Normal,
    /// The block is evicted last.
    High,
}

/// The treatment of blocks of one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Treatment {
    /// Look up and enter the block in the deduplication index.
    pub dedup: bool,
    /// Compress the block if that saves space.
    pub compress: bool,
    /// Priority in the read cache.
    pub cache: CachePriority,
}

impl Default for Treatment {
    /// The treatment of unclassified data.
    fn default() -> Treatment {
        Treatment { dedup: true, compress: true, cache: CachePriority::Normal }
    }
}

/// Changes to the treatment of one class, from the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Change {
    /// See [`Treatment::dedup`].
    pub dedup: Option<bool>,
    /// See [`Treatment::compress`].
    pub compress: Option<bool>,
    /// See [`Treatment::cache`].
    pub cache: Option<CachePriority>,
}

/// The treatment of every class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy([Treatment; Class::COUNT]);

impl Default for Policy {
    fn default() -> Policy {
        use CachePriority::{High, Low, Never};
        let cache = |cache| Treatment { cache, ..Treatment::default() };
        let of = |class| match class {
            Class::Other => Treatment::default(),
            Class::Page => Treatment { dedup: false, compress: false, cache: Never },
            Class::Code | Class::Metadata => cache(High),
            Class::Temporary | Class::Free => cache(Low),
        };
        Policy(Class::ALL.map(of))
    }
}

impl Policy {
    /// Returns the treatment of a class.
    pub fn of(&self, class: Class) -> Treatment {
        self.0[class as usize]
    }

    /// Returns the policy with the changes of one class applied.
    #[must_use]
    pub fn with(mut self, class: Class, change: Change) -> Policy {
        let Treatment { dedup, compress, cache } = self.of(class);
        self.0[class as usize] = Treatment {
            dedup: change.dedup.unwrap_or(dedup),
            compress: change.compress.unwrap_or(compress),
            cache: change.cache.unwrap_or(cache),
        };
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_files_are_not_deduplicated_compressed_or_cached() {
        let page = Policy::default().of(Class::Page);
        assert_eq!(page, Treatment { dedup: false, compress: false, cache: CachePriority::Never });
        // All other classes are stored as usual, and code has the highest cache priority.
        for class in Class::ALL.into_iter().filter(|class| *class != Class::Page) {
            let treatment = Policy::default().of(class);
            assert!(treatment.dedup && treatment.compress);
            assert!(treatment.cache <= Policy::default().of(Class::Code).cache);
        }
    }

    #[test]
    fn a_change_affects_only_its_class_and_settings() {
        let change: Change = toml::from_str("cache = \"never\"\ncompress = false\n").unwrap();
        let policy = Policy::default().with(Class::Temporary, change);
        let expected = Treatment { dedup: true, compress: false, cache: CachePriority::Never };
        assert_eq!(policy.of(Class::Temporary), expected);
        for class in Class::ALL.into_iter().filter(|class| *class != Class::Temporary) {
            assert_eq!(policy.of(class), Policy::default().of(class));
        }
        assert_eq!(policy.with(Class::Page, Change::default()), policy);
        assert!(toml::from_str::<Change>("speed = 1\n").is_err());
    }
}
