//! Means of recent measurements.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The mean after a sample: exponentially weighted, each sample with a weight of one eighth. The first sample
/// is the first mean.
pub fn next_mean(mean: Option<f64>, sample: f64) -> f64 {
    mean.map_or(sample, |mean| mean + (sample - mean) / 8.0)
}

/// A mean by [`next_mean`] that threads share.
#[derive(Debug)]
pub struct Mean(AtomicU64);

impl Default for Mean {
    fn default() -> Mean {
        Mean(AtomicU64::new(f64::NAN.to_bits()))
    }
}

impl Mean {
    /// Adds a sample. Concurrent updates may lose a sample, which a mean tolerates.
    pub fn add(&self, sample: f64) {
        self.0.store(next_mean(self.get(), sample).to_bits(), Relaxed);
    }

    /// The present mean; `None` before the first sample.
    pub fn get(&self) -> Option<f64> {
        Some(f64::from_bits(self.0.load(Relaxed))).filter(|mean| !mean.is_nan())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_follows_the_samples() {
        let mean = Mean::default();
        assert_eq!(mean.get(), None);
        mean.add(1000.0);
        assert_eq!(mean.get(), Some(1000.0));
        (0..200).for_each(|_| mean.add(0.25));
        assert!((0.25..0.26).contains(&mean.get().unwrap()), "{mean:?}");
    }
}
