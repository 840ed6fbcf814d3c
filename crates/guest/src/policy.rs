//! How the server treats blocks of each class.
//!
//! A table, so that a configuration can change it. A policy may only save work or room. A class is what a file
//! system said some time ago, so a block of any class may by now hold anything: whoever drops or skips something on
//! account of its class must not lose what was flushed.

use serde::{Deserialize, Serialize};

use crate::class::Class;

/// Where a block stands in the read cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CachePriority {
    /// Not admitted.
    Never,
    /// The first to go.
    Low,
    /// As any data.
    Normal,
    /// The last to go.
    High,
}

/// How blocks of one class are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Treatment {
    /// Looked up in the index of fingerprints, and entered there.
    pub dedup: bool,
    /// Compressed where that helps.
    pub compress: bool,
    /// Its place in the read cache.
    pub cache: CachePriority,
}

impl Default for Treatment {
    /// That of data of which nothing is known.
    fn default() -> Treatment {
        Treatment { dedup: true, compress: true, cache: CachePriority::Normal }
    }
}

/// What a configuration says of one class.
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
    /// How a class is treated.
    pub fn of(&self, class: Class) -> Treatment {
        self.0[class as usize]
    }

    /// The same but for what is said of one class.
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
    fn a_page_file_costs_as_little_as_possible() {
        let page = Policy::default().of(Class::Page);
        assert_eq!(page, Treatment { dedup: false, compress: false, cache: CachePriority::Never });
        // Nothing else is stored in another way, and code stays in RAM longest.
        for class in Class::ALL.into_iter().filter(|class| *class != Class::Page) {
            let treatment = Policy::default().of(class);
            assert!(treatment.dedup && treatment.compress);
            assert!(treatment.cache <= Policy::default().of(Class::Code).cache);
        }
    }

    #[test]
    fn a_change_changes_what_it_names() {
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
