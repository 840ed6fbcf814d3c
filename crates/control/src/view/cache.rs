//! Caches in the API: sizes, hits, and what a larger read cache would save.

use forebay_api::{CacheAdviceView, CacheView, ClassReadsView, ReadCacheView};
use forebay_engine::{CacheAdvice, CacheStats, ClassReads, PoolStats};

use super::{View, ratio};

impl View for CacheStats {
    type View = CacheView;

    fn view(self) -> CacheView {
        CacheView {
            hits: self.hits,
            misses: self.misses,
            hit_rate: ratio(self.hits, self.hits + self.misses),
            bytes: self.bytes,
            budget_bytes: self.budget,
        }
    }
}

/// Creates the view of a pool's read cache.
pub(super) fn read_cache_view(s: &PoolStats) -> ReadCacheView {
    let CacheView { hits, misses, hit_rate, bytes, budget_bytes } = s.read_cache.view();
    ReadCacheView {
        hits,
        misses,
        hit_rate,
        bytes,
        budget_bytes,
        evictions: s.read_cache_evictions,
        advice: s.read_cache_advice.iter().map(View::view).collect(),
        classes: s.class_reads.iter().map(View::view).collect(),
    }
}

impl View for &CacheAdvice {
    type View = CacheAdviceView;

    fn view(self) -> CacheAdviceView {
        CacheAdviceView {
            size_bytes: self.size,
            more_percent: self.more_percent,
            saved_reads: self.saved_reads,
            saved_reads_per_s: self.saved_reads_per_s,
        }
    }
}

impl View for &ClassReads {
    type View = ClassReadsView;

    fn view(self) -> ClassReadsView {
        let ClassReads { class, hits, misses } = *self;
        ClassReadsView { class, hits, misses, hit_rate: ratio(hits, hits + misses) }
    }
}
