//! How the server treats blocks of each class.
//!
//! A table, so that it can be read from a configuration; what is not said there is as in [`Policy::default`]. A
//! policy may only save work or room. A class is what a file system said some time ago, so a block of any class may
//! by now hold anything: whoever drops or skips something on account of its class must not lose what was flushed.

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

/// Which log stream a block is written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StreamChoice {
    /// With all other data.
    Normal,
    /// With what is expected to die soon.
    Short,
}

/// How blocks of one class are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Treatment {
    /// Looked up in the index of fingerprints, and entered there.
    pub dedup: bool,
    /// Compressed where that helps.
    pub compress: bool,
    /// Its place in the read cache.
    pub cache: CachePriority,
    /// Where it is written.
    pub stream: StreamChoice,
    /// Need not outlive the guest's next start: no reader misses what was written before it.
    pub drop_at_reset: bool,
}

/// The treatment of every class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Overrides")]
pub struct Policy {
    /// Of [`Class::Other`].
    pub other: Treatment,
    /// Of [`Class::Page`].
    pub page: Treatment,
    /// Of [`Class::Temporary`].
    pub temporary: Treatment,
    /// Of [`Class::Code`].
    pub code: Treatment,
    /// Of [`Class::Metadata`].
    pub metadata: Treatment,
    /// Of [`Class::Free`].
    pub free: Treatment,
}

impl Default for Policy {
    fn default() -> Policy {
        use CachePriority::{High, Low, Never, Normal};
        let plain = Treatment {
            dedup: true,
            compress: true,
            cache: Normal,
            stream: StreamChoice::Normal,
            drop_at_reset: false,
        };
        let short = Treatment { stream: StreamChoice::Short, ..plain };
        Policy {
            other: plain,
            page: Treatment { dedup: false, compress: false, cache: Never, drop_at_reset: true, ..short },
            temporary: Treatment { cache: Low, ..short },
            code: Treatment { cache: High, ..plain },
            metadata: Treatment { cache: High, ..plain },
            // A write to a free block is the first write to a new file, so only reads are told apart.
            free: Treatment { cache: Low, ..plain },
        }
    }
}

impl Policy {
    /// How a class is treated.
    pub fn of(&self, class: Class) -> Treatment {
        match class {
            Class::Other => self.other,
            Class::Page => self.page,
            Class::Temporary => self.temporary,
            Class::Code => self.code,
            Class::Metadata => self.metadata,
            Class::Free => self.free,
        }
    }
}

/// What a configuration says of one class.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Change {
    dedup: Option<bool>,
    compress: Option<bool>,
    cache: Option<CachePriority>,
    stream: Option<StreamChoice>,
    drop_at_reset: Option<bool>,
}

impl Change {
    fn apply(self, to: &mut Treatment) {
        let Treatment { dedup, compress, cache, stream, drop_at_reset } = *to;
        *to = Treatment {
            dedup: self.dedup.unwrap_or(dedup),
            compress: self.compress.unwrap_or(compress),
            cache: self.cache.unwrap_or(cache),
            stream: self.stream.unwrap_or(stream),
            drop_at_reset: self.drop_at_reset.unwrap_or(drop_at_reset),
        };
    }
}

/// What a configuration says.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Overrides {
    other: Change,
    page: Change,
    temporary: Change,
    code: Change,
    metadata: Change,
    free: Change,
}

impl From<Overrides> for Policy {
    fn from(said: Overrides) -> Policy {
        let mut policy = Policy::default();
        said.other.apply(&mut policy.other);
        said.page.apply(&mut policy.page);
        said.temporary.apply(&mut policy.temporary);
        said.code.apply(&mut policy.code);
        said.metadata.apply(&mut policy.metadata);
        said.free.apply(&mut policy.free);
        policy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_file_costs_as_little_as_possible() {
        let page = Policy::default().of(Class::Page);
        assert!(!page.dedup && !page.compress && page.drop_at_reset);
        assert_eq!((page.cache, page.stream), (CachePriority::Never, StreamChoice::Short));
        // Nothing but the page file may be forgotten, and code stays in RAM longest.
        for class in Class::ALL {
            let treatment = Policy::default().of(class);
            assert_eq!(treatment.drop_at_reset, class == Class::Page);
            assert!(treatment.cache <= Policy::default().code.cache);
        }
    }

    #[test]
    fn a_configuration_changes_what_it_names() {
        let policy: Policy =
            toml::from_str("[temporary]\ncache = \"never\"\n[page]\ncompress = true\n").unwrap();
        let mut expected = Policy::default();
        expected.temporary.cache = CachePriority::Never;
        expected.page.compress = true;
        assert_eq!(policy, expected);
        assert_eq!(toml::from_str::<Policy>("").unwrap(), Policy::default());
        assert!(toml::from_str::<Policy>("[page]\nspeed = 1\n").is_err());
        assert!(toml::from_str::<Policy>("[pages]\n").is_err());
    }
}
